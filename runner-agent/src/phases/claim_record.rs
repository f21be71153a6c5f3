//! The record of a claim with the datastore: proven to be writable before there is a claim, and written before anything is applied.

use crds::{Changed, Claim, Failure, TerraformRun};

use super::{PhaseRunner, remote::PATIENCE};
use crate::{
    datastore::{RequestError, failure, retry_for},
    process::RunError,
};

impl PhaseRunner {
    /// Proves that the record of a claim can be written, before there is a claim that it would be missing of.
    pub(super) async fn prove_claim(&self, run: &TerraformRun) -> Result<(), Failure> {
        let Some(remote) = &self.remote else { return Ok(()) };
        // What its phase has of time is longer than this, so that it is not the deadline that fails the run.
        let patience = PATIENCE.min(run.spec.timeouts.plan.0 / 2);
        match retry_for(patience, || remote.client.prove_claim()).await {
            Ok(()) => Ok(()),
            // The run is gone: no claim follows.
            Err(trouble) if trouble.is(crds::datastore::NOT_FOUND) => Ok(()),
            Err(trouble) => Err(unclaimed("a claim could not be recorded, so the plan was not claimed", &trouble)),
        }
    }

    /// Writes the record of the claim. Without it nothing is applied: should the cluster be restored from before the claim, nobody
    /// else would say that the plan is spent. An interrupt ends the wait for it.
    pub(super) async fn record_claim(&self, claim: &Claim) -> Result<(), Failure> {
        let Some(remote) = &self.remote else { return Ok(()) };
        let recorded = tokio::select! {
            recorded = retry_for(PATIENCE, || remote.client.claim(claim)) => recorded,
            () = self.children.stopped() => return Err(crate::classify::not_run("apply", &RunError::Stopped)),
        };
        recorded.map_err(|trouble| unclaimed("the claim could not be recorded, so nothing was applied", &trouble))
    }
}

/// The failure to record a claim. A record of another process means that the plan may have been applied.
fn unclaimed(what: &str, trouble: &RequestError) -> Failure {
    let mut failure = failure(what, trouble);
    if trouble.is(crds::datastore::ALREADY_CLAIMED) {
        failure.changes = Changed::Unknown;
    }
    failure
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crds::{FailureClass, reason};

    use crate::{
        datastore::spool::Spool,
        phases::{Remote, tests::settings},
        settings::Store,
    };

    /// Work whose datastore answers nobody.
    fn work(dir: &Path) -> PhaseRunner {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let token = dir.join("token");
        std::fs::write(&token, "token").unwrap();
        let store = Store { url: "https://127.0.0.1:1".into(), ca: String::new(), token };
        let client = crate::datastore::client(&store, "team", "vpc", 1, "nonce").unwrap();
        let remote = Remote::start(client, Spool::create(dir.join("spool")).unwrap());
        super::super::tests::work(settings(dir)).with_datastore(remote)
    }

    fn claim() -> Claim {
        let claim =
            serde_json::json!({"checksum": "sha256:1", "attempt": 1, "podUID": "p", "nonce": "n", "at": "2026-01-01T00:00:00Z"});
        serde_json::from_value(claim).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_claimed_or_applied_while_a_claim_cannot_be_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let work = work(dir.path());
        let claim = claim();
        for failure in
            [work.prove_claim(&TerraformRun::default()).await.unwrap_err(), work.record_claim(&claim).await.unwrap_err()]
        {
            assert_eq!(
                (failure.class, failure.reason.as_str(), failure.changes),
                (FailureClass::Transient, reason::DATASTORE_UNAVAILABLE, Changed::None),
                "{}",
                failure.message
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_interrupt_ends_the_wait_for_the_record() {
        let dir = tempfile::tempdir().unwrap();
        let work = work(dir.path());
        work.children.interrupt();
        let failure = work.record_claim(&claim()).await.unwrap_err();
        assert_eq!((failure.reason.as_str(), failure.changes), (reason::TERMINATED, Changed::None));
    }
}
