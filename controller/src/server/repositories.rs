//! The known repositories by UID, with only the fields that deliveries and requests need.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use kube::ResourceExt as _;
use tokio::sync::Notify;
use watching::{Index, Key, Listings};

use crds::{TerraformRepository, names, version};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    pub namespace: String,
    pub name: String,
    /// Name of the Secret that authenticates deliveries; `None` when it accepts none.
    pub secret: Option<String>,
    /// The current request.
    pub request: Option<String>,
    /// The last handled request.
    pub answered: Option<String>,
    /// The resourceVersion, to order two observations.
    version: u64,
}

impl Repository {
    fn of(repository: &TerraformRepository) -> Self {
        let webhook = repository.spec.webhook.as_ref();
        Self {
            namespace: repository.namespace().unwrap_or_default(),
            name: repository.name_any(),
            secret: webhook.map(|webhook| webhook.secret_ref.name.clone()),
            request: repository.annotations().get(names::RECONCILE).cloned(),
            answered: repository
                .status
                .as_ref()
                .and_then(|status| status.last_handled_reconcile.clone()),
            version: version(&repository.metadata),
        }
    }

    /// Whether it has an unanswered request. The check that answers it also covers new deliveries.
    pub fn is_requested(&self) -> bool {
        self.request.is_some() && self.request != self.answered
    }
}

#[derive(Default)]
pub struct Repositories {
    by_uid: Mutex<BTreeMap<String, Known>>,
    /// The watches whose first listing is awaited.
    pub listings: Listings,
    /// Notified when a repository was observed.
    pub changed: Notify,
}

struct Known {
    shown: Repository,
    /// The response to our last write, which may be ahead of the watch.
    written: Option<Repository>,
}

impl Index<TerraformRepository> for Repositories {
    fn apply(&self, _: &Key, repository: &TerraformRepository) {
        let (mut by_uid, uid) = (self.lock(), repository.uid().unwrap_or_default());
        let written = by_uid.remove(&uid).and_then(|known| known.written);
        by_uid.insert(
            uid,
            Known {
                shown: Repository::of(repository),
                written,
            },
        );
        self.changed.notify_one();
    }

    fn delete(&self, key: &Key) {
        self.lock().retain(|_, Known { shown, .. }| {
            (&*shown.namespace, &*shown.name) != (&*key.0, &*key.1)
        });
        self.changed.notify_one();
    }

    /// A listing counts more than earlier responses: the cluster may have been restored.
    fn reset(&self) {
        self.lock()
            .values_mut()
            .for_each(|known| known.written = None);
        self.changed.notify_one();
    }
}

impl Repositories {
    /// The repository with this UID, according to the watches and our own writes.
    pub fn get(&self, uid: &str) -> Option<Repository> {
        let by_uid = self.lock();
        let Known { shown, written } = by_uid.get(uid)?;
        Some(
            written
                .as_ref()
                .filter(|written| written.version > shown.version)
                .unwrap_or(shown)
                .clone(),
        )
    }

    /// Whether a repository with this name exists, according to the watches.
    pub fn has(&self, namespace: &str, name: &str) -> bool {
        self.lock()
            .values()
            .any(|known| known.shown.namespace == namespace && known.shown.name == name)
    }

    /// Applies the API server's response to a write, before the watch shows it.
    pub fn saw(&self, repository: &TerraformRepository) {
        if let Some(known) = self
            .lock()
            .get_mut(repository.uid().unwrap_or_default().as_str())
        {
            known.written = Some(Repository::of(repository));
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        // Consistent between any two events, so a poisoned lock still holds a valid value.
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use watching::Feed;

    use super::*;

    fn repository(
        uid: &str,
        version: u64,
        request: Option<&str>,
        answered: Option<&str>,
    ) -> TerraformRepository {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "net", "namespace": "team", "uid": uid, "resourceVersion": version.to_string(),
                "annotations": request.map(|request| serde_json::json!({"pawl.run/reconcile": request}))},
            "spec": {"url": "https://git.example.org/net", "webhook": {"secretRef": {"name": "hook"}}},
            "status": {"lastHandledReconcile": answered},
        }))
        .unwrap()
    }

    #[test]
    fn request_is_answered_when_the_status_has_it() {
        let rows = [
            (None, None, false),
            (Some("1"), None, true),
            (Some("1"), Some("1"), false),
            (Some("2"), Some("1"), true),
            (None, Some("1"), false),
        ];
        for (request, answered, is_requested) in rows {
            let known = Repository::of(&repository("a", 1, request, answered));
            assert_eq!(
                known.is_requested(),
                is_requested,
                "{request:?} {answered:?}"
            );
            assert_eq!(known.namespace.as_str(), "team");
            assert_eq!(known.name.as_str(), "net");
            assert_eq!(known.secret.as_deref(), Some("hook"));
        }
    }

    #[test]
    fn own_write_is_known_before_the_watch_shows_it() {
        let repositories = Repositories::default();
        let mut feed = Feed::default();
        for event in [
            Event::Init,
            Event::InitApply(repository("a", 5, None, None)),
            Event::InitDone,
        ] {
            feed.event(&event, &repositories);
        }
        repositories.saw(&repository("a", 9, Some("p"), None));
        let request = || repositories.get("a").and_then(|known| known.request);
        assert_eq!(request().as_deref(), Some("p"));
        feed.event(&Event::Apply(repository("a", 7, None, None)), &repositories);
        assert_eq!(request().as_deref(), Some("p"), "the watch is behind");
        feed.event(
            &Event::Apply(repository("a", 10, Some("p"), Some("p"))),
            &repositories,
        );
        repositories.saw(&repository("a", 9, Some("p"), None));
        assert!(
            !repositories.get("a").unwrap().is_requested(),
            "nor is a late answer taken for the newest"
        );
        repositories.saw(&repository("a", 20, None, None));
        for event in [
            Event::Init,
            Event::InitApply(repository("a", 8, Some("old"), None)),
            Event::InitDone,
        ] {
            feed.event(&event, &repositories);
        }
        assert_eq!(
            repositories
                .get("a")
                .and_then(|known| known.request)
                .as_deref(),
            Some("old"),
            "the cluster was restored"
        );
        feed.event(
            &Event::Delete(repository("a", 11, None, None)),
            &repositories,
        );
        repositories.saw(&repository("a", 12, None, None));
        assert_eq!(repositories.get("a"), None);
    }

    #[test]
    fn recreated_repository_has_another_address() {
        let repositories = Repositories::default();
        let mut feed = Feed::default();
        let [a, b] =
            [("a", 1), ("b", 2)].map(|(uid, version)| repository(uid, version, None, None));
        for event in [
            Event::Apply(a),
            Event::Init,
            Event::InitApply(b),
            Event::InitDone,
        ] {
            feed.event(&event, &repositories);
        }
        assert!(repositories.get("a").is_none());
        assert!(repositories.get("b").is_some());
        assert!(repositories.has("team", "net"));
        assert!(!repositories.has("team", "other"));
        assert!(!repositories.has("other", "net"));
    }
}
