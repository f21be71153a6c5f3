//! When drift is checked, and how it is reported.

use jiff::Timestamp;

use super::*;
use crate::layer::{conditions::READY, drift::Check};
use crds::DriftDetection;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn due(
    wanted: &Value,
    uid: &str,
    [last, started, now]: [&str; 3],
    stored: Option<&str>,
) -> Result<Option<String>, String> {
    let wanted: DriftDetection = serde_json::from_value(wanted.clone()).unwrap();
    let check = Check {
        wanted: &wanted,
        uid,
        last: at(last),
        started: at(started),
        stored: stored.map(at),
    };
    Ok(check.due(at(now))?.map(|at| at.to_string()))
}

fn interval(hours: &str) -> Value {
    json!({"interval": hours})
}

#[test]
fn interval_has_a_stable_jitter_of_a_tenth() {
    let last = "2026-11-24T00:00:00Z";
    let mut seen = std::collections::BTreeSet::new();
    for layer in 0..500 {
        let next = due(
            &interval("10h"),
            &format!("uid-{layer}"),
            [last, last, last],
            None,
        )
        .unwrap()
        .unwrap();
        assert!(
            ("2026-11-24T09:00:00Z"..="2026-11-24T11:00:00Z").contains(&next.as_str()),
            "{next}"
        );
        assert_eq!(
            due(
                &interval("10h"),
                &format!("uid-{layer}"),
                [last, last, last],
                None
            )
            .unwrap()
            .unwrap(),
            next
        );
        seen.insert(next);
    }
    assert!(seen.len() > 150, "{}", seen.len());
}

#[test]
fn cron_schedule_is_in_its_time_zone() {
    let times = ["2026-11-24T12:00:00Z"; 3];
    let cron =
        |zone: Value| json!({"interval": "24h", "schedule": "30 3 * * 1-5", "timeZone": zone});
    assert_eq!(
        due(&cron(Value::Null), "u", times, None).unwrap().unwrap(),
        "2026-11-25T03:30:00Z"
    );
    assert_eq!(
        due(&cron("Europe/Paris".into()), "u", times, None)
            .unwrap()
            .unwrap(),
        "2026-11-25T02:30:00Z"
    );
    assert_eq!(
        due(&cron("America/New_York".into()), "u", times, None)
            .unwrap()
            .unwrap(),
        "2026-11-25T08:30:00Z"
    );
    let friday = ["2026-11-27T12:00:00Z"; 3];
    assert_eq!(
        due(&cron(Value::Null), "u", friday, None).unwrap().unwrap(),
        "2026-11-30T03:30:00Z",
        "over the weekend"
    );
    // Clocks go forward this night, so 02:30 does not exist.
    let spring = json!({"interval": "24h", "schedule": "30 2 * * *", "timeZone": "Europe/Paris"});
    let next = due(&spring, "u", ["2026-03-28T12:00:00Z"; 3], None)
        .unwrap()
        .unwrap();
    assert!(
        ("2026-03-29T00:30:00Z"..="2026-03-30T00:30:00Z").contains(&next.as_str()),
        "{next}"
    );
}

#[test]
fn missed_checks_become_one_spread_over_layers() {
    let missed = [
        "2026-11-20T00:00:00Z",
        "2026-11-24T12:00:00Z",
        "2026-11-24T12:00:05Z",
    ];
    let all: std::collections::BTreeSet<_> = (0..500)
        .map(|layer| {
            due(&interval("10h"), &format!("uid-{layer}"), missed, None)
                .unwrap()
                .unwrap()
        })
        .collect();
    assert!(
        all.iter()
            .all(|next| ("2026-11-24T12:00:00Z"..="2026-11-24T13:00:00Z").contains(&next.as_str())),
        "{all:?}"
    );
    assert!(all.len() > 400);
    let cron = json!({"interval": "24h", "schedule": "0 3 * * *"});
    let next = due(&cron, "u", missed, None).unwrap().unwrap();
    assert!(
        ("2026-11-24T12:00:00Z"..="2026-11-24T12:10:00Z").contains(&next.as_str()),
        "{next}"
    );
}

#[test]
fn restart_does_not_postpone_a_check_again() {
    let stored = Some("2026-11-24T12:40:00Z");
    let again = [
        "2026-11-20T00:00:00Z",
        "2026-11-24T12:30:00Z",
        "2026-11-24T12:30:05Z",
    ];
    assert_eq!(
        due(&interval("10h"), "u", again, stored)
            .unwrap()
            .as_deref(),
        stored
    );
    let later = [
        "2026-11-20T00:00:00Z",
        "2026-11-24T12:50:00Z",
        "2026-11-24T12:50:05Z",
    ];
    assert_eq!(
        due(&interval("10h"), "u", later, stored)
            .unwrap()
            .as_deref(),
        stored,
        "it is due"
    );
    let far = Some("2026-11-25T12:00:00Z");
    let shorter = [
        "2026-11-24T00:00:00Z",
        "2026-11-24T12:50:00Z",
        "2026-11-24T12:50:05Z",
    ];
    assert!(
        due(&interval("1h"), "u", shorter, far).unwrap().as_deref() < far,
        "of a longer interval"
    );
}

#[test]
fn suspended_drift_detection_is_never_due() {
    assert_eq!(
        due(
            &json!({"interval": "1h", "suspend": true}),
            "u",
            ["2026-11-24T12:00:00Z"; 3],
            None
        ),
        Ok(None)
    );
}

#[test]
fn invalid_schedule_is_reported_and_commits_are_planned() {
    for wrong in [
        json!({"schedule": "every day", "interval": "24h"}),
        json!({"schedule": "0 3 * * *", "timeZone": "Mars/Base", "interval": "24h"}),
    ] {
        let mut world = World::new()
            .commit(1, "a")
            .with(&json!({"spec": {"drift": wrong}}))
            .settled();
        world.ends(RunResult::Applied).settle();
        assert_eq!(
            (world.made.len(), world.condition(READY)),
            (1, ("False".into(), "ScheduleInvalid".into())),
            "{wrong}"
        );
    }
}

#[test]
fn drift_is_reported_until_it_is_applied() {
    let mut world = World::applied();
    let next = world.status().next_drift_check.unwrap().0;
    assert!(
        (t0() + SignedDuration::from_hours(21)..t0() + SignedDuration::from_hours(27))
            .contains(&next)
    );
    world.now = next - SignedDuration::from_mins(1);
    world.settle();
    assert_eq!(world.made.len(), 1);
    world.later(1).settle();
    assert_eq!(
        (world.trigger().as_str(), world.condition(READY).1.as_str()),
        ("Drift", "UpToDate"),
        "a look is no change of health"
    );
    world.planned();
    let drift = world.status().drift.unwrap();
    assert_eq!(drift.run, world.open_name());
    assert_eq!(drift.since.0, crds::whole_seconds(world.now).0);
    assert_eq!(
        drift.objects,
        [
            "! aws_vpc.main (changed outside of the code: tags)",
            "~ aws_vpc.main"
        ]
    );
    assert_eq!(
        world.condition(READY),
        ("False".into(), "DriftFound".into())
    );
    world.later(60 * 24 * 3).settle();
    assert_eq!(world.made.len(), 2, "while a plan waits nobody looks");
    world.ends(RunResult::Applied).settle();
    assert_eq!(world.status().drift, None);
    assert_eq!(world.state(), Some(LayerState::Idle));
}

#[test]
fn denied_drift_is_reported_until_a_check_finds_none() {
    let mut world = World::applied();
    world.later(60 * 27).settle().planned();
    let since = world.status().drift.unwrap().since;
    world.ends(RunResult::Rejected).settle();
    assert_eq!(world.status().drift.unwrap().since, since);
    world.later(60 * 27).settle().planned();
    let drift = world.status().drift.unwrap();
    assert_eq!((drift.since, drift.run), (since, world.open_name()));
    world.ends(RunResult::Rejected).later(60 * 27).settle();
    world.begins().ends(RunResult::NoChanges).settle();
    assert_eq!(world.status().drift, None);
}

#[test]
fn plan_of_new_code_reports_no_drift() {
    let mut world = World::applied();
    world.pushed(2, "b").settle().planned();
    assert_eq!(world.status().drift, None);
}

#[test]
fn drift_check_uses_the_planned_commit() {
    let mut world = World::applied();
    world.pushed(9, "a").later(60 * 27).settle();
    assert_eq!(revision(world.open().unwrap()), sha(1));
}

#[test]
fn failed_drift_check_waits_for_the_next_interval() {
    let mut world = World::applied();
    world.later(60 * 27).settle();
    world.begins().fails("Configuration", "SecretNotFound");
    world.settle();
    world.later(60 * 20).settle();
    assert_eq!(world.made.len(), 2);
    world.later(60 * 7).settle();
    assert_eq!((world.made.len(), world.trigger().as_str()), (3, "Drift"));
}

#[test]
fn on_drift_sets_operation_and_approval_of_the_run() {
    for (word, operation, mode) in [
        ("Dry", crds::Operation::Plan, crds::ApprovalMode::Manual),
        ("Manual", crds::Operation::Apply, crds::ApprovalMode::Manual),
        (
            "Automatic",
            crds::Operation::Apply,
            crds::ApprovalMode::Automatic,
        ),
    ] {
        let mut world = World::applied().with(&json!({"spec": {"remediation": {"onDrift": word}}}));
        world.later(60 * 27).settle();
        let spec = &world.open().unwrap().spec;
        assert_eq!(spec.operation, operation, "{word}");
        assert_eq!(spec.approval.mode, mode, "{word}");
    }
}

/// The agent compares its changes with these, and ends without an apply where only outputs differ.
#[test]
fn drift_run_names_the_changes_applied_last() {
    let applied = |world: &World| {
        let annotations = world.open().unwrap().metadata.annotations.clone();
        annotations.unwrap_or_default().get(names::APPLIED).cloned()
    };
    let mut world = World::new().commit(1, "a").settled();
    assert_eq!(applied(&world), None, "a commit is no drift");
    world.waits(1);
    let digest = json!({"status": {"plan": {"changesDigest": "0011223344556677"}}});
    let run = world.open_name();
    world.merge_run(&run, &digest);
    world.ends(RunResult::Applied).settle();
    assert_eq!(
        world.status().last_apply.unwrap().changes.as_deref(),
        Some("0011223344556677")
    );
    world.later(60 * 27).settle();
    assert_eq!(applied(&world).as_deref(), Some("0011223344556677"));
    world.begins().ends(RunResult::NoChanges).settle();
    world.later(60 * 27).settle();
    assert_eq!(
        applied(&world).as_deref(),
        Some("none"),
        "they were gone in between"
    );
}
