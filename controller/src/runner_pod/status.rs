//! Reads a pod's status: whether and why it ended, or why it does not start.

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, Pod, PodSpec, PodStatus,
};
use kube::ResourceExt;

use crds::{names, pod_env, reason, termination::TerminationMessage, text::clip};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodView {
    pub name: String,
    pub uid: String,
    /// Name of its run.
    pub run: String,
    pub run_uid: String,
    pub attempt: u32,
    pub node: Option<String>,
    /// How many seconds it tolerates a node that is not Ready, if specified.
    pub tolerates: Option<i64>,
    /// Has the attempt finalizer.
    pub held: bool,
    /// Has a deletionTimestamp.
    pub deleting: bool,
    /// Its node reports that the container was started, even if it has ended since.
    pub started: bool,
    pub ended: Option<Ended>,
    /// The attempt's container has ended, and another one runs on.
    pub lingers: bool,
    /// Why it does not start, if the pod reports a reason.
    pub trouble: Option<Trouble>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ended {
    /// Its termination message, if it is valid.
    pub message: Option<TerminationMessage>,
    /// Reason, from [`crds::reason`].
    pub reason: &'static str,
    /// For people.
    pub text: String,
}

/// Why an attempt does not start.
#[derive(Clone, Debug, PartialEq)]
pub struct Trouble {
    /// Reason, from [`crds::reason`].
    pub reason: &'static str,
    /// For people.
    pub text: String,
}

impl PodView {
    /// Reads a pod; `None` when it is not an attempt's pod.
    pub fn of(pod: &Pod) -> Option<Self> {
        let meta = &pod.metadata;
        let label = |name: &str| meta.labels.as_ref().and_then(|labels| labels.get(name));
        let attempt = label(names::LABEL_ATTEMPT)?.parse().ok()?;
        let deleting = meta.deletion_timestamp.is_some();
        let spec = pod.spec.as_ref();
        Some(Self {
            name: meta.name.clone()?,
            uid: meta.uid.clone()?,
            run: label(names::LABEL_RUN).cloned().unwrap_or_default(),
            run_uid: label(names::LABEL_RUN_UID).cloned().unwrap_or_default(),
            attempt,
            node: spec.and_then(|spec| spec.node_name.clone()),
            tolerates: spec.and_then(tolerates),
            held: meta
                .finalizers
                .iter()
                .flatten()
                .any(|f| f == names::POD_FINALIZER),
            deleting,
            started: pod.status.as_ref().is_some_and(started),
            ended: ended(pod, deleting),
            lingers: pod.status.as_ref().is_some_and(lingers),
            trouble: pod.status.as_ref().and_then(trouble),
        })
    }
}

/// How long a pod stays on a node that is not Ready. The API server sets 300 s unless the spec has a value.
fn tolerates(spec: &PodSpec) -> Option<i64> {
    const NOT_READY: [&str; 2] = [
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/not-ready",
    ];
    let all = spec.tolerations.iter().flatten();
    all.filter(|t| t.key.as_deref().is_some_and(|key| NOT_READY.contains(&key)))
        .filter_map(|t| t.toleration_seconds)
        .min()
}

/// The last reported state of the agent's container.
fn container(status: &PodStatus) -> Option<&ContainerState> {
    status
        .container_statuses
        .iter()
        .flatten()
        .find(|c| c.name == pod_env::CONTAINER)?
        .state
        .as_ref()
}

fn terminated(status: &PodStatus) -> Option<&ContainerStateTerminated> {
    container(status)?.terminated.as_ref()
}

fn started(status: &PodStatus) -> bool {
    status
        .phase
        .as_deref()
        .is_some_and(|phase| phase != "Pending")
        || runs(status)
        || terminated(status).is_some()
}

/// A container that something else put into the pod runs on, and with it the pod's requests.
fn lingers(status: &PodStatus) -> bool {
    let others = || status.container_statuses.iter().flatten();
    terminated(status).is_some()
        && others().any(|c| {
            c.state
                .as_ref()
                .is_some_and(|state| state.terminated.is_none())
        })
}

/// The container runs according to the pod: it started, and no end was reported.
fn runs(status: &PodStatus) -> bool {
    container(status).is_some_and(|state| state.running.is_some())
}

fn ended(pod: &Pod, deleting: bool) -> Option<Ended> {
    let status = pod.status.as_ref();
    let container = status.and_then(terminated);
    let phase = status.and_then(|s| s.phase.as_deref());
    let disrupted = status.and_then(|s| s.conditions.as_ref()).and_then(|all| {
        all.iter()
            .find(|c| c.type_ == "DisruptionTarget" && c.status == "True")
    });
    // The kubelet reports that the container ended or never started. The control plane also writes `Failed` for pods on
    // a lost node, whose container may still run.
    let refused = phase == Some("Failed")
        && !status.is_some_and(runs)
        && disrupted.is_none_or(|c| c.reason.as_deref() == Some("TerminationByKubelet"));
    let over = container.is_some() || phase == Some("Succeeded") || refused;
    // Deleted before it was scheduled: it will never start.
    let never = deleting
        && pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_none());
    if !over && !never {
        return None;
    }
    let message = container
        .and_then(|c| c.message.as_deref())
        .and_then(TerminationMessage::parse);
    let name = pod.name_any();
    let why = status.and_then(|s| s.reason.as_deref());
    let (reason, text) = if why == Some("Evicted") || disrupted.is_some() {
        let said = status
            .and_then(|s| s.message.as_deref())
            .or(disrupted.and_then(|c| c.message.as_deref()))
            .unwrap_or_default();
        (reason::EVICTED, format!("pod {name} was evicted: {said}"))
    } else if container.is_some_and(|c| c.reason.as_deref() == Some("OOMKilled")) {
        (
            reason::OUT_OF_MEMORY,
            format!("pod {name} ran out of memory; raise spec.runner.resources in a new run"),
        )
    } else if deleting {
        (reason::TERMINATED, format!("pod {name} was deleted"))
    } else {
        let code = container
            .map(|c| format!(" with exit code {}", c.exit_code))
            .unwrap_or_default();
        let said = container
            .and_then(|c| c.reason.as_deref())
            .filter(|r| !matches!(*r, "Error" | "Completed"));
        let said = said.map(|r| format!(" ({r})")).unwrap_or_default();
        (
            reason::POD_LOST,
            format!("pod {name} ended{code}{said} without a result"),
        )
    };
    Some(Ended {
        message,
        reason,
        text: clip(&text, 400),
    })
}

fn trouble(status: &PodStatus) -> Option<Trouble> {
    let container = status
        .container_statuses
        .iter()
        .flatten()
        .find(|c| c.name == pod_env::CONTAINER);
    let waiting = container
        .and_then(|c| c.state.as_ref())
        .and_then(|s| s.waiting.as_ref());
    if let Some((waiting, why)) = waiting.and_then(|w| Some((w, w.reason.as_deref()?))) {
        let reason = match why {
            "ErrImagePull"
            | "ImagePullBackOff"
            | "InvalidImageName"
            | "ErrImageNeverPull"
            | "ImageInspectError"
            | "RegistryUnavailable"
            | "SignatureValidationFailed" => Some(reason::IMAGE_NOT_AVAILABLE),
            "CreateContainerConfigError"
            | "CreateContainerError"
            | "RunContainerError"
            | "CrashLoopBackOff" => Some(reason::POD_NOT_STARTED),
            _ => None,
        };
        if let Some(reason) = reason {
            let image = container.map(|c| c.image.as_str()).unwrap_or_default();
            let said = waiting.message.as_deref().unwrap_or_default();
            let text = if said.is_empty() {
                format!("{image}: {why}")
            } else {
                format!("{image}: {why}: {said}")
            };
            return Some(Trouble {
                reason,
                text: clip(&text, 400),
            });
        }
    }
    let scheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == "PodScheduled")?;
    (scheduled.status == "False" && scheduled.reason.as_deref() == Some("Unschedulable")).then(
        || Trouble {
            reason: reason::UNSCHEDULABLE,
            text: clip(
                scheduled
                    .message
                    .as_deref()
                    .unwrap_or("no node takes the pod"),
                400,
            ),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn pod_lingers_while_a_container_of_others_runs() {
        let of = |others: Value| {
            let ended =
                json!({"name": pod_env::CONTAINER, "state": {"terminated": {"exitCode": 0}}});
            let all: Vec<_> = std::iter::once(ended)
                .chain(others.as_array().cloned().unwrap())
                .collect();
            pod(&json!({"status": {"phase": "Running", "containerStatuses": all}}))
                .unwrap()
                .lingers
        };
        assert!(!of(json!([])));
        assert!(of(json!([{"name": "proxy", "state": {"running": {}}}])));
        assert!(!of(
            json!([{"name": "proxy", "state": {"terminated": {"exitCode": 0}}}])
        ));
        let runs = json!([{"name": pod_env::CONTAINER, "state": {"running": {}}}, {"name": "proxy", "state": {"running": {}}}]);
        assert!(
            !pod(&json!({"status": {"containerStatuses": runs}}))
                .unwrap()
                .lingers
        );
    }

    fn pod(value: &Value) -> Option<PodView> {
        let mut pod = json!({
            "metadata": {"name": "p", "uid": "u", "labels": {"pawl.run/attempt": "3"}, "finalizers": ["pawl.run/attempt"]},
            "spec": {"nodeName": "n", "containers": []},
        });
        crate::testing::merge(&mut pod, value);
        PodView::of(&serde_json::from_value(pod).unwrap())
    }

    fn runner(state: &Value) -> Value {
        json!({"status": {"phase": "Pending", "containerStatuses": [{
            "name": "runner", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state}]}})
    }

    #[test]
    fn container_states_give_the_start_and_the_end_of_a_pod() {
        let running = pod(&runner(&json!({"running": {}}))).unwrap();
        assert_eq!(running.attempt, 3);
        assert!(running.held);
        assert!(!running.deleting);
        assert!(running.trouble.is_none());
        let exited = |code: i32, reason: &str| {
            runner(&json!({"terminated": {"exitCode": code, "reason": reason}}))
        };
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let mut deleted_and_exited = exited(1, "Error");
        crate::testing::merge(&mut deleted_and_exited, &deleted);
        let mut deleted_without_node = deleted.clone();
        deleted_without_node["spec"] = json!({"nodeName": null});
        for (case, value, started, ended) in [
            ("it runs", runner(&json!({"running": {}})), true, None),
            (
                "its image is missing",
                runner(&json!({"waiting": {"reason": "ImagePullBackOff"}})),
                false,
                None,
            ),
            ("no node has it yet", json!({}), false, None),
            (
                "of a lost node, it may have started",
                json!({"status": {"phase": "Unknown"}}),
                true,
                None,
            ),
            (
                "killed for memory",
                exited(137, "OOMKilled"),
                true,
                Some(reason::OUT_OF_MEMORY),
            ),
            ("exited", exited(1, "Error"), true, Some(reason::POD_LOST)),
            (
                "evicted",
                json!({"status": {"phase": "Failed", "reason": "Evicted", "message": "disk"}}),
                true,
                Some(reason::EVICTED),
            ),
            (
                "deleted and exited",
                deleted_and_exited,
                true,
                Some(reason::TERMINATED),
            ),
            ("deleted, and its node still has it", deleted, false, None),
            (
                "deleted before it had a node",
                deleted_without_node,
                false,
                Some(reason::TERMINATED),
            ),
        ] {
            let view = pod(&value).unwrap();
            assert_eq!(view.started, started, "{case}");
            assert_eq!(view.ended.map(|ended| ended.reason), ended, "{case}");
        }
    }

    #[test]
    fn failed_phase_of_a_lost_node_is_not_an_end() {
        for reason in ["DeletionByPodGC", "DeletionByTaintManager"] {
            let conditions = json!([{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "m"}]);
            let mut lost = runner(&json!({"running": {}}));
            lost["status"]["phase"] = "Failed".into();
            assert!(
                pod(&lost).unwrap().ended.is_none(),
                "its container was seen to run"
            );
            lost["status"]["conditions"] = conditions.clone();
            assert!(pod(&lost).unwrap().ended.is_none(), "{reason}");
            let unseen = json!({"status": {"phase": "Failed", "conditions": conditions}});
            assert!(
                pod(&unseen).unwrap().ended.is_none(),
                "{reason}: it may have been begun and not yet told"
            );
            let mut told = runner(&json!({"terminated": {"exitCode": 143}}));
            told["status"]["conditions"] = conditions;
            assert_eq!(pod(&told).unwrap().ended.unwrap().reason, reason::EVICTED);
        }
    }

    #[test]
    fn tolerations_give_the_time_on_a_lost_node() {
        let tolerations = json!([
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
            {"key": "other", "operator": "Exists", "tolerationSeconds": 1}, {"operator": "Exists"}]);
        assert_eq!(
            pod(&json!({"spec": {"tolerations": tolerations}}))
                .unwrap()
                .tolerates,
            Some(5)
        );
        assert_eq!(pod(&json!({})).unwrap().tolerates, None);
    }

    #[test]
    fn waiting_pods_have_reasons() {
        for (why, expected) in [
            ("ErrImagePull", Some(reason::IMAGE_NOT_AVAILABLE)),
            ("ImagePullBackOff", Some(reason::IMAGE_NOT_AVAILABLE)),
            ("InvalidImageName", Some(reason::IMAGE_NOT_AVAILABLE)),
            ("ErrImageNeverPull", Some(reason::IMAGE_NOT_AVAILABLE)),
            ("CreateContainerConfigError", Some(reason::POD_NOT_STARTED)),
            ("ContainerCreating", None),
        ] {
            let found = pod(&runner(&json!({"waiting": {"reason": why}})))
                .unwrap()
                .trouble;
            assert_eq!(found.map(|t| t.reason), expected, "{why}");
        }
        let conditions = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]);
        let found = pod(&json!({"status": {"phase": "Pending", "conditions": conditions}}))
            .unwrap()
            .trouble
            .unwrap();
        assert_eq!(found.reason, reason::UNSCHEDULABLE);
        assert_eq!(found.text.as_str(), "0/1 nodes");
    }

    #[test]
    fn pod_of_others_is_ignored() {
        assert!(pod(&json!({"metadata": {"labels": {"pawl.run/attempt": null}}})).is_none());
    }
}
