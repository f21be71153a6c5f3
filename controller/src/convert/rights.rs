//! Lists the rights that the created objects need: the old operators had them, or did not ask for them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// A comment and a command for each right, in the order of namespaces. `$WHO` is the user who applies the objects.
pub(super) fn lines(objects: &[Value]) -> Vec<String> {
    let mut lines = Vec::new();
    let (mut roles, mut secrets) = (BTreeMap::new(), BTreeSet::new());
    let (mut accounts, mut published) = (BTreeSet::new(), BTreeSet::new());
    for object in objects {
        let namespace = object["metadata"]["namespace"]
            .as_str()
            .unwrap_or("default");
        let spec = &object["spec"];
        let repository = object["kind"] == "TerraformRepository";
        if let Some(secret) = spec["secretRef"]["name"].as_str().filter(|_| repository) {
            secrets.insert((namespace, secret));
        }
        let automatic = spec["approval"]["mode"] == "Automatic"
            || spec["remediation"]
                .as_object()
                .is_some_and(|all| all.values().any(|mode| mode == "Automatic"));
        let role = match (repository, automatic) {
            (true, _) => "pawl-repository-admin",
            (_, true) => "pawl-autoapprover",
            _ => "pawl-author",
        };
        let of = roles.entry((namespace, repository)).or_insert(role);
        if automatic {
            *of = role;
        }
        for settings in [spec, &spec["template"]] {
            if let Some(account) = settings["runner"]["serviceAccountName"].as_str() {
                accounts.insert((namespace, account));
            }
            for (field, resource) in [("secret", "secrets"), ("configMap", "configmaps")] {
                if let Some(name) = settings["outputs"][field]["name"].as_str() {
                    published.insert((namespace, resource, name));
                }
            }
        }
    }
    for (namespace, secret) in secrets {
        lines.push(format!("# right: sources reads the Secret {secret}"));
        lines.push(format!(
            "kubectl create role {secret} -n {namespace} --verb=get --resource=secrets --resource-name={secret} && \
             kubectl create rolebinding {secret} -n {namespace} --role={secret} --serviceaccount=pawl-system:pawl-sources"
        ));
    }
    for ((namespace, _), role) in roles {
        lines.push(format!("# right: $WHO applies the objects in {namespace}"));
        lines.push(format!(
            "kubectl create rolebinding converts-{role} -n {namespace} --clusterrole={role} --user=$WHO"
        ));
    }
    for (namespace, resource, name) in published {
        lines.push(format!(
            "# right: $WHO lets Pawl publish outputs to {resource}/{name}"
        ));
        lines.push(format!(
            "kubectl create role publish-{name} -n {namespace} --verb=create --resource={resource} --resource-name={name} && \
             kubectl create rolebinding publish-{name} -n {namespace} --role=publish-{name} --user=$WHO"
        ));
    }
    for (namespace, account) in accounts {
        // `kubectl create role` refuses the verb for this resource.
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": format!("use-{account}")},
            "rules": [{"apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": [account], "verbs": ["use"]}]});
        lines.push(format!(
            "# right: $WHO lets runs use the ServiceAccount {account}, which has to exist"
        ));
        lines.push(format!(
            "echo '{role}' | kubectl create -n {namespace} -f - && \
             kubectl create rolebinding use-{account} -n {namespace} --role=use-{account} --user=$WHO"
        ));
    }
    lines
}
