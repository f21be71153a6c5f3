//! The datastore's calls to the API server, behind a trait that tests implement.

pub mod audit;
pub mod publish;

use std::collections::{BTreeMap, HashSet};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::{StreamExt as _, stream::BoxStream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    runtime::{WatchStreamExt as _, watcher::watch_object},
};
use serde::de::DeserializeOwned;
use serde_json::json;

use crds::{
    Adopted, Claim, Operation, OutputRef, Outputs, RepositorySource, TerraformRepository,
    TerraformRun, ValueFrom,
    clock::ServerClock,
    datastore::{AUDIENCE, StateId},
};
use serving::{
    auth::{Identity, Reviewer, Reviews},
    call::{CallError, Reply, after, call, call_opt},
};

use crate::settings::SecretName;

use audit::Audit;
use publish::{Owner, Published};

/// Field manager of [`Cluster::fill`].
const MANAGER: &str = "pawl-datastore";

/// The part of a run that requests are authorized by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunView {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The newest attempt: number, UID of its pod, and whether it is open.
    pub attempt: Option<(u32, Option<String>, bool)>,
    pub adopted: Option<Adopted>,
    pub claim: Option<Claim>,
    pub operation: Operation,
    pub terminal: bool,
    pub state: StateId,
    /// The run whose journal it may read.
    pub recovers: Option<String>,
    /// The outputs to publish.
    pub outputs: Option<Outputs>,
    /// The outputs of other stacks that it reads.
    pub takes: Vec<OutputRef>,
    /// The repository revision of its source.
    pub source: Option<Box<RepositorySource>>,
    /// ID of a lock that this run may release, because the controller confirmed that the process of Pawl that left it has ended.
    pub released: Option<String>,
    pub audit: Box<Audit>,
}

impl RunView {
    pub fn of(run: &TerraformRun) -> Self {
        let status = run.status.clone().unwrap_or_default();
        let name = run.name_any();
        Self {
            namespace: run.namespace().unwrap_or_default(),
            uid: run.uid().unwrap_or_default(),
            attempt: status.attempt.as_ref().map(|attempt| {
                let pod = attempt.pod(status.adopted.as_ref());
                (attempt.number, pod.map(str::to_owned), attempt.open)
            }),
            terminal: status.is_terminal(),
            adopted: status.adopted,
            claim: status.claim,
            operation: run.spec.operation,
            state: StateId::of(&name, &run.spec),
            released: run
                .status
                .as_ref()
                .and_then(|status| status.lock_release.as_ref())
                .map(|release| release.id.clone()),
            audit: Box::new(Audit::of(run)),
            outputs: run.spec.outputs.clone(),
            takes: takes(run),
            source: run.spec.source.repository.clone(),
            recovers: run
                .spec
                .recover
                .as_ref()
                .map(|recover| recover.from_run.clone()),
            name,
        }
    }

    /// Number of the newest attempt; 0 before the first.
    pub fn newest(&self) -> u32 {
        self.attempt.as_ref().map_or(0, |(number, ..)| *number)
    }

    /// Whether the newest attempt's pod may still write.
    pub fn is_open(&self) -> bool {
        self.attempt.as_ref().is_some_and(|(.., open)| *open)
    }
}

/// The outputs of other stacks that a run reads, without duplicates.
fn takes(run: &TerraformRun) -> Vec<OutputRef> {
    let variables = run
        .spec
        .variables
        .iter()
        .map(|variable| &variable.value_from);
    let all = variables.chain(run.spec.env.iter().map(|variable| &variable.value_from));
    let mut found: Vec<_> = all
        .flatten()
        .filter_map(|from: &ValueFrom| from.output_of.clone())
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// How the API server authenticates when it forwards requests, and the headers with the user's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrontProxyConfig {
    /// The authority of its client certificate, PEM.
    pub authority: String,
    /// Allowed common names of that certificate; any when empty.
    pub names: Vec<String>,
    /// Headers with the user's name.
    pub user_headers: Vec<String>,
}

/// A Secret of the datastore itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    pub uid: String,
    /// Its resourceVersion.
    pub version: String,
    /// Its entries; empty until it is filled.
    pub data: BTreeMap<String, Vec<u8>>,
}

/// The API server. Reviews tokens of the audience [`AUDIENCE`].
pub trait Cluster: Reviewer {
    /// Reads a run live; `None` when it does not exist.
    fn run<'a>(&'a self, namespace: &'a str, name: &'a str) -> Reply<'a, Option<RunView>>;
    /// UIDs of the runs in a namespace, to find candidates for deletion. A run that is not listed is then read live.
    fn uids<'a>(&'a self, namespace: &'a str) -> Reply<'a, HashSet<String>>;
    /// Reads a repository live; `None` when it does not exist.
    fn repository<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Reply<'a, Option<TerraformRepository>>;
    /// UIDs of the repositories in a namespace.
    fn repositories<'a>(&'a self, namespace: &'a str) -> Reply<'a, HashSet<String>>;
    /// The front proxy's configuration, now and after each change; `None` when the cluster has none.
    fn front_proxy(&self) -> BoxStream<'static, Option<FrontProxyConfig>>;
    /// The UID of a namespace, read live; `None` when it does not exist.
    fn namespace<'a>(&'a self, name: &'a str) -> Reply<'a, Option<String>>;
    /// Reads a Secret of the datastore itself; `None` when it does not exist.
    fn secret<'a>(&'a self, name: &'a SecretName) -> Reply<'a, Option<Entries>>;
    /// Probes the admission policy with a dry run that it must refuse: an object without outputs. Returns the policy's rejection as an
    /// error.
    fn probe<'a>(&'a self, namespace: &'a str) -> Reply<'a, ()>;
    /// Creates or updates an object with outputs; returns its UID.
    fn publish<'a>(&'a self, owner: Owner<'a>, object: &'a Published) -> Reply<'a, String>;
    /// Deletes an object with outputs that this process wrote. A missing or recreated object is no error.
    fn withdraw<'a>(&'a self, namespace: &'a str, object: &'a Published) -> Reply<'a, ()>;
    /// Adds entries to a Secret if it is unchanged since the read; false on a conflict.
    fn fill<'a>(
        &'a self,
        name: &'a SecretName,
        read: &'a Entries,
        data: &'a BTreeMap<String, Vec<u8>>,
    ) -> Reply<'a, bool>;
}

/// The implementation for a real cluster.
pub struct Kube(Client, Reviews);

impl Kube {
    /// Creates it. The client's responses set `clock`.
    pub fn new(client: Client, clock: ServerClock) -> Self {
        Self(client.clone(), Reviews::new(client, clock, AUDIENCE))
    }
}

impl Reviewer for Kube {
    fn now(&self) -> Timestamp {
        self.1.now()
    }

    fn review<'a>(&'a self, token: &'a str) -> Reply<'a, Option<Identity>> {
        self.1.review(token)
    }
}

impl Cluster for Kube {
    fn run<'a>(&'a self, namespace: &'a str, name: &'a str) -> Reply<'a, Option<RunView>> {
        Box::pin(async move {
            let api: Api<TerraformRun> = Api::namespaced(self.0.clone(), namespace);
            Ok(live("read the run", api, name)
                .await?
                .map(|run| RunView::of(&run)))
        })
    }

    fn uids<'a>(&'a self, namespace: &'a str) -> Reply<'a, HashSet<String>> {
        Box::pin(uids(
            "list runs",
            Api::<TerraformRun>::namespaced(self.0.clone(), namespace),
        ))
    }

    fn repository<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> Reply<'a, Option<TerraformRepository>> {
        Box::pin(live(
            "read the repository",
            Api::namespaced(self.0.clone(), namespace),
            name,
        ))
    }

    fn repositories<'a>(&'a self, namespace: &'a str) -> Reply<'a, HashSet<String>> {
        Box::pin(uids(
            "list repositories",
            Api::<TerraformRepository>::namespaced(self.0.clone(), namespace),
        ))
    }

    fn front_proxy(&self) -> BoxStream<'static, Option<FrontProxyConfig>> {
        let api: Api<ConfigMap> = Api::namespaced(self.0.clone(), "kube-system");
        let seen = watch_object(api, "extension-apiserver-authentication").default_backoff();
        let said = seen.filter_map(|seen| {
            let seen = seen.inspect_err(
                |error| tracing::warn!(%error, "the front proxy's configuration is not known"),
            );
            std::future::ready(seen.ok())
        });
        said.map(|map| map.and_then(|map| front_proxy(&map.data.unwrap_or_default())))
            .boxed()
    }

    fn namespace<'a>(&'a self, name: &'a str) -> Reply<'a, Option<String>> {
        Box::pin(async move {
            let api: Api<Namespace> = Api::all(self.0.clone());
            Ok(call_opt("read the namespace", api.get(name))
                .await?
                .and_then(|namespace| namespace.uid()))
        })
    }

    fn secret<'a>(&'a self, name: &'a SecretName) -> Reply<'a, Option<Entries>> {
        Box::pin(async move {
            let api: Api<Secret> = Api::namespaced(self.0.clone(), &name.namespace);
            let found = call_opt("read the Secret", api.get(&name.name)).await?;
            Ok(found.map(|secret| Entries {
                uid: secret.uid().unwrap_or_default(),
                version: secret.resource_version().unwrap_or_default(),
                data: secret
                    .data
                    .unwrap_or_default()
                    .into_iter()
                    .map(|(key, value)| (key, value.0))
                    .collect(),
            }))
        })
    }

    fn probe<'a>(&'a self, namespace: &'a str) -> Reply<'a, ()> {
        Box::pin(publish::probe(&self.0, namespace))
    }

    fn publish<'a>(&'a self, owner: Owner<'a>, object: &'a Published) -> Reply<'a, String> {
        Box::pin(publish::publish(&self.0, owner, object))
    }

    fn withdraw<'a>(&'a self, namespace: &'a str, object: &'a Published) -> Reply<'a, ()> {
        Box::pin(publish::withdraw(&self.0, namespace, object))
    }

    fn fill<'a>(
        &'a self,
        name: &'a SecretName,
        read: &'a Entries,
        data: &'a BTreeMap<String, Vec<u8>>,
    ) -> Reply<'a, bool> {
        Box::pin(async move {
            let api: Api<Secret> = Api::namespaced(self.0.clone(), &name.namespace);
            let data: BTreeMap<_, _> = data
                .iter()
                .map(|(key, value)| (key, BASE64_STANDARD.encode(value)))
                .collect();
            let patch =
                Patch::Merge(json!({"metadata": {"resourceVersion": read.version}, "data": data}));
            let params = PatchParams {
                field_manager: Some(MANAGER.into()),
                ..PatchParams::default()
            };
            match call("fill the Secret", api.patch(&name.name, &params, &patch)).await {
                Ok(_) => Ok(true),
                Err(error) if error.code() == 409 => Ok(false),
                Err(error) => Err(error),
            }
        })
    }
}

/// The UIDs of all objects of a kind in a namespace.
async fn uids<K>(what: &'static str, api: Api<K>) -> Result<HashSet<String>, CallError>
where
    K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let (mut uids, mut next) = (HashSet::new(), Some(ListParams::default().limit(500)));
    while let Some(params) = next {
        let page = call(what, api.list_metadata(&params)).await?;
        next = after(&params, &page.metadata);
        uids.extend(page.items.into_iter().filter_map(|item| item.metadata.uid));
    }
    Ok(uids)
}

/// Reads an object live; `None` when it does not exist.
async fn live<K>(what: &'static str, api: Api<K>, name: &str) -> Result<Option<K>, CallError>
where
    K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    match call(what, api.get(name)).await {
        Ok(object) => Ok(Some(object)),
        Err(error) if is_gone(&error, name) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a 404 is for the object itself. While the CRD is missing, the API server's 404 names no object.
fn is_gone(error: &CallError, name: &str) -> bool {
    let details = error
        .status()
        .filter(|status| status.code == 404)
        .and_then(|status| status.details.as_ref());
    details.is_some_and(|details| details.name == name)
}

/// Parses the configuration. `None` without an authority, and when any client certificate of the cluster would be
/// accepted as the API server's.
fn front_proxy(data: &BTreeMap<String, String>) -> Option<FrontProxyConfig> {
    let list = |key: &str| -> Vec<String> {
        let parsed: Vec<String> = data
            .get(key)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        parsed.into_iter().filter(|word| !word.is_empty()).collect()
    };
    let authority = data
        .get("requestheader-client-ca-file")
        .filter(|pem| !pem.trim().is_empty())?
        .clone();
    let names = list("requestheader-allowed-names");
    if names.is_empty()
        && data
            .get("client-ca-file")
            .is_some_and(|clients| clients.trim() == authority.trim())
    {
        tracing::warn!(
            "the front proxy has the authority of all clients and no names; the read API is off"
        );
        return None;
    }
    Some(FrontProxyConfig {
        authority,
        names,
        user_headers: list("requestheader-username-headers"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn front_proxy_open_to_any_client_is_ignored() {
        let data = |ca: &str, names: &str| {
            BTreeMap::from([
                ("client-ca-file".to_owned(), "A".to_owned()),
                ("requestheader-client-ca-file".to_owned(), ca.to_owned()),
                ("requestheader-allowed-names".to_owned(), names.to_owned()),
                (
                    "requestheader-username-headers".to_owned(),
                    r#"["X-Remote-User"]"#.to_owned(),
                ),
            ])
        };
        assert_eq!(front_proxy(&BTreeMap::new()), None);
        assert_eq!(front_proxy(&data("A\n", "[]")), None);
        assert_eq!(front_proxy(&data("A", r#"[""]"#)), None);
        assert_eq!(
            front_proxy(&data("B", "[]")).unwrap().names,
            Vec::<String>::new()
        );
        assert_eq!(
            front_proxy(&data("A", r#"["front-proxy-client"]"#))
                .unwrap()
                .names,
            ["front-proxy-client"]
        );
    }

    #[test]
    fn missing_kind_is_not_a_missing_run() {
        let refused = |details: serde_json::Value| CallError::Refused {
            what: "read the run",
            status: Box::new(
                serde_json::from_value(
                    json!({"code": 404, "reason": "NotFound", "details": details}),
                )
                .unwrap(),
            ),
        };
        assert!(is_gone(
            &refused(json!({"name": "net", "kind": "terraformruns"})),
            "net"
        ));
        assert!(!is_gone(&refused(json!({})), "net"));
        assert!(!is_gone(&refused(json!(null)), "net"));
    }
}
