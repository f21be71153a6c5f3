use serde_json::{Value, json};
use watching::Index as _;

use super::*;

pub(crate) const AT: &str = "2026-01-01T00:00:00Z";

fn key(namespace: &str, name: &str) -> Key {
    Key::new((namespace.into(), name.into()))
}

pub(crate) fn layer(namespace: &str, name: &str, status: &Value) -> TerraformLayer {
    serde_json::from_value(json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformLayer",
        "metadata": {"namespace": namespace, "name": name, "uid": format!("uid-of-{namespace}-{name}")},
        "spec": {"repository": {"name": "net"}, "path": format!("stacks/{name}")}, "status": status}))
    .unwrap()
}

pub(crate) fn run(namespace: &str, name: &str, layer: &str, status: &Value) -> TerraformRun {
    serde_json::from_value(json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRun",
        "metadata": {"namespace": namespace, "name": name, "uid": format!("uid-of-{namespace}-{name}"),
            "creationTimestamp": AT, "labels": {"pawl.run/layer": layer}},
        "spec": {"source": {"inline": {"files": {}}}}, "status": status}))
    .unwrap()
}

pub(crate) fn show(rows: &Rows, runs: &[TerraformRun], layers: &[TerraformLayer]) {
    for run in runs {
        rows.apply(&Key::new(watching::name_of(run)), run);
    }
    for layer in layers {
        rows.apply(&Key::new(watching::name_of(layer)), layer);
    }
}

pub(crate) fn plan(add: u32) -> Value {
    json!({"checksum": format!("sha256:{}", "a".repeat(64)), "attempt": 1, "summary": "", "tool": "OpenTofu 1.10.6", "add": add,
        "change": 0, "destroy": 0, "import": 0, "replace": 0, "forget": 0, "outputs": 0, "createdAt": AT})
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": AT})
}

#[test]
fn state_of_a_layer_follows_its_conditions() {
    use LayerRowState::{
        AwaitingApproval, Drifted, Failed, InSync, NotApplied, Pending, Planned, Planning, Stuck,
        Suspended,
    };
    let ready = |status: &str, reason: &str, stalled: bool| {
        let stalled = if stalled { "True" } else { "False" };
        json!({"conditions": [condition("Ready", status, reason, ""), condition("Stalled", stalled, reason, "")]})
    };
    let with = |mut status: Value, field: &str, value: Value| {
        status[field] = value;
        status
    };
    let settled = ready("True", "UpToDate", false);
    let waiting = json!({"run": "r", "checksum": "c"});
    for (status, state) in [
        (json!({}), Pending),
        (settled.clone(), InSync),
        (ready("True", "Planned", false), Planned),
        (ready("False", "NotApplied", false), NotApplied),
        (ready("False", "DriftFound", false), Drifted),
        (ready("False", "RunFailed", true), Failed),
        (ready("False", "Retrying", false), Failed),
        (ready("False", "StateOwned", true), Stuck),
        (ready("False", "PlanNeeded", false), Pending),
        (ready("False", "OfALaterVersion", false), Pending),
        (with(settled.clone(), "currentRun", json!("r")), Planning),
        (
            with(ready("False", "DriftFound", false), "pending", waiting),
            AwaitingApproval,
        ),
    ] {
        let row = LayerRow::of(&layer("a", "net", &status));
        assert_eq!(row.state, state, "{status}");
    }
    let mut suspended = layer("a", "net", &settled);
    suspended.spec.suspend = true;
    assert_eq!(LayerRow::of(&suspended).state, Suspended);
}

#[test]
fn layer_and_run_join_in_either_order() {
    let current = json!({"currentRun": "r1"});
    let waits = json!({"currentRun": "r1", "pending": {"run": "r1", "checksum": "c"}});
    let [net, waiting] = [&current, &waits].map(|status| layer("a", "net", status));
    let applies = run(
        "a",
        "r1",
        "net",
        &json!({"phase": "Apply", "plan": plan(3)}),
    );
    for run_first in [true, false] {
        let rows = Rows::default();
        if run_first {
            show(&rows, std::slice::from_ref(&applies), &[]);
        }
        show(&rows, &[], std::slice::from_ref(&net));
        show(&rows, std::slice::from_ref(&applies), &[]);
        let of = |rows: &Rows| rows.read().layers.get(&("a".into(), "net".into())).cloned();
        assert_eq!(of(&rows).unwrap().state, LayerRowState::Applying);
        // Another run of that name elsewhere, and another run of the layer.
        let plans = json!({"phase": "Plan"});
        let others = [run("b", "r1", "net", &plans), run("a", "r2", "net", &plans)];
        show(&rows, &others, &[]);
        assert_eq!(of(&rows).unwrap().state, LayerRowState::Applying);
        show(&rows, &[], std::slice::from_ref(&waiting));
        assert_eq!(
            of(&rows).unwrap().changes.map(|changes| changes.add),
            Some(3)
        );
        Index::<TerraformRun>::delete(&rows, &key("a", "r1"));
        assert_eq!(of(&rows).unwrap().changes, None);
    }
}

#[test]
fn waiting_run_has_its_place_and_reason() {
    let slot = "waits for a slot: 2 of 2 attempts are open";
    for (type_, status, reason, message, place) in [
        (
            "StateLeased",
            "False",
            "Queued",
            "waits for its turn on the state behind a/b, in place 3",
            Some(3),
        ),
        ("Succeeded", "Unknown", "SlotsFull", slot, None),
        (
            "Succeeded",
            "Unknown",
            "Frozen",
            "the namespace is frozen",
            None,
        ),
        (
            "StateLeased",
            "False",
            "Queued",
            "waits, in place 99999999999999",
            None,
        ),
    ] {
        let status =
            json!({"phase": "Pending", "conditions": [condition(type_, status, reason, message)]});
        let row = RunRow::of(&run("a", "r", "net", &status));
        assert_eq!(row.reason.as_deref(), Some(reason));
        assert_eq!(row.wait.unwrap().place, place);
    }
    let ended = json!({"phase": "Canceled", "result": "Canceled",
        "conditions": [condition("StateLeased", "False", "Queued", slot), condition("Stalled", "True", "PodGone", "")]});
    let row = RunRow::of(&run("a", "r", "net", &ended));
    assert!(row.wait.is_none() && !row.stalled && row.reason.is_none());
}

#[test]
fn text_that_a_pod_wrote_is_in_no_row() {
    let written = "text-of-a-pod";
    let status = json!({"phase": "Failed", "result": "Failed", "message": written, "nextStep": written, "history": [written],
        "failure": {"class": "Internal", "reason": "AgentFault", "message": written, "changes": "None"},
        "failedHook": null, "progress": {"done": 1, "total": 2, "current": written}, "plan": plan(1)});
    let row = serde_json::to_string(&RunRow::of(&run("a", "r", "net", &status))).unwrap();
    assert!(!row.contains(written), "{row}");
}

#[test]
fn work_of_a_run_is_without_its_waits() {
    let step = |name: &str, from: u32, to: u32| {
        let at = |second: u32| format!("2026-01-01T00:00:{second:02}Z");
        json!({"name": name, "attempt": 1, "startedAt": at(from), "finishedAt": at(to)})
    };
    let mut steps = vec![step("plan", 0, 5), step("apply", 40, 42)];
    let worked =
        |steps: &[Value]| RunRow::of(&run("a", "r", "net", &json!({"steps": steps}))).worked;
    assert_eq!((worked(&[]), worked(&steps)), (None, Some(7)));
    steps.push(json!({"name": "show", "attempt": 1, "startedAt": AT}));
    assert_eq!(worked(&steps), Some(7), "the end of one is not known yet");
}

#[test]
fn unchanged_object_is_no_change() {
    let rows = Rows::default();
    let net = layer("a", "net", &json!({}));
    show(&rows, &[], std::slice::from_ref(&net));
    let seen = rows.read().changes.last();
    show(&rows, &[], std::slice::from_ref(&net));
    assert_eq!(rows.read().changes.last(), seen, "a new listing");
    assert_eq!(rows.read().layers.namespaces().collect::<Vec<_>>(), ["a"]);
    Index::<TerraformLayer>::delete(&rows, &key("a", "net"));
    let state = rows.read();
    assert_eq!(state.changes.since(seen).unwrap().count(), 1);
    assert_eq!(state.layers.namespaces().count(), 0);
}

#[test]
fn missed_changes_are_known_or_refused() {
    let mut changes = Changes::default();
    let start = changes.last();
    let names = |changes: &Changes, seen| {
        let since = changes.since(seen)?;
        Some(since.map(|(_, key)| key.1.to_string()).collect::<Vec<_>>())
    };
    assert_eq!(names(&changes, start), Some(vec![]));
    changes.add(Kind::Run, &key("a", "r1"));
    let one: Sequence = changes.last().to_string().parse().unwrap();
    changes.add(Kind::Run, &key("a", "r2"));
    assert_eq!(names(&changes, one), Some(vec!["r2".to_owned()]));
    assert_eq!(names(&Changes::default(), one), None, "of another process");
    let newest = changes.last();
    for _ in 0..16_384 {
        changes.add(Kind::Layer, &key("a", "net"));
    }
    assert_eq!(names(&changes, newest).map(|all| all.len()), Some(16_384));
    assert_eq!(names(&changes, one), None, "too old");
    for text in ["", "1", "-1", "x-1", "1-x"] {
        assert!(text.parse::<Sequence>().is_err(), "{text}");
    }
}

/// Counts the strings of a row, its search texts, its key and its entry.
#[test]
fn row_costs_less_than_2_kb() {
    let number = 12_345;
    let name = format!("layer-of-a-team-{number}");
    let status = json!({"phase": "Succeeded", "result": "Applied", "completionTime": AT, "startTime": AT, "plan": plan(2),
        "approval": {"by": "alice@example.com", "at": AT},
        "attempt": {"number": 1, "podName": "p", "open": false, "openedAt": AT}});
    let run = RunRow::of(&run(
        "namespace-of-a-team",
        &format!("{name}-bcdfghjklm"),
        &name,
        &status,
    ));
    let ready = json!({"lastResult": "Applied +1 ~0 -0", "revision": "0123456789ab", "nextDriftCheck": AT, "currentRun": run.name,
        "conditions": [condition("Ready", "True", "UpToDate", "")]});
    let layer = LayerRow::of(&layer("namespace-of-a-team", &name, &ready));
    // A node of the tree is half full; each string has a header of the allocator.
    let cost = |size: usize, texts: &[&str], json: String| {
        size + 2 * json.len() + texts.join("\n").len() + 128
    };
    let run_bytes = cost(
        size_of::<Held<RunRow>>(),
        &run.texts(),
        serde_json::to_string(&run).unwrap(),
    );
    let layer_bytes = cost(
        size_of::<Held<LayerRow>>(),
        &layer.texts(),
        serde_json::to_string(&layer).unwrap(),
    );
    println!("{run_bytes} bytes for a run, {layer_bytes} for a layer");
    assert!(
        run_bytes < 2048 && layer_bytes < 2048,
        "{run_bytes} {layer_bytes}"
    );
    assert!(10_000 * layer_bytes + 20_000 * run_bytes < 100 << 20);
}
