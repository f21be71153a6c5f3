//! From the tool's words to a class of failure.
//!
//! The tool's `-json` diagnostics come first; texts are matched only within what the tool said. The rows stand in the order in
//! which they count: what must never be retried before what may be.

mod terragrunt;

use std::path::{Component, Path, PathBuf};

use crds::{Changed, Diagnostic, Failure, FailureClass, StateLock, reason, termination::clip};

use crate::process::{Exit, RunError};

/// What a command said, as far as it matters when it failed.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// Diagnostics, in the order they came.
    pub diagnostics: Vec<Diagnostic>,
    /// The last lines that were no JSON events.
    pub tail: Vec<String>,
    /// The directory it was said in, relative to the source; empty for the source itself. The tool names files from there.
    pub below: PathBuf,
}

struct Row(FailureClass, &'static str, &'static [&'static str]);

use FailureClass::{Configuration, Credentials, Integrity, StalePlan, StateLocked, Transient};

/// What the system says of a disk that is full, or of a quota of one.
const DISK_FULL: &[&str] = &["no space left on device", "disk quota exceeded"];

/// Texts, in lower case. The first row of which any text is found decides.
const ROWS: &[Row] = &[
    Row(
        StateLocked,
        reason::STATE_LOCKED,
        &[
            "error acquiring the state lock",
            "conditionalcheckfailedexception",
            "state blob is already locked",
            "already locked by another terraform client",
            "http remote state already locked",
            "workspace is already locked",
        ],
    ),
    Row(StalePlan, reason::STALE_PLAN, &["saved plan is stale", "saved plan does not match the given state"]),
    Row(
        Transient,
        reason::STATE_NOT_SAVED,
        &["failed to save state", "failed to persist state", "failed to upload state", "error saving state", "errored.tfstate"],
    ),
    Row(Transient, reason::DISK_FULL, DISK_FULL),
    Row(
        Integrity,
        reason::CHECKSUM_MISMATCH,
        &[
            "doesn't match any of the checksums",
            "does not match any of the checksums",
            "checksum mismatch",
            "error verifying checksum",
            "signature verification failed",
            "authentication signature",
            "failed to verify provider",
        ],
    ),
    Row(
        Configuration,
        reason::INVALID_CONFIGURATION,
        &[
            "unsupported terraform core version",
            "unsupported opentofu core version",
            "no value for required variable",
            "inconsistent dependency lock file",
            "backend initialization required",
            "cannot apply incomplete plan",
            "invalid provider configuration",
            "no configuration files",
            "encountered problems during initialisation",
            "encountered problems during initialization",
        ],
    ),
    // Nobody answers a question in a run: the next attempt would be asked the same. Before what says `: EOF` for another reason.
    Row(
        Configuration,
        reason::INPUT_REQUIRED,
        &["error asking for", "a terminal is required to read", "no tty present and no askpass", "host key verification failed"],
    ),
    Row(
        Transient,
        reason::THROTTLED,
        &[
            "429 too many requests",
            "status code: 429",
            "error: 429",
            "requestlimitexceeded",
            "throttlingexception",
            "throttling:",
            "toomanyrequests",
            "toomanyupdates",
            "rate limit exceeded",
            "slowdown:",
        ],
    ),
    Row(
        Credentials,
        reason::UNAUTHORIZED,
        &[
            "expiredtoken",
            "no valid credential sources",
            "no valid credential source",
            "invalidclienttokenid",
            "signaturedoesnotmatch",
            "unrecognizedclientexception",
            "authfailure",
            "invalidaccesskeyid",
            "rejected the given authentication credentials",
            "could not find default credentials",
            "unable to authenticate",
            "authentication failed",
            "401 unauthorized",
            "403 forbidden",
            "status code: 401",
            "status code: 403",
            "http response code 401",
            "http response code 403",
            "http remote state endpoint requires auth",
            "http remote state endpoint invalid auth",
            "accessdenied",
            "required token could not be found",
            "could not read username",
            "could not read password",
            "terminal prompts disabled",
            "permission denied (publickey",
            "invalid_grant",
        ],
    ),
    Row(
        Transient,
        reason::PROVIDER_UNREACHABLE,
        &[
            "connection reset by peer",
            "connection refused",
            "tls handshake timeout",
            "i/o timeout",
            "no such host",
            "temporary failure in name resolution",
            "client.timeout exceeded while awaiting headers",
            "context deadline exceeded",
            "network is unreachable",
            "no route to host",
            "unexpected eof",
            "server misbehaving",
            "failed to request discovery document",
            "502 bad gateway",
            "503 service unavailable",
            "504 gateway timeout",
            "status code: 502",
            "status code: 503",
            "status code: 504",
            "http remote state unexpected status: 5",
            "unexpected http response code 5",
            "the requested url returned error: 5",
            "could not resolve host",
            "ssh_exchange_identification",
            "text file busy",
            ": eof",
        ],
    ),
];

/// The class and reason of a text, if it is one that is known.
pub fn text(text: &str) -> Option<(FailureClass, &'static str)> {
    let text = text.to_lowercase();
    ROWS.iter().find(|row| row.2.iter().any(|needle| text.contains(needle))).map(|row| (row.0, row.1))
}

/// What a command that failed says about the run.
pub fn failure(step: &str, exit: Exit, said: &Said) -> Failure {
    let mut errors: Vec<Diagnostic> = said.diagnostics.iter().filter(|d| d.severity == "error").cloned().collect();
    if errors.is_empty() {
        errors = parse(&said.tail);
    }
    if errors.is_empty() {
        errors.extend(terragrunt::diagnostic(&said.tail));
    }
    for file in errors.iter_mut().filter_map(|error| error.file.as_mut()) {
        *file = in_source(&said.below, file);
    }
    // A diagnostic of a known class counts before one that is not known; among those of none, the first with a place in the code.
    let known = errors.iter().enumerate().find_map(|(i, d)| text(&words(d)).map(|(class, reason)| (i, class, reason)));
    let placed = errors.iter().position(|d| d.file.is_some());
    let (first, class, reason) = match (known, placed) {
        // An error in the code hides behind the summary that follows it.
        (Some((_, Configuration, _)) | None, Some(at)) => (at, Configuration, reason::INVALID_CONFIGURATION),
        (Some(known), _) => known,
        (None, None) => {
            let tail = said.tail.join("\n");
            let (class, reason) = match (text(&tail), exit) {
                (Some(known), _) if errors.is_empty() => known,
                (_, Exit { signal: Some(_), told: false, .. }) => (FailureClass::Interrupted, reason::TOOL_KILLED),
                _ => (Configuration, generic(step)),
            };
            (0, class, reason)
        }
    };
    if first < errors.len() {
        errors.swap(0, first);
    }
    let told = || terragrunt::error(&said.tail).unwrap_or_else(|| last_line(&said.tail));
    let mut said_text = errors.first().map_or_else(told, sentence);
    // What it said when it was told to end tells of the end (a shell says `Killed`); what it said before tells why it hung.
    if exit.told {
        let before = terragrunt::without_its_own(&said.tail);
        for line in before.iter().rev().map(|line| clip(line, 300)).filter(|line| !line.is_empty()).take(2) {
            if !said_text.contains(&line) {
                said_text = format!("{said_text}; before: {line}");
            }
        }
    }
    let ended = match exit {
        Exit { signal: Some(signal), told: false, .. } => format!("was ended by signal {signal}"),
        Exit { code: 11, .. } => "crashed (exit code 11)".to_owned(),
        Exit { code, told: true, .. } => format!("was told to end (exit code {code})"),
        Exit { code, .. } if said_text.is_empty() => format!("failed with exit code {code}"),
        _ => "failed".to_owned(),
    };
    let lock = errors.iter().find_map(|d| lock_owner(d.detail.as_deref().unwrap_or_default()));
    let mut message = if said_text.is_empty() { format!("{step} {ended}") } else { format!("{step} {ended}: {said_text}") };
    if let (true, Some(owner)) = (reason == reason::STATE_LOCKED, lock) {
        message = format!("{step} failed: the state is locked {owner}");
    }
    Failure { class, reason: reason.to_owned(), message: clip(&message, 1024), changes: Changed::None, diagnostics: errors }
}

/// A command that could not be run at all.
pub fn not_run(step: &str, error: &RunError) -> Failure {
    let text = format!("{step} {error}");
    match error {
        RunError::Stopped => simple(FailureClass::Interrupted, reason::TERMINATED, text),
        RunError::Spawn(_) | RunError::Wait(_) => fault(&text),
    }
}

/// A failure without diagnostics, before which nothing was changed.
pub fn simple(class: FailureClass, reason: &str, message: impl AsRef<str>) -> Failure {
    Failure {
        class,
        reason: reason.to_owned(),
        message: clip(message.as_ref(), 1024),
        changes: Changed::None,
        diagnostics: vec![],
    }
}

/// A fault of the disk or of the agent. A disk that is full is neither, and may be another the next time.
pub fn internal(what: &str, error: &dyn std::fmt::Display) -> Failure {
    fault(&format!("{what}: {error}"))
}

fn fault(text: &str) -> Failure {
    if is_disk_full(text) {
        return simple(Transient, reason::DISK_FULL, text);
    }
    simple(FailureClass::Internal, reason::AGENT_FAULT, text)
}

/// Whether a text tells of a disk that is full.
pub fn is_disk_full(text: &str) -> bool {
    let text = text.to_lowercase();
    DISK_FULL.iter().any(|words| text.contains(words))
}

fn generic(step: &str) -> &'static str {
    match step {
        "apply" => reason::APPLY_FAILED,
        "init" | "workspace" => reason::INIT_FAILED,
        _ => reason::PLAN_FAILED,
    }
}

fn words(d: &Diagnostic) -> String {
    format!("{}\n{}", d.summary, d.detail.as_deref().unwrap_or_default())
}

fn sentence(d: &Diagnostic) -> String {
    let place = match (&d.file, d.line) {
        (Some(file), Some(line)) => format!(" ({file} line {line})"),
        (Some(file), None) => format!(" ({file})"),
        (None, _) => d.address.as_ref().map(|a| format!(" ({a})")).unwrap_or_default(),
    };
    let detail = clip(d.detail.as_deref().unwrap_or_default(), 240);
    let summary = clip(&d.summary, 240);
    if detail.is_empty() { format!("{summary}{place}") } else { format!("{summary}{place}: {detail}") }
}

fn last_line(tail: &[String]) -> String {
    tail.iter().rev().map(|line| clip(line, 300)).find(|line| !line.is_empty()).unwrap_or_default()
}

/// `by WHO since CREATED`, from the lock info of a diagnostic.
fn lock_owner(detail: &str) -> Option<String> {
    let field = |name: &str| {
        let line = detail.lines().map(str::trim).find(|line| line.starts_with(name))?;
        Some(clip(line.get(name.len()..)?.trim(), 120)).filter(|v| !v.is_empty())
    };
    let who = field("Who:")?;
    Some(match field("Created:") {
        Some(created) => format!("by {who} since {created}"),
        None => format!("by {who}"),
    })
}

/// A holder that a backend does not name.
pub const UNKNOWN: &str = "unknown";

/// The lock that kept a step from the state, as its holder describes itself. `own` is the name of this pod: Terraform tells of its
/// own lock where an `http` backend has told it of another's, of which it then knows the ID only.
pub fn lock(failure: &Failure, own: &str) -> Option<StateLock> {
    if failure.reason != reason::STATE_LOCKED {
        return None;
    }
    let field = |name: &str| {
        let lines = failure.diagnostics.iter().filter_map(|d| d.detail.as_deref()).flat_map(str::lines).map(str::trim);
        lines.filter_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned()).find(|value| !value.is_empty())
    };
    let who = field("Who:").unwrap_or_default();
    let told = failure.diagnostics.iter().filter_map(|d| d.detail.as_deref()).find_map(|detail| {
        let rest = detail.split_once("already locked: ID=")?.1;
        Some(rest.split_whitespace().next().unwrap_or_default().to_owned())
    });
    let mine = who.rsplit_once('@').is_some_and(|(_, host)| host == own);
    let id = told.or_else(|| field("ID:"))?;
    if mine {
        return Some(StateLock { id: clip(&id, 128), who: UNKNOWN.to_owned(), operation: None, created: None });
    }
    let (operation, created) = (field("Operation:"), field("Created:"));
    Some(StateLock {
        id: clip(&id, 128),
        who: clip(&who, 256),
        operation: operation.map(|text| clip(&text, 64)),
        created: created.map(|text| clip(&text, 64)),
    })
}

/// Who holds a lock, for people.
pub fn held_by(lock: &StateLock) -> String {
    match (lock.who.as_str(), &lock.created) {
        (UNKNOWN, _) => format!("the state is locked (lock {}); its backend does not say by whom", lock.id),
        (who, Some(created)) => format!("the state is locked by {who} since {created}"),
        (who, None) => format!("the state is locked by {who}"),
    }
}

/// A file as it is called in the source, wherever in it the tool ran: what a person opens to correct it.
fn in_source(below: &Path, file: &str) -> String {
    let whole = below.join(file);
    let mut parts = Vec::new();
    for part in whole.components() {
        match part {
            // Above the source is nothing that a person could open.
            Component::ParentDir if parts.pop().is_none() => return file.to_owned(),
            Component::ParentDir | Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return file.to_owned(),
            Component::Normal(part) => parts.push(part),
        }
    }
    parts.into_iter().collect::<PathBuf>().display().to_string()
}

/// Diagnostics from a tool that speaks no JSON: `Error: …`, with or without the frame the tools draw, and `on FILE line N`.
pub fn parse(lines: &[String]) -> Vec<Diagnostic> {
    let mut found: Vec<Diagnostic> = Vec::new();
    let mut is_open = false;
    for line in lines {
        // The end of a frame, or what Terragrunt says of the tool's end.
        is_open &= !line.starts_with('╵') && terragrunt::record(line).is_none();
        let line = line.trim_start_matches(['│', '╷', '╵', ' ']).trim_end();
        if let Some(summary) = line.strip_prefix("Error: ") {
            found.push(Diagnostic { severity: "error".into(), summary: summary.into(), ..Diagnostic::default() });
            is_open = true;
        } else if let Some(current) = found.last_mut().filter(|_| is_open) {
            if let (None, Some((file, number))) = (&current.file, place(line)) {
                current.file = Some(file);
                current.line = Some(number);
            } else if !line.is_empty() {
                let detail = current.detail.get_or_insert_default();
                if detail.len() < 2_000 {
                    detail.push_str(line);
                    detail.push('\n');
                }
            }
        }
    }
    found
}

fn place(line: &str) -> Option<(String, u32)> {
    let (file, rest) = line.strip_prefix("on ")?.split_once(" line ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((file.to_owned(), digits.parse().ok()?))
}

#[cfg(test)]
mod tests {
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
    fn texts_of_the_field() {
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
            ("Error refreshing state", "read tcp 10.0.0.1: connection reset by peer", Transient, reason::PROVIDER_UNREACHABLE),
            (
                "Invalid provider registry host",
                "The host is up: 503 Service Unavailable returned from it",
                Transient,
                reason::PROVIDER_UNREACHABLE,
            ),
            ("creating EC2 Instance", "api error RequestLimitExceeded: Request limit exceeded.", Transient, reason::THROTTLED),
            ("Error", "app.terraform.io: 429 Too Many Requests", Transient, reason::THROTTLED),
            (
                "error configuring S3 Backend",
                "no valid credential sources for S3 Backend found.",
                Credentials,
                reason::UNAUTHORIZED,
            ),
            (
                "reading EC2 VPC",
                "operation error: api error ExpiredToken: The security token included in the request is expired",
                Credentials,
                reason::UNAUTHORIZED,
            ),
            ("Failed to get existing workspaces", "HTTP remote state endpoint requires auth", Credentials, reason::UNAUTHORIZED),
            (
                "Error acquiring the state lock",
                "Error message: resource temporarily unavailable",
                StateLocked,
                reason::STATE_LOCKED,
            ),
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
            ("Unsupported Terraform Core version", "requires >= 2", Configuration, reason::INVALID_CONFIGURATION),
            (
                "No value for required variable",
                "The root module input variable \"x\" is not set",
                Configuration,
                reason::INVALID_CONFIGURATION,
            ),
            ("Error asking for input to configure the provider", "provider.x.token: EOF", Configuration, reason::INPUT_REQUIRED),
            (
                "Failed to download module",
                "error downloading: ssh: Host key verification failed. fatal: Could not read from remote repository.",
                Configuration,
                reason::INPUT_REQUIRED,
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
        // Whichever command asks.
        for step in ["init", "apply"] {
            let f = of(step, vec![diagnostic("Error asking for input to configure the provider", "provider.x.token: EOF", None)]);
            assert_eq!((f.class, f.reason.as_str()), (Configuration, reason::INPUT_REQUIRED), "{step}");
        }
    }

    #[test]
    fn a_disk_that_is_full_is_no_fault_of_the_agent() {
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
    fn an_error_in_the_code_names_file_and_line() {
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
    fn a_lock_names_its_owner() {
        let detail = "Error message: HTTP remote state already locked\nLock Info:\n  ID:        1\n  Path:      \n  Operation: OperationTypeApply\n  Who:       root@vpc-x2b4d-a1\n  Version:   1.10.6\n  Created:   2026-11-21 10:00:00 UTC\n";
        let f = of("plan", vec![diagnostic("Error acquiring the state lock", detail, None)]);
        assert_eq!(f.class, StateLocked);
        assert_eq!(f.message, "plan failed: the state is locked by root@vpc-x2b4d-a1 since 2026-11-21 10:00:00 UTC");
    }

    #[test]
    fn plain_text_is_read_where_there_is_no_json() {
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
    fn files_are_called_as_the_source_calls_them() {
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
    fn what_a_tool_said_before_it_was_told_to_end_is_told_as_well() {
        let plugin = Diagnostic { severity: "error".into(), summary: "Plugin did not respond".into(), ..Diagnostic::default() };
        let said = Said { diagnostics: vec![plugin], tail: vec!["ExpiredToken: it is of yesterday".into()], ..Said::default() };
        let told = |told| failure("plan", Exit { code: 1, signal: None, told }, &said).message;
        assert!(
            told(true).contains("Plugin did not respond") && told(true).ends_with("before: ExpiredToken: it is of yesterday")
        );
        assert!(!told(false).contains("ExpiredToken"));
        let shell = Said { tail: vec!["ExpiredToken: it is of yesterday".into(), "Killed".into()], ..Said::default() };
        let message = failure("plan", Exit { code: 137, signal: None, told: true }, &shell).message;
        assert!(message.ends_with("Killed; before: ExpiredToken: it is of yesterday"), "{message}");
    }

    #[test]
    fn a_tool_that_was_killed_is_interrupted() {
        let f = failure("plan", Exit { code: 137, signal: Some(9), told: false }, &Said::default());
        assert_eq!((f.class, f.reason.as_str()), (FailureClass::Interrupted, reason::TOOL_KILLED));
        assert_eq!(f.message, "plan was ended by signal 9");
        let f = failure("plan", Exit { code: 137, signal: Some(9), told: true }, &Said::default());
        assert_eq!(f.class, Configuration, "a tool we killed says nothing of its own");
    }

    #[test]
    fn a_lock_says_who_holds_it() {
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
        // Terraform tells of its own.
        let unknown = of("HTTP remote state already locked: ID=l9", "pawl@net-2xbdf-a2").unwrap();
        assert_eq!((unknown.id.as_str(), unknown.who.as_str(), unknown.created), ("l9", "unknown", None));
        assert_eq!(lock(&simple(Transient, reason::THROTTLED, "x"), "a"), None);
    }
}
