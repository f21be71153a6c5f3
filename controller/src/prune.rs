//! Finished runs go after their time, Indeterminate ones never: somebody has to look at them.

use jiff::{SignedDuration, Timestamp};

use crds::{RunResult, TerraformRun, TerraformRunStatus};

use crate::{
    run::{Action, Decision},
    settings::Settings,
};

/// Whether the run goes now, later or never.
pub fn decide(run: &TerraformRun, status: &TerraformRunStatus, settings: &Settings, now: Timestamp) -> Decision {
    let Some(ttl) = run.spec.ttl_seconds_after_finished.or(settings.default_ttl_seconds) else { return Decision::wait() };
    let (Some(ended), Some(result)) = (&status.completion_time, status.result) else { return Decision::wait() };
    if result == RunResult::Indeterminate {
        return Decision::wait();
    }
    match ended.0.checked_add(SignedDuration::from_secs(i64::from(ttl))) {
        Ok(due) if now >= due => Decision::act(Action::Prune),
        Ok(due) => Decision::until(due, now),
        Err(_) => Decision::wait(),
    }
}
