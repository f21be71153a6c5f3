//! Tests each rule: a good history, and one change of it that violates the rule.

use std::io::Write as _;

use crds::{PlanStatus, TerraformRun, names};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::{History, Version, Versions, Writer, check, evidence};
use ledger::{Entry, what};
use played::patch::merge;

const SUM: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

fn at(second: i64) -> Timestamp {
    "2026-11-21T10:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(second)
}

fn pod(attempt: u32) -> String {
    names::attempt_name("a", "uid", attempt)
}

fn writer(pod: &str, pod_uid: &str) -> Writer {
    Writer {
        user: "system:serviceaccount:n:x".into(),
        pod: pod.into(),
        pod_uid: pod_uid.into(),
    }
}

fn lease() -> Value {
    json!({"lease": {"stateKey": "key", "name": "n", "at": at(0)}})
}

/// A history that a test changes.
struct Case(History);

/// The versions of an applied manual run `n/a`, one per second.
fn applied() -> Case {
    let mut run = json!({"metadata": {"name": "a", "namespace": "n", "uid": "uid"},
        "spec": {"source": {"inline": {"files": {"main.tf": ""}}}}});
    let attempt = json!({"number": 1, "podName": pod(1), "open": true, "tries": 1});
    let plan = PlanStatus {
        checksum: SUM.into(),
        attempt: 1,
        ..PlanStatus::default()
    };
    let claim = json!({"checksum": SUM, "attempt": 1, "podUID": "p1", "nonce": "n1", "at": at(6)});
    let patches = [
        json!({"phase": "Pending", "message": "m", "attempt": attempt}),
        json!({"phase": "Setup", "adopted": {"attempt": 1, "podUID": "p1", "nonce": "n1"}}),
        json!({"phase": "Init"}),
        json!({"phase": "Plan"}),
        json!({"phase": "AwaitingApproval", "plan": plan}),
        json!({"approval": {"checksum": SUM, "by": "eva", "at": at(5)}}),
        json!({"phase": "Apply", "claim": claim}),
        json!({"phase": "Succeeded", "result": "Applied"}),
        json!({"attempt": {"open": false}}),
    ];
    let mut versions = Versions::new();
    for (second, patch) in (0_i32..).zip(patches) {
        // The controller opens the attempt, records the approval, and closes the attempt.
        let is_controller = [0, 5, 8].contains(&second);
        if second == 5 {
            run["metadata"]["annotations"] = json!({names::APPROVE: SUM});
        }
        merge(&mut run, &json!({"status": patch}));
        versions.push(Version {
            revision: 10 + u64::from(second.unsigned_abs()),
            base: None,
            at: at(second.into()),
            by: if is_controller {
                writer("", "")
            } else {
                writer(&pod(1), "p1")
            },
            of_status: true,
            run: serde_json::from_value(run.clone()).unwrap(),
            status_bytes: 100,
        });
    }
    let entry = |kind: &str, detail: Value| Entry::new(&pod(1), kind, detail);
    let start = json!({"script": "n/a", "command": "apply"});
    let resource = json!({"script": "n/a", "action": "create", "id": "1"});
    let end = json!({"script": "n/a", "command": "apply", "exit": 0});
    let ledger = vec![
        entry(what::COMMAND_START, start),
        entry(what::APPLY, json!({"script": "n/a", "plan_sha256": "x"})),
        entry(what::RESOURCE, resource),
        entry(what::COMMAND_END, end),
    ];
    let pods = vec![(
        at(0) + SignedDuration::from_millis(500),
        format!("n/{}", pod(1)),
    )];
    let runs = [("uid".to_owned(), versions)].into();
    Case(History {
        runs,
        pods,
        ledger,
        namespaces: vec!["n".into()],
        ..History::default()
    })
}

fn patched(run: &mut TerraformRun, patch: &Value) {
    let mut status = json!(run.status);
    merge(&mut status, patch);
    run.status = serde_json::from_value(status).unwrap();
}

impl Case {
    fn versions(&mut self) -> &mut Versions {
        self.0.runs.get_mut("uid").unwrap()
    }

    fn with(mut self, change: impl FnOnce(&mut History)) -> Self {
        change(&mut self.0);
        self
    }

    /// Merges a patch into the status of a version and of all that follow.
    fn from(mut self, version: usize, patch: &Value) -> Self {
        self.versions()[version..]
            .iter_mut()
            .for_each(|version| patched(&mut version.run, patch));
        self
    }

    fn only(mut self, version: usize, patch: &Value) -> Self {
        patched(&mut self.versions()[version].run, patch);
        self
    }

    /// Numbers the attempts from the fourth version on.
    fn attempt(self, number: u32) -> Self {
        self.from(3, &json!({"attempt": {"number": number}}))
    }

    fn annotated(mut self, versions: std::ops::Range<usize>, key: &str, value: &str) -> Self {
        for version in &mut self.versions()[versions] {
            version
                .run
                .annotations_mut()
                .insert(key.into(), value.into());
        }
        self
    }

    /// The log lacks a version.
    fn without(mut self, version: usize) -> Self {
        self.versions().remove(version);
        self
    }

    /// The version that a write required.
    fn base(mut self, version: usize, base: u64) -> Self {
        self.versions()[version].base = Some(base);
        self
    }

    /// The API server was killed.
    fn gap(self, second: i64) -> Self {
        self.with(|history| history.gaps.push(at(second)))
    }

    /// A write of a run was answered with a server error.
    fn lost(self, second: i64, of: &str) -> Self {
        self.with(|history| history.lost.push((at(second), at(second + 1), of.into())))
    }

    /// The violated invariants.
    fn found(&self) -> String {
        let mut found: Vec<_> = check(&self.0, Some(at(100)))
            .into_iter()
            .map(|violation| violation.invariant)
            .collect();
        found.dedup();
        found.join(" ")
    }
}

fn failed(result: &str, changes: &str) -> Value {
    let failure = json!({"class": "Internal", "reason": "R", "message": "m", "changes": changes});
    json!({"phase": "Failed", "result": result, "failure": failure, "nextStep": "n"})
}

#[test]
fn status_change_violates_its_rule() {
    let (lies, without_reason) = (failed("Failed", "None"), json!({"failure": null}));
    let rows = [
        (0, json!({}), ""),
        (4, json!({"phase": "Setup"}), "S12 L1"),
        // A result and a claim never change.
        (8, json!({"result": "Destroyed"}), "S5"),
        (8, json!({"claim": null}), "S5 S7"),
        // A claim needs an approval of its plan, the pod that adopted the attempt, and the lease.
        (5, json!({"approval": null}), "S2"),
        (6, json!({"claim": {"nonce": "other"}}), "S6"),
        (6, json!({"plan": {"checksum": "other"}}), "S2"),
        (4, json!({"plan": {"stateKey": "key"}}), "S29"),
        (8, json!({"attempt": {"number": 2}}), "S9 S8"),
        (7, json!({"message": null}), "L1"),
        (7, failed("Failed", "Some"), ""),
        (7, lies, "S28"),
    ];
    for (version, patch, expected) in rows {
        assert_eq!(
            applied().from(version, &patch).found(),
            expected,
            "{version} {patch}"
        );
    }
    let failed = applied().from(7, &failed("Failed", "Some"));
    assert_eq!(failed.from(7, &without_reason).found(), "L1");
    let all = 0..9;
    assert_eq!(
        applied()
            .annotated(all.clone(), names::CANCEL, "why")
            .found(),
        "S10"
    );
    assert_eq!(
        applied()
            .annotated(all, names::APPROVE, "sha256:0000")
            .found(),
        "S2"
    );
    // The agent may neither close nor reopen the attempt.
    let closed = json!({"attempt": {"open": false}});
    assert_eq!(applied().only(2, &closed).found(), "S7 S6 S7");
}

#[test]
fn skipped_phase_is_found_unless_the_log_has_a_gap() {
    let skipped = || applied().without(2);
    assert_eq!(skipped().found(), "S12");
    assert_eq!(skipped().gap(2).found(), "");
    assert_eq!(skipped().lost(1, "n/a").found(), "");
    assert_eq!(skipped().lost(1, "n/b").found(), "S12");
}

#[test]
fn attempts_follow_each_other_unless_the_log_has_a_gap() {
    for (case, found) in [
        (applied().attempt(2), true),
        (applied().attempt(3), true),
        (applied().attempt(2).gap(2), false),
        (applied().attempt(2).lost(2, "n/a"), false),
        // Another run's lost write, one at another time, and a decreasing count, which no missing version explains.
        (applied().attempt(2).lost(2, "n/b"), true),
        (applied().attempt(2).gap(7), true),
        (applied().attempt(0).gap(2), true),
        // Nothing is missing by the required version, whatever else happened at that time; then one is.
        (applied().attempt(2).lost(2, "n/a").base(3, 12), true),
        (applied().attempt(2).lost(2, "n/a").base(3, 99), false),
    ] {
        assert_eq!(
            case.found().contains("S9"),
            found,
            "{:?} {:?}",
            case.0.gaps,
            case.0.lost
        );
    }
    assert!(
        applied().attempt(2).found().starts_with("S9")
            && applied().attempt(3).found().starts_with("S9")
    );
    assert_eq!(applied().base(3, 99).found(), "log");
    assert_eq!(applied().base(3, 12).found(), "");
}

#[test]
fn missing_claim_is_not_judged_by_the_next_version() {
    // The log lacks the agent's claim, which first appears with the run's cancellation.
    let cancelled = || {
        let case = applied().annotated(6..7, names::CANCEL, "why");
        case.with(|history| history.runs.get_mut("uid").unwrap()[6].by = writer("c", "c1"))
    };
    assert!(cancelled().found().contains("S10"));
    assert_eq!(cancelled().lost(5, "n/a").found(), "");
}

#[test]
fn replaced_attempt_writes_nothing() {
    // A second attempt was opened and adopted by another pod. The first pod continues to write, and changes neither.
    let replaced = || {
        let attempt = json!({"number": 2, "podName": pod(2), "tries": 2});
        let adopted = json!({"attempt": 2, "podUID": "p2", "nonce": "n2"});
        let case = applied().from(3, &json!({"attempt": attempt, "adopted": adopted}));
        let mut case = case.only(2, &json!({"attempt": {"open": false}}));
        case.versions().truncate(5);
        case.versions()[3..]
            .iter_mut()
            .for_each(|version| version.by = writer(&pod(2), "p2"));
        case.with(|history| history.ledger.clear())
    };
    let repeats = |mut case: Case, second: i64, by: Writer| {
        let mut last = case.versions()[4].clone();
        (last.revision, last.at, last.by) = (10 + second.unsigned_abs(), at(second), by);
        patched(
            &mut last.run,
            &json!({"message": if second == 5 { "late" } else { "m" }}),
        );
        case.versions().push(last);
        case
    };
    let late = || repeats(replaced(), 5, writer(&pod(1), "p1"));
    let follows = || repeats(late(), 6, writer(&pod(2), "p2"));
    assert!(!replaced().gap(2).found().contains("S6"));
    // No missing version explains it: attempts only increase.
    for case in [late(), follows(), late().gap(5), follows().gap(5)] {
        assert!(case.found().contains("S6"));
    }
    // A pod with the attempt's name but another UID did not adopt it.
    let other =
        applied().with(|history| history.runs.get_mut("uid").unwrap()[4].by.pod_uid = "p9".into());
    assert_eq!(other.found(), "S6");
}

#[test]
fn run_without_an_end_is_found() {
    let cut = |versions: usize| {
        let mut case = applied();
        case.versions().truncate(versions);
        case
    };
    assert_eq!(cut(6).found(), "L1 S1");
    // If the log lacks the last version, the final status read live is used. A result that this status lacks is a violation.
    let mut whole = applied();
    let ended = whole.versions()[8].run.status.clone().unwrap();
    assert_eq!(
        cut(7)
            .with(|history| history.last = [("uid".into(), ended)].into())
            .found(),
        ""
    );
    let none = [("uid".to_owned(), crds::TerraformRunStatus::default())].into();
    assert_eq!(applied().with(|history| history.last = none).found(), "L1");
}

#[test]
fn sizes_secrets_pods_and_the_ledger_are_judged() {
    type Change = fn(&mut History);
    let rows: [(Change, &str); 7] = [
        (
            |h| h.runs.get_mut("uid").unwrap()[3].status_bytes = 17 << 10,
            "S16",
        ),
        (|h| h.leaks.push("x".into()), "S15"),
        (|h| h.pods.push((at(2), h.pods[0].1.clone())), "S9"),
        (|h| h.ledger.insert(0, h.ledger[0].clone()), "S1"),
        (|h| h.ledger.push(h.ledger[1].clone()), "S1"),
        (|h| h.ledger[0].who = pod(2), "S17"),
        (|h| h.ledger.truncate(3), "S28"),
    ];
    for (change, expected) in rows {
        assert_eq!(applied().with(change).found(), expected);
    }
    let unclaimed = json!({"claim": null, "phase": "Canceled", "result": "Canceled"});
    assert_eq!(applied().from(6, &unclaimed).without(6).found(), "S1 S11");
}

#[test]
fn the_log_is_read_with_the_version_each_write_requires() {
    let event = |revision: &str, code: u16, request: Value| {
        let run = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRun", "status": {"message": "m"},
            "metadata": {"name": "a", "namespace": "n", "uid": "uid", "resourceVersion": revision},
            "spec": {"source": {"inline": {"files": {"main.tf": ""}}}}});
        json!({"verb": "patch", "stageTimestamp": "2026-11-21T10:00:01Z", "requestReceivedTimestamp": "2026-11-21T10:00:00Z",
            "objectRef": {"resource": "terraformruns", "namespace": "n", "name": "a", "subresource": "status"},
            "responseStatus": {"code": code}, "requestObject": request, "responseObject": run})
    };
    let test = |path: &str| json!({"op": "test", "path": path, "value": "12"});
    let add = json!({"op": "add", "path": "/metadata/resourceVersion", "value": "13"});
    let mut annotated = event("17", 200, json!({"metadata": {"resourceVersion": "16"}}));
    annotated["responseObject"] = json!({"kind": "PartialObjectMetadata", "metadata": annotated["responseObject"]["metadata"].clone()});
    let events = [
        annotated,
        event("12", 200, json!({"status": {}})),
        event(
            "13",
            200,
            json!([test("/metadata/uid"), test("/metadata/resourceVersion")]),
        ),
        event("14", 200, json!([test("/metadata/uid"), add])),
        event("0", 504, json!({"metadata": {"resourceVersion": "14"}})),
        event("16", 200, json!({"metadata": {"resourceVersion": "15"}})),
    ];
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for event in events {
        writeln!(file, "{event}").unwrap();
    }
    let mut history = super::read(file.path(), 0, &["n".into()], "").unwrap();
    let seen: Vec<_> = history.runs["uid"]
        .iter()
        .map(|version| (version.revision, version.base))
        .collect();
    assert_eq!(
        seen,
        [
            (12, None),
            (13, Some(12)),
            (14, None),
            (16, Some(15)),
            (17, Some(16))
        ]
    );
    // A response with only metadata leaves the rest as before.
    let status = |n: usize| {
        history.runs["uid"][n]
            .run
            .status
            .as_ref()
            .and_then(|status| status.message.clone())
    };
    assert_eq!((status(4), status(3)), (Some("m".into()), Some("m".into())));
    assert_eq!(history.lost, [(at(0), at(1), "n/a".to_owned())]);
    assert_eq!(history.holes(), 1);
    let text = evidence(&history, "n/a");
    assert!(
        text.contains("2026-11-21T10:00:01Z 16 status")
            && text.contains("the one before it is missing"),
        "{text}"
    );
    assert!(
        text.contains("a write was answered with an error of the server"),
        "{text}"
    );
    assert_eq!(evidence(&history, "n/b"), "");
    // Its own pods, and not those of a run whose name has it as prefix.
    let other = names::attempt_name("a-1", "uid", 1);
    history.pods = vec![
        (at(0), format!("n/{}", pod(2))),
        (at(0), format!("n/{other}")),
    ];
    let text = evidence(&history, "n/a");
    assert!(
        text.contains(&format!("pod n/{} created", pod(2)))
            && text.matches(" created").count() == 1,
        "{text}"
    );
}

#[test]
fn each_field_has_its_writer() {
    // The agent takes a lease; the controller writes a message while the agent works, and ends a step.
    assert_eq!(applied().from(6, &lease()).found(), "S7");
    let message = json!({"message": "x"});
    assert_eq!(applied().only(5, &message).found(), "S7");
    let steps =
        json!({"steps": [{"name": "plan", "attempt": 1, "startedAt": "2026-11-21T10:00:00Z"}]});
    assert_eq!(applied().from(8, &steps).found(), "S7");
    // The controller closes an attempt and writes the message.
    assert_eq!(applied().from(5, &lease()).only(8, &message).found(), "");
    // A missing version may have had any writer.
    assert_eq!(applied().from(6, &lease()).lost(5, "n/a").found(), "");
}

/// Two runs that apply to one state, one after the other.
fn both() -> Case {
    let case = applied().from(4, &json!({"plan": {"stateKey": "key"}}));
    let mut case = case.from(5, &lease()).from(8, &json!({"lease": null}));
    let pod = |text: &str| text.replace(&pod(1), &names::attempt_name("b", "uid2", 1));
    let mut second = case.versions().clone();
    for version in &mut second {
        version.revision += 100;
        version.by.pod = pod(&version.by.pod);
        (version.run.metadata.name, version.run.metadata.uid) =
            (Some("b".into()), Some("uid2".into()));
    }
    case.with(|history| {
        history.runs.insert("uid2".into(), second);
        for entry in &mut history.ledger {
            entry.detail.insert("command".into(), "apply".into());
        }
        for mut entry in history.ledger.clone() {
            entry.who = pod(&entry.who);
            for (key, value) in [("script", "n/b"), ("plan_sha256", "y"), ("id", "2")] {
                entry.detail.insert(key.into(), value.into());
            }
            history.ledger.push(entry);
        }
    })
}

#[test]
fn two_applies_of_one_state_at_once_are_found() {
    assert_eq!(both().found(), "");
    assert_eq!(both().0.competition(), (1, 2, 2));
    let overlaps = || both().with(|history| history.ledger.swap(3, 4));
    assert_eq!(
        overlaps().found(),
        "S29",
        "one begins before the other has ended"
    );
    let elsewhere = overlaps().with(|history| {
        for version in &mut history.runs.get_mut("uid2").unwrap()[4..] {
            patched(&mut version.run, &json!({"plan": {"stateKey": "other"}}));
            let status = version.run.status.as_mut().unwrap();
            status
                .lease
                .iter_mut()
                .for_each(|lease| lease.state_key = "other".into());
        }
    });
    assert_eq!(elsewhere.found(), "");
    // By their statuses: the second run has the lease from its fifth version on, the first until its seventh.
    let late = || {
        let earlier = |version: &mut Version| version.revision -= 99;
        both().with(|history| {
            history
                .runs
                .get_mut("uid2")
                .unwrap()
                .iter_mut()
                .for_each(earlier);
        })
    };
    assert_eq!(late().found(), "S29");
    let gaps = late().with(|history| history.gaps.extend((0..9).map(at)));
    assert_eq!(
        gaps.found(),
        "",
        "the run may have returned the lease and taken it again"
    );
}

#[test]
fn object_in_no_state_and_no_journal_is_found() {
    let made = |result: &str| {
        let case = applied().from(7, &failed(result, "Unknown"));
        case.with(|history| {
            history.ledger.pop();
            history.ledger[2]
                .detail
                .insert("address".into(), "a.b".into());
            history.journals.insert("n/a".into(), String::new());
        })
    };
    assert_eq!(made("Failed").found(), "S34");
    assert_eq!(
        made("Failed")
            .with(|history| history.journals.clear())
            .found(),
        "",
        "it was not readable"
    );
    assert_eq!(
        made("Failed")
            .with(|history| history.states = r#"{"id":"1"}"#.into())
            .found(),
        ""
    );
    for (event, id, found) in [
        ("complete", "1", false),
        ("complete", "2", true),
        ("start", "", false),
    ] {
        let line =
            json!({"event": event, "action": "create", "address": "a.b", "type": "a", "id": id})
                .to_string();
        let case = made("Failed").with(|history| _ = history.journals.insert("n/a".into(), line));
        assert_eq!(case.found().contains("S34"), found, "{event} {id}");
    }
    let told = json!({"history": ["the end of the journal is not with the datastore: x"]});
    assert_eq!(made("Failed").from(8, &told).found(), "");
    // Of a killed process only the last moment is excepted: its last action is in this second, and its object in a state.
    let killed = |seconds: i64, outage: Option<i64>| {
        let case = made("Indeterminate").with(|history| {
            history
                .ledger
                .iter_mut()
                .for_each(|entry| entry.at = at(0).to_string());
            let mut last = history.ledger[2].clone();
            last.at = at(seconds).to_string();
            last.detail.insert("id".into(), "9".into());
            history.states = "9".into();
            history.ledger.push(last);
            history.outages.extend(outage.map(at));
        });
        case.found()
    };
    let found = [
        killed(1, None),
        killed(5, None),
        killed(5, Some(3)),
        killed(5, Some(30)),
    ];
    assert_eq!(found, ["", "S34", "", "S34"]);
}
