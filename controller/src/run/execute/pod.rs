//! Creates the pod of an attempt with its service account.
//!
//! A user who may create pods can create one under the name and with the labels of an attempt, so neither proves anything. The controller
//! takes the UID from the answer to its own creation, and the status records it: only that pod adopts the attempt.

use k8s_openapi::api::{
    core::v1::{Namespace, Pod, ServiceAccount},
    rbac::v1::{Role, RoleBinding},
};
use kube::{Api, ResourceExt};
use serde::Deserialize as _;
use serde_json::json;

use super::status::without_nulls;
use crate::{
    cluster::create_params,
    error::{Error, ErrorKind},
    gc::delete,
    policies::missing::Missing,
    run::{
        context::Context,
        decide::begin_attempt::refused_again,
        decision::Write,
        expectations::Created,
        observed::{Observed, PodState},
    },
    runner_pod::{
        self, Handout,
        account::{self, Account},
        status::{PodView, Trouble},
        tools,
    },
};
use crds::{Attempt, TerraformRun, reason, text::clip};

/// Creates the pod of the attempt that a write opens, and records it in the write. Without a pod the attempt is opened all the same: its
/// deadline bounds the retries, and its conditions report the cause.
pub(super) async fn before_opening(
    seen: &mut Observed,
    write: &mut Write,
    ctx: &Context,
) -> PodState {
    let Some(attempt) = write
        .status
        .get("attempt")
        .and_then(|attempt| Attempt::deserialize(without_nulls(attempt)).ok())
    else {
        return PodState::Absent;
    };
    match create(seen, &attempt, ctx).await {
        Ok(Some(pod)) => {
            write.status["attempt"]["podUID"] = json!(pod.uid);
            PodState::Present(pod)
        }
        Ok(None) => PodState::Absent,
        Err(error) => {
            tracing::warn!(%error, "the attempt is opened without a pod");
            PodState::Absent
        }
    }
}

/// Creates the pod of an attempt; `None` if that was refused, which the notes record.
pub(super) async fn create(
    seen: &mut Observed,
    attempt: &Attempt,
    ctx: &Context,
) -> Result<Option<PodView>, Error> {
    let Some(run) = seen.run.whole() else {
        return Ok(None);
    };
    let number = attempt.number;
    let uid = run.uid().unwrap_or_default();
    let before = seen.notes.created.as_ref();
    let before = before.filter(|created| created.attempt == number);
    match Box::pin(try_create(run, attempt, before, ctx)).await {
        Ok(view) => {
            tracing::info!(pod = view.name, uid = view.uid, "pod created");
            let created = Some(Created {
                attempt: number,
                uid: view.uid.clone(),
                at: ctx.cluster.now(),
            });
            ctx.memory.update(&uid, |notes| {
                (notes.created, notes.refused) = (created.clone(), None);
            });
            (seen.notes.created, seen.notes.refused) = (created, None);
            Ok(Some(view))
        }
        Err(error) => {
            let named = run.spec.runner.account(attempt.restores.is_some());
            let Some(trouble) = refusal(&error, &run.namespace().unwrap_or_default(), named) else {
                return Err(error);
            };
            tracing::warn!(%error, "pod refused");
            let refused = ctx.memory.update(&uid, |notes| {
                let refused =
                    refused_again(notes.refused.as_ref(), number, trouble, ctx.cluster.now());
                notes.refused = Some(refused.clone());
                refused
            });
            seen.notes.refused = Some(refused);
            Ok(None)
        }
    }
}

/// `before`: the pod that this process created for the attempt; its opening may have been refused.
async fn try_create(
    run: &TerraformRun,
    attempt: &Attempt,
    before: Option<&Created>,
    ctx: &Context,
) -> Result<PodView, Error> {
    let namespace = run.namespace().unwrap_or_default();
    if let Some(before) = before {
        let pods = ctx.cluster.pod_api(&namespace);
        let there = ctx
            .cluster
            .call_opt("read pod", pods.get(&attempt.pod_name))
            .await?;
        let there = there.as_ref().and_then(PodView::of);
        if let Some(pod) =
            there.filter(|pod| pod.uid == before.uid && !pod.deleting && pod.ended.is_none())
        {
            return Ok(pod);
        }
    }
    let datastore = ctx
        .datastore
        .as_ref()
        .map(|datastore| Handout::of(datastore))
        .transpose()?;
    let mut wanted =
        runner_pod::runner_pod(run, attempt, &ctx.cluster.settings, datastore.as_ref());
    let wished = &ctx.cluster.settings.runner_tools;
    let nodes = wished.cache.host_path.is_some() && {
        let namespaces: Api<Namespace> = Api::all(ctx.cluster.client.clone());
        tools::may_mount_nodes(
            &ctx.cluster
                .call("read namespace", namespaces.get(&namespace))
                .await?,
        )
    };
    tools::equip(&mut wanted, wished, nodes);
    let account = account::account(run, attempt);
    match with_account(&namespace, &account, &wanted, ctx).await {
        Err(Error::Foreign { kind, name }) => {
            tracing::info!(kind, name, "an object of the attempt exists already");
            forget(run, attempt.number, ctx).await?;
            with_account(&namespace, &account, &wanted, ctx).await
        }
        created => created,
    }
}

/// Deletes what has the labels of the attempt although the status does not record it: a creation was not answered, a process died before
/// the opening, or somebody else created it.
async fn forget(run: &TerraformRun, number: u32, ctx: &Context) -> Result<(), Error> {
    let runs = ctx.cluster.runs(&run.namespace().unwrap_or_default());
    let now = ctx
        .cluster
        .call("read run", runs.get(&run.name_any()))
        .await?;
    let attempt = |run: &TerraformRun| {
        let status = run.status.clone().unwrap_or_default();
        (run.uid(), status.attempt, status.adopted)
    };
    if attempt(&now) != attempt(run) {
        return Err(Error::Changed);
    }
    delete::all_of_attempt(run, number, &ctx.cluster).await
}

/// Creates the account before the pod, without which the API server refuses it, and the binding after it: no account of anybody else, and
/// none whose pod is another's, gets the rights.
///
/// # Errors
/// [`Error::Foreign`] if one of them exists already.
async fn with_account(
    namespace: &str,
    account: &Account,
    pod: &Pod,
    ctx: &Context,
) -> Result<PodView, Error> {
    let (params, cluster) = (create_params(), &ctx.cluster);
    let name = pod.name_any();
    let (accounts, roles): (Api<ServiceAccount>, Api<Role>) =
        (cluster.api(namespace), cluster.api(namespace));
    let own = async {
        match &account.service_account {
            Some(own) => {
                let created = accounts.create(&params, own);
                new(
                    "ServiceAccount",
                    &name,
                    cluster.call("create ServiceAccount", created).await,
                )
                .map(drop)
            }
            None => Ok(()),
        }
    };
    let role = async {
        let created = roles.create(&params, &account.role);
        new("Role", &name, cluster.call("create Role", created).await)
    };
    let (own, role) = tokio::join!(own, role);
    own?;
    role?;
    let pods = cluster.pod_api(namespace);
    let created = pods.create(&params, pod);
    let pod = new("pod", &name, cluster.call("create pod", created).await)?;
    let bindings: Api<RoleBinding> = cluster.api(namespace);
    let created = bindings.create(&params, &account.binding);
    new(
        "RoleBinding",
        &name,
        cluster.call("create RoleBinding", created).await,
    )?;
    PodView::of(&pod).ok_or(Error::Foreign { kind: "pod", name })
}

/// An object that exists already is not the controller's own.
fn new<T>(kind: &'static str, name: &str, created: Result<T, Error>) -> Result<T, Error> {
    created.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Error::Foreign {
            kind,
            name: name.to_owned(),
        },
        _ => error,
    })
}

/// The reason of a refusal that only a person or time can resolve; `None` for other errors. `account` is the ServiceAccount that the run
/// names for the pod.
pub(in crate::run) fn refusal(
    error: &Error,
    namespace: &str,
    account: Option<&str>,
) -> Option<Trouble> {
    let trouble = |reason, text: &str| {
        Some(Trouble {
            reason,
            text: clip(text, 400),
        })
    };
    match error.kind() {
        ErrorKind::Forbidden | ErrorKind::Invalid => {
            let status = error.status()?;
            // The API server has no separate reason for these two.
            let says = |text: &str| status.code == 403 && status.message.contains(text);
            match account {
                Some(name) if says("error looking up service account") && says("not found") => {
                    trouble(
                        reason::SERVICE_ACCOUNT_NOT_FOUND,
                        &format!("there is no ServiceAccount {name} in namespace {namespace}"),
                    )
                }
                _ if error.is_of_terminating_namespace() => {
                    let missing = Missing::namespace(namespace);
                    trouble(missing.reason, &missing.text)
                }
                _ if says("exceeded quota") => trouble(reason::QUOTA_EXCEEDED, &status.message),
                _ => trouble(reason::POD_REJECTED, &status.message),
            }
        }
        ErrorKind::Internal => trouble(reason::POD_REJECTED, &error.to_string()),
        ErrorKind::Conflict
        | ErrorKind::AlreadyExists
        | ErrorKind::NotFound
        | ErrorKind::Unauthenticated
        | ErrorKind::Throttled
        | ErrorKind::Server
        | ErrorKind::Timeout
        | ErrorKind::Transport => None,
    }
}
