//! Revokes what counts only behind the admission policies, on runs on which it may have been set while they were not enforced: its author
//! is unverified. What only stops a run is kept.

use std::sync::Arc;

use jiff::Timestamp;
use kube::{Api, ResourceExt, api::ListParams, core::DeserializeGuard};

use super::{
    context::Context,
    decide::{
        draft::{Draft, End},
        lost_node::ABANDONS,
    },
    decision::{Kind, Write},
    execute::{
        TRIES,
        status::{self, Basis},
        take_off,
    },
    run_view::RunView,
};
use crate::{
    error::{Error, ErrorKind},
    events::Note,
};
use crds::{ApprovalMode, Phase, RunResult, TerraformRun, conditions, names, reason, text::clip};

/// How many runs a page has.
const PAGE: u32 = 200;
/// Annotations that approve. They are removed together: removing all is a withdrawal.
const APPROVALS: [&str; 3] = [names::APPROVE, names::APPROVED_BY, names::COMMENT];
/// Annotations that order another run.
const ORDERS: [&str; 2] = [names::RERUN, names::RECOVER];

/// Ends what people read about anything that was removed.
const WHY: &str = "was removed: the admission policies were not enforced when it was set, so its author is unverified";

/// Revokes on the runs of a namespace, or of all.
///
/// No removal has a resourceVersion precondition, so that a client that writes all the time cannot prevent it.
///
/// # Errors
/// When a request got no answer. The runs before it are done then.
pub async fn all(scope: Option<&str>, ctx: &Context) -> Result<(), Error> {
    let api: Api<DeserializeGuard<TerraformRun>> = ctx.scoped(scope);
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = ctx.call("list runs", api.list(&params)).await?;
        for run in page.items {
            match run.0 {
                Ok(run) => Box::pin(one(run, ctx)).await?,
                // A newer version can read it later, and must not find what is unverified.
                Err(invalid) => {
                    let guarded: Vec<_> = APPROVALS.into_iter().chain(ABANDONS).chain(ORDERS).collect();
                    take_off(&invalid.metadata, &guarded, ctx).await?;
                }
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

async fn one(mut run: TerraformRun, ctx: &Context) -> Result<(), Error> {
    let (is_approved, orders) = (is_approved(&run), orders(&run));
    let mut revoked = orders.clone();
    if is_approved {
        revoked.extend(APPROVALS);
    }
    take_off(&run.metadata, &revoked, ctx).await?;
    let (namespace, name) = (run.namespace().unwrap_or_default(), run.name_any());
    if !orders.is_empty() {
        tracing::warn!(run.namespace = namespace, run.name = name, ?orders, "unverified orders were removed");
        let notes = orders.iter().map(|order| Note {
            reason: reason::UNVERIFIED,
            warning: true,
            text: format!("{order} {WHY}. Set it again."),
        });
        ctx.events.publish(&run, notes.collect());
    }
    if is_approved {
        tracing::warn!(run.namespace = namespace, run.name = name, "an unverified approval was removed");
        let by = run.annotations().get(names::APPROVED_BY).cloned();
        let Some(fresh) = read(&run, ctx).await? else { return Ok(()) };
        let say = |run: &TerraformRun| (!is_decided(run)).then(|| approval(run, by.as_deref(), ctx.now()));
        let Some(fresh) = Box::pin(write(fresh, say, ctx)).await? else { return Ok(()) };
        run = fresh;
    }
    // The first phase is Pending, so the end takes a second write.
    let begin = |run: &TerraformRun| {
        let is_new = run.status.as_ref().is_none_or(|status| status.phase.is_none());
        (is_new && asks_for_rights(run).is_some()).then(|| {
            let view = RunView::live(Arc::new(run.clone()));
            let mut draft = Draft::new(&view, ctx.now());
            draft.set("phase", Phase::Pending);
            draft.finish(Kind::Begin)
        })
    };
    let Some(begun) = Box::pin(write(run, begin, ctx)).await? else { return Ok(()) };
    Box::pin(write(begun, |run| cancel(run, ctx.now()), ctx)).await.map(drop)
}

/// Whether the run has claimed or ended: an approval has no effect any more.
fn is_decided(run: &TerraformRun) -> bool {
    run.status.as_ref().is_some_and(|status| status.is_terminal() || status.claim.is_some())
}

/// Whether the run has an approval that no claim has used.
fn is_approved(run: &TerraformRun) -> bool {
    !is_decided(run) && APPROVALS.iter().any(|key| run.annotations().contains_key(*key))
}

/// Orders that were not answered, and abandons that had no effect yet.
fn orders(run: &TerraformRun) -> Vec<&'static str> {
    let status = run.status.as_ref();
    let answered = |key: &str| match key {
        names::RERUN => status.is_some_and(|status| status.rerun.is_some()),
        _ => status.is_some_and(|status| status.recovery.is_some()),
    };
    let over = status.is_some_and(|status| status.is_terminal() && status.lease.is_none());
    let orders = ORDERS.into_iter().filter(|key| !answered(key));
    let abandons = ABANDONS.into_iter().filter(|_| !over);
    orders.chain(abandons).filter(|key| run.annotations().contains_key(*key)).collect()
}

/// What a run that has not begun asks for, if not everybody may create such a run.
fn asks_for_rights(run: &TerraformRun) -> Option<&'static str> {
    // It waits for a lease only when the policies were proven after its creation.
    let begun = run.status.as_ref().is_some_and(|status| {
        status.attempt.is_some() || status.conditions.iter().any(|c| c.type_ == conditions::STATE_LEASED) || status.is_terminal()
    });
    let runner = &run.spec.runner;
    if begun || run.metadata.deletion_timestamp.is_some() {
        None
    } else if run.spec.approval.mode == ApprovalMode::Automatic {
        Some("approves itself")
    } else if runner.service_account_name.is_some() || runner.plan_service_account_name.is_some() {
        Some("names a ServiceAccount")
    } else {
        None
    }
}

/// Says that an approval was removed. Its record goes as with any withdrawal: the annotation that it repeats is gone.
fn approval(run: &TerraformRun, by: Option<&str>, now: Timestamp) -> Write {
    let run = RunView::live(Arc::new(run.clone()));
    let status = &run.status;
    let mut draft = Draft::new(&run, now);
    let whose = by.map_or_else(|| "An approval".to_owned(), |by| format!("{}'s approval", clip(by, 80)));
    // The record of an Automatic run is the controller's own.
    let is_automatic = status.approval.as_ref().is_some_and(|record| record.checksum.is_none());
    let then = if is_automatic { "The run approves itself." } else { "Nothing was applied. Approve again." };
    let text = format!("{whose} {WHY}. {then}");
    if !is_automatic {
        draft.condition(conditions::APPROVED, Some(false), reason::UNVERIFIED, &text);
    }
    // While an attempt is open, its pod writes the history.
    if status.attempt.as_ref().is_none_or(|attempt| !attempt.open) {
        draft.line("Unverified", &text);
    }
    draft.note(reason::UNVERIFIED, true, text.clone());
    draft.finish(Kind::Approval)
}

/// Ends a run that has not begun and asks for rights that its author may not have.
fn cancel(run: &TerraformRun, now: Timestamp) -> Option<Write> {
    let asks = asks_for_rights(run).filter(|_| run.status.is_some())?;
    let run = RunView::live(Arc::new(run.clone()));
    let mut draft = Draft::new(&run, now);
    let message = format!(
        "the run {asks}, and the admission policies were not enforced when it was created, so its author is unverified. Nothing was \
         applied. Create it again."
    );
    draft.end(&End { result: RunResult::Canceled, message, failure: None });
    Some(draft.finish(Kind::End))
}

async fn read(run: &TerraformRun, ctx: &Context) -> Result<Option<TerraformRun>, Error> {
    let found = ctx.call_opt("read run", ctx.runs(&run.namespace().unwrap_or_default()).get(&run.name_any())).await?;
    Ok(found.filter(|found| found.uid() == run.uid()))
}

/// Writes what `says` returns, if anything; again on a fresh read when the write loses a race. A write that arrives late fails its tests
/// and changes nothing. Returns the run as it is then; `None` when it is gone.
async fn write(
    mut run: TerraformRun,
    says: impl Fn(&TerraformRun) -> Option<Write>,
    ctx: &Context,
) -> Result<Option<TerraformRun>, Error> {
    let (mut basis, mut tries) = (Basis::Fields, 0);
    loop {
        let Some(write) = says(&run) else { return Ok(Some(run)) };
        tries += 1;
        match status::write(&RunView::live(Arc::new(run.clone())), &write, basis, ctx).await {
            Ok(written) => {
                status::report(&written, write, ctx);
                return Ok(Some(written));
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Invalid | ErrorKind::NotFound) && tries < TRIES =>
            {
                tracing::info!(%error, "the run changed; reading again");
                basis = Basis::after(error.kind());
                let Some(fresh) = read(&run, ctx).await? else { return Ok(None) };
                run = fresh;
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing;
    use crds::{ApprovalRecord, Attempt, Claim, TerraformRunStatus, whole_seconds};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

    fn with(annotations: &[&str], change: impl FnOnce(&mut TerraformRun, &mut TerraformRunStatus)) -> TerraformRun {
        let mut run = testing::run();
        let mut status = TerraformRunStatus { phase: Some(Phase::AwaitingApproval), ..TerraformRunStatus::default() };
        run.metadata.annotations = Some(annotations.iter().map(|key| ((*key).to_owned(), "alice".to_owned())).collect());
        change(&mut run, &mut status);
        run.status = Some(status);
        run
    }

    fn record(status: &mut TerraformRunStatus) {
        let at = whole_seconds(testing::t0());
        status.approval = Some(ApprovalRecord { checksum: Some("sha256:x".into()), by: "alice".into(), comment: None, at });
    }

    fn claim(status: &mut TerraformRunStatus) {
        let at = whole_seconds(testing::t0());
        let (pod_uid, nonce) = (testing::POD.into(), testing::NONCE.into());
        status.claim = Some(Claim { checksum: "sha256:x".into(), attempt: 1, pod_uid, nonce, at });
    }

    #[test]
    fn approval_is_revoked_until_the_claim() {
        for key in APPROVALS {
            assert!(is_approved(&with(&[key], |_, _| {})), "{key}");
        }
        assert!(!is_approved(&with(&[names::CANCEL, names::DENY], |_, _| {})), "what stops a run is kept");
        assert!(!is_approved(&with(&[names::APPROVE], |_, status| claim(status))), "applied already");
        assert!(!is_approved(&with(&[names::APPROVE], |_, status| status.phase = Some(Phase::Canceled))));
    }

    #[test]
    fn revoked_approval_is_said_with_its_author() {
        let write = approval(&with(&[], |_, status| record(status)), Some("alice"), testing::t0());
        let approved = write.status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == conditions::APPROVED).unwrap();
        assert_eq!((&approved["status"], &approved["reason"]), (&json!("False"), &json!("Unverified")));
        assert_eq!(
            approved["message"],
            "alice's approval was removed: the admission policies were not enforced when it was set, so its author is unverified. Nothing \
             was applied. Approve again."
        );
        assert_eq!(write.notes.iter().map(|note| note.reason).collect::<Vec<_>>(), ["Unverified"]);
    }

    #[test]
    fn automatic_run_keeps_its_own_approval() {
        let automatic = with(&[names::APPROVE], |_, status| {
            record(status);
            status.approval.as_mut().unwrap().checksum = None;
        });
        let write = approval(&automatic, Some("alice"), testing::t0());
        let untouched = ["approval", "lease", "conditions"].map(|field| write.status.contains_key(field));
        assert_eq!(untouched, [false; 3]);
        assert!(write.notes[0].text.ends_with("The run approves itself."));
    }

    #[test]
    fn order_is_revoked_until_it_is_answered() {
        let asked = [names::RERUN, names::RECOVER];
        assert_eq!(orders(&with(&asked, |_, _| {})), asked);
        let answered = with(&asked, |_, status| (status.rerun, status.recovery) = (Some("x".into()), Some("y".into())));
        assert!(orders(&answered).is_empty());
    }

    #[test]
    fn abandon_is_revoked_until_the_run_gave_its_lease_back() {
        assert_eq!(orders(&with(&ABANDONS, |_, status| claim(status))), ABANDONS);
        assert!(orders(&with(&ABANDONS, |_, status| status.phase = Some(Phase::Failed))).is_empty());
    }

    #[test]
    fn run_that_asks_for_rights_is_canceled_until_it_begins() {
        let automatic = |change: fn(&mut TerraformRun, &mut TerraformRunStatus)| {
            let mut run = with(&[], change);
            run.spec.approval.mode = ApprovalMode::Automatic;
            run
        };
        let new = |_: &mut TerraformRun, status: &mut TerraformRunStatus| status.phase = None;
        assert!(asks_for_rights(&automatic(new)).is_some());
        assert!(asks_for_rights(&with(&[], |run, _| run.spec.runner.service_account_name = Some("x".into()))).is_some());
        assert_eq!(asks_for_rights(&with(&[], new)), None, "everybody who may create runs may create it");
        assert_eq!(
            asks_for_rights(&automatic(|_, status| status.attempt = Some(Attempt::default()))),
            None,
            "begun after a proof"
        );
        let queued = |_: &mut TerraformRun, status: &mut TerraformRunStatus| {
            let at = testing::t0();
            let all: &mut Vec<Condition> = &mut status.conditions;
            conditions::set(all, conditions::STATE_LEASED, Some(false), reason::QUEUED, "", None, at);
        };
        assert_eq!(asks_for_rights(&automatic(queued)), None, "queued after a proof");
        let mut run = automatic(|_, status| status.phase = Some(Phase::Pending));
        let write = cancel(&run, testing::t0()).unwrap();
        assert_eq!((&write.status["phase"], &write.status["result"]), (&json!("Canceled"), &json!("Canceled")));
        assert!(write.status["message"].as_str().unwrap().contains("Create it again"));
        run.metadata.deletion_timestamp = Some(whole_seconds(testing::t0()));
        assert!(cancel(&run, testing::t0()).is_none());
    }
}
