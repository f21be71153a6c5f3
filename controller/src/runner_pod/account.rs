//! The rights of an attempt: get and watch its own run, patch that run's status, nothing else.
//!
//! No ownerReferences: foreground deletion of a run would take pod and token away in mid-apply.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::ServiceAccount,
        rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::ResourceExt;

use crds::{Attempt, TerraformRun, names};

/// The objects that give an attempt's pod its rights.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// Its own ServiceAccount; none when the run names one.
    pub service_account: Option<ServiceAccount>,
    pub role: Role,
    pub binding: RoleBinding,
}

/// Labels that tell whose an object is.
pub fn labels(run: &TerraformRun, attempt: u32) -> BTreeMap<String, String> {
    BTreeMap::from([
        (names::LABEL_RUN.to_owned(), run.name_any()),
        (names::LABEL_RUN_UID.to_owned(), run.uid().unwrap_or_default()),
        (names::LABEL_ATTEMPT.to_owned(), attempt.to_string()),
        (names::LABEL_MANAGED_BY.to_owned(), names::MANAGED_BY.to_owned()),
    ])
}

/// Whether an object's labels name this run and attempt.
pub fn belongs(meta: &ObjectMeta, run_uid: &str, attempt: u32) -> bool {
    let label = |name: &str| meta.labels.as_ref().and_then(|labels| labels.get(name)).map(String::as_str);
    label(names::LABEL_RUN_UID) == Some(run_uid) && label(names::LABEL_ATTEMPT) == Some(attempt.to_string().as_str())
}

pub fn service_account_name(run: &TerraformRun, attempt: &Attempt) -> String {
    let own = || names::attempt_name(&run.name_any(), &run.uid().unwrap_or_default(), attempt.number);
    run.spec.runner.account(attempt.restores.is_some()).map_or_else(own, ToOwned::to_owned)
}

pub fn account(run: &TerraformRun, attempt: &Attempt) -> Account {
    let name = names::attempt_name(&run.name_any(), &run.uid().unwrap_or_default(), attempt.number);
    let metadata = ObjectMeta {
        name: Some(name.clone()),
        namespace: run.namespace(),
        labels: Some(labels(run, attempt.number)),
        ..ObjectMeta::default()
    };
    let rule = |resource: &str, verbs: &[&str]| PolicyRule {
        api_groups: Some(vec![names::GROUP.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        resource_names: Some(vec![run.name_any()]),
        verbs: verbs.iter().map(ToString::to_string).collect(),
        ..PolicyRule::default()
    };
    let service_account = run.spec.runner.account(attempt.restores.is_some()).is_none().then(|| ServiceAccount {
        metadata: metadata.clone(),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    });
    Account {
        service_account,
        role: Role {
            metadata: metadata.clone(),
            rules: Some(vec![rule("terraformruns", &["get", "watch"]), rule("terraformruns/status", &["get", "patch"])]),
        },
        binding: RoleBinding {
            metadata,
            role_ref: RoleRef { api_group: "rbac.authorization.k8s.io".into(), kind: "Role".into(), name },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".into(),
                name: service_account_name(run, attempt),
                namespace: run.namespace(),
                ..Subject::default()
            }]),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn attempt(number: u32, restores: Option<u32>) -> Attempt {
        Attempt { number, restores, ..Attempt::default() }
    }

    #[test]
    fn an_account_may_touch_its_own_run_and_nothing_else() {
        let run = testing::run();
        let made = account(&run, &attempt(2, None));
        let rules = made.role.rules.unwrap();
        assert!(rules.iter().all(|r| r.resource_names == Some(vec![run.name_any()])));
        assert!(rules.iter().all(|r| r.api_groups == Some(vec!["pawl.run".into()])));
        let all: Vec<_> = rules.iter().map(|r| (r.resources.clone().unwrap()[0].clone(), r.verbs.join(","))).collect();
        assert_eq!(all, [("terraformruns".into(), "get,watch".into()), ("terraformruns/status".into(), "get,patch".to_owned())]);
        let account = made.service_account.unwrap();
        assert_eq!(account.automount_service_account_token, Some(false));
        assert!(account.metadata.owner_references.is_none());
        assert!(belongs(&account.metadata, &run.uid().unwrap(), 2));
        assert!(!belongs(&account.metadata, &run.uid().unwrap(), 1));
        assert!(!belongs(&account.metadata, "other", 2));
    }

    #[test]
    fn an_account_that_the_user_names_is_not_made() {
        let mut run = testing::run();
        run.spec.runner.service_account_name = Some("deployer".into());
        let made = account(&run, &attempt(1, None));
        assert!(made.service_account.is_none());
        let subject = &made.binding.subjects.unwrap()[0];
        assert_eq!(subject.name, "deployer");
        assert_ne!(made.binding.metadata.name.as_deref(), Some("deployer"), "named as the attempt");
    }

    #[test]
    fn plans_are_made_under_the_account_that_is_named_for_them() {
        let mut run = testing::run();
        run.spec.runner.plan_service_account_name = Some("reader".into());
        assert_eq!(service_account_name(&run, &attempt(1, None)), "reader");
        // An apply has the attempt's own, unless one is named.
        let own = account(&run, &attempt(2, Some(1)));
        assert_eq!(own.service_account.unwrap().metadata.name, own.role.metadata.name);
        run.spec.runner.service_account_name = Some("deployer".into());
        assert_eq!(service_account_name(&run, &attempt(2, Some(1))), "deployer");
        assert_eq!(service_account_name(&run, &attempt(3, None)), "reader");
    }
}
