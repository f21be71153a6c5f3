//! Proves that the admission policies stand before anything relies on them: what they must refuse is sent as a dry run, in the
//! controller's own name, and each has to be refused by its policy by name.
//!
//! Existence proves nothing: a policy is in force about a second after it was created, and off at once when its binding goes.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use jiff::{SignedDuration, Timestamp};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crds::{TerraformRun, names, termination::clip};

use crate::{
    error::{Error, ErrorKind},
    run::{Context, Gate},
};

/// How long a proof is good for.
const GOOD_FOR: SignedDuration = SignedDuration::from_secs(60);
/// When a failed proof is tried again.
const RETRY: SignedDuration = SignedDuration::from_secs(5);
/// A checksum that no plan has.
const NO_PLAN: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

/// Keeps the last proof of each namespace; bindings may differ between namespaces.
#[derive(Default)]
pub struct Gatekeeper {
    proofs: Mutex<HashMap<String, Arc<Proof>>>,
}

#[derive(Default)]
struct Proof {
    /// Held while a proof is made, so that twenty runs at once make one.
    making: tokio::sync::Mutex<()>,
    last: Mutex<Option<(Timestamp, Result<(), String>)>>,
}

impl Proof {
    fn state(&self, now: Timestamp) -> Gate {
        match &*self.last.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((at, Ok(()))) if now.duration_since(*at) < GOOD_FOR => Gate::Proven,
            None | Some((_, Ok(()))) => Gate::Unknown,
            Some((at, Err(missing))) => {
                Gate::Refuted { missing: missing.clone(), retry_at: at.checked_add(RETRY).unwrap_or(Timestamp::MAX) }
            }
        }
    }
}

impl Gatekeeper {
    /// What is known for a namespace.
    pub fn state(&self, namespace: &str, now: Timestamp) -> Gate {
        let proofs = self.proofs.lock().unwrap_or_else(PoisonError::into_inner);
        proofs.get(namespace).map_or(Gate::Unknown, |proof| proof.state(now))
    }

    /// Proves that the gate stands for this run's namespace, or shares the proof of another run.
    ///
    /// # Errors
    /// When an answer says nothing: no connection, an overloaded server, a run that has gone.
    pub async fn prove(&self, run: &TerraformRun, ctx: &Context) -> Result<Gate, Error> {
        let proof = {
            let mut proofs = self.proofs.lock().unwrap_or_else(PoisonError::into_inner);
            proofs.entry(run.namespace().unwrap_or_default()).or_default().clone()
        };
        let _making = proof.making.lock().await;
        // Counted from before the first request: the proof is of that moment at the latest.
        let begun = (ctx.now)();
        match proof.state(begun) {
            Gate::Proven => return Ok(Gate::Proven),
            Gate::Refuted { missing, retry_at } if begun < retry_at => return Ok(Gate::Refuted { missing, retry_at }),
            Gate::Unknown | Gate::Refuted { .. } => {}
        }
        let found = attempt_all(run, ctx).await?;
        ctx.metrics.gate(found.is_ok());
        match &found {
            Ok(()) => tracing::debug!("the admission policies stand"),
            Err(missing) => tracing::warn!(missing, "the admission policies do not stand"),
        }
        *proof.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((begun, found));
        Ok(proof.state((ctx.now)()))
    }
}

/// All probes at once. The first that was not refused as it must be is named.
async fn attempt_all(run: &TerraformRun, ctx: &Context) -> Result<Result<(), String>, Error> {
    let api = ctx.runs(&run.namespace().unwrap_or_default());
    let name = run.name_any();
    let patch = PatchParams { dry_run: true, field_manager: Some(names::CONTROLLER_MANAGER.into()), ..PatchParams::default() };
    let post = PostParams { dry_run: true, field_manager: Some(names::CONTROLLER_MANAGER.into()) };
    let (approval, approver, claim, automatic) =
        (Patch::Merge(approval()), Patch::Merge(approver()), Patch::Merge(claim(run)), automatic(run));
    let answers = tokio::join!(
        probe("an approval", names::POLICY_APPROVAL, api.patch(&name, &patch, &approval)),
        probe("a change of the approver alone", names::POLICY_APPROVAL, api.patch(&name, &patch, &approver)),
        probe("a claim", names::POLICY_STATUS, api.patch_status(&name, &patch, &claim)),
        probe("a run that approves itself", names::POLICY_CREATION, api.create(&post, &automatic)),
    );
    for answer in [answers.0, answers.1, answers.2, answers.3] {
        if let Err(missing) = answer.inspect_err(|error| ctx.metrics.failed(error))? {
            return Ok(Err(missing));
        }
    }
    Ok(Ok(()))
}

async fn probe(
    what: &str,
    policy: &str,
    request: impl Future<Output = kube::Result<TerraformRun>>,
) -> Result<Result<(), String>, Error> {
    match crate::error::call("prove the gate", request).await {
        Ok(_) => Ok(Err(format!("{what} was not refused by the admission policy {policy}; it is missing, or its binding is"))),
        Err(error) => judge(what, policy, error),
    }
}

/// Whether a refusal is the policy's.
fn judge(what: &str, policy: &str, error: Error) -> Result<Result<(), String>, Error> {
    match error.kind() {
        ErrorKind::Forbidden | ErrorKind::Invalid => {
            let said = error.status().map(|status| status.message.clone()).unwrap_or_default();
            if said.contains(&format!("ValidatingAdmissionPolicy '{policy}'")) && !said.contains("failed to configure") {
                Ok(Ok(()))
            } else {
                let said = clip(&said, 200);
                Ok(Err(format!("{what} was refused, but not by the admission policy {policy}: {said}")))
            }
        }
        ErrorKind::Conflict
        | ErrorKind::AlreadyExists
        | ErrorKind::NotFound
        | ErrorKind::Throttled
        | ErrorKind::Server
        | ErrorKind::Timeout
        | ErrorKind::Transport
        | ErrorKind::Internal => Err(error),
    }
}

fn approval() -> Value {
    json!({"metadata": {"annotations": {
        names::APPROVE: NO_PLAN, names::APPROVED_BY: "pawl gate probe", names::COMMENT: "a dry run that must be refused"}}})
}

fn approver() -> Value {
    json!({"metadata": {"annotations": {names::APPROVED_BY: "pawl gate probe"}}})
}

/// A claim that the schema accepts, so that it is the policy that has to refuse it.
fn claim(run: &TerraformRun) -> Value {
    let claim = json!({
        "checksum": NO_PLAN, "attempt": 1, "podUID": "pawl-gate-probe", "nonce": "00000000000000000000000000000000",
        "at": "2000-01-01T00:00:00Z",
    });
    if run.status.as_ref().is_some_and(|status| status.phase.is_some()) {
        json!({"status": {"claim": claim}})
    } else {
        json!({"status": {"phase": "Pending", "claim": claim}})
    }
}

fn automatic(run: &TerraformRun) -> TerraformRun {
    let mut probe =
        TerraformRun { metadata: kube::api::ObjectMeta::default(), spec: crds::TerraformRunSpec::default(), status: None };
    probe.metadata.generate_name = Some("pawl-gate-".into());
    probe.metadata.namespace = run.namespace();
    probe.spec.workspace = "default".into();
    probe.spec.source.inline = Some(crds::InlineSource { files: [("main.tf".to_owned(), String::new())].into() });
    probe.spec.approval.mode = crds::ApprovalMode::Automatic;
    probe
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn refused(code: u16, message: &str) -> Error {
        Error::of("test", kube::Error::Api(Box::new(Status { code, message: message.into(), ..Status::default() })))
    }

    #[test]
    fn only_the_policy_itself_proves_the_gate() {
        let by = "terraformruns.pawl.run \"x\" is forbidden: ValidatingAdmissionPolicy 'pawl-approval' with binding \
                  'pawl-approval' denied request: x may not";
        assert_eq!(judge("a", "pawl-approval", refused(403, by)).unwrap(), Ok(()));
        assert_eq!(judge("a", "pawl-approval", refused(422, by)).unwrap(), Ok(()));
        assert!(judge("a", "pawl-status", refused(403, by)).unwrap().is_err(), "another policy");
        assert!(judge("a", "pawl-approval", refused(403, "cannot patch resource")).unwrap().is_err(), "RBAC");
        assert!(judge("a", "pawl-approval", refused(422, "a claim never changes")).unwrap().is_err(), "the schema");
    }

    #[test]
    fn an_error_proves_nothing_and_refutes_nothing() {
        for code in [404, 409, 429, 500, 503] {
            assert!(judge("a", "pawl-approval", refused(code, "ValidatingAdmissionPolicy 'pawl-approval'")).is_err(), "{code}");
        }
        assert!(judge("a", "pawl-approval", Error::Timeout { what: "test" }).is_err());
    }

    #[test]
    fn a_proof_ages() {
        let at = Timestamp::from_second(1000).unwrap();
        let proof = Proof { making: tokio::sync::Mutex::default(), last: Mutex::new(Some((at, Ok(())))) };
        assert_eq!(proof.state(Timestamp::from_second(1059).unwrap()), Gate::Proven);
        assert_eq!(proof.state(Timestamp::from_second(1060).unwrap()), Gate::Unknown);
    }

    #[test]
    fn the_probe_of_a_run_is_one_that_the_schema_takes() {
        let run = crate::testing::run();
        let probe = serde_json::to_value(automatic(&run)).unwrap();
        assert_eq!(probe["metadata"]["generateName"], "pawl-gate-");
        assert_eq!(probe["spec"]["approval"]["mode"], "Automatic");
        assert_eq!(claim(&run)["status"]["phase"], "Pending");
    }
}
