//! Lease objects of states, in the controller's own namespace: taken, and deleted with the run that last held them.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PostParams, Preconditions},
};
use serde_json::{Value, json};

use crds::{Attempt, Phase, TerraformRun, names};

use super::lease_request::is_entitled;
use crate::{
    cluster::{
        Cluster, node_watch,
        nodes::{NodeState, over},
        patch_params,
    },
    error::{Error, ErrorKind},
    runner_pod::{gone_wait, status::PodView},
};

/// Maximum number of tries after conflicting writes.
const TRIES: usize = 4;
/// Maximum lag of a node's clock behind the API server's.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_hours(1);

/// The result of taking a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    Yes,
    /// Another run holds it: its `NAMESPACE/NAME`, or a description if that is unknown.
    Behind(String),
    /// The controller lacks the permission.
    Refused(String),
}

/// Takes the Lease of this name, unless a live read shows that another run holds it. The Lease is that of one state, in the namespaces that
/// share it with the run's namespace.
///
/// A Lease that already names this run is written again. A competitor that read the run before it wanted the lease, and
/// is about to take it, then gets a conflict.
///
/// # Errors
/// When a call fails.
pub async fn take(run: &TerraformRun, name: &str, ctx: &Cluster) -> Result<Taken, Error> {
    match attempt(run, name, ctx).await {
        Err(error) if error.kind() == ErrorKind::Forbidden => Ok(Taken::Refused(format!(
            "the controller may not take the lease on the state: {error}; the chart's Role has the rights"
        ))),
        other => other,
    }
}

async fn attempt(run: &TerraformRun, name: &str, ctx: &Cluster) -> Result<Taken, Error> {
    let (api, own) = (api(ctx), run.namespace().unwrap_or_default());
    for _ in 0..TRIES {
        let wanted = object(run, name, ctx.now());
        let written = match ctx.call_opt("read lease", api.get(name)).await? {
            None => {
                ctx.call("create lease", api.create(&PostParams::default(), &wanted))
                    .await
            }
            Some(found) => {
                let identity = found
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.holder_identity.as_deref())
                    .unwrap_or_default();
                if identity != holder(run) {
                    match held(identity, name, &own, ctx).await? {
                        Held::No => {}
                        Held::By(who) => return Ok(Taken::Behind(who)),
                        Held::Changed => continue,
                    }
                }
                let metadata = ObjectMeta {
                    resource_version: found.metadata.resource_version,
                    ..wanted.metadata
                };
                let wanted = Lease {
                    metadata,
                    spec: wanted.spec,
                };
                ctx.call(
                    "take lease",
                    api.replace(name, &PostParams::default(), &wanted),
                )
                .await
            }
        };
        match written {
            Ok(_) => return Ok(Taken::Yes),
            // A concurrent writer succeeded: read the Lease again.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::AlreadyExists | ErrorKind::Conflict | ErrorKind::NotFound
                ) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Taken::Behind("a run that is taking it".to_owned()))
}

/// Whether the run that a Lease names still holds it.
enum Held {
    /// The Lease is free.
    No,
    /// This run holds it, or may still have a process.
    By(String),
    /// The run changed during the check.
    Changed,
}

/// The holder of a Lease, if the run that it names still holds it or may still have a process. A run in a namespace
/// that no longer shares states with the caller's does not block it and is not named.
async fn held(identity: &str, lease: &str, own: &str, ctx: &Cluster) -> Result<Held, Error> {
    let shares = |namespace: &str| {
        ctx.settings.shared_states.scope(namespace) == ctx.settings.shared_states.scope(own)
    };
    let Some((namespace, name, uid)) = parse(identity).filter(|(namespace, ..)| shares(namespace))
    else {
        return Ok(Held::No);
    };
    let found = ctx
        .call_opt("read the lease's holder", ctx.runs(namespace).get(name))
        .await?;
    if let Some(run) = found.filter(|run| run.uid().as_deref() == Some(uid)) {
        if is_entitled(&run, lease, &ctx.settings) {
            return Ok(Held::By(format!("{namespace}/{name}")));
        }
        return Ok(if pass_over(&run, ctx).await? {
            Held::No
        } else {
            Held::Changed
        });
    }
    // The run was deleted by force; its pods have their own finalizer.
    let of_run = ListParams::default().labels(&format!("{}={uid}", names::LABEL_RUN_UID));
    let pods = ctx
        .call(
            "list pods of the lease's holder",
            ctx.pod_api(namespace).list(&of_run),
        )
        .await?;
    let mut runs = false;
    for pod in &pods.items {
        let Some(view) = PodView::of(pod) else {
            runs = true;
            continue;
        };
        let node = view.node.as_deref().filter(|_| view.ended.is_none());
        runs |= match node {
            Some(node) => over(node, None, &node_watch::live(node, None, ctx).await?).is_none(),
            None => view.ended.is_none(),
        };
    }
    Ok(if runs {
        Held::By(format!(
            "{namespace}/{name}, which was removed while its pod still runs"
        ))
    } else {
        Held::No
    })
}

/// Increments a counter in a run that may be about to record its Lease, so that this record fails its test of the counter. Returns whether
/// the run is unchanged since it was read. The counter is needed because an approval may be withdrawn and set again, which the tested
/// fields do not show.
async fn pass_over(run: &TerraformRun, ctx: &Cluster) -> Result<bool, Error> {
    let status = run.status.clone().unwrap_or_default();
    let Some(attempt) = status
        .attempt
        .as_ref()
        .filter(|_| status.phase == Some(Phase::AwaitingApproval) && status.claim.is_none())
    else {
        return Ok(true);
    };
    let test = |path: &str, value: Value| json!({"op": "test", "path": path, "value": value});
    let absent = |path: &str| test(path, Value::Null);
    let operations = json!([
        test("/metadata/uid", json!(run.metadata.uid)),
        test("/status/attempt/number", json!(attempt.number)),
        absent("/status/claim"),
        absent("/status/lease"),
        match &status.approval {
            Some(approval) => test("/status/approval/checksum", json!(approval.checksum)),
            None => absent("/status/approval"),
        },
        test("/status/attempt/passedOver", json!(attempt.passed_over)),
        {"op": "add", "path": "/status/attempt/passedOver", "value": attempt.passed_over.unwrap_or_default().saturating_add(1)},
    ]);
    let what = "pass over the lease's holder";
    let patch =
        serde_json::from_value(operations).map_err(|source| Error::Encode { what, source })?;
    let api = ctx.runs(&run.namespace().unwrap_or_default());
    let params = patch_params();
    match ctx
        .call(
            what,
            api.patch_status(&run.name_any(), &params, &Patch::Json::<()>(patch)),
        )
        .await
    {
        Ok(_) => Ok(true),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::Conflict | ErrorKind::Invalid | ErrorKind::NotFound
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Deletes the Leases that name the run with this UID, which is about to be deleted.
///
/// # Errors
/// When a call fails. Without the right to leases they stay: the next run that wants the state reads that this holder is gone.
pub async fn remove(run_uid: &str, ctx: &Cluster) -> Result<(), Error> {
    let api = api(ctx);
    let of_run = ListParams::default().labels(&format!("{}={run_uid}", names::LABEL_RUN_UID));
    let found = match ctx.call("list leases", api.list(&of_run)).await {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::Forbidden => {
            tracing::warn!(%error, run_uid, "the leases of a deleted run are not deleted; the chart's Role has the right");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    for lease in found {
        // A run that takes it now writes another version.
        let preconditions = Preconditions {
            uid: lease.uid(),
            resource_version: lease.metadata.resource_version.clone(),
        };
        let params = DeleteParams::default().preconditions(preconditions);
        match ctx
            .call_opt("delete lease", api.delete(&lease.name_any(), &params))
            .await
        {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Conflict => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether the node confirms that no process of an attempt's deleted pod runs any more: `Ok`, or the reason for doubt. `attempt` is the
/// run's newest attempt, if it is this one. When no node was recorded (by an older version), all nodes must be Ready.
///
/// # Errors
/// When a call fails.
pub async fn node(
    run: &TerraformRun,
    name: Option<&str>,
    attempt: Option<&Attempt>,
    ctx: &Cluster,
) -> Result<Result<(), String>, Error> {
    let Some(name) = name else {
        return every(ctx).await;
    };
    let state = node_watch::read(name, ctx).await?;
    if over(name, attempt, &state).is_some() {
        return Ok(Ok(()));
    }
    Ok(match state {
        // A node that just became Ready still has to stop containers without a pod object.
        NodeState::There(node) if node.ready => {
            let seen = ctx
                .nodes
                .ready_for(&node)
                .and_then(|seen| SignedDuration::try_from(seen).ok());
            // The kubelet reports the transition time by its machine's clock.
            let said = node
                .since
                .map(|since| ctx.now().duration_since(since) - CLOCKS_DIFFER);
            match seen
                .max(said)
                .map(|ready| gone_wait(run).saturating_sub(ready))
                .filter(SignedDuration::is_positive)
            {
                Some(left) => {
                    let due = ctx.now().checked_add(left).unwrap_or(Timestamp::MAX);
                    Err(format!(
                        "node {name} is Ready again, and ends what has no pod by {}",
                        due.strftime("%H:%M:%S UTC")
                    ))
                }
                None => Ok(()),
            }
        }
        NodeState::There(_) => Err(format!("node {name} is not Ready")),
        NodeState::Gone(_) | NodeState::Unknown => Err(format!("node {name} cannot be read")),
    })
}

/// `Ok` when all nodes are Ready, otherwise the name of one that is not.
async fn every(ctx: &Cluster) -> Result<Result<(), String>, Error> {
    let api: Api<Node> = Api::all(ctx.client.clone());
    let nodes = match ctx
        .call("list nodes", api.list(&ListParams::default()))
        .await
    {
        Ok(nodes) => nodes,
        Err(error) if error.kind() == ErrorKind::Forbidden => {
            return Ok(Err(format!("the nodes cannot be read: {error}")));
        }
        Err(error) => return Err(error),
    };
    let ready = |node: &Node| {
        let conditions = node
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
    };
    Ok(nodes
        .iter()
        .find(|node| !ready(node))
        .map_or(Ok(()), |node| {
            Err(format!("node {} is not Ready", node.name_any()))
        }))
}

fn api(ctx: &Cluster) -> Api<Lease> {
    Api::default_namespaced(ctx.client.clone())
}

fn object(run: &TerraformRun, name: &str, now: Timestamp) -> Lease {
    let labels = [
        (names::LABEL_MANAGED_BY, names::MANAGED_BY.to_owned()),
        (names::LABEL_RUN_UID, run.uid().unwrap_or_default()),
    ];
    Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(
                labels
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value))
                    .collect(),
            ),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(holder(run)),
            acquire_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }),
    }
}

fn holder(run: &TerraformRun) -> String {
    format!(
        "{}/{}/{}",
        run.namespace().unwrap_or_default(),
        run.name_any(),
        run.uid().unwrap_or_default()
    )
}

fn parse(identity: &str) -> Option<(&str, &str, &str)> {
    let mut parts = identity.split('/');
    let found = (parts.next()?, parts.next()?, parts.next()?);
    (parts.next().is_none() && !found.0.is_empty() && !found.1.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn lease_names_its_run() {
        let run = testing::run();
        let lease = object(&run, "pawl-state-x", testing::t0());
        let identity = lease.spec.unwrap().holder_identity.unwrap();
        assert_eq!(parse(&identity), Some(("team", "net", testing::UID)));
        assert_eq!(
            lease.metadata.labels.unwrap()[names::LABEL_RUN_UID],
            testing::UID
        );
        assert_eq!(
            (parse(""), parse("a/b"), parse("a/b/c/d")),
            (None, None, None),
            "what is not ours is nobody's"
        );
    }
}
