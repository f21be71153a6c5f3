//! What the chart renders to, by Helm itself; nothing of it needs a cluster.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::cluster::gobuild::Toolset;

use crate::world::{Test, World};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("chart::the_datastore_is_restricted_and_asks_for_little", false, datastore),
        Test::new("chart::the_datastore_writes_outputs_where_it_is_bound", false, outputs),
        Test::new("chart::sources_are_restricted_and_read_secrets_where_they_are_bound", false, sources),
        Test::new("chart::the_network_policy_lets_in_runners_and_controller", false, network_policy),
        Test::new("chart::what_is_there_already_is_used", false, existing),
        Test::new("chart::without_a_datastore_there_is_nothing_of_it", false, without),
        Test::new("chart::controllers_that_stand_by_elect_one", false, replicas),
        Test::new("chart::what_is_said_of_tools_reaches_the_controller", false, tools),
        Test::new("chart::that_code_has_to_be_confined_reaches_the_controller", false, confinement),
        Test::new("chart::the_time_of_a_restore_reaches_controller_and_policy", false, restored),
        Test::new("chart::secrets_are_rendered_without_what_is_in_them", false, secrets),
        Test::new("chart::authorities_of_a_bucket_reach_the_datastore", false, authorities),
        Test::new("chart::proxy_and_authorities_of_pods_reach_the_controller", false, proxy),
        Test::new("chart::namespaces_that_share_states_reach_the_controller", false, sharing),
        Test::new("chart::runs_are_kept_for_a_finite_time", false, finite),
        Test::new("chart::how_many_runs_begin_reaches_the_controller", false, slots),
        Test::new("chart::values_of_an_earlier_release_are_enough", false, reused),
        Test::new("chart::the_server_is_restricted_and_there_for_whoever_wants_it", false, server),
        Test::new("chart::values_that_make_no_sense_are_refused", false, nonsense),
    ]
}

/// Renders the chart with values in the words of `--set-json`.
pub(crate) fn render(values: &[&str]) -> Result<Vec<Value>> {
    let tools = Toolset::ensure(&["helm"])?;
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/pawl");
    let mut command = Command::new(tools.path("helm")?);
    command.args(["template", "pawl", chart, "--namespace", "pawl-system", "--kube-version", "1.34.4"]);
    command.args(values.iter().map(|value| format!("--set-json={value}")));
    let output = command.output().context("cannot run helm")?;
    ensure!(output.status.success(), "helm: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let documents = text.split("\n---\n").filter(|part| part.lines().any(|line| !line.starts_with('#') && !line.is_empty()));
    documents.map(|part| serde_saphyr::from_str(part.trim_start_matches("---\n")).context("YAML")).collect()
}

fn find<'a>(all: &'a [Value], kind: &str, name: &str) -> Option<&'a Value> {
    all.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
}

pub(crate) fn get<'a>(all: &'a [Value], kind: &str, name: &str) -> Result<&'a Value> {
    find(all, kind, name).with_context(|| format!("no {kind} {name}"))
}

fn container(deployment: &Value) -> &Value {
    &deployment["spec"]["template"]["spec"]["containers"][0]
}

fn arguments(deployment: &Value) -> Vec<&str> {
    container(deployment)["args"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

async fn datastore(_: World) -> Result<()> {
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
    // The selectors of the two do not meet.
    let labels = |deployment: &Value| deployment["spec"]["selector"]["matchLabels"].clone();
    ensure!(labels(deployment) != labels(controller));
    let service = get(&all, "Service", "pawl-datastore")?;
    ensure!(service["spec"]["selector"] == labels(deployment) && service["spec"]["ports"][0]["port"] == 443);
    // The controller finds it, and proves itself with a token for it alone.
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

async fn outputs(_: World) -> Result<()> {
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

async fn sources(_: World) -> Result<()> {
    let all = render(&[])?;
    let deployment = get(&all, "Deployment", "pawl-sources")?;
    let pod = &deployment["spec"]["template"]["spec"];
    ensure!(
        pod["securityContext"]["runAsNonRoot"] == true && pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    );
    let context = &container(deployment)["securityContext"];
    ensure!(context["allowPrivilegeEscalation"] == false && context["capabilities"]["drop"] == json!(["ALL"]));
    ensure!(context["readOnlyRootFilesystem"] == true);
    for wanted in
        ["--datastore-url=https://pawl-datastore.pawl-system.svc", "--mirrors-mib=4096", "--secrets-role=pawl-sources-secrets"]
    {
        ensure!(arguments(deployment).contains(&wanted), "{wanted}: {:?}", arguments(deployment));
    }
    ensure!(pod["volumes"][0]["projected"]["sources"][1]["serviceAccountToken"]["audience"] == "pawl-datastore");
    ensure!(pod["volumes"][1]["emptyDir"]["sizeLimit"] == "6144Mi", "{}", pod["volumes"]);
    let account = "--sources-account=system:serviceaccount:pawl-system:pawl-sources";
    ensure!(arguments(get(&all, "Deployment", "pawl-datastore")?).contains(&account));
    // All its rights. It writes what it found and nothing else, and lists no Secrets.
    let rule = |resources: &[&str], verbs: &[&str]| json!({"apiGroups": ["pawl.run"], "resources": resources, "verbs": verbs});
    let wanted = [
        rule(&["terraformrepositories", "terraformlayers"], &["get", "list", "watch"]),
        rule(&["terraformrepositories/status", "terraformlayers/status"], &["patch"]),
        rule(&["terraformruns"], &["list"]),
    ];
    ensure!(get(&all, "ClusterRole", "pawl-sources")?["rules"] == json!(wanted));
    let secrets = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]);
    ensure!(get(&all, "ClusterRole", "pawl-sources-secrets")?["rules"] == secrets);
    let bound = |all: &[Value]| -> Vec<(String, String)> {
        let text = |object: &Value, key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
        let of = |object: &&Value| {
            object["kind"].as_str().is_some_and(|kind| kind.ends_with("RoleBinding"))
                && text(object, "name").starts_with("pawl-sources")
        };
        all.iter().filter(of).map(|object| (text(object, "name"), text(object, "namespace"))).collect()
    };
    let pair = |name: &str, namespace: &str| (name.to_owned(), namespace.to_owned());
    ensure!(bound(&all) == [pair("pawl-sources", "")], "{:?}", bound(&all));
    let some = render(&["watchNamespaces=[\"a\",\"b\"]", "sources.namespaces=[\"b\"]"])?;
    ensure!(
        bound(&some) == [pair("pawl-sources", "a"), pair("pawl-sources", "b"), pair("pawl-sources-secrets", "b")],
        "{:?}",
        bound(&some)
    );
    for off in ["sources.enabled=false", "datastore.enabled=false"] {
        let all = render(&[off])?;
        let is_of = |object: &Value| object["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("pawl-sources"));
        ensure!(!all.iter().any(is_of) && !serde_json::to_string(&all)?.contains("sources-account"), "{off}");
    }
    Ok(())
}

async fn network_policy(_: World) -> Result<()> {
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
            // The labels that the controller gives to the pods of runs.
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

async fn existing(_: World) -> Result<()> {
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

async fn without(_: World) -> Result<()> {
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

async fn server(_: World) -> Result<()> {
    let none = render(&[])?;
    ensure!(none.iter().all(|object| !object["metadata"]["name"].as_str().is_some_and(|name| name.contains("-server"))));
    let all = render(&["server.enabled=true", "server.port=8443", "watchNamespaces=[\"a\",\"b\"]"])?;
    let deployment = get(&all, "Deployment", "pawl-server")?;
    let wanted = ["server", "--listen=0.0.0.0:8443", "--metrics-listen=0.0.0.0:8080", "--watch-namespaces=a,b"];
    ensure!(arguments(deployment) == wanted, "{:?}", arguments(deployment));
    let pod = &deployment["spec"]["template"]["spec"];
    ensure!(pod["securityContext"]["runAsNonRoot"] == true && pod.get("volumes").is_none(), "{pod}");
    let context = &container(deployment)["securityContext"];
    ensure!(context["readOnlyRootFilesystem"] == true && context["capabilities"]["drop"] == json!(["ALL"]), "{context}");
    let (hooks, metrics) = (get(&all, "Service", "pawl-server")?, get(&all, "Service", "pawl-server-metrics")?);
    ensure!(hooks["spec"]["ports"] == json!([{"name": "hooks", "port": 8443, "targetPort": "hooks"}]), "{hooks}");
    ensure!(hooks["spec"]["selector"] == metrics["spec"]["selector"] && hooks["spec"]["selector"] == pod_labels(deployment));
    // One annotation in the namespaces that are watched, and a role for Secrets that is bound nowhere.
    let rules =
        json!([{"apiGroups": ["pawl.run"], "resources": ["terraformrepositories"], "verbs": ["get", "list", "watch", "patch"]}]);
    ensure!(get(&all, "ClusterRole", "pawl-server")?["rules"] == rules);
    ensure!(find(&all, "ClusterRoleBinding", "pawl-server").is_none());
    let secrets = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]);
    ensure!(get(&all, "ClusterRole", "pawl-server-secrets")?["rules"] == secrets);
    let bindings =
        all.iter().filter(|object| object["roleRef"]["name"].as_str().is_some_and(|name| name.starts_with("pawl-server")));
    let bound: Vec<_> = bindings.map(|object| (&object["metadata"]["namespace"], &object["roleRef"]["name"])).collect();
    ensure!(bound == [(&json!("a"), &json!("pawl-server")), (&json!("b"), &json!("pawl-server"))], "{bound:?}");
    let tls = render(&["server.enabled=true", "server.tls.existingSecret=\"cert\"", "policies.install=false"])?;
    let deployment = get(&tls, "Deployment", "pawl-server")?;
    ensure!(deployment["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"] == "cert");
    ensure!(
        arguments(deployment).contains(&"--tls-cert=/pawl/tls/tls.crt")
            && arguments(deployment).contains(&"--tls-key=/pawl/tls/tls.key")
    );
    get(&tls, "ValidatingAdmissionPolicy", "pawl-server")?;
    get(&tls, "ClusterRoleBinding", "pawl-server").map(drop)
}

fn pod_labels(deployment: &Value) -> Value {
    deployment["spec"]["template"]["metadata"]["labels"].clone()
}

async fn replicas(_: World) -> Result<()> {
    let one = render(&[])?;
    let controller = get(&one, "Deployment", "pawl-controller")?;
    ensure!(controller["spec"]["replicas"] == 1 && controller["spec"]["strategy"]["type"] == "Recreate");
    ensure!(find(&one, "PodDisruptionBudget", "pawl-controller").is_none());
    ensure!(arguments(controller).iter().all(|argument| !argument.starts_with("--leader-lease")));
    let two = render(&["controller.replicas=2"])?;
    let controller = get(&two, "Deployment", "pawl-controller")?;
    ensure!(controller["spec"]["replicas"] == 2 && controller["spec"]["strategy"]["type"] == "RollingUpdate");
    ensure!(arguments(controller).contains(&"--leader-lease=pawl-controller"), "{:?}", arguments(controller));
    let budget = get(&two, "PodDisruptionBudget", "pawl-controller")?;
    ensure!(budget["spec"]["minAvailable"] == 1);
    ensure!(budget["spec"]["selector"] == controller["spec"]["selector"]);
    // Leases in its own namespace, and nowhere else.
    let role = get(&one, "Role", "pawl-controller-leases")?;
    ensure!(role["metadata"]["namespace"] == "pawl-system" && role["rules"][0]["resources"] == json!(["leases"]));
    let cluster = get(&one, "ClusterRole", "pawl-controller")?;
    ensure!(!cluster["rules"].to_string().contains("leases"));
    Ok(())
}

async fn tools(_: World) -> Result<()> {
    use crds::tools::{ToolSettings, ToolVerification};
    let said = |values: &[&str]| -> Result<(ToolSettings, Vec<Value>)> {
        let all = render(values)?;
        let controller = get(&all, "Deployment", "pawl-controller")?;
        let argument = arguments(controller).into_iter().find_map(|argument| argument.strip_prefix("--runner-tools="));
        let settings = argument.context("no argument")?.parse().map_err(anyhow::Error::msg)?;
        Ok((settings, all))
    };
    let reads_namespaces = |all: &[Value]| -> Result<bool> {
        Ok(get(all, "ClusterRole", "pawl-controller")?["rules"].to_string().contains("namespaces"))
    };
    let (settings, all) = said(&[])?;
    ensure!(settings == ToolSettings::default(), "{settings:?}");
    ensure!(!reads_namespaces(&all)?, "nothing is asked for that is not needed");
    let mirror =
        r#"runner.tools.mirrors=[{"tool":"Terraform","url":"https://m/x","secretName":"m","ca":"A\nB","verification":"Sums"}]"#;
    let (settings, all) = said(&[mirror, "runner.tools.offline=true", r#"runner.tools.cache={"hostPath":"/var/cache/pawl"}"#])?;
    ensure!(settings.offline && settings.cache.host_path.as_deref() == Some("/var/cache/pawl"), "{settings:?}");
    ensure!(settings.mirrors[0].verification == ToolVerification::Sums && settings.mirrors[0].ca.as_deref() == Some("A\nB"));
    ensure!(reads_namespaces(&all)?);
    Ok(())
}

async fn confinement(_: World) -> Result<()> {
    for (values, wanted) in [(vec![], false), (vec!["runner.requireConfinement=true"], true)] {
        let all = render(&values)?;
        let arguments = arguments(get(&all, "Deployment", "pawl-controller")?);
        ensure!(arguments.contains(&"--runner-require-confinement") == wanted, "{arguments:?}");
    }
    Ok(())
}

async fn restored(_: World) -> Result<()> {
    let at = "2026-11-22T05:13:16Z";
    let value = format!("controller.refusePlansBefore={at:?}");
    for (values, wanted) in [(vec![], false), (vec![value.as_str()], true)] {
        let all = render(&values)?;
        let arguments = arguments(get(&all, "Deployment", "pawl-controller")?);
        ensure!(arguments.contains(&format!("--refuse-plans-before={at}").as_str()) == wanted, "{arguments:?}");
        let policy = get(&all, "ValidatingAdmissionPolicy", "pawl-status")?.to_string();
        ensure!(policy.contains(&format!(">= timestamp('{at}')")) == wanted, "{policy}");
    }
    Ok(())
}

/// Whoever renders and applies twice says nothing of what the datastore has put into them.
async fn secrets(_: World) -> Result<()> {
    let all = render(&[])?;
    let secrets: Vec<_> = all.iter().filter(|object| object["kind"] == "Secret").collect();
    ensure!(secrets.len() == 2, "{secrets:?}");
    for secret in &secrets {
        ensure!(secret["type"] == "Opaque" && secret.get("data").is_none() && secret.get("stringData").is_none(), "{secret}");
        ensure!(secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep");
    }
    ensure!(render(&[])? == all, "the same each time");
    // Each is mounted behind the one of an earlier chart, and named to the datastore.
    let deployment = get(&all, "Deployment", "pawl-datastore")?;
    let volumes = &deployment["spec"]["template"]["spec"]["volumes"];
    for (n, former, own) in [(0, "keys", "keyring"), (1, "tls", "certificate")] {
        let (former, own) = (format!("pawl-datastore-{former}"), format!("pawl-datastore-{own}"));
        get(&all, "Secret", &own)?;
        let sources = json!([{"secret": {"name": former, "optional": true}}, {"secret": {"name": own}}]);
        ensure!(volumes[n]["projected"]["sources"] == sources, "{}", volumes[n]);
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

async fn authorities(_: World) -> Result<()> {
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

async fn proxy(_: World) -> Result<()> {
    let said = |all: &[Value]| -> Result<Vec<String>> {
        let arguments = arguments(get(all, "Deployment", "pawl-controller")?);
        let is_ours = |argument: &&str| argument.contains("-proxy=") || argument.starts_with("--runner-ca=");
        Ok(arguments.into_iter().filter(is_ours).map(str::to_owned).collect())
    };
    ensure!(said(&render(&[])?)?.is_empty());
    let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let proxy = r#"runner.proxy={"https":"http://p.example.org:3128","noProxy":".example.org,10.0.0.0/8"}"#;
    let all = render(&[proxy, &format!("runner.ca={}", json!(pem))])?;
    let wanted = [
        "--runner-https-proxy=http://p.example.org:3128".to_owned(),
        "--runner-no-proxy=.example.org,10.0.0.0/8".to_owned(),
        format!("--runner-ca={pem}"),
    ];
    ensure!(said(&all)? == wanted, "{:?}", said(&all)?);
    ensure!(
        arguments(get(&all, "Deployment", "pawl-sources")?).contains(&format!("--ca={pem}").as_str()),
        "sources trust the same"
    );
    Ok(())
}

async fn sharing(_: World) -> Result<()> {
    use ::controller::settings::sharing::SharedStates;
    let said = |values: &[&str]| -> Result<Option<String>> {
        let all = render(values)?;
        let arguments = arguments(get(&all, "Deployment", "pawl-controller")?);
        Ok(arguments.iter().find_map(|argument| argument.strip_prefix("--shared-states=")).map(str::to_owned))
    };
    ensure!(said(&[])?.is_none(), "each namespace for itself");
    let groups = said(&[r#"sharedStates=[["team-a","team-b"],["team-c","team-d"]]"#])?.context("no argument")?;
    let shared: SharedStates = groups.parse().map_err(anyhow::Error::msg)?;
    ensure!(shared.group("team-d") == ["team-c", "team-d"] && shared.group("team-e") == ["team-e"], "{shared:?}");
    Ok(())
}

async fn finite(_: World) -> Result<()> {
    let kept = |values: &[&str]| -> Result<Option<String>> {
        let all = render(values)?;
        let arguments = arguments(get(&all, "Deployment", "pawl-controller")?);
        Ok(arguments.iter().find_map(|argument| argument.strip_prefix("--default-ttl-seconds=")).map(str::to_owned))
    };
    ensure!(kept(&[])?.as_deref() == Some("604800"), "a week");
    ensure!(kept(&["controller.ttlSecondsAfterFinished=null"])?.is_none(), "for ever, where somebody wants it");
    Ok(())
}

async fn slots(_: World) -> Result<()> {
    let said = |values: &[&str]| -> Result<Vec<String>> {
        let all = render(values)?;
        let arguments = arguments(get(&all, "Deployment", "pawl-controller")?);
        let of = |argument: &&&str| argument.starts_with("--max-concurrent") || argument.starts_with("--freeze");
        Ok(arguments.iter().filter(of).map(|argument| (*argument).to_owned()).collect())
    };
    ensure!(said(&[])?.is_empty(), "any number");
    let values = ["controller.maxConcurrentRuns={\"total\":40,\"perNamespace\":4}", "controller.freeze=true"];
    let wanted = ["--max-concurrent-runs=40", "--max-concurrent-runs-per-namespace=4", "--freeze"];
    ensure!(said(&values)? == wanted, "{:?}", said(&values)?);
    for value in ["controller.maxConcurrentRuns={\"total\":0}", "controller.maxConcurrentRuns=40", "controller.freeze=\"yes\""] {
        ensure!(render(&[value]).is_err(), "{value} was let through");
    }
    Ok(())
}

/// `helm upgrade --reuse-values` knows nothing of what the earlier chart had not: here all that is newer than commit f19e30a.
async fn reused(_: World) -> Result<()> {
    let newer = [
        "server",
        "outputs",
        "runner.proxy",
        "runner.ca",
        "runner.ephemeralStorage",
        "runner.requireConfinement",
        "datastore.ca",
        "controller.maxConcurrentRuns",
        "controller.freeze",
    ];
    let all = render(&newer.map(|value| format!("{value}=null")).each_ref().map(String::as_str))?;
    let arguments = arguments(get(&all, "Deployment", "pawl-controller")?);
    ensure!(arguments.contains(&"--runner-ephemeral-storage="), "nothing is requested that was not: {arguments:?}");
    ensure!(arguments.iter().all(|argument| !argument.contains("-proxy=")), "{arguments:?}");
    Ok(())
}

async fn nonsense(_: World) -> Result<()> {
    for value in [
        "datastore.networkPolicy.apiServerCIDRs=[\"everywhere\"]",
        "datastore.enabled=\"no\"",
        "server.enabled=\"yes\"",
        "server.replicas=0",
        "server.port=\"https\"",
        r#"sharedStates=["team-a","team-b"]"#,
        "datastore.store=\"ftp://x\"",
        "datastore.persistance={\"enabled\":true}",
        "runner.tools.ofline=true",
        "runner.requireConfinement=\"yes\"",
        "controller.refusePlansBefore=\"yesterday\"",
        r#"runner.proxy.https="http://me:pw@p.example.org:3128""#,
        r#"runner.ca="/etc/ssl/ca.crt""#,
        r#"runner.tools.mirrors=[{"tool":"Pulumi","url":"https://m"}]"#,
        r#"runner.tools.mirrors=[{"tool":"OpenTofu","url":"m.example.org"}]"#,
        r#"runner.tools.mirrors=[{"tool":"OpenTofu","url":"https://m","verification":"Off"}]"#,
    ] {
        ensure!(render(&[value]).is_err(), "{value} was let through");
    }
    Ok(())
}
