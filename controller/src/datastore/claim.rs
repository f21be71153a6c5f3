//! The record of the claim: written once, and kept when its run is gone.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crds::{
    Claim,
    datastore::{ALREADY_CLAIMED, FORBIDDEN, Problem},
};

use super::{
    cluster::RunView,
    names::RunKey,
    objects::Wrote,
    problem::{not_found, problem},
    sealed::Sealed,
};

/// What stands in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The run's name.
    pub run: String,
    /// The claim.
    pub claim: Claim,
    /// When it was recorded.
    pub at: Timestamp,
}

/// Records the claim of a run that was just read, live.
///
/// # Errors
/// `Forbidden` when the API server has another claim or none, `AlreadyClaimed`, `Unavailable`.
pub async fn put(sealed: &Sealed, key: &RunKey, run: &RunView, claim: Claim) -> Result<Wrote, Problem> {
    if run.claim.as_ref() != Some(&claim) {
        return Err(problem(FORBIDDEN, "that is not the claim in the run's status"));
    }
    let record = Record { run: run.name.clone(), claim, at: Timestamp::now() };
    if sealed.create(&key.claim(), &record, &[]).await? {
        return Ok(Wrote::Created);
    }
    match get(sealed, key).await? {
        Some(there) if there.claim == record.claim => Ok(Wrote::Same),
        Some(_) => Err(problem(ALREADY_CLAIMED, "another process claimed this run")),
        None => Err(not_found("the claim was deleted meanwhile")),
    }
}

/// Reads the record; none when there is none.
///
/// # Errors
/// `Unavailable`, `Corrupt`, `KeyMissing`.
pub async fn get(sealed: &Sealed, key: &RunKey) -> Result<Option<Record>, Problem> {
    Ok(sealed.read::<Record>(&key.claim()).await?.map(|(record, _)| record))
}
