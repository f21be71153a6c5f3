//! A run as the cache keeps it: as it is while something may still become of it, and packed once it is finished for good. Most of what is
//! stored has ended, and a run is large however little of it is left.

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
};

use anyhow::Result;
use jiff::Timestamp;
use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::{Deserialize, Deserializer};

use crate::{
    cluster::packed::{Alike, Packed},
    gc::ttl,
    settings::Settings,
};
use crds::{TerraformRun, conditions};

/// Runs that are finished.
static FINISHED: Alike = Alike::new();

/// A run as the cache keeps it.
#[derive(Clone, Debug)]
pub struct CachedRun {
    /// The run, while something may still become of it.
    whole: Option<Arc<TerraformRun>>,
    /// What is left of it after that.
    finished: Option<Box<Finished>>,
    wakes: u64,
}

#[derive(Debug)]
struct Finished {
    /// When it goes.
    due: Option<Timestamp>,
    /// All of it, as JSON.
    text: Packed,
    /// Name and namespace, once somebody has asked.
    meta: OnceLock<Box<ObjectMeta>>,
}

impl CachedRun {
    /// Keeps a run that was trimmed; `wakes` is a hash of what is a reason to look at it.
    pub fn of(run: TerraformRun, wakes: u64, settings: &Settings) -> Self {
        let finished = if is_finished(&run) { Finished::of(&run, settings).ok().map(Box::new) } else { None };
        let whole = finished.is_none().then(|| Arc::new(run));
        Self { whole, finished, wakes }
    }

    /// The hash of what is a reason to look at it.
    pub fn wakes(&self) -> u64 {
        self.wakes
    }

    /// The run; `None` when one cannot be read that was packed by this process.
    pub fn run(&self) -> Option<Arc<TerraformRun>> {
        self.whole.clone().or_else(|| self.finished.as_ref()?.read().map(Arc::new))
    }

    /// The run while something may still become of it.
    pub fn unfinished(&self) -> Option<&TerraformRun> {
        self.whole.as_deref()
    }

    /// When it goes, of one that is finished for good.
    pub fn due(&self) -> Option<Timestamp> {
        self.finished.as_ref()?.due
    }
}

impl Finished {
    fn of(run: &TerraformRun, settings: &Settings) -> Result<Self> {
        let text = FINISHED.keep(run)?;
        let status = run.status.as_ref();
        let (ended, result) =
            (status.and_then(|status| status.completion_time.as_ref()), status.and_then(|status| status.result));
        let due = ttl::due(run, run.spec.ttl_seconds_after_finished, ended, result, settings);
        Ok(Self { due, text, meta: OnceLock::from(Box::new(named(&run.metadata))) })
    }

    fn read(&self) -> Option<TerraformRun> {
        FINISHED.read(&self.text)
    }
}

/// The cache keeps a clone, under a key of its own. So what the key has as well is not cloned: it is read again where somebody asks.
impl Clone for Finished {
    fn clone(&self) -> Self {
        Self { due: self.due, text: self.text.clone(), meta: OnceLock::new() }
    }
}

/// Name and namespace, by which a run is found.
fn named(meta: &ObjectMeta) -> ObjectMeta {
    ObjectMeta { name: meta.name.clone(), namespace: meta.namespace.clone(), ..ObjectMeta::default() }
}

/// Nothing more becomes of it by itself, but that it goes.
fn is_finished(run: &TerraformRun) -> bool {
    let Some(status) = &run.status else { return false };
    let open = status.attempt.as_ref().is_some_and(|attempt| attempt.open);
    let told = conditions::status(&status.conditions, conditions::FINISHED) == Some(true);
    status.is_terminal() && !open && told && status.lease.is_none() && run.unknown_word().is_none()
}

impl Resource for CachedRun {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        TerraformRun::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        TerraformRun::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        TerraformRun::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        TerraformRun::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        static NONE: OnceLock<ObjectMeta> = OnceLock::new();
        match (&self.whole, &self.finished) {
            (Some(run), _) => run.meta(),
            (None, Some(finished)) => {
                finished.meta.get_or_init(|| Box::new(finished.read().map(|run| named(&run.metadata)).unwrap_or_default()))
            }
            (None, None) => NONE.get_or_init(ObjectMeta::default),
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        let run = self.run().unwrap_or_default();
        self.finished = None;
        Arc::make_mut(self.whole.insert(run)).meta_mut()
    }
}

/// As the API server sends it.
impl<'de> Deserialize<'de> for CachedRun {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        TerraformRun::deserialize(deserializer).map(|run| Self { whole: Some(Arc::new(run)), finished: None, wakes: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{run::watch::trim, testing};
    use crds::names;
    use kube::ResourceExt;
    use serde_json::json;
    use sha2::{Digest as _, Sha256};

    /// A run that a layer made and that has ended, as the API server has it.
    fn ended(number: usize) -> TerraformRun {
        let at = "2026-01-01T00:00:00Z";
        // No run's are those of another.
        let hash = |what: &str| hex::encode(Sha256::digest(format!("{what} {number}")));
        let sum = |what: &str| format!("sha256:{}", hash(what));
        let mut run = testing::run();
        let meta = &mut run.metadata;
        meta.name = Some(format!("layer-of-a-team-{number:05}-bcdfghjklm"));
        let uid = hash("uid");
        meta.uid = Some(format!("{}-{}-4c07-9d43-{}", &uid[..8], &uid[8..12], &uid[12..24]));
        meta.resource_version = Some(format!("{}", 1_000_000 + number));
        meta.creation_timestamp = Some(serde_json::from_value(json!(at)).unwrap());
        meta.labels = Some(
            [(names::LABEL_LAYER, "layer-of-a-team"), (names::LABEL_LAYER_UID, testing::UID)]
                .map(|(k, v)| (k.into(), v.into()))
                .into(),
        );
        meta.annotations = Some(
            [
                (names::TRIGGER, "Commit".to_owned()),
                (names::CONTENT, sum("4")),
                (names::SETTINGS, sum("5")),
                (names::LIFE, meta.uid.clone().unwrap()),
                (names::APPROVE, sum("1")),
                (names::APPROVED_BY, "alice@example.com".to_owned()),
            ]
            .map(|(k, v)| (k.into(), v))
            .into(),
        );
        let condition = |type_: &str, status: &str, reason: &str| json!({"type": type_, "status": status, "reason": reason, "message": "applied +1 ~0 -0", "lastTransitionTime": at});
        let mut plan = serde_json::to_value(crds::PlanStatus::default()).unwrap();
        let of_plan = json!({"checksum": sum("1"), "attempt": 1, "summary": "+1 ~0 -0", "stateKey": sum("3"), "bundle": sum("2"),
            "createdAt": at, "add": 1, "tool": "OpenTofu 1.10.6"});
        testing::merge(&mut plan, &of_plan);
        run.status = serde_json::from_value(json!({
            "phase": "Succeeded", "result": "Applied", "completionTime": at, "startTime": at, "message": "applied +1 ~0 -0",
            "observedGeneration": 1, "history": ["00:00:00  Setup  a", "00:00:00  Plan  b"],
            "attempt": {"number": 1, "podName": "p", "open": false, "openedAt": at, "closedAt": at, "tries": 1, "image": "i",
                "nodeName": "node-1"},
            "adopted": {"attempt": 1, "podUID": testing::POD, "nonce": testing::NONCE},
            "claim": {"checksum": sum("1"), "attempt": 1, "podUID": testing::POD, "nonce": testing::NONCE, "at": at},
            "approval": {"checksum": sum("1"), "by": "alice@example.com", "at": at},
            "plan": plan,
            "conditions": [condition("Planned", "True", "Planned"), condition("Approved", "True", "Approved"),
                condition("Succeeded", "True", "Applied"), condition("Finished", "True", "Applied")]}))
        .unwrap();
        run
    }

    fn trimmed(number: usize) -> TerraformRun {
        let mut run = ended(number);
        trim(&mut run);
        run
    }

    #[test]
    fn a_finished_run_is_read_as_it_was_kept() {
        let settings = Settings { default_ttl_seconds: Some(60), ..Settings::default() };
        let kept = CachedRun::of(trimmed(1), 0, &settings);
        assert!(kept.unfinished().is_none());
        assert_eq!(serde_json::to_value(&*kept.run().unwrap()).unwrap(), serde_json::to_value(trimmed(1)).unwrap());
        assert_eq!((kept.name_any(), kept.namespace()), (trimmed(1).name_any(), trimmed(1).namespace()));
        assert_eq!(kept.due(), Some("2026-01-01T00:01:00Z".parse().unwrap()));
        assert_eq!(CachedRun::of(trimmed(1), 0, &Settings::default()).due(), None);
    }

    #[test]
    fn of_what_may_still_become_something_nothing_is_made_text() {
        let changes: [fn(&mut TerraformRun); 4] = [
            |run| run.status = None,
            |run| run.status.as_mut().unwrap().attempt.as_mut().unwrap().open = true,
            |run| run.status.as_mut().unwrap().conditions.clear(),
            |run| {
                let lease = json!({"stateKey": "k", "name": "n", "at": "2026-01-01T00:00:00Z"});
                run.status.as_mut().unwrap().lease = serde_json::from_value(lease).unwrap();
            },
        ];
        for change in changes {
            let mut run = trimmed(1);
            change(&mut run);
            assert!(CachedRun::of(run, 0, &Settings::default()).unfinished().is_some());
        }
    }

    /// What the store of the runtime needs for one is in it: the key, which has the name and namespace again.
    #[test]
    fn a_finished_run_costs_little() {
        const RUNS: usize = 2_000;
        const BOUND: usize = 1_000;
        let of = |text: &str| text.len().next_multiple_of(16) + 16;
        // As the store has it: a clone.
        let kept: Vec<_> = (0..RUNS).map(|number| CachedRun::of(trimmed(number), 0, &Settings::default()).clone()).collect();
        let bytes: usize = kept
            .iter()
            .map(|run| {
                let finished = run.finished.as_ref().unwrap();
                assert!(finished.meta.get().is_none(), "nobody asked");
                let text = finished.text.size().next_multiple_of(16) + 16;
                let names = of(&run.name_any()) + of(&run.namespace().unwrap());
                let key = size_of::<kube::runtime::reflector::ObjectRef<CachedRun>>() + size_of::<usize>() + 1;
                // A table is between half and all of seven eighths full.
                let table = key * 16 / 10;
                size_of::<CachedRun>() + size_of::<Finished>() + 48 + text + names + table
            })
            .sum();
        println!("{} bytes for each, {} of them text", bytes / RUNS, kept[0].finished.as_ref().unwrap().text.size());
        assert!(bytes / RUNS < BOUND, "{} bytes: {}", bytes / RUNS, serde_json::to_string(&trimmed(0)).unwrap());
    }
}
