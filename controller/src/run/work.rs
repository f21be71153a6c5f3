//! The loop that reconciles runs, and what wakes runs without an event.

use std::sync::Arc;

use futures::{StreamExt, channel::mpsc::UnboundedReceiver, stream};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use tokio::sync::watch;
use watching::Key;

use crds::{TerraformRun, conditions, names, reason};

use super::{context::Context, reconcile::reconcile};
use crate::{
    cluster::{cached::Store, work_queue::work},
    gc::expired_runs,
};

/// Reconciles the runs of a store until `stop`. Reconciles in progress are finished.
pub async fn run(
    store: Arc<Store<TerraformRun>>,
    woken: UnboundedReceiver<Key>,
    ctx: Arc<Context>,
    stop: watch::Receiver<bool>,
) {
    // A change of the policies wakes the runs that wait for one before their next retry.
    let changes = stream::unfold(ctx.policies.changes(), |mut changes| async move {
        changes.changed().await.ok().map(|()| ((), changes))
    });
    let policies = changes.map(|()| store.all(|run| run.at_hand().is_some_and(waits_for_policies)));
    let due = stream::unfold(
        tokio::time::interval(expired_runs::SWEEP),
        |mut interval| async move {
            interval.tick().await;
            Some(((), interval))
        },
    );
    let due = due.map(|()| {
        let until = ctx
            .cluster
            .now()
            .checked_add(2 * expired_runs::SWEEP)
            .unwrap_or(Timestamp::MAX);
        store.all(|run| run.due().is_some_and(|due| due < until))
    });
    let woken = woken.map(|run| vec![run]);
    let wakes =
        stream::select_all([woken.boxed(), policies.boxed(), due.boxed()]).flat_map(stream::iter);
    let concurrency = ctx.cluster.settings.concurrency;
    work(
        store.clone(),
        wakes,
        concurrency,
        stop,
        comes_first,
        |run| reconcile(run, ctx.clone()),
    )
    .await;
}

/// The first reconcile of a layer's run has low priority: no person waits for it, and many may come at once.
fn comes_first(run: &TerraformRun) -> bool {
    let is_new = run
        .status
        .as_ref()
        .is_none_or(|status| status.phase.is_none());
    !is_new || !run.annotations().contains_key(names::TRIGGER)
}

fn waits_for_policies(run: &TerraformRun) -> bool {
    let stalled = |c: &Condition| {
        c.type_ == conditions::STALLED && c.status == "True" && c.reason == reason::POLICY_MISSING
    };
    run.status
        .as_ref()
        .is_some_and(|status| status.conditions.iter().any(stalled))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{run::cached_run::trim, testing};

    #[test]
    fn only_runs_that_wait_for_a_policy_are_woken_by_one() {
        let mut run = testing::run();
        assert!(!waits_for_policies(&run));
        for (stalled, why, waits) in [
            (true, reason::POLICY_MISSING, true),
            (false, reason::PROGRESSING, false),
            (true, reason::UNSCHEDULABLE, false),
        ] {
            let status = run.status.get_or_insert_default();
            conditions::set(
                &mut status.conditions,
                conditions::STALLED,
                Some(stalled),
                why,
                "",
                None,
                testing::t0(),
            );
            trim(&mut run);
            assert_eq!(waits_for_policies(&run), waits, "{why}");
        }
    }
}
