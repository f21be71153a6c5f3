//! Lives of a layer: commits, settings, people and the clock trigger its runs. The real reconcilers create and execute them.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use crds::{Operation, Phase, TerraformRun, names};
use kube::ResourceExt;
use libtest_mimic::Failed;
use played::store::{Key, LAYERS, RUNS};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    came_to, conclude, number,
    person::{EXPIRES_AFTER, FIRST, alice},
    schedule::{Chance, Fault, Scene, Schedule, Strike, watches},
    search,
    sources::{REPOSITORY, URL, push},
    world::{NS, Shared, World, millis},
};

pub(crate) const REPOSITORIES: &str = "terraformrepositories";
/// The longest life of a layer, in seconds.
pub(crate) const LONGEST: u64 = 9_000;
/// Drift detection is suspended this many seconds after the last event.
const QUIET_AFTER: u64 = 900;
/// Default number of random schedules: one for this many schedules of runs.
const SHARE: u64 = 32;
/// Faults tried at each request of the layer controller and of the sources process. A crash before a request equals a crash after the
/// previous one.
const DEATHS: [Fault; 2] = [Fault::CrashAfter, Fault::ReplyLost];
/// Endings that some random schedules must reach.
const ENDINGS: [&str; 13] = [
    "Applied",
    "Destroyed",
    "NoChanges",
    "Planned",
    "Rejected",
    "Expired",
    "layer: superseded",
    "layer: Commit",
    "layer: Drift",
    "layer: Retry",
    "layer: Person",
    "layer: Deletion",
    "layer: gone",
];

/// A person's answer to a waiting plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Approve,
    Deny,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Happening {
    /// A commit with this content. If the content is unchanged, it is not relevant.
    Commit(u8),
    /// The same without a webhook: the next poll finds it.
    Untold(u8),
    Settings(u8),
    /// The layer is suspended, or resumed.
    Suspend(bool),
    /// The infrastructure changes outside of the code.
    Drift,
    /// A person requests a plan.
    Ask,
    /// Deletion no longer destroys.
    Orphan,
    Delete,
}

/// A layer, and its events by seconds.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LayerScene {
    /// `remediation.onCommit`, `.onDrift` and `.onDelete`, by their first letters.
    pub remediation: [char; 3],
    /// Deletion destroys.
    pub destroys: bool,
    /// Minutes between drift checks.
    pub interval: u8,
    /// Answers to waiting plans, used in turn.
    pub answers: Vec<Answer>,
    pub happens: Vec<(u16, Happening)>,
}

/// The real infrastructure of a layer's stack.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ground {
    /// The content that was applied. Empty before the first apply.
    pub applied: String,
    pub drifted: bool,
}

/// The source content for which a run was made.
pub(crate) fn content(run: &TerraformRun) -> &str {
    run.annotations()
        .get(names::CONTENT)
        .map_or("", String::as_str)
}

impl Ground {
    /// Whether a plan of the run has changes.
    pub(crate) fn differs(&self, run: &TerraformRun) -> bool {
        match run.spec.operation {
            Operation::Destroy => !self.applied.is_empty(),
            _ => self.drifted || self.applied != content(run),
        }
    }
}

/// Whether a boundary belongs to the layer controller or to the sources process.
pub(crate) fn is_of_layers(what: &str) -> bool {
    let of_sources = ["git: ", "datastore: snapshots "]
        .iter()
        .any(|start| what.starts_with(start))
        || what.contains(" terraformrepositories/");
    of_sources
        || what.contains(" terraformlayers/")
        || what == "POST terraformruns/"
        || what.starts_with("DELETE terraformruns/")
}

fn timeouts(settings: u8) -> Value {
    json!({"start": "60s", "setup": "60s", "init": "60s", "plan": "120s", "apply": format!("{}s", 90 + settings)})
}

fn layer(scene: &Scene, of: &LayerScene) -> Value {
    let word = |letter: char| match letter {
        'A' => "Automatic",
        'D' => "Dry",
        _ => "Manual",
    };
    let [commit, drift, delete] = of.remediation;
    let template = json!({"stack": "net", "timeouts": timeouts(0), "retry": {"limit": 2},
        "approval": {"holdFor": format!("{}s", scene.hold), "expiresAfter": format!("{EXPIRES_AFTER}s")}});
    json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformLayer", "metadata": {"name": FIRST}, "spec": {
        "repository": {"name": REPOSITORY}, "path": "net", "template": template, "runHistory": 3,
        "deletionPolicy": if of.destroys { "Destroy" } else { "Orphan" },
        "remediation": {"onCommit": word(commit), "onDrift": word(drift), "onDelete": word(delete)},
        "drift": {"interval": format!("{}m", of.interval.max(1))}}})
}

/// Changes the layer as a person.
fn edit(world: &mut World, patch: Value) {
    if let Err(refusal) = world.merge(&alice(), &Key::of(LAYERS, NS, FIRST), patch) {
        world.note(&format!("   refused: {}", refusal.message));
    }
}

fn happen(world: &mut World, happening: Happening) {
    world.note(&format!("   it happens: {happening:?}"));
    let patch = match happening {
        Happening::Commit(content) => return push(world, content, true),
        Happening::Untold(content) => return push(world, content, false),
        Happening::Drift => {
            world.ground.drifted = true;
            return;
        }
        Happening::Delete => return drop(world.delete(&Key::of(LAYERS, NS, FIRST), None)),
        Happening::Settings(settings) => {
            json!({"spec": {"template": {"timeouts": timeouts(settings)}}})
        }
        Happening::Suspend(suspend) => json!({"spec": {"suspend": suspend}}),
        Happening::Ask => json!({"metadata": {"annotations": {names::PLAN: "now"}}}),
        Happening::Orphan => json!({"spec": {"deletionPolicy": "Orphan"}}),
    };
    edit(world, patch);
}

/// Creates a layer and its repository, and plays the events. At the end, suspends drift detection and resumes the layer.
pub(crate) async fn live(shared: Shared) {
    let scene = shared.lock().schedule.scene.clone();
    let Some(of) = scene.layer.clone() else {
        return;
    };
    shared.act(|world| {
        let spec = json!({"url": URL, "interval": "3m"});
        let repository = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRepository",
            "metadata": {"name": REPOSITORY}, "spec": spec});
        world.create(&alice(), REPOSITORIES, repository).unwrap();
        world.create(&alice(), LAYERS, layer(&scene, &of)).unwrap();
    });
    let mut last = 0;
    for (at, happening) in &of.happens {
        last = u64::from(*at) * 1000;
        sleep(Duration::from_millis(last.saturating_sub(millis()))).await;
        shared.act(|world| happen(world, *happening));
    }
    let quiet = last + QUIET_AFTER * 1000;
    sleep(Duration::from_millis(quiet.saturating_sub(millis()))).await;
    let spec = json!({"suspend": false, "drift": {"suspend": true}});
    shared.act(|world| edit(world, json!({"spec": spec})));
}

/// Answers each waiting plan once, as a person.
pub(crate) async fn answer(shared: Shared) {
    let (changes, scene) = (shared.changes(), shared.lock().schedule.scene.clone());
    let answers = scene.layer.unwrap_or_default().answers;
    let mut seen = BTreeSet::new();
    loop {
        let version = changes.now();
        let waits: Vec<(String, String)> = {
            let world = shared.lock();
            let waits = world.runs.values().filter_map(|run| {
                let status = run.status.as_ref()?;
                let waits = status.phase == Some(Phase::AwaitingApproval);
                let plan = status.plan.as_ref().filter(|_| waits)?;
                Some((run.name_any(), plan.checksum.clone()))
            });
            waits.filter(|wait| !seen.contains(wait)).collect()
        };
        for (run, checksum) in waits {
            let answer = answers.get(seen.len() % answers.len().max(1));
            let answer = answer.copied().unwrap_or(Answer::None);
            seen.insert((run.clone(), checksum.clone()));
            shared.pause(1_500).await;
            let annotations = match answer {
                Answer::Approve => json!({names::APPROVE: checksum, names::APPROVED_BY: "alice"}),
                Answer::Deny => json!({names::DENY: "too much"}),
                Answer::None => continue,
            };
            shared.act(|world| {
                let said = world.annotate(&alice(), &Key::of(RUNS, NS, &run), &annotations);
                world.note(&format!("   alice: {answer:?} {run} {said:?}"));
            });
        }
        changes.after(version).await;
    }
}

/// The garbage collector: deletes the objects of a deleted layer.
pub(crate) async fn collect(shared: Shared) {
    let changes = shared.changes();
    loop {
        changes.after(changes.now()).await;
        shared.act(|world| {
            if world.store.get(&Key::of(LAYERS, NS, FIRST)).is_ok()
                || !world.watcher.layered.is_gone()
            {
                return;
            }
            for run in world.runs.values().cloned().collect::<Vec<_>>() {
                if !run.owner_references().is_empty() && run.metadata.deletion_timestamp.is_none() {
                    let _ = world.delete(&Key::of(RUNS, NS, &run.name_any()), None);
                }
            }
        });
    }
}

pub(crate) fn drawn(seed: u64) -> Schedule {
    let mut c = Chance(seed ^ 0x001a_4e45);
    let letters = |c: &mut Chance| c.pick(&['M', 'M', 'A', 'A', 'D']);
    let (mut at, mut happens) = (c.pick(&[0, 1, 5]), vec![]);
    happens.push((at, Happening::Commit(0)));
    for _ in 0..c.pick(&[1, 2, 4, 6, 8]) {
        at += c.pick(&[0, 1, 2, 4, 9, 30, 120, 400]);
        let happening = match c.below(14) {
            0..=4 => Happening::Commit(c.pick(&[0, 1, 2])),
            5 => Happening::Untold(c.pick(&[0, 1, 2])),
            6 => Happening::Settings(c.pick(&[0, 1, 2])),
            7 | 8 => Happening::Suspend(c.one_in(2)),
            9 | 10 => Happening::Drift,
            11 => Happening::Ask,
            12 => Happening::Orphan,
            _ => Happening::Delete,
        };
        happens.push((at, happening));
    }
    let answers = (0..c.pick(&[1, 2, 3]))
        .map(|_| c.pick(&[Answer::Approve, Answer::Approve, Answer::Deny, Answer::None]))
        .collect();
    let layer = LayerScene {
        remediation: [letters(&mut c), letters(&mut c), letters(&mut c)],
        destroys: c.one_in(2),
        interval: c.pick(&[2, 3, 8]),
        answers,
        happens,
    };
    let slots = c.pick(&[0, 0, 1]);
    let scene = Scene {
        datastore: !c.one_in(5),
        hold: c.pick(&[0, 5, 30]),
        fails: c.one_in(10),
        flaky: if c.one_in(4) { c.pick(&[1, 4, 8]) } else { 0 },
        objects: c.pick(&[1, 3]),
        two: c.one_in(4),
        slots,
        layer: Some(layer),
        ..Scene::default()
    };
    let faults = (0..c.pick(&[0, 1, 2, 4, 8])).map(|_| {
        let fault = c.pick(&search::SINGLE);
        (c.number(400), fault)
    });
    let faults = faults.collect();
    let strikes = (0..c.pick(&[0, 0, 1, 2])).map(|_| {
        let strike = match c.below(9) {
            0 | 1 => Strike::KillController(0),
            8 => Strike::KillSources,
            2 => Strike::Lag(c.pick(&[1, 8, 30]), c.pick(&[20, 120])),
            3 => Strike::LagOf(c.pick(&[0, 1]), c.pick(&[8, 30]), 200),
            4 => Strike::Kill,
            5 => Strike::Freeze(c.pick(&[2, 20, 120])),
            6 => Strike::DatastoreAway(c.pick(&[3, 90])),
            _ => Strike::ApiAway(c.pick(&[2, 15, 70])),
        };
        let latest = c.clone().pick(&[4_000, 20_000, 600_000]);
        (c.number(latest), strike)
    });
    let mut strikes: Vec<_> = strikes.collect();
    strikes.extend(watches(
        &mut Chance(seed ^ 0x3a7c),
        scene.two,
        &[4_000, 20_000, 600_000],
    ));
    Schedule {
        seed,
        scene,
        person: vec![],
        faults,
        strikes,
    }
}

/// Plays random lives.
pub(crate) fn random() -> Result<(), Failed> {
    let begun = Instant::now();
    let count = number("PAWL_SIM_SCHEDULES", crate::SCHEDULES) / SHARE;
    let first = number("PAWL_SIM_SEED", 1);
    let found = search::all(|i| (i < count).then(|| drawn(first + i)));
    conclude("layers in random schedules", begun, &found)?;
    if count >= crate::SCHEDULES / SHARE {
        came_to(&found, &ENDINGS)
    } else {
        Ok(())
    }
}

/// Plays every crash and every lost reply at every request of the layer controller and of the sources process, in a life with commits, one
/// superseded commit, drift and a deletion.
pub(crate) fn singles() -> Result<(), Failed> {
    use Happening::{Ask, Commit, Delete, Drift, Orphan, Untold};
    let begun = Instant::now();
    let scenes = [
        (
            ['A', 'A', 'A'],
            vec![
                (0, Commit(0)),
                (2, Commit(1)),
                (60, Drift),
                (300, Ask),
                (330, Delete),
            ],
        ),
        (
            ['M', 'M', 'M'],
            vec![
                (0, Commit(0)),
                (10, Commit(0)),
                (20, Untold(1)),
                (25, Commit(0)),
                (26, Untold(1)),
            ],
        ),
        (
            ['A', 'A', 'A'],
            vec![(0, Commit(0)), (60, Orphan), (60, Delete)],
        ),
    ];
    let mut all = Vec::new();
    for (remediation, happens) in scenes {
        let layer = LayerScene {
            remediation,
            destroys: true,
            interval: 2,
            answers: vec![Answer::None, Answer::Approve],
            happens,
        };
        let schedule = Schedule::of(5).with(|s| (s.layer, s.objects) = (Some(layer), 1));
        let report = search::played(&schedule, false);
        for at in &report.of_layers {
            all.extend(DEATHS.iter().map(|fault| schedule.fault(*at, *fault)));
        }
        all.push(schedule);
    }
    let found = search::all(|i| all.get(usize::try_from(i).unwrap()).cloned());
    conclude("every write of the layer controller", begun, &found)?;
    came_to(
        &found,
        &[
            "Applied",
            "Destroyed",
            "NoChanges",
            "layer: superseded",
            "layer: Drift",
            "layer: Person",
            "layer: gone",
        ],
    )
}

/// How long after a state ended a process may still act on it, in milliseconds: requests and watches lag.
pub(crate) fn slack(schedule: &Schedule) -> u64 {
    let faults = schedule.faults.iter().map(|(_, fault)| match fault {
        Fault::Late(seconds) | Fault::Slow(seconds) => u64::from(*seconds),
        _ => 0,
    });
    let strikes = schedule.strikes.iter().map(|(_, strike)| match strike {
        Strike::Lag(late, _)
        | Strike::LagOf(_, late, _)
        | Strike::ApiAway(late)
        | Strike::Relist(_, _, late) => u64::from(*late),
        _ => 0,
    });
    (faults.chain(strikes).sum::<u64>() + 8) * 1000
}
