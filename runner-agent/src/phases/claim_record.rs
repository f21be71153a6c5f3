//! Records a claim in the datastore. A probe proves before the claim that the record can be written; the record is written before
//! the apply.

use crds::{Changed, Claim, Failure, TerraformRun};

use super::{PhaseRunner, uploads::PATIENCE};
use crate::{
    datastore::{RequestError, failure, retry_for},
    process::RunError,
};

impl PhaseRunner {
    /// Proves that the datastore can record a claim, so that no claim is made that could not be recorded.
    pub(super) async fn prove_claim(&self, run: &TerraformRun) -> Result<(), Failure> {
        let Some(remote) = &self.remote else {
            return Ok(());
        };
        // At most half of the phase's timeout, so that the run fails with this error and not with the phase's deadline.
        let patience = PATIENCE.min(run.spec.timeouts.plan.0 / 2);
        match retry_for(patience, || remote.client.prove_claim()).await {
            Ok(()) => Ok(()),
            // The run is gone: no claim follows.
            Err(trouble) if trouble.is(crds::datastore::NOT_FOUND) => Ok(()),
            Err(trouble) => Err(unclaimed(
                "a claim could not be recorded, so the plan was not claimed",
                &trouble,
            )),
        }
    }

    /// Writes the record of the claim. Nothing is applied without it: if the cluster is restored from a backup older than the
    /// claim, this record alone shows that the plan is used up. An interrupt ends the wait.
    pub(super) async fn record_claim(&self, claim: &Claim) -> Result<(), Failure> {
        let Some(remote) = &self.remote else {
            return Ok(());
        };
        let recorded = tokio::select! {
            recorded = retry_for(PATIENCE, || remote.client.claim(claim)) => recorded,
            () = self.children.stopped() => return Err(crate::classify::not_run("apply", &RunError::Stopped)),
        };
        recorded.map_err(|trouble| {
            unclaimed(
                "the claim could not be recorded, so nothing was applied",
                &trouble,
            )
        })
    }
}

/// Failure to record a claim. If another process has recorded one, the plan may have been applied.
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

    /// Work with an unreachable datastore.
    fn work(dir: &Path) -> PhaseRunner {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let token = dir.join("token");
        std::fs::write(&token, "token").unwrap();
        let store = Store {
            url: "https://127.0.0.1:1".into(),
            ca: String::new(),
            token,
        };
        let client = crate::datastore::client(&store, "team", "vpc", 1, "nonce").unwrap();
        let remote = Remote::start(client, Spool::create(dir.join("spool")).unwrap());
        super::super::tests::work(settings(dir)).with_datastore(remote)
    }

    fn claim() -> Claim {
        let claim = serde_json::json!({"checksum": "sha256:1", "attempt": 1, "podUID": "p", "nonce": "n", "at": "2026-01-01T00:00:00Z"});
        serde_json::from_value(claim).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn unreachable_datastore_blocks_claim_and_apply() {
        let dir = tempfile::tempdir().unwrap();
        let work = work(dir.path());
        let claim = claim();
        for failure in [
            work.prove_claim(&TerraformRun::default())
                .await
                .unwrap_err(),
            work.record_claim(&claim).await.unwrap_err(),
        ] {
            assert_eq!(
                (failure.class, failure.reason.as_str(), failure.changes),
                (
                    FailureClass::Transient,
                    reason::DATASTORE_UNAVAILABLE,
                    Changed::None
                ),
                "{}",
                failure.message
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn interrupt_ends_the_wait_for_the_record() {
        let dir = tempfile::tempdir().unwrap();
        let work = work(dir.path());
        work.children.interrupt();
        let failure = work.record_claim(&claim()).await.unwrap_err();
        assert_eq!(
            (failure.reason.as_str(), failure.changes),
            (reason::TERMINATED, Changed::None)
        );
    }
}
