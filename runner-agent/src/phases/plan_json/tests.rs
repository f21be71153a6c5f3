//! Tests with plans as the tools print them. The files in `plans` are complete plans of OpenTofu 1.10.6.

use crds::Changes;
use serde_json::json;

use super::*;

fn change(address: &str, actions: &[&str], importing: bool) -> serde_json::Value {
    let mut value = json!({"address": address, "mode": "managed", "change": {
        "actions": actions, "before": null, "after": {"x": [1, {"secret": "deep"}]}, "after_unknown": true}});
    if importing {
        value["change"]["importing"] = json!({"id": "i-1"});
    }
    value
}

#[test]
fn changes_are_counted_as_the_tools_count() {
    let plan = json!({
        "format_version": "1.2", "errored": false, "applyable": true, "planned_values": {"a": [1, 2, 3]},
        "resource_changes": [
            change("a.create", &["create"], false), change("a.update", &["update"], true), change("a.old", &["delete"], false),
            change("a.replaced", &["delete", "create"], false), change("a.swapped", &["create", "delete"], false),
            change("a.same", &["no-op"], false), change("data.x", &["read"], false), change("a.taken", &["no-op"], true),
            change("a.left", &["forget"], false),
        ],
        "output_changes": {"o": {"actions": ["create"]}, "p": {"actions": ["no-op"]}},
    });
    let facts = read_plan(plan.to_string().as_bytes(), BTreeSet::new()).unwrap();
    let counts = Changes {
        add: 3,
        change: 1,
        destroy: 3,
        import: 2,
        replace: 2,
        forget: 1,
        outputs: 1,
        ..Changes::default()
    };
    assert_eq!(facts.counts, counts);
    assert_eq!(
        facts.lines(),
        [
            "- a.old",
            "-/+ a.replaced",
            "-/+ a.swapped",
            ". a.left (forgotten)",
            "~ a.update (imported)",
            "+ a.create",
            "= a.taken (imported)",
            "+ output.o",
        ]
    );
    assert!(facts.has_changes() && !facts.errored && facts.applyable == Some(true));
}

#[test]
fn unknown_part_is_named_and_needs_a_person() {
    let plan = json!({
        "format_version": "1.3", "deferred_changes": [], "checks": [], "resource_changes": [change("a.b", &["create"], false)],
        "mystery_changes": [{"address": "x"}],
    });
    let printed = read_plan(plan.to_string().as_bytes(), BTreeSet::new()).unwrap();
    let mut own = PlanFacts::default();
    own.take_unknown(&printed);
    assert!(own.counts.unread);
    assert_eq!(
        printed.lines(),
        [
            "? mystery_changes (not known to this release of Pawl)",
            "+ a.b"
        ]
    );
    let why = own.unknown().unwrap_or_default();
    assert!(why.ends_with("does not know: mystery_changes"), "{why}");
    let mut known = PlanFacts::default();
    let plan = json!({"resource_changes": [], "action_invocations": [], "deferred_action_invocations": []});
    known.take_unknown(&read_plan(plan.to_string().as_bytes(), BTreeSet::new()).unwrap());
    assert!(!known.counts.unread && known.unknown().is_none());
}

#[test]
fn destroys_come_first_in_a_long_list() {
    let mut list: Vec<_> = (0..300)
        .map(|i| change(&format!("a.new[{i}]"), &["create"], false))
        .collect();
    list.push(change("a.old", &["delete"], false));
    let facts = read_plan(
        json!({"resource_changes": list}).to_string().as_bytes(),
        BTreeSet::new(),
    )
    .unwrap();
    let lines = facts.lines();
    assert_eq!(
        (lines.len(), lines[0].as_str(), lines[50].as_str()),
        (51, "- a.old", "and 251 more")
    );
}

#[test]
fn output_changes_alone_count_and_invalid_json_fails() {
    let facts = read_plan(
        &br#"{"resource_changes":null,"output_changes":{"o":{"actions":["update"]}}}"#[..],
        BTreeSet::new(),
    )
    .unwrap();
    assert!(facts.has_changes());
    assert!(
        !read_plan(&b"{}"[..], BTreeSet::new())
            .unwrap()
            .has_changes()
    );
    for text in ["", "[]", r#"{"resource_changes":[{"address":"a"#, "{}x"] {
        assert!(
            read_plan(text.as_bytes(), BTreeSet::new()).is_err(),
            "{text}"
        );
    }
}

#[test]
fn large_plan_is_parsed_as_a_stream() {
    // A generated plan of 100 MB that is never in memory at once.
    struct Huge(usize, Vec<u8>);
    impl Read for Huge {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            if self.1.is_empty() {
                match self.0 {
                    0 => return Ok(0),
                    1 => self.1 = b"]}".to_vec(),
                    n => {
                        let comma = if n == 2 { "" } else { "," };
                        self.1 = format!(
                            "{}{comma}",
                            change("a.b", &["create"], false)
                                .to_string()
                                .replace("deep", &"x".repeat(100_000))
                        )
                        .into_bytes();
                    }
                }
                self.0 -= 1;
            }
            let count = buffer.len().min(self.1.len());
            buffer[..count].copy_from_slice(&self.1[..count]);
            self.1.drain(..count);
            Ok(count)
        }
    }
    let facts = read_plan(
        Huge(1_001, br#"{"resource_changes":["#.to_vec()),
        BTreeSet::new(),
    )
    .unwrap();
    assert_eq!(facts.counts.add, 1_000);
}

fn read(plan: &str) -> PlanFacts {
    read_plan(plan.as_bytes(), BTreeSet::new()).unwrap()
}

#[test]
fn each_kind_of_change_has_its_line() {
    let rows: [(&str, Changes, &[&str]); 4] = [
        (
            include_str!("plans/outputs.json"),
            Changes {
                outputs: 3,
                ..Changes::default()
            },
            &["+ output.fresh", "- output.old", "~ output.secret"],
        ),
        (
            include_str!("plans/imported.json"),
            Changes {
                change: 1,
                import: 2,
                ..Changes::default()
            },
            &[
                "~ terraform_data.adapted (imported)",
                "= terraform_data.taken (imported)",
            ],
        ),
        (
            include_str!("plans/forgotten.json"),
            Changes {
                forget: 1,
                ..Changes::default()
            },
            &[". terraform_data.left (forgotten)"],
        ),
        (
            include_str!("plans/moved.json"),
            Changes {
                change: 1,
                moved: 2,
                ..Changes::default()
            },
            &[
                "~ terraform_data.b[0] (moved from terraform_data.b)",
                "> terraform_data.renamed (moved from terraform_data.a)",
            ],
        ),
    ];
    for (plan, counts, lines) in rows {
        let facts = read(plan);
        assert!(facts.has_changes());
        assert_eq!(
            (facts.counts, facts.lines()),
            (counts, lines.iter().map(ToString::to_string).collect())
        );
    }
}

#[test]
fn pure_move_is_a_change() {
    // A pure move, and a previous address equal to the address.
    let moved = |from: &str| json!({"address": "a.b", "previous_address": from, "change": {"actions": ["no-op"]}});
    let facts = read(&json!({"resource_changes": [moved("a.a"), moved("a.b")]}).to_string());
    assert!(facts.has_changes());
    assert_eq!(
        (facts.counts.moved, facts.lines()),
        (1, vec!["> a.b (moved from a.a)".to_owned()])
    );
}

#[test]
fn drift_is_listed_unless_the_plan_has_no_changes() {
    // The tool's text of this plan does not explain why the key is created.
    let facts = read(include_str!("plans/drifted.json"));
    assert_eq!(
        facts.counts,
        Changes {
            add: 1,
            drifted: 1,
            ..Changes::default()
        }
    );
    assert_eq!(
        facts.lines(),
        [
            "+ time_rotating.key",
            "! time_rotating.key (deleted outside of the code)"
        ]
    );
    // The same drift without changes: the tool prints `No changes` and the state stays as it is. Only a refresh shows the drift.
    let mut facts = read(include_str!("plans/drifted_only.json"));
    assert!(!facts.has_changes() && facts.counts.drifted == 1);
    facts.forget_drift();
    assert_eq!(
        (facts.counts, facts.lines()),
        (Changes::default(), Vec::new())
    );
    assert!(!facts.has_changes());
}

#[test]
fn moved_resource_is_no_drift() {
    let drifted = |address: &str, action: &str| {
        json!({"address": address, "previous_address": "a.before", "change": {
            "actions": [action], "before": {"x": 1, "tags": {"a": "1"}, "rules": [{"port": 1}, {"port": 2}]},
            "after": {"x": {"secret": "deep"}, "tags": {"a": "1", "b": "2"}, "rules": [{"port": 1}, {"port": 3}]}}})
    };
    let plan = json!({
        "resource_drift": [drifted("a.moved", "no-op"), drifted("a.changed", "update")],
        "resource_changes": [change("a.new", &["create"], false)],
    });
    let facts = read(&plan.to_string());
    assert_eq!(
        facts.counts,
        Changes {
            add: 1,
            drifted: 1,
            ..Changes::default()
        }
    );
    assert_eq!(
        facts.lines(),
        [
            "+ a.new",
            "! a.changed (changed outside of the code: rules[1].port, tags.b, x) (moved from a.before)"
        ]
    );
}
