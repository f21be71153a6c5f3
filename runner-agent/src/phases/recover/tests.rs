use super::*;
use crds::Diagnostic;

fn object(address: &str, id: Option<&str>, action: Option<Action>) -> Object {
    let kind = crds::apply_log::address::kind(address)
        .unwrap_or_default()
        .to_owned();
    Object {
        address: address.into(),
        kind,
        id: id.map(Into::into),
        action,
        occupied: false,
    }
}

fn recovery() -> Recovery {
    let not_recorded = vec![
        object("t_a.x", Some("1"), None),
        object("module.m[\"k\"].t_b.y[0]", Some("q\"${z}"), None),
        object("t_a.none", None, None),
        object("bad address", Some("2"), None),
        Object {
            occupied: true,
            ..object("t_a.old", Some("3"), None)
        },
    ];
    let uncertain = vec![
        object("t_b.begun", None, Some(Action::Create)),
        object("t_b.u", Some("4"), Some(Action::Update)),
    ];
    Recovery::of(
        "first",
        Comparison {
            recorded: 2,
            not_recorded,
            uncertain,
            ..Comparison::default()
        },
    )
}

fn told(summary: &str, detail: &str, place: Option<(&str, u32)>) -> Failure {
    let diagnostic = Diagnostic {
        severity: "error".into(),
        summary: summary.into(),
        detail: Some(detail.into()),
        file: place.map(|(file, _)| file.into()),
        line: place.map(|(_, line)| line),
        address: None,
    };
    Failure {
        diagnostics: vec![diagnostic],
        ..Reason::PlanFailed.failure("")
    }
}

#[test]
fn only_objects_with_id_and_free_address_are_imported() {
    let found = recovery();
    assert_eq!(
        found
            .imports
            .iter()
            .map(|o| o.address.as_str())
            .collect::<Vec<_>>(),
        ["t_a.x", "module.m[\"k\"].t_b.y[0]"]
    );
    assert_eq!(found.left_out.len(), 3);
    let text = found.text();
    assert!(
        text.contains(
            "import {\n  to = t_a.x\n  id = \"1\"\n}\nimport {\n  to = module.m[\"k\"].t_b.y[0]\n"
        ),
        "{text}"
    );
    assert!(
        text.contains("  id = \"q\\\"$${z}\"\n") && !text.contains("to = bad"),
        "{text}"
    );
    assert_eq!(
        found.notes()[0],
        "2 imported that run first created, 2 are in the state already, 2 it began, with an unknown end"
    );
}

#[test]
fn next_journal_takes_over_the_known_objects() {
    let dir = tempfile::tempdir().unwrap();
    assert!(carried(dir.path()).is_empty());
    let found = recovery();
    fs::write(dir.path().join(RECOVER_FILE), found.text()).unwrap();
    let lines = carried(dir.path());
    assert_eq!(lines.len(), 7);
    let mut replay = Replay::default();
    for line in lines {
        replay.push(line);
    }
    let again = Recovery::of(
        "second",
        Comparison::of(&replay, &crds::apply_log::StateFacts::default()),
    );
    assert_eq!(
        again.imports.len(),
        3,
        "the one whose address is free now is imported as well: {again:?}"
    );
    assert_eq!(again.uncertain.len(), 2);
}

#[test]
fn failure_blames_the_import_that_it_names() {
    let found = recovery();
    let at = |failure: &Failure| {
        found
            .blamed(failure)
            .into_iter()
            .map(|(at, _)| at)
            .collect::<Vec<_>>()
    };
    let text = found.text();
    for (object, address) in ["t_a.x", "t_b.y[0]"].into_iter().enumerate() {
        let line = text
            .lines()
            .position(|line| line.ends_with(address))
            .unwrap()
            + 1;
        let place = Some(("net/pawl_recover.tf", u32::try_from(line).unwrap()));
        assert_eq!(
            at(&told(
                "Configuration for import target does not exist",
                "",
                place
            )),
            [object]
        );
    }
    assert_eq!(
        at(&told(
            "Cannot import non-existent remote object",
            "to \"t_a.x\", the provider",
            None
        )),
        [0]
    );
    assert_eq!(at(&told("Cannot import", "to t_a.x.", None)), [0]);
    assert!(at(&told("Cannot", "to t_a.xy or t_a.x[0] or at_a.x", None)).is_empty());
    assert_eq!(
        at(&told("resource t_b doesn't support import", "", None)),
        [1]
    );
    assert!(at(&told("Unexpected format of ID", "", None)).is_empty());
    let mut left = found.clone();
    left.leave_out(&found.blamed(&told("resource t_b doesn't support import", "", None)));
    assert_eq!((left.imports.len(), left.left_out.len()), (1, 4));
    assert!(left.left_out[3].1.contains("doesn't support import"));
}

#[test]
fn created_objects_that_may_exist_are_marked() {
    let found = recovery();
    let created = ["t_b.begun", "t_a.none", "t_b.u"].map(str::to_owned).into();
    assert_eq!(
        found.again(&created),
        [
            "+ t_a.none (may exist already: run first made it; the tool printed no ID: import it by hand)",
            "+ t_b.begun (may exist already: run first began it; no ID was printed)",
        ]
    );
    assert!(found.again(&BTreeSet::new()).is_empty());
}
