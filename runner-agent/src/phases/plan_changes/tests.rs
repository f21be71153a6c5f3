use serde_json::json;

use super::*;

const WORD: &str = "hunter2-of-the-plan";

/// The lines behind the head.
fn lines(plan: &Value, redactor: &Redactor) -> Vec<Value> {
    let mut text = Vec::new();
    write(
        plan.to_string().as_bytes(),
        Changes::default(),
        redactor,
        &mut text,
    )
    .unwrap();
    let lines = std::str::from_utf8(&text).unwrap().lines();
    lines
        .skip(1)
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn plan(change: &Value) -> Value {
    json!({"resource_changes": [{"address": "a.b", "type": "a", "name": "b", "change": change}]})
}

/// The attributes of the only change.
fn attributes(change: &Value) -> Value {
    let line = lines(&plan(change), &Redactor::default()).remove(0);
    line.get("attributes").cloned().unwrap_or(json!([]))
}

#[test]
fn sensitive_values_are_masked_in_each_shape() {
    let nested = json!({"a": {"word": WORD, "open": 1}, "l": [{"word": WORD}, {"word": "open"}]});
    let marks = json!({"a": {"word": true}, "l": [{"word": true}, {}]});
    let rows = [
        // The whole object, by either mark.
        (
            json!({"x": WORD}),
            json!({"x": "y"}),
            json!(true),
            json!(false),
        ),
        (
            json!({"x": "y"}),
            json!({"x": WORD}),
            json!(false),
            json!(true),
        ),
        // An attribute.
        (
            json!({"x": WORD}),
            json!({"x": "y"}),
            json!({"x": true}),
            json!({}),
        ),
        // Sensitive only after the change, with the word before it.
        (
            json!({"x": WORD}),
            json!({"x": "y"}),
            json!({}),
            json!({"x": true}),
        ),
        // Maps and lists, created, destroyed, changed, of another length.
        (Value::Null, nested.clone(), json!(false), marks.clone()),
        (nested.clone(), Value::Null, marks.clone(), json!(false)),
        (
            nested.clone(),
            json!({"a": {"word": "z", "open": 2}, "l": [{"word": "z"}]}),
            marks.clone(),
            json!({"a": {"word": true}}),
        ),
        (
            nested.clone(),
            json!({"a": 1, "l": "text"}),
            marks.clone(),
            json!({}),
        ),
        // A mark of another shape than the value.
        (
            json!({"x": [WORD]}),
            json!({"x": []}),
            json!({"x": {"k": true}}),
            json!({}),
        ),
        (
            json!({"x": {"k": WORD}}),
            json!({"x": 1}),
            json!({"x": [true]}),
            json!({}),
        ),
        (
            json!({"x": WORD}),
            json!({"x": 1}),
            json!({"x": [true]}),
            json!({}),
        ),
        (
            json!({"x": {"k": WORD}}),
            json!({"x": {"k": 1}}),
            json!({"x": [true]}),
            json!({}),
        ),
        (
            json!({"x": WORD}),
            json!({"x": 1}),
            json!({"x": null}),
            json!({}),
        ),
        (json!(WORD), json!(1), json!([true]), json!(false)),
        (json!(WORD), Value::Null, json!(true), json!(false)),
    ];
    for (before, after, before_sensitive, after_sensitive) in rows {
        let change = json!({"actions": ["update"], "before": before, "after": after, "after_unknown": {},
            "before_sensitive": before_sensitive, "after_sensitive": after_sensitive});
        let shown = attributes(&change);
        assert!(!shown.to_string().contains("hunter2"), "{change}: {shown}");
        assert!(shown.to_string().contains("sensitive"), "{change}: {shown}");
    }
    // A tool that marks nothing.
    let shown =
        attributes(&json!({"actions": ["update"], "before": {"x": WORD}, "after": {"x": 1}}));
    assert_eq!(shown, json!([{"path": [], "sensitive": true}]));
}

#[test]
fn only_what_changes_is_taken() {
    let change = json!({
        "actions": ["delete", "create"], "replace_paths": [["size"], ["disk", 0, "type"]], "importing": {"id": "i-1"},
        "before": {"id": "i-1", "size": 1, "same": "s", "tags": {"Owner": "a", "x": "x"}, "list": [1, 2], "gone": "g"},
        "after": {"size": 2, "same": "s", "tags": {"Owner": "b", "x": "x"}, "list": [1, 3], "nested": {"k": 1}},
        "after_unknown": {"id": true, "nested": {"arn": true}}, "before_sensitive": {}, "after_sensitive": {},
    });
    let plan = json!({
        "variables": {"v": {"value": WORD}}, "planned_values": {"w": WORD}, "prior_state": {"w": WORD}, "configuration": {"w": WORD},
        "resource_drift": [{"address": "a.d", "change": {"actions": ["delete"], "before": {"x": 1}, "after": null,
            "before_sensitive": {}, "after_sensitive": false}}],
        "resource_changes": [
            {"address": "module.m.a.b[\"k\"]", "module_address": "module.m", "mode": "managed", "type": "a", "name": "b", "index": "k",
                "provider_name": "p", "previous_address": "a.b", "deposed": "d1", "action_reason": "replace_because_cannot_update",
                "change": change},
            {"address": "a.idle", "change": {"actions": ["no-op"], "before": {"w": WORD}, "after": {"w": WORD}}},
        ],
        "output_changes": {"o": {"actions": ["create"], "before": null, "after": "v", "before_sensitive": false, "after_sensitive": false},
            "p": {"actions": ["update"], "before": WORD, "after": "v", "before_sensitive": true, "after_sensitive": true}},
        "action_invocations": [{"address": "action.x.y", "type": "x", "name": "y", "config_values": {"w": WORD},
            "lifecycle_action_trigger": {"triggering_resource_address": "a.b", "action_trigger_event": "AfterCreate"}}],
    });
    let found = lines(&plan, &Redactor::default());
    assert!(!json!(found).to_string().contains(WORD), "{found:#?}");
    let expected = json!([
        {"of": "Drift", "address": "a.d", "actions": ["delete"], "attributes": [{"path": ["x"], "before": 1}]},
        {"of": "Resource", "address": "module.m.a.b[\"k\"]", "module": "module.m", "type": "a", "name": "b", "deposed": "d1",
            "actions": ["delete", "create"], "reason": "replace_because_cannot_update",
            "replacePaths": [["size"], ["disk", 0, "type"]], "importing": "i-1", "previousAddress": "a.b",
            "attributes": [
                {"path": ["gone"], "before": "g"},
                {"path": ["id"], "before": "i-1", "unknown": true},
                {"path": ["list", 1], "before": 2, "after": 3},
                {"path": ["nested"], "after": {"k": 1, "arn": "(known after apply)"}},
                {"path": ["size"], "before": 1, "after": 2},
                {"path": ["tags", "Owner"], "before": "a", "after": "b"},
            ]},
        {"of": "Output", "address": "output.o", "name": "o", "actions": ["create"], "attributes": [{"path": [], "after": "v"}]},
        {"of": "Output", "address": "output.p", "name": "p", "actions": ["update"], "attributes": [{"path": [], "sensitive": true}]},
        {"of": "Action", "address": "action.x.y", "type": "x", "name": "y", "trigger": "a.b"},
    ]);
    assert_eq!(json!(found), expected, "{found:#?}");
}

#[test]
fn values_of_secrets_are_masked_though_the_code_marks_none() {
    let redactor = Redactor::default();
    redactor.add(WORD);
    redactor.add("48151623");
    let long = format!(
        "{}{WORD}{}",
        "x".repeat(bounded::LONGEST - 5),
        "y".repeat(9)
    );
    let change = json!({"actions": ["create"], "before": null, "after_unknown": {}, "before_sensitive": false, "after_sensitive": {},
        "after": {"x": format!("a {WORD} b"), WORD: {WORD: 48_151_623}, "long": long}});
    let mut plan = plan(&change);
    plan["resource_changes"][0]["address"] = format!("a.b[\"{WORD}\"]").into();
    let found = json!(lines(&plan, &redactor)).to_string();
    for word in [WORD, "48151623", &WORD[..5]] {
        assert!(
            !found.contains(word),
            "{word}: {}",
            &found[..found.len().min(2000)]
        );
    }
}

#[test]
fn long_strings_are_cut_and_still_differ() {
    let long = |end: &str| format!("{}{end}", "ä\\\"".repeat(200_000));
    let of = |before: &str, after: &str| {
        attributes(
            &json!({"actions": ["update"], "before": {"x": before, "y": 1}, "after": {"x": after, "y": 2}, "after_unknown": {},
            "before_sensitive": {}, "after_sensitive": {}}),
        )
    };
    let cut = of(&long("a"), &long("b"));
    assert_eq!(cut.as_array().unwrap().len(), 2, "x and y");
    let shown = cut[0]["before"].as_str().unwrap();
    assert!(shown.len() < bounded::LONGEST + 64 && shown.ends_with(')'));
    assert_ne!(cut[0]["before"], cut[0]["after"]);
    assert_eq!(of(&long("a"), &long("a")).as_array().unwrap().len(), 1);
    // Escapes alone are refused in place of being kept.
    let escapes = format!("{{\"x\": \"{}\"}}", "\\n".repeat(9 * bounded::LONGEST));
    let mut to = Vec::new();
    assert!(
        write(
            escapes.as_bytes(),
            Changes::default(),
            &Redactor::default(),
            &mut to
        )
        .is_err()
    );
}

#[test]
fn attributes_that_are_too_large_are_left_out() {
    let many: Vec<_> = (0..100).map(|_| "x".repeat(200_000)).collect();
    let change = json!({"actions": ["create"], "before": null, "after": {"many": many}, "after_unknown": {},
        "before_sensitive": false, "after_sensitive": {}});
    let found = lines(&plan(&change), &Redactor::default());
    assert_eq!(
        found,
        [
            json!({"of": "Resource", "address": "a.b", "type": "a", "name": "b", "actions": ["create"], "cut": true})
        ]
    );
}

#[test]
fn plans_of_the_tools_are_taken() {
    for (file, count) in [
        ("drifted", 1),
        ("imported", 1),
        ("moved", 1),
        ("outputs", 1),
        ("forgotten", 1),
    ] {
        let path = format!(
            "{}/src/phases/plan_json/plans/{file}.json",
            env!("CARGO_MANIFEST_DIR")
        );
        let plan: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let found = lines(&plan, &Redactor::default());
        assert!(found.len() >= count, "{file}: {found:#?}");
    }
}
