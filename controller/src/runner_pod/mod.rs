//! The pod of an attempt: a pure function of run, attempt and settings.

pub mod account;
mod environment;
mod identity;
pub mod status;
pub mod tools;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use k8s_openapi::{
    api::core::v1::{
        Capabilities, Container, EnvVar, LocalObjectReference, Pod, PodSecurityContext, PodSpec,
        ProjectedVolumeSource, ResourceRequirements, SeccompProfile, SecurityContext,
        ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kube::ResourceExt;

use crds::{Attempt, TerraformRun, names, pod_env};
use datastore_client::{RequestError, controller::Datastore};

use crate::settings::Settings;

/// Lifetime of tokens in seconds. The kubelet renews them before they expire.
const TOKEN_SECONDS: i64 = 3600;
/// Mode of files from Secrets and ConfigMaps: readable by every user, since an image may have any user, and writable by none.
const FILE_MODE: i32 = 0o444;

/// Time beyond the pod's grace period in which a node stops containers whose pod object is gone.
const NODE_MARGIN: SignedDuration = SignedDuration::from_secs(60);

/// The pod's grace period, in seconds.
pub fn grace_seconds(run: &TerraformRun) -> i64 {
    run.spec.runner.termination_grace_period_seconds
}

/// The pod's grace period.
pub fn grace(run: &TerraformRun) -> SignedDuration {
    SignedDuration::from_secs(grace_seconds(run))
}

/// How long a deleted pod of this run may still have a process on a Ready node.
pub fn gone_wait(run: &TerraformRun) -> SignedDuration {
    grace(run)
        .checked_add(NODE_MARGIN)
        .unwrap_or(SignedDuration::MAX)
}

pub fn image<'a>(run: &'a TerraformRun, settings: &'a Settings) -> &'a str {
    run.spec
        .runner
        .image
        .as_deref()
        .unwrap_or(&settings.runner_image)
}

/// The image of an attempt's pod, as recorded when the attempt was opened.
pub fn attempt_image<'a>(
    run: &'a TerraformRun,
    attempt: &'a Attempt,
    settings: &'a Settings,
) -> &'a str {
    attempt
        .image
        .as_deref()
        .unwrap_or_else(|| image(run, settings))
}

/// The datastore's connection data for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handout {
    pub url: String,
    /// Its certificate authority, PEM.
    pub ca: String,
}

impl Handout {
    /// Reads the connection data of a datastore. Reads the certificate authority each time, because a mounted Secret
    /// may change.
    ///
    /// # Errors
    /// When the certificate authority cannot be read.
    pub fn of(datastore: &Datastore) -> Result<Self, RequestError> {
        Ok(Self {
            url: datastore.url().to_owned(),
            ca: datastore.authority()?,
        })
    }
}

pub fn runner_pod(
    run: &TerraformRun,
    attempt: &Attempt,
    settings: &Settings,
    datastore: Option<&Handout>,
) -> Pod {
    let (runner, number) = (&run.spec.runner, attempt.number);
    let mut labels = runner.labels.clone();
    labels.extend(account::labels(run, number));
    labels.insert("app.kubernetes.io/name".into(), "pawl-runner".into());
    labels.insert("app.kubernetes.io/component".into(), "runner".into());
    let mut annotations = runner.annotations.clone();
    annotations.insert(
        "cluster-autoscaler.kubernetes.io/safe-to-evict".into(),
        "false".into(),
    );
    annotations.insert("karpenter.sh/do-not-disrupt".into(), "true".into());
    annotations.insert(
        "kubectl.kubernetes.io/default-container".into(),
        pod_env::CONTAINER.into(),
    );

    let (volumes, mounts) = volumes::volumes(run, attempt, datastore.is_some());
    let mut node_selector = runner.node_selector.clone();
    node_selector.extend(platform(run, attempt));
    let pull_secrets = runner.image_pull_secrets.iter().map(|s| s.name.clone());
    let default_secrets = settings
        .runner_image_pull_secrets
        .iter()
        .filter(|s| !s.is_empty())
        .cloned();
    let pull_secrets: BTreeSet<String> = pull_secrets.chain(default_secrets).collect();
    Pod {
        metadata: ObjectMeta {
            name: Some(names::attempt_name(
                &run.name_any(),
                &run.uid().unwrap_or_default(),
                number,
            )),
            namespace: run.namespace(),
            labels: Some(labels),
            annotations: Some(annotations),
            finalizers: Some(vec![names::POD_FINALIZER.into()]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            service_account_name: Some(account::service_account_name(run, attempt)),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            restart_policy: Some("Never".into()),
            termination_grace_period_seconds: Some(grace_seconds(run)),
            image_pull_secrets: some(
                pull_secrets
                    .into_iter()
                    .map(|name| LocalObjectReference { name })
                    .collect(),
            ),
            node_selector: some_map(node_selector),
            tolerations: some(runner.tolerations.clone()),
            affinity: runner.affinity.clone(),
            topology_spread_constraints: some(runner.topology_spread_constraints.clone()),
            priority_class_name: runner.priority_class_name.clone(),
            runtime_class_name: runner.runtime_class_name.clone(),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: settings.runner_user,
                fs_group: runner.fs_group,
                fs_group_change_policy: runner.fs_group.map(|_| "OnRootMismatch".into()),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".into(),
                    localhost_profile: None,
                }),
                ..PodSecurityContext::default()
            }),
            containers: vec![container(run, attempt, settings, datastore, mounts)],
            volumes: Some(volumes),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// Selects the platform on which the plan was made: its checksum covers providers and tool.
fn platform(run: &TerraformRun, attempt: &Attempt) -> BTreeMap<String, String> {
    let plan = run.status.as_ref().and_then(|status| status.plan.as_ref());
    let platform = plan
        .filter(|plan| attempt.restores == Some(plan.attempt))
        .and_then(|plan| plan.platform.as_deref());
    // An agent wrote it, so accept only valid label values.
    let word = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    match platform.and_then(|platform| platform.split_once('_')) {
        Some((os, arch)) if word(os) && word(arch) => {
            [("kubernetes.io/os", os), ("kubernetes.io/arch", arch)]
                .map(|(key, value)| (key.into(), value.into()))
                .into()
        }
        Some(_) | None => BTreeMap::new(),
    }
}

fn container(
    run: &TerraformRun,
    attempt: &Attempt,
    settings: &Settings,
    datastore: Option<&Handout>,
    mounts: Vec<VolumeMount>,
) -> Container {
    let runner = &run.spec.runner;
    let default_policy = settings
        .runner_image_pull_policy
        .clone()
        .filter(|policy| !policy.is_empty());
    Container {
        name: pod_env::CONTAINER.into(),
        image: Some(attempt_image(run, attempt, settings).to_owned()),
        image_pull_policy: runner.image_pull_policy.clone().or(default_policy),
        args: Some(vec!["run".into()]),
        env: Some(environment::environment(
            run,
            attempt.number,
            settings,
            datastore,
        )),
        resources: Some(
            runner
                .resources
                .clone()
                .unwrap_or_else(|| default_resources(settings)),
        ),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".into()]),
                add: None,
            }),
            privileged: Some(false),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".into(),
                localhost_profile: None,
            }),
            ..SecurityContext::default()
        }),
        termination_message_path: Some(pod_env::TERMINATION_LOG.into()),
        termination_message_policy: Some("File".into()),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

/// A token of the pod's account, for the API server or for the given audience.
fn token_of(path: String, audience: Option<&str>) -> VolumeProjection {
    VolumeProjection {
        service_account_token: Some(ServiceAccountTokenProjection {
            path,
            expiration_seconds: Some(TOKEN_SECONDS),
            audience: audience.map(Into::into),
        }),
        ..VolumeProjection::default()
    }
}

/// A volume of tokens and other projections.
fn projected(name: &str, sources: Vec<VolumeProjection>) -> Volume {
    let projected = ProjectedVolumeSource {
        default_mode: Some(FILE_MODE),
        sources: Some(sources),
    };
    Volume {
        name: name.into(),
        projected: Some(projected),
        ..Volume::default()
    }
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    let read_only = read_only.then_some(true);
    VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        read_only,
        ..VolumeMount::default()
    }
}

/// A variable with a value.
fn variable(name: impl Into<String>, value: impl Into<String>) -> EnvVar {
    EnvVar {
        name: name.into(),
        value: Some(value.into()),
        value_from: None,
    }
}

/// Default resources of a run. There is no disk limit, because exceeding it would kill an apply.
fn default_resources(settings: &Settings) -> ResourceRequirements {
    let disk = settings
        .runner_ephemeral_storage
        .as_deref()
        .filter(|quantity| !quantity.is_empty());
    let requests = [
        ("cpu", Some("100m")),
        ("memory", Some("512Mi")),
        ("ephemeral-storage", disk),
    ];
    let requests = requests
        .into_iter()
        .filter_map(|(name, quantity)| Some((name.into(), Quantity(quantity?.into()))));
    ResourceRequirements {
        requests: Some(requests.collect()),
        ..ResourceRequirements::default()
    }
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn some_map<K: Ord, V>(map: BTreeMap<K, V>) -> Option<BTreeMap<K, V>> {
    (!map.is_empty()).then_some(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crds::{PlanStatus, TerraformRunStatus};

    pub(super) fn spec_of(run: &TerraformRun) -> PodSpec {
        built(run, &Settings::default()).spec.unwrap()
    }

    /// The pod of a first attempt.
    pub(super) fn built(run: &TerraformRun, settings: &Settings) -> Pod {
        runner_pod(
            run,
            &Attempt {
                number: 1,
                ..Attempt::default()
            },
            settings,
            None,
        )
    }

    /// The value of a variable of the pod's container.
    pub(super) fn value(spec: &PodSpec, name: &str) -> Option<String> {
        spec.containers[0]
            .env
            .as_ref()
            .unwrap()
            .iter()
            .find(|env| env.name == name)?
            .value
            .clone()
    }

    #[test]
    fn runner_pod_passes_pod_security_restricted() {
        let mut run = testing::run();
        run.spec.runner.fs_group = Some(2000);
        let spec = spec_of(&run);
        let pod = spec.security_context.unwrap();
        assert_eq!(pod.run_as_non_root, Some(true));
        assert_eq!(pod.run_as_user, None);
        assert_eq!(pod.fs_group, Some(2000));
        assert_eq!(spec.containers.len(), 1);
        assert!(spec.init_containers.is_none());
        assert!(spec.host_users.is_none());
        assert!(spec.host_network.is_none());
        let context = spec.containers[0].security_context.clone().unwrap();
        assert_eq!(context.allow_privilege_escalation, Some(false));
        assert_eq!(context.read_only_root_filesystem, Some(true));
        assert_eq!(context.capabilities.unwrap().drop, Some(vec!["ALL".into()]));
        assert_eq!(context.seccomp_profile.unwrap().type_, "RuntimeDefault");
        let allowed = |v: &Volume| {
            v.secret.is_some()
                || v.config_map.is_some()
                || v.empty_dir.is_some()
                || v.projected.is_some()
        };
        assert!(spec.volumes.unwrap().iter().all(allowed));
    }

    /// Burrito 11.9: lists in a pod were ordered by a hash map, differently at each reconcile.
    #[test]
    fn equal_runs_give_equal_pods() {
        let mut run = testing::run();
        let secret = |name: String| crds::KeyRef {
            name,
            key: "value".into(),
        };
        let of = |name: String| crds::ValueFrom {
            secret_key_ref: Some(secret(name)),
            ..crds::ValueFrom::default()
        };
        let variable = |n: u8| crds::Variable {
            name: format!("v{n}"),
            value: None,
            value_from: Some(of(format!("s{n}"))),
        };
        run.spec.variables = (0..20).map(variable).collect();
        let first = built(&run, &Settings::default());
        assert!(first.spec.as_ref().unwrap().volumes.as_ref().unwrap().len() > 20);
        for _ in 0..5 {
            assert_eq!(built(&run, &Settings::default()), first);
        }
    }

    #[test]
    fn disk_is_requested_and_not_limited() {
        let resources = |run: &TerraformRun, disk: Option<&str>| {
            let settings = Settings {
                runner_ephemeral_storage: disk.map(ToOwned::to_owned),
                ..Settings::default()
            };
            built(run, &settings).spec.unwrap().containers[0]
                .resources
                .clone()
                .unwrap()
        };
        let mut run = testing::run();
        let of = |resources: &ResourceRequirements| {
            resources
                .requests
                .as_ref()
                .unwrap()
                .get("ephemeral-storage")
                .cloned()
        };
        let by_default = resources(&run, Some("1Gi"));
        assert_eq!(of(&by_default), Some(Quantity("1Gi".into())));
        assert_eq!(by_default.limits, None);
        assert_eq!(
            (of(&resources(&run, Some(""))), of(&resources(&run, None))),
            (None, None)
        );
        run.spec.runner.resources = Some(ResourceRequirements {
            requests: Some(BTreeMap::new()),
            ..ResourceRequirements::default()
        });
        assert_eq!(
            of(&resources(&run, Some("1Gi"))),
            None,
            "what the run says stands"
        );
    }

    #[test]
    fn user_labels_do_not_override_reserved_ones() {
        let mut run = testing::run();
        run.spec.runner.labels = BTreeMap::from([
            (names::LABEL_RUN.into(), "forged".into()),
            ("team".into(), "a".into()),
        ]);
        run.spec.runner.annotations =
            BTreeMap::from([("karpenter.sh/do-not-disrupt".into(), "false".into())]);
        let pod = built(&run, &Settings::default());
        let labels = pod.metadata.labels.unwrap();
        assert_eq!(labels[names::LABEL_RUN], run.name_any());
        assert_eq!(labels["team"], "a");
        assert_eq!(labels[names::LABEL_MANAGED_BY], names::MANAGED_BY);
        assert_eq!(
            pod.metadata.annotations.unwrap()["karpenter.sh/do-not-disrupt"],
            "true"
        );
        assert_eq!(
            pod.metadata.finalizers,
            Some(vec![names::POD_FINALIZER.into()])
        );
        assert!(pod.metadata.owner_references.is_none());
    }

    #[test]
    fn restored_plan_runs_in_its_image_on_its_platform() {
        let mut run = testing::run();
        run.spec.runner.image = Some("moved".into());
        run.spec.runner.node_selector = BTreeMap::from([
            ("kubernetes.io/arch".into(), "arm64".into()),
            ("pool".into(), "a".into()),
        ]);
        let plan = |platform: &str| PlanStatus {
            attempt: 1,
            platform: Some(platform.into()),
            ..PlanStatus::default()
        };
        let build = |run: &TerraformRun, restores| {
            let attempt = Attempt {
                number: 2,
                restores,
                image: Some("recorded".into()),
                ..Attempt::default()
            };
            runner_pod(run, &attempt, &Settings::default(), None)
                .spec
                .unwrap()
        };
        run.status = Some(TerraformRunStatus {
            plan: Some(plan("linux_amd64")),
            ..TerraformRunStatus::default()
        });
        let spec = build(&run, Some(1));
        assert_eq!(spec.containers[0].image.as_deref(), Some("recorded"));
        let selector = spec.node_selector.unwrap();
        let wanted = [
            ("kubernetes.io/arch", "amd64"),
            ("kubernetes.io/os", "linux"),
            ("pool", "a"),
        ];
        assert_eq!(
            selector
                .iter()
                .map(|(k, v)| (k.as_str(), v.as_str()))
                .collect::<Vec<_>>(),
            wanted
        );
        assert_eq!(
            build(&run, None).node_selector.unwrap()["kubernetes.io/arch"],
            "arm64",
            "a plan of its own"
        );
        for odd in ["linux", "linux_", "a/b_c", ""] {
            run.status = Some(TerraformRunStatus {
                plan: Some(plan(odd)),
                ..TerraformRunStatus::default()
            });
            assert_eq!(
                build(&run, Some(1)).node_selector.unwrap().len(),
                2,
                "{odd}"
            );
        }
    }
}
