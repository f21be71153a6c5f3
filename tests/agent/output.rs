//! Arbitrary output of a tool: bounded memory, a mark at truncation, no terminal control sequences, and no secret in log, status or
//! termination message. Real processes, a scripted tool, an in-memory run.

use std::fs;

use crate::common::{Attempt, PATIENCE, start, start_with};
use crds::{RunResult, text::reorders};
use harness::wait;
use serde_json::{Value, json};

/// Memory in bytes that an attempt may use for output, besides the log that this test retains.
const MOST: u64 = 32 << 20;

fn memory(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap();
    line.trim_start_matches(':')
        .trim()
        .trim_end_matches(" kB")
        .parse::<u64>()
        .unwrap()
        << 10
}

/// The present memory. Resets the kernel's peak counter.
fn counted() -> u64 {
    fs::write("/proc/self/clear_refs", "5").unwrap();
    memory("VmRSS")
}

/// Waits for the end, and for the log's thread, which writes the last line.
async fn ended(a: &mut Attempt) -> u8 {
    let code = a.end().await;
    let look = async || Ok(a.log().lines().any(|line| line.starts_with("pawl: ")));
    wait::until("the log has its end", PATIENCE, look)
        .await
        .unwrap();
    code
}

fn texts(a: &Attempt) -> [(&'static str, String); 3] {
    let status: Value = a.api.state.lock().unwrap().object["status"].clone();
    [
        ("log", a.log()),
        ("status", status.to_string()),
        (
            "termination message",
            fs::read_to_string(&a.settings.termination_log).unwrap(),
        ),
    ]
}

#[tokio::test]
async fn line_of_500_mb_takes_little_memory_and_is_cut() {
    crate::common::alone();
    let plan = "head -c 524288000 /dev/zero | tr '\\0' y; echo; echo after";
    let before = counted();
    let mut a = start(&json!({}), &[("PLAN", plan)]);
    assert_eq!(ended(&mut a).await, 0);
    let most = memory("VmHWM").saturating_sub(before);
    assert_eq!(a.api.status().result, Some(RunResult::Applied));
    let log = a.log();
    assert!(
        most <= MOST + 2 * log.len() as u64,
        "{most} bytes for a log of {}",
        log.len()
    );
    assert!(
        log.contains("yyy… [523239424 more bytes of this line were cut]\nafter\n"),
        "no mark in {} bytes",
        log.len()
    );
    assert!(
        log.ends_with("pawl: applied +1 ~0 -0\n"),
        "the log is not whole"
    );
}

#[tokio::test]
async fn binary_output_becomes_harmless_text() {
    let plan =
        "head -c 2097152 /dev/urandom; head -c 1048576 /dev/urandom >&2; printf '\\nafter\\n'";
    let mut a = start(&json!({}), &[("PLAN", plan)]);
    assert_eq!(ended(&mut a).await, 0);
    let log = a.log();
    assert!(
        log.len() > 2 << 20 && log.contains("\nafter\n"),
        "{} bytes",
        log.len()
    );
    let steers = log
        .chars()
        .find(|c| c.is_control() && !matches!(c, '\n' | '\t') || reorders(*c));
    assert!(steers.is_none(), "{steers:?} is left");
}

#[tokio::test]
async fn control_and_bidi_characters_are_escaped() {
    let evil = "evil \\u001b[2J\\u001b]0;t\\u0007 \\u202etxt.exe\\u2066 \\u009b31m";
    let plan = format!(
        "printf '%s\\n' '{{\"type\":\"diagnostic\",\"diagnostic\":{{\"severity\":\"error\",\"summary\":\"{evil}\",\"detail\":\"{evil}\",\
         \"address\":\"{evil}\"}}}}'; printf 'raw \\033[2J \\342\\200\\256txt.exe\\n' >&2; exit 1"
    );
    let mut a = start(&json!({}), &[("PLAN", &plan)]);
    assert_eq!(ended(&mut a).await, 1);
    for (name, text) in texts(&a) {
        let steers = text
            .chars()
            .find(|c| c.is_control() && !matches!(c, '\n' | '\t') || reorders(*c));
        assert!(steers.is_none(), "{steers:?} in the {name}: {text:?}");
        // JSON could have it escaped.
        for escape in ["u001b", "u202e", "u2066", "u009b"] {
            assert!(
                !text.contains(&format!("\\{escape}")),
                "{escape} in the {name}: {text}"
            );
        }
        assert!(
            text.contains("<U+202E>txt.exe") && text.contains("^[[2J"),
            "the {name} says not what was there: {text}"
        );
    }
    assert!(
        a.log().contains("raw ^[[2J <U+202E>txt.exe\n"),
        "{}",
        a.log()
    );
}

#[tokio::test]
async fn secrets_are_masked_when_cut_or_encoded() {
    let more = json!({"env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "db", "key": "token"}}},
        {"name": "LONG", "valueFrom": {"secretKeyRef": {"name": "db", "key": "long"}}}]});
    // Prints a secret unchanged, in two writes, in base64 alone and after other text, in hexadecimal digits, broken into lines, at the end
    // of a truncated line, and where the failure's message is truncated.
    let plan = "echo \"as it is $TOKEN\"; printf 't0k3'; sleep 0.2; printf 'n-of-mine/+\\n'; \
        for before in '' x me; do printf '%s' \"$before$TOKEN\" | base64; done; printf '%s' \"$TOKEN\" | od -An -v -tx1 | tr -d ' \\n'; echo; \
        printf '%s' \"$LONG\" | base64; echo 't0k3n-of-mine%2F%2B'; \
        head -c 1048570 /dev/zero | tr '\\0' z; printf '%s\\n' \"$TOKEN\"; \
        for n in 230 231 232 233 234 235 236 290 291 292 293 294 295 296 297 289; do head -c $n /dev/zero | tr '\\0' w >&2; echo \"$TOKEN\" >&2; done; exit 1";
    let long: String = "kube:config-".repeat(40);
    // Separate from the work directory, so that code cannot read it nor later files beside it.
    let secrets = tempfile::tempdir().unwrap();
    let mut a = start_with(&more, &[("PLAN", plan)], |s, _| {
        s.secrets = secrets.path().join("mounted");
        fs::create_dir_all(s.secrets.join("db")).unwrap();
        fs::write(s.secrets.join("db/token"), "t0k3n-of-mine/+").unwrap();
        fs::write(s.secrets.join("db/long"), &long).unwrap();
    });
    assert_eq!(ended(&mut a).await, 1);
    for (name, text) in texts(&a) {
        for part in [
            "t0k3",
            "-of-mine",
            "dDBrM24tb2",
            "QwazNuLW9m",
            "MGszbi1vZi",
            "74306b336e",
            "a3ViZTpjb25m",
            "%2F%2B",
        ] {
            assert!(
                !text.contains(part),
                "{part} in the {name}: {}",
                text.chars().filter(|c| *c != 'z').collect::<String>()
            );
        }
        assert!(text.contains("(sensitive"), "{name}: nothing was masked");
    }
    assert!(
        a.log()
            .contains("as it is (sensitive value)\n(sensitive value)\n"),
        "{}",
        &a.log()[..2_000]
    );
}

#[tokio::test]
async fn sensitive_values_of_the_tool_are_masked() {
    let plan = r#"{"errored":false,"variables":{"p":{"value":"canary-variable"}},"resource_changes":[{"address":"a.b","change":{"actions":["create"],"before":null,"after":{"password":"canary-attribute"},"after_sensitive":{"password":true}}}],"output_changes":{"o":{"actions":["create"],"after":"canary-output","after_sensitive":true}}}"#;
    let apply = r#"echo '{"@message":"Outputs: 1","type":"outputs","outputs":{"o":{"sensitive":true,"type":"string","value":"canary-output"}}}'"#;
    let mut a = start(&json!({}), &[("PLAN_JSON", plan), ("APPLY", apply)]);
    assert_eq!(ended(&mut a).await, 0);
    assert_eq!(
        a.api.status().plan.unwrap().changes,
        ["+ a.b", "+ output.o"]
    );
    assert!(a.log().contains("o = <sensitive>\n"), "{}", a.log());
    for (name, text) in texts(&a) {
        assert!(!text.contains("canary"), "the {name}: {text}");
    }
}
