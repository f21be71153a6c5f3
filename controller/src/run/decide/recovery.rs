//! Answers `pawl.run/recover=true` once: creates a run that imports the objects that this run created and did not record.

use kube::{Resource as _, ResourceExt as _};

use super::rerun;
use crate::run::{
    outcome::{Action, Decision, Outcome},
    run_view::RunView,
    situation::Situation,
};
use crds::{ApprovalMode, Recover, RunResult, TerraformRun, names};

/// Whether a recovery is requested and not answered. Admission allows the request only where there may be something to recover.
pub(super) fn is_asked(run: &RunView) -> bool {
    let status = &run.status;
    let asked = names::is_on(run.meta(), names::RECOVER);
    // The packed form of a finished run lacks the claim.
    let claimed = status.claim.is_some() || run.whole().is_none();
    let due = matches!(
        status.result,
        Some(RunResult::Failed | RunResult::Indeterminate)
    ) && claimed;
    asked && due && status.recovery.is_none()
}

/// Creates the run and records its name.
pub(super) fn answer(s: &Situation<'_>) -> Decision {
    let name = names::recovery_name(&s.run.name_any(), &s.run.uid().unwrap_or_default());
    Decision::all(vec![
        Action::CreateRecovery,
        Action::Write(Outcome::RecoveryCreated(name)),
    ])
}

/// The recovery run: the same spec, always with manual approval. Its imports come from an apply that did not end well, and objects that the
/// apply began to create may exist as well.
pub(in crate::run) fn fresh_run(run: &TerraformRun) -> TerraformRun {
    let name = names::recovery_name(&run.name_any(), &run.uid().unwrap_or_default());
    let mut fresh = rerun::same_spec(run, name, names::RECOVERY_OF);
    fresh.spec.recover = Some(Recover {
        from_run: run.name_any(),
    });
    fresh.spec.approval.mode = ApprovalMode::Manual;
    fresh
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn recovery_has_spec_and_origin_and_manual_approval() {
        let mut run = testing::run();
        run.spec.approval.mode = ApprovalMode::Automatic;
        let fresh = fresh_run(&run);
        assert_eq!(
            fresh
                .spec
                .recover
                .as_ref()
                .map(|recover| recover.from_run.as_str()),
            Some("net")
        );
        assert_eq!(fresh.spec.approval.mode, ApprovalMode::Manual);
        assert_eq!(
            fresh.spec.stack.as_deref(),
            Some("net"),
            "the same managed state"
        );
        assert_eq!(fresh.spec.source, run.spec.source);
        assert_eq!(
            fresh.annotations().iter().collect::<Vec<_>>(),
            [(&names::RECOVERY_OF.to_owned(), &"net".to_owned())]
        );
        assert_ne!(fresh.name_any(), rerun::fresh_run(&run).name_any());
    }
}
