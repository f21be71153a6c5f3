//! Manages the APIService through which people read plans, logs and states (`design/0009-datastore.md`).
//!
//! While an APIService has an unreachable server, the API server cannot list the content of any namespace, so no
//! namespace in the cluster can be deleted. So it exists only while the datastore responds and the API server can reach
//! it.

mod guard;

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use k8s_openapi::{
    ByteString,
    api::rbac::v1::ClusterRole,
    apimachinery::pkg::apis::meta::v1::OwnerReference,
    kube_aggregator::pkg::apis::apiregistration::v1::{
        APIService, APIServiceSpec, ServiceReference,
    },
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ObjectMeta, Patch, Preconditions},
};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use crds::{datastore::causes, names};
use datastore_client::controller::Datastore;

use guard::{Guard, Order, Seen};

use crate::{
    cluster::{create_params, patch_params},
    error::{self, Error, ErrorKind},
    settings::Settings,
};

pub const GROUP: &str = "read.pawl.run";
pub const VERSION: &str = "v1alpha1";

/// Interval and timeout of requests to the datastore.
const TICK: Duration = Duration::from_secs(2);

/// The registration and its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The service behind it; `None` when the read API is off.
    service: Option<Place>,
    /// The owning ClusterRole, so that the APIService is garbage-collected when the release is uninstalled.
    owner: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    namespace: String,
    name: String,
    port: i32,
}

impl Registration {
    /// Reads the settings.
    ///
    /// # Errors
    /// When the service is not `NAMESPACE/NAME:PORT`.
    pub fn of(settings: &Settings) -> anyhow::Result<Self> {
        let owner = settings
            .read_api_owner
            .clone()
            .filter(|owner| !owner.is_empty());
        let text = settings.read_api_service.as_deref().unwrap_or_default();
        if text.is_empty() {
            return Ok(Self {
                service: None,
                owner,
            });
        }
        let place = || {
            let (namespace, rest) = text.split_once('/')?;
            let (name, port) = rest.split_once(':')?;
            let port = port
                .parse()
                .ok()
                .filter(|port| (1..=65535).contains(port))?;
            let whole = !namespace.is_empty() && !name.is_empty();
            whole.then(|| Place {
                namespace: namespace.into(),
                name: name.into(),
                port,
            })
        };
        let place = place().with_context(|| format!("`{text}` is not NAMESPACE/NAME:PORT"))?;
        Ok(Self {
            service: Some(place),
            owner,
        })
    }

    /// Whether the read API is enabled.
    pub fn is_wanted(&self) -> bool {
        self.service.is_some()
    }
}

/// Maintains the APIService until `stop`, then removes it, since no process would monitor it any more.
pub async fn run(
    what: Registration,
    datastore: Option<Arc<Datastore>>,
    client: Client,
    mut stop: watch::Receiver<bool>,
) {
    let keeper = Keeper {
        api: Api::all(client.clone()),
        roles: Api::all(client),
        owner: what.owner,
    };
    let (Some(place), Some(datastore)) = (what.service, datastore) else {
        if let Err(error) = keeper.remove().await {
            tracing::debug!(%error, "the APIService could not be removed");
        }
        return;
    };
    let mut guard = Guard::new(Instant::now());
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            _ = ticks.tick() => {}
        }
        let silent = match timeout(TICK, datastore.ready()).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(causes(&error)),
            Err(_) => Some("no answer in time".to_owned()),
        };
        if let Err(error) = keeper.step(&mut guard, silent, &place, &datastore).await {
            tracing::warn!(%error, "the APIService of {GROUP} is not in the desired state");
        }
    }
    let _ = timeout(Duration::from_secs(3), keeper.remove()).await;
}

struct Keeper {
    api: Api<APIService>,
    roles: Api<ClusterRole>,
    owner: Option<String>,
}

impl Keeper {
    async fn step(
        &self,
        guard: &mut Guard,
        silent: Option<String>,
        place: &Place,
        datastore: &Datastore,
    ) -> Result<(), Error> {
        let mut order = guard.tick(silent.is_none(), Instant::now());
        if order == Order::Put {
            let fresh = guard.stands != Some(true);
            let seen = self.put(place, &datastore.authority()?).await?;
            order = guard.stands(seen, Instant::now());
            match (seen, order) {
                (Seen::Foreign, _) => {
                    tracing::warn!("the APIService of {GROUP} belongs to another release");
                }
                (_, Order::Remove) => tracing::warn!(
                    "the API server cannot reach the datastore; the APIService of {GROUP} is removed; check the NetworkPolicy"
                ),
                _ if fresh => tracing::info!("{GROUP} is registered"),
                _ => {}
            }
        } else if order == Order::Remove {
            let error = silent.unwrap_or_default();
            tracing::warn!(
                error,
                "the datastore does not respond; {GROUP} is removed until it does"
            );
        }
        if order == Order::Remove {
            self.remove().await?;
            guard.gone();
        }
        Ok(())
    }

    /// Creates or repairs it.
    async fn put(&self, place: &Place, authority: &str) -> Result<Seen, Error> {
        let name = format!("{VERSION}.{GROUP}");
        let wanted = spec(place, authority);
        let Some(there) = error::call_opt("read APIService", self.api.get(&name)).await? else {
            let owner = match &self.owner {
                Some(role) => {
                    let role = error::call("read ClusterRole", self.roles.get(role)).await?;
                    Some(vec![OwnerReference {
                        api_version: "rbac.authorization.k8s.io/v1".into(),
                        kind: "ClusterRole".into(),
                        name: role.name_any(),
                        uid: role.uid().unwrap_or_default(),
                        ..OwnerReference::default()
                    }])
                }
                None => None,
            };
            let service = APIService {
                metadata: ObjectMeta {
                    name: Some(name),
                    labels: Some(
                        [(
                            names::LABEL_MANAGED_BY.to_owned(),
                            names::MANAGED_BY.to_owned(),
                        )]
                        .into(),
                    ),
                    owner_references: owner,
                    ..ObjectMeta::default()
                },
                spec: Some(wanted),
                status: None,
            };
            let params = create_params();
            error::call("create APIService", self.api.create(&params, &service)).await?;
            return Ok(Seen::Unreached);
        };
        if !is_ours(self.owner.as_deref(), &there) {
            return Ok(Seen::Foreign);
        }
        if there.spec.as_ref() != Some(&wanted) {
            let patch = json!({"metadata": {"uid": there.metadata.uid}, "spec": wanted});
            let params = patch_params();
            error::call(
                "mend APIService",
                self.api.patch(&name, &params, &Patch::Merge(patch)),
            )
            .await?;
            return Ok(Seen::Unreached);
        }
        let conditions = there
            .status
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        let works = conditions
            .iter()
            .any(|c| c.type_ == "Available" && c.status == "True");
        Ok(if works { Seen::Works } else { Seen::Unreached })
    }

    /// Removes it, if this release created it.
    async fn remove(&self) -> Result<Seen, Error> {
        let name = format!("{VERSION}.{GROUP}");
        let Some(there) = error::call_opt("read APIService", self.api.get(&name)).await? else {
            return Ok(Seen::Gone);
        };
        if !is_ours(self.owner.as_deref(), &there) {
            return Ok(Seen::Foreign);
        }
        let preconditions = Preconditions {
            uid: there.uid(),
            resource_version: None,
        };
        let params = DeleteParams::background().preconditions(preconditions);
        match error::call_opt("delete APIService", self.api.delete(&name, &params)).await {
            Ok(_) => Ok(Seen::Gone),
            // It was recreated meanwhile, so it is not the one that was checked.
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(Seen::Foreign),
            Err(error) => Err(error),
        }
    }
}

/// Whether the release with this ClusterRole created it.
fn is_ours(owner: Option<&str>, service: &APIService) -> bool {
    let label = service
        .labels()
        .get(names::LABEL_MANAGED_BY)
        .is_some_and(|value| value == names::MANAGED_BY);
    let role = service
        .owner_references()
        .iter()
        .find(|owner| owner.kind == "ClusterRole");
    label && role.map(|role| role.name.as_str()) == owner
}

fn spec(place: &Place, authority: &str) -> APIServiceSpec {
    APIServiceSpec {
        ca_bundle: Some(ByteString(authority.as_bytes().to_vec())),
        group: Some(GROUP.into()),
        version: Some(VERSION.into()),
        group_priority_minimum: 100,
        version_priority: 100,
        service: Some(ServiceReference {
            namespace: Some(place.namespace.clone()),
            name: Some(place.name.clone()),
            port: Some(place.port),
        }),
        insecure_skip_tls_verify: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(service: &str) -> Settings {
        Settings {
            read_api_service: Some(service.into()),
            read_api_owner: Some("owner".into()),
            ..Settings::default()
        }
    }

    #[test]
    fn incomplete_service_name_is_rejected() {
        let place = Registration::of(&settings("pawl-system/store:443")).unwrap();
        assert_eq!(
            place.service,
            Some(Place {
                namespace: "pawl-system".into(),
                name: "store".into(),
                port: 443
            })
        );
        assert_eq!(Registration::of(&settings("")).unwrap().service, None);
        for odd in [
            "store",
            "a/b",
            "a/b:",
            "a/b:x",
            "/b:1",
            "a/:1",
            "a/b:0",
            "a/b:70000",
        ] {
            assert!(Registration::of(&settings(odd)).is_err(), "{odd}");
        }
    }

    #[test]
    fn only_objects_of_this_release_are_touched() {
        let service = |label: &str, owner: Option<&str>| -> APIService {
            let owners: Vec<_> = owner
                .map(|name| json!({"apiVersion": "v1", "kind": "ClusterRole", "name": name, "uid": "u"}))
                .into_iter()
                .collect();
            serde_json::from_value(json!({"metadata": {"labels": {names::LABEL_MANAGED_BY: label}, "ownerReferences": owners}}))
                .unwrap()
        };
        assert!(is_ours(Some("a"), &service("pawl", Some("a"))));
        assert!(
            !is_ours(Some("a"), &service("pawl", Some("b"))),
            "another release"
        );
        assert!(!is_ours(Some("a"), &service("Helm", Some("a"))));
        assert!(is_ours(None, &service("pawl", None)));
        assert!(!is_ours(None, &service("pawl", Some("a"))));
    }
}
