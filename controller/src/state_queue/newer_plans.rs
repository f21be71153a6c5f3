//! Tracks runs by workspace, and which of them have made a plan: an older waiting run is superseded by a newer run's
//! plan.
//!
//! Filled by the watches before runs are trimmed. Makes no requests.

use std::{
    collections::HashMap,
    ops::Bound,
    sync::{Mutex, PoisonError},
};

use kube::{
    ResourceExt,
    runtime::{reflector::ObjectRef, watcher},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crds::{
    Operation, Phase, RunResult, TerraformRun, TerraformRunStatus, backend::BackendType, datastore::StateId, state_key,
    text::without_userinfo,
};

use crate::cluster::index::{Feed, Feeds, Index, Seen};

/// A workspace: half of a hash of namespace, stack or backend, and workspace.
type Workspace = u128;
/// A run within its workspace, sorted by age, oldest first.
type Rank = (Workspace, i64, Box<str>);

/// The state of a run that has made its plan.
enum Stands {
    /// It waits for an approval: its namespace and UID.
    Waits(Box<(Box<str>, Box<str>)>),
    Works,
    Ended,
}

/// The runs that have made their plan, by workspace.
#[derive(Default)]
pub struct NewerPlans {
    inner: Mutex<Inner>,
    feeds: Feeds,
}

#[derive(Default)]
struct Inner {
    /// Of the ended runs, only the newest and those that a waiting run may report.
    planned: Index<Rank, Stands>,
    /// Runs that wait for an approval, by UID.
    waiting: HashMap<Box<str>, Rank>,
}

impl NewerPlans {
    pub fn feed(&self) -> Feed {
        self.feeds.add()
    }

    /// Applies an event of a watch, with the untrimmed object. Returns the older waiting runs to reconcile.
    pub fn apply(&self, feed: &mut Feed, event: &watcher::Event<TerraformRun>) -> Vec<ObjectRef<TerraformRun>> {
        feed.hears(event);
        match event {
            watcher::Event::Apply(run) | watcher::Event::InitApply(run) => return self.lock().put(feed.seen(), run),
            watcher::Event::Delete(run) => self.lock().remove(run),
            watcher::Event::Init => {}
            watcher::Event::InitDone => self.lock().end_listing(feed.seen()),
        }
        Vec::new()
    }

    /// The newest run that has made its plan and is newer than this waiting run, in the same workspace.
    pub fn newer(&self, uid: &str) -> Option<String> {
        let inner = self.lock();
        let rank = inner.waiting.get(uid)?;
        let end = (rank.0, i64::MAX, Box::default());
        let mut newer = inner.planned.range((Bound::Excluded(rank.clone()), Bound::Excluded(end)));
        newer.next_back().map(|((_, _, name), _)| name.to_string())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // Consistent between any two events, so a poisoned lock still holds a valid value.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn put(&mut self, seen: Seen, run: &TerraformRun) -> Vec<ObjectRef<TerraformRun>> {
        if !has_planned(run) {
            return Vec::new();
        }
        let (rank, uid) = (rank(run), Box::<str>::from(run.uid().unwrap_or_default()));
        let status = run.status.as_ref();
        let stands = if status.is_some_and(|status| status.phase == Some(Phase::AwaitingApproval)) {
            self.waiting.insert(uid.clone(), rank.clone());
            Stands::Waits(Box::new((run.namespace().unwrap_or_default().into(), uid)))
        } else {
            self.waiting.remove(&uid);
            if status.is_some_and(TerraformRunStatus::is_terminal) { Stands::Ended } else { Stands::Works }
        };
        let is_news = self.planned.put(seen, rank.clone(), stands).is_none();
        let oldest = (rank.0, i64::MIN, Box::default());
        let older = self.planned.range(oldest..rank.clone()).filter(|_| is_news);
        let woken = older.filter_map(|((_, _, name), stands)| match stands {
            Stands::Waits(waits) => Some(ObjectRef::new(name).within(&waits.0)),
            Stands::Works | Stands::Ended => None,
        });
        let woken = woken.collect();
        self.prune(rank.0);
        woken
    }

    /// Removes ended runs that no waiting run needs. A waiting run names the newest one, and another one only after that is deleted.
    fn prune(&mut self, workspace: Workspace) {
        let of = || (workspace, i64::MIN, Box::default())..(workspace, i64::MAX, Box::default());
        let mut ended = Vec::new();
        for (rank, stands) in self.planned.range(of()) {
            match stands {
                Stands::Waits(_) => break,
                Stands::Works => {}
                Stands::Ended => ended.push(rank.clone()),
            }
        }
        let newest = self.planned.range(of()).next_back().map(|(rank, _)| rank.clone());
        for rank in ended.iter().filter(|rank| newest.as_ref() != Some(rank)) {
            self.planned.remove(rank);
        }
    }

    fn remove(&mut self, run: &TerraformRun) {
        self.waiting.remove(run.uid().unwrap_or_default().as_str());
        if has_planned(run) {
            self.planned.remove(&rank(run));
        }
    }

    /// Removes entries that a completed listing did not show.
    fn end_listing(&mut self, ended: Seen) {
        for (_, stands) in self.planned.end_listing(ended) {
            if let Stands::Waits(waits) = stands {
                self.waiting.remove(&waits.1);
            }
        }
    }
}

/// Whether a run has made a plan that it may apply, or has applied it. A run that only plans supersedes nothing.
fn has_planned(run: &TerraformRun) -> bool {
    let applies = match run.spec.operation {
        Operation::Apply | Operation::Destroy => true,
        Operation::Plan | Operation::RefreshOnly | Operation::Unknown => false,
    };
    applies
        && run.status.as_ref().is_some_and(|status| {
            let done = matches!(status.result, Some(RunResult::NoChanges | RunResult::Applied | RunResult::Destroyed));
            done || status.plan.is_some()
        })
}

fn rank(run: &TerraformRun) -> Rank {
    let created = run.metadata.creation_timestamp.as_ref().map_or(0, |at| at.0.as_second());
    (workspace(run), created, run.name_any().into())
}

/// Backend arguments for credentials or access. All other arguments identify the state. If two states looked like one, a waiting plan would
/// be superseded wrongly; if one state looks like two, nothing is lost.
const MANNER: &[&str] = &[
    "access_key",
    "access_token",
    "client_certificate",
    "client_id",
    "client_key",
    "client_secret",
    "credentials",
    "lock_address",
    "lock_method",
    "max_retries",
    "password",
    "profile",
    "retry_max",
    "retry_wait_max",
    "retry_wait_min",
    "sas_token",
    "secret_id",
    "secret_key",
    "security_token",
    "session_token",
    "shared_credentials_file",
    "shared_credentials_files",
    "token",
    "unlock_address",
    "unlock_method",
    "update_method",
    "use_lockfile",
    "username",
];

/// The workspace of a run, from its whole spec: its backend, without access arguments, or else its stack. It is not
/// stored: a starting controller reads all specs.
fn workspace(run: &TerraformRun) -> Workspace {
    let StateId { stack, workspace } = StateId::of(&run.name_any(), &run.spec);
    let place = match &run.spec.backend {
        Some(backend) => {
            let places = backend.config.iter().filter(|(name, _)| !MANNER.contains(&name.as_str()));
            let config = places.map(|(name, value)| (name.clone(), without_user(value))).collect();
            // A backend that is identified by the environment may be another one in another stack.
            let stack = BackendType::of(&backend.kind).state(&Value::Object(backend.config.clone())).is_empty().then_some(stack);
            json!(["backend", backend.kind, Value::Object(config), stack])
        }
        None => json!(["stack", stack]),
    };
    let digest = Sha256::digest(state_key::canonical(&json!([run.namespace(), place, workspace])).as_bytes());
    digest.iter().take(16).fold(0, |hash, byte| (hash << 8) | u128::from(*byte))
}

/// A URL without user and password. A URL with a query stays unchanged, because the query may identify the state.
fn without_user(value: &Value) -> Value {
    let url = value.as_str().filter(|text| text.contains("://") && !text.contains(['?', '#']));
    url.map_or_else(|| value.clone(), |url| without_userinfo(url).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crds::{Backend, PlanStatus, TerraformRunStatus, whole_seconds};
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};

    /// A run of a stack, created at this second, in a phase, with a plan.
    fn run(name: &str, second: i64, phase: Phase) -> TerraformRun {
        let mut run = testing::run();
        run.metadata.name = Some(name.into());
        run.metadata.uid = Some(name.into());
        run.metadata.creation_timestamp =
            Some(whole_seconds(jiff::Timestamp::from_second(testing::t0().as_second() + second).unwrap()));
        run.spec.stack = Some("net".into());
        run.status = Some(TerraformRunStatus { phase: Some(phase), plan: Some(PlanStatus::default()), ..Default::default() });
        run
    }

    fn names(woken: Vec<ObjectRef<TerraformRun>>) -> Vec<String> {
        woken.into_iter().map(|run| format!("{}/{}", run.namespace.unwrap_or_default(), run.name)).collect()
    }

    #[test]
    fn superseded_run_is_woken_once_with_the_newer_run() {
        let (index, old) = (NewerPlans::default(), run("b", 0, Phase::AwaitingApproval));
        let mut feed = index.feed();
        assert!(names(index.apply(&mut feed, &Apply(old.clone()))).is_empty());
        assert_eq!(index.newer("b"), None, "it is the newest");
        let mut early = run("c", 9, Phase::Plan);
        early.status.as_mut().unwrap().plan = None;
        assert!(names(index.apply(&mut feed, &Apply(early))).is_empty(), "it has made no plan yet");
        assert_eq!(names(index.apply(&mut feed, &Apply(run("c", 9, Phase::AwaitingApproval)))), ["team/b"]);
        assert!(names(index.apply(&mut feed, &Apply(run("c", 9, Phase::Apply)))).is_empty(), "said already");
        assert_eq!(index.newer("b").as_deref(), Some("c"));
        assert_eq!(index.newer("c"), None);
        index.apply(&mut feed, &Apply(run("d", 12, Phase::Apply)));
        assert_eq!(index.newer("b").as_deref(), Some("d"), "the newest is named");
        index.apply(&mut feed, &Apply(run("b", 0, Phase::Apply)));
        assert_eq!(index.newer("b"), None, "it waits no more");
    }

    #[test]
    fn only_relevant_ended_runs_are_retained() {
        let index = NewerPlans::default();
        let mut feed = index.feed();
        let kept = || index.lock().planned.iter().map(|((_, _, name), _)| name.to_string()).collect::<Vec<_>>();
        for (name, second) in [("c", 3), ("a", 1), ("b", 2)] {
            index.apply(&mut feed, &Apply(run(name, second, Phase::Succeeded)));
        }
        assert_eq!(kept(), ["c"]);
        index.apply(&mut feed, &Apply(run("d", 4, Phase::AwaitingApproval)));
        assert_eq!(kept(), ["d"]);
        for (name, second) in [("e", 5), ("f", 6)] {
            index.apply(&mut feed, &Apply(run(name, second, Phase::Succeeded)));
        }
        assert_eq!((kept(), index.newer("d").as_deref()), (vec!["d".into(), "e".into(), "f".into()], Some("f")));
        index.apply(&mut feed, &Delete(run("f", 6, Phase::Succeeded)));
        assert_eq!(index.newer("d").as_deref(), Some("e"), "the newest is deleted");
        index.apply(&mut feed, &Apply(run("d", 4, Phase::Canceled)));
        assert_eq!(kept(), ["e"]);
    }

    #[test]
    fn name_breaks_ties_within_a_second() {
        let index = NewerPlans::default();
        let mut feed = index.feed();
        index.apply(&mut feed, &Apply(run("a", 0, Phase::AwaitingApproval)));
        index.apply(&mut feed, &Apply(run("b", 0, Phase::AwaitingApproval)));
        assert_eq!((index.newer("a").as_deref(), index.newer("b")), (Some("b"), None));
    }

    #[test]
    fn other_workspaces_and_plan_only_runs_supersede_nothing() {
        let other = |change: fn(&mut TerraformRun)| {
            let mut run = run("z", 9, Phase::AwaitingApproval);
            change(&mut run);
            run
        };
        let backend = |key: &str| {
            let config = serde_json::from_value(serde_json::json!({"bucket": key, "region": {"a": 1, "b": 2}})).unwrap();
            Some(Backend { kind: "s3".into(), config })
        };
        let cases: Vec<(&str, TerraformRun, bool)> = vec![
            ("same", other(|_| ()), true),
            ("another stack", other(|run| run.spec.stack = Some("dns".into())), false),
            ("another workspace", other(|run| run.spec.workspace = "prod".into()), false),
            ("another namespace", other(|run| run.metadata.namespace = Some("else".into())), false),
            ("a plan alone", other(|run| run.spec.operation = Operation::Plan), false),
            ("inline without a stack", other(|run| run.spec.stack = None), false),
            ("destroys", other(|run| run.spec.operation = Operation::Destroy), true),
        ];
        for (what, newer, takes) in cases {
            let index = NewerPlans::default();
            let mut feed = index.feed();
            index.apply(&mut feed, &Apply(run("a", 0, Phase::AwaitingApproval)));
            index.apply(&mut feed, &Apply(newer));
            assert_eq!(index.newer("a").is_some(), takes, "{what}");
        }
        let (mut one, mut two) = (run("a", 0, Phase::AwaitingApproval), run("z", 9, Phase::AwaitingApproval));
        (one.spec.backend, two.spec.backend) = (backend("x"), backend("x"));
        (one.spec.stack, two.spec.stack) = (None, None);
        assert_eq!(workspace(&one), workspace(&two), "the backend is the place, whatever the runs are called");
        two.spec.backend = backend("y");
        assert_ne!(workspace(&one), workspace(&two));
        let turned = serde_json::from_value(serde_json::json!({"region": {"b": 2, "a": 1}, "bucket": "x"})).unwrap();
        two.spec.backend = Some(Backend { kind: "s3".into(), config: turned });
        assert_eq!(workspace(&one), workspace(&two));
        let rotated = serde_json::json!({"bucket": "x", "region": {"a": 1, "b": 2}, "access_key": "new", "secret_key": "new", "max_retries": 9});
        two.spec.backend = Some(Backend { kind: "s3".into(), config: serde_json::from_value(rotated).unwrap() });
        assert_eq!(workspace(&one), workspace(&two), "credentials make no other workspace of a state");
        let http =
            |config: serde_json::Value| Some(Backend { kind: "http".into(), config: serde_json::from_value(config).unwrap() });
        one.spec.backend = http(serde_json::json!({"address": "https://s/a", "username": "old", "retry_max": 2}));
        two.spec.backend = http(serde_json::json!({"address": "https://u:p@s/a", "username": "new", "retry_max": 5}));
        assert_eq!(workspace(&one), workspace(&two));
        two.spec.workspace = "prod".into();
        assert_ne!(workspace(&one), workspace(&two));
        for (kind, here, there) in [
            ("http", serde_json::json!({"address": "https://s/a?id=a"}), serde_json::json!({"address": "https://s/a?id=b"})),
            (
                "kubernetes",
                serde_json::json!({"secret_suffix": "a", "host": "x"}),
                serde_json::json!({"secret_suffix": "a", "host": "y"}),
            ),
            (
                "s3",
                serde_json::json!({"bucket": "b", "endpoints": {"s3": "x"}}),
                serde_json::json!({"bucket": "b", "endpoints": {"s3": "y"}}),
            ),
        ] {
            let of = |config| Some(Backend { kind: kind.into(), config: serde_json::from_value(config).unwrap() });
            (one.spec.backend, two.spec.backend, two.spec.workspace) = (of(here), of(there), one.spec.workspace.clone());
            assert_ne!(workspace(&one), workspace(&two), "{kind}: another state");
        }
    }

    #[test]
    fn restart_and_relisting_give_the_same_state() {
        let index = NewerPlans::default();
        let mut feed = index.feed();
        let mut done = run("b", 9, Phase::Succeeded);
        (done.status.as_mut().unwrap().plan, done.status.as_mut().unwrap().result) = (None, Some(RunResult::Applied));
        index.apply(&mut feed, &Init);
        assert!(names(index.apply(&mut feed, &InitApply(done.clone()))).is_empty());
        index.apply(&mut feed, &InitApply(run("a", 0, Phase::AwaitingApproval)));
        index.apply(&mut feed, &InitDone);
        assert_eq!(index.newer("a").as_deref(), Some("b"), "listed in whatever order");
        index.apply(&mut feed, &Init);
        index.apply(&mut feed, &InitApply(run("a", 0, Phase::AwaitingApproval)));
        assert_eq!(index.newer("a").as_deref(), Some("b"), "until the listing is complete");
        index.apply(&mut feed, &InitDone);
        assert_eq!(index.newer("a"), None, "gone meanwhile");
        let mut other = index.feed();
        index.apply(&mut other, &Init);
        index.apply(&mut other, &InitDone);
        index.apply(&mut feed, &Apply(done.clone()));
        assert_eq!(index.newer("a").as_deref(), Some("b"), "another watch's listing");
        index.apply(&mut feed, &Delete(done));
        assert_eq!(index.newer("a"), None);
        index.apply(&mut feed, &Delete(run("a", 0, Phase::AwaitingApproval)));
        let inner = index.lock();
        assert!(inner.planned.is_empty() && inner.waiting.is_empty());
    }
}
