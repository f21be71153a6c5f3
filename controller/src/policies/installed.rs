//! Policies and bindings as they stand.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::{Api, Resource, ResourceExt as _, api::ListParams};
use serde::{Deserialize, Serialize};

use crds::{names, text::clip};

use crate::{
    cluster::Cluster,
    error::{Error, ErrorKind},
};

/// The UID of an object, and the generation of its spec.
pub(super) type Stands = (String, i64);

/// The admission policies and their bindings: each made object has a UID of its own, each changed spec another generation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policies(pub(super) BTreeMap<String, Stands>);

impl Policies {
    /// Whether the same objects have stood since `before`: none was removed and made again, and none was changed twice. One that was
    /// changed once was never another than the two that were proven. On a policy that `before` does not know at all nobody counted
    /// then: its version had none of that name.
    pub fn have_stood_since(&self, before: &Self) -> bool {
        let stood = |(name, (uid, generation)): (&String, &Stands)| {
            before.0.get(name).is_some_and(|(old, was)| old == uid && (*was == *generation || was + 1 == *generation))
        };
        let known = |name: &str| before.0.keys().any(|other| of(other) == of(name));
        let stay = before.0.keys().all(|name| self.0.contains_key(name));
        stay && !before.0.is_empty() && self.0.iter().all(|entry| stood(entry) || !known(entry.0))
    }

    /// The first policy that is not there, or has no binding.
    fn missing(&self) -> Option<String> {
        names::POLICIES.into_iter().find_map(|policy| {
            let bound = || self.0.keys().any(|name| name.starts_with(&format!("binding/{policy}/")));
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

/// The policy that an entry is of.
fn of(entry: &str) -> &str {
    entry.split('/').nth(1).unwrap_or_default()
}

fn stands<K: Resource>(object: &K) -> Stands {
    (object.uid().unwrap_or_default(), object.meta().generation.unwrap_or(0))
}

/// A policy of ours.
pub(super) fn of_policy(policy: &ValidatingAdmissionPolicy) -> Option<(String, Stands)> {
    let name = policy.name_any();
    names::POLICIES.contains(&name.as_str()).then(|| (format!("policy/{name}"), stands(policy)))
}

/// A binding of one of our policies.
pub(super) fn of_binding(binding: &ValidatingAdmissionPolicyBinding) -> Option<(String, Stands)> {
    let policy = binding.spec.as_ref()?.policy_name.as_deref().filter(|name| names::POLICIES.contains(name))?;
    Some((format!("binding/{policy}/{}", binding.name_any()), stands(binding)))
}

/// The policies as they stand now, or what is missing of them.
///
/// # Errors
/// When an answer says nothing.
pub(super) async fn read(ctx: &Cluster) -> Result<Result<Policies, String>, Error> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(ctx.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(ctx.client.clone());
    let all = ListParams::default();
    let (policies, bindings) = tokio::join!(
        ctx.call("list admission policies", policies.list(&all)),
        ctx.call("list bindings of admission policies", bindings.list(&all))
    );
    let (policies, bindings) = match (policies, bindings) {
        (Ok(policies), Ok(bindings)) => (policies, bindings),
        (Err(error), _) | (_, Err(error)) if error.kind() == ErrorKind::Forbidden => {
            return Ok(Err(format!("the admission policies cannot be read: {}", clip(&error.to_string(), 200))));
        }
        (Err(error), _) | (_, Err(error)) => return Err(error),
    };
    let found = Policies(policies.iter().filter_map(of_policy).chain(bindings.iter().filter_map(of_binding)).collect());
    Ok(found.missing().map_or(Ok(found), Err))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Policies {
        let entries = names::POLICIES.iter().flat_map(|name| {
            [(format!("policy/{name}"), ("p".to_owned(), 1)), (format!("binding/{name}/{name}"), ("b".to_owned(), 1))]
        });
        Policies(entries.collect())
    }

    fn with(name: &str, stands: Option<(&str, i64)>) -> Policies {
        let mut policies = whole();
        policies.0.remove(name);
        policies.0.extend(stands.map(|(uid, generation)| (name.to_owned(), (uid.to_owned(), generation))));
        policies
    }

    #[test]
    fn each_policy_and_a_binding_of_each_has_to_be_there() {
        assert_eq!(whole().missing(), None);
        for name in whole().0.into_keys() {
            let missing = with(&name, None).missing().unwrap();
            assert!(missing.contains(name.split('/').nth(1).unwrap()), "{name}: {missing}");
        }
    }

    #[test]
    fn what_was_made_again_or_changed_twice_has_not_stood() {
        assert!(whole().have_stood_since(&whole()));
        for name in whole().0.into_keys() {
            let uid = if name.starts_with("policy") { "p" } else { "b" };
            assert!(with(&name, Some((uid, 2))).have_stood_since(&whole()), "{name}: a release changes a policy once");
            assert!(!with(&name, Some((uid, 3))).have_stood_since(&whole()), "{name}: nobody knows what stood in between");
            assert!(!with(&name, Some(("again", 1))).have_stood_since(&whole()), "{name}: made again");
            assert!(!with(&name, None).have_stood_since(&whole()) && !whole().have_stood_since(&with(&name, None)));
        }
    }

    #[test]
    fn a_policy_that_the_version_before_did_not_have_is_no_gap() {
        let mut before = whole();
        before.0.retain(|name, _| !name.contains(names::POLICY_LAYER));
        assert!(whole().have_stood_since(&before));
        assert!(!before.have_stood_since(&whole()), "and one that went is");
        assert!(!whole().have_stood_since(&Policies::default()));
    }

    #[test]
    fn of_all_policies_and_bindings_only_ours_count() {
        let policy = |name: &str| {
            let json = serde_json::json!({"metadata": {"name": name, "uid": "u", "generation": 4}});
            of_policy(&serde_json::from_value(json).unwrap())
        };
        assert_eq!(policy(names::POLICY_STATUS), Some(("policy/pawl-status".into(), ("u".into(), 4))));
        assert_eq!(policy("another"), None);
        let binding = |of: &str| {
            let json = serde_json::json!({"metadata": {"name": "mine", "uid": "u", "generation": 1}, "spec": {"policyName": of}});
            of_binding(&serde_json::from_value(json).unwrap())
        };
        assert_eq!(binding(names::POLICY_STATUS), Some(("binding/pawl-status/mine".into(), ("u".into(), 1))));
        assert_eq!(binding("another"), None);
    }
}
