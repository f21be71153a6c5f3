//! Failures of an attempt: class and reason, and whether the run ends.

use crate::common::{start, start_with};
use crds::{Changed, FailureClass, RunResult, reason};
use serde_json::json;

#[tokio::test]
async fn credentials_that_worked_are_tried_again() {
    const READ: &str =
        r#"{"@message":"r","type":"refresh_complete","hook":{"resource":{"addr":"a.b"}}}"#;
    let refused = |before: &str, summary: &str| {
        format!(
            "printf '%s\\n' '{before}' '{{\"@message\":\"e\",\"type\":\"diagnostic\",\"diagnostic\":{{\"severity\":\"error\",\"summary\":\"{summary}\",\
             \"detail\":\"StatusCode: 403, api error ExpiredToken: x\"}}}}'; exit 1"
        )
    };
    let of_provider = "reading EC2 VPC";
    for (before, summary, class) in [
        ("", of_provider, FailureClass::Credentials),
        (READ, of_provider, FailureClass::Transient),
        ("", "Error refreshing state", FailureClass::Transient),
    ] {
        let mut a = start(&json!({}), &[("PLAN", &refused(before, summary))]);
        a.end().await;
        let failure = a.api.status().failure.unwrap();
        assert_eq!(
            (failure.class, failure.reason.as_str()),
            (class, reason::UNAUTHORIZED),
            "{failure:?}"
        );
    }
}

#[tokio::test]
async fn silent_git_server_ends_setup_at_its_deadline() {
    // A Git server that accepts a connection and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let git = json!({"url": format!("http://{}/stack.git", silent.local_addr().unwrap()), "revision": "main"});
    let mut a = start_with(
        &json!({"stack": "a", "source": {"git": git}, "timeouts": {"setup": "3s"}}),
        &[],
        |_, _| {},
    );
    a.fails(FailureClass::Timeout, reason::DEADLINE_EXCEEDED)
        .await;
    assert!(a.ledger().is_empty());
}

/// A script of the tool that prints an error, with further fields, and ends.
fn error(summary: &str, detail: &str, more: &str) -> String {
    let diagnostic = format!(
        "{{\"severity\":\"error\",\"summary\":\"{summary}\",\"detail\":\"{detail}\"{more}}}"
    );
    format!(
        "echo '{{\"@level\":\"error\",\"@message\":\"Error\",\"type\":\"diagnostic\",\"diagnostic\":{diagnostic}}}'; exit 1"
    )
}

/// The standard input of the tool is empty, so no question waits for an answer.
#[tokio::test]
async fn prompt_ends_its_phase_and_is_not_retried() {
    let eof = error(
        "Error asking for input to configure the provider",
        "provider.x.token: EOF",
        "",
    );
    let asks = format!(
        "printf 'provider.x.token\\n  Enter a value: \\n'; read answer && echo answered >> $LEDGER; {eof}"
    );
    for at in ["PLAN", "APPLY"] {
        let mut a = start(&json!({}), &[(at, &asks)]);
        let failure = a
            .fails(FailureClass::Configuration, reason::INPUT_REQUIRED)
            .await;
        let status = a.api.status();
        assert!(
            failure.message.contains("provider.x.token"),
            "{}",
            failure.message
        );
        assert_eq!(
            (status.result, a.ran("answered")),
            (Some(RunResult::Failed), 0),
            "{at}"
        );
        assert!(
            a.log().contains("provider.x.token\n  Enter a value: \n"),
            "{}",
            a.log()
        );
    }
}

#[tokio::test]
async fn failures_have_class_and_reason() {
    let range = ",\"range\":{\"filename\":\"main.tf\",\"start\":{\"line\":7}}";
    let (network, code, kill, exists) = (
        error("Failed to query", "dial tcp: no such host", ""),
        error("Unsupported argument", "No.", range),
        "kill -9 $$".to_owned(),
        error(
            "creating IAM Role: EntityAlreadyExists: Role with name web already exists.",
            "",
            ",\"address\":\"a.b\"",
        ),
    );
    // (where, what, class, reason, whether the run ends)
    let rows = [
        (
            "INIT",
            &network,
            FailureClass::Transient,
            reason::PROVIDER_UNREACHABLE,
            false,
        ),
        (
            "PLAN",
            &network,
            FailureClass::Transient,
            reason::PROVIDER_UNREACHABLE,
            false,
        ),
        (
            "PLAN",
            &code,
            FailureClass::Configuration,
            reason::INVALID_CONFIGURATION,
            true,
        ),
        (
            "PLAN",
            &kill,
            FailureClass::Interrupted,
            reason::TOOL_KILLED,
            false,
        ),
        (
            "APPLY",
            &network,
            FailureClass::Transient,
            reason::PROVIDER_UNREACHABLE,
            true,
        ),
        (
            "APPLY",
            &kill,
            FailureClass::Interrupted,
            reason::TOOL_KILLED,
            true,
        ),
        (
            "APPLY",
            &exists,
            FailureClass::Configuration,
            reason::ALREADY_EXISTS,
            true,
        ),
    ];
    for (at, script, class, reason, ends) in rows {
        let mut a = start(&json!({}), &[(at, script)]);
        let failure = a.fails(class, reason).await;
        let status = a.api.status();
        assert_eq!(status.result.is_some(), ends, "{at} {reason}");
        assert_eq!(status.phase.unwrap().is_terminal(), ends);
        assert_eq!(
            failure.changes,
            if at == "APPLY" {
                Changed::Unknown
            } else {
                Changed::None
            }
        );
        if script == &exists {
            assert!(
                failure
                    .message
                    .contains(r#"{"import":{"to":"a.b","id":"web"}}"#),
                "{}",
                failure.message
            );
            assert!(a.log().contains("to = a.b\n  id = \"web\""), "{}", a.log());
        }
        if script == &code {
            assert_eq!(
                (
                    failure.diagnostics[0].file.as_deref(),
                    failure.diagnostics[0].line
                ),
                (Some("main.tf"), Some(7))
            );
            // The code is in the spec.
            assert!(
                status
                    .step()
                    .unwrap()
                    .starts_with("create a run with corrected spec.source.inline.files")
            );
        }
    }
}

#[tokio::test]
async fn local_state_is_refused_before_the_plan() {
    let mut a = start(
        &json!({"operation": "Plan"}),
        &[("INIT", "rm .terraform/terraform.tfstate")],
    );
    a.fails(FailureClass::Configuration, reason::NO_DURABLE_STATE)
        .await;
    assert_eq!(a.ledger(), ["init"]);
}

#[tokio::test]
async fn exit_code_two_without_a_plan_fails() {
    let rows = [
        (
            "PLAN",
            "rm \"$out\"; echo 'fatal error: concurrent map writes' >&2",
            "{}",
            reason::PLAN_FAILED,
        ),
        ("NONE", "", "{\"errored\":true}", reason::PLAN_FAILED),
        (
            "NONE",
            "",
            "{\"resource_changes\":[",
            reason::PLAN_UNREADABLE,
        ),
    ];
    for (name, script, json, reason) in rows {
        let mut a = start(&json!({}), &[(name, script), ("PLAN_JSON", json)]);
        assert_eq!(a.ends(1).await.failure.unwrap().reason, reason);
        assert_eq!(a.ran("apply"), 0);
    }
}
