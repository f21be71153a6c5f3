//! Checks of a layer's runs at every step and at the end. The numbers are those of `design/invariants.md`.

use std::{collections::BTreeMap, sync::Arc};

use controller::layer::{RunSummary, SUPERSEDED, Stage};
use crds::{DeletionPolicy, Operation, TerraformLayer, TerraformRepository, TerraformRun, Trigger, names, reason};
use kube::ResourceExt;
use played::store::{Change, Key};
use serde::Deserialize;

use crate::{
    layers::{content, slack},
    world::{NAMESPACES, NS, World, millis, now},
};

/// The layer's desired state during a period.
#[derive(Clone, Debug, PartialEq)]
struct Era {
    content: String,
    /// The one setting that changes.
    settings: String,
    suspended: bool,
    destroys: bool,
    deleted: bool,
}

/// Observations of a layer's life.
#[derive(Default)]
pub(crate) struct Layered {
    /// By start, in milliseconds.
    eras: Vec<(u64, Era)>,
    layer: Option<Arc<TerraformLayer>>,
    gone: bool,
    /// The last version of every run ever made, in the order of creation.
    made: Vec<TerraformRun>,
    /// By name: when the run was made.
    since: BTreeMap<String, u64>,
    frozen_since: Option<u64>,
    /// Number of the newest applied commit.
    applied: usize,
}

impl Layered {
    /// Whether the layer existed and is deleted.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }

    /// All desired states since that time.
    fn since(&self, since: u64) -> impl Iterator<Item = &Era> {
        let from = self.eras.partition_point(|(at, _)| *at <= since).saturating_sub(1);
        self.eras[from.min(self.eras.len())..].iter().map(|(_, era)| era)
    }

    /// The newest run that has a plan, including denied and expired ones.
    fn planned(&self) -> Option<&TerraformRun> {
        self.made.iter().rev().find(|run| seen(run).is_some_and(|seen| counts(&seen) && seen.has_planned()))
    }
}

fn seen(run: &TerraformRun) -> Option<RunSummary> {
    RunSummary::of(run).map(|(_, seen)| seen)
}

fn counts(seen: &RunSummary) -> bool {
    seen.operation != Operation::Destroy && !seen.was_taken_back()
}

fn settings(run: &TerraformRun) -> String {
    format!("{:?}", run.spec.timeouts.apply)
}

fn is_of(run: &TerraformRun, era: &Era) -> bool {
    content(run) == era.content && settings(run) == era.settings
}

fn era(layer: &TerraformLayer) -> Era {
    let timeouts = layer.spec.template.0.get("timeouts").cloned().unwrap_or_default();
    let timeouts: crds::Timeouts = serde_json::from_value(timeouts).unwrap();
    Era {
        content: layer.status.as_ref().and_then(|status| status.source.as_ref()).map(|s| s.content.clone()).unwrap_or_default(),
        settings: format!("{:?}", timeouts.apply),
        suspended: layer.spec.suspend,
        destroys: layer.spec.deletion_policy == DeletionPolicy::Destroy,
        deleted: layer.metadata.deletion_timestamp.is_some(),
    }
}

pub(crate) fn changed(world: &mut World, change: &Change) {
    let layer = TerraformLayer::deserialize(&*change.object).unwrap();
    if world.tracing {
        let status = layer.status.clone().unwrap_or_default();
        let source = status.source.map(|source| source.content.chars().skip(7).take(1).collect::<String>());
        let said = format!("{:?} of {source:?}, waits for {:?}", status.state, status.waits_for);
        world.note(&format!("   layer {}@{} {said}", if change.deleted { "GONE " } else { "" }, change.version));
    }
    let told = layer.status.as_ref().and_then(|status| status.source.as_ref()).map(|source| source.revision.clone());
    if let Some(revision) = told.filter(|revision| !world.forge.has_snapshot(revision)) {
        world.violated("S89", &format!("a layer is told of {revision}, of which no snapshot is stored"));
    }
    let (layered, era) = (&mut world.watcher.layered, era(&layer));
    if layered.eras.last().is_none_or(|(_, last)| *last != era) {
        layered.eras.push((millis(), era));
    }
    layered.gone = change.deleted;
    layered.layer = (!change.deleted).then(|| Arc::new(layer));
    if change.deleted {
        world.watcher.endings.insert("layer: gone");
    }
}

/// Number and content of the commit that the layer has to plan.
fn told(world: &World) -> Option<(usize, u8)> {
    let layer = world.watcher.layered.layer.as_ref()?;
    world.forge.commit(&layer.status.as_ref()?.source.as_ref()?.revision)
}

/// Checks a written repository: all layers must know the commit in its status.
pub(crate) fn followed(world: &mut World, change: &Change) {
    let repository = TerraformRepository::deserialize(&*change.object).unwrap();
    let refs = repository.status.map(|status| status.refs).unwrap_or_default();
    let is_at = refs.first().and_then(|known| world.forge.commit(&known.commit.as_ref()?.revision));
    let (Some((number, content)), true) = (is_at, world.watcher.layered.layer.is_some()) else { return };
    let told = told(world);
    // The layer may already know a later one.
    if told.is_none_or(|(of, has)| of <= number && has != content) {
        world.violated("S89", &format!("commit {number} is said to be known, and the layer is told {told:?}"));
    }
}

pub(crate) fn run(world: &mut World, before: Option<&TerraformRun>, after: &TerraformRun) {
    let Some(is) = seen(after) else { return };
    match before {
        None => made(world, after, &is),
        Some(before) => {
            if let Some(was) = seen(before).filter(|was| is.superseded && !was.superseded) {
                taken_back(world, after, &was);
            }
        }
    }
    let layered = &mut world.watcher.layered;
    match layered.made.iter_mut().find(|run| run.metadata.uid == after.metadata.uid) {
        Some(there) => *there = after.clone(),
        None => layered.made.push(after.clone()),
    }
}

fn made(world: &mut World, run: &TerraformRun, is: &RunSummary) {
    let (name, slack) = (run.name_any(), slack(&world.schedule));
    let mut wrong: Vec<(&str, String)> = Vec::new();
    let frozen = world.store.get(&Key::of(NAMESPACES, "", NS)).is_ok();
    let layered = &mut world.watcher.layered;
    if layered.since.insert(name.clone(), millis()).is_some() {
        wrong.push(("S82", format!("{name} is made a second time")));
    }
    for other in layered.made.iter().filter_map(seen).filter(|other| !other.is_ended()) {
        let there = world.runs.contains_key(&*other.name);
        if there && is.trigger == Trigger::Drift && other.stage == Stage::Waiting {
            wrong.push(("S85", format!("{name} looks for drift while the plan of {} waits", other.name)));
        } else if there {
            wrong.push(("S82", format!("{name} is made while {} is under way", other.name)));
        }
    }
    let again = layered.planned().is_some_and(|planned| {
        content(planned) == content(run) && settings(planned) == settings(run) && is.trigger == Trigger::Commit
    });
    if again {
        wrong.push(("S82", format!("{name} is made of a commit that is planned")));
    }
    let since = millis().saturating_sub(slack);
    if layered.since(since).all(|era| era.suspended) {
        wrong.push(("S86", format!("{name} is made while its layer is suspended")));
    }
    if frozen && layered.frozen_since.is_some_and(|at| at < since) {
        wrong.push(("S86", format!("{name} is made while its namespace is frozen")));
    }
    let destroys = is.operation == Operation::Destroy || is.trigger == Trigger::Deletion;
    if destroys && !layered.since(since).any(|era| era.destroys && era.deleted) {
        wrong.push(("S87", format!("{name} destroys what is to stay")));
    }
    if is.trigger == Trigger::Drift {
        let interval = layered.layer.as_ref().map_or(0, |layer| layer.spec.drift.interval.0.as_secs());
        let last = layered.made.iter().filter_map(seen).filter(counts).map(|run| run.at()).max();
        let least = jiff::SignedDuration::from_millis(i64::try_from(interval * 850).unwrap());
        if last.is_some_and(|last| now() < last + least) {
            wrong.push(("S85", format!("{name} looks for drift before its time")));
        }
    }
    for (invariant, text) in wrong {
        world.violated(invariant, &text);
    }
    world.watcher.endings.insert(match is.trigger {
        Trigger::Person => "layer: Person",
        Trigger::Commit => "layer: Commit",
        Trigger::Retry => "layer: Retry",
        Trigger::Drift => "layer: Drift",
        Trigger::Deletion => "layer: Deletion",
        Trigger::Unknown => "layer: unknown",
    });
}

/// Checks a run that its layer superseded.
fn taken_back(world: &mut World, run: &TerraformRun, was: &RunSummary) {
    world.watcher.endings.insert("layer: superseded");
    let since = millis().saturating_sub(slack(&world.schedule));
    let eras = world.watcher.layered.since(since);
    let (deleted, newer) = eras.fold((false, false), |(d, n), era| (d || era.deleted, n || !is_of(run, era)));
    let why = run.annotations().get(names::CANCEL).map_or("", |why| why.trim_start_matches(SUPERSEDED)).to_owned();
    let may = if deleted { was.may_be_taken_back() } else { was.may_be_superseded() && newer };
    if !may {
        world.violated(
            "S84",
            &format!("{} is {:?}, of what is wanted: {}, and was taken back: {why}", was.name, was.stage, !newer),
        );
    }
}

/// Checks the start of an apply.
pub(crate) fn applies(world: &mut World, run: &str) {
    let Some(run) = world.run(run).filter(|run| seen(run).is_some()) else { return };
    let planned = run.status.as_ref().and_then(|status| status.plan.as_ref());
    if planned.is_none_or(|plan| plan.counts.operations() == 0) {
        world.violated("S83", &format!("{} applies a plan without changes", run.name_any()));
    }
    let revision = run.spec.source.repository.as_ref().map_or("", |source| source.revision.as_str());
    let number = world.forge.commit(revision).map_or(0, |(number, _)| number);
    if run.spec.operation != Operation::Destroy && number < world.watcher.layered.applied {
        world.violated("S88", &format!("{} applies commit {number} after {}", run.name_any(), world.watcher.layered.applied));
    }
    world.watcher.layered.applied = number.max(world.watcher.layered.applied);
    world.ground.applied = "partly".into();
}

/// Records a completed apply.
pub(crate) fn applied(world: &mut World, run: &str) {
    let Some(run) = world.run(run).filter(|run| seen(run).is_some()) else { return };
    let destroyed = run.spec.operation == Operation::Destroy;
    world.ground.applied = if destroyed { String::new() } else { content(&run).to_owned() };
    world.ground.drifted = false;
}

/// Records that the namespace is frozen, or no longer.
pub(crate) fn frozen(world: &mut World, is_frozen: bool) {
    world.watcher.layered.frozen_since = is_frozen.then(millis);
}

/// Whether its layer waits for no timer.
pub(crate) fn is_at_rest(world: &World) -> bool {
    if world.schedule.scene.layer.is_none() {
        return true;
    }
    let Some(layer) = &world.watcher.layered.layer else { return world.watcher.layered.gone };
    let quiet = layer.spec.drift.suspend || layer.metadata.deletion_timestamp.is_some();
    let status = layer.status.clone().unwrap_or_default();
    // The controller retries a refused run as well.
    let refused = status.conditions.iter().any(|condition| condition.reason == reason::RUN_REFUSED);
    let retries = refused || status.failures.and_then(|failures| failures.retry_at).is_some_and(|at| at.0 > now());
    // A push without a webhook is found at the next poll.
    let knows = world.forge.head().is_none_or(|(_, content)| told(world).is_some_and(|(_, has)| has == *content));
    quiet && !retries && (knows || layer.metadata.deletion_timestamp.is_some())
}

/// Checks the end of a life: the newest relevant commit is planned, or the layer reports why not.
pub(crate) fn judge(world: &mut World, rested: bool) {
    let Some(layer) = world.watcher.layered.layer.clone().filter(|_| rested) else { return };
    let (wanted, status) = (era(&layer), layer.status.clone().unwrap_or_default());
    if wanted.content.is_empty() {
        return;
    }
    if wanted.deleted {
        if status.waits_for.is_none() {
            world.violated("L30", "a deleted layer stays, and does not say why");
        }
        return;
    }
    let layered = &world.watcher.layered;
    let planned = layered.planned().is_some_and(|run| is_of(run, &wanted));
    let newest = layered.made.iter().rev().find(|run| seen(run).is_some_and(|seen| counts(&seen)));
    let ended = newest.is_some_and(|run| is_of(run, &wanted) && seen(run).is_some_and(|seen| seen.is_ended()));
    if !(planned || ended && status.waits_for.is_some()) {
        let of = newest.map(|run| format!("{} of {}", run.name_any(), content(run)));
        world.violated(
            "L30",
            &format!("{} is not planned; the newest run is {of:?}, and the layer says {status:?}", wanted.content),
        );
    }
    let says = crds::conditions::status(&status.conditions, "IsLastRelevantCommitPlanned") == Some(true);
    if says != world.watcher.layered.planned().is_some_and(|run| is_of(run, &wanted)) {
        world.violated("L30", &format!("the layer says of the newest commit that it is planned: {says}, which is not so"));
    }
}
