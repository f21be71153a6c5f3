//! The policies and bindings that exist, as the watches show them.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::{Resource, ResourceExt as _};

use crds::names;

/// The UID of an object, and the generation of its spec.
pub(super) type Identity = (String, i64);

/// The admission policies and their bindings. A recreated object has another UID, a changed spec another generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Policies(pub(super) BTreeMap<String, Identity>);

impl Policies {
    /// Whether the policies that existed at `before` were enforced until now, if both sets were proven. An object that was recreated in
    /// between has another UID. An object that changed once had only the two proven specs; one that changed twice had an unproven third
    /// spec.
    pub(super) fn unbroken_since(&self, before: &Self) -> bool {
        let unbroken = |(name, (uid, was)): (&String, &Identity)| {
            self.0.get(name).is_some_and(|(now, generation)| {
                now == uid && (*was..=was + 1).contains(generation)
            })
        };
        before.missing().is_none() && before.0.iter().all(unbroken)
    }

    /// The first policy that does not exist, or has no binding.
    pub(super) fn missing(&self) -> Option<String> {
        names::POLICIES.into_iter().find_map(|policy| {
            let bound = || {
                self.0
                    .keys()
                    .any(|name| name.starts_with(&format!("binding/{policy}/")))
            };
            if !self.0.contains_key(&format!("policy/{policy}")) {
                Some(format!("the admission policy {policy} is missing"))
            } else if !bound() {
                Some(format!("the admission policy {policy} has no binding"))
            } else {
                None
            }
        })
    }
}

fn identity<K: Resource>(object: &K) -> Identity {
    (
        object.uid().unwrap_or_default(),
        object.meta().generation.unwrap_or(0),
    )
}

/// The entry of a policy, if it is one of ours.
pub(super) fn of_policy(policy: &ValidatingAdmissionPolicy) -> Option<(String, Identity)> {
    let name = policy.name_any();
    names::POLICIES
        .contains(&name.as_str())
        .then(|| (format!("policy/{name}"), identity(policy)))
}

/// The entry of a binding, if it binds one of our policies.
pub(super) fn of_binding(binding: &ValidatingAdmissionPolicyBinding) -> Option<(String, Identity)> {
    let policy = binding
        .spec
        .as_ref()?
        .policy_name
        .as_deref()
        .filter(|name| names::POLICIES.contains(name))?;
    Some((
        format!("binding/{policy}/{}", binding.name_any()),
        identity(binding),
    ))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::policies) fn complete() -> Policies {
        let entries = names::POLICIES.iter().flat_map(|name| {
            [
                (format!("policy/{name}"), ("p".to_owned(), 1)),
                (format!("binding/{name}/{name}"), ("b".to_owned(), 1)),
            ]
        });
        Policies(entries.collect())
    }

    /// The complete set with one entry replaced or removed.
    pub(in crate::policies) fn with(name: &str, identity: Option<(&str, i64)>) -> Policies {
        let mut policies = complete();
        policies.0.remove(name);
        policies.0.extend(
            identity.map(|(uid, generation)| (name.to_owned(), (uid.to_owned(), generation))),
        );
        policies
    }

    #[test]
    fn each_policy_and_its_binding_are_required() {
        assert_eq!(complete().missing(), None);
        for name in complete().0.into_keys() {
            let missing = with(&name, None).missing().unwrap();
            assert!(
                missing.contains(name.split('/').nth(1).unwrap()),
                "{name}: {missing}"
            );
        }
    }

    #[test]
    fn recreated_or_twice_changed_is_broken() {
        assert!(complete().unbroken_since(&complete()));
        for name in complete().0.into_keys() {
            let uid = if name.starts_with("policy") { "p" } else { "b" };
            assert!(
                with(&name, Some((uid, 2))).unbroken_since(&complete()),
                "{name}: a release changes a policy once"
            );
            assert!(
                !with(&name, Some((uid, 3))).unbroken_since(&complete()),
                "{name}: the spec in between is unknown"
            );
            assert!(
                !with(&name, Some(("again", 1))).unbroken_since(&complete()),
                "{name}: made again"
            );
            assert!(
                !with(&name, None).unbroken_since(&complete()),
                "{name}: gone"
            );
            assert!(
                !complete().unbroken_since(&with(&name, None)),
                "{name}: was missing"
            );
        }
    }

    #[test]
    fn foreign_policies_and_bindings_are_ignored() {
        let policy = |name: &str| {
            let json = serde_json::json!({"metadata": {"name": name, "uid": "u", "generation": 4}});
            of_policy(&serde_json::from_value(json).unwrap())
        };
        assert_eq!(
            policy(names::POLICY_STATUS),
            Some(("policy/pawl-status".into(), ("u".into(), 4)))
        );
        assert_eq!(policy("another"), None);
        let binding = |of: &str| {
            let json = serde_json::json!({"metadata": {"name": "mine", "uid": "u", "generation": 1}, "spec": {"policyName": of}});
            of_binding(&serde_json::from_value(json).unwrap())
        };
        assert_eq!(
            binding(names::POLICY_STATUS),
            Some(("binding/pawl-status/mine".into(), ("u".into(), 1)))
        );
        assert_eq!(binding("another"), None);
    }
}
