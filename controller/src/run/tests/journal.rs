//! Accounts of the objects of an apply whose agent cannot give one.

use super::*;

fn with_datastore() -> World {
    World::automatic().with_datastore().claimed()
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
    assert_eq!(world.result(), Some(RunResult::Indeterminate));
    assert_eq!(world.status().journal, Some(forgotten()));
    assert_eq!(world.next_step(), recover());
    assert!(
        world
            .status()
            .history
            .iter()
            .any(|line| line.contains("1 created and not recorded"))
    );
    assert_eq!(
        world.written(Kind::End),
        1,
        "in the very write that ends it"
    );
}

#[test]
fn unreachable_datastore_delays_the_journal_not_the_end() {
    let mut world = with_datastore().pod_ended(None);
    world.journal = None;
    let wait = world.settle().unwrap();
    assert_eq!(world.result(), Some(RunResult::Indeterminate));
    assert!(
        world.status().journal.is_none()
            && world.status().next_step.as_deref() != Some(recover().as_str())
    );
    world.journal = Some(forgotten());
    world = world.later(i64::try_from(wait).unwrap()).settled();
    assert_eq!(world.status().journal, Some(forgotten()));
    assert_eq!(world.next_step(), recover());
    assert_eq!(world.written(Kind::Journal), 1);
}

#[test]
fn failure_without_a_journal_gets_one() {
    let mut world = with_datastore().reports(RunResult::Failed);
    world.journal = Some(forgotten());
    world.settle();
    assert_eq!(world.result(), Some(RunResult::Failed));
    assert_eq!(world.status().journal.clone(), Some(forgotten()));
    assert_eq!(world.message(), "what the agent said");
    let good = with_datastore().reports(RunResult::Applied).settled();
    assert!(good.status().journal.is_none() && good.asked == 0);
}

#[test]
fn journal_of_the_agent_is_not_replaced() {
    let mut world = with_datastore();
    world.status_mut().journal = Some(forgotten());
    world = world.pod_ended(None);
    world.journal = Some(crds::Journal {
        summary: "another".into(),
        ..crds::Journal::default()
    });
    world.settle();
    assert_eq!(world.status().journal, Some(forgotten()));
    assert!(!world.writes.contains(&Kind::Journal));
}

#[test]
fn late_proof_replaces_journal_and_next_step() {
    let mut world = with_datastore().pod_ended(None);
    world.journal = Some(forgotten());
    world.settle();
    world = world.pod_gone().later(10);
    world.stored = Some(message(Some(RunResult::Applied), None));
    world.journal = Some(crds::Journal {
        summary: "1 created and recorded".into(),
        compared: true,
        ..crds::Journal::default()
    });
    assert_eq!(world.settle(), None, "nothing more is asked");
    let status = world.status();
    assert!(status.settled.is_some());
    assert_eq!(
        status.journal.as_ref().unwrap().summary,
        "1 created and recorded"
    );
    assert_eq!(
        status.next_step.as_deref(),
        Some(names::rerun_command("team", "net").as_str())
    );
}

#[test]
fn journal_without_a_datastore_names_the_pod_log() {
    let world = World::applying().pod_ended(None).settled();
    let journal = world.status().journal.clone().unwrap();
    assert!(!journal.compared, "{}", journal.summary);
    assert!(journal.summary.contains("-a1 only"), "{}", journal.summary);
}

#[test]
fn recovery_is_created_once_and_only_after_a_failed_apply() {
    let mut world = with_datastore().pod_ended(None).settled().pod_gone();
    world = world.annotate(names::RECOVER, "true");
    let actions = world.decide().actions;
    assert_eq!(actions[0], Action::CreateRecovery);
    assert!(actions[0].needs_live());
    world.settle();
    assert_eq!(
        world.status().recovery,
        Some(names::recovery_name("net", UID))
    );
    assert!(!world.decide().actions.contains(&Action::CreateRecovery));
    let mut applied = with_datastore().reports(RunResult::Applied);
    applied = applied.annotate(names::RECOVER, "true").settled();
    assert!(applied.status().recovery.is_none());
}

/// The packed form lacks the claim by then.
#[test]
fn recovery_of_a_packed_run_reads_it_live_first() {
    let failed = message(
        Some(RunResult::Failed),
        Some(failure(FailureClass::Interrupted)),
    );
    let mut world = with_datastore().pod_ended(Some(failed)).settled();
    assert_eq!(world.result(), Some(RunResult::Failed));
    world = world.pod_gone().annotate(names::RECOVER, "true");
    (world.o.run_live, world.o.pod_live) = (false, false);
    assert_eq!(
        world.decide().actions,
        [Action::Read],
        "whether there was a claim, the whole run says"
    );
    world.settle();
    assert_eq!(
        world.status().recovery,
        Some(names::recovery_name("net", UID))
    );
}
