//! Applies the plan file, and nothing else.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crds::{Changed, Claim, Failure, Operation, Reason, reason};

use super::{MAX_PLAN, PhaseRunner, Planned, Shell, journal::Journal, plan_file, terragrunt};
use crate::{
    backend::Backend,
    classify::{self, already_exists},
    files, guard,
    ports::{ApplyReport, Notice, Notices},
};

/// Pause before the state is read back once more.
const AGAIN: Duration = Duration::from_secs(2);

/// Path of the state file that the tool writes when it cannot save the state remotely. The tool writes it to its working directory,
/// which differs from the stack's directory if Terragrunt created a working directory.
pub(super) fn rescued(stack: &Path, ran_in: Option<PathBuf>) -> PathBuf {
    ran_in
        .unwrap_or_else(|| stack.to_owned())
        .join("errored.tfstate")
}

impl PhaseRunner {
    pub(super) async fn run_apply(
        &self,
        planned: &Planned,
        claim: &Claim,
        notices: &Notices,
    ) -> Result<ApplyReport, Failure> {
        // With hooks before the apply, `run_hooks_before` has recorded the claim already.
        if !self.has_hooks_before_apply() {
            self.record_claim(claim).await?;
        }
        let file = OsString::from(self.settings.plan_file());
        let shell = &planned.shell;
        let mut journal = Some(self.open_journal(planned));
        let begun = Instant::now();
        let destroys = planned.run.spec.operation == Operation::Destroy;
        let mut waits = 0;
        let (exit, changed, rescue, invoked, mut failure) = loop {
            let lock_timeout = shell.lock_timeout(waits);
            let mut args: Vec<OsString> = ["apply", "-json", "-input=false", &lock_timeout]
                .map(OsString::from)
                .into();
            args.extend(shell.options.apply.iter().map(OsString::from));
            args.push(file.clone());
            let command = self.command(shell, args)?;
            let mut events = self
                .events(&shell.stack, notices)
                .total(planned.counts.operations())
                .journaled(journal);
            // Unknown until the command's end has been read.
            *guard(&self.changed) = Changed::Unknown;
            let exit = self
                .step("apply", &command, &mut events, notices)
                .await
                .inspect_err(|failure| {
                    // The command was never started.
                    if failure.reason == reason::TERMINATED {
                        *guard(&self.changed) = Changed::None;
                    }
                })?;
            let operations = events.operations();
            let changed = if exit.signal.is_some() && operations.done == 0 {
                Changed::Unknown
            } else {
                operations.changed()
            };
            *guard(&self.changed) = changed;
            let rescue = rescued(&shell.stack, self.ran_in());
            journal = events.journal();
            let said = events.said();
            // Terragrunt exits with 0 if it is configured to ignore an error. The approved plan was still not applied.
            let ended_well =
                exit.code == 0 || destroys && !exit.told && classify::has_forgotten(&said);
            let has_run = !shell.is_terragrunt() || self.ran_in().is_some() || operations.done > 0;
            if ended_well && has_run && !shell.ignored(&said) {
                let mut unread = None;
                if let Some(mut journal) = journal {
                    journal.ended(exit, !rescue.is_file());
                    let wrote = changed != Changed::None || planned.counts.is_silent();
                    unread = self.read_back(shell, journal, wrote, notices).await?;
                }
                self.record_state(planned).await;
                return Ok(ApplyReport {
                    done: operations.done,
                    outputs: events.outputs(),
                    unread,
                });
            }
            let failure = match self.have_inputs_changed() {
                Err(refused) if changed == Changed::None => refused,
                Ok(()) if ended_well && !has_run => {
                    Reason::InvalidConfiguration.failure(terragrunt::NOT_APPLIED)
                }
                _ => classify::failure("apply", exit, &said),
            };
            // The tool takes the lock first. If the lock was refused and no operation began, the plan can still be applied.
            let refused = failure.reason == reason::STATE_LOCKED
                && changed == Changed::None
                && !rescue.is_file();
            // Retry only while at least half of the apply timeout remains for the apply itself.
            if !refused || exit.told || begun.elapsed() > planned.run.spec.timeouts.apply.0 / 2 {
                let failure = self.held(shell, "apply", failure);
                break (exit, changed, rescue, said.invoked(), failure);
            }
            if let Err(failure) = self.wait_for_lock(shell, "apply", failure, notices).await {
                break (exit, changed, rescue, said.invoked(), failure);
            }
            waits += 1;
        };
        if let Some(journal) = &mut journal {
            journal.ended(exit, !rescue.is_file());
        }
        failure.changes = changed;
        if let Some(code) = already_exists::recognise(&mut failure) {
            self.say(format!("the object is adopted by\n{code}")).await;
        }
        if rescue.is_file() {
            reason::STATE_NOT_SAVED.clone_into(&mut failure.reason);
            failure.message = format!(
                "the state could not be saved; {}; {}",
                self.rescue_state(&rescue).await,
                failure.message
            );
            // The tool changed something, or there would be no state to save.
            failure.changes = Changed::Some;
        }
        if changed != Changed::None {
            self.record_state(planned).await;
        }
        if let Some(journal) = journal {
            let mut account = self.account(shell, journal, invoked).await;
            // The tools report no import, forget or move.
            let may_have_saved = failure.changes == Changed::None
                && planned.counts.is_silent()
                && !classify::is_before_the_apply(&failure);
            if may_have_saved {
                (failure.changes, account.summary) = self.saved_silently(shell).await;
            }
            // The journal of a recovery also counts objects of an earlier run, so it cannot refine this run's changes.
            if !planned.recovers {
                failure.changes = account.refined(failure.changes);
            }
            let _ = notices.send(Notice::Journal(Box::new(account)));
        }
        Err(failure)
    }

    /// Reads the state after a good apply, where another client may have written it meanwhile. It has to have what was made, and to be
    /// there if the apply `wrote` it. Returns why it could not be read.
    async fn read_back(
        &self,
        shell: &Shell,
        journal: Journal,
        wrote: bool,
        notices: &Notices,
    ) -> Result<Option<String>, Failure> {
        let backend = Backend::read(&shell.stack).ok();
        let is_shared = backend.is_some_and(|backend| backend.may_be_shared(&shell.env));
        if !is_shared || shell.managed {
            return Ok(None);
        }
        let mut read = self.read_state(shell).await;
        if read.is_err() && !self.children.is_stopped() {
            tokio::time::sleep(AGAIN).await;
            read = self.read_state(shell).await;
        }
        let facts = match read {
            Ok(facts) => facts,
            Err(why) => {
                let why = self.redactor.clean(&why);
                self.say(format!(
                    "the state was not read back after the apply: {why}"
                ))
                .await;
                return Ok(Some(why));
            }
        };
        let is_gone = facts.serial.is_none() && wrote;
        let account = journal.compared(&facts);
        let lacks = account.not_recorded.len();
        let found = match (is_gone, lacks) {
            (true, _) => "there is no state: another client removed it meanwhile".to_owned(),
            (false, 0) => return Ok(None),
            _ => format!(
                "the state lacks {lacks} of what it made: another client wrote the state meanwhile"
            ),
        };
        let message = format!("the apply ended well, and {found}");
        let _ = notices.send(Notice::Journal(Box::new(account)));
        *guard(&self.changed) = Changed::Some;
        Err(Failure {
            changes: Changed::Some,
            ..Reason::StateOverwritten.failure(message)
        })
    }

    /// Whether the tool saved a state, although it reported no operation, and that in words.
    async fn saved_silently(&self, shell: &Shell) -> (Changed, String) {
        let path = self.settings.plan_file();
        let planned = tokio::task::spawn_blocking(move || {
            plan_file::serial(&files::left(&path, MAX_PLAN).ok()?)
        });
        let (planned, now) = (planned.await.ok().flatten(), self.read_state(shell).await);
        let begun = "the tool reported no operation";
        match (planned, now) {
            (Some(planned), Ok(state)) if state.serial.unwrap_or_default() == planned => (
                Changed::None,
                format!("{begun}, and the state is as planned"),
            ),
            (Some(_), Ok(state)) => (
                Changed::Some,
                format!(
                    "{begun} and saved state serial {}: imports, forgets, moves and outputs of the plan may be in it",
                    state.serial.unwrap_or_default()
                ),
            ),
            (None, Ok(_)) => (
                Changed::Unknown,
                format!("{begun}; the state that was planned cannot be read"),
            ),
            (_, Err(why)) => (
                Changed::Unknown,
                self.redactor
                    .clean(&format!("{begun}; the state cannot be read: {why}")),
            ),
        }
    }
}
