//! Apply: the plan file, and nothing else.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use crds::{Changed, Claim, Failure, reason};

use super::{PodWork, locked::LOCK_TIMEOUT};
use crate::{
    classify, exists,
    ports::{ApplyReport, Notice, Notices},
};

/// Where the tool leaves a state that it could not save: in the directory that it runs in, which Terragrunt may make of its own.
pub(super) fn rescued(stack: &Path) -> PathBuf {
    const NAME: &str = "errored.tfstate";
    let below = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let copies = below(&stack.join(".terragrunt-cache")).flat_map(|one| below(&one).collect::<Vec<_>>());
    copies.map(|copy| copy.join(NAME)).find(|path| path.is_file()).unwrap_or_else(|| stack.join(NAME))
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
        let (exit, changed, rescue, mut failure) = loop {
            let mut args: Vec<OsString> = ["apply", "-json", "-input=false", LOCK_TIMEOUT].map(OsString::from).into();
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
            let rescue = rescued(&stack);
            journal = events.journal();
            if exit.code == 0 {
                if let Some(journal) = &mut journal {
                    journal.ended(exit, !rescue.is_file());
                }
                return Ok(ApplyReport { done: operations.done, outputs: events.outputs() });
            }
            let failure = classify::failure("apply", exit, &events.said());
            // The tool takes the lock before anything else: one that was refused it, and began nothing, has spent nothing of the plan.
            let refused = failure.reason == reason::STATE_LOCKED && changed == Changed::None && !rescue.is_file();
            // What is left of its time has to be enough for the apply itself.
            if !refused || exit.told || begun.elapsed() > self.run().spec.timeouts.apply.0 / 2 {
                break (exit, changed, rescue, failure);
            }
            if let Err(failure) = self.wait_for_lock("apply", failure, notices).await {
                break (exit, changed, rescue, failure);
            }
        };
        if let Some(journal) = &mut journal {
            journal.ended(exit, !rescue.is_file());
        }
        failure.changes = changed;
        if let Some(code) = exists::recognise(&mut failure) {
            self.log.line(&self.redactor.clean(&format!("pawl: the object is adopted by\n{code}"))).await;
        }
        if rescue.is_file() {
            reason::STATE_NOT_SAVED.clone_into(&mut failure.reason);
            failure.message = format!("the state could not be saved; {}; {}", self.rescue_state(&rescue).await, failure.message);
            // The tool changed something, or there would be nothing to save.
            failure.changes = Changed::Some;
        }
        if let Some(journal) = journal {
            let _ = notices.send(Notice::Journal(Box::new(self.account(journal).await)));
        }
        Err(failure)
    }
}
