//! What stood on a run while the admission policies were not proven: nobody knows who set it, so that it is taken away, and has to be
//! set anew. What only stops a run stays.

use std::sync::Arc;

use jiff::Timestamp;
use kube::{Api, ResourceExt, api::ListParams, core::DeserializeGuard};

use super::{
    context::Context,
    decide::lost_node::ABANDONS,
    decision::{Kind, Write},
    execute::{
        TRIES,
        status::{self, Basis},
        take_off,
    },
    run_view::RunView,
    say::{
        approval::waits_again,
        lease::give_back,
        patch::{End, StatusPatch},
    },
    situation::plan_of,
    void_layers,
};
use crate::{
    error::{Error, ErrorKind},
    events::Note,
    policies::Voids,
};
use crds::{ApprovalMode, Phase, RunResult, TerraformRun, conditions, names, reason, text::clip};

/// How many runs are read at a time.
const PAGE: u32 = 200;
/// Annotations that approve: together, as taking all away is a withdrawal.
const APPROVALS: [&str; 3] = [names::APPROVE, names::APPROVED_BY, names::COMMENT];
/// Annotations that ask for another run.
const ORDERS: [&str; 2] = [names::RERUN, names::RECOVER];
/// All that counts only behind the policies.
fn guarded() -> impl Iterator<Item = &'static str> {
    APPROVALS.into_iter().chain(ABANDONS).chain(ORDERS)
}

/// What people say of a run by its annotations, as far as it counts only behind the policies, and for which life of the run.
pub(super) fn words(run: &impl ResourceExt) -> impl Iterator<Item = Option<&String>> {
    guarded().chain([names::LIFE]).map(|name| run.annotations().get(name))
}

/// What is said of each.
const WHY: &str = "while the admission policies were not proven to stand, so that nobody knows who set it";

impl Voids for Context {
    async fn void(&self, scope: Option<&str>, creations: bool) -> Result<(), Error> {
        Box::pin(all(scope, creations, self)).await
    }
}

/// Voids what stands on the runs of a namespace, or of all; with `creations`, also what runs that have not begun ask for themselves.
///
/// What is taken away depends on no version of a run: whoever writes all the time keeps nothing from it.
///
/// # Errors
/// When an answer says nothing. Then it is to be done again.
async fn all(scope: Option<&str>, creations: bool, ctx: &Context) -> Result<(), Error> {
    if creations {
        void_layers::all(scope, ctx).await?;
    }
    let api: Api<DeserializeGuard<TerraformRun>> = ctx.scoped(scope);
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = ctx.call("list runs", api.list(&params)).await?;
        for run in page.items {
            match run.0 {
                Ok(run) => Box::pin(one(run, creations, ctx)).await?,
                // A newer version reads it some day; until then nobody acts on it.
                Err(invalid) => {
                    take_off(&invalid.metadata, &guarded().collect::<Vec<_>>(), ctx).await?;
                }
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

async fn one(mut run: TerraformRun, creations: bool, ctx: &Context) -> Result<(), Error> {
    let approvals = standing_approval(&run);
    let orders = standing_orders(&run);
    let mut taken = orders.clone();
    if approvals {
        taken.extend(APPROVALS);
    }
    take_off(&run.metadata, &taken, ctx).await?;
    if !orders.is_empty() {
        let text = format!("{} was set {WHY}, and was taken away: set it anew", orders.join(" and "));
        tracing::warn!(run.namespace = run.namespace().unwrap_or_default(), run.name = run.name_any(), text);
        ctx.events.publish(&run, vec![Note { reason: reason::VOID, warning: true, text }]);
    }
    if approvals {
        tracing::warn!(run.namespace = run.namespace().unwrap_or_default(), run.name = run.name_any(), "an approval is void");
        let by = run.annotations().get(names::APPROVED_BY).cloned();
        let Some(fresh) = read(&run, ctx).await? else { return Ok(()) };
        let says = |run: &TerraformRun| {
            let over = run.status.as_ref().is_some_and(|status| status.is_terminal() || status.claim.is_some());
            (!over).then(|| approval(run, by.as_deref(), ctx.now()))
        };
        let Some(fresh) = Box::pin(write(fresh, says, ctx)).await? else { return Ok(()) };
        run = fresh;
    }
    if creations {
        // The first phase is Pending, so the end takes a second write.
        let begins = |run: &TerraformRun| {
            let new = run.status.as_ref().is_none_or(|status| status.phase.is_none());
            (new && unfounded(run).is_some()).then(|| {
                let view = RunView::live(Arc::new(run.clone()));
                let mut draft = StatusPatch::new(&view, ctx.now());
                draft.set("phase", Phase::Pending);
                draft.finish(Kind::Begin)
            })
        };
        let Some(begun) = Box::pin(write(run, begins, ctx)).await? else { return Ok(()) };
        Box::pin(write(begun, |run| creation(run, ctx.now()), ctx)).await?;
    }
    Ok(())
}

/// Whether an approval stands that no claim has used: an annotation of it, or the record.
fn standing_approval(run: &TerraformRun) -> bool {
    let status = run.status.as_ref();
    let over = status.is_some_and(|status| status.is_terminal() || status.claim.is_some());
    let recorded = status.and_then(|status| status.approval.as_ref()).is_some_and(|approval| approval.checksum.is_some());
    !over && (recorded || APPROVALS.iter().any(|key| run.annotations().contains_key(*key)))
}

/// What asks for another run and was not answered, or gives up what was not given up yet.
fn standing_orders(run: &TerraformRun) -> Vec<&'static str> {
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

/// What a run that has not begun asks for and not everybody may create.
fn unfounded(run: &TerraformRun) -> Option<&'static str> {
    let status = run.status.as_ref();
    // Its lease was waited for behind a proof.
    let begun = status.is_some_and(|status| {
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

/// Says that an approval was taken away, and takes its record away.
fn approval(run: &TerraformRun, by: Option<&str>, now: Timestamp) -> Write {
    let run = RunView::live(Arc::new(run.clone()));
    let status = &run.status;
    let mut draft = StatusPatch::new(&run, now);
    // What an Automatic run has recorded is its controller's word, behind the proof that its attempt was opened on.
    let is_its_own = status.approval.as_ref().is_some_and(|record| record.checksum.is_none());
    if status.approval.is_some() && !is_its_own {
        draft.clear("approval");
        give_back(&mut draft);
        let attempt = status.attempt.as_ref().filter(|_| status.phase == Some(Phase::AwaitingApproval));
        if attempt.is_some_and(|attempt| plan_of(status, attempt).is_some()) {
            waits_again(&mut draft);
        }
    }
    let by = by.map(|by| format!(" in the name of {}", clip(by, 80))).unwrap_or_default();
    let then = if is_its_own { "the run approves itself" } else { "nothing was applied: approve anew" };
    let text = format!("an approval{by} was set {WHY}, and was taken away; {then}");
    if !is_its_own {
        draft.condition(conditions::APPROVED, Some(false), reason::VOID, &text);
    }
    // The history is that of the pod that has the attempt, or is about to.
    if status.attempt.as_ref().is_none_or(|attempt| !attempt.open) {
        draft.line("Void", &text);
    }
    draft.note(reason::VOID, true, text.clone());
    draft.finish(Kind::Approval)
}

/// Ends a run that has not begun and asks for what its creator may not have been allowed.
fn creation(run: &TerraformRun, now: Timestamp) -> Option<Write> {
    let asks = unfounded(run).filter(|_| run.status.is_some())?;
    let run = RunView::live(Arc::new(run.clone()));
    let mut draft = StatusPatch::new(&run, now);
    let message = format!(
        "the run {asks} and was created while the admission policies were not proven to stand, so that nobody \
                           knows whether its creator may; nothing was applied: create it anew"
    );
    draft.end(&End { result: RunResult::Canceled, message, failure: None });
    give_back(&mut draft);
    Some(draft.finish(Kind::End))
}

async fn read(run: &TerraformRun, ctx: &Context) -> Result<Option<TerraformRun>, Error> {
    let found = ctx.call_opt("read run", ctx.runs(&run.namespace().unwrap_or_default()).get(&run.name_any())).await?;
    Ok(found.filter(|found| found.uid() == run.uid()))
}

/// Writes what is to be said of the run, if anything, until it has its effect. A write that lands late finds what it was decided on, or
/// changes nothing. Returns the run as it is then; `None` when it is gone.
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
                tracing::info!(%error, "the run has gone on");
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
    fn an_approval_is_void_with_its_record_until_the_claim() {
        for key in APPROVALS {
            assert!(standing_approval(&with(&[key], |_, _| {})), "{key}");
        }
        assert!(standing_approval(&with(&[], |_, status| record(status))), "a record that nobody but a pod can have written");
        assert!(!standing_approval(&with(&[names::CANCEL, names::DENY], |_, _| {})), "what stops a run stays");
        assert!(!standing_approval(&with(&[names::APPROVE], |_, status| claim(status))), "applied already");
        assert!(!standing_approval(&with(&[names::APPROVE], |_, status| status.phase = Some(Phase::Canceled))));
        let write = approval(&with(&[], |_, status| record(status)), Some("alice"), testing::t0());
        assert!(write.status["approval"].is_null());
        let approved = write.status["conditions"].as_array().unwrap().iter().find(|c| c["type"] == conditions::APPROVED).unwrap();
        assert_eq!((&approved["status"], &approved["reason"]), (&json!("False"), &json!("Void")));
        assert!(approved["message"].as_str().unwrap().contains("in the name of alice"));
        assert_eq!(write.notes.iter().map(|note| note.reason).collect::<Vec<_>>(), ["Void"]);
        let automatic = with(&[names::APPROVE], |_, status| {
            record(status);
            status.approval.as_mut().unwrap().checksum = None;
        });
        let write = approval(&automatic, Some("alice"), testing::t0());
        let untouched = ["approval", "lease", "conditions"].map(|field| write.status.contains_key(field));
        assert_eq!(untouched, [false; 3], "it approves itself, and keeps its turn");
        assert!(write.notes[0].text.contains("the run approves itself"));
    }

    #[test]
    fn an_order_is_void_until_it_was_answered() {
        let asked = [names::RERUN, names::RECOVER];
        assert_eq!(standing_orders(&with(&asked, |_, _| {})), asked);
        let answered = with(&asked, |_, status| (status.rerun, status.recovery) = (Some("x".into()), Some("y".into())));
        assert!(standing_orders(&answered).is_empty());
    }

    #[test]
    fn what_a_run_asks_for_itself_is_void_until_it_has_begun() {
        let automatic = |change: fn(&mut TerraformRun, &mut TerraformRunStatus)| {
            let mut run = with(&[], change);
            run.spec.approval.mode = ApprovalMode::Automatic;
            run
        };
        let new = |_: &mut TerraformRun, status: &mut TerraformRunStatus| status.phase = None;
        assert!(unfounded(&automatic(new)).is_some());
        assert!(unfounded(&with(&[], |run, _| run.spec.runner.service_account_name = Some("x".into()))).is_some());
        assert_eq!(unfounded(&with(&[], new)), None, "anybody may create it who may create one at all");
        assert_eq!(unfounded(&automatic(|_, status| status.attempt = Some(Attempt::default()))), None, "opened behind a proof");
        let queued = |_: &mut TerraformRun, status: &mut TerraformRunStatus| {
            let at = testing::t0();
            let all: &mut Vec<Condition> = &mut status.conditions;
            conditions::set(all, conditions::STATE_LEASED, Some(false), reason::QUEUED, "", None, at);
        };
        assert_eq!(unfounded(&automatic(queued)), None, "queued behind a proof");
        let mut run = automatic(|_, status| status.phase = Some(Phase::Pending));
        let write = creation(&run, testing::t0()).unwrap();
        assert_eq!((&write.status["phase"], &write.status["result"]), (&json!("Canceled"), &json!("Canceled")));
        assert!(write.status["message"].as_str().unwrap().contains("create it anew"));
        run.metadata.deletion_timestamp = Some(whole_seconds(testing::t0()));
        assert!(creation(&run, testing::t0()).is_none());
    }
}
