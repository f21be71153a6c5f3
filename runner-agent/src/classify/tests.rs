//! Tests with messages of the tools.

use std::path::Path;

use FailureClass::{Credentials, Integrity, StalePlan, StateLocked, Transient};

use super::*;

fn diagnostic(summary: &str, detail: &str, file: Option<(&str, u32)>) -> Diagnostic {
    Diagnostic {
        severity: "error".into(),
        summary: summary.into(),
        detail: Some(detail.into()),
        file: file.map(|(f, _)| f.into()),
        line: file.map(|(_, l)| l),
        ..Diagnostic::default()
    }
}

fn of(step: &str, diagnostics: Vec<Diagnostic>) -> Failure {
    failure(step, Exit { code: 1, signal: None, told: false }, &Said { diagnostics, ..Said::default() })
}

#[test]
fn known_texts_have_class_and_reason() {
    let rows: &[(&str, &str, FailureClass, &str)] = &[
        (
            "Failed to query available provider packages",
            "Could not retrieve the list: could not connect to registry.opentofu.org: failed to request discovery document: Get \"https://…\": dial tcp: lookup registry.opentofu.org: no such host",
            Transient,
            reason::PROVIDER_UNREACHABLE,
        ),
        (
            "Failed to install provider",
            "Error while installing hashicorp/aws: net/http: TLS handshake timeout",
            Transient,
            reason::PROVIDER_UNREACHABLE,
        ),
        ("Error refreshing state", "read tcp 10.0.0.1: connection reset by peer", Transient, reason::BACKEND_UNREACHABLE),
        (
            "Invalid provider registry host",
            "The host is up: 503 Service Unavailable returned from it",
            Transient,
            reason::PROVIDER_UNREACHABLE,
        ),
        ("creating EC2 Instance", "api error RequestLimitExceeded: Request limit exceeded.", Transient, reason::THROTTLED),
        ("Error", "app.terraform.io: 429 Too Many Requests", Transient, reason::THROTTLED),
        ("error configuring S3 Backend", "no valid credential sources for S3 Backend found.", Credentials, reason::UNAUTHORIZED),
        (
            "reading EC2 VPC",
            "operation error: api error ExpiredToken: The security token included in the request is expired",
            Credentials,
            reason::UNAUTHORIZED,
        ),
        ("Failed to get existing workspaces", "HTTP remote state endpoint requires auth", Credentials, reason::UNAUTHORIZED),
        ("Error acquiring the state lock", "Error message: resource temporarily unavailable", StateLocked, reason::STATE_LOCKED),
        (
            "Error acquiring the state lock",
            "Error message: Failed to make LOCK HTTP request: dial tcp 127.0.0.1:9: connect: connection refused",
            Transient,
            reason::BACKEND_UNREACHABLE,
        ),
        (
            "Error acquiring the state lock",
            "Error message: Unsupported state file format: The state file could not be parsed as JSON: syntax error at byte offset 22.",
            Integrity,
            reason::STATE_UNREADABLE,
        ),
        (
            "Error refreshing state",
            "Unsupported state file format: The state file uses format version 5, which is not supported by OpenTofu 1.10.6.",
            Configuration,
            reason::STATE_TOO_NEW,
        ),
        (
            "Error loading state",
            "state snapshot was created by Terraform v1.9.0, which is newer than current v1.5.7",
            Configuration,
            reason::STATE_TOO_NEW,
        ),
        (
            "Failed to get existing workspaces: operation error S3: ListObjectsV2, Get \"http://s3\": dial tcp: connection refused",
            "",
            Transient,
            reason::BACKEND_UNREACHABLE,
        ),
        ("Value for undeclared variable", "A variable named \"siez\" was", Configuration, reason::VARIABLE_INVALID),
        ("Error locking state", "HTTP remote state already locked: ID=1", StateLocked, reason::STATE_LOCKED),
        ("Saved plan is stale", "The given plan file can no longer be applied", StalePlan, reason::STALE_PLAN),
        ("Saved plan does not match the given state", "different lineage", StalePlan, reason::STALE_PLAN),
        ("Failed to save state", "Error saving state: HTTP error: 500", Transient, reason::STATE_NOT_SAVED),
        (
            "Failed to install provider",
            "the current package doesn't match any of the checksums previously recorded",
            Integrity,
            reason::CHECKSUM_MISMATCH,
        ),
        (
            "Inconsistent dependency lock file",
            "provider x: required by this configuration but no version is selected",
            Configuration,
            reason::INVALID_CONFIGURATION,
        ),
        ("Unsupported Terraform Core version", "requires >= 2", Configuration, reason::VERSION_CONTRADICTION),
        (
            "No value for required variable",
            "The root module input variable \"x\" is not set",
            Configuration,
            reason::VARIABLE_NOT_SET,
        ),
        ("Error asking for input to configure the provider", "provider.x.token: EOF", Configuration, reason::INPUT_REQUIRED),
        (
            "Failed to download module",
            "error downloading: ssh: Host key verification failed. fatal: Could not read from remote repository.",
            Integrity,
            reason::HOST_KEY_NOT_KNOWN,
        ),
        (
            "Failed to download module",
            "fatal: could not read Username for 'https://git.example.com': terminal prompts disabled",
            Credentials,
            reason::UNAUTHORIZED,
        ),
        (
            "Failed to install provider",
            "Error while installing hashicorp/aws v5.0.0: write /pawl/work/x: no space left on device",
            Transient,
            reason::DISK_FULL,
        ),
        ("Failed to save state", "write errored.tfstate: no space left on device", Transient, reason::STATE_NOT_SAVED),
        ("creating thing", "the thing is not allowed to be blue", Configuration, reason::PLAN_FAILED),
    ];
    for (summary, detail, class, reason) in rows {
        let f = of("plan", vec![diagnostic(summary, detail, None)]);
        assert_eq!((f.class, f.reason.as_str()), (*class, *reason), "{summary}: {detail}");
    }
    // For any command that prompts.
    for step in ["init", "apply"] {
        let f = of(step, vec![diagnostic("Error asking for input to configure the provider", "provider.x.token: EOF", None)]);
        assert_eq!((f.class, f.reason.as_str()), (Configuration, reason::INPUT_REQUIRED), "{step}");
    }
}

#[test]
fn full_disk_is_no_fault_of_the_agent() {
    for code in [28, 122] {
        let f = internal("the source cannot be written", &std::io::Error::from_raw_os_error(code));
        assert_eq!((f.class, f.reason.as_str()), (Transient, reason::DISK_FULL), "{}", f.message);
    }
    let f = internal("the source cannot be written", &std::io::Error::from_raw_os_error(13));
    assert_eq!((f.class, f.reason.as_str()), (FailureClass::Internal, reason::AGENT_FAULT));
    let f = not_run("init", &RunError::Spawn(std::io::Error::from_raw_os_error(28)));
    assert_eq!(f.reason, reason::DISK_FULL);
}

#[test]
fn code_error_names_file_and_line() {
    let f = of(
        "init",
        vec![
            diagnostic("Terraform encountered problems during initialisation", "", None),
            diagnostic("Invalid string literal", "This item is not valid.", Some(("b.tf", 3))),
        ],
    );
    assert_eq!((f.class, f.reason.as_str()), (Configuration, reason::INVALID_CONFIGURATION));
    assert_eq!(f.message, "init failed: Invalid string literal (b.tf line 3): This item is not valid.");
    assert_eq!(f.diagnostics[0].file.as_deref(), Some("b.tf"));
}

#[test]
fn locked_state_message_names_the_owner() {
    let detail = "Error message: HTTP remote state already locked\nLock Info:\n  ID:        1\n  Path:      \n  Operation: OperationTypeApply\n  Who:       root@vpc-x2b4d-a1\n  Version:   1.10.6\n  Created:   2026-11-21 10:00:00 UTC\n";
    let f = of("plan", vec![diagnostic("Error acquiring the state lock", detail, None)]);
    assert_eq!(f.class, StateLocked);
    assert_eq!(f.message, "plan failed: the state is locked by root@vpc-x2b4d-a1 since 2026-11-21 10:00:00 UTC");
}

#[test]
fn plain_text_is_parsed_without_json() {
    let lines = [
        "╷",
        "│ Error: Unsupported argument",
        "│ ",
        "│   on main.tf line 12, in resource \"a\" \"b\":",
        "│   12:   x = 1",
        "╵",
        "11:55:29.301 ERROR  error occurred:",
        "",
        "* Failed to execute \"tofu init\" in ./.terragrunt-cache/a/b",
    ];
    let said = Said { tail: lines.iter().map(|l| (*l).to_owned()).collect(), ..Said::default() };
    let f = failure("init", Exit { code: 1, signal: None, told: false }, &said);
    assert_eq!(f.reason, reason::INVALID_CONFIGURATION);
    assert_eq!((f.diagnostics[0].file.as_deref(), f.diagnostics[0].line), (Some("main.tf"), Some(12)));
    assert!(!f.message.contains("Failed to execute"), "{}", f.message);
    let f = failure("init", Exit { code: 1, signal: None, told: false }, &Said { below: "live/a".into(), ..said });
    assert_eq!(f.diagnostics[0].file.as_deref(), Some("live/a/main.tf"));
    assert!(f.message.contains("live/a/main.tf line 12"), "{}", f.message);
}

#[test]
fn other_stream_is_no_part_of_an_error() {
    let said =
        ["Error: Failed to query available provider packages", "", "dial tcp 127.0.0.1:1: connect: connection refused", ""];
    let late =
        ["Initializing the backend...", "", "Initializing provider plugins...", "- Finding latest version of tests/none..."];
    let tail = said.iter().chain(&late).map(|line| (*line).to_owned()).collect();
    let f = failure("init", Exit { code: 1, signal: None, told: false }, &Said { tail, ..Said::default() });
    assert_eq!(f.reason, reason::PROVIDER_UNREACHABLE);
    assert!(f.message.ends_with("connection refused"), "{}", f.message);
}

#[test]
fn file_names_are_relative_to_the_source() {
    for (below, file, called) in [
        ("", "main.tf", "main.tf"),
        ("live/a", "./main.tf", "live/a/main.tf"),
        ("live/a", "../../modules/net/main.tf", "modules/net/main.tf"),
        ("live", "../../elsewhere.tf", "../../elsewhere.tf"),
        ("live", "/opt/x.tf", "/opt/x.tf"),
    ] {
        assert_eq!(in_source(Path::new(below), file), called);
    }
}

#[test]
fn output_before_the_signal_is_reported_as_well() {
    let plugin = Diagnostic { severity: "error".into(), summary: "Plugin did not respond".into(), ..Diagnostic::default() };
    let said = Said { diagnostics: vec![plugin], tail: vec!["ExpiredToken: it is of yesterday".into()], ..Said::default() };
    let told = |told| failure("plan", Exit { code: 1, signal: None, told }, &said).message;
    assert!(told(true).contains("Plugin did not respond") && told(true).ends_with("before: ExpiredToken: it is of yesterday"));
    assert!(!told(false).contains("ExpiredToken"));
    let shell = Said { tail: vec!["ExpiredToken: it is of yesterday".into(), "Killed".into()], ..Said::default() };
    let message = failure("plan", Exit { code: 137, signal: None, told: true }, &shell).message;
    assert!(message.ends_with("Killed; before: ExpiredToken: it is of yesterday"), "{message}");
}

#[test]
fn killed_tool_is_interrupted() {
    let f = failure("plan", Exit { code: 137, signal: Some(9), told: false }, &Said::default());
    assert_eq!((f.class, f.reason.as_str()), (FailureClass::Interrupted, reason::TOOL_KILLED));
    assert_eq!(f.message, "plan was ended by signal 9");
    let f = failure("plan", Exit { code: 137, signal: Some(9), told: true }, &Said::default());
    assert_eq!(f.class, Configuration, "a tool we killed says nothing of its own");
}

#[test]
fn lock_names_its_holder() {
    let detail = |first: &str, who: &str| {
        format!(
            "Error message: {first}\nLock Info:\n  ID:        l1\n  Path:      \n  Operation: OperationTypeApply\n  Who:       {who}\n  Version:   1.10.6\n  Created:   2026-11-21 10:00:00 +0000 UTC\n  Info:      \n"
        )
    };
    let of = |first: &str, who: &str| {
        let exit = Exit { code: 1, signal: None, told: false };
        let diagnostics = vec![diagnostic("Error acquiring the state lock", &detail(first, who), None)];
        lock(&failure("plan", exit, &Said { diagnostics, ..Said::default() }), "net-2xbdf-a2")
    };
    let known = of("HTTP remote state already locked: ID=l1", "pawl@net-2xbdf-a1").unwrap();
    assert_eq!((known.id.as_str(), known.who.as_str()), ("l1", "pawl@net-2xbdf-a1"));
    assert_eq!(known.created.as_deref(), Some("2026-11-21 10:00:00 +0000 UTC"));
    // Terraform prints its own lock info.
    let unknown = of("HTTP remote state already locked: ID=l9", "pawl@net-2xbdf-a2").unwrap();
    assert_eq!((unknown.id.as_str(), unknown.who.as_str(), unknown.created), ("l9", "unknown", None));
    assert_eq!(lock(&Reason::Throttled.failure("x"), "a"), None);
}

#[test]
fn bare_error_of_init_is_one_of_the_backend() {
    let refused = "dial tcp 127.0.0.1:9: connect: connection refused";
    assert_eq!(of("init", vec![diagnostic(refused, "", None)]).reason, reason::BACKEND_UNREACHABLE);
    assert_eq!(of("plan", vec![diagnostic(refused, "", None)]).reason, reason::PROVIDER_UNREACHABLE);
    assert_eq!(
        of("init", vec![diagnostic("Failed to resolve provider packages", refused, None)]).reason,
        reason::PROVIDER_UNREACHABLE
    );
    let module = diagnostic("Error accessing remote module registry", refused, Some(("main.tf", 1)));
    assert_eq!(of("init", vec![module]).reason, reason::PROVIDER_UNREACHABLE);
}

#[test]
fn backend_error_without_frame_is_parsed() {
    let tail = [
        "Initializing the backend...",
        "Error refreshing state: 2 problems:",
        "",
        "- Unsupported state file format: The state file could not be parsed as JSON: syntax error at byte offset 22.",
        "- Unsupported state file format: The state file does not have a \"version\" attribute.",
    ];
    let said = Said { tail: tail.map(str::to_owned).to_vec(), ..Said::default() };
    let f = failure("init", Exit { code: 1, signal: None, told: false }, &said);
    assert_eq!((f.class, f.reason.as_str()), (Integrity, reason::STATE_UNREADABLE));
    assert!(f.message.starts_with("init failed: Error refreshing state: 2 problems: - Unsupported state"), "{}", f.message);
    assert!(f.message.ends_with("\"version\" attribute."), "{}", f.message);
}

#[test]
fn last_words_begin_at_the_first_error_line() {
    let of = |tail: &[&str]| {
        let said = Said { tail: tail.iter().map(|line| (*line).to_owned()).collect(), ..Said::default() };
        failure("init", Exit { code: 1, signal: None, told: false }, &said).message
    };
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
    let terragrunt =
        ["10:00:00.000 INFO   reading", "10:00:00.100 ERROR  Unable to read the unit", "", "https://docs.example.com"];
    assert_eq!(of(&terragrunt), "init failed: Unable to read the unit");
    assert_eq!(of(&["one", "two"]), "init failed: two");
}

#[test]
fn invalid_module_argument_is_a_code_error() {
    let at = |address: Option<&str>| {
        let told = diagnostic("Invalid value for variable", "var.size is -1.\nIt must be positive.", Some(("main.tf", 1)));
        of("plan", vec![Diagnostic { address: address.map(Into::into), ..told }]).reason
    };
    assert_eq!(at(Some("var.size")), reason::VARIABLE_INVALID);
    assert_eq!(at(None), reason::INVALID_CONFIGURATION);
}

#[test]
fn object_that_fails_in_apply_is_no_code_error() {
    let told = || Diagnostic {
        address: Some("t.a".into()),
        ..diagnostic("local-exec provisioner error", "exit status 3", Some(("main.tf", 2)))
    };
    let f = of("apply", vec![told()]);
    assert_eq!((f.class, f.reason.as_str()), (Configuration, reason::APPLY_FAILED));
    assert_eq!(f.message, "apply failed: local-exec provisioner error (t.a, main.tf line 2): exit status 3");
    assert_eq!(of("plan", vec![told()]).reason, reason::INVALID_CONFIGURATION);
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
    let f = failure("plan", Exit { code: 1, signal: None, told: false }, &said);
    assert_eq!(
        f.message,
        "plan failed: Invalid index (m/main.tf line 4): Why; 5 more errors: Precondition failed (m/main.tf line 7), 2 times, \
         Other (m/main.tf line 9)"
    );
}

#[test]
fn text_is_shortened_between_words_and_retains_the_cause() {
    assert_eq!(shorten("as it\n is", 20), "as it is");
    let text = format!("creating thing: {}: the quota is exceeded", "and so on ".repeat(60));
    let short = shorten(&text, 100);
    assert!(short.chars().count() <= 100, "{short}");
    assert!(short.starts_with("creating thing: and so") && short.ends_with(": the quota is exceeded"), "{short}");
    assert!(short.contains(" … "), "{short}");
    assert!(shorten(&"x".repeat(500), 50).chars().count() <= 50);
}

#[test]
fn general_text_on_locks_does_not_hide_the_cause() {
    let detail = "Error message: dial tcp: connection refused\n\nOpenTofu acquires a state lock to protect the state from being written\nby \
                  multiple users at the same time.";
    let f = of("plan", vec![diagnostic("Error acquiring the state lock", detail, None)]);
    assert_eq!(f.message, "plan failed: Error acquiring the state lock: Error message: dial tcp: connection refused");
}
