//! One reconcile of a run: observe, decide, execute, until nothing is left to do.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kube::ResourceExt;
use tracing::Instrument;

use super::{
    context::Context,
    decide::decide,
    execute::{Executed, execute, status::Basis},
    observe,
    observed::Observed,
    timing::CALLS,
};
use crate::{
    error::{Error, ErrorKind},
    policies::Enforcement,
    slots::Slot,
};
use crds::TerraformRun;

/// The most steps of one reconcile. A run takes four to its pod.
const MAX_STEPS: usize = 16;
/// The wait for a cache that is behind this process's last write.
const CACHE_LAG: Duration = Duration::from_millis(200);

/// Reconciles a run. Returns when to reconcile again without an event.
pub async fn reconcile(run: Arc<TerraformRun>, ctx: Arc<Context>) -> Option<Duration> {
    // Before, an open attempt, the holder of a lease, a bound or a freeze may be unknown.
    ctx.cluster.listings.ready().await;
    let attempt = run
        .status
        .as_ref()
        .and_then(|status| status.attempt.as_ref())
        .map_or(0, |attempt| attempt.number);
    let span = tracing::info_span!(
        "run",
        run.namespace = run.namespace().unwrap_or_default(),
        run.name = run.name_any(),
        run.uid = run.uid().unwrap_or_default(),
        attempt
    );
    let begun = Instant::now();
    let again = Box::pin(work(run.clone(), &ctx))
        .instrument(span)
        .await
        .unwrap_or_else(|error| {
            // Leave the queue for slots until the retry requests one again, so that no other run waits behind this one.
            ctx.slots.looked(&*run, false, ctx.cluster.now());
            Some(failed(&run, &error, &ctx))
        });
    ctx.cluster
        .metrics
        .reconciled(begun.elapsed().as_secs_f64());
    again
}

async fn work(run: Arc<TerraformRun>, ctx: &Context) -> Result<Option<Duration>, Error> {
    let uid = run.uid().unwrap_or_default();
    let Some(mut seen) = observe::cached(&run, ctx) else {
        return Ok(Some(CACHE_LAG));
    };
    let mut basis = None;
    for _ in 0..MAX_STEPS {
        // Annotations on the run by now may have been set after a proof that is no longer valid.
        let policies = observe::policies(&run, ctx);
        if policies != Enforcement::Enforced {
            seen.policies = policies;
        }
        let decision = decide(&seen, &ctx.cluster.settings, ctx.cluster.now());
        if decision.actions.is_empty() {
            rest(&uid, &seen, ctx, decision.requeue);
            let kept =
                ctx.slots
                    .looked(&*run, matches!(seen.slot, Slot::Full(_)), ctx.cluster.now());
            return Ok(decision.requeue.into_iter().chain(kept).min());
        }
        if decision.needs_live() && !seen.is_live() {
            match observe::live(&run, ctx).await? {
                Some(fresh) => seen = fresh,
                None => return Ok(gone(&uid, ctx)),
            }
            continue;
        }
        match Box::pin(execute(decision.actions, seen, basis, ctx)).await {
            Ok(Executed::Seen(next)) => seen = *next,
            Ok(Executed::Gone) => return Ok(gone(&uid, ctx)),
            // A concurrent write or a deletion: the run has to be read again. A write under the version has no tests, so for it Invalid
            // means that the write itself is invalid.
            Err(error)
                if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound)
                    || error.kind() == ErrorKind::Invalid && basis != Some(Basis::Version) =>
            {
                tracing::debug!(%error, "the decision is based on an outdated object; reading again");
                basis = Some(Basis::after(error.kind()));
                match observe::live(&run, ctx).await? {
                    Some(fresh) => seen = fresh,
                    None => return Ok(gone(&uid, ctx)),
                }
            }
            Err(error) => return Err(error),
        }
    }
    // Another client writes all the time, or two decisions contradict each other.
    tracing::warn!("not settled after {MAX_STEPS} steps");
    Ok(Some(Duration::from_secs(2)))
}

/// Nothing to do at the moment. Drops the notes of a run that needs nothing more.
fn rest(uid: &str, seen: &Observed, ctx: &Context, requeue: Option<Duration>) {
    if requeue.is_none()
        && seen.run.open_attempt().is_none()
        && seen.status().is_terminal()
        && !seen.run_live
    {
        ctx.memory.forget(uid);
    } else if seen.notes.errors > 0 {
        ctx.memory.update(uid, |notes| notes.errors = 0);
    }
}

fn gone(uid: &str, ctx: &Context) -> Option<Duration> {
    ctx.memory.forget(uid);
    None
}

/// Schedules the retry after an error: after 1, 2, 4, … s, at most 30, and not before a busy server's Retry-After.
fn failed(run: &TerraformRun, error: &Error, ctx: &Context) -> Duration {
    let errors = ctx.memory.update(&run.uid().unwrap_or_default(), |notes| {
        notes.errors = notes.errors.saturating_add(1);
        notes.errors
    });
    let wait = CALLS
        .after(errors)
        .max(ctx.cluster.clock.busy_for())
        .max(error.after());
    tracing::warn!(
        run.namespace = run.namespace().unwrap_or_default(),
        run.name = run.name_any(),
        run.uid = run.uid().unwrap_or_default(),
        %error,
        kind = %error.kind(),
        again_in = ?wait,
        "a call failed"
    );
    wait
}
