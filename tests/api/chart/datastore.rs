//! The datastore in the chart.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{arguments, container, find, get, render};
use crate::world::{World, tests};

tests! {
    Bare: datastore_is_restricted_and_requests_little,
    Bare: datastore_writes_outputs_where_bound,
    Bare: network_policy_admits_runners_and_controller,
    Bare: existing_objects_are_used,
    Bare: disabled_datastore_renders_nothing,
    Bare: secrets_are_rendered_without_data,
    Bare: bucket_authorities_reach_the_datastore,
}

async fn datastore_is_restricted_and_requests_little(_: World) -> Result<()> {
    let all = render(&[])?;
    let deployment = get(&all, "Deployment", "pawl-datastore")?;
    let pod = &deployment["spec"]["template"]["spec"];
    ensure!(deployment["spec"]["replicas"] == 1 && deployment["spec"]["strategy"]["type"] == "Recreate");
    ensure!(pod["securityContext"]["runAsNonRoot"] == true);
    ensure!(pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault");
    let context = &container(deployment)["securityContext"];
    ensure!(context["allowPrivilegeEscalation"] == false && context["capabilities"]["drop"] == json!(["ALL"]));
    ensure!(context["readOnlyRootFilesystem"] == true);
    ensure!(pod.get("hostNetwork").is_none() && pod.get("hostPID").is_none());
    let controller = get(&all, "Deployment", "pawl-controller")?;
    ensure!(container(deployment)["image"] == container(controller)["image"], "one image");
    let wanted = "--controller-account=system:serviceaccount:pawl-system:pawl-controller";
    ensure!(arguments(deployment).contains(&wanted), "{:?}", arguments(deployment));
    let wanted = "--sources-account=system:serviceaccount:pawl-system:pawl-sources";
    ensure!(arguments(deployment).contains(&wanted), "{:?}", arguments(deployment));
    for probe in ["livenessProbe", "readinessProbe"] {
        ensure!(container(deployment)[probe]["httpGet"]["port"] == "metrics", "not behind those that wait for a transfer");
    }
    // The selectors of the two do not overlap.
    let labels = |deployment: &Value| deployment["spec"]["selector"]["matchLabels"].clone();
    ensure!(labels(deployment) != labels(controller));
    let service = get(&all, "Service", "pawl-datastore")?;
    ensure!(service["spec"]["selector"] == labels(deployment) && service["spec"]["ports"][0]["port"] == 443);
    // The controller knows its address, and authenticates with a token for its audience only.
    for wanted in [
        "--datastore-url=https://pawl-datastore.pawl-system.svc",
        "--datastore-ca=/pawl/datastore/ca.crt",
        "--datastore-token=/pawl/datastore/token",
        "--read-api-service=pawl-system/pawl-datastore:443",
    ] {
        ensure!(arguments(controller).contains(&wanted), "{wanted}: {:?}", arguments(controller));
    }
    let sources = &controller["spec"]["template"]["spec"]["volumes"][0]["projected"]["sources"];
    ensure!(sources[0]["secret"]["items"] == json!([{"key": "ca.crt", "path": "ca.crt"}]), "no private key");
    ensure!(sources[1]["serviceAccountToken"]["audience"] == "pawl-datastore");
    // All its rights in the cluster.
    let rules = &get(&all, "ClusterRole", "pawl-datastore")?["rules"];
    ensure!(*rules == json!([{"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}]));
    let rules = &get(&all, "ClusterRole", "pawl-datastore-runs")?["rules"];
    let read = |group: &str, resource: &str, verbs: Value| json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
    let repositories = read("pawl.run", "terraformrepositories", json!(["get", "list"]));
    let get_only = || json!(["get"]);
    let wanted = json!([read("pawl.run", "terraformruns", get_only()), repositories, read("", "namespaces", get_only())]);
    ensure!(*rules == wanted, "{rules}");
    let role = get(&all, "Role", "pawl-datastore-secrets")?;
    ensure!(role["metadata"]["namespace"] == "pawl-system");
    let own = json!(["pawl-datastore-keyring", "pawl-datastore-certificate"]);
    let wanted = json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": own, "verbs": ["get", "patch"]}]);
    ensure!(role["rules"] == wanted, "{}", role["rules"]);
    let binding = get(&all, "RoleBinding", "pawl-datastore-pawl-system")?;
    ensure!(binding["metadata"]["namespace"] == "kube-system");
    ensure!(binding["roleRef"]["name"] == "extension-apiserver-authentication-reader");
    Ok(())
}

async fn datastore_writes_outputs_where_bound(_: World) -> Result<()> {
    let all = render(&[])?;
    let written = json!([{"apiGroups": [""], "resources": ["configmaps", "secrets"], "verbs": ["create", "patch", "delete"]}]);
    ensure!(get(&all, "ClusterRole", "pawl-datastore-outputs")?["rules"] == written, "it reads none");
    get(&all, "ClusterRoleBinding", "pawl-datastore-outputs")?;
    let policy = get(&all, "ValidatingAdmissionPolicy", "pawl-outputs")?.to_string();
    ensure!(policy.contains("'system:serviceaccount:pawl-system:pawl-datastore'") && policy.contains("pawl-datastore-keyring"));
    ensure!(arguments(get(&all, "Deployment", "pawl-datastore")?).contains(&"--outputs-policy=pawl-outputs"));
    let bound = |all: &[Value]| {
        let bindings = all.iter().filter(|o| o["kind"] == "RoleBinding" && o["metadata"]["name"] == "pawl-datastore-outputs");
        bindings.map(|o| o["metadata"]["namespace"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    for (values, namespaces) in [
        (vec!["outputs.namespaces=[\"a\"]", "watchNamespaces=[\"a\",\"b\"]"], vec!["a"]),
        (vec!["watchNamespaces=[\"a\",\"b\"]"], vec!["a", "b"]),
    ] {
        let all = render(&values)?;
        ensure!(bound(&all) == namespaces && find(&all, "ClusterRoleBinding", "pawl-datastore-outputs").is_none());
    }
    for off in ["outputs.enabled=false", "datastore.enabled=false"] {
        let all = render(&[off])?;
        let names = ["pawl-outputs", "pawl-datastore-outputs"];
        ensure!(all.iter().all(|object| names.iter().all(|name| object["metadata"]["name"] != *name)), "{off}");
    }
    Ok(())
}

async fn network_policy_admits_runners_and_controller(_: World) -> Result<()> {
    for (values, blocks) in [
        (vec![], vec![]),
        (vec!["datastore.networkPolicy.apiServerCIDRs=[\"10.1.0.0/24\",\"fd00::/64\"]"], vec!["10.1.0.0/24", "fd00::/64"]),
    ] {
        let all = render(&values)?;
        let policy = get(&all, "NetworkPolicy", "pawl-datastore")?;
        let spec = &policy["spec"];
        ensure!(policy["metadata"]["namespace"] == "pawl-system" && spec["policyTypes"] == json!(["Ingress"]));
        let template = |name: &str| -> Result<Value> {
            Ok(get(&all, "Deployment", name)?["spec"]["template"]["metadata"]["labels"].clone())
        };
        ensure!(spec["podSelector"]["matchLabels"] == template("pawl-datastore")?);
        let rules = spec["ingress"].as_array().context("no rules")?;
        ensure!(rules.len() == 2 && rules.iter().all(|rule| rule["from"].as_array().is_some_and(|from| !from.is_empty())));
        ensure!(rules[0]["ports"] == json!([{"port": "https", "protocol": "TCP"}]));
        ensure!(rules[1]["ports"] == json!([{"port": "metrics", "protocol": "TCP"}]));
        let mut wanted = vec![
            // The labels that the controller sets on the pods of runs.
            json!({"namespaceSelector": {}, "podSelector": {"matchLabels":
                {"app.kubernetes.io/name": "pawl-runner", "app.kubernetes.io/component": "runner"}}}),
            json!({"podSelector": {"matchLabels": template("pawl-controller")?}}),
            json!({"podSelector": {"matchLabels": template("pawl-sources")?}}),
        ];
        wanted.extend(blocks.iter().map(|block| json!({"ipBlock": {"cidr": block}})));
        ensure!(rules[0]["from"] == Value::Array(wanted), "{}", rules[0]["from"]);
    }
    ensure!(find(&render(&["datastore.networkPolicy.enabled=false"])?, "NetworkPolicy", "pawl-datastore").is_none());
    Ok(())
}

async fn existing_objects_are_used(_: World) -> Result<()> {
    let all = render(&[
        "datastore.tls.existingSecret=\"cert\"",
        "datastore.encryption.existingSecret=\"keys\"",
        "datastore.persistence.existingClaim=\"claim\"",
        "watchNamespaces=[\"a\",\"b\"]",
        "readApi.enabled=false",
    ])?;
    ensure!(all.iter().all(|object| object["kind"] != "Secret" && object["kind"] != "PersistentVolumeClaim"));
    ensure!(find(&all, "Role", "pawl-datastore-secrets").is_none(), "nothing is to be filled");
    let deployment = get(&all, "Deployment", "pawl-datastore")?;
    let volumes = &deployment["spec"]["template"]["spec"]["volumes"];
    ensure!(volumes[0]["secret"]["secretName"] == "keys" && volumes[1]["secret"]["secretName"] == "cert");
    ensure!(volumes[3]["persistentVolumeClaim"]["claimName"] == "claim", "{volumes}");
    ensure!(arguments(deployment).contains(&"--no-read-api"));
    let fills = |argument: &&str| argument.starts_with("--keys-secret") || argument.starts_with("--tls-");
    let filled: Vec<_> = arguments(deployment).into_iter().filter(fills).collect();
    ensure!(filled == ["--tls-cert=/pawl/tls/tls.crt", "--tls-key=/pawl/tls/tls.key"], "{filled:?}");
    let controller = get(&all, "Deployment", "pawl-controller")?;
    let sources = &controller["spec"]["template"]["spec"]["volumes"][0]["projected"]["sources"];
    ensure!(sources[0]["secret"]["name"] == "cert");
    ensure!(arguments(controller).iter().all(|argument| !argument.starts_with("--read-api-service")));
    ensure!(arguments(controller).contains(&"--read-api-owner=pawl-controller-read-api"), "it takes away what it made");
    let bound: Vec<_> = all
        .iter()
        .filter(|object| object["kind"] == "RoleBinding" && object["metadata"]["name"] == "pawl-datastore-runs")
        .map(|object| object["metadata"]["namespace"].clone())
        .collect();
    ensure!(bound == ["a", "b"] && find(&all, "ClusterRoleBinding", "pawl-datastore-runs").is_none());

    let bucket = render(&["datastore.store=\"s3://plans/pawl\"", "datastore.envFrom=[{\"secretRef\":{\"name\":\"aws\"}}]"])?;
    let deployment = get(&bucket, "Deployment", "pawl-datastore")?;
    ensure!(arguments(deployment).contains(&"--store=s3://plans/pawl"));
    ensure!(container(deployment)["envFrom"][0]["secretRef"]["name"] == "aws");
    ensure!(bucket.iter().all(|object| object["kind"] != "PersistentVolumeClaim"));
    let passing = render(&["datastore.persistence.enabled=false"])?;
    let volumes = &get(&passing, "Deployment", "pawl-datastore")?["spec"]["template"]["spec"]["volumes"];
    ensure!(volumes[3] == json!({"name": "data", "emptyDir": {}}), "{volumes}");
    Ok(())
}

async fn disabled_datastore_renders_nothing(_: World) -> Result<()> {
    let all = render(&["datastore.enabled=false"])?;
    for object in &all {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        ensure!(!name.contains("datastore"), "{} {name}", object["kind"]);
    }
    let controller = get(&all, "Deployment", "pawl-controller")?;
    ensure!(arguments(controller).iter().all(|a| !a.starts_with("--datastore") && !a.starts_with("--read-api-service")));
    ensure!(controller["spec"]["template"]["spec"].get("volumes").is_none());
    Ok(())
}

/// Repeated rendering and applying leaves the datastore's data in the Secrets unchanged.
async fn secrets_are_rendered_without_data(_: World) -> Result<()> {
    let all = render(&[])?;
    let secrets: Vec<_> = all.iter().filter(|object| object["kind"] == "Secret").collect();
    ensure!(secrets.len() == 2, "{secrets:?}");
    for secret in &secrets {
        ensure!(secret["type"] == "Opaque" && secret.get("data").is_none() && secret.get("stringData").is_none(), "{secret}");
        ensure!(secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep");
    }
    ensure!(render(&[])? == all, "the same each time");
    // Each is mounted, and passed to the datastore.
    let deployment = get(&all, "Deployment", "pawl-datastore")?;
    let volumes = &deployment["spec"]["template"]["spec"]["volumes"];
    for (n, own) in [(0, "pawl-datastore-keyring"), (1, "pawl-datastore-certificate")] {
        get(&all, "Secret", own)?;
        ensure!(volumes[n]["secret"]["secretName"] == own, "{}", volumes[n]);
    }
    for wanted in [
        "--keys-secret=pawl-system/pawl-datastore-keyring",
        "--tls-secret=pawl-system/pawl-datastore-certificate",
        "--tls-names=pawl-datastore,pawl-datastore.pawl-system,pawl-datastore.pawl-system.svc,\
         pawl-datastore.pawl-system.svc.cluster.local",
    ] {
        ensure!(arguments(deployment).contains(&wanted), "{wanted}: {:?}", arguments(deployment));
    }
    Ok(())
}

async fn bucket_authorities_reach_the_datastore(_: World) -> Result<()> {
    let environment = |all: &[Value]| -> Result<Vec<(String, String)>> {
        let env = container(get(all, "Deployment", "pawl-datastore")?)["env"].as_array().context("no environment")?.clone();
        let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        Ok(env.iter().map(|entry| (text(entry, "name"), text(entry, "value"))).collect())
    };
    let plain = render(&[])?;
    ensure!(environment(&plain)?.iter().all(|(name, _)| !name.starts_with("SSL_")));
    let all = render(&["datastore.ca=\"A\\nB\"", "datastore.podAnnotations={\"a\":\"b\"}"])?;
    ensure!(get(&all, "ConfigMap", "pawl-datastore-ca")?["data"] == json!({"ca.crt": "A\nB"}));
    for (name, value) in [("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"), ("SSL_CERT_DIR", "/pawl/ca")] {
        ensure!(environment(&all)?.contains(&(name.to_owned(), value.to_owned())), "{name}");
    }
    let template = &get(&all, "Deployment", "pawl-datastore")?["spec"]["template"];
    let mounts = container(get(&all, "Deployment", "pawl-datastore")?)["volumeMounts"].as_array().context("no mounts")?;
    ensure!(mounts.iter().any(|mount| mount["name"] == "ca" && mount["mountPath"] == "/pawl/ca"));
    let annotations = &template["metadata"]["annotations"];
    ensure!(annotations["a"] == "b" && annotations["pawl.run/ca"].is_string(), "a changed authority is read: {annotations}");
    Ok(())
}
