//! Strikes on the pod of a run.

use std::time::Duration;

use anyhow::Result;
use crds::{Phase, TerraformRun};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, EvictParams};
use rand::{Rng as _, rngs::StdRng};

use super::{kinds::Kind, lab::Lab};
use harness::cluster::victims;

/// When and how a run is struck.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aim {
    kind: Kind,
    phase: Phase,
    /// Delay after the phase was seen.
    late: Duration,
}

impl Aim {
    pub(super) fn draw(random: &mut StdRng) -> Self {
        let kind = match random.random_range(0..100) {
            0..30 => Kind::Agent,
            30..45 => Kind::Tool,
            45..55 => Kind::Terminate,
            55..68 => Kind::Delete,
            68..86 => Kind::ForceDelete,
            _ => Kind::Evict,
        };
        let phase = match random.random_range(0..100) {
            0..10 => Phase::Pending,
            10..20 => Phase::Setup,
            20..35 => Phase::Init,
            35..55 => Phase::Plan,
            55..65 => Phase::AwaitingApproval,
            _ => Phase::Apply,
        };
        Self {
            kind,
            phase,
            late: Duration::from_millis(random.random_range(0..1200)),
        }
    }

    /// Strikes if the run has reached the target phase. Returns whether it struck.
    pub(super) async fn strike(&self, lab: &Lab, run: &TerraformRun) -> Result<bool> {
        let status = run.status.clone().unwrap_or_default();
        let Some(phase) = status
            .phase
            .filter(|phase| rank(*phase) >= rank(self.phase) && !phase.is_terminal())
        else {
            return Ok(false);
        };
        tokio::time::sleep(self.late).await;
        let Some(attempt) = status.attempt.filter(|attempt| attempt.open) else {
            return Ok(false);
        };
        let Ok(Some(pod)) = lab.pods().get_opt(&attempt.pod_name).await else {
            return Ok(false);
        };
        let uid = pod.uid().unwrap_or_default();
        // Record the phase at the time of the strike.
        let phase = lab
            .run(&run.name_any())
            .and_then(|run| run.status?.phase)
            .unwrap_or(phase);
        let struck = match self.kind {
            Kind::Agent => {
                victims::signal_in_pod(&uid, "runner-agent", nix::sys::signal::Signal::SIGKILL)? > 0
            }
            Kind::Terminate => {
                victims::signal_in_pod(&uid, "runner-agent", nix::sys::signal::Signal::SIGTERM)? > 0
            }
            Kind::Tool => {
                victims::signal_in_pod(&uid, "/tofu", nix::sys::signal::Signal::SIGKILL)? > 0
            }
            Kind::Delete => lab
                .pods()
                .delete(&attempt.pod_name, &DeleteParams::default())
                .await
                .is_ok(),
            Kind::ForceDelete => lab
                .pods()
                .delete(&attempt.pod_name, &DeleteParams::default().grace_period(0))
                .await
                .is_ok(),
            Kind::Evict => lab
                .pods()
                .evict(&attempt.pod_name, &EvictParams::default())
                .await
                .is_ok(),
            // Not of a pod.
            _ => false,
        };
        if struck {
            lab.record.add(self.kind, Some(phase.as_str().to_owned()));
        }
        Ok(struck)
    }
}

/// The place of a phase in a run's life.
fn rank(phase: Phase) -> usize {
    use Phase::{Apply, AwaitingApproval, Init, Pending, Plan, Setup};
    let order = [Pending, Setup, Init, Plan, AwaitingApproval, Apply];
    order
        .iter()
        .position(|one| *one == phase)
        .unwrap_or(order.len())
}
