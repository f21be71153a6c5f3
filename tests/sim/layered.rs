//! Checks of a layer's runs at every step and at the end. The numbers are those of `design/invariants.md`.

use std::{collections::BTreeMap, sync::Arc};

use controller::layer::{RunSummary, SUPERSEDED, Stage};
use crds::{
    DeletionPolicy, LayerSource, Operation, TerraformLayer, TerraformRepository, TerraformRun,
    Trigger, names, reason,
};
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
        let from = self
            .eras
            .partition_point(|(at, _)| *at <= since)
            .saturating_sub(1);
        self.eras.iter().skip(from).map(|(_, era)| era)
    }

    /// The newest run that has a plan, including denied and expired ones.
    fn planned(&self) -> Option<&TerraformRun> {
        self.newest(|seen| counts(seen) && seen.has_planned())
    }

    /// The newest run for which `is` holds.
    fn newest(&self, is: impl Fn(&RunSummary) -> bool) -> Option<&TerraformRun> {
        self.made
            .iter()
            .rev()
            .find(|run| seen(run).is_some_and(|seen| is(&seen)))
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

fn source(layer: &TerraformLayer) -> Option<&LayerSource> {
    layer.status.as_ref()?.source.as_ref()
}

fn era(layer: &TerraformLayer) -> Era {
    let timeouts = layer
        .spec
        .template
        .0
        .get("timeouts")
        .cloned()
        .unwrap_or_default();
    let timeouts: crds::Timeouts = serde_json::from_value(timeouts).unwrap();
    Era {
        content: source(layer)
            .map(|source| source.content.clone())
            .unwrap_or_default(),
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
        let (state, waits) = (status.state, status.waits_for);
        let content: String = era(&layer).content.chars().skip(7).take(1).collect();
        let gone = if change.deleted { "GONE " } else { "" };
        let version = change.version;
        world.note(&format!(
            "   layer {gone}@{version} {state:?} of {content:?}, waits for {waits:?}"
        ));
    }
    let told = source(&layer).map(|source| &source.revision);
    if let Some(revision) = told.filter(|revision| !world.forge.has_snapshot(revision)) {
        world.violated(
            "S89",
            &format!("a layer is told of {revision} without a snapshot"),
        );
    }
    let (layered, era) = (&mut world.watcher.layered, era(&layer));
    if layered.eras.last().is_none_or(|(_, last)| *last != era) {
        layered.eras.push((millis(), era));
    }
    layered.gone = change.deleted;
    layered.layer = (!change.deleted).then(|| Arc::new(layer));
    if change.deleted {
        world.came_to("layer: gone");
    }
}

/// Number and content of the commit that the layer has to plan.
fn told(world: &World) -> Option<(usize, u8)> {
    let layer = world.watcher.layered.layer.as_ref()?;
    world.forge.commit(&source(layer)?.revision)
}

/// Checks a written repository: all layers must know the commit in its status.
pub(crate) fn followed(world: &mut World, change: &Change) {
    let repository = TerraformRepository::deserialize(&*change.object).unwrap();
    let refs = repository
        .status
        .map(|status| status.refs)
        .unwrap_or_default();
    let is_at = refs
        .first()
        .and_then(|known| world.forge.commit(&known.commit.as_ref()?.revision));
    let (Some((number, content)), true) = (is_at, world.watcher.layered.layer.is_some()) else {
        return;
    };
    let told = told(world);
    // The layer may already know a later one.
    if told.is_none_or(|(of, has)| of <= number && has != content) {
        let text = format!("commit {number} is said to be known, and the layer is told {told:?}");
        world.violated("S89", &text);
    }
}

pub(crate) fn run(world: &mut World, before: Option<&TerraformRun>, after: &TerraformRun) {
    let Some(is) = seen(after) else { return };
    match before.map(seen) {
        None => made(world, after, &is),
        Some(Some(was)) if is.superseded && !was.superseded => taken_back(world, after, &was),
        Some(_) => {}
    }
    let layered = &mut world.watcher.layered;
    match layered
        .made
        .iter_mut()
        .find(|run| run.metadata.uid == after.metadata.uid)
    {
        Some(there) => *there = after.clone(),
        None => layered.made.push(after.clone()),
    }
}

fn made(world: &mut World, run: &TerraformRun, is: &RunSummary) {
    let (name, slack) = (run.name_any(), slack(&world.schedule));
    let mut wrong = Vec::new();
    let frozen = world.store.get(&Key::of(NAMESPACES, "", NS)).is_ok();
    let layered = &mut world.watcher.layered;
    if layered.since.insert(name.clone(), millis()).is_some() {
        wrong.push(("S82", "a second time"));
    }
    let open = layered
        .made
        .iter()
        .filter_map(seen)
        .filter(|other| !other.is_ended());
    for other in open.filter(|other| world.runs.contains_key(&*other.name)) {
        wrong.push(
            if is.trigger == Trigger::Drift && other.stage == Stage::Waiting {
                ("S85", "for drift while another plan waits")
            } else {
                ("S82", "while another is under way")
            },
        );
    }
    let same = |planned: &TerraformRun| {
        content(planned) == content(run) && settings(planned) == settings(run)
    };
    if is.trigger == Trigger::Commit && layered.planned().is_some_and(same) {
        wrong.push(("S82", "of a commit that is planned"));
    }
    let since = millis().saturating_sub(slack);
    if layered.since(since).all(|era| era.suspended) {
        wrong.push(("S86", "while its layer is suspended"));
    }
    if frozen && layered.frozen_since.is_some_and(|at| at < since) {
        wrong.push(("S86", "while its namespace is frozen"));
    }
    let destroys = is.operation == Operation::Destroy || is.trigger == Trigger::Deletion;
    if destroys && !layered.since(since).any(|era| era.destroys && era.deleted) {
        wrong.push(("S87", "to destroy what is to stay"));
    }
    if is.trigger == Trigger::Drift {
        let interval = |layer: &Arc<TerraformLayer>| layer.spec.drift.interval.0.as_secs();
        let interval = layered.layer.as_ref().map_or(0, interval);
        let made = layered.made.iter().filter_map(seen).filter(counts);
        let least = jiff::SignedDuration::from_millis(i64::try_from(interval * 850).unwrap());
        if made
            .map(|run| run.at())
            .max()
            .is_some_and(|last| now() < last + least)
        {
            wrong.push(("S85", "for drift before its time"));
        }
    }
    for (invariant, text) in wrong {
        world.violated(invariant, &format!("{name} is made {text}"));
    }
    world.came_to(match is.trigger {
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
    world.came_to("layer: superseded");
    let since = millis().saturating_sub(slack(&world.schedule));
    let eras: Vec<&Era> = world.watcher.layered.since(since).collect();
    let deleted = eras.iter().any(|era| era.deleted);
    let newer = eras.iter().any(|era| !is_of(run, era));
    let may = if deleted {
        was.may_be_taken_back()
    } else {
        was.may_be_superseded() && newer
    };
    if !may {
        let why = run
            .annotations()
            .get(names::CANCEL)
            .map_or("", String::as_str);
        let (name, stage, why) = (&was.name, was.stage, why.trim_start_matches(SUPERSEDED));
        let text = format!(
            "{name} is {stage:?}, other content is wanted: {newer}, and was withdrawn: {why}"
        );
        world.violated("S84", &text);
    }
}

/// Checks the start of an apply.
pub(crate) fn applies(world: &mut World, name: &str) {
    let Some(run) = world.run(name).filter(|run| seen(run).is_some()) else {
        return;
    };
    let planned = run.status.as_ref().and_then(|status| status.plan.as_ref());
    if planned.is_none_or(|plan| plan.counts.operations() == 0) {
        world.violated("S83", &format!("{name} applies a plan without changes"));
    }
    let source = run.spec.source.repository.as_ref();
    let commit = source.and_then(|source| world.forge.commit(&source.revision));
    let (number, newest) = (
        commit.map_or(0, |(number, _)| number),
        world.watcher.layered.applied,
    );
    if run.spec.operation != Operation::Destroy && number < newest {
        world.violated(
            "S88",
            &format!("{name} applies commit {number} after {newest}"),
        );
    }
    world.watcher.layered.applied = number.max(newest);
    world.ground.applied = "partly".into();
}

/// Records a completed apply.
pub(crate) fn applied(world: &mut World, run: &str) {
    let Some(run) = world.run(run).filter(|run| seen(run).is_some()) else {
        return;
    };
    let destroyed = run.spec.operation == Operation::Destroy;
    world.ground.applied = if destroyed {
        String::new()
    } else {
        content(&run).to_owned()
    };
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
    let Some(layer) = &world.watcher.layered.layer else {
        return world.watcher.layered.gone;
    };
    let quiet = layer.spec.drift.suspend || layer.metadata.deletion_timestamp.is_some();
    let status = layer.status.clone().unwrap_or_default();
    // The controller retries a refused run as well.
    let refused = status
        .conditions
        .iter()
        .any(|condition| condition.reason == reason::RUN_REFUSED);
    let retry = status.failures.and_then(|failures| failures.retry_at);
    let retries = refused || retry.is_some_and(|at| at.0 > now());
    // A push without a webhook is found at the next poll.
    let head = world.forge.head().map(|(_, content)| *content);
    let knows = head.is_none() || told(world).map(|(_, content)| content) == head;
    quiet && !retries && (knows || layer.metadata.deletion_timestamp.is_some())
}

/// Checks the end of a life: the newest relevant commit is planned, or the layer reports why not.
pub(crate) fn judge(world: &mut World, rested: bool) {
    let Some(layer) = world.watcher.layered.layer.clone().filter(|_| rested) else {
        return;
    };
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
    let newest = layered.newest(counts);
    let has_ended = |run: &&TerraformRun| seen(run).is_some_and(|seen| seen.is_ended());
    let ended = newest
        .filter(has_ended)
        .is_some_and(|run| is_of(run, &wanted));
    let of = newest.map(|run| format!("{} of {}", run.name_any(), content(run)));
    if !(planned || ended && status.waits_for.is_some()) {
        let text = format!(
            "{} is not planned; the newest run is {of:?}, and the layer says {status:?}",
            wanted.content
        );
        world.violated("L30", &text);
    }
    let says = crds::conditions::status(&status.conditions, "IsLastRelevantCommitPlanned");
    if (says == Some(true)) != planned {
        world.violated(
            "L30",
            &format!("the layer says that its newest commit is planned: {says:?}"),
        );
    }
}
