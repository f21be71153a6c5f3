//! The condition tables of the guide, row by row.

use super::*;
use crate::layer::conditions::{APPLY_UP_TO_DATE, COMMIT_PLANNED, PLAN_UP_TO_DATE, READY, RECONCILING, STALLED};

/// Name, setup, state and conditions of a row.
type Row = (&'static str, fn() -> World, LayerState, [&'static str; 6]);

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

fn without(change: fn(&mut World)) -> World {
    let mut world = World::new().commit(1, "a");
    change(&mut world);
    world
}

/// In the order Ready, Reconciling, Stalled, IsPlanArtifactUpToDate, IsLastRelevantCommitPlanned, IsApplyUpToDate.
const TYPES: [&str; 6] = [READY, RECONCILING, STALLED, PLAN_UP_TO_DATE, COMMIT_PLANNED, APPLY_UP_TO_DATE];

#[test]
fn every_condition_row_has_its_state_and_conditions() {
    use LayerState::{ApplyNeeded, Idle, PlanNeeded};
    let rows: Vec<Row> = vec![
        (
            "nobody looked",
            World::new,
            PlanNeeded,
            ["False NoRevision", "True NoRevision", "False", "False NoPlan", "Unknown NoRevision", "Unknown NoPlan"],
        ),
        (
            "no repository",
            || without(|world| world.repository = None),
            PlanNeeded,
            [
                "False RepositoryNotFound",
                "False",
                "True RepositoryNotFound",
                "False NoPlan",
                "Unknown RepositoryNotFound",
                "Unknown NoPlan",
            ],
        ),
        (
            "not admitted",
            || without(|world| world.repository.as_mut().unwrap().metadata.namespace = Some("else".into())),
            PlanNeeded,
            [
                "False RepositoryNotAllowed",
                "False",
                "True RepositoryNotAllowed",
                "False NoPlan",
                "Unknown RepositoryNotAllowed",
                "Unknown NoPlan",
            ],
        ),
        (
            "no path",
            || without(|world| _ = world.change(&json!({"status": {"source": {"missing": "no such directory"}}}))),
            PlanNeeded,
            ["False PathNotFound", "False", "True PathNotFound", "False NoPlan", "Unknown PathNotFound", "Unknown NoPlan"],
        ),
        (
            "another ref than was looked at",
            || without(|world| _ = world.change(&json!({"spec": {"ref": "v2"}}))),
            PlanNeeded,
            ["False NoRevision", "True NoRevision", "False", "False NoPlan", "Unknown NoRevision", "Unknown NoPlan"],
        ),
        (
            "settings make no sense",
            || without(|world| _ = world.change(&json!({"spec": {"template": {"stack": 1}}}))),
            PlanNeeded,
            [
                "False TemplateInvalid",
                "False",
                "True TemplateInvalid",
                "False NoPlan",
                "Unknown TemplateInvalid",
                "Unknown NoPlan",
            ],
        ),
        (
            "the state is another's",
            || without(|world| world.owner = Some(("team".into(), "o".into()))),
            PlanNeeded,
            ["False StateOwned", "False", "True StateOwned", "False NoPlan", "Unknown StateOwned", "Unknown NoPlan"],
        ),
        (
            "a run is made",
            || without(|_| ()),
            PlanNeeded,
            ["False Running", "True Running", "False", "False NoPlan", "False PlanNeeded", "Unknown NoPlan"],
        ),
        (
            "suspended",
            || without(|world| _ = world.change(&json!({"spec": {"suspend": true}}))),
            PlanNeeded,
            ["False Suspended", "False", "False", "False NoPlan", "False PlanNeeded", "Unknown NoPlan"],
        ),
        (
            "refused",
            || {
                without(|world| {
                    let retry_at = world.now + SignedDuration::from_mins(1);
                    world.refused = Some(Refused { run: world.due(), text: "no".into(), retry_at });
                })
            },
            PlanNeeded,
            ["False RunRefused", "False", "True RunRefused", "False NoPlan", "False PlanNeeded", "Unknown NoPlan"],
        ),
        (
            "a plan waits",
            || planned(1),
            ApplyNeeded,
            ["False WaitingForApproval", "False", "False", "True PlanIsRecent", "True CommitPlanned", "False NotApplied"],
        ),
        (
            "it was applied",
            World::applied,
            Idle,
            ["True UpToDate", "False", "False", "True PlanIsRecent", "True CommitPlanned", "True UpToDate"],
        ),
        (
            "it had no changes",
            || ended(planned(0), RunResult::NoChanges),
            Idle,
            ["True UpToDate", "False", "False", "True PlanIsRecent", "True CommitPlanned", "True UpToDate"],
        ),
        (
            "denied",
            || ended(planned(1), RunResult::Rejected),
            ApplyNeeded,
            ["False NotApplied", "False", "False", "True PlanIsRecent", "True CommitPlanned", "False NotApplied"],
        ),
        (
            "Dry",
            || {
                let mut world =
                    World::new().commit(1, "a").with(&json!({"spec": {"remediation": {"onCommit": "Dry"}}})).settled();
                world.waits(1);
                ended(world, RunResult::Planned)
            },
            ApplyNeeded,
            ["True Planned", "False", "False", "True PlanIsRecent", "True CommitPlanned", "False NotApplied"],
        ),
        (
            "failed, and tried again",
            || failed("Transient"),
            PlanNeeded,
            ["False Retrying", "True Retrying", "False", "False NoPlan", "False PlanNeeded", "Unknown NoPlan"],
        ),
        (
            "failed for good",
            || failed("Configuration"),
            PlanNeeded,
            ["False RunFailed", "False", "True RunFailed", "False NoPlan", "False PlanNeeded", "Unknown NoPlan"],
        ),
        (
            "an apply failed",
            || {
                let mut world = planned(1);
                world.fails("Configuration", "ApplyFailed");
                world
            },
            PlanNeeded,
            ["False RunFailed", "False", "True RunFailed", "True PlanIsRecent", "True CommitPlanned", "False NotApplied"],
        ),
        (
            "drift waits",
            drifted,
            ApplyNeeded,
            ["False DriftFound", "False", "False", "True PlanIsRecent", "True CommitPlanned", "False DriftFound"],
        ),
        (
            "drift was denied",
            || ended(drifted(), RunResult::Rejected),
            ApplyNeeded,
            ["False DriftFound", "False", "False", "True PlanIsRecent", "True CommitPlanned", "False DriftFound"],
        ),
        (
            "drift is not looked for",
            || World::applied().with(&json!({"spec": {"drift": {"suspend": true}}})),
            Idle,
            ["True UpToDate", "False", "False", "True DriftSuspended", "True CommitPlanned", "True UpToDate"],
        ),
        (
            "the schedule cannot be read",
            || World::applied().with(&json!({"spec": {"drift": {"schedule": "every day"}}})),
            Idle,
            [
                "False ScheduleInvalid",
                "False",
                "True ScheduleInvalid",
                "Unknown ScheduleInvalid",
                "True CommitPlanned",
                "True UpToDate",
            ],
        ),
        (
            "it is time to look, and nothing may",
            || {
                let mut world = World::applied().with(&json!({"spec": {"suspend": true}}));
                world.later(60 * 27);
                world
            },
            Idle,
            ["True UpToDate", "False", "False", "False PlanIsTooOld", "True CommitPlanned", "True UpToDate"],
        ),
        (
            "other settings",
            || {
                let mut world = World::applied().with(&json!({"spec": {"template": {"workspace": "w"}}}));
                let decision = world.decide();
                world.act(decision, 1);
                world
            },
            PlanNeeded,
            ["False Running", "True Running", "False", "True PlanIsRecent", "False PlanNeeded", "True UpToDate"],
        ),
    ];
    // Burrito 11.9: some states were unreachable.
    let reached: std::collections::BTreeSet<_> = rows.iter().map(|(_, _, state, _)| state.as_str()).collect();
    assert_eq!(Vec::from_iter(reached), ["ApplyNeeded", "Idle", "PlanNeeded"]);
    for (row, make, state, wanted) in rows {
        let world = make().settled();
        let said: Vec<String> = TYPES
            .iter()
            .map(|type_| match world.condition(type_) {
                (status, reason) if reason == "Progressing" => status,
                (status, reason) => format!("{status} {reason}"),
            })
            .collect();
        assert_eq!(said.as_slice(), &wanted.map(str::to_owned)[..], "{row}");
        assert_eq!(world.state(), Some(state), "{row}");
        for condition in world.status().conditions {
            assert!(!condition.message.is_empty(), "{row}: {}", condition.type_);
        }
        // kstatus: Stalled means failed, Reconciling means in progress, and Ready excludes both.
        let is = |type_: &str| world.condition(type_).0 == "True";
        assert!([READY, RECONCILING, STALLED].iter().filter(|type_| is(type_)).count() <= 1, "{row}");
    }
}
