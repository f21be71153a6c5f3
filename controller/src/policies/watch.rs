//! The watches of policies and bindings.

use std::{future::ready, sync::Arc};

use futures::StreamExt;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::{Api, runtime::watcher};
use tokio::sync::watch;

use super::{
    Prober,
    installed::{Identity, Policies, of_binding, of_policy},
};
use crate::cluster::{
    Cluster,
    watch::{objects, stopped},
};

/// The state that one watch shows.
#[derive(Default)]
struct Shown {
    /// `None` before the first listing.
    now: Option<Policies>,
    listing: Policies,
}

impl Shown {
    fn apply<K>(&mut self, event: watcher::Event<K>, entry: fn(&K) -> Option<(String, Identity)>) {
        let now = &mut self.now;
        match event {
            watcher::Event::Init => self.listing = Policies::default(),
            watcher::Event::InitApply(object) => self.listing.0.extend(entry(&object)),
            watcher::Event::InitDone => *now = Some(std::mem::take(&mut self.listing)),
            watcher::Event::Apply(object) => now.iter_mut().for_each(|now| now.0.extend(entry(&object))),
            watcher::Event::Delete(object) => {
                if let Some((now, (name, _))) = now.as_mut().zip(entry(&object)) {
                    now.0.remove(&name);
                }
            }
        }
    }
}

/// The state that both watches show.
#[derive(Default)]
pub struct Watched {
    policies: Shown,
    bindings: Shown,
}

impl Watched {
    pub fn policy(&mut self, event: watcher::Event<ValidatingAdmissionPolicy>, prober: &Prober) {
        self.policies.apply(event, of_policy);
        self.tell(prober);
    }

    pub fn binding(&mut self, event: watcher::Event<ValidatingAdmissionPolicyBinding>, prober: &Prober) {
        self.bindings.apply(event, of_binding);
        self.tell(prober);
    }

    fn tell(&self, prober: &Prober) {
        if let Some((policies, bindings)) = self.policies.now.as_ref().zip(self.bindings.now.as_ref()) {
            prober.show(Policies(policies.0.iter().chain(&bindings.0).map(|(name, is)| (name.clone(), is.clone())).collect()));
        }
    }
}

enum Seen {
    Policy(watcher::Event<ValidatingAdmissionPolicy>),
    Binding(watcher::Event<ValidatingAdmissionPolicyBinding>),
}

/// Passes every change of a policy or a binding to the prober, until `stop` turns true.
pub async fn run(ctx: Arc<Cluster>, prober: Arc<Prober>, stop: watch::Receiver<bool>) {
    let policies = objects("admission policies", Api::all(ctx.client.clone()), watcher::Config::default());
    let bindings = objects("bindings of admission policies", Api::all(ctx.client.clone()), watcher::Config::default());
    let mut watched = Watched::default();
    let events = futures::stream::select(policies.map(Seen::Policy), bindings.map(Seen::Binding));
    let watching = events.for_each(|event| {
        match event {
            Seen::Policy(event) => watched.policy(event, &prober),
            Seen::Binding(event) => watched.binding(event, &prober),
        }
        ready(())
    });
    tokio::select! {
        () = watching => {}
        () = stopped(stop) => {}
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
    fn only_changes_of_our_policies_are_reported() {
        let ours = crds::names::POLICY_STATUS;
        let prober = Prober::default();
        let mut changes = prober.changes();
        let mut watched = Watched::default();
        watched.policy(Init, &prober);
        watched.policy(InitApply(policy(ours, "a", 1)), &prober);
        watched.policy(InitDone, &prober);
        assert!(!changes.has_changed().unwrap(), "the bindings are not listed yet");
        watched.binding(Init, &prober);
        watched.binding(InitDone, &prober);
        assert!(changes.has_changed().unwrap());
        changes.borrow_and_update();
        let mut told = |event| {
            watched.policy(event, &prober);
            let told = changes.has_changed().unwrap();
            changes.borrow_and_update();
            told
        };
        assert!(!told(Apply(policy(ours, "a", 1))), "its status");
        assert!(!told(Apply(policy("another", "x", 1))));
        assert!(told(Delete(policy(ours, "a", 1))));
        assert!(told(Apply(policy(ours, "b", 1))));
        assert!(told(Apply(policy(ours, "b", 2))));
        assert!(!told(Init) && !told(InitApply(policy(ours, "b", 2))) && !told(InitDone), "listed again");
        assert!(!told(Init) && told(InitDone), "gone while the watch was broken");
    }
}
