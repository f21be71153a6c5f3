//! Tracks runs by workspace, and which of them have made a plan: an older waiting run is superseded by a newer run's
//! plan.
//!
//! Filled by the watches before runs are trimmed. Makes no requests.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::{Arc, Mutex, PoisonError},
};

use kube::ResourceExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use watching::{Index, Key, name_of};

use crds::{
    Operation, Phase, RunResult, TerraformRun, TerraformRunStatus, datastore::StateId, state_key,
    text::without_userinfo,
};

use crate::cluster::watch::Wakers;

/// A workspace: half of a hash of namespace, stack or backend, and workspace.
type Workspace = u128;
/// A run within its workspace, sorted by age, oldest first.
type Rank = (Workspace, i64, Key);

/// The state of a run that has made its plan.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It waits for an approval.
    Waits,
    Works,
    Ended,
}

/// The runs that have made their plan, by workspace.
pub struct NewerPlans {
    inner: Mutex<Inner>,
    wakers: Arc<Wakers>,
}

#[derive(Default)]
struct Inner {
    /// Of the ended runs, only the newest and those that a waiting run may report.
    planned: BTreeMap<Rank, Stage>,
    ranks: HashMap<Key, Rank>,
}

/// Wakes older waiting runs.
impl Index<TerraformRun> for NewerPlans {
    fn apply(&self, key: &Key, run: &TerraformRun) {
        let older = self.lock().put(key, run);
        self.wakers.send_all(&older);
    }

    fn delete(&self, key: &Key) {
        self.lock().remove(key);
    }
}

impl NewerPlans {
    pub fn new(wakers: Arc<Wakers>) -> Self {
        Self {
            inner: Mutex::default(),
            wakers,
        }
    }

    /// The newest run that has made its plan and is newer than this waiting run, in the same workspace.
    pub fn newer(&self, run: &TerraformRun) -> Option<String> {
        let inner = self.lock();
        let rank = inner
            .ranks
            .get(&name_of(run))
            .filter(|rank| inner.planned.get(*rank) == Some(&Stage::Waits))?;
        let newer = inner
            .planned
            .range::<Rank, _>((Bound::Excluded(rank), Bound::Unbounded));
        let (newest, _) = newer
            .take_while(|((workspace, ..), _)| *workspace == rank.0)
            .last()?;
        Some(newest.2.1.to_string())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // Consistent between any two events, so a poisoned lock still holds a valid value.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Stores a run. Returns the older waiting runs of its workspace if it has just made its plan.
    fn put(&mut self, key: &Key, run: &TerraformRun) -> Vec<Key> {
        if !has_planned(run) {
            return Vec::new();
        }
        let created = run
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(0, |at| at.0.as_second());
        let rank = (workspace(run), created, key.clone());
        let status = run.status.as_ref();
        let stage = if status.is_some_and(|status| status.phase == Some(Phase::AwaitingApproval)) {
            Stage::Waits
        } else if status.is_some_and(TerraformRunStatus::is_terminal) {
            Stage::Ended
        } else {
            Stage::Works
        };
        self.ranks.insert(key.clone(), rank.clone());
        let is_news = self.planned.insert(rank.clone(), stage).is_none();
        let older = self
            .planned
            .range((rank.0, i64::MIN, Key::default())..rank.clone())
            .filter(|_| is_news);
        let woken = older
            .filter(|(_, stage)| **stage == Stage::Waits)
            .map(|(older, _)| older.2.clone())
            .collect();
        self.prune(rank.0);
        woken
    }

    /// Removes ended runs that no waiting run needs. A waiting run names the newest one, and another one only after that is deleted.
    fn prune(&mut self, workspace: Workspace) {
        let all = self
            .planned
            .range((workspace, i64::MIN, Key::default())..)
            .take_while(|((of, ..), _)| *of == workspace);
        let mut all: Vec<_> = all
            .map(|((.., key), stage)| (key.clone(), *stage))
            .collect();
        all.pop();
        for (key, _) in all
            .iter()
            .take_while(|(_, stage)| *stage != Stage::Waits)
            .filter(|(_, stage)| *stage == Stage::Ended)
        {
            self.remove(key);
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(rank) = self.ranks.remove(key) {
            self.planned.remove(&rank);
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
            let done = matches!(
                status.result,
                Some(RunResult::NoChanges | RunResult::Applied | RunResult::Destroyed)
            );
            done || status.plan.is_some()
        })
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
            let places = backend
                .config
                .iter()
                .filter(|(name, _)| !MANNER.contains(&name.as_str()));
            let config = places
                .map(|(name, value)| (name.clone(), without_user(value)))
                .collect();
            // A backend that the environment or the code completes may be another one in another stack.
            let stack = (!backend.names_state()).then_some(stack);
            json!(["backend", backend.kind, Value::Object(config), stack])
        }
        None => json!(["stack", stack]),
    };
    let digest = Sha256::digest(
        state_key::canonical(&json!([run.namespace(), place, workspace])).as_bytes(),
    );
    digest
        .iter()
        .take(16)
        .fold(0, |hash, byte| (hash << 8) | u128::from(*byte))
}

/// A URL without user and password. A URL with a query stays unchanged, because the query may identify the state.
fn without_user(value: &Value) -> Value {
    let url = value
        .as_str()
        .filter(|text| text.contains("://") && !text.contains(['?', '#']));
    url.map_or_else(|| value.clone(), |url| without_userinfo(url).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crds::{Backend, PlanStatus, TerraformRunStatus};
    use futures::channel::mpsc::unbounded;

    /// A run of a stack, created at this second, in a phase, with a plan.
    fn run(name: &str, second: i64, phase: Phase) -> TerraformRun {
        let mut run = testing::named("team", name, second);
        run.spec.stack = Some("net".into());
        run.status = Some(TerraformRunStatus {
            phase: Some(phase),
            plan: Some(PlanStatus::default()),
            ..Default::default()
        });
        run
    }

    /// An index, and a function that stores a run and returns the runs that were woken.
    fn index() -> (
        NewerPlans,
        impl FnMut(&NewerPlans, &TerraformRun) -> Vec<String>,
    ) {
        let ((wake, mut woken), wakers) = (unbounded(), Arc::new(Wakers::default()));
        wakers.add(None, wake);
        let put = move |index: &NewerPlans, run: &TerraformRun| {
            index.apply(&Key::new(name_of(run)), run);
            std::iter::from_fn(|| woken.try_recv().ok())
                .map(|run| format!("{}/{}", run.0, run.1))
                .collect()
        };
        (NewerPlans::new(wakers), put)
    }

    fn newer(index: &NewerPlans, name: &str) -> Option<String> {
        index.newer(&run(name, 0, Phase::Plan))
    }

    fn delete(index: &NewerPlans, name: &str) {
        index.delete(&Key::new(("team".into(), name.into())));
    }

    #[test]
    fn superseded_run_is_woken_once_with_the_newer_run() {
        let (index, mut put) = index();
        assert!(put(&index, &run("b", 0, Phase::AwaitingApproval)).is_empty());
        assert_eq!(newer(&index, "b"), None, "it is the newest");
        let mut early = run("c", 9, Phase::Plan);
        early.status.as_mut().unwrap().plan = None;
        assert!(put(&index, &early).is_empty(), "it has made no plan yet");
        assert_eq!(
            put(&index, &run("c", 9, Phase::AwaitingApproval)),
            ["team/b"]
        );
        assert!(
            put(&index, &run("c", 9, Phase::Apply)).is_empty(),
            "said already"
        );
        assert_eq!(
            (newer(&index, "b").as_deref(), newer(&index, "c")),
            (Some("c"), None)
        );
        put(&index, &run("d", 12, Phase::Apply));
        assert_eq!(
            newer(&index, "b").as_deref(),
            Some("d"),
            "the newest is named"
        );
        put(&index, &run("b", 0, Phase::Apply));
        assert_eq!(newer(&index, "b"), None, "it waits no more");
    }

    #[test]
    fn only_relevant_ended_runs_are_retained() {
        let (index, mut put) = index();
        let kept = || {
            index
                .lock()
                .planned
                .keys()
                .map(|(.., key)| key.1.to_string())
                .collect::<Vec<_>>()
        };
        for (name, second) in [("c", 3), ("a", 1), ("b", 2)] {
            put(&index, &run(name, second, Phase::Succeeded));
        }
        assert_eq!(kept(), ["c"]);
        put(&index, &run("d", 4, Phase::AwaitingApproval));
        assert_eq!(kept(), ["d"]);
        for (name, second) in [("e", 5), ("f", 6)] {
            put(&index, &run(name, second, Phase::Succeeded));
        }
        assert_eq!(
            (kept(), newer(&index, "d").as_deref()),
            (vec!["d".into(), "e".into(), "f".into()], Some("f"))
        );
        delete(&index, "f");
        assert_eq!(
            newer(&index, "d").as_deref(),
            Some("e"),
            "the newest is deleted"
        );
        put(&index, &run("d", 4, Phase::Canceled));
        assert_eq!(kept(), ["e"]);
        delete(&index, "e");
        let inner = index.lock();
        assert!(inner.planned.is_empty() && inner.ranks.is_empty());
    }

    #[test]
    fn name_breaks_ties_within_a_second() {
        let (index, mut put) = index();
        for name in ["a", "b"] {
            put(&index, &run(name, 0, Phase::AwaitingApproval));
        }
        assert_eq!(
            (newer(&index, "a").as_deref(), newer(&index, "b")),
            (Some("b"), None)
        );
    }

    #[test]
    fn other_workspaces_and_plan_only_runs_supersede_nothing() {
        let other = |change: fn(&mut TerraformRun)| {
            let mut run = run("z", 9, Phase::AwaitingApproval);
            change(&mut run);
            run
        };
        let backend = |key: &str| {
            let config = serde_json::from_value(
                serde_json::json!({"bucket": key, "key": "k", "region": {"a": 1, "b": 2}}),
            )
            .unwrap();
            Some(Backend {
                kind: "s3".into(),
                config,
            })
        };
        let cases: Vec<(&str, TerraformRun, bool)> = vec![
            ("same", other(|_| ()), true),
            (
                "another stack",
                other(|run| run.spec.stack = Some("dns".into())),
                false,
            ),
            (
                "another workspace",
                other(|run| run.spec.workspace = "prod".into()),
                false,
            ),
            (
                "another namespace",
                other(|run| run.metadata.namespace = Some("else".into())),
                false,
            ),
            (
                "a plan alone",
                other(|run| run.spec.operation = Operation::Plan),
                false,
            ),
            (
                "inline without a stack",
                other(|run| run.spec.stack = None),
                false,
            ),
            (
                "destroys",
                other(|run| run.spec.operation = Operation::Destroy),
                true,
            ),
        ];
        for (what, other, takes) in cases {
            let (index, mut put) = index();
            put(&index, &run("a", 0, Phase::AwaitingApproval));
            put(&index, &other);
            assert_eq!(newer(&index, "a").is_some(), takes, "{what}");
        }
        let (mut one, mut two) = (
            run("a", 0, Phase::AwaitingApproval),
            run("z", 9, Phase::AwaitingApproval),
        );
        (one.spec.backend, two.spec.backend) = (backend("x"), backend("x"));
        (one.spec.stack, two.spec.stack) = (None, None);
        assert_eq!(
            workspace(&one),
            workspace(&two),
            "the backend is the place, whatever the runs are called"
        );
        two.spec.backend = backend("y");
        assert_ne!(workspace(&one), workspace(&two));
        let turned = serde_json::from_value(
            serde_json::json!({"region": {"b": 2, "a": 1}, "bucket": "x", "key": "k"}),
        )
        .unwrap();
        two.spec.backend = Some(Backend {
            kind: "s3".into(),
            config: turned,
        });
        assert_eq!(workspace(&one), workspace(&two));
        let rotated = serde_json::json!({"bucket": "x", "key": "k", "region": {"a": 1, "b": 2}, "access_key": "new", "secret_key": "new", "max_retries": 9});
        two.spec.backend = Some(Backend {
            kind: "s3".into(),
            config: serde_json::from_value(rotated).unwrap(),
        });
        assert_eq!(
            workspace(&one),
            workspace(&two),
            "credentials make no other workspace of a state"
        );
        // The code tells the rest of it.
        let part = serde_json::json!({"bucket": "x"});
        let part = Backend {
            kind: "s3".into(),
            config: serde_json::from_value(part).unwrap(),
        };
        (one.spec.backend, two.spec.backend) = (Some(part.clone()), Some(part));
        assert_ne!(workspace(&one), workspace(&two), "of other stacks");
        let http = |config: serde_json::Value| {
            Some(Backend {
                kind: "http".into(),
                config: serde_json::from_value(config).unwrap(),
            })
        };
        one.spec.backend =
            http(serde_json::json!({"address": "https://s/a", "username": "old", "retry_max": 2}));
        two.spec.backend = http(
            serde_json::json!({"address": "https://u:p@s/a", "username": "new", "retry_max": 5}),
        );
        assert_eq!(workspace(&one), workspace(&two));
        two.spec.workspace = "prod".into();
        assert_ne!(workspace(&one), workspace(&two));
        for (kind, here, there) in [
            (
                "http",
                serde_json::json!({"address": "https://s/a?id=a"}),
                serde_json::json!({"address": "https://s/a?id=b"}),
            ),
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
            let of = |config| {
                Some(Backend {
                    kind: kind.into(),
                    config: serde_json::from_value(config).unwrap(),
                })
            };
            (one.spec.backend, two.spec.backend, two.spec.workspace) =
                (of(here), of(there), one.spec.workspace.clone());
            assert_ne!(workspace(&one), workspace(&two), "{kind}: another state");
        }
    }

    #[test]
    fn restart_finds_the_newer_run_in_any_order() {
        let (index, mut put) = index();
        let mut done = run("b", 9, Phase::Succeeded);
        (
            done.status.as_mut().unwrap().plan,
            done.status.as_mut().unwrap().result,
        ) = (None, Some(RunResult::Applied));
        assert!(put(&index, &done).is_empty());
        put(&index, &run("a", 0, Phase::AwaitingApproval));
        assert_eq!(newer(&index, "a").as_deref(), Some("b"));
        delete(&index, "b");
        assert_eq!(newer(&index, "a"), None);
    }
}
