//! Accounts of the objects of an apply whose agent cannot give one.

use super::*;

fn with_datastore() -> World {
    let mut world = World::automatic();
    world.settings.datastore_url = Some("https://datastore".into());
    world.claimed()
}

fn forgotten() -> crds::Journal {
    crds::Journal {
        summary: "1 created and not recorded; no state".into(),
        compared: true,
        not_recorded: vec!["aws_vpc.main id=vpc-1".into()],
        ..crds::Journal::default()
    }
}

fn recover() -> String {
    names::recover_command("team", "net")
}

#[test]
fn indeterminate_run_reports_its_journal_and_recovery() {
    let mut world = with_datastore().pod_ended(None);
    world.journal = Some(forgotten());
    world.settle();
    assert_eq!(world.status().result, Some(RunResult::Indeterminate));
    assert_eq!(world.status().journal, Some(forgotten()));
    assert_eq!(world.status().next_step.as_deref(), Some(recover().as_str()));
    assert!(world.status().history.iter().any(|line| line.contains("1 created and not recorded")));
    assert_eq!(world.writes.iter().filter(|kind| **kind == Kind::End).count(), 1, "in the very write that ends it");
}

#[test]
fn unreachable_datastore_delays_the_journal_not_the_end() {
    let mut world = with_datastore().pod_ended(None);
    world.journal = None;
    let wait = world.settle().unwrap();
    assert_eq!(world.status().result, Some(RunResult::Indeterminate));
    assert!(world.status().journal.is_none() && world.status().next_step.as_deref() != Some(recover().as_str()));
    world.journal = Some(forgotten());
    world = world.later(i64::try_from(wait).unwrap());
    world.settle();
    assert_eq!(world.status().journal, Some(forgotten()));
    assert_eq!(world.status().next_step.as_deref(), Some(recover().as_str()));
    assert_eq!(world.writes.iter().filter(|kind| **kind == Kind::Journal).count(), 1);
}

#[test]
fn failure_without_a_journal_gets_one() {
    let mut world = with_datastore().pod_ended(Some(message(Some(RunResult::Failed), None)));
    world.journal = Some(forgotten());
    world.settle();
    assert_eq!((world.status().result, world.status().journal.clone()), (Some(RunResult::Failed), Some(forgotten())));
    assert_eq!(world.status().message.as_deref(), Some("what the agent said"));
    let mut good = with_datastore().pod_ended(Some(message(Some(RunResult::Applied), None)));
    good.settle();
    assert!(good.status().journal.is_none() && good.asked == 0);
}

#[test]
fn journal_of_the_agent_is_not_replaced() {
    let mut world = with_datastore();
    world.status_mut().journal = Some(forgotten());
    world = world.pod_ended(None);
    world.journal = Some(crds::Journal { summary: "another".into(), ..crds::Journal::default() });
    world.settle();
    assert_eq!(world.status().journal, Some(forgotten()));
    assert!(!world.writes.contains(&Kind::Journal));
}

#[test]
fn late_proof_replaces_journal_and_next_step() {
    let mut world = with_datastore().pod_ended(None);
    world.journal = Some(forgotten());
    world.settle();
    world.o.pod = PodState::Absent;
    world = world.later(10);
    world.stored = Some(message(Some(RunResult::Applied), None));
    world.journal = Some(crds::Journal { summary: "1 created and recorded".into(), compared: true, ..crds::Journal::default() });
    assert_eq!(world.settle(), None, "nothing more is asked");
    let status = world.status();
    assert!(status.settled.is_some());
    assert_eq!(status.journal.as_ref().unwrap().summary, "1 created and recorded");
    assert_eq!(status.next_step.as_deref(), Some(names::rerun_command("team", "net").as_str()));
}

#[test]
fn journal_without_a_datastore_names_the_pod_log() {
    let mut world = World::automatic().claimed().pod_ended(None);
    world.settle();
    let journal = world.status().journal.clone().unwrap();
    assert!(!journal.compared && journal.summary.contains("-a1 only"), "{}", journal.summary);
}

#[test]
fn recovery_is_created_once_and_only_after_a_failed_apply() {
    let mut world = with_datastore().pod_ended(None);
    world.settle();
    world.o.pod = PodState::Absent;
    world = world.annotate(names::RECOVER, "true");
    let actions = world.decide().actions;
    assert_eq!(actions[0], Action::CreateRecovery);
    assert!(actions[0].needs_live());
    world.settle();
    assert_eq!(world.status().recovery, Some(names::recovery_name("net", UID)));
    assert!(!world.decide().actions.contains(&Action::CreateRecovery));
    let mut applied = with_datastore().pod_ended(Some(message(Some(RunResult::Applied), None)));
    applied = applied.annotate(names::RECOVER, "true");
    applied.settle();
    assert!(applied.status().recovery.is_none());
}

/// The packed form lacks the claim by then.
#[test]
fn recovery_of_a_packed_run_reads_it_live_first() {
    let failed = message(Some(RunResult::Failed), Some(failure(FailureClass::Interrupted)));
    let mut world = with_datastore().pod_ended(Some(failed));
    world.settle();
    assert_eq!(world.status().result, Some(RunResult::Failed));
    world.o.pod = PodState::Absent;
    world = world.annotate(names::RECOVER, "true");
    (world.o.run_live, world.o.pod_live) = (false, false);
    assert_eq!(world.decide().actions, [Action::Read], "whether there was a claim, the whole run says");
    world.settle();
    assert_eq!(world.status().recovery, Some(names::recovery_name("net", UID)));
}
