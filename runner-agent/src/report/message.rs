//! Messages and next steps: what happened, whether anything was changed, and the one command to run next.

use std::path::PathBuf;

use crds::{Changed, Failure, FailureClass, Journal, Phase, Progress, names, reason, termination::clip};
use jiff::{Timestamp, tz::TimeZone};

/// The longest message, in characters.
const MAX_MESSAGE: usize = 1024;

/// A message and the command to run next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// What is going on.
    pub message: String,
    /// The one command to run next.
    pub next_step: Option<String>,
}

/// How long a pod is kept for a plan that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// As long as the plan waits: it would die with its pod.
    All,
    /// Until then.
    Until(Timestamp),
    /// No longer.
    No,
}

/// What puts an end to a command that says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The deadline of its phase, then.
    Deadline(Timestamp),
    /// It was told to end; what holds it up is killed then.
    Killed(Timestamp),
}

/// Where a run is, and so the commands that people have for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Commands {
    /// In a cluster.
    Cluster {
        /// Namespace of the run.
        namespace: String,
        /// Name of the run.
        run: String,
    },
    /// In a folder, by `runner-agent local`.
    Folder {
        /// What was run, without `--approve`: `runner-agent local apply DIR`.
        command: String,
        /// The record of the run and its log.
        record: PathBuf,
    },
}

impl Commands {
    /// The line with which a person approves, ready to paste, right for whoever pastes it.
    pub fn approve(&self, checksum: &str) -> String {
        match self {
            Self::Cluster { namespace, run } => names::approve_command(namespace, run, checksum),
            Self::Folder { command, .. } => format!("{command} --approve {checksum}"),
        }
    }

    /// The line with which a person asks for a fresh run of the same spec.
    pub fn rerun(&self) -> String {
        match self {
            Self::Cluster { namespace, run } => names::rerun_command(namespace, run),
            Self::Folder { command, .. } => command.clone(),
        }
    }

    /// What takes in what a failed apply created and did not record.
    fn recover(&self) -> String {
        match self {
            Self::Cluster { namespace, run } => names::recover_command(namespace, run),
            Self::Folder { command, .. } => format!("import what the message names, then: {command}"),
        }
    }

    /// The line that shows the log.
    fn logs(&self) -> String {
        match self {
            Self::Cluster { namespace, run } => format!("kubectl logs -n {namespace} -l pawl.run/run={run} --tail=-1"),
            Self::Folder { record, .. } => format!("cat {}", record.join("log").display()),
        }
    }

    /// A plan waits.
    pub fn awaiting(&self, summary: &str, until: Timestamp, held: Held) -> String {
        let time = |at: Timestamp| at.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
        let pod = match (self, held) {
            (Self::Folder { .. }, _) => String::new(),
            (Self::Cluster { .. }, Held::All) => "; without a datastore its pod is held as long".to_owned(),
            (Self::Cluster { .. }, Held::Until(at)) => format!("; its pod is held until {}", time(at)),
            (Self::Cluster { .. }, Held::No) => "; no pod is held, an approval gets a new one".to_owned(),
        };
        format!("plan {summary} waits for approval until {}{pod}", time(until))
    }

    /// What an attempt runs in.
    pub const fn process(&self) -> &'static str {
        match self {
            Self::Cluster { .. } => "the pod",
            Self::Folder { .. } => "the run",
        }
    }

    /// The beginning of an attempt.
    pub fn start(&self, attempt: u32, pod: &str) -> String {
        match self {
            Self::Cluster { .. } => format!("attempt {attempt} in pod {pod}"),
            Self::Folder { record, .. } => format!("recorded in {}", record.display()),
        }
    }
}

/// A command has said nothing new for a while: since when, at what, and until when that may last.
pub fn quiet(phase: Phase, since: Timestamp, current: Option<&str>, ends: Option<Ends>) -> String {
    let what = match phase {
        // Only one thing is run there.
        Phase::AwaitingApproval => "init of the plan that was kept".to_owned(),
        phase => phase.as_str().to_lowercase(),
    };
    let place = current.map(|address| format!(", at {}", clip(address, 200))).unwrap_or_default();
    let day = |at: Timestamp| at.to_zoned(TimeZone::UTC).date();
    let time = |at: Timestamp| {
        let format = if day(at) == day(since) { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
        at.to_zoned(TimeZone::UTC).strftime(format).to_string()
    };
    let end = match ends {
        Some(Ends::Deadline(at)) => format!("; it ends at the deadline at {}", time(at)),
        Some(Ends::Killed(at)) => format!("; it was told to end, and what holds it up is killed at {}", time(at)),
        None => String::new(),
    };
    format!("{what} has said nothing new since {}{place}{end} (UTC)", time(since))
}

/// A run ended without an apply because somebody or something wanted it so.
pub fn stopped(commands: &Commands, what: &str) -> Text {
    Text { message: format!("{what}; nothing was applied"), next_step: Some(commands.rerun()) }
}

/// An attempt failed, and another may follow.
pub fn retried(failure: &Failure) -> String {
    format!(
        "attempt failed, {}: {}; nothing was changed; another attempt follows if spec.retry.limit permits",
        failure.reason, failure.message
    )
}

/// A run failed.
pub fn failed(commands: &Commands, failure: &Failure) -> Text {
    let changed = match failure.changes {
        Changed::None => "nothing was changed",
        Changed::Some => "some of the plan was carried out",
        Changed::Unknown => "it is not known what was changed",
    };
    Text { message: format!("{}; {changed}", failure.message), next_step: Some(next_step(commands, failure)) }
}

/// What a failed apply did, and a recovery run where that has something to do.
pub fn accounted(text: &mut Text, commands: &Commands, progress: Option<&Progress>, journal: Option<&Journal>) {
    let mut more = String::new();
    if let Some(progress) = progress.filter(|progress| progress.total > 0) {
        more = format!("; {} of {} operations were carried out", progress.done, progress.total);
    }
    if let Some(journal) = journal {
        more = format!("{more}; {}", journal.summary);
    }
    let room = MAX_MESSAGE.saturating_sub(more.chars().count());
    text.message = format!("{}{more}", clip(&text.message, room));
    if journal.is_some_and(Journal::wants_recovery) {
        text.next_step = Some(commands.recover());
    }
}

fn next_step(commands: &Commands, failure: &Failure) -> String {
    let rerun = commands.rerun();
    let place = failure
        .diagnostics
        .iter()
        .find_map(|d| d.file.as_ref().map(|file| d.line.map_or_else(|| file.clone(), |line| format!("{file}:{line}"))));
    let here = matches!(commands, Commands::Folder { .. });
    let first = match failure.reason.as_str() {
        reason::NO_DURABLE_STATE if here => "add a backend to the code, or run in a clone of the repository",
        reason::SOURCE_UNAUTHORIZED if here => "clone the repository with your own credentials and run in the clone",
        reason::UNAUTHORIZED if here => "correct the credentials in the environment",
        reason::TOOL_NOT_FOUND if here => "get it with `runner-agent tool install`, or name another with --tool",
        reason::TOOL_UNAVAILABLE => "see that the mirror of the tool answers",
        reason::TOOL_NOT_GENUINE => "see who changed the mirror or the cache that the message names",
        reason::INPUT_REQUIRED if here => "put the answer into the environment or on the command line",
        reason::SECRET_NOT_FOUND => "create the Secret or key that the message names",
        reason::CONFIG_MAP_NOT_FOUND => "create the ConfigMap or key that the message names",
        reason::SOURCE_UNAUTHORIZED => "correct the Secret of spec.source.git.secretRef",
        reason::UNAUTHORIZED => "correct the credentials in spec.env or of the pod's account",
        reason::REPOSITORY_NOT_FOUND | reason::REVISION_NOT_FOUND | reason::PATH_NOT_FOUND | reason::INVALID_SPEC => {
            return match commands {
                Commands::Cluster { .. } => "create a run with a corrected spec (a spec never changes)".to_owned(),
                Commands::Folder { .. } => format!("correct what the message names, then: {rerun}"),
            };
        }
        reason::INPUT_REQUIRED => "put the answer into spec.variables or spec.env of a new run, or into the code",
        reason::NO_DURABLE_STATE => "add a backend to the code, or create a run with spec.backend",
        reason::TOOL_NOT_FOUND => "ask for a version that the message names, or that the mirror has",
        reason::ALREADY_EXISTS => "add the import block of the message to the code, or remove the object",
        reason::STATE_LOCKED => "when the lock's owner has ended",
        reason::STATE_NOT_SAVED => "compare the state with what exists, then",
        reason::SOURCE_INVALID => "correct the source",
        reason::DATASTORE_UNAVAILABLE => "see that the datastore runs and can be reached",
        reason::STATE_OF_FORMER_NAMESPACE => "have whoever has the role pawl-state-admin hand the state over",
        reason::NO_CONFINEMENT => {
            "give it nodes with Landlock (Linux 5.19 or later, landlock in /sys/kernel/security/lsm), or set the chart's \
             runner.requireConfinement to false"
        }
        reason::KEY_MISSING => "put the key that the message names back into the datastore's Secret",
        _ => "",
    };
    let first = match (first, place) {
        ("", Some(place)) => format!("correct {place}"),
        (first, _) => first.to_owned(),
    };
    if failure.class == FailureClass::Internal && first.is_empty() {
        return commands.logs();
    }
    match first.as_str() {
        "" => rerun,
        first if first.ends_with("then") => format!("{first}: {rerun}"),
        first => format!("{first}, then: {rerun}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::Diagnostic;

    fn failure(class: FailureClass, reason: &str) -> Failure {
        Failure { class, reason: reason.into(), message: "plan failed: x".into(), changes: Changed::None, diagnostics: vec![] }
    }

    fn cluster() -> Commands {
        Commands::Cluster { namespace: "team".into(), run: "vpc".into() }
    }

    fn folder() -> Commands {
        Commands::Folder { command: "runner-agent local apply net".into(), record: "net/.pawl/runs/1".into() }
    }

    #[test]
    fn the_command_that_approves_is_the_one_of_the_protocol() {
        assert_eq!(
            cluster().approve("sha256:ab"),
            "kubectl annotate -n team --overwrite tfrun/vpc pawl.run/approve=sha256:ab \
             pawl.run/approved-by=\"$(kubectl auth whoami -o jsonpath='{.status.userInfo.username}')\""
        );
    }

    #[test]
    fn a_failure_says_what_where_and_what_next() {
        let mut f = failure(FailureClass::Configuration, reason::INVALID_CONFIGURATION);
        f.diagnostics = vec![Diagnostic { file: Some("main.tf".into()), line: Some(7), ..Diagnostic::default() }];
        let text = failed(&cluster(), &f);
        assert_eq!(text.message, "plan failed: x; nothing was changed");
        assert_eq!(text.next_step.unwrap(), "correct main.tf:7, then: kubectl annotate -n team tfrun/vpc pawl.run/rerun=true");
    }

    #[test]
    fn a_laptop_has_no_spec_and_no_image() {
        for reason in reason::ALL.iter().filter(|reason| **reason != reason::SECRET_NOT_FOUND) {
            let text = failed(&folder(), &failure(FailureClass::Configuration, reason)).next_step.unwrap();
            assert!(!text.contains("spec") && !text.contains("pod") && !text.contains("image"), "{reason}: {text}");
        }
    }

    #[test]
    fn silence_says_since_when_at_what_and_until_when() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let since = at("2026-11-21T10:31:02.9Z");
        let deadline = Some(Ends::Deadline(at("2026-11-21T10:45:00Z")));
        assert_eq!(
            quiet(Phase::Plan, since, None, deadline),
            "plan has said nothing new since 10:31:02; it ends at the deadline at 10:45:00 (UTC)"
        );
        assert_eq!(
            quiet(Phase::Apply, since, Some("aws_db_instance.main"), Some(Ends::Deadline(at("2026-11-22T04:31:02Z")))),
            "apply has said nothing new since 10:31:02, at aws_db_instance.main; it ends at the deadline at 2026-11-22 04:31:02 (UTC)"
        );
        assert_eq!(
            quiet(Phase::Apply, since, None, Some(Ends::Killed(at("2026-11-21T10:40:00Z")))),
            "apply has said nothing new since 10:31:02; it was told to end, and what holds it up is killed at 10:40:00 (UTC)"
        );
        assert!(quiet(Phase::AwaitingApproval, since, None, None).starts_with("init of the plan that was kept has said nothing"));
    }

    #[test]
    fn every_failure_has_a_next_step() {
        for reason in reason::ALL {
            let classes = [FailureClass::Configuration, FailureClass::Internal, FailureClass::Timeout];
            for (class, commands) in classes.into_iter().flat_map(|class| [(class, cluster()), (class, folder())]) {
                let text = failed(&commands, &failure(class, reason)).next_step.unwrap();
                assert!(text.len() > 20 && !text.starts_with(','), "{reason}: {text}");
            }
        }
    }
}
