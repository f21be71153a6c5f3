//! The journal of an apply: records the tool's events per object, ships them from the pod during the apply, and retains them in memory for
//! the comparison at the end. Never waits for the datastore.

use std::{fs::File, io::Write as _};

use crds::apply_log::{
    Action, Comparison, Ended, Head, Line, MAX_TEXT, Operation, Replay, StateFacts, state,
    uncompared,
};
use crds::text::clip;

use super::{PhaseRunner, Planned, Shell, uploads::Journaling};
use crate::{
    classify,
    datastore::spool::SpoolWriter,
    guard,
    process::{Command, Exit, stream},
    report::redact::Redactor,
};

#[derive(Debug)]
pub(super) struct Journal {
    replay: Replay,
    out: Option<SpoolWriter>,
    redactor: Redactor,
}

/// An object in an event of the tool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touched<'a> {
    pub(super) action: &'a str,
    pub(super) address: &'a str,
    pub(super) kind: &'a str,
    pub(super) provider: &'a str,
    pub(super) id_key: &'a str,
    pub(super) id: &'a str,
    pub(super) at: &'a str,
}

impl Journal {
    fn push(&mut self, line: Line) {
        if let Some(out) = &mut self.out {
            // This writes to a spool file. The spool marks dropped data as a gap.
            let _ = out.write_all(&line.to_bytes());
        }
        self.replay.push(line);
    }

    /// Records an event of the tool.
    pub(super) fn told(&mut self, event: &str, told: Touched<'_>) {
        let make = match event {
            "apply_start" => Line::Start,
            "apply_complete" => Line::Complete,
            "apply_errored" => Line::Errored,
            _ => return,
        };
        let action = Action::of(told.action);
        if action == Action::Other {
            return;
        }
        // Only an `id` can be imported; another key, a truncated or a redacted value cannot.
        let is_id = told.id_key == "id" && !told.id.is_empty() && told.id.len() <= MAX_TEXT;
        let id = Some(told.id)
            .filter(|id| is_id && self.redactor.redact(id) == **id)
            .map(str::to_owned);
        self.push(make(Operation {
            action,
            address: self
                .redactor
                .redact(told.address)
                .chars()
                .take(MAX_TEXT)
                .collect(),
            kind: told.kind.to_owned(),
            provider: told.provider.to_owned(),
            id,
            at: told.at.to_owned(),
        }));
    }

    /// The objects of the journal, compared with a state.
    pub(super) fn compared(&self, state: &StateFacts) -> crds::Journal {
        Comparison::of(&self.replay, state).status()
    }

    pub(super) fn ended(&mut self, exit: Exit, saved: bool) {
        // A killed tool has not reported a result.
        if exit.signal.is_none() {
            self.push(Line::End(Ended {
                code: exit.code,
                saved,
            }));
        }
    }
}

impl PhaseRunner {
    /// Opens the journal of the apply, with the lines taken over from the run that this one recovers.
    pub(super) fn open_journal(&self, planned: &Planned) -> Journal {
        let Planned {
            shell, state_key, ..
        } = planned;
        let head = Head {
            managed: shell.managed,
            state: state_key.clone().unwrap_or_default(),
        };
        let carried = super::recover::carried(&shell.stack);
        let out = self.remote.as_ref().and_then(|remote| {
            let journaling = Journaling::start(remote.client.clone(), self.settings.kept.clone());
            let journaling = journaling
                .inspect_err(|error| tracing::error!(%error, "the journal cannot leave the pod"))
                .ok()?;
            let out = SpoolWriter(journaling.spool.clone());
            *guard(&remote.journal) = Some(journaling);
            Some(out)
        });
        let mut journal = Journal {
            replay: Replay::default(),
            out,
            redactor: self.redactor.clone(),
        };
        journal.push(Line::Begin(head));
        for line in carried {
            journal.push(line);
        }
        journal
    }

    /// Accounts for the objects of a failed apply, and for the actions that it `invoked`.
    pub(super) async fn account(
        &self,
        shell: &Shell,
        journal: Journal,
        invoked: Option<String>,
    ) -> crds::Journal {
        let mut account = self.account_objects(shell, journal).await;
        if let Some(invoked) = invoked {
            account.summary = clip(&format!("{}; {invoked}", account.summary), 512);
        }
        account
    }

    async fn account_objects(&self, shell: &Shell, journal: Journal) -> crds::Journal {
        if journal.replay.is_empty() {
            return crds::Journal {
                summary: "the tool began with no object".to_owned(),
                compared: true,
                ..crds::Journal::default()
            };
        }
        match self.read_state(shell).await {
            Ok(facts) => journal.compared(&facts),
            Err(why) => uncompared(&journal.replay, &self.redactor.redact(&why)),
        }
    }

    /// Reads the state's current objects through the tool, which has the credentials. Runs even after the tool was asked to stop,
    /// since it only reads.
    pub(super) async fn read_state(&self, shell: &Shell) -> Result<StateFacts, String> {
        self.pull_state(shell, state::read).await
    }

    /// Pulls the current state and passes it to `read`.
    pub(super) async fn pull_state<T: Send + 'static>(
        &self,
        shell: &Shell,
        read: fn(File) -> Result<T, state::StateError>,
    ) -> Result<T, String> {
        let command = self
            .command(shell, ["state", "pull"])
            .map_err(|failure| failure.message)?;
        self.pull_by(&command, shell, read).await
    }

    /// The same by a command that pulls it.
    pub(super) async fn pull_by<T: Send + 'static>(
        &self,
        command: &Command,
        shell: &Shell,
        read: fn(File) -> Result<T, state::StateError>,
    ) -> Result<T, String> {
        let (reader, writer) = stream(&command.role)
            .map_err(|error| format!("there is no stream for its output: {error}"))?;
        let found = tokio::task::spawn_blocking(move || read(File::from(reader)));
        let (notices, _unseen) = tokio::sync::mpsc::unbounded_channel();
        let mut events = self.events(&shell.stack, &notices).quiet();
        let exit = self
            .children
            .run_into_last(command, writer, &mut events)
            .await;
        let exit = exit.map_err(|error| classify::not_run("state pull", &error).message)?;
        if exit.code != 0 {
            return Err(classify::failure("state pull", exit, &events.said()).message);
        }
        found
            .await
            .map_err(|error| error.to_string())?
            .map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::datastore::JOURNAL;

    fn journal() -> (
        tempfile::TempDir,
        std::sync::Arc<crate::datastore::spool::Spool>,
        Journal,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let spool = crate::datastore::spool::Spool::create(dir.path().join(JOURNAL)).unwrap();
        spool.enter(JOURNAL);
        let redactor = Redactor::default();
        redactor.add("hunter22");
        let journal = Journal {
            replay: Replay::default(),
            out: Some(SpoolWriter(spool.clone())),
            redactor,
        };
        (dir, spool, journal)
    }

    fn told<'a>(action: &'a str, address: &'a str, id_key: &'a str, id: &'a str) -> Touched<'a> {
        Touched {
            action,
            address,
            kind: "t",
            provider: "p",
            id_key,
            id,
            at: "2026-11-21T10:00:00Z",
        }
    }

    #[test]
    fn events_are_spooled_at_once_without_secrets() {
        let (_dir, spool, mut journal) = journal();
        journal.told("apply_start", told("create", "t.a", "", ""));
        journal.told("apply_complete", told("create", "t.a", "id", "i-1"));
        journal.told(
            "apply_complete",
            told("create", "t.b[\"hunter22\"]", "id", "of-hunter22"),
        );
        journal.told("apply_complete", told("create", "t.c", "name", "no id"));
        journal.told("apply_start", told("read", "data.t.d", "", ""));
        journal.told("provision_start", told("create", "t.a", "", ""));
        let piece = String::from_utf8(spool.next(1 << 20).unwrap().bytes).unwrap();
        let lines: Vec<_> = piece
            .lines()
            .map(|line| Line::parse(line.as_bytes()).unwrap())
            .collect();
        assert_eq!(lines.len(), 4, "{piece}");
        assert!(
            !piece.contains("hunter22") && !piece.contains("no id"),
            "{piece}"
        );
        assert!(
            matches!(&lines[1], Line::Complete(o) if o.id.as_deref() == Some("i-1") && o.at == "2026-11-21T10:00:00Z")
        );
        assert_eq!(journal.replay.created(), 3);
    }

    #[test]
    fn killed_tool_has_reported_no_result() {
        let (_dir, _spool, mut journal) = journal();
        journal.ended(
            Exit {
                code: 137,
                signal: Some(9),
                told: true,
            },
            true,
        );
        assert!(!journal.replay.is_judged());
        journal.ended(
            Exit {
                code: 1,
                signal: None,
                told: true,
            },
            false,
        );
        assert!(!journal.replay.is_judged());
        journal.ended(
            Exit {
                code: 1,
                signal: None,
                told: true,
            },
            true,
        );
        assert!(journal.replay.is_judged());
    }
}
