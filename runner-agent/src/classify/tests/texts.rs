//! Tests of the shortened text of a failure.

use super::*;

#[test]
fn last_words_begin_at_the_first_error_line() {
    let of = |tail: &[&str]| of_tail(tail).message;
    assert_eq!(
        of(&[
            "Cloning into 'm'...",
            "fatal: repository 'x' not found",
            "",
            "Please make sure you have the correct access rights",
            "and the repository exists."
        ]),
        "init failed: fatal: repository 'x' not found Please make sure you have the correct access rights and the repository exists."
    );
    let terragrunt = [
        "10:00:00.000 INFO   reading",
        "10:00:00.100 ERROR  Unable to read the unit",
        "",
        "https://docs.example.com",
    ];
    assert_eq!(of(&terragrunt), "init failed: Unable to read the unit");
    assert_eq!(of(&["one", "two"]), "init failed: two");
}

#[test]
fn invalid_module_argument_is_a_code_error() {
    let at = |address: Option<&str>| {
        let told = diagnostic(
            "Invalid value for variable",
            "var.size is -1.\nIt must be positive.",
            Some(("main.tf", 1)),
        );
        of(
            "plan",
            vec![Diagnostic {
                address: address.map(Into::into),
                ..told
            }],
        )
        .reason
    };
    assert_eq!(at(Some("var.size")), reason::VARIABLE_INVALID);
    assert_eq!(at(None), reason::INVALID_CONFIGURATION);
}

#[test]
fn object_that_fails_in_apply_is_no_code_error() {
    let told = || Diagnostic {
        address: Some("t.a".into()),
        ..diagnostic(
            "local-exec provisioner error",
            "exit status 3",
            Some(("main.tf", 2)),
        )
    };
    let f = of("apply", vec![told()]);
    assert_is(&f, Configuration, reason::APPLY_FAILED, "");
    assert_eq!(
        f.message,
        "apply failed: local-exec provisioner error (t.a, main.tf line 2): exit status 3"
    );
    assert_eq!(
        of("plan", vec![told()]).reason,
        reason::INVALID_CONFIGURATION
    );
}

#[test]
fn several_errors_are_counted_and_named() {
    let told = |summary: &str, line| diagnostic(summary, "Why.", Some(("m/main.tf", line)));
    let said = Said {
        diagnostics: vec![
            told("Invalid index", 4),
            told("Precondition failed", 7),
            told("Precondition failed", 7),
            told("Other", 9),
        ],
        more: 2,
        ..Said::default()
    };
    assert_eq!(
        failure("plan", FAILED, &said).message,
        "plan failed: Invalid index (m/main.tf line 4): Why; 5 more errors: Precondition failed (m/main.tf line 7), 2 times, \
         Other (m/main.tf line 9)"
    );
}

#[test]
fn text_is_shortened_between_words_and_retains_the_cause() {
    assert_eq!(shorten("as it\n is", 20), "as it is");
    let text = format!(
        "creating thing: {}: the quota is exceeded",
        "and so on ".repeat(60)
    );
    let short = shorten(&text, 100);
    assert!(short.chars().count() <= 100, "{short}");
    assert!(
        short.starts_with("creating thing: and so") && short.ends_with(": the quota is exceeded"),
        "{short}"
    );
    assert!(short.contains(" … "), "{short}");
    assert!(shorten(&"x".repeat(500), 50).chars().count() <= 50);
}

#[test]
fn general_text_on_locks_does_not_hide_the_cause() {
    let detail = "Error message: dial tcp: connection refused\n\nOpenTofu acquires a state lock to protect the state from being written\nby \
                  multiple users at the same time.";
    let f = of(
        "plan",
        vec![diagnostic("Error acquiring the state lock", detail, None)],
    );
    assert_eq!(
        f.message,
        "plan failed: Error acquiring the state lock: Error message: dial tcp: connection refused"
    );
}

#[test]
fn failed_action_is_no_code_error() {
    // Terraform 1.14.3: an action after an update fails.
    let told = diagnostic(
        "Error when invoking action",
        "exit status 1",
        Some(("main.tf", 21)),
    );
    let mut said = Said {
        diagnostics: vec![told],
        ..Said::default()
    };
    said.actions
        .insert("action.acting_call.purge".into(), FAILED_ACTION);
    let f = failure("apply", FAILED, &said);
    assert_is(&f, Configuration, reason::APPLY_FAILED, "");
    assert!(
        f.message.contains("action.acting_call.purge failed: ")
            && f.message.contains("-invoke=action.acting_call.purge"),
        "{}",
        f.message
    );
}

#[test]
fn only_a_destroy_with_kept_objects_has_forgotten() {
    // OpenTofu 1.12.6.
    let forgotten = || {
        diagnostic(
            "Destroy was successful but left behind forgotten instances",
            "As requested, OpenTofu has not deleted some remote objects",
            None,
        )
    };
    let of = |diagnostics| {
        has_forgotten(&Said {
            diagnostics,
            ..Said::default()
        })
    };
    assert!(of(vec![forgotten()]));
    assert!(!of(vec![forgotten(), diagnostic("other", "", None)]) && !of(vec![]));
}

#[test]
fn failure_before_the_apply_saved_nothing() {
    let lock = "Error acquiring the state lock";
    for (summary, place, is_before) in [
        (lock, None, true),
        (lock, Some(("main.tf", 1)), false),
        ("Saved plan is stale", None, true),
        ("Resource precondition failed", Some(("main.tf", 1)), false),
        ("Error releasing the state lock", None, false),
    ] {
        let told = diagnostic(summary, "StatusCode: 503", place);
        let failure = of("apply", vec![told]);
        assert_eq!(is_before_the_apply(&failure), is_before, "{summary}");
    }
}

#[test]
fn wrong_value_names_the_field_that_gave_it() {
    for (file, field) in [
        ("zz_pawl.auto.tfvars.json", "spec.variables"),
        (
            "/pawl/work/src/a/zz_pawl-values.auto.tfvars",
            "spec.variables",
        ),
        (
            "/home/me/a/.pawl/runs/1/plan/values.tfvars",
            "spec.variables",
        ),
        (
            "/pawl/work/src/zz_pawl-03-prod-eu.auto.tfvars",
            "spec.variableFiles prod-eu.auto.tfvars",
        ),
    ] {
        let told = "The given value is not suitable for var.zones declared at main.tf:1,1-17: list of string required.";
        let told = diagnostic("Invalid value for input variable", told, Some((file, 1)));
        let failure = of("plan", vec![told]);
        assert_is(&failure, Configuration, reason::VARIABLE_INVALID, file);
        let place = format!("({field})");
        assert!(failure.message.contains(&place), "{}", failure.message);
    }
}
