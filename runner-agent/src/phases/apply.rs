//! Apply: the plan file, and nothing else.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Instant,
};

use crds::{Changed, Claim, Failure, reason};

use super::PodWork;
use crate::{
    classify::{self, already_exists},
    ports::{ApplyReport, Notice, Notices},
};

/// Where the tool leaves a state that it could not save: in the directory that it ran in, which is another one than the stack's where
/// Terragrunt made it.
pub(super) fn rescued(stack: &Path, ran_in: Option<PathBuf>) -> PathBuf {
    ran_in.unwrap_or_else(|| stack.to_owned()).join("errored.tfstate")
}

impl PodWork {
    pub(super) async fn run_apply(&self, claim: &Claim, notices: &Notices) -> Result<ApplyReport, Failure> {
        self.record_claim(claim).await?;
        let file = OsString::from(self.settings.plan_file());
        let (planned, stack) = {
            let known = self.known();
            (known.planned, known.stack.clone())
        };
        let mut journal = Some(self.open_journal());
        let begun = Instant::now();
        let mut waits = 0;
        let (exit, changed, rescue, mut failure) = loop {
            let lock_timeout = self.lock_timeout(waits);
            let mut args: Vec<OsString> = ["apply", "-json", "-input=false", &lock_timeout].map(OsString::from).into();
            if self.tool()?.applies_with_variables() {
                args.extend(self.settings.machine().into_iter().flat_map(|machine| machine.plan_args.clone()));
            }
            args.push(file.clone());
            let command = self.command(args)?;
            let mut events = self.events(notices).total(planned).journaled(journal);
            // Until its end is seen nobody can say what it changed.
            self.known().changed = Changed::Unknown;
            let exit = self.step("apply", &command, &mut events, notices).await.inspect_err(|failure| {
                // It was never started.
                if failure.reason == reason::TERMINATED {
                    self.known().changed = Changed::None;
                }
            })?;
            let operations = events.operations();
            let changed = if exit.signal.is_some() && operations.done == 0 { Changed::Unknown } else { operations.changed() };
            self.known().changed = changed;
            let rescue = rescued(&stack, self.ran_in());
            journal = events.journal();
            let said = events.said();
            // Terragrunt ends well where it was told to ignore an error; what was approved has not been carried out all the same.
            if exit.code == 0 && !self.ignored(&said) {
                if let Some(journal) = &mut journal {
                    journal.ended(exit, !rescue.is_file());
                }
                return Ok(ApplyReport { done: operations.done, outputs: events.outputs() });
            }
            let failure = classify::failure("apply", exit, &said);
            // The tool takes the lock before anything else: one that was refused it, and began nothing, has spent nothing of the plan.
            let refused = failure.reason == reason::STATE_LOCKED && changed == Changed::None && !rescue.is_file();
            // What is left of its time has to be enough for the apply itself.
            if !refused || exit.told || begun.elapsed() > self.run().spec.timeouts.apply.0 / 2 {
                break (exit, changed, rescue, failure);
            }
            if let Err(failure) = self.wait_for_lock("apply", failure, notices).await {
                break (exit, changed, rescue, failure);
            }
            waits += 1;
        };
        if let Some(journal) = &mut journal {
            journal.ended(exit, !rescue.is_file());
        }
        failure.changes = changed;
        if let Some(code) = already_exists::recognise(&mut failure) {
            self.log.line(&self.redactor.clean(&format!("pawl: the object is adopted by\n{code}"))).await;
        }
        if rescue.is_file() {
            reason::STATE_NOT_SAVED.clone_into(&mut failure.reason);
            failure.message = format!("the state could not be saved; {}; {}", self.rescue_state(&rescue).await, failure.message);
            // The tool changed something, or there would be nothing to save.
            failure.changes = Changed::Some;
        }
        if let Some(journal) = journal {
            let account = self.account(journal).await;
            // A recovery counts what an earlier run made.
            if self.known().recovery.is_none() {
                failure.changes = account.refined(failure.changes);
            }
            let _ = notices.send(Notice::Journal(Box::new(account)));
        }
        Err(failure)
    }
}
