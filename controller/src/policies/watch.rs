//! The watches of policies and bindings.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use futures::future::join;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::{Api, runtime::watcher::Config};
use tokio::sync::watch;
use watching::{Index, Key, follow};

use super::{
    Prober,
    installed::{Identity, Policies, of_binding, of_policy},
};
use crate::cluster::{Cluster, watch::until};

/// Passes every change of a policy or a binding to the prober, once both are listed.
pub struct Watched {
    prober: Arc<Prober>,
    shown: Mutex<[Shown; 2]>,
}

/// The state that one watch shows.
#[derive(Default)]
struct Shown {
    listed: bool,
    now: BTreeMap<Key, (String, Identity)>,
}

impl Watched {
    pub fn new(prober: Arc<Prober>) -> Arc<Self> {
        Arc::new(Self {
            prober,
            shown: Mutex::default(),
        })
    }

    fn change(&self, watch: usize, change: impl FnOnce(&mut Shown)) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut shown[watch]);
        if shown.iter().all(|shown| shown.listed) {
            self.prober.show(Policies(
                shown
                    .iter()
                    .flat_map(|shown| shown.now.values().cloned())
                    .collect(),
            ));
        }
    }

    fn show(&self, watch: usize, key: &Key, entry: Option<(String, Identity)>) {
        self.change(watch, |shown| {
            shown.now.remove(key);
            shown.now.extend(entry.map(|entry| (key.clone(), entry)));
        });
    }
}

impl Index<ValidatingAdmissionPolicy> for Watched {
    fn apply(&self, key: &Key, policy: &ValidatingAdmissionPolicy) {
        self.show(0, key, of_policy(policy));
    }

    fn delete(&self, key: &Key) {
        self.show(0, key, None);
    }

    fn reset(&self) {
        self.change(0, |shown| shown.listed = true);
    }
}

impl Index<ValidatingAdmissionPolicyBinding> for Watched {
    fn apply(&self, key: &Key, binding: &ValidatingAdmissionPolicyBinding) {
        self.show(1, key, of_binding(binding));
    }

    fn delete(&self, key: &Key) {
        self.show(1, key, None);
    }

    fn reset(&self) {
        self.change(1, |shown| shown.listed = true);
    }
}

/// Watches policies and bindings until `stop` turns true.
pub async fn run(ctx: Arc<Cluster>, prober: Arc<Prober>, stop: watch::Receiver<bool>) {
    let watched = Watched::new(prober);
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(ctx.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(ctx.client.clone());
    let policies = follow(
        "admission policies",
        policies,
        Config::default(),
        watched.clone(),
    );
    let bindings = follow(
        "bindings of admission policies",
        bindings,
        Config::default(),
        watched,
    );
    until(stop, join(policies, bindings)).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::runtime::watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
    use watching::Feed;

    fn policy(name: &str, uid: &str, generation: i64) -> ValidatingAdmissionPolicy {
        let json =
            serde_json::json!({"metadata": {"name": name, "uid": uid, "generation": generation}});
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn only_changes_of_our_policies_notify() {
        let ours = crds::names::POLICY_STATUS;
        let prober = Arc::new(Prober::default());
        let mut changes = prober.changes();
        let (watched, mut policies, mut bindings) =
            (Watched::new(prober), Feed::default(), Feed::default());
        for event in [Init, InitApply(policy(ours, "a", 1)), InitDone] {
            policies.event(&event, &watched);
        }
        assert!(
            !changes.has_changed().unwrap(),
            "the bindings are not listed yet"
        );
        for event in [Init::<ValidatingAdmissionPolicyBinding>, InitDone] {
            bindings.event(&event, &watched);
        }
        assert!(changes.has_changed().unwrap());
        changes.borrow_and_update();
        let mut told = |event| {
            policies.event(&event, &watched);
            let told = changes.has_changed().unwrap();
            changes.borrow_and_update();
            told
        };
        assert!(!told(Apply(policy(ours, "a", 1))), "its status");
        assert!(!told(Apply(policy("another", "x", 1))));
        assert!(told(Delete(policy(ours, "a", 1))));
        assert!(told(Apply(policy(ours, "b", 1))));
        assert!(told(Apply(policy(ours, "b", 2))));
        assert!(!told(Init), "listed again");
        assert!(!told(InitApply(policy(ours, "b", 2))), "listed again");
        assert!(!told(InitDone), "listed again");
        assert!(!told(Init), "gone while the watch was broken");
        assert!(told(InitDone), "gone while the watch was broken");
    }
}
