//! The known repositories by UID, with only the fields that deliveries and requests need.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::{ResourceExt as _, runtime::watcher::Event};
use tokio::sync::Notify;

use crds::{TerraformRepository, names, version};

use crate::cluster::index::{Feed, Feeds, Index};

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
            answered: repository.status.as_ref().and_then(|status| status.last_handled_reconcile.clone()),
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
    by_uid: Mutex<Index<String, Repository>>,
    feeds: Feeds,
    /// Notified when a repository was observed.
    pub changed: Notify,
}

impl Repositories {
    /// Registers a watch of one namespace or of all.
    pub fn feed(&self) -> Feed {
        self.feeds.add()
    }

    /// The repository with this UID, according to the watches.
    pub fn get(&self, uid: &str) -> Option<Repository> {
        self.lock().get(uid).cloned()
    }

    /// Whether a repository with this name exists, according to the watches.
    pub fn has(&self, namespace: &str, name: &str) -> bool {
        self.lock().iter().any(|(_, known)| known.namespace == namespace && known.name == name)
    }

    /// Whether every watch has listed once, so that unknown repositories do not exist.
    pub fn is_listed(&self) -> bool {
        self.feeds.is_ready()
    }

    /// Applies an event of a watch. Returns whether it completed the first listing.
    pub fn apply(&self, feed: &mut Feed, event: &Event<TerraformRepository>) -> bool {
        feed.hears(event);
        let mut first = false;
        let mut by_uid = self.lock();
        match event {
            Event::Apply(repository) | Event::InitApply(repository) => {
                let (uid, seen) = (repository.uid().unwrap_or_default(), Repository::of(repository));
                // The response to our own write may be newer than the watch. A listing always counts, since a restored cluster may have
                // older versions.
                let is_behind = by_uid.get(&uid).is_some_and(|known| known.version > seen.version);
                if !is_behind || matches!(event, Event::InitApply(_)) {
                    by_uid.put(feed.seen(), uid, seen);
                }
            }
            Event::Delete(repository) => drop(by_uid.remove(&repository.uid().unwrap_or_default())),
            Event::Init => {}
            Event::InitDone => {
                by_uid.end_listing(feed.seen());
                first = self.feeds.listed(feed);
            }
        }
        drop(by_uid);
        self.changed.notify_one();
        first
    }

    /// Applies the API server's response to a write, before the watch shows it.
    pub fn saw(&self, repository: &TerraformRepository) {
        let seen = Repository::of(repository);
        if let Some(known) = self.lock().get_mut(repository.uid().unwrap_or_default().as_str())
            && known.version < seen.version
        {
            *known = seen;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Index<String, Repository>> {
        // Consistent between any two events, so a poisoned lock still holds a valid value.
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(uid: &str, version: u64, request: Option<&str>, answered: Option<&str>) -> TerraformRepository {
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
            assert_eq!(known.is_requested(), is_requested, "{request:?} {answered:?}");
            assert_eq!((known.namespace.as_str(), known.name.as_str(), known.secret.as_deref()), ("team", "net", Some("hook")));
        }
    }

    #[test]
    fn own_write_is_known_before_the_watch_shows_it() {
        let repositories = Repositories::default();
        let mut feed = repositories.feed();
        repositories.apply(&mut feed, &Event::Init);
        repositories.apply(&mut feed, &Event::InitApply(repository("a", 5, None, None)));
        assert!(!repositories.is_listed(), "what it does not know may be there");
        assert!(repositories.apply(&mut feed, &Event::InitDone) && repositories.is_listed());
        repositories.saw(&repository("a", 9, Some("p"), None));
        let request = || repositories.get("a").and_then(|known| known.request);
        assert_eq!(request().as_deref(), Some("p"));
        repositories.apply(&mut feed, &Event::Apply(repository("a", 7, None, None)));
        assert_eq!(request().as_deref(), Some("p"), "the watch is behind");
        repositories.apply(&mut feed, &Event::Apply(repository("a", 10, Some("p"), Some("p"))));
        repositories.saw(&repository("a", 9, Some("p"), None));
        assert!(!repositories.get("a").unwrap().is_requested(), "nor is a late answer taken for the newest");
        repositories.apply(&mut feed, &Event::Delete(repository("a", 11, None, None)));
        repositories.saw(&repository("a", 12, None, None));
        assert_eq!(repositories.get("a"), None);
    }

    #[test]
    fn recreated_repository_has_another_address() {
        let repositories = Repositories::default();
        let mut feed = repositories.feed();
        repositories.apply(&mut feed, &Event::Apply(repository("a", 1, None, None)));
        repositories.apply(&mut feed, &Event::Init);
        repositories.apply(&mut feed, &Event::InitApply(repository("b", 2, None, None)));
        repositories.apply(&mut feed, &Event::InitDone);
        assert!(repositories.get("a").is_none() && repositories.get("b").is_some());
        assert!(repositories.has("team", "net") && !repositories.has("team", "other") && !repositories.has("other", "net"));
    }
}
