//! The record of the claim: written once, and retained after its run is gone.

use futures::StreamExt as _;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crds::{
    Claim, RunResult,
    datastore::{ALREADY_CLAIMED, FORBIDDEN, ObjectKind, Problem, UNAVAILABLE},
    termination::{MAX_BYTES, TerminationMessage},
};
use serving::problem::{corrupt, not_found, problem};

use crate::{
    blob::sealed::Sealed,
    cluster::{RunView, audit::Audit},
    names::RunKey,
    objects::{Objects, Wrote},
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The run's name.
    pub run: String,
    pub claim: Claim,
    pub at: Timestamp,
    /// Older records have none.
    #[serde(default)]
    pub audit: Box<Audit>,
}

/// The end of the claimed attempt, as its pod reported it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub result: Option<RunResult>,
    pub message: String,
}

/// The object written before the claim. It is never read.
#[derive(Debug, Serialize)]
struct Intent {
    attempt: u32,
    nonce: String,
    at: Timestamp,
}

/// Records the claim of a run that was just read live.
///
/// # Errors
/// `Forbidden` when the API server has another claim or none, `AlreadyClaimed`, `Unavailable`.
pub async fn put(
    sealed: &Sealed,
    key: &RunKey,
    run: &RunView,
    claim: Claim,
) -> Result<Wrote, Problem> {
    if run.claim.as_ref() != Some(&claim) {
        return Err(problem(
            FORBIDDEN,
            "the claim differs from the one in the run's status",
        ));
    }
    let record = Record {
        run: run.name.clone(),
        claim,
        at: Timestamp::now(),
        audit: run.audit.clone(),
    };
    if sealed.create(&key.claim(), &record, &[]).await? {
        return Ok(Wrote::Created);
    }
    match get(sealed, key).await? {
        Some(there) if there.claim == record.claim => Ok(Wrote::Same),
        Some(_) => Err(problem(ALREADY_CLAIMED, "another process claimed this run")),
        None => Err(not_found("the claim was deleted meanwhile")),
    }
}

/// Proves that a claim can be recorded: performs the same kind of write under another name, anew each time.
///
/// # Errors
/// `AlreadyClaimed` when there is a record although the run has no claim: the cluster was restored from an earlier
/// backup. `Unavailable`, `Corrupt`, `KeyMissing`.
pub async fn prove(
    sealed: &Sealed,
    key: &RunKey,
    attempt: u32,
    nonce: &str,
) -> Result<(), Problem> {
    if get(sealed, key).await?.is_some() {
        let text = "the plan of this run was claimed before, but its status has no claim: the cluster was restored to an earlier time";
        return Err(problem(ALREADY_CLAIMED, text));
    }
    let intent = Intent {
        attempt,
        nonce: nonce.to_owned(),
        at: Timestamp::now(),
    };
    if !sealed.create(&key.intent(), &intent, &[]).await? {
        // It exists from an earlier proof, which tells nothing about the store's current state.
        sealed
            .overwrite_bytes(
                &key.intent(),
                &serde_json::to_vec(&intent).unwrap_or_default(),
            )
            .await?;
    }
    Ok(())
}

/// Reads the record; `None` when it does not exist.
///
/// # Errors
/// `Unavailable`, `Corrupt`, `KeyMissing`.
pub async fn get(sealed: &Sealed, key: &RunKey) -> Result<Option<Record>, Problem> {
    Ok(sealed
        .read::<Record>(&key.claim())
        .await?
        .map(|(record, _)| record))
}

/// The end of a claimed attempt: as retained, or else as its pod stored it.
///
/// # Errors
/// `Unavailable`, `Corrupt`, `KeyMissing`.
pub async fn end(
    sealed: &Sealed,
    objects: &Objects,
    key: &RunKey,
    record: &Record,
) -> Result<Option<End>, Problem> {
    if let Some((end, _)) = sealed.read::<End>(&key.end()).await? {
        return Ok(Some(end));
    }
    let stored = objects
        .get(key, record.claim.attempt, ObjectKind::Result)
        .await?;
    let Some(mut stored) = stored.filter(|object| object.stored.size <= MAX_BYTES as u64) else {
        return Ok(None);
    };
    let mut text = Vec::new();
    while let Some(piece) = stored.content.next().await {
        text.extend_from_slice(&piece?);
    }
    let told: TerminationMessage = serde_json::from_slice(&text)
        .map_err(|_| corrupt("the stored result is no termination message"))?;
    Ok(Some(End {
        result: told.result,
        message: told.message,
    }))
}

/// Retains the end of a run whose objects are about to be deleted. An unreadable one is lost, and does not hold up the deletion; a store that is
/// away does.
///
/// # Errors
/// `Unavailable`.
pub async fn close(sealed: &Sealed, objects: &Objects, key: &RunKey) -> Result<(), Problem> {
    let Some(record) = unless_away(get(sealed, key).await)? else {
        return Ok(());
    };
    if let Some(end) = unless_away(end(sealed, objects, key, &record).await)? {
        sealed.create(&key.end(), &end, &[]).await?;
    }
    Ok(())
}

/// `None` for an object that cannot be read. While the store is away, nothing is known about it.
fn unless_away<T>(read: Result<Option<T>, Problem>) -> Result<Option<T>, Problem> {
    read.or_else(|problem| {
        if problem.reason == UNAVAILABLE {
            Err(problem)
        } else {
            Ok(None)
        }
    })
}
