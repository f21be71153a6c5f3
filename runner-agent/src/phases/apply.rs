//! Apply: the plan file, and nothing else.

use crds::{Changed, Claim, Failure, reason};

use super::PodWork;
use crate::{
    classify,
    ports::{ApplyReport, Notices},
};

impl PodWork {
    pub(super) async fn run_apply(&self, claim: &Claim, notices: &Notices) -> Result<ApplyReport, Failure> {
        self.record_claim(claim).await?;
        let file = self.settings.plan_file().display().to_string();
        let (planned, stack) = {
            let known = self.known();
            (known.planned, known.stack.clone())
        };
        let command = self.command(["apply", "-json", "-input=false", &file])?;
        let mut events = self.events(notices).total(planned);
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
        if exit.code == 0 {
            return Ok(ApplyReport { done: operations.done, outputs: events.outputs() });
        }
        let mut failure = classify::failure("apply", exit, &events.said());
        failure.changes = changed;
        let rescue = stack.join("errored.tfstate");
        if rescue.is_file() {
            reason::STATE_NOT_SAVED.clone_into(&mut failure.reason);
            let place = if self.settings.machine().is_some() { "" } else { " of the pod, which ends with it" };
            failure.message = format!("the state could not be saved and is in {}{place}; {}", rescue.display(), failure.message);
            // The tool changed something, or there would be nothing to save.
            failure.changes = Changed::Some;
        }
        Err(failure)
    }
}
