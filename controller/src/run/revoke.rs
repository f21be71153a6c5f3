//! Revokes annotations that only count under the admission policies, on runs where they may have been set while the policies were not
//! enforced: their author is unverified. Annotations that only stop a run are retained.

use std::sync::Arc;

use kube::{Api, Resource as _, ResourceExt as _, api::ListParams, core::DeserializeGuard};
use serde_json::{Map, Value};
use serving::call::after;

use super::{
    context::Context,
    decide::lost_node::ABANDONS,
    execute::{
        TRIES, annotate,
        status::{self, Basis},
    },
    outcome::Outcome,
    run_view::RunView,
    say,
};
use crate::{
    error::{Error, ErrorKind},
    events::Note,
};
use crds::{ApprovalMode, TerraformRun, conditions, names, reason};

/// Runs per page.
const PAGE: u32 = 200;
/// Annotations that approve. They are removed together: removing all is a withdrawal.
const APPROVALS: [&str; 3] = [names::APPROVE, names::APPROVED_BY, names::COMMENT];
/// Annotations that request another run.
const ORDERS: [&str; 2] = [names::RERUN, names::RECOVER];

/// Revokes on the runs of a namespace, or of all.
///
/// No removal has a resourceVersion precondition, so a client that writes all the time cannot prevent it.
///
/// # Errors
/// A request failed. The runs before it are done then.
pub async fn all(scope: Option<&str>, ctx: &Context) -> Result<(), Error> {
    let api: Api<DeserializeGuard<TerraformRun>> = ctx.cluster.scoped(scope);
    let mut next = Some(ListParams::default().limit(PAGE));
    while let Some(params) = next {
        let page = ctx.cluster.call("list runs", api.list(&params)).await?;
        next = after(&params, &page.metadata);
        for run in page.items {
            match run.0 {
                Ok(run) => Box::pin(one(run, ctx)).await?,
                // A newer version may read the run later, and must not find unverified annotations.
                Err(invalid) => {
                    let guarded = APPROVALS.into_iter().chain(ABANDONS).chain(ORDERS);
                    annotate(&invalid.metadata, guarded.map(removed).collect(), ctx).await?;
                }
            }
        }
    }
    Ok(())
}

async fn one(run: TerraformRun, ctx: &Context) -> Result<(), Error> {
    let (orders, approved, manual) = (orders(&run), is_approved(&run), is_manual(&run));
    let mut changes: Map<String, Value> = orders.iter().copied().map(removed).collect();
    let mut texts: Vec<_> = orders
        .iter()
        .map(|order| say::revoke::order(order))
        .collect();
    let by = run.annotations().get(names::APPROVED_BY);
    if approved {
        changes.extend(APPROVALS.map(removed));
        texts.push(say::revoke::approval(by.map(String::as_str), manual));
    }
    if let Some(asks) = asks_for_rights(&run) {
        changes.insert(names::CANCEL.to_owned(), say::revoke::creation(asks).into());
    }
    if changes.is_empty() {
        return Ok(());
    }
    annotate(run.meta(), changes, ctx).await?;
    tracing::warn!(
        run.namespace = run.namespace(),
        run.name = run.name_any(),
        ?texts,
        "unverified annotations were revoked"
    );
    let note = |text| Note {
        reason: reason::UNVERIFIED,
        warning: true,
        text,
    };
    ctx.events
        .publish(&run, texts.into_iter().map(note).collect());
    if approved && manual {
        Box::pin(tell(
            &run,
            &Outcome::ApprovalRevoked { by: by.cloned() },
            ctx,
        ))
        .await
    } else {
        Ok(())
    }
}

fn removed(annotation: &str) -> (String, Value) {
    (annotation.to_owned(), Value::Null)
}

/// Whether the run has claimed or ended: an approval has no effect any more.
fn is_decided(run: &TerraformRun) -> bool {
    run.status
        .as_ref()
        .is_some_and(|status| status.is_terminal() || status.claim.is_some())
}

/// Whether the run has an approval that no claim has used.
fn is_approved(run: &TerraformRun) -> bool {
    !is_decided(run)
        && APPROVALS
            .iter()
            .any(|key| run.annotations().contains_key(*key))
}

/// Whether the run needs a person's approval.
fn is_manual(run: &TerraformRun) -> bool {
    run.spec
        .approval
        .mode_in(run.status.as_ref().and_then(|status| status.phase))
        == ApprovalMode::Manual
}

/// Unanswered requests, and abandons without an effect yet.
fn orders(run: &TerraformRun) -> Vec<&'static str> {
    let status = run.status.as_ref();
    let answered = |key: &str| match key {
        names::RERUN => status.is_some_and(|status| status.rerun.is_some()),
        _ => status.is_some_and(|status| status.recovery.is_some()),
    };
    let over = status.is_some_and(|status| status.is_terminal() && status.lease.is_none());
    let orders = ORDERS.into_iter().filter(|key| !answered(key));
    let abandons = ABANDONS.into_iter().filter(|_| !over);
    orders
        .chain(abandons)
        .filter(|key| run.annotations().contains_key(*key))
        .collect()
}

/// Why creating this run needs extra rights. A run that has not begun is canceled for it.
fn asks_for_rights(run: &TerraformRun) -> Option<&'static str> {
    // A run waits for a lease only if the policies were proven after its creation.
    let begun = run.status.as_ref().is_some_and(|status| {
        status.attempt.is_some()
            || status
                .conditions
                .iter()
                .any(|c| c.type_ == conditions::STATE_LEASED)
            || status.is_terminal()
    });
    let runner = &run.spec.runner;
    let asks = if run.spec.approval.mode == ApprovalMode::Automatic {
        "approves itself"
    } else if runner.service_account_name.is_some() || runner.plan_service_account_name.is_some() {
        "names a ServiceAccount"
    } else {
        return None;
    };
    let stops = begun
        || run.metadata.deletion_timestamp.is_some()
        || run.annotations().contains_key(names::CANCEL);
    (!stops).then_some(asks)
}

/// Writes the outcome to the run, unless the run claimed or ended meanwhile.
async fn tell(run: &TerraformRun, outcome: &Outcome, ctx: &Context) -> Result<(), Error> {
    let api = ctx.cluster.runs(&run.namespace().unwrap_or_default());
    let mut basis = Basis::Fields;
    for _ in 0..TRIES {
        let fresh = ctx
            .cluster
            .call_opt("read run", api.get(&run.name_any()))
            .await?;
        let Some(fresh) = fresh.filter(|fresh| fresh.uid() == run.uid() && !is_decided(fresh))
        else {
            break;
        };
        let view = RunView::live(Arc::new(fresh));
        let Some(write) = say::write(&view, ctx.cluster.now(), outcome) else {
            break;
        };
        match status::write(&view, &write, basis, ctx).await {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Conflict | ErrorKind::Invalid | ErrorKind::NotFound
                ) =>
            {
                basis = Basis::after(error.kind());
            }
            answer => return answer.map(drop),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing;
    use crds::{Attempt, Claim, Phase, TerraformRunStatus, whole_seconds};

    fn with(
        annotations: &[&str],
        change: impl FnOnce(&mut TerraformRun, &mut TerraformRunStatus),
    ) -> TerraformRun {
        let mut run = testing::run();
        let mut status = TerraformRunStatus {
            phase: Some(Phase::AwaitingApproval),
            ..TerraformRunStatus::default()
        };
        run.metadata.annotations = Some(
            annotations
                .iter()
                .map(|key| ((*key).to_owned(), "alice".to_owned()))
                .collect(),
        );
        change(&mut run, &mut status);
        run.status = Some(status);
        run
    }

    fn claim(status: &mut TerraformRunStatus) {
        let at = whole_seconds(testing::t0());
        let (pod_uid, nonce) = (testing::POD.into(), testing::NONCE.into());
        status.claim = Some(Claim {
            checksum: "sha256:x".into(),
            attempt: 1,
            pod_uid,
            nonce,
            at,
        });
    }

    #[test]
    fn approval_is_revoked_until_the_claim() {
        for key in APPROVALS {
            assert!(is_approved(&with(&[key], |_, _| {})), "{key}");
        }
        assert!(
            !is_approved(&with(&[names::CANCEL, names::DENY], |_, _| {})),
            "what stops a run is kept"
        );
        assert!(
            !is_approved(&with(&[names::APPROVE], |_, status| claim(status))),
            "applied already"
        );
        assert!(!is_approved(&with(&[names::APPROVE], |_, status| status
            .phase =
            Some(Phase::Canceled))));
    }

    #[test]
    fn revoked_approval_names_its_author() {
        let run = with(&APPROVALS, |_, _| {});
        let outcome = Outcome::ApprovalRevoked {
            by: Some("alice".into()),
        };
        let write = say::write(&RunView::live(Arc::new(run)), testing::t0(), &outcome).unwrap();
        let approved = write.status["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|c| c["type"] == conditions::APPROVED)
            .unwrap();
        assert_eq!(
            (&approved["status"], &approved["reason"]),
            (&json!("False"), &json!("Unverified"))
        );
        assert_eq!(
            approved["message"],
            "alice's approval was removed: the admission policies were not enforced when it was set, so its author is unverified. Nothing \
             was applied. Approve again."
        );
        let automatic = with(&APPROVALS, |run, status| {
            (run.spec.approval.mode, status.phase) = (ApprovalMode::Automatic, Some(Phase::Plan));
        });
        assert!(is_approved(&automatic) && !is_manual(&automatic));
        assert!(say::revoke::approval(None, false).ends_with("The run approves itself."));
    }

    #[test]
    fn rerun_or_recovery_request_is_revoked_until_answered() {
        let asked = [names::RERUN, names::RECOVER];
        assert_eq!(orders(&with(&asked, |_, _| {})), asked);
        let answered = with(&asked, |_, status| {
            (status.rerun, status.recovery) = (Some("x".into()), Some("y".into()));
        });
        assert!(orders(&answered).is_empty());
    }

    #[test]
    fn abandon_is_revoked_until_the_lease_is_returned() {
        assert_eq!(
            orders(&with(&ABANDONS, |_, status| claim(status))),
            ABANDONS
        );
        assert!(
            orders(&with(&ABANDONS, |_, status| status.phase = Some(Phase::Failed))).is_empty()
        );
    }

    #[test]
    fn unstarted_run_that_needs_rights_is_canceled() {
        let automatic = |change: fn(&mut TerraformRun, &mut TerraformRunStatus)| {
            let mut run = with(&[], change);
            run.spec.approval.mode = ApprovalMode::Automatic;
            asks_for_rights(&run)
        };
        assert_eq!(
            automatic(|_, status| status.phase = None),
            Some("approves itself")
        );
        assert!(say::revoke::creation("approves itself").ends_with("Create it again"));
        assert!(
            asks_for_rights(&with(&[], |run, _| run.spec.runner.service_account_name =
                Some("x".into())))
            .is_some()
        );
        assert_eq!(
            asks_for_rights(&with(&[], |_, _| {})),
            None,
            "everybody who may create runs may create it"
        );
        assert_eq!(
            automatic(|_, status| status.attempt = Some(Attempt::default())),
            None,
            "begun after a proof"
        );
        let queued = |_: &mut TerraformRun, status: &mut TerraformRunStatus| {
            let all = &mut status.conditions;
            conditions::set(
                all,
                conditions::STATE_LEASED,
                Some(false),
                reason::QUEUED,
                "",
                None,
                testing::t0(),
            );
        };
        assert_eq!(automatic(queued), None, "queued after a proof");
        assert_eq!(
            automatic(|run, _| run.metadata.deletion_timestamp = Some(whole_seconds(testing::t0()))),
            None
        );
    }
}
