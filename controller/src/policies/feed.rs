//! Watches of policies and bindings, and the first proof, for which no run is needed.

use std::{sync::Arc, time::Duration};

use futures::{Stream, StreamExt, future::ready, stream};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::{Api, runtime::watcher};
use serde::de::DeserializeOwned;
use serving::health::Readiness;
use tokio::sync::watch;

use super::{
    Enforcement, Prober, RETRY, Voids,
    installed::{Policies, Stands, of_binding, of_policy},
};
use crate::cluster::watch::{objects, stopped};

/// How many tries of the first proof a start waits for: without policies the controller is ready all the same.
const TRIES: u32 = 3;
/// The longest wait between proofs that nobody asked for.
const LONGEST: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Seen {
    now: Policies,
    listing: Policies,
}

impl Seen {
    /// Takes an event; whether anything of ours changed by it.
    fn apply<K>(&mut self, event: watcher::Event<K>, entry: fn(&K) -> Option<(String, Stands)>) -> bool {
        let mut now = self.now.clone();
        match event {
            watcher::Event::Init => self.listing = Policies::default(),
            watcher::Event::InitApply(object) => self.listing.0.extend(entry(&object)),
            watcher::Event::InitDone => now = std::mem::take(&mut self.listing),
            watcher::Event::Apply(object) => now.0.extend(entry(&object)),
            watcher::Event::Delete(object) => {
                if let Some((name, _)) = entry(&object) {
                    now.0.remove(&name);
                }
            }
        }
        let changed = now != self.now;
        self.now = now;
        changed
    }
}

fn changes<K>(api: Api<K>, entry: fn(&K) -> Option<(String, Stands)>) -> impl Stream<Item = ()>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let mut seen = Seen::default();
    objects("admission policies", api, watcher::Config::default())
        .filter_map(move |event| ready(seen.apply(event, entry).then_some(())))
}

/// Has no proof outlive a change that the watches see, and proves anew after each, until `stop` says otherwise.
pub async fn run(ctx: Arc<impl Voids>, prober: Arc<Prober>, readiness: Arc<Readiness>, stop: watch::Receiver<bool>) {
    let policies = changes(Api::<ValidatingAdmissionPolicy>::all(ctx.client.clone()), of_policy);
    let bindings = changes(Api::<ValidatingAdmissionPolicyBinding>::all(ctx.client.clone()), of_binding);
    let watched = stream::select(policies, bindings).for_each(|()| {
        prober.changed();
        ready(())
    });
    tokio::select! {
        () = watched => {}
        () = establish(&*ctx, &prober, &readiness) => {}
        () = stopped(stop) => {}
    }
}

/// Probes the policies where no run asks for it: what is created from then on was created behind them.
async fn establish(ctx: &impl Voids, prober: &Prober, readiness: &Readiness) {
    let home = ctx.client.default_namespace().to_owned();
    let namespaces: Vec<_> = ctx.settings.scopes().into_iter().map(|scope| scope.unwrap_or_else(|| home.clone())).collect();
    let mut changes = prober.changes();
    let (mut tries, mut waiting) = (0_u32, true);
    loop {
        changes.borrow_and_update();
        let mut stands = true;
        for namespace in &namespaces {
            let proven = prober.prove(namespace, ctx).await;
            if let Err(error) = &proven {
                tracing::warn!(%error, namespace, "the admission policies could not be proven");
            }
            stands &= matches!(proven, Ok(Enforcement::Enforced));
        }
        tries = if stands { 0 } else { tries.saturating_add(1) };
        if waiting && (stands || tries >= TRIES) {
            readiness.filled();
            waiting = false;
        }
        let wait = (RETRY.unsigned_abs() * tries).min(LONGEST);
        tokio::select! {
            changed = changes.changed() => if changed.is_err() {
                return;
            },
            () = tokio::time::sleep(wait), if !stands => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};

    fn policy(name: &str, uid: &str, generation: i64) -> ValidatingAdmissionPolicy {
        let json = serde_json::json!({"metadata": {"name": name, "uid": uid, "generation": generation}});
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_removal_a_return_and_a_change_are_told_and_nothing_else() {
        let ours = crds::names::POLICY_STATUS;
        let mut seen = Seen::default();
        let mut told = |event| seen.apply(event, of_policy);
        assert!(!told(Init) && !told(InitApply(policy(ours, "a", 1))) && told(InitDone));
        assert!(!told(Apply(policy(ours, "a", 1))), "its status");
        assert!(!told(Apply(policy("another", "x", 1))));
        assert!(told(Delete(policy(ours, "a", 1))));
        assert!(told(Apply(policy(ours, "b", 1))));
        assert!(told(Apply(policy(ours, "b", 2))));
        assert!(!told(Init) && !told(InitApply(policy(ours, "b", 2))) && !told(InitDone), "listed again");
        assert!(!told(Init) && told(InitDone), "gone while nobody watched");
    }
}
