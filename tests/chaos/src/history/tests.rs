//! Tests each rule: a good history, and one change of it that violates the rule.

use std::io::Write as _;

use crds::{
    Adopted, ApprovalRecord, Attempt, Changed, Claim, Failure, FailureClass, Phase, PlanStatus, RunResult, TerraformRun,
    TerraformRunStatus, names,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use serde_json::json;

use super::{History, Version, Writer, check};
use ledger::{Entry, what};

const SUM: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

fn at(second: i64) -> Timestamp {
    "2026-11-21T10:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(second)
}

fn pod(attempt: u32) -> String {
    names::attempt_name("a", "uid", attempt)
}

/// The versions of an applied manual run, one per second.
fn applied() -> History {
    let spec = json!({"source": {"inline": {"files": {"main.tf": ""}}}});
    let mut run = TerraformRun::new("a", serde_json::from_value(spec).unwrap());
    run.metadata.namespace = Some("n".into());
    run.metadata.uid = Some("uid".into());
    let mut status = TerraformRunStatus { phase: Some(Phase::Pending), message: Some("m".into()), ..Default::default() };
    let mut versions = Vec::new();
    let mut push = |run: &TerraformRun, status: &TerraformRunStatus, pod: &str| {
        let second = i64::try_from(versions.len()).unwrap();
        let by = Writer {
            user: "system:serviceaccount:n:x".into(),
            pod: pod.into(),
            pod_uid: if pod.is_empty() { "" } else { "p1" }.into(),
        };
        let run = TerraformRun { status: Some(status.clone()), ..run.clone() };
        versions.push(Version {
            revision: 10 + second.unsigned_abs(),
            base: None,
            at: at(second),
            by,
            of_status: true,
            run,
            status_bytes: 100,
        });
    };
    status.attempt = Some(Attempt { number: 1, pod_name: pod(1), open: true, tries: 1, ..Default::default() });
    push(&run, &status, "");
    status.adopted = Some(Adopted { attempt: 1, pod_uid: "p1".into(), nonce: "n1".into(), node_name: None, version: None });
    for phase in [Phase::Setup, Phase::Init, Phase::Plan, Phase::AwaitingApproval] {
        status.phase = Some(phase);
        if phase == Phase::AwaitingApproval {
            status.plan = Some(PlanStatus { checksum: SUM.into(), attempt: 1, ..Default::default() });
        }
        push(&run, &status, &pod(1));
    }
    run.metadata.annotations = Some([(names::APPROVE.to_owned(), SUM.to_owned())].into());
    status.approval = Some(ApprovalRecord { checksum: Some(SUM.into()), by: "eva".into(), comment: None, at: Time(at(5)) });
    push(&run, &status, "");
    status.phase = Some(Phase::Apply);
    let claim = Claim { checksum: SUM.into(), attempt: 1, pod_uid: "p1".into(), nonce: "n1".into(), at: Time(at(6)) };
    status.claim = Some(claim);
    push(&run, &status, &pod(1));
    (status.phase, status.result) = (Some(Phase::Succeeded), Some(RunResult::Applied));
    push(&run, &status, &pod(1));
    status.attempt.as_mut().unwrap().open = false;
    push(&run, &status, "");
    let entry = |kind: &str, detail: serde_json::Value| Entry::new(&pod(1), kind, detail);
    History {
        runs: [("uid".to_owned(), versions)].into(),
        pods: vec![(at(0) + SignedDuration::from_millis(500), format!("n/{}", pod(1)))],
        ledger: vec![
            entry(what::COMMAND_START, json!({"script": "n/a", "command": "apply"})),
            entry(what::APPLY, json!({"script": "n/a", "plan_sha256": "x"})),
            entry(what::RESOURCE, json!({"script": "n/a", "action": "create", "id": "1"})),
            entry(what::COMMAND_END, json!({"script": "n/a", "command": "apply", "exit": 0})),
        ],
        namespaces: vec!["n".into()],
        ..History::default()
    }
}

/// The invariants that a changed history violates.
fn after(change: impl FnOnce(&mut History)) -> Vec<&'static str> {
    let mut history = applied();
    change(&mut history);
    let mut found: Vec<_> = check(&history, Some(at(100))).into_iter().map(|violation| violation.invariant).collect();
    found.dedup();
    found
}

fn status(history: &mut History, version: usize) -> &mut TerraformRunStatus {
    history.runs.get_mut("uid").unwrap()[version].run.status.as_mut().unwrap()
}

/// Changes the status of a version and of all that follow.
fn from(history: &mut History, version: usize, change: impl Fn(&mut TerraformRunStatus)) {
    for version in &mut history.runs.get_mut("uid").unwrap()[version..] {
        change(version.run.status.as_mut().unwrap());
    }
}

const NONE: [&str; 0] = [];

#[test]
fn a_good_history_is_good() {
    assert_eq!(after(|_| {}), NONE);
}

#[test]
fn phases_that_are_skipped_are_found_unless_the_log_has_a_gap() {
    let skip = |history: &mut History| {
        history.runs.get_mut("uid").unwrap().remove(2);
    };
    assert_eq!(after(skip), ["S12"]);
    assert_eq!(after(|h| (skip(h), h.gaps.push(at(2))).1), NONE);
    assert_eq!(after(|h| (skip(h), h.lost.push((at(1), at(2), "n/a".into()))).1), NONE);
    assert_eq!(after(|h| (skip(h), h.lost.push((at(1), at(2), "n/b".into()))).1), ["S12"]);
    assert_eq!(after(|h| from(h, 4, |s| s.phase = Some(Phase::Setup))), ["S12", "L1"]);
}

#[test]
fn what_is_frozen_stays() {
    assert_eq!(after(|h| status(h, 8).result = Some(RunResult::Destroyed)), ["S5"]);
    assert_eq!(after(|h| status(h, 8).claim = None), ["S5", "S7"]);
}

#[test]
fn a_claim_needs_all_that_it_stands_on() {
    assert_eq!(after(|h| from(h, 5, |s| s.approval = None)), ["S2"]);
    assert_eq!(after(|h| from(h, 6, |s| s.claim.as_mut().unwrap().nonce = "other".into())), ["S6"]);
    assert_eq!(after(|h| from(h, 6, |s| s.plan.as_mut().unwrap().checksum = "other".into())), ["S2"]);
    assert_eq!(after(|h| from(h, 4, |s| s.plan.as_mut().unwrap().state_key = Some("key".into()))), ["S29"]);
    let annotate = |h: &mut History, key: &str, value: &str| {
        for version in h.runs.get_mut("uid").unwrap() {
            version.run.annotations_mut().insert(key.into(), value.into());
        }
    };
    assert_eq!(after(|h| annotate(h, names::CANCEL, "why")), ["S10"]);
    assert_eq!(after(|h| annotate(h, names::APPROVE, "sha256:0000")), ["S2"]);
}

#[test]
fn attempts_follow_each_other() {
    let second = |s: &mut TerraformRunStatus| s.attempt.as_mut().unwrap().number = 2;
    assert_eq!(after(|h| from(h, 3, second))[0], "S9");
    assert_eq!(after(|h| second(status(h, 8))), ["S9", "S8"]);
    let third = |s: &mut TerraformRunStatus| s.attempt.as_mut().unwrap().number = 3;
    assert_eq!(after(|h| from(h, 3, third))[0], "S9");
}

#[test]
fn a_close_may_be_missing_where_the_log_has_a_gap() {
    let becomes = |number: u32| move |s: &mut TerraformRunStatus| s.attempt.as_mut().unwrap().number = number;
    assert_eq!(after(|h| from(h, 3, becomes(2)))[0], "S9");
    assert!(!after(|h| (from(h, 3, becomes(2)), h.gaps.push(at(2))).1).contains(&"S9"));
    assert!(!after(|h| (from(h, 3, becomes(2)), h.lost.push((at(2), at(3), "n/a".into()))).1).contains(&"S9"));
    // These explain no gap: another run's lost write, a lost write at another time, and a decreasing count.
    assert!(after(|h| (from(h, 3, becomes(2)), h.lost.push((at(2), at(3), "n/b".into()))).1).contains(&"S9"));
    assert!(after(|h| (from(h, 3, becomes(2)), h.gaps.push(at(7))).1).contains(&"S9"));
    assert!(after(|h| (from(h, 3, becomes(0)), h.gaps.push(at(2))).1).contains(&"S9"));
}

#[test]
fn what_a_version_stands_on_tells_whether_one_is_missing() {
    let second = |s: &mut TerraformRunStatus| s.attempt.as_mut().unwrap().number = 2;
    let stands_on = |h: &mut History, version: usize, base: u64| h.runs.get_mut("uid").unwrap()[version].base = Some(base);
    let lost = |h: &mut History| h.lost.push((at(2), at(3), "n/a".into()));
    // Nothing is missing, whatever else happened at that time.
    assert_eq!(after(|h| (from(h, 3, second), lost(h), stands_on(h, 3, 12)).2)[0], "S9");
    // First a version is missing and a write had no response. Then a version is missing without such a write.
    assert!(!after(|h| (from(h, 3, second), lost(h), stands_on(h, 3, 99)).2).contains(&"S9"));
    assert_eq!(after(|h| stands_on(h, 3, 99)), ["log"]);
    assert_eq!(after(|h| stands_on(h, 3, 12)), NONE);
}

#[test]
fn a_claim_that_is_missing_is_not_judged_by_the_version_after_it() {
    // The log lacks the agent's claim, which first appears with the run's cancellation.
    let cancelled = |h: &mut History| {
        let versions = h.runs.get_mut("uid").unwrap();
        versions[6].by = Writer { user: "system:serviceaccount:pawl:c".into(), pod: "c".into(), pod_uid: "c1".into() };
        versions[6].run.annotations_mut().insert(names::CANCEL.into(), "why".into());
    };
    assert!(after(cancelled).contains(&"S10"));
    assert_eq!(after(|h| (cancelled(h), h.lost.push((at(5), at(6), "n/a".into()))).1), NONE);
}

#[test]
fn a_closed_attempt_writes_nothing() {
    // The agent may neither close nor reopen the attempt.
    assert_eq!(after(|h| status(h, 2).attempt.as_mut().unwrap().open = false), ["S7", "S6", "S7"]);
}

#[test]
fn a_replaced_attempt_writes_nothing_whoever_comes_after_it() {
    // A second attempt was opened and adopted by another pod. The first pod continues to write, without a change to either attempt.
    fn replaced(h: &mut History) {
        from(h, 3, |s| {
            s.attempt = Some(Attempt { number: 2, pod_name: pod(2), open: true, tries: 2, ..Default::default() });
            s.adopted = Some(Adopted { attempt: 2, pod_uid: "p2".into(), nonce: "n2".into(), node_name: None, version: None });
        });
        h.runs.get_mut("uid").unwrap().truncate(5);
        status(h, 2).attempt.as_mut().unwrap().open = false;
        for version in 3..5 {
            let by = Writer { user: "system:serviceaccount:n:y".into(), pod: pod(2), pod_uid: "p2".into() };
            h.runs.get_mut("uid").unwrap()[version].by = by;
        }
        h.ledger.clear();
    }
    fn late(h: &mut History) {
        replaced(h);
        let mut last = h.runs["uid"][4].clone();
        (last.revision, last.at, last.by) = (15, at(5), h.runs["uid"][1].by.clone());
        last.run.status.as_mut().unwrap().message = Some("late".into());
        h.runs.get_mut("uid").unwrap().push(last);
    }
    fn follows(h: &mut History) {
        late(h);
        let mut last = h.runs["uid"][4].clone();
        (last.revision, last.at) = (16, at(6));
        h.runs.get_mut("uid").unwrap().push(last);
    }
    assert!(!after(|h| (replaced(h), h.gaps.push(at(2))).1).contains(&"S6"));
    for change in [late as fn(&mut History), follows] {
        assert!(after(change).contains(&"S6"));
        // No missing version explains it: attempts only increase.
        assert!(after(|h| (change(h), h.gaps.push(at(5))).1).contains(&"S6"));
    }
    // A pod with the attempt's name but another UID did not adopt it.
    let other = |h: &mut History| h.runs.get_mut("uid").unwrap()[4].by.pod_uid = "p9".into();
    assert_eq!(after(other), ["S6"]);
}

#[test]
fn a_failure_has_its_words() {
    assert_eq!(after(|h| from(h, 7, |s| s.message = None)), ["L1"]);
    let failed = |s: &mut TerraformRunStatus, changes: Changed| {
        (s.phase, s.result) = (Some(Phase::Failed), Some(RunResult::Failed));
        let (class, reason) = (FailureClass::Internal, "R".to_owned());
        s.failure = Some(Failure { class, reason, message: "m".into(), changes, diagnostics: vec![] });
        s.next_step = Some("n".into());
    };
    assert_eq!(after(|h| from(h, 7, |s| failed(s, Changed::Some))), NONE);
    assert_eq!(after(|h| from(h, 7, |s| failed(s, Changed::None))), ["S28"]);
    assert_eq!(after(|h| from(h, 7, |s| (failed(s, Changed::Some), s.failure = None).1)), ["L1"]);
}

#[test]
fn what_did_not_end_is_found() {
    assert_eq!(after(|h| h.runs.get_mut("uid").unwrap().truncate(6)), ["L1", "S1"]);
    // If the log lacks the last version, the final status read live is used. A result that this status lacks is a violation.
    let ended = |h: &History| h.runs["uid"].last().and_then(|last| last.run.status.clone()).unwrap();
    assert_eq!(after(|h| (h.last = [("uid".into(), ended(h))].into(), h.runs.get_mut("uid").unwrap().truncate(7)).1), NONE);
    assert_eq!(after(|h| h.last = [("uid".into(), TerraformRunStatus::default())].into()), ["L1"]);
}

#[test]
fn a_status_that_is_too_large_and_a_secret_are_found() {
    assert_eq!(after(|h| h.runs.get_mut("uid").unwrap()[3].status_bytes = 17 << 10), ["S16"]);
    assert_eq!(after(|h| h.leaks.push("x".into())), ["S15"]);
}

#[test]
fn pods_come_once_and_in_their_time() {
    assert_eq!(after(|h| h.pods.push(h.pods[0].clone())), ["S9"]);
}

#[test]
fn the_ledger_has_the_last_word() {
    assert_eq!(after(|h| h.ledger.insert(0, h.ledger[0].clone())), ["S1"]);
    assert_eq!(after(|h| h.ledger.push(h.ledger[1].clone())), ["S1"]);
    assert_eq!(after(|h| h.ledger[0].who = pod(2)), ["S17"]);
    assert_eq!(after(|h| h.ledger.truncate(3)), ["S28"]);
    let unclaimed = |s: &mut TerraformRunStatus, result| {
        s.claim = None;
        (s.phase, s.result) = (Some(RunResult::phase(result)), Some(result));
    };
    assert_eq!(
        after(|h| (from(h, 6, |s| unclaimed(s, RunResult::Canceled)), h.runs.get_mut("uid").unwrap().remove(6)).0),
        ["S1", "S11"]
    );
}

#[test]
fn the_log_is_read_with_what_each_write_stands_on() {
    let event = |revision: &str, code: u16, request: serde_json::Value| {
        let run = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRun", "status": {"message": "m"},
            "metadata": {"name": "a", "namespace": "n", "uid": "uid", "resourceVersion": revision},
            "spec": {"source": {"inline": {"files": {"main.tf": ""}}}}});
        json!({"verb": "patch", "stageTimestamp": "2026-11-21T10:00:01Z", "requestReceivedTimestamp": "2026-11-21T10:00:00Z",
            "objectRef": {"resource": "terraformruns", "namespace": "n", "name": "a", "subresource": "status"},
            "responseStatus": {"code": code}, "requestObject": request, "responseObject": run})
    };
    let test = |path: &str| json!({"op": "test", "path": path, "value": "12"});
    let mut annotated = event("17", 200, json!({"metadata": {"resourceVersion": "16"}}));
    annotated["responseObject"] =
        json!({"kind": "PartialObjectMetadata", "metadata": annotated["responseObject"]["metadata"].clone()});
    let events = [
        annotated,
        event("12", 200, json!({"status": {}})),
        event("13", 200, json!([test("/metadata/uid"), test("/metadata/resourceVersion")])),
        event("14", 200, json!([test("/metadata/uid"), {"op": "add", "path": "/metadata/resourceVersion", "value": "13"}])),
        event("0", 504, json!({"metadata": {"resourceVersion": "14"}})),
        event("16", 200, json!({"metadata": {"resourceVersion": "15"}})),
    ];
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for event in events {
        writeln!(file, "{event}").unwrap();
    }
    let mut history = super::read(file.path(), 0, &["n".into()], "").unwrap();
    let seen: Vec<_> = history.runs["uid"].iter().map(|version| (version.revision, version.base)).collect();
    assert_eq!(seen, [(12, None), (13, Some(12)), (14, None), (16, Some(15)), (17, Some(16))]);
    let status = |n: usize| history.runs["uid"][n].run.status.as_ref().and_then(|status| status.message.clone());
    assert_eq!((status(4), status(3)), (Some("m".into()), Some("m".into())), "what only its metadata was answered of is whole");
    assert_eq!(history.lost, [(at(0), at(1), "n/a".to_owned())]);
    assert_eq!(history.holes(), 1);
    let text = super::evidence(&history, "n/a");
    assert!(text.contains("2026-11-21T10:00:01Z 16 status") && text.contains("the one before it is missing"), "{text}");
    assert!(text.contains("a write was answered with an error of the server"), "{text}");
    assert_eq!(super::evidence(&history, "n/b"), "");
    // Its own pods, and not those of a run whose name has it as prefix.
    history.pods = vec![(at(0), format!("n/{}", pod(2))), (at(0), format!("n/{}", names::attempt_name("a-1", "uid", 1)))];
    let text = super::evidence(&history, "n/a");
    assert!(text.contains(&format!("pod n/{} created", pod(2))) && text.matches(" created").count() == 1, "{text}");
}

#[test]
fn each_field_has_its_writer() {
    let lease = |s: &mut TerraformRunStatus| {
        s.lease = Some(serde_json::from_value(json!({"stateKey": "k", "name": "n", "at": "2026-11-21T10:00:00Z"})).unwrap());
    };
    // The agent takes a lease; the controller writes a message while the agent works, and ends a step.
    assert_eq!(after(|h| from(h, 6, lease)), ["S7"]);
    assert_eq!(after(|h| status(h, 5).message = Some("x".into())), ["S7"]);
    let step = json!([{"name": "plan", "attempt": 1, "startedAt": "2026-11-21T10:00:00Z"}]);
    assert_eq!(after(|h| from(h, 8, |s| s.steps = serde_json::from_value(step.clone()).unwrap())), ["S7"]);
    // The controller closes an attempt and writes the message.
    assert_eq!(after(|h| (from(h, 5, lease), status(h, 8).message = Some("x".into())).0), NONE);
    // A missing version may have had any writer.
    assert_eq!(after(|h| (from(h, 6, lease), h.lost.push((at(5), at(6), "n/a".into()))).0), NONE);
}

/// Two runs that apply to one state, one after the other.
fn both(h: &mut History) {
    let lease = json!({"stateKey": "key", "name": "n", "at": "2026-11-21T10:00:00Z"});
    let lease: Option<crds::StateLease> = serde_json::from_value(lease).unwrap();
    from(h, 4, |s| s.plan.as_mut().unwrap().state_key = Some("key".into()));
    from(h, 5, |s| s.lease = lease.clone());
    from(h, 8, |s| s.lease = None);
    let pod = |text: &str| text.replace(&pod(1), &names::attempt_name("b", "uid2", 1));
    let second = h.runs["uid"].iter().cloned().map(|mut version| {
        version.revision += 100;
        version.by.pod = pod(&version.by.pod);
        (version.run.metadata.name, version.run.metadata.uid) = (Some("b".into()), Some("uid2".into()));
        version
    });
    let second = second.collect();
    h.runs.insert("uid2".into(), second);
    let entries = h.ledger.iter().cloned().map(|mut entry| {
        entry.who = pod(&entry.who);
        entry.detail.insert("script".into(), "n/b".into());
        for (key, value) in [("plan_sha256", "y"), ("id", "2"), ("command", "apply")] {
            entry.detail.insert(key.into(), value.into());
        }
        entry
    });
    let entries: Vec<_> = entries.collect();
    for entry in &mut h.ledger {
        entry.detail.insert("command".into(), "apply".into());
    }
    h.ledger.extend(entries);
}

#[test]
fn two_applies_of_one_state_at_once_are_found() {
    assert_eq!(after(both), NONE);
    assert_eq!(after(|h| (both(h), h.ledger.swap(3, 4)).0), ["S29"], "one begins before the other has ended");
    let elsewhere = |h: &mut History| {
        for version in &mut h.runs.get_mut("uid2").unwrap()[4..] {
            let status = version.run.status.as_mut().unwrap();
            status.plan.as_mut().unwrap().state_key = Some("other".into());
            status.lease.iter_mut().for_each(|lease| lease.state_key = "other".into());
        }
    };
    assert_eq!(after(|h| (both(h), h.ledger.swap(3, 4), elsewhere(h)).0), NONE);
    // By the statuses, the second run has the lease from its fifth version on, and the first run until its seventh.
    let late = |h: &mut History| h.runs.get_mut("uid2").unwrap().iter_mut().for_each(|version| version.revision -= 99);
    assert_eq!(after(|h| (both(h), late(h)).0), ["S29"]);
    let gap = |h: &mut History| h.gaps.extend((0..9).map(at));
    assert_eq!(after(|h| (both(h), late(h), gap(h)).0), NONE, "it may have given it back and taken it again");
    let mut history = applied();
    both(&mut history);
    assert_eq!(history.competition(), (1, 2, 2));
}

#[test]
fn what_was_made_and_is_nowhere_is_found() {
    let failed = |h: &mut History, result: RunResult| {
        from(h, 7, |s| {
            (s.phase, s.result, s.next_step) = (Some(Phase::Failed), Some(result), Some("n".into()));
            let (class, changes) = (FailureClass::Interrupted, Changed::Unknown);
            s.failure = Some(Failure { class, reason: "R".into(), message: "m".into(), changes, diagnostics: vec![] });
        });
        h.ledger.pop();
        h.ledger[2].detail.insert("address".into(), "a.b".into());
        h.journals.insert("n/a".into(), String::new());
    };
    let line =
        |event: &str, id: &str| json!({"event": event, "action": "create", "address": "a.b", "type": "a", "id": id}).to_string();
    assert_eq!(after(|h| failed(h, RunResult::Failed)), ["S34"]);
    assert_eq!(after(|h| (failed(h, RunResult::Failed), h.journals.clear()).0), NONE, "nobody could read it");
    assert_eq!(after(|h| (failed(h, RunResult::Failed), h.states = r#"{"id":"1"}"#.into()).0), NONE);
    for (event, id, found) in [("complete", "1", false), ("complete", "2", true), ("start", "", false)] {
        let change = |h: &mut History| (failed(h, RunResult::Failed), h.journals.insert("n/a".into(), line(event, id))).0;
        assert_eq!(after(change).contains(&"S34"), found, "{event} {id}");
    }
    assert_eq!(
        after(|h| (
            failed(h, RunResult::Failed),
            from(h, 8, |s| s.history = vec!["the end of the journal is not with the datastore: x".into()])
        )
            .0),
        NONE
    );
    // A killed process: only its last moment is excepted.
    let killed = |h: &mut History, seconds: i64| {
        failed(h, RunResult::Indeterminate);
        for (entry, second) in h.ledger.iter_mut().zip([0, 0, 0]) {
            entry.at = at(second).to_string();
        }
        let mut last = h.ledger[2].clone();
        last.at = at(seconds).to_string();
        last.detail.insert("id".into(), "9".into());
        h.states = "9".into();
        h.ledger.push(last);
    };
    assert_eq!(after(|h| killed(h, 1)), NONE);
    assert_eq!(after(|h| killed(h, 5)), ["S34"]);
    assert_eq!(after(|h| (killed(h, 5), h.outages.push(at(3))).0), NONE);
    assert_eq!(after(|h| (killed(h, 5), h.outages.push(at(30))).0), ["S34"]);
}
