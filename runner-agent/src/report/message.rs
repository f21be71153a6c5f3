//! Messages and next steps: what happened, whether anything was changed, and the one command to run next.

use std::path::PathBuf;

use crds::{
    Changed, Failure, Journal, Phase, Progress, names, reason,
    reason::next_step::{CodeOrigin, Facts, Place, next_step},
    text::clip,
};
use jiff::{Timestamp, tz::TimeZone};

/// Maximum length of a message in characters.
const MAX_MESSAGE: usize = 1024;

/// A message and the command to run next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    pub message: String,
    /// The one command to run next.
    pub next_step: Option<String>,
}

/// How long a pod waits for the approval of its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// As long as the plan waits, since the plan is lost with its pod.
    All,
    Until(Timestamp),
    No,
}

/// The forced end of a silent command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Time of the phase's deadline.
    Deadline(Timestamp),
    /// It was asked to stop. Time at which blocking processes are killed.
    Killed(Timestamp),
}

/// The run's environment, which decides the commands for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Commands {
    Cluster {
        namespace: String,
        run: String,
        /// The log outlives the run's pods.
        stored: bool,
    },
    /// In a folder, by `runner-agent local`.
    Folder {
        /// The command line without `--approve`: `runner-agent local apply DIR`.
        command: String,
        /// Directory with the run's record and log.
        record: PathBuf,
    },
}

impl Commands {
    /// The command that approves a plan, ready to paste. In a cluster it takes the user's name from `kubectl auth whoami`.
    pub fn approve(&self, checksum: &str) -> String {
        match self {
            Self::Cluster { namespace, run, .. } => {
                names::approve_command(namespace, run, checksum)
            }
            Self::Folder { command, .. } => format!("{command} --approve {checksum}"),
        }
    }

    /// The command that requests a new run of the same spec.
    pub fn rerun(&self) -> String {
        match self {
            Self::Cluster { namespace, run, .. } => names::rerun_command(namespace, run),
            Self::Folder { command, .. } => command.clone(),
        }
    }

    /// The command that imports objects which a failed apply created and did not record.
    fn recover(&self) -> String {
        match self {
            Self::Cluster { namespace, run, .. } => names::recover_command(namespace, run),
            Self::Folder { command, .. } => {
                format!("import what the message names, then: {command}")
            }
        }
    }

    /// The command that shows the log.
    pub fn logs(&self) -> String {
        match self {
            Self::Cluster {
                namespace,
                run,
                stored: true,
            } => names::stored_log_command(namespace, run),
            Self::Cluster {
                namespace,
                run,
                stored: false,
            } => names::logs_command(namespace, run),
            Self::Folder { record, .. } => format!("cat {}", record.join("log").display()),
        }
    }

    pub fn awaiting(&self, summary: &str, until: Timestamp, held: Held) -> String {
        let time = |at: Timestamp| {
            at.to_zoned(TimeZone::UTC)
                .strftime("%Y-%m-%d %H:%M:%S UTC")
                .to_string()
        };
        let pod = match (self, held) {
            (Self::Folder { .. }, _) => String::new(),
            (Self::Cluster { .. }, Held::All) => {
                "; without a datastore its pod is held as long".to_owned()
            }
            (Self::Cluster { .. }, Held::Until(at)) => {
                format!("; its pod is held until {}", time(at))
            }
            (Self::Cluster { .. }, Held::No) => {
                "; no pod is held, an approval gets a new one".to_owned()
            }
        };
        format!(
            "plan {summary} waits for approval until {}{pod}",
            time(until)
        )
    }

    /// History entry of a plan that needed no approval.
    pub const fn unasked(&self) -> (&'static str, &'static str) {
        match self {
            Self::Cluster { .. } => ("Claimed", "automatic"),
            Self::Folder { .. } => ("Approved", "by --auto-approve"),
        }
    }

    /// The process of an attempt, in words.
    pub const fn process(&self) -> &'static str {
        match self {
            Self::Cluster { .. } => "the pod",
            Self::Folder { .. } => "the run",
        }
    }

    pub fn start(&self, attempt: u32, pod: &str) -> String {
        match self {
            Self::Cluster { .. } => format!("attempt {attempt} in pod {pod}"),
            Self::Folder { record, .. } => format!("recorded in {}", record.display()),
        }
    }
}

/// Message of a silent command: since when, at which object, and until when it may last.
pub fn quiet(phase: Phase, since: Timestamp, current: Option<&str>, ends: Option<Ends>) -> String {
    let what = match phase {
        // Only `init` runs in this phase.
        Phase::AwaitingApproval => "init of the stored plan".to_owned(),
        phase => phase.as_str().to_lowercase(),
    };
    let place = current
        .map(|address| format!(", at {}", clip(address, 200)))
        .unwrap_or_default();
    let day = |at: Timestamp| at.to_zoned(TimeZone::UTC).date();
    let time = |at: Timestamp| {
        let format = if day(at) == day(since) {
            "%H:%M:%S"
        } else {
            "%Y-%m-%d %H:%M:%S"
        };
        at.to_zoned(TimeZone::UTC).strftime(format).to_string()
    };
    let end = match ends {
        Some(Ends::Deadline(at)) => format!("; it ends at the deadline at {}", time(at)),
        Some(Ends::Killed(at)) => format!(
            "; it was asked to stop, and the blocking process is killed at {}",
            time(at)
        ),
        None => String::new(),
    };
    format!(
        "{what} has printed nothing new since {}{place}{end} (UTC)",
        time(since)
    )
}

/// A run ended without an apply because a user or a rule stopped it.
pub fn stopped(commands: &Commands, what: &str) -> Text {
    Text {
        message: format!("{what}; nothing was applied"),
        next_step: Some(commands.rerun()),
    }
}

/// An attempt failed, and another may follow.
pub fn retried(failure: &Failure) -> String {
    format!(
        "attempt failed, {}: {}; nothing was changed; another attempt follows if spec.retry.limit permits",
        failure.reason, failure.message
    )
}

/// A run failed.
pub fn failed(commands: &Commands, failure: &Failure, origin: &CodeOrigin) -> Text {
    let changed = match failure.changes {
        Changed::None => "nothing was changed",
        Changed::Some => "some of the plan was carried out",
        Changed::Unknown => "it is not known what was changed",
    };
    let place = match commands {
        Commands::Cluster { .. } => Place::Cluster,
        Commands::Folder { .. } => Place::Laptop,
    };
    let facts = Facts {
        again: commands.rerun(),
        logs: commands.logs(),
        origin: origin.clone(),
        ..Facts::default()
    }
    .of(failure);
    Text {
        message: format!("{}; {changed}", failure.message),
        next_step: Some(next_step(&failure.reason, place, &facts)),
    }
}

/// Adds what a failed apply did, and the recovery command if there is something to recover.
pub fn accounted(
    text: &mut Text,
    commands: &Commands,
    failure: &Failure,
    progress: Option<&Progress>,
    journal: Option<&Journal>,
) {
    let progress = progress.filter(|progress| progress.total > 0);
    let mut more = String::new();
    if let Some(Progress { done, total, .. }) = progress {
        more = format!("; {done} of {total} operations succeeded");
        // An object whose creation did not succeed may be in the state all the same.
        let recorded = journal.map_or(0, |journal| journal.recorded);
        if recorded > *done {
            more = format!(
                "{more}, {} more put their object into the state as tainted",
                recorded - done
            );
        }
    }
    if let Some(journal) = journal {
        more = format!("{more}; {}", journal.summary);
    }
    let room = MAX_MESSAGE.saturating_sub(more.chars().count());
    text.message = format!("{}{more}", clip(&text.message, room));
    // On a laptop the unsaved state is the only record, and another apply may overwrite it.
    let keeps =
        failure.reason == reason::STATE_NOT_SAVED && matches!(commands, Commands::Folder { .. });
    if !keeps && journal.is_some_and(Journal::wants_recovery) {
        text.next_step = Some(commands.recover());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::{Diagnostic, Reason};

    fn cluster() -> Commands {
        Commands::Cluster {
            namespace: "team".into(),
            run: "vpc".into(),
            stored: true,
        }
    }

    fn folder() -> Commands {
        Commands::Folder {
            command: "runner-agent local apply net".into(),
            record: "net/.pawl/runs/1".into(),
        }
    }

    #[test]
    fn approve_command_is_the_one_of_the_protocol() {
        assert_eq!(
            cluster().approve("sha256:ab"),
            "kubectl annotate -n team --overwrite tfrun.pawl.run/vpc pawl.run/approve=sha256:ab \
             pawl.run/approved-by=\"$(kubectl auth whoami -o jsonpath='{.status.userInfo.username}')\""
        );
    }

    #[test]
    fn created_objects_of_operations_without_success_are_accounted_for() {
        let progress = |done| Progress {
            done,
            total: 3,
            ..Progress::default()
        };
        let journal = Journal {
            summary: "3 created and recorded; state serial 4".into(),
            recorded: 3,
            ..Journal::default()
        };
        let said = |done| {
            let mut text = Text::default();
            let failure = Reason::InvalidConfiguration.failure("m");
            accounted(
                &mut text,
                &cluster(),
                &failure,
                Some(&progress(done)),
                Some(&journal),
            );
            text.message
        };
        assert_eq!(
            said(0),
            "; 0 of 3 operations succeeded, 3 more put their object into the state as tainted; 3 created and recorded; state serial 4"
        );
        assert_eq!(
            said(3),
            "; 3 of 3 operations succeeded; 3 created and recorded; state serial 4"
        );
    }

    #[test]
    fn failure_message_has_cause_place_and_next_step() {
        let mut f = Reason::InvalidConfiguration.failure("plan failed: x");
        f.diagnostics = vec![Diagnostic {
            file: Some("main.tf".into()),
            line: Some(7),
            ..Diagnostic::default()
        }];
        let text = failed(&cluster(), &f, &CodeOrigin::default());
        assert_eq!(text.message, "plan failed: x; nothing was changed");
        assert_eq!(
            text.next_step.unwrap(),
            "correct main.tf:7, then: kubectl annotate -n team tfrun.pawl.run/vpc pawl.run/rerun=true"
        );
        let text = failed(&folder(), &f, &CodeOrigin::default())
            .next_step
            .unwrap();
        assert_eq!(
            text,
            "correct main.tf:7, then: runner-agent local apply net"
        );
    }

    #[test]
    fn silence_message_has_start_object_and_end() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let since = at("2026-11-21T10:31:02.9Z");
        let deadline = Some(Ends::Deadline(at("2026-11-21T10:45:00Z")));
        assert_eq!(
            quiet(Phase::Plan, since, None, deadline),
            "plan has printed nothing new since 10:31:02; it ends at the deadline at 10:45:00 (UTC)"
        );
        assert_eq!(
            quiet(
                Phase::Apply,
                since,
                Some("aws_db_instance.main"),
                Some(Ends::Deadline(at("2026-11-22T04:31:02Z")))
            ),
            "apply has printed nothing new since 10:31:02, at aws_db_instance.main; it ends at the deadline at 2026-11-22 04:31:02 (UTC)"
        );
        assert_eq!(
            quiet(
                Phase::Apply,
                since,
                None,
                Some(Ends::Killed(at("2026-11-21T10:40:00Z")))
            ),
            "apply has printed nothing new since 10:31:02; it was asked to stop, and the blocking process is killed at 10:40:00 (UTC)"
        );
        assert!(
            quiet(Phase::AwaitingApproval, since, None, None)
                .starts_with("init of the stored plan has printed nothing")
        );
    }
}
