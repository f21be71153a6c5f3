//! Creates the pod of an attempt with its service account.

use k8s_openapi::api::{
    core::v1::{Namespace, ServiceAccount},
    rbac::v1::{Role, RoleBinding},
};
use kube::{Api, ResourceExt};

use super::patch::already;
use crate::{
    cluster::create_params,
    error::{Error, ErrorKind},
    policies::missing::Missing,
    run::{
        context::Context,
        decide::begin_attempt::refused_again,
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

/// The account first, as the API server refuses a pod whose ServiceAccount is missing; the RBAC rules in parallel.
pub(super) async fn create(seen: &mut Observed, ctx: &Context) -> Result<(), Error> {
    let Some((run, attempt)) = seen.run.whole().zip(seen.status().attempt.clone()) else {
        return Ok(());
    };
    let number = attempt.number;
    let uid = run.uid().unwrap_or_default();
    match Box::pin(try_create(run, &attempt, ctx)).await {
        Ok(view) => {
            tracing::info!(pod = view.name, "pod created");
            let created = Some((number, ctx.cluster.now()));
            ctx.memory.update(&uid, |notes| {
                (notes.created, notes.refused) = (created, None);
            });
            (seen.notes.created, seen.notes.refused) = (created, None);
            (seen.pod, seen.pod_live) = (PodState::Present(view), true);
            Ok(())
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
            Ok(())
        }
    }
}

async fn try_create(
    run: &TerraformRun,
    attempt: &Attempt,
    ctx: &Context,
) -> Result<PodView, Error> {
    let number = attempt.number;
    let namespace = run.namespace().unwrap_or_default();
    let Account {
        service_account,
        role,
        binding,
    } = account::account(run, attempt);
    let params = create_params();
    let datastore = ctx
        .datastore
        .as_ref()
        .map(|datastore| Handout::of(datastore))
        .transpose()?;
    let pod = async {
        if let Some(account) = &service_account {
            let api: Api<ServiceAccount> = Api::namespaced(ctx.cluster.client.clone(), &namespace);
            already(
                ctx.cluster
                    .call("create ServiceAccount", api.create(&params, account))
                    .await,
            )?;
        }
        let api = ctx.cluster.pod_api(&namespace);
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
        match already(
            ctx.cluster
                .call("create pod", api.create(&params, &wanted))
                .await,
        )? {
            Some(pod) => Ok(pod),
            None => {
                ctx.cluster
                    .call("read pod", api.get(&wanted.name_any()))
                    .await
            }
        }
    };
    // The API server reads the Role before it admits a binding of it.
    let rights = async {
        let roles: Api<Role> = Api::namespaced(ctx.cluster.client.clone(), &namespace);
        let bindings: Api<RoleBinding> = Api::namespaced(ctx.cluster.client.clone(), &namespace);
        already(
            ctx.cluster
                .call("create Role", roles.create(&params, &role))
                .await,
        )?;
        already(
            ctx.cluster
                .call("create RoleBinding", bindings.create(&params, &binding))
                .await,
        )
    };
    let (pod, rights) = tokio::join!(pod, rights);
    rights?;
    let pod = pod?;
    let foreign = || Error::Foreign {
        kind: "pod",
        name: pod.name_any(),
    };
    if !account::belongs(&pod.metadata, &run.uid().unwrap_or_default(), number) {
        return Err(foreign());
    }
    PodView::of(&pod).ok_or_else(foreign)
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
