//! The facts of the run that concern a running attempt, read as levels: cancelled, denied, deleted, approved, fenced. The machine gets an
//! event when one changes.

use std::time::Duration;

use crds::{ApprovalMode, TerraformRun, approval, conditions, reason, text::clip};

use crate::machine::{Cause, Ending, Event, Permission, Stop};

/// Used while the controller has not written a condition on the lease.
const NO_LEASE: &str = "waits for the lease on its state, which the controller has not given";

/// The levels read from the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Requests {
    pub(super) deleted: bool,
    pub(super) cancelled: Option<String>,
    pub(super) denied: Option<String>,
    /// An approval of this plan is recorded.
    pub(super) recorded: bool,
    /// The approval is recorded, and the run holds the lease on the plan's state.
    pub(super) approved: bool,
    /// The run contains the plan, and holds the lease on its state.
    pub(super) leased: bool,
    /// The message on what the run waits for before it gets the lease.
    pub(super) queued: Option<String>,
    /// Message if another run applied to the state since the plan was made.
    pub(super) stale: Option<String>,
    pub(super) approver: Option<String>,
    /// The run needs no approval.
    pub(super) automatic: bool,
    /// Other runs wait for this attempt's slot.
    pub(super) wanted: bool,
    pub(super) fenced: bool,
}

/// Whether this pod may make the plan but not apply it, since the apply uses another ServiceAccount.
pub(super) fn leaves_the_apply(run: &TerraformRun) -> bool {
    let restores = run
        .attempt()
        .is_some_and(|attempt| attempt.restores.is_some());
    run.spec.runner.plan_service_account_name.is_some() && !restores
}

/// Time this pod waits for the approval before it ends and leaves the plan in the datastore.
pub(super) fn hold_for(run: &TerraformRun) -> Duration {
    if leaves_the_apply(run) {
        Duration::ZERO
    } else {
        run.spec.approval.hold_for.0
    }
}

impl Requests {
    pub(super) fn of(
        run: &TerraformRun,
        checksum: Option<&str>,
        is_own: impl Fn(&TerraformRun) -> bool,
    ) -> Self {
        let planned = checksum.filter(|sum| !sum.is_empty());
        let recorded = planned.is_some_and(|sum| approval::stands(run, sum));
        let stands = planned.is_some() && run.plan().map(|plan| plan.checksum.as_str()) == planned;
        let leased = stands && run.is_leased();
        let said = |type_: &str, is: &str, reasons: &[&str]| {
            let mut conditions = run.status.iter().flat_map(|status| &status.conditions);
            let found = conditions.find(|c| {
                c.type_ == type_ && c.status == is && reasons.contains(&c.reason.as_str())
            });
            found.map(|c| clip(&c.message, 300))
        };
        let waits = [reason::QUEUED, reason::SLOTS_FULL, reason::FROZEN];
        Self {
            deleted: run.metadata.deletion_timestamp.is_some(),
            cancelled: run.cancelled(),
            denied: run.denied(),
            recorded,
            approved: recorded && leased && !leaves_the_apply(run),
            leased,
            queued: said(conditions::STATE_LEASED, "False", &waits).filter(|_| stands && !leased),
            stale: said(conditions::PLANNED, "True", &[reason::STALE_PLAN]).filter(|_| stands),
            approver: run
                .status
                .as_ref()
                .and_then(|s| s.approval.as_ref())
                .map(|a| clip(&a.by, 120)),
            automatic: run.approval_mode() == ApprovalMode::Automatic,
            wanted: run.attempt().is_some_and(|attempt| attempt.end_hold),
            fenced: !is_own(run),
        }
    }

    /// The message on what an approved plan waits for.
    pub(super) fn turn(&self) -> Option<&str> {
        self.recorded
            .then(|| self.queued.as_deref().unwrap_or(NO_LEASE))
    }

    /// Events for the changes since `before`.
    pub(super) fn news(&self, before: &Self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut when = |is: bool, event| {
            if is {
                events.push(event);
            }
        };
        when(self.fenced && !before.fenced, Event::Stop(Stop::Fenced));
        when(
            self.denied.is_some() && before.denied.is_none(),
            Event::Stop(Stop::Denied),
        );
        when(
            self.cancelled.is_some() && before.cancelled.is_none(),
            Event::Stop(Stop::Cancelled),
        );
        when(self.deleted && !before.deleted, Event::Stop(Stop::Deleted));
        when(
            !self.approved && before.approved,
            Event::Permission(Permission::Withdrawn),
        );
        when(
            self.approved && !before.approved,
            Event::Permission(Permission::Approved),
        );
        when(
            self.leased && !before.leased,
            Event::Permission(Permission::Leased),
        );
        when(
            self.queued.is_some() && before.queued.is_none(),
            Event::Permission(Permission::Queued),
        );
        events
    }

    /// The message of an ending; empty if the failure or result explains it.
    pub(super) fn words(&self, ending: Ending) -> String {
        match ending {
            Ending::Rejected => self.denied.clone().unwrap_or_default(),
            Ending::Canceled | Ending::Failed(Cause::Cancelled) => {
                self.cancelled.clone().unwrap_or_default()
            }
            Ending::Deleted => "the run is being deleted".to_owned(),
            Ending::Expired if self.recorded || self.automatic => {
                "the lease on its state could not be taken in time".to_owned()
            }
            Ending::Expired => "the plan was not approved in time".to_owned(),
            Ending::Queued => self.queued.clone().unwrap_or_default(),
            Ending::Released => self.turn().unwrap_or_default().to_owned(),
            Ending::NoChanges
            | Ending::Planned
            | Ending::Applied
            | Ending::Failed(_)
            | Ending::Attempt(_) => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crds::{Attempt, PlanStatus, TerraformRunSpec, TerraformRunStatus, names};
    use serde_json::json;

    use super::*;

    const SUM: &str = "sha256:1";

    /// A run whose plan is [`SUM`], with a condition.
    fn planned(type_: &str, is: bool, reason: &str, said: &str) -> TerraformRun {
        let mut run = TerraformRun::new("a", TerraformRunSpec::default());
        let plan = PlanStatus {
            checksum: SUM.into(),
            attempt: 1,
            ..PlanStatus::default()
        };
        let mut status = TerraformRunStatus {
            plan: Some(plan),
            ..TerraformRunStatus::default()
        };
        conditions::set(
            &mut status.conditions,
            type_,
            Some(is),
            reason,
            said,
            None,
            jiff::Timestamp::UNIX_EPOCH,
        );
        run.status = Some(status);
        run
    }

    #[test]
    fn plan_only_account_leaves_at_once_and_applies_nothing() {
        let run = |account: Option<&str>, restores: Option<u32>| {
            let mut run = planned(conditions::PLANNED, true, reason::PLANNED, "");
            run.spec.runner.plan_service_account_name = account.map(ToOwned::to_owned);
            run.metadata.annotations = Some([(names::APPROVE.to_owned(), SUM.to_owned())].into());
            let approval = json!({"checksum": SUM, "by": "alice", "at": "2026-01-01T00:00:00Z"});
            let status = run.status.as_mut().unwrap();
            status.approval = Some(serde_json::from_value(approval).unwrap());
            status.attempt = Some(Attempt {
                restores,
                ..Attempt::default()
            });
            run
        };
        let of = |run: &TerraformRun| {
            (
                Requests::of(run, Some(SUM), |_| true).approved,
                hold_for(run).is_zero(),
            )
        };
        assert_eq!(of(&run(Some("reader"), None)), (false, true));
        assert_eq!(of(&run(Some("reader"), Some(1))), (true, false));
        assert_eq!(of(&run(None, None)), (true, false));
    }

    #[test]
    fn approved_plan_reports_every_cause_of_waiting() {
        for (reason, said) in [
            (reason::QUEUED, true),
            (reason::SLOTS_FULL, true),
            (reason::FROZEN, true),
            (reason::LEASE_REFUSED, false),
        ] {
            let mut run = planned(conditions::STATE_LEASED, false, reason, "because");
            let status = run.status.as_mut().unwrap();
            status.plan.as_mut().unwrap().state_key = Some("k".into());
            status.attempt = Some(Attempt {
                end_hold: said,
                ..Attempt::default()
            });
            let requests = Requests::of(&run, Some(SUM), |_| true);
            assert_eq!(
                (requests.queued.as_deref(), requests.wanted),
                (said.then_some("because"), said),
                "{reason}"
            );
        }
    }

    #[test]
    fn staleness_counts_only_for_the_current_plan() {
        let stale = |run, sum| Requests::of(&run, Some(sum), |_| true).stale;
        let run = || planned(conditions::PLANNED, true, reason::STALE_PLAN, "b applied");
        assert_eq!(
            (stale(run(), SUM).as_deref(), stale(run(), "sha256:2")),
            (Some("b applied"), None)
        );
        assert_eq!(
            stale(
                planned(conditions::PLANNED, true, reason::PLANNED, "+1 ~0 -0"),
                SUM
            ),
            None
        );
    }

    #[test]
    fn changed_level_is_reported_once() {
        let (before, mut after) = (Requests::default(), Requests::default());
        after.cancelled = Some("cancelled: why".into());
        after.approved = true;
        after.queued = Some("behind b".into());
        assert_eq!(
            after.news(&before),
            [
                Event::Stop(Stop::Cancelled),
                Event::Permission(Permission::Approved),
                Event::Permission(Permission::Queued)
            ]
        );
        assert!(after.news(&after).is_empty());
        assert_eq!(
            before.news(&Requests {
                cancelled: None,
                ..after.clone()
            }),
            [Event::Permission(Permission::Withdrawn)]
        );
        assert_eq!(after.words(Ending::Canceled), "cancelled: why");
        assert_eq!(
            (after.turn(), after.words(Ending::Released)),
            (None, String::new())
        );
    }

    #[test]
    fn approved_plan_reports_what_it_waits_for() {
        let mut requests = Requests {
            recorded: true,
            queued: Some("behind b".into()),
            ..Requests::default()
        };
        assert_eq!(
            (requests.turn(), requests.words(Ending::Released).as_str()),
            (Some("behind b"), "behind b")
        );
        requests.queued = None;
        assert_eq!(
            (requests.turn(), requests.words(Ending::Released).as_str()),
            (Some(NO_LEASE), NO_LEASE)
        );
        assert!(
            Requests {
                automatic: true,
                ..Requests::default()
            }
            .words(Ending::Expired)
            .starts_with("the lease")
        );
        assert!(
            Requests::default()
                .words(Ending::Expired)
                .starts_with("the plan was not approved")
        );
    }
}
