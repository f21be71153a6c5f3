//! Tests of the processing of a command's output.

use tokio::sync::mpsc;

use super::*;

fn feed(lines: &[&str]) -> (String, Said, Operations, Vec<Notice>) {
    let (events, mut seen) = quiet_events();
    let mut events = events.total(2);
    for line in lines {
        events.line(Source::Out, line, 0);
    }
    let text = String::from_utf8(std::mem::take(&mut events.out)).unwrap();
    events.progressed = true;
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(events.chunk());
    let mut notices = Vec::new();
    while let Ok(notice) = seen.try_recv() {
        if !matches!(notice, Notice::Happened) {
            notices.push(notice);
        }
    }
    (text, events.said(), events.operations(), notices)
}

#[test]
fn events_are_shown_in_the_tools_words() {
    let (text, said, _, _) = feed(&[
        r#"{"@level":"info","@message":"Terraform 1.11.4","type":"version"}"#,
        "plain line with hunter22",
        "\r{\"@level\":\"info\",\"@message\":\"Interrupt received.\",\"type\":\"log\"}",
        r#"{"@level":"error","@message":"Error: Reference to undeclared input variable","diagnostic":{"severity":"error","summary":"Reference to undeclared input variable","detail":"An input variable \"nope\".","range":{"filename":"b.tf","start":{"line":1,"column":41,"byte":40},"end":{"line":1,"column":49,"byte":48}},"snippet":{"context":"resource \"terraform_data\" \"b\"","code":"input = var.nope","start_line":1}},"type":"diagnostic"}"#,
        r#"{"broken"#,
    ]);
    let begins = "Terraform 1.11.4\nplain line with (sensitive value)\nInterrupt received.\nError: Reference to undeclared";
    assert!(text.starts_with(begins), "{text}");
    assert!(
        text.contains(
            "  on b.tf line 1, in resource \"terraform_data\" \"b\":\n   1: input = var.nope\n"
        ),
        "{text}"
    );
    assert_eq!(
        (
            said.diagnostics[0].file.as_deref(),
            said.diagnostics[0].line
        ),
        (Some("b.tf"), Some(1))
    );
    assert_eq!(
        said.tail,
        ["plain line with (sensitive value)", "{\"broken"]
    );
}

#[test]
fn terminal_shows_repeated_events_once() {
    let (events, _seen) = quiet_events();
    let mut events = events.brief(true);
    for line in [
        r#"{"@message":"Terraform 1.11.4","type":"version"}"#,
        r#"{"@message":"a: Plan to create","type":"planned_change"}"#,
        r#"{"@message":"Plan: 1 to add","type":"change_summary"}"#,
        r#"{"@message":"a: Creating...","type":"apply_start"}"#,
        r#"{"@message":"Apply complete!","type":"change_summary"}"#,
        r#"{"@message":"Outputs: 1","outputs":{"o":{"sensitive":false,"value":1}},"type":"outputs"}"#,
    ] {
        events.line(Source::Out, line, 0);
    }
    assert_eq!(
        String::from_utf8_lossy(&events.out),
        "a: Creating...\nApply complete!\n\nOutputs:\n\no = 1\n"
    );
}

#[test]
fn actions_are_shown_and_may_have_changed_something() {
    // The form of Terraform 1.14.3.
    let told = |kind: &str, words: &str| {
        format!(
            r#"{{"@level":"info","@message":"a.b (0): {words}","hook":{{"action":{{"addr":"action.acting_call.purge","module":"","action":"action.acting_call.purge","action_type":"acting_call","action_key":null}},"resource":{{"addr":"a.b"}},"lifecycle":{{"trigger_event":"BeforeCreate"}}}},"type":"{kind}"}}"#
        )
    };
    let planned = told("planned_action_invocation", "Plan to invoke");
    let (begun, ended, failed) = (
        told("action_start", "Action Started"),
        told("action_complete", "Action Complete"),
        told("action_errored", "Action Errored"),
    );
    let of = |lines: &[&str]| {
        let (text, said, operations, notices) = feed(lines);
        assert!(!text.contains('{'), "{text}");
        (
            said.invoked().unwrap_or_default(),
            operations.changed(),
            notices,
        )
    };
    assert_eq!(of(&[&planned]).1, Changed::None);
    let (words, changed, notices) = of(&[&planned, &begun]);
    assert_eq!(
        (words.as_str(), changed),
        ("action.acting_call.purge was begun", Changed::Unknown)
    );
    assert!(
        matches!(&notices[0], Notice::Progress(p) if p.current.as_deref() == Some("action.acting_call.purge")),
        "{notices:?}"
    );
    let (words, changed, _) = of(&[&begun, &failed]);
    assert_eq!(
        (words.as_str(), changed),
        ("action.acting_call.purge failed", Changed::Unknown)
    );
    let (words, changed, _) = of(&[&begun, &ended]);
    assert_eq!(
        (words.as_str(), changed),
        ("action.acting_call.purge ended", Changed::Some)
    );
    // A later form of an event loses its message to nothing.
    let (text, ..) =
        feed(&[r#"{"@message":"shown","hook":{"action":[1]},"outputs":[],"type":"later"}"#]);
    assert_eq!(text, "shown\n");
}

#[test]
fn apply_reports_progress_and_outputs() {
    let start = |n: u32| {
        format!(
            r#"{{"@message":"a[{n}]: Creating...","hook":{{"resource":{{"addr":"a[{n}]"}},"action":"create"}},"type":"apply_start"}}"#
        )
    };
    let done = |n: u32| {
        format!(
            r#"{{"@message":"done","hook":{{"resource":{{"addr":"a[{n}]"}},"action":"create"}},"type":"apply_complete"}}"#
        )
    };
    let read = r#"{"@message":"r","hook":{"resource":{"addr":"data.x"},"action":"read"},"type":"apply_start"}"#;
    let (_, _, operations, notices) = feed(&[&start(0), &start(1), &done(0), read]);
    assert_eq!(
        operations,
        Operations {
            begun: 2,
            done: 1,
            total: 2
        }
    );
    assert_eq!(operations.changed(), Changed::Some);
    assert!(
        matches!(&notices[..], [Notice::Progress(p)] if p.done == 1 && p.total == 2 && p.current.as_deref() == Some("a[1]"))
    );
    let outputs = r#"{"@message":"Outputs: 2","outputs":{"o":{"sensitive":false,"type":"string","value":"1"},"s":{"sensitive":true,"type":"string"}},"type":"outputs"}"#;
    let (text, ..) = feed(&[outputs]);
    assert_eq!(
        text,
        "Outputs: 2\n\nOutputs:\n\no = \"1\"\ns = <sensitive>\n"
    );
    assert_eq!(
        Operations {
            begun: 1,
            ..Operations::default()
        }
        .changed(),
        Changed::Unknown
    );
}

fn quiet_events() -> (Events, mpsc::UnboundedReceiver<Notice>) {
    let (notices, seen) = mpsc::unbounded_channel();
    let redactor = Redactor::default();
    redactor.add("hunter22");
    (
        Events::new(Log::to(std::io::sink()), redactor, notices),
        seen,
    )
}

/// Sends a line as a chunk of its own. Returns whether an activity notice followed.
async fn tells(
    events: &mut Events,
    seen: &mut mpsc::UnboundedReceiver<Notice>,
    source: Source,
    line: &str,
) -> bool {
    events.told_at = None;
    events.line(source, line, 0);
    events.chunk().await;
    std::iter::from_fn(|| seen.try_recv().ok())
        .filter(|notice| matches!(notice, Notice::Happened))
        .count()
        == 1
}

#[tokio::test]
async fn heartbeat_is_no_activity() {
    let (mut events, mut seen) = quiet_events();
    let event = |kind: &str| {
        format!(
            r#"{{"@message":"a: ...","hook":{{"resource":{{"addr":"a"}},"action":"create"}},"type":"{kind}"}}"#
        )
    };
    for kind in ["apply_progress", "ephemeral_op_progress"] {
        assert!(
            !tells(&mut events, &mut seen, Source::Out, &event(kind)).await,
            "{kind}"
        );
    }
    let kinds = "apply_start apply_complete refresh_start provision_progress log diagnostic of_a_later_version";
    for kind in kinds.split(' ') {
        assert!(
            tells(&mut events, &mut seen, Source::Out, &event(kind)).await,
            "{kind}"
        );
    }
    for (source, line) in [
        (Source::Out, "words"),
        (Source::Out, ""),
        (Source::Err, "words"),
        (Source::Err, &event("apply_progress")),
    ] {
        assert!(tells(&mut events, &mut seen, source, line).await, "{line}");
    }
    // An empty chunk.
    events.told_at = None;
    events.chunk().await;
    assert!(seen.try_recv().is_err());
}

#[tokio::test]
async fn flood_sends_one_activity_notice_a_second() {
    let (mut events, mut seen) = quiet_events();
    let begun = std::time::Instant::now();
    for _ in 0..1_000 {
        events.line(Source::Out, "flood", 0);
        events.chunk().await;
    }
    assert!(matches!(seen.try_recv(), Ok(Notice::Happened)));
    let more = std::iter::from_fn(|| seen.try_recv().ok()).count();
    assert!(
        more as u64 <= begun.elapsed().as_secs(),
        "{more} notices of a flood that took {:?}",
        begun.elapsed()
    );
    // The next heartbeat does not report the dropped activity.
    assert!(
        !tells(
            &mut events,
            &mut seen,
            Source::Out,
            r#"{"@message":"a","type":"apply_progress"}"#
        )
        .await
    );
}

#[test]
fn truncated_line_is_marked_and_shows_no_part_of_a_secret() {
    let (mut events, _seen) = quiet_events();
    events.line(Source::Out, "x hunter22 y hunt", 7);
    let text = String::from_utf8(std::mem::take(&mut events.out)).unwrap();
    assert_eq!(
        text,
        "x (sensitive value) y (sensitive value)… [7 more bytes of this line were cut]\n"
    );
    assert_eq!(events.said().tail, [text.trim_end()]);
}

#[test]
fn shortened_text_shows_no_part_of_a_secret() {
    let (mut events, _seen) = quiet_events();
    for at in 0..12 {
        let text = format!("{}hunter22 and more", "x".repeat(MAX_TEXT - at));
        events.line(Source::Out, &text, 0);
        let detail = format!("{}hunter22 and more", "x".repeat(MAX_DETAIL - at));
        let event = format!(
            r#"{{"type":"diagnostic","diagnostic":{{"severity":"error","summary":"s","detail":"{detail}"}}}}"#
        );
        events.line(Source::Out, &event, 0);
        let said = events.said();
        assert!(!said.tail[0].contains("hunt"), "{at}");
        let detail = said.diagnostics[0].detail.clone().unwrap();
        assert!(
            !detail.contains("hunt") && detail.len() <= MAX_DETAIL,
            "{at}"
        );
    }
}

#[test]
fn sensitive_output_is_masked_even_if_the_tool_prints_it() {
    let outputs = r#"{"@message":"Outputs: 1","outputs":{"s":{"sensitive":true,"type":"string","value":"not-for-you"}},"type":"outputs"}"#;
    let (text, said, ..) = feed(&[outputs]);
    assert_eq!(text, "Outputs: 1\n\nOutputs:\n\ns = <sensitive>\n");
    assert!(said.tail.is_empty() && said.diagnostics.is_empty());
}

#[test]
fn shown_text_contains_no_terminal_controls() {
    let told =
        "evil \\u001b[2J\\u001b]0;t\\u0007 \\u202etxt.exe \\u2066x\\u2069 \\u001b[31mred\\u001b[0m";
    let message = format!(r#"{{"@message":"{told}","type":"log"}}"#);
    let diagnostic = format!(
        r#"{{"type":"diagnostic","diagnostic":{{"severity":"error","summary":"{told}","detail":"{told}"}}}}"#
    );
    let raw = "raw \u{1b}[2J \u{202e}txt.exe \u{9b}2J \r over \u{1b}[31mred";
    let (text, said, ..) = feed(&[&message, &diagnostic, raw]);
    let texts = [
        text,
        said.diagnostics[0].summary.clone(),
        said.diagnostics[0].detail.clone().unwrap(),
        said.tail[0].clone(),
    ];
    for text in texts {
        assert!(
            !text
                .chars()
                .any(|c| c.is_control() && c != '\n' || crds::text::reorders(c)),
            "{text:?}"
        );
        assert!(
            text.contains("^[[2J") && text.contains("<U+202E>txt.exe") && text.contains("red"),
            "{text:?}"
        );
    }
}

#[test]
fn terminal_retains_colours_unless_they_split_a_secret() {
    let (events, _seen) = quiet_events();
    let mut events = events.coloured(true);
    events.line(Source::Out, "\u{1b}[32m+ a\u{1b}[0m \u{1b}[2J", 0);
    events.line(Source::Out, "\u{1b}[32mhun\u{1b}[1mter22\u{1b}[0m", 0);
    assert_eq!(
        String::from_utf8_lossy(&events.out),
        "\u{1b}[32m+ a\u{1b}[0m ^[[2J\n(sensitive value)\n"
    );
}

#[test]
fn diagnostic_is_rendered_like_the_tools_text() {
    let (text, said, ..) = feed(&[
        r#"{"@level":"error","type":"diagnostic","diagnostic":{"severity":"error","summary":"Invalid index","detail":"No such key.","address":"module.m[\"b\"].t.x[1]","range":{"filename":"m/main.tf","start":{"line":4}},"snippet":{"context":"resource \"t\" \"x\"","code":"  input = one(\n    [count.index])","start_line":3,"values":[{"traversal":"count.index","statement":"is 1"},{"traversal":"each.key","statement":"is \"b\""}],"function_call":{"called_as":"one"}}}}"#,
        r#"{"@level":"error","type":"diagnostic","diagnostic":{"severity":"error","summary":"No value","detail":"","range":{"filename":"main.tf","start":{"line":1}},"snippet":{"context":null,"code":"variable \"zone\" {","start_line":1,"values":[]}}}"#,
    ]);
    assert_eq!(
        text,
        "Error: Invalid index\n\n  with module.m[\"b\"].t.x[1],\n  on m/main.tf line 4, in resource \"t\" \"x\":\n   3:   input = one(\n   \
         4:     [count.index])\n    ├────────────────\n    │ while calling one\n    │ count.index is 1\n    │ each.key is \"b\"\n\nNo such \
         key.\n\nError: No value\n\n  on main.tf line 1:\n   1: variable \"zone\" {\n\n"
    );
    assert_eq!(
        said.diagnostics[0].detail.as_deref(),
        Some("count.index is 1; each.key is \"b\".\nNo such key.")
    );
    assert_eq!(said.diagnostics[1].address.as_deref(), Some("var.zone"));
}

#[test]
fn error_without_diagnostic_is_retained_without_colour_mark() {
    let (text, said, ..) = feed(&[
        r#"{"@level":"info","@message":"Initializing the backend..."}"#,
        r#"{"@level":"error","@message":"Error refreshing state: 2 problems:\n\n- of hunter22"}"#,
        r#"{"@level":"error","@message":"[reset]OpenTofu encountered problems during initialization"}"#,
        "[reset]Terraform encountered problems during initialisation",
    ]);
    assert_eq!(
        said.tail,
        [
            "Error refreshing state: 2 problems:",
            "",
            "- of (sensitive value)",
            "OpenTofu encountered problems during initialization",
            "Terraform encountered problems during initialisation"
        ]
    );
    assert!(
        !text.contains("[reset]") && text.contains("OpenTofu encountered"),
        "{text}"
    );
}
