//! Tests with messages of the tools.

mod locks;
mod texts;

use std::path::Path;

use FailureClass::{Credentials, Integrity, StalePlan, StateLocked, Transient};

use crds::reason;

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

const FAILED: Exit = Exit {
    code: 1,
    signal: None,
    told: false,
};

fn of(step: &str, diagnostics: Vec<Diagnostic>) -> Failure {
    failure(
        step,
        FAILED,
        &Said {
            diagnostics,
            ..Said::default()
        },
    )
}

fn assert_is(f: &Failure, class: FailureClass, reason: &str, text: &str) {
    assert_eq!((f.class, f.reason.as_str()), (class, reason), "{text}");
}

/// The failure of a command with these last lines that are no JSON.
fn of_tail(tail: &[&str]) -> Failure {
    let tail = tail.iter().map(|line| (*line).to_owned()).collect();
    failure(
        "init",
        FAILED,
        &Said {
            tail,
            ..Said::default()
        },
    )
}

#[test]
fn known_texts_have_class_and_reason() {
    // Summary and detail of a diagnostic, or the summary alone.
    type Row = (FailureClass, &'static str, &'static [&'static str]);
    let rows: &[Row] = &[
        (
            Transient,
            reason::PROVIDER_UNREACHABLE,
            &[
                "Failed to query available provider packages|could not connect to registry.opentofu.org: failed to request \
                 discovery document: Get \"https://…\": dial tcp: lookup registry.opentofu.org: no such host",
                "Failed to install provider|Error while installing hashicorp/aws: net/http: TLS handshake timeout",
                "Invalid provider registry host|The host is up: 503 Service Unavailable returned from it",
                "Failed to download module|Could not download module \"m\" (main.tf:1) source code from \"http://s/m.zip\": bad response code: 503",
            ],
        ),
        (
            Transient,
            reason::BACKEND_UNREACHABLE,
            &[
                "Error refreshing state|read tcp 10.0.0.1: connection reset by peer",
                "Error acquiring the state lock|Error message: Failed to make LOCK HTTP request: dial tcp 127.0.0.1:9: connect: \
                 connection refused",
                "Failed to get existing workspaces: operation error S3: Get \"http://s3\": dial tcp: connection refused",
                // AWS's SDK v2, OpenTofu 1.12.6 and Terraform 1.11.4 with versitygw; the lock's request under the heading of a lock.
                "Error refreshing state|operation error S3: GetObject, https response error StatusCode: 503, RequestID: , HostID: , api error \
                 ServiceUnavailable: x",
                "Error acquiring the state lock|Error message: operation error S3: PutObject, exceeded maximum number of attempts, 3, https \
                 response error StatusCode: 500, RequestID: x, api error InternalError: y",
                "Error acquiring the state lock|Error message: operation error S3: PutObject, https response error StatusCode: 409, api error \
                 ConditionalRequestConflict: z",
                "Error acquiring the state lock|Error message: Failed to make LOCK HTTP request: LOCK http://s/a giving up after 3 attempt(s)",
                "Error refreshing state: Failed to get state: GET http://s/a giving up after 3 attempt(s)",
                "Error loading state|failed to lock state in Postgres: pq: the database system is starting up",
                "Error acquiring the state lock|Error message: etcdserver: request timed out",
                "Error refreshing state|googleapi: Error 503: Backend Error, backendError",
            ],
        ),
        (
            Transient,
            reason::THROTTLED,
            &[
                "creating EC2 Instance|api error RequestLimitExceeded: Request limit exceeded.",
                "Error|app.terraform.io: 429 Too Many Requests",
                "Failed to download module|source code from \"http://s/m.zip\": bad response code: 429",
                "Error refreshing state|operation error S3: GetObject, https response error StatusCode: 429, api error TooManyRequests: x",
            ],
        ),
        (
            Credentials,
            reason::UNAUTHORIZED,
            &[
                "error configuring S3 Backend|no valid credential sources for S3 Backend found.",
                "reading EC2 VPC|api error ExpiredToken: The security token included in the request is expired",
                "Failed to get existing workspaces|HTTP remote state endpoint requires auth",
                "Error acquiring the state lock|Error message: operation error S3: PutObject, https response error StatusCode: 403, api error \
                 AccessDenied: Access Denied.",
                "Failed to get existing workspaces: operation error S3: ListObjectsV2, https response error StatusCode: 404, api error \
                 XAdminUserNotFound: x",
                "Error loading state|pq: permission denied for schema public",
                "Failed to get existing workspaces|pq: password authentication failed for user \"u\"",
                "Error loading state|secrets is forbidden: User \"u\" cannot list resource \"secrets\" in API group \"\" in the namespace \"n\"",
                "Error acquiring the state lock|Error message: leases.coordination.k8s.io \"l\" is forbidden: User \"u\" cannot get resource",
                "Failed to get existing workspaces|containers.Client#ListBlobs: 403 Server failed to authenticate the request: AuthorizationFailure",
                "Failed to download module|source code from \"http://s/m.zip\": bad response code: 401",
                "Failed to download module|fatal: unable to access 'https://h/m.git/': The requested URL returned error: 403",
                "Failed to download module|fatal: could not read Username for 'https://git.example.com': terminal prompts disabled",
            ],
        ),
        (
            StateLocked,
            reason::STATE_LOCKED,
            &[
                "Error acquiring the state lock|Error message: resource temporarily unavailable",
                "Error locking state|HTTP remote state already locked: ID=1",
                "Error acquiring the state lock|Error message: Workspace is already locked: default",
                "Error loading state: Already locked for workspace creation: default",
                "Error acquiring the state lock|Error message: writing \"gs://b/default.tflock\" failed: googleapi: Error 412: x, conditionNotMet",
                "Error loading state|the state is already locked by another tofu client",
                "Failed to load state: the state is already locked by another tofu client",
            ],
        ),
        (
            Integrity,
            reason::STATE_UNREADABLE,
            &[
                "Error acquiring the state lock|Error message: Unsupported state file format: The state file could not be parsed as \
               JSON: syntax error at byte offset 22.",
            ],
        ),
        (
            Transient,
            reason::STATE_UNREADABLE,
            &["Error refreshing state|state data in S3 does not have the expected content."],
        ),
        (
            Configuration,
            reason::STATE_TOO_NEW,
            &[
                "Error refreshing state|Unsupported state file format: The state file uses format version 5, which is not \
                 supported by OpenTofu 1.10.6.",
                "Error loading state|state snapshot was created by Terraform v1.9.0, which is newer than current v1.5.7",
            ],
        ),
        (
            StalePlan,
            reason::STALE_PLAN,
            &[
                "Saved plan is stale|The given plan file can no longer be applied",
                "Saved plan does not match the given state|different lineage",
            ],
        ),
        (
            Transient,
            reason::STATE_NOT_SAVED,
            &[
                "Failed to save state|Error saving state: HTTP error: 500",
                "Failed to save state|write errored.tfstate: no space left on device",
            ],
        ),
        (
            Integrity,
            reason::CHECKSUM_MISMATCH,
            &[
                "Failed to install provider|the current package doesn't match any of the checksums previously recorded",
            ],
        ),
        (
            Configuration,
            reason::INVALID_CONFIGURATION,
            &[
                "Inconsistent dependency lock file|provider x: required by this configuration but no version is selected",
            ],
        ),
        (
            Configuration,
            reason::VERSION_CONTRADICTION,
            &[
                "Unsupported Terraform Core version|requires >= 2",
                "Incompatible module|This module is not compatible with OpenTofu v1.12.6.",
            ],
        ),
        (
            Configuration,
            reason::VARIABLE_NOT_SET,
            &["No value for required variable|The variable \"x\" is not set"],
        ),
        (
            Configuration,
            reason::VARIABLE_INVALID,
            &["Value for undeclared variable|A variable named \"siez\" was"],
        ),
        (
            Configuration,
            reason::INPUT_REQUIRED,
            &["Error asking for input to configure the provider|provider.x.token: EOF"],
        ),
        (
            Integrity,
            reason::HOST_KEY_NOT_KNOWN,
            &[
                "Failed to download module|ssh: Host key verification failed. fatal: Could not read from remote repository.",
            ],
        ),
        (
            Transient,
            reason::DISK_FULL,
            &[
                "Failed to install provider|Error while installing hashicorp/aws: write /pawl/work/x: no space left on device",
            ],
        ),
        (
            Configuration,
            reason::PLAN_FAILED,
            &[
                "creating thing|the thing is not allowed to be blue",
                // The system has no more processes, which is no lock.
                "Error refreshing state|process credentials: fork/exec /bin/sh: resource temporarily unavailable",
            ],
        ),
    ];
    for (class, reason, texts) in rows {
        for text in *texts {
            let (summary, detail) = text.split_once('|').unwrap_or((text, ""));
            assert_is(
                &of("plan", vec![diagnostic(summary, detail, None)]),
                *class,
                reason,
                text,
            );
            // For any command that prompts.
            if *reason == reason::INPUT_REQUIRED {
                for step in ["init", "apply"] {
                    assert_is(
                        &of(step, vec![diagnostic(summary, detail, None)]),
                        *class,
                        reason,
                        step,
                    );
                }
            }
        }
    }
}

#[test]
fn full_disk_is_no_fault_of_the_agent() {
    let broken = std::io::Error::from_raw_os_error;
    for (code, class, reason) in [
        (28, Transient, reason::DISK_FULL),
        (122, Transient, reason::DISK_FULL),
        (13, FailureClass::Internal, reason::AGENT_FAULT),
    ] {
        assert_is(
            &internal("the source cannot be written", &broken(code)),
            class,
            reason,
            "internal",
        );
        assert_is(
            &not_run("init", &RunError::Spawn(broken(code))),
            class,
            reason,
            "not run",
        );
    }
}

#[test]
fn cause_of_ssh_is_whole_between_lines_of_git() {
    let detail = "Could not download module: error downloading 'ssh://git@git.example.com/platform/a-module-with-a-long-name.git?ref=v1.2.3': \
        /usr/bin/git exited with 128: Cloning into '.terraform/modules/network.subnets.of.a.long.name'...\nNo user exists for uid 1000680000\r\n\
        fatal: Could not read from remote repository.\n\nPlease make sure you have the correct access rights\nand the repository exists.";
    let failure = of(
        "init",
        vec![diagnostic("Failed to download module", detail, None)],
    );
    assert_is(&failure, Configuration, reason::SOURCE_INVALID, "for uid");
    let message = failure.message;
    assert!(
        message.contains("No user exists for uid 1000680000") && message.contains("/etc/passwd"),
        "{message}"
    );
}

#[test]
fn code_error_names_file_and_line() {
    let f = of(
        "init",
        vec![
            diagnostic(
                "Terraform encountered problems during initialisation",
                "",
                None,
            ),
            diagnostic(
                "Invalid string literal",
                "This item is not valid.",
                Some(("b.tf", 3)),
            ),
        ],
    );
    assert_is(&f, Configuration, reason::INVALID_CONFIGURATION, "");
    assert_eq!(
        f.message,
        "init failed: Invalid string literal (b.tf line 3): This item is not valid."
    );
    assert_eq!(f.diagnostics[0].file.as_deref(), Some("b.tf"));
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
    let f = of_tail(&lines);
    assert_eq!(f.reason, reason::INVALID_CONFIGURATION);
    assert_eq!(
        (f.diagnostics[0].file.as_deref(), f.diagnostics[0].line),
        (Some("main.tf"), Some(12))
    );
    assert!(!f.message.contains("Failed to execute"), "{}", f.message);
    let tail = lines.map(str::to_owned).into();
    let f = failure(
        "init",
        FAILED,
        &Said {
            tail,
            below: "live/a".into(),
            ..Said::default()
        },
    );
    assert_eq!(f.diagnostics[0].file.as_deref(), Some("live/a/main.tf"));
    assert!(
        f.message.contains("live/a/main.tf line 12"),
        "{}",
        f.message
    );
}

#[test]
fn other_stream_is_no_part_of_an_error() {
    let f = of_tail(&[
        "Error: Failed to query available provider packages",
        "",
        "dial tcp 127.0.0.1:1: connect: connection refused",
        "",
        "Initializing the backend...",
        "",
        "Initializing provider plugins...",
        "- Finding latest version of tests/none...",
    ]);
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
    let plugin = Diagnostic {
        severity: "error".into(),
        summary: "Plugin did not respond".into(),
        ..Diagnostic::default()
    };
    let said = Said {
        diagnostics: vec![plugin],
        tail: vec!["ExpiredToken: it is of yesterday".into()],
        ..Said::default()
    };
    let told = |told| failure("plan", Exit { told, ..FAILED }, &said).message;
    assert!(
        told(true).contains("Plugin did not respond")
            && told(true).ends_with("before: ExpiredToken: it is of yesterday")
    );
    assert!(!told(false).contains("ExpiredToken"));
    let shell = Said {
        tail: vec!["ExpiredToken: it is of yesterday".into(), "Killed".into()],
        ..Said::default()
    };
    let message = failure(
        "plan",
        Exit {
            code: 137,
            signal: None,
            told: true,
        },
        &shell,
    )
    .message;
    assert!(
        message.ends_with("Killed; before: ExpiredToken: it is of yesterday"),
        "{message}"
    );
}

#[test]
fn killed_tool_is_interrupted() {
    let f = failure(
        "plan",
        Exit {
            code: 137,
            signal: Some(9),
            told: false,
        },
        &Said::default(),
    );
    assert_is(&f, FailureClass::Interrupted, reason::TOOL_KILLED, "");
    assert_eq!(f.message, "plan was ended by signal 9");
    let f = failure(
        "plan",
        Exit {
            code: 137,
            signal: Some(9),
            told: true,
        },
        &Said::default(),
    );
    assert_eq!(
        f.class, Configuration,
        "a tool we killed says nothing of its own"
    );
}

#[test]
fn words_of_a_check_have_no_reason() {
    for words in [
        "write errored.tfstate: no space left on device",
        "saved plan is stale",
        "connection refused",
        "ExpiredToken",
    ] {
        for (summary, reason) in [
            ("Invalid value for variable", reason::VARIABLE_INVALID),
            (
                "Resource postcondition failed",
                reason::INVALID_CONFIGURATION,
            ),
        ] {
            let told = Diagnostic {
                address: Some("var.x".into()),
                ..diagnostic(summary, words, Some(("main.tf", 1)))
            };
            assert_is(&of("plan", vec![told]), Configuration, reason, words);
        }
    }
}

#[test]
fn bare_error_of_init_is_one_of_the_backend() {
    let refused = "dial tcp 127.0.0.1:9: connect: connection refused";
    assert_eq!(
        of("init", vec![diagnostic(refused, "", None)]).reason,
        reason::BACKEND_UNREACHABLE
    );
    assert_eq!(
        of("plan", vec![diagnostic(refused, "", None)]).reason,
        reason::PROVIDER_UNREACHABLE
    );
    assert_eq!(
        of(
            "init",
            vec![diagnostic(
                "Failed to resolve provider packages",
                refused,
                None
            )]
        )
        .reason,
        reason::PROVIDER_UNREACHABLE
    );
    let module = diagnostic(
        "Error accessing remote module registry",
        refused,
        Some(("main.tf", 1)),
    );
    assert_eq!(
        of("init", vec![module]).reason,
        reason::PROVIDER_UNREACHABLE
    );
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
    let f = of_tail(&tail);
    assert_is(&f, Integrity, reason::STATE_UNREADABLE, "");
    assert!(
        f.message
            .starts_with("init failed: Error refreshing state: 2 problems: - Unsupported state"),
        "{}",
        f.message
    );
    assert!(
        f.message.ends_with("\"version\" attribute."),
        "{}",
        f.message
    );
}
