//! Revokes what depends on the admission policies, where they were not enforced for a while.
//!
//! An annotation does not show who set it, nor whether a policy checked the author. So once the policies are enforced again, the controller
//! removes approvals, reruns, recoveries and abandons, cancels runs that need rights and have not begun, and marks layers that need rights
//! until a person confirms them. Until then the policies do not count as proven, so no decision relies on these annotations.

use std::{sync::Arc, time::Duration};

use serving::health::Readiness;
use tokio::sync::watch;

use crate::{
    cluster::watch::stopped,
    error::Error,
    layer,
    policies::{Enforcement, Prober, RETRY, gaps::Gap},
    run,
};

/// The number of failed proofs after which the controller becomes ready without the policies.
const TRIES: u32 = 3;
/// The longest delay between two attempts.
const LONGEST: Duration = Duration::from_secs(60);

pub struct Revoke {
    pub runs: Arc<run::Context>,
    pub layers: Arc<layer::Context>,
}

impl Revoke {
    /// Proves the policies at the start and after every change, in the watched namespaces, or in the controller's own if it watches all.
    /// Revokes what was set in between. Returns when `stop` turns true.
    pub async fn run(self, readiness: Arc<Readiness>, stop: watch::Receiver<bool>) {
        // The fixed order lets the simulator replay a history exactly.
        tokio::select! {
            biased;
            () = stopped(stop) => {}
            () = self.work(&readiness) => {}
        }
    }

    async fn work(&self, readiness: &Readiness) {
        let (ctx, policies) = (&self.runs.cluster, &self.runs.policies);
        let home = ctx.client.default_namespace().to_owned();
        let namespaces: Vec<_> = ctx
            .settings
            .scopes()
            .into_iter()
            .map(|scope| scope.unwrap_or_else(|| home.clone()))
            .collect();
        let mut changes = policies.changes();
        let (mut tries, mut starts) = (0_u32, true);
        loop {
            changes.borrow_and_update();
            for namespace in &namespaces {
                if let Err(error) = policies.prove(namespace, ctx).await {
                    tracing::warn!(%error, namespace, "the admission policies could not be proven");
                }
            }
            for gap in policies.gaps(ctx.now()) {
                if let Err(error) = self.close(&gap, policies).await {
                    tracing::warn!(%error, namespace = gap.namespace, "unverified changes could not be revoked; retrying");
                }
            }
            let enforced =
                |namespace: &String| policies.state(namespace, ctx.now()) == Enforcement::Enforced;
            let holds = namespaces.iter().all(enforced) && policies.gaps(ctx.now()).is_empty();
            tries = if holds { 0 } else { tries.saturating_add(1) };
            if starts && (holds || tries >= TRIES) {
                readiness.filled();
                starts = false;
            }
            let wait = (RETRY.unsigned_abs() * tries).min(LONGEST);
            tokio::select! {
                biased;
                changed = changes.changed() => if changed.is_err() {
                    return;
                },
                () = tokio::time::sleep(wait), if !holds => {}
            }
        }
    }

    /// Layers first, so that none creates a run meanwhile.
    async fn close(&self, gap: &Gap, policies: &Prober) -> Result<(), Error> {
        let scopes = gap.namespace.clone().map_or_else(
            || self.runs.cluster.settings.scopes(),
            |namespace| vec![Some(namespace)],
        );
        for scope in &scopes {
            layer::revoke::all(scope.as_deref(), &self.layers).await?;
            Box::pin(run::revoke::all(scope.as_deref(), &self.runs)).await?;
        }
        policies.close(gap);
        Ok(())
    }
}
