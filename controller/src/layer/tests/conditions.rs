//! The condition tables of the guide, row by row.

use super::*;
use crate::layer::conditions::{
    APPLY_UP_TO_DATE, COMMIT_PLANNED, PLAN_UP_TO_DATE, READY, RECONCILING, STALLED,
};

/// The conditions Ready, Reconciling and Stalled, with their common reason. At most one of them is true.
enum Health {
    Ready(&'static str),
    Works(&'static str),
    Fails(&'static str),
    Waits(&'static str),
}

impl Health {
    fn conditions(&self) -> [String; 3] {
        let (is, reason) = match self {
            Self::Ready(reason) => ([true, false, false], reason),
            Self::Works(reason) => ([false, true, false], reason),
            Self::Fails(reason) => ([false, false, true], reason),
            Self::Waits(reason) => ([false; 3], reason),
        };
        let other = |is: bool| {
            if is {
                format!("True {reason}")
            } else {
                "False".into()
            }
        };
        let ready = if is[0] { "True" } else { "False" };
        [format!("{ready} {reason}"), other(is[1]), other(is[2])]
    }
}

const NO_PLAN: &str = "False NoPlan";
const RECENT: &str = "True PlanIsRecent";
const PLANNED: &str = "True CommitPlanned";
const NOTHING_APPLIED: &str = "Unknown NoPlan";

/// Name, setup, state, health and the conditions of the plan of a row.
type Row = (
    &'static str,
    fn() -> World,
    LayerState,
    Health,
    [&'static str; 3],
);

fn planned(add: u32) -> World {
    let mut world = World::begun();
    world.waits(add);
    world
}

fn ended(mut world: World, result: RunResult) -> World {
    world.ends(result);
    world
}

fn failed(class: &str) -> World {
    let mut world = World::begun();
    world.begins().fails(class, "PlanFailed");
    world
}

fn drifted() -> World {
    let mut world = World::applied();
    world.later(60 * 27).settle().waits(1);
    world
}

/// Its repository is of another namespace, which does not name the layer's.
fn foreign(world: &mut World) {
    world.change(&json!({"spec": {"repository": {"namespace": "else"}}}));
    world.repository.as_mut().unwrap().metadata.namespace = Some("else".into());
}

fn without(change: fn(&mut World)) -> World {
    let mut world = World::new().commit(1, "a");
    change(&mut world);
    world
}

/// In the order Ready, Reconciling, Stalled, IsPlanArtifactUpToDate, IsLastRelevantCommitPlanned, IsApplyUpToDate.
const TYPES: [&str; 6] = [
    READY,
    RECONCILING,
    STALLED,
    PLAN_UP_TO_DATE,
    COMMIT_PLANNED,
    APPLY_UP_TO_DATE,
];

#[test]
fn every_condition_row_has_its_state_and_conditions() {
    use Health::{Fails, Ready, Waits, Works};
    use LayerState::{ApplyNeeded, Idle, PlanNeeded};
    let rows: Vec<Row> = vec![
        (
            "nobody looked",
            World::new,
            PlanNeeded,
            Works("NoRevision"),
            [NO_PLAN, "Unknown NoRevision", NOTHING_APPLIED],
        ),
        (
            "no repository",
            || without(|world| world.repository = None),
            PlanNeeded,
            Fails("RepositoryNotFound"),
            [NO_PLAN, "Unknown RepositoryNotFound", NOTHING_APPLIED],
        ),
        (
            "not admitted",
            || {
                without(|world| {
                    foreign(world);
                })
            },
            PlanNeeded,
            Fails("RepositoryNotAllowed"),
            [NO_PLAN, "Unknown RepositoryNotAllowed", NOTHING_APPLIED],
        ),
        (
            "no path",
            || {
                without(|world| {
                    _ = world
                        .change(&json!({"status": {"source": {"missing": "no such directory"}}}));
                })
            },
            PlanNeeded,
            Fails("PathNotFound"),
            [NO_PLAN, "Unknown PathNotFound", NOTHING_APPLIED],
        ),
        (
            "another ref than was looked at",
            || without(|world| _ = world.change(&json!({"spec": {"ref": "v2"}}))),
            PlanNeeded,
            Works("NoRevision"),
            [NO_PLAN, "Unknown NoRevision", NOTHING_APPLIED],
        ),
        (
            "settings make no sense",
            || without(|world| _ = world.change(&json!({"spec": {"template": {"stack": 1}}}))),
            PlanNeeded,
            Fails("TemplateInvalid"),
            [NO_PLAN, "Unknown TemplateInvalid", NOTHING_APPLIED],
        ),
        (
            "the state is another's",
            || without(|world| world.owner = Some(("team".into(), "o".into()))),
            PlanNeeded,
            Fails("StateOwned"),
            [NO_PLAN, "Unknown StateOwned", NOTHING_APPLIED],
        ),
        (
            "a run is made",
            || without(|_| ()),
            PlanNeeded,
            Works("Running"),
            [NO_PLAN, "False PlanNeeded", NOTHING_APPLIED],
        ),
        (
            "suspended",
            || without(|world| _ = world.change(&json!({"spec": {"suspend": true}}))),
            PlanNeeded,
            Waits("Suspended"),
            [NO_PLAN, "False PlanNeeded", NOTHING_APPLIED],
        ),
        (
            "refused",
            || {
                without(|world| {
                    let retry_at = world.now + SignedDuration::from_mins(1);
                    world.refused = Some(Refused {
                        run: world.due(),
                        text: "no".into(),
                        retry_at,
                    });
                })
            },
            PlanNeeded,
            Fails("RunRefused"),
            [NO_PLAN, "False PlanNeeded", NOTHING_APPLIED],
        ),
        (
            "a plan waits",
            || planned(1),
            ApplyNeeded,
            Waits("WaitingForApproval"),
            [RECENT, PLANNED, "False NotApplied"],
        ),
        (
            "it was applied",
            World::applied,
            Idle,
            Ready("UpToDate"),
            [RECENT, PLANNED, "True UpToDate"],
        ),
        (
            "it had no changes",
            || ended(planned(0), RunResult::NoChanges),
            Idle,
            Ready("UpToDate"),
            [RECENT, PLANNED, "True UpToDate"],
        ),
        (
            "denied",
            || ended(planned(1), RunResult::Rejected),
            ApplyNeeded,
            Waits("NotApplied"),
            [RECENT, PLANNED, "False NotApplied"],
        ),
        (
            "Dry",
            || {
                let mut world = World::new()
                    .commit(1, "a")
                    .with(&json!({"spec": {"remediation": {"onCommit": "Dry"}}}))
                    .settled();
                world.waits(1);
                ended(world, RunResult::Planned)
            },
            ApplyNeeded,
            Ready("Planned"),
            [RECENT, PLANNED, "False NotApplied"],
        ),
        (
            "failed, and tried again",
            || failed("Transient"),
            PlanNeeded,
            Works("Retrying"),
            [NO_PLAN, "False PlanNeeded", NOTHING_APPLIED],
        ),
        (
            "failed for good",
            || failed("Configuration"),
            PlanNeeded,
            Fails("RunFailed"),
            [NO_PLAN, "False PlanNeeded", NOTHING_APPLIED],
        ),
        (
            "an apply failed",
            || {
                let mut world = planned(1);
                world.fails("Configuration", "ApplyFailed");
                world
            },
            PlanNeeded,
            Fails("RunFailed"),
            [RECENT, PLANNED, "False NotApplied"],
        ),
        (
            "drift waits",
            drifted,
            ApplyNeeded,
            Waits("DriftFound"),
            [RECENT, PLANNED, "False DriftFound"],
        ),
        (
            "drift was denied",
            || ended(drifted(), RunResult::Rejected),
            ApplyNeeded,
            Waits("DriftFound"),
            [RECENT, PLANNED, "False DriftFound"],
        ),
        (
            "drift is not looked for",
            || World::applied().with(&json!({"spec": {"drift": {"suspend": true}}})),
            Idle,
            Ready("UpToDate"),
            ["True DriftSuspended", PLANNED, "True UpToDate"],
        ),
        (
            "the schedule cannot be read",
            || World::applied().with(&json!({"spec": {"drift": {"schedule": "every day"}}})),
            Idle,
            Fails("ScheduleInvalid"),
            ["Unknown ScheduleInvalid", PLANNED, "True UpToDate"],
        ),
        (
            "it is time to look, and nothing may",
            || {
                let mut world = World::applied().with(&json!({"spec": {"suspend": true}}));
                world.later(60 * 27);
                world
            },
            Idle,
            Ready("UpToDate"),
            ["False PlanIsTooOld", PLANNED, "True UpToDate"],
        ),
        (
            "other settings",
            || {
                let mut world =
                    World::applied().with(&json!({"spec": {"template": {"workspace": "w"}}}));
                let decision = world.decide();
                world.act(decision, 1);
                world
            },
            PlanNeeded,
            Works("Running"),
            [RECENT, "False PlanNeeded", "True UpToDate"],
        ),
    ];
    // Burrito 11.9: some states were unreachable.
    let reached: std::collections::BTreeSet<_> = rows
        .iter()
        .map(|(_, _, state, ..)| state.as_str())
        .collect();
    assert_eq!(
        Vec::from_iter(reached),
        ["ApplyNeeded", "Idle", "PlanNeeded"]
    );
    for (row, make, state, health, plan) in rows {
        let wanted = [health.conditions(), plan.map(str::to_owned)].concat();
        let world = make().settled();
        let said: Vec<String> = TYPES
            .iter()
            .map(|type_| match world.condition(type_) {
                (status, reason) if reason == "Progressing" => status,
                (status, reason) => format!("{status} {reason}"),
            })
            .collect();
        assert_eq!(said, wanted, "{row}");
        assert_eq!(world.state(), Some(state), "{row}");
        for condition in world.status().conditions {
            assert!(!condition.message.is_empty(), "{row}: {}", condition.type_);
        }
        // kstatus: Stalled means failed, Reconciling means in progress, and Ready excludes both.
        let is = |type_: &str| world.condition(type_).0 == "True";
        assert!(
            [READY, RECONCILING, STALLED]
                .iter()
                .filter(|type_| is(type_))
                .count()
                <= 1,
            "{row}"
        );
    }
}

/// An author of one namespace must not learn the names of another's repositories.
#[test]
fn foreign_repository_that_is_absent_reads_as_not_allowed() {
    let not_allowed = without(foreign).settled().status();
    let absent = without(|world| {
        foreign(world);
        world.repository = None;
    });
    assert_eq!(absent.settled().status(), not_allowed);
    assert!(not_allowed.waits_for.unwrap().contains("else/infra"));
}
