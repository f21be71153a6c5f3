//! Requests to the datastore during a reconcile. A missing answer never fails the reconcile.

use std::time::Duration;

use kube::ResourceExt;

use crate::run::{
    context::Context,
    decide::{begin_attempt::source_wait, late_result::asked_again},
    expectations::WaitReason,
    observed::{LateResult, Observed},
    run_view::RunView,
};
use crds::{
    TerraformRun,
    datastore::{self as words, causes},
    text::clip,
};
use datastore_client::RequestError;

/// The deletion of a run waits for the datastore for this long.
const FORGET_TIMEOUT: Duration = Duration::from_secs(3);

/// Requests the result and the journal of a claimed run from the datastore. Without an answer the request is repeated later.
pub(super) async fn ask(seen: &mut Observed, ctx: &Context) {
    let (namespace, uid) = (
        seen.run.namespace().unwrap_or_default(),
        seen.run.uid().unwrap_or_default(),
    );
    seen.late_result = LateResult::Absent;
    if let (Some(datastore), Some(claim)) = (&ctx.datastore, &seen.status().claim) {
        let (result, journal) = tokio::join!(
            datastore.result(&namespace, &uid, claim.attempt),
            datastore.journal(&namespace, &uid, claim.attempt)
        );
        let journal = journal.inspect_err(|error| {
            tracing::warn!(
                error = causes(error),
                "the journal of the apply cannot be read"
            );
        });
        let told = journal
            .ok()
            .map(|journal| (seen.status().settled.is_some(), Box::new(journal)));
        ctx.memory
            .update(&uid, |notes| notes.journal.clone_from(&told));
        seen.notes.journal = told;
        match result {
            Ok(Some(message)) => seen.late_result = LateResult::Found(Box::new(message)),
            Ok(None) => {}
            Err(error) => tracing::warn!(
                error = causes(&error),
                "the stored result of the apply cannot be read"
            ),
        }
    }
    let asked = ctx.memory.update(&uid, |notes| {
        let asked = asked_again(notes.datastore_asked, ctx.cluster.now());
        notes.datastore_asked = Some(asked);
        asked
    });
    seen.notes.datastore_asked = Some(asked);
}

/// Asks for the revision of the run's repository. What only the attempt can report, such as a refusal for good, does not delay it.
pub(super) async fn ask_source(seen: &mut Observed, ctx: &Context) {
    let (namespace, uid) = (
        seen.run.namespace().unwrap_or_default(),
        seen.run.uid().unwrap_or_default(),
    );
    let answer = match &ctx.datastore {
        Some(datastore) => {
            let name = seen.run.name_any();
            datastore.source_is_stored(&namespace, &uid, &name).await
        }
        None => Ok(()),
    };
    let why = match answer {
        Err(RequestError::Refused(problem)) if problem.reason == words::SOURCE_NOT_READY => {
            Some(WaitReason::Source(problem.message))
        }
        Ok(()) | Err(RequestError::Refused(_)) => None,
        Err(error) => Some(WaitReason::Datastore(clip(&causes(&error), 200))),
    };
    let wait = why.map(|why| source_wait(seen.notes.source.as_ref(), why, ctx.cluster.now()));
    ctx.memory
        .update(&uid, |notes| notes.source.clone_from(&wait));
    seen.source_ready = wait.is_none();
    seen.notes.source = wait;
}

/// Releases the lock that the run left on its managed state.
pub(super) async fn release_lock(seen: &mut Observed, ctx: &Context) {
    let (namespace, uid) = (
        seen.run.namespace().unwrap_or_default(),
        seen.run.uid().unwrap_or_default(),
    );
    let released = match &ctx.datastore {
        Some(datastore) => datastore.release_lock(&namespace, &uid).await,
        None => Ok(()),
    };
    let failed = released
        .err()
        .map(|error| (ctx.cluster.now(), clip(&causes(&error), 200)));
    seen.lock_released = failed.is_none();
    ctx.memory
        .update(&uid, |notes| notes.unlock_failed.clone_from(&failed));
    seen.notes.unlock_failed = failed;
}

/// Deletes the bundles of a finished run in the background. The datastore's sweep deletes the rest after an error.
pub(super) fn drop_bundles(run: &TerraformRun, ctx: &Context) {
    let Some(datastore) = ctx.datastore.clone() else {
        return;
    };
    let (namespace, uid) = (
        run.namespace().unwrap_or_default(),
        run.uid().unwrap_or_default(),
    );
    tokio::spawn(async move {
        if let Err(error) = datastore.delete_bundles(&namespace, &uid).await {
            tracing::info!(
                run.uid = uid,
                error = causes(&error),
                "bundles are left to the datastore's sweep"
            );
        }
    });
}

/// Deletes the datastore's objects of a deleted run. An error does not stop the deletion: the sweep deletes the rest.
pub(super) async fn forget(run: &RunView, ctx: &Context) {
    let Some(datastore) = &ctx.datastore else {
        return;
    };
    let (namespace, uid) = (
        run.namespace().unwrap_or_default(),
        run.uid().unwrap_or_default(),
    );
    let deleted =
        tokio::time::timeout(FORGET_TIMEOUT, datastore.delete_run(&namespace, &uid)).await;
    match deleted {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::info!(
            error = causes(&error),
            "the run's objects are left to the datastore's sweep"
        ),
        Err(_) => {
            tracing::info!(
                "the run's objects are left to the datastore's sweep: no answer in time"
            );
        }
    }
}
