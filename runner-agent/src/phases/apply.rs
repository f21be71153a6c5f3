//! Applies the plan file, and nothing else.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Instant,
};

use crds::{Changed, Claim, Failure, reason};

use super::{PhaseRunner, Planned};
use crate::{
    classify::{self, already_exists},
    guard,
    ports::{ApplyReport, Notice, Notices},
};

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
        let mut waits = 0;
        let (exit, changed, rescue, mut failure) = loop {
            let lock_timeout = shell.lock_timeout(waits);
            let mut args: Vec<OsString> = ["apply", "-json", "-input=false", &lock_timeout]
                .map(OsString::from)
                .into();
            args.extend(shell.options.apply.iter().map(OsString::from));
            args.push(file.clone());
            let command = self.command(shell, args)?;
            let mut events = self
                .events(&shell.stack, notices)
                .total(planned.operations)
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
            if exit.code == 0 && !shell.ignored(&said) {
                if let Some(journal) = &mut journal {
                    journal.ended(exit, !rescue.is_file());
                }
                self.record_state(planned).await;
                return Ok(ApplyReport {
                    done: operations.done,
                    outputs: events.outputs(),
                });
            }
            let failure = classify::failure("apply", exit, &said);
            // The tool takes the lock first. If the lock was refused and no operation began, the plan can still be applied.
            let refused = failure.reason == reason::STATE_LOCKED
                && changed == Changed::None
                && !rescue.is_file();
            // Retry only while at least half of the apply timeout remains for the apply itself.
            if !refused || exit.told || begun.elapsed() > planned.run.spec.timeouts.apply.0 / 2 {
                break (exit, changed, rescue, failure);
            }
            if let Err(failure) = self.wait_for_lock(shell, "apply", failure, notices).await {
                break (exit, changed, rescue, failure);
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
            let account = self.account(shell, journal).await;
            // The journal of a recovery also counts objects of an earlier run, so it cannot refine this run's changes.
            if !planned.recovers {
                failure.changes = account.refined(failure.changes);
            }
            let _ = notices.send(Notice::Journal(Box::new(account)));
        }
        Err(failure)
    }
}
