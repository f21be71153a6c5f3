//! The datastore in the chart.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    CONTROLLER, DATASTORE, bindings, find, get, holds, lacks_objects, passes, passes_no, render,
    restricted, rule,
};
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
    let all = render(&json!({}))?;
    restricted(&all, DATASTORE)?;
    let controller = get(&all, CONTROLLER)?;
    // The selectors of the two do not overlap.
    let labels = &get(&all, DATASTORE)?["spec"]["selector"]["matchLabels"];
    ensure!(*labels != controller["spec"]["selector"]["matchLabels"]);
    passes(
        &all,
        DATASTORE,
        "--controller-account=system:serviceaccount:pawl-system:pawl-controller",
    )?;
    passes(
        &all,
        DATASTORE,
        "--sources-account=system:serviceaccount:pawl-system:pawl-sources",
    )?;
    // The controller knows its address, and authenticates with a token for its audience only.
    passes(
        &all,
        CONTROLLER,
        "--datastore-url=https://pawl-datastore.pawl-system.svc",
    )?;
    passes(
        &all,
        CONTROLLER,
        "--datastore-ca=/pawl/datastore/ca.crt --datastore-token=/pawl/datastore/token",
    )?;
    passes(
        &all,
        CONTROLLER,
        "--read-api-service=pawl-system/pawl-datastore:443",
    )?;
    let (own, binding) = (
        "Role/pawl-datastore-secrets",
        "RoleBinding/pawl-datastore-pawl-system",
    );
    let mut secrets = rule("", "secrets", "get patch");
    secrets["resourceNames"] = json!([
        "pawl-datastore-identity",
        "pawl-datastore-keyring",
        "pawl-datastore-certificate"
    ]);
    let reads = [
        rule("pawl.run", "terraformruns", "get list"),
        rule("pawl.run", "terraformrepositories", "get list"),
        rule("", "namespaces", "get"),
    ];
    let rows = json!({
        DATASTORE: {
            "spec/replicas": 1,
            "spec/strategy/type": "Recreate",
            "container/image": controller["spec"]["template"]["spec"]["containers"][0]["image"],
            // Not behind clients that wait for a transfer.
            "container/livenessProbe/httpGet/port": "metrics",
            "container/readinessProbe/httpGet/port": "metrics",
        },
        CONTROLLER: {
            // No private key.
            "pod/volumes/0/projected/sources/0/secret/items": [{"key": "ca.crt", "path": "ca.crt"}],
            "pod/volumes/0/projected/sources/1/serviceAccountToken/audience": "pawl-datastore",
        },
        "Service/pawl-datastore": {"spec/selector": labels, "spec/ports/0/port": 443},
        // All its rights in the cluster.
        "ClusterRole/pawl-datastore": {"rules": [rule("authentication.k8s.io", "tokenreviews", "create")]},
        "ClusterRole/pawl-datastore-runs": {"rules": reads},
        own: {"metadata/namespace": "pawl-system", "rules": [secrets]},
        binding: {
            "metadata/namespace": "kube-system",
            "roleRef/name": "extension-apiserver-authentication-reader",
        },
    });
    holds(&all, rows)
}

async fn datastore_writes_outputs_where_bound(_: World) -> Result<()> {
    const OUTPUTS: &str = "pawl-datastore-outputs";
    let all = render(&json!({}))?;
    // It reads none.
    let written = rule("", "configmaps secrets", "create patch delete");
    holds(
        &all,
        json!({"ClusterRole/pawl-datastore-outputs": {"rules": [written]}}),
    )?;
    let policy = get(&all, "ValidatingAdmissionPolicy/pawl-outputs")?.to_string();
    ensure!(
        policy.contains("'system:serviceaccount:pawl-system:pawl-datastore'")
            && policy.contains("pawl-datastore-keyring")
    );
    passes(&all, DATASTORE, "--outputs-policy=pawl-outputs")?;
    let some = json!({"outputs.namespaces": ["a"], "watchNamespaces": ["a", "b"]});
    for (values, wanted) in [
        (json!({}), "/pawl-datastore-outputs"),
        (some, "a/pawl-datastore-outputs"),
        (
            json!({"watchNamespaces": ["a", "b"]}),
            "a/pawl-datastore-outputs b/pawl-datastore-outputs",
        ),
    ] {
        let bound = bindings(&render(&values)?, OUTPUTS);
        ensure!(bound == wanted, "{bound}");
    }
    for off in ["outputs.enabled", "datastore.enabled"] {
        let all = render(&json!({off: false}))?;
        lacks_objects(&all, OUTPUTS)
            .and_then(|()| lacks_objects(&all, "pawl-outputs"))
            .context(off)?;
    }
    Ok(())
}

async fn network_policy_admits_runners_and_controller(_: World) -> Result<()> {
    for blocks in [vec![], vec!["10.1.0.0/24", "fd00::/64"]] {
        let all = render(&json!({"datastore.networkPolicy.apiServerCIDRs": blocks}))?;
        let labels = |name: &str| {
            Ok::<_, anyhow::Error>(&get(&all, name)?["spec"]["template"]["metadata"]["labels"])
        };
        // The labels that the controller sets on the pods of runs.
        let runner = json!({"app.kubernetes.io/name": "pawl-runner", "app.kubernetes.io/component": "runner"});
        let mut from = vec![
            json!({"namespaceSelector": {}, "podSelector": {"matchLabels": runner}}),
            json!({"podSelector": {"matchLabels": labels(CONTROLLER)?}}),
            json!({"podSelector": {"matchLabels": labels("Deployment/pawl-sources")?}}),
        ];
        from.extend(
            blocks
                .iter()
                .map(|block| json!({"ipBlock": {"cidr": block}})),
        );
        let policy = "NetworkPolicy/pawl-datastore";
        let rows = json!({
            policy: {
                "metadata/namespace": "pawl-system",
                "spec/policyTypes": ["Ingress"],
                "spec/podSelector/matchLabels": labels(DATASTORE)?,
                "spec/ingress/0/ports": [{"port": "https", "protocol": "TCP"}],
                "spec/ingress/0/from": from,
                "spec/ingress/1/ports": [{"port": "metrics", "protocol": "TCP"}],
                "spec/ingress/2": null,
            },
        });
        holds(&all, rows)?;
        let metrics = &get(&all, policy)?["spec"]["ingress"][1]["from"];
        ensure!(
            metrics.as_array().is_some_and(|from| !from.is_empty()),
            "{metrics}"
        );
    }
    let off = render(&json!({"datastore.networkPolicy.enabled": false}))?;
    ensure!(find(&off, "NetworkPolicy/pawl-datastore").is_none());
    Ok(())
}

fn lacks_kinds(all: &[Value], kinds: &[&str]) -> Result<()> {
    let found = all
        .iter()
        .find(|object| kinds.iter().any(|kind| object["kind"] == *kind));
    ensure!(found.is_none(), "{found:?}");
    Ok(())
}

async fn existing_objects_are_used(_: World) -> Result<()> {
    let values = json!({
        "datastore.tls.existingSecret": "cert",
        "datastore.encryption.existingSecret": "keys",
        "datastore.persistence.existingClaim": "claim",
        "watchNamespaces": ["a", "b"],
        "readApi.enabled": false,
        "server.enabled": false,
    });
    let all = render(&values)?;
    lacks_kinds(&all, &["PersistentVolumeClaim"])?;
    for name in ["keyring", "certificate"] {
        ensure!(
            find(&all, &format!("Secret/pawl-datastore-{name}")).is_none(),
            "{name}"
        );
    }
    // Only the identity is to be filled.
    let role = get(&all, "Role/pawl-datastore-secrets")?;
    ensure!(
        role["rules"][0]["resourceNames"] == json!(["pawl-datastore-identity"]),
        "{role}"
    );
    let rows = json!({
        DATASTORE: {
            "pod/volumes/0/secret/secretName": "keys",
            "pod/volumes/1/secret/secretName": "cert",
            "pod/volumes/3/persistentVolumeClaim/claimName": "claim",
        },
        CONTROLLER: {"pod/volumes/0/projected/sources/0/secret/name": "cert"},
    });
    holds(&all, rows)?;
    passes(
        &all,
        DATASTORE,
        "--no-read-api --tls-cert=/pawl/tls/tls.crt --tls-key=/pawl/tls/tls.key",
    )?;
    passes_no(&all, DATASTORE, "--keys-secret --tls-secret --tls-names")?;
    // It removes the APIService that it created.
    passes(
        &all,
        CONTROLLER,
        "--read-api-owner=pawl-controller-read-api",
    )?;
    passes_no(&all, CONTROLLER, "--read-api-service")?;
    let bound = bindings(&all, "pawl-datastore-runs");
    ensure!(
        bound == "a/pawl-datastore-runs b/pawl-datastore-runs",
        "{bound}"
    );

    let aws = json!([{"secretRef": {"name": "aws"}}]);
    let bucket = render(&json!({"datastore.store": "s3://plans/pawl", "datastore.envFrom": aws}))?;
    passes(&bucket, DATASTORE, "--store=s3://plans/pawl")?;
    holds(
        &bucket,
        json!({DATASTORE: {"container/envFrom/0/secretRef/name": "aws"}}),
    )?;
    lacks_kinds(&bucket, &["PersistentVolumeClaim"])?;
    let adopted = render(&json!({"datastore.adopt": "ab12"}))?;
    passes(
        &adopted,
        DATASTORE,
        "--identity-secret=pawl-system/pawl-datastore-identity",
    )?;
    passes(&adopted, DATASTORE, "--adopt=ab12")?;
    let passing =
        render(&json!({"datastore.persistence.enabled": false, "datastore.adopt": "ab12"}))?;
    passes_no(&passing, DATASTORE, "--identity-secret --adopt")?;
    holds(
        &passing,
        json!({DATASTORE: {"pod/volumes/3": {"name": "data", "emptyDir": {}}}}),
    )
}

async fn disabled_datastore_renders_nothing(_: World) -> Result<()> {
    let all = render(&json!({"datastore.enabled": false}))?;
    lacks_objects(&all, "datastore")?;
    passes_no(&all, CONTROLLER, "--datastore --read-api-service")?;
    holds(&all, json!({CONTROLLER: {"pod/volumes": null}}))
}

/// Repeated rendering and applying leaves the datastore's data in the Secrets unchanged.
async fn secrets_are_rendered_without_data(_: World) -> Result<()> {
    let all = render(&json!({"server.enabled": false}))?;
    let secrets = all
        .iter()
        .filter(|object| object["kind"] == "Secret")
        .count();
    ensure!(secrets == 3, "{secrets} Secrets");
    let secret = json!({"type": "Opaque", "data": null, "stringData": null,
        "metadata/annotations/helm.sh~1resource-policy": "keep"});
    // Each is mounted, and passed to the datastore.
    let rows = json!({
        "Secret/pawl-datastore-keyring": secret,
        "Secret/pawl-datastore-certificate": secret,
        "Secret/pawl-datastore-identity": secret,
        DATASTORE: {
            "pod/volumes/0/secret/secretName": "pawl-datastore-keyring",
            "pod/volumes/1/secret/secretName": "pawl-datastore-certificate",
        },
    });
    holds(&all, rows)?;
    ensure!(
        render(&json!({"server.enabled": false}))? == all,
        "rendered twice, it differs"
    );
    passes(
        &all,
        DATASTORE,
        "--keys-secret=pawl-system/pawl-datastore-keyring",
    )?;
    passes(
        &all,
        DATASTORE,
        "--tls-secret=pawl-system/pawl-datastore-certificate",
    )?;
    let names = ["pawl-datastore", ".pawl-system", ".svc", ".cluster.local"];
    let names: Vec<_> = (1..=names.len()).map(|n| names[..n].concat()).collect();
    passes(&all, DATASTORE, &format!("--tls-names={}", names.join(",")))
}

async fn bucket_authorities_reach_the_datastore(_: World) -> Result<()> {
    let list = |all: &[Value], key: &str| -> Result<Vec<Value>> {
        let list = &get(all, DATASTORE)?["spec"]["template"]["spec"]["containers"][0][key];
        list.as_array()
            .cloned()
            .with_context(|| format!("no {key}"))
    };
    let plain = list(&render(&json!({}))?, "env")?;
    ensure!(
        plain.iter().all(|entry| !entry["name"]
            .as_str()
            .unwrap_or_default()
            .starts_with("SSL_")),
        "{plain:?}"
    );
    let all = render(&json!({"datastore.ca": "A\nB", "datastore.podAnnotations": {"a": "b"}}))?;
    let rows = json!({
        "ConfigMap/pawl-datastore-ca": {"data": {"ca.crt": "A\nB"}},
        DATASTORE: {"spec/template/metadata/annotations/a": "b"},
    });
    holds(&all, rows)?;
    for (name, value) in [
        ("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"),
        ("SSL_CERT_DIR", "/pawl/ca"),
    ] {
        ensure!(
            list(&all, "env")?.contains(&json!({"name": name, "value": value})),
            "{name}"
        );
    }
    let is_ca = |mount: &Value| mount["name"] == "ca" && mount["mountPath"] == "/pawl/ca";
    ensure!(list(&all, "volumeMounts")?.iter().any(is_ca));
    // A changed authority restarts the pod.
    let annotations = &get(&all, DATASTORE)?["spec"]["template"]["metadata"]["annotations"];
    ensure!(annotations["pawl.run/ca"].is_string(), "{annotations}");
    Ok(())
}
