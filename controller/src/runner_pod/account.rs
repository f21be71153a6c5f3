//! The rights of an attempt: get and watch its own run, patch that run's status, nothing else.
//!
//! The objects have no ownerReferences: foreground deletion of a run would delete pod and token during an apply.

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

/// The objects that grant an attempt's pod its rights.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// The attempt's own ServiceAccount; `None` when the run selects one.
    pub service_account: Option<ServiceAccount>,
    pub role: Role,
    pub binding: RoleBinding,
}

/// Labels that identify the owner of an object.
pub fn labels(run: &TerraformRun, attempt: u32) -> BTreeMap<String, String> {
    BTreeMap::from([
        (names::LABEL_RUN.to_owned(), run.name_any()),
        (
            names::LABEL_RUN_UID.to_owned(),
            run.uid().unwrap_or_default(),
        ),
        (names::LABEL_ATTEMPT.to_owned(), attempt.to_string()),
        (
            names::LABEL_MANAGED_BY.to_owned(),
            names::MANAGED_BY.to_owned(),
        ),
    ])
}

/// Whether an object's labels match this run and attempt.
pub fn belongs(meta: &ObjectMeta, run_uid: &str, attempt: u32) -> bool {
    let label = |name: &str| {
        meta.labels
            .as_ref()
            .and_then(|labels| labels.get(name))
            .map(String::as_str)
    };
    label(names::LABEL_RUN_UID) == Some(run_uid)
        && label(names::LABEL_ATTEMPT) == Some(attempt.to_string().as_str())
}

pub fn service_account_name(run: &TerraformRun, attempt: &Attempt) -> String {
    let own = || {
        names::attempt_name(
            &run.name_any(),
            &run.uid().unwrap_or_default(),
            attempt.number,
        )
    };
    run.spec
        .runner
        .account(attempt.restores.is_some())
        .map_or_else(own, ToOwned::to_owned)
}

pub fn account(run: &TerraformRun, attempt: &Attempt) -> Account {
    let name = names::attempt_name(
        &run.name_any(),
        &run.uid().unwrap_or_default(),
        attempt.number,
    );
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
    let service_account = run
        .spec
        .runner
        .account(attempt.restores.is_some())
        .is_none()
        .then(|| ServiceAccount {
            metadata: metadata.clone(),
            automount_service_account_token: Some(false),
            ..ServiceAccount::default()
        });
    Account {
        service_account,
        role: Role {
            metadata: metadata.clone(),
            rules: Some(vec![
                rule("terraformruns", &["get", "watch"]),
                rule("terraformruns/status", &["patch"]),
            ]),
        },
        binding: RoleBinding {
            metadata,
            role_ref: RoleRef {
                api_group: "rbac.authorization.k8s.io".into(),
                kind: "Role".into(),
                name,
            },
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
        Attempt {
            number,
            restores,
            ..Attempt::default()
        }
    }

    #[test]
    fn account_has_rights_on_its_own_run_only() {
        let run = testing::run();
        let made = account(&run, &attempt(2, None));
        let rules = made.role.rules.unwrap();
        assert!(
            rules
                .iter()
                .all(|r| r.resource_names == Some(vec![run.name_any()]))
        );
        assert!(
            rules
                .iter()
                .all(|r| r.api_groups == Some(vec!["pawl.run".into()]))
        );
        let all: Vec<_> = rules
            .iter()
            .map(|r| (r.resources.clone().unwrap()[0].clone(), r.verbs.join(",")))
            .collect();
        assert_eq!(
            all,
            [
                ("terraformruns".into(), "get,watch".into()),
                ("terraformruns/status".into(), "patch".to_owned())
            ]
        );
        let account = made.service_account.unwrap();
        assert_eq!(account.automount_service_account_token, Some(false));
        assert!(account.metadata.owner_references.is_none());
        assert!(belongs(&account.metadata, &run.uid().unwrap(), 2));
        assert!(!belongs(&account.metadata, &run.uid().unwrap(), 1));
        assert!(!belongs(&account.metadata, "other", 2));
    }

    #[test]
    fn selected_account_is_not_created() {
        let mut run = testing::run();
        run.spec.runner.service_account_name = Some("deployer".into());
        let made = account(&run, &attempt(1, None));
        assert!(made.service_account.is_none());
        let subject = &made.binding.subjects.unwrap()[0];
        assert_eq!(subject.name, "deployer");
        assert_ne!(
            made.binding.metadata.name.as_deref(),
            Some("deployer"),
            "named as the attempt"
        );
    }

    #[test]
    fn plans_use_the_plan_account() {
        let mut run = testing::run();
        run.spec.runner.plan_service_account_name = Some("reader".into());
        assert_eq!(service_account_name(&run, &attempt(1, None)), "reader");
        // An apply uses the attempt's own account, unless the run selects one.
        let own = account(&run, &attempt(2, Some(1)));
        assert_eq!(
            own.service_account.unwrap().metadata.name,
            own.role.metadata.name
        );
        run.spec.runner.service_account_name = Some("deployer".into());
        assert_eq!(service_account_name(&run, &attempt(2, Some(1))), "deployer");
        assert_eq!(service_account_name(&run, &attempt(3, None)), "reader");
    }
}
