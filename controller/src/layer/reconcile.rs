//! Reconciles one layer: observe, decide, write the status, carry out the actions.

use std::{sync::Arc, time::Duration};

use kube::ResourceExt;
use tracing::Instrument;

use crds::{TerraformLayer, backoff::Backoff, version};

use super::{
    context::Context,
    decide::decide,
    decision::Action,
    execute::{self, Done},
    observed::{Namespace, Observed},
};
use crate::error::{Error, ErrorKind};

/// The most decisions of one reconcile.
const MAX_STEPS: usize = 8;
/// When to reconcile again if the cached layer is older than our last write.
const CACHE_LAG: Duration = Duration::from_millis(200);
/// When to reconcile again if no watch has shown our own run for a while.
const SILENCE: Duration = Duration::from_secs(10);
/// Delays between reconciles that end in an error.
const ERRORS: Backoff = Backoff {
    base: Duration::from_secs(1),
    cap: Duration::from_secs(60),
};

/// Reconciles a layer. Returns when to reconcile again without an event.
pub async fn reconcile(layer: Arc<TerraformLayer>, ctx: Arc<Context>) -> Option<Duration> {
    // Before, a run may be unknown, and would be created twice.
    ctx.layers.listings.ready().await;
    let span = tracing::info_span!(
        "layer",
        layer.namespace = layer.namespace().unwrap_or_default(),
        layer.name = layer.name_any(),
        layer.uid = layer.uid().unwrap_or_default(),
    );
    let uid = layer.uid().unwrap_or_default();
    match Box::pin(work(layer.clone(), &ctx)).instrument(span).await {
        // Changed or deleted in between: the watch shows the new state.
        Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {
            tracing::debug!(%error, "the decision is based on an outdated object");
            Some(CACHE_LAG)
        }
        Ok(again) => {
            if ctx.memory.get(&uid).errors > 0 {
                ctx.memory.update(&uid, |notes| notes.errors = 0);
            }
            again
        }
        Err(error) => Some(failed(&layer, &error, &ctx)),
    }
}

async fn work(mut layer: Arc<TerraformLayer>, ctx: &Context) -> Result<Option<Duration>, Error> {
    let uid = layer.uid().unwrap_or_default();
    let notes = ctx.memory.get(&uid);
    if version(&layer.metadata) < notes.version {
        return Ok(Some(CACHE_LAG));
    }
    let (repository, runs) = ctx.layers.of(&layer);
    let (freezes, own) = (&ctx.cluster.freezes, layer.namespace().unwrap_or_default());
    let namespace = if freezes.goes(&own) {
        Namespace::Goes
    } else {
        freezes.of(&own).map_or(Namespace::Stays, Namespace::Frozen)
    };
    let awaited = notes.awaits(
        |run| runs.iter().any(|there| *there.name == *run),
        ctx.cluster.now(),
    );
    if let Some((run, is_recent)) = awaited.filter(|_| namespace != Namespace::Goes) {
        // Its event wakes the layer.
        if is_recent || execute::is_there(&layer, run, ctx).await? {
            return Ok(Some(if is_recent {
                Duration::from_secs(1)
            } else {
                SILENCE
            }));
        }
    }
    if notes.made.is_some() {
        ctx.memory.update(&uid, |notes| notes.made = None);
    }
    let mut seen = Observed {
        layer: layer.clone(),
        repository,
        runs,
        owner: ctx.layers.owner(&layer),
        namespace,
        started: ctx.started,
        refused: notes.refused.clone().map(|(refused, _)| refused),
        changes: None,
    };
    for _ in 0..MAX_STEPS {
        let decision = decide(&seen, ctx.cluster.now());
        if let [Action::Read { run }] = decision.actions.as_slice() {
            seen.changes = Some((run.clone(), execute::changes(&layer, run, ctx).await?));
            continue;
        }
        if seen.status() != decision.status {
            let written = execute::write(&layer, &decision.status, ctx).await?;
            let version = version(&written.metadata);
            ctx.memory.update(&uid, |notes| notes.version = version);
            ctx.events.publish(&*layer, decision.notes);
            layer = Arc::new(written);
            seen.layer = layer.clone();
        }
        let mut again = false;
        for action in &decision.actions {
            match execute::act(&layer, action, ctx).await? {
                Done::Carried => {}
                Done::Refused(refused) => (seen.refused, again) = (Some(refused), true),
                Done::Gone => (seen.namespace, again) = (Namespace::Goes, true),
            }
        }
        if !again {
            return Ok(decision.requeue);
        }
    }
    tracing::warn!("not settled after {MAX_STEPS} steps");
    Ok(Some(Duration::from_secs(2)))
}

/// When to reconcile again after an error: after 1, 2, 4, … 60 s, and not before an overloaded API server accepts requests again.
fn failed(layer: &TerraformLayer, error: &Error, ctx: &Context) -> Duration {
    let errors = ctx
        .memory
        .update(&layer.uid().unwrap_or_default(), |notes| {
            notes.errors = notes.errors.saturating_add(1);
            notes.errors
        });
    let wait = ERRORS.after(errors).max(ctx.cluster.clock.busy_for());
    tracing::warn!(
        layer.namespace = layer.namespace().unwrap_or_default(),
        layer.name = layer.name_any(),
        %error,
        kind = %error.kind(),
        again_in = ?wait,
        "a call failed"
    );
    wait
}
