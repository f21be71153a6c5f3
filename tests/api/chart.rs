//! Renders the chart with Helm. Needs no cluster.

pub(crate) mod datastore;

use std::process::Command;

use anyhow::{Context, Result, ensure};
use harness::cluster::gobuild::Toolset;
use serde_json::{Value, json};

use crate::world::{World, tests};

tests! {
    Bare: sources_are_restricted_and_read_bound_secrets,
    Bare: standby_controllers_elect_a_leader,
    Bare: tool_settings_reach_the_controller,
    Bare: required_confinement_reaches_the_controller,
    Bare: restore_time_reaches_controller_and_policy,
    Bare: proxy_and_authorities_reach_the_controller,
    Bare: shared_states_reach_the_controller,
    Bare: runs_are_retained_for_a_finite_time,
    Bare: slots_reach_the_controller,
    Bare: values_of_an_earlier_release_render,
    Bare: server_is_optional_and_restricted,
    Bare: users_have_their_own_priority_level,
    Bare: senseless_values_are_refused,
}

/// Renders the chart with values in the form of `--set-json`.
pub(crate) fn render(values: &[&str]) -> Result<Vec<Value>> {
    let tools = Toolset::ensure(&["helm"])?;
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/pawl");
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

/// Users' writes of runs have their own priority level, which excludes run statuses and the controller's writes.
async fn users_have_their_own_priority_level(_: World) -> Result<()> {
    let all = render(&[])?;
    let people = &get(&all, "FlowSchema", "pawl-people")?["spec"];
    let level = people["priorityLevelConfiguration"]["name"].as_str().context("no level")?;
    let limited = &get(&all, "PriorityLevelConfiguration", level)?["spec"]["limited"];
    ensure!(limited["limitResponse"]["type"] == "Queue" && limited["borrowingLimitPercent"] == 0, "{limited}");
    let rule =
        json!([{"verbs": ["patch", "update"], "apiGroups": ["pawl.run"], "resources": ["terraformruns"], "namespaces": ["*"]}]);
    ensure!(people["rules"][0]["resourceRules"] == rule && people["distinguisherMethod"]["type"] == "ByUser", "{people}");
    let own = &get(&all, "FlowSchema", "pawl-controller")?["spec"];
    let account = &own["rules"][0]["subjects"][0]["serviceAccount"];
    ensure!(*account == json!({"name": "pawl-controller", "namespace": "pawl-system"}), "{account}");
    // The lower number takes precedence.
    ensure!(own["matchingPrecedence"].as_u64() < people["matchingPrecedence"].as_u64(), "{own}");
    let without = render(&["policies.install=false"])?;
    ensure!(find(&without, "FlowSchema", "pawl-people").is_none());
    Ok(())
}

async fn sources_are_restricted_and_read_bound_secrets(_: World) -> Result<()> {
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
    // All its rights: it writes status only, and cannot list Secrets.
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

async fn server_is_optional_and_restricted(_: World) -> Result<()> {
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
    // It may patch repositories in watched namespaces; the policy limits that to one annotation. The role for Secrets is bound nowhere.
    let rules =
        json!([{"apiGroups": ["pawl.run"], "resources": ["terraformrepositories"], "verbs": ["get", "list", "watch", "patch"]}]);
    ensure!(get(&all, "ClusterRole", "pawl-server")?["rules"] == rules);
    ensure!(find(&all, "ClusterRoleBinding", "pawl-server").is_none());
    let secrets = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]);
    ensure!(get(&all, "ClusterRole", "pawl-server-secrets")?["rules"] == secrets);
    // It reviews tokens and access cluster-wide.
    let reviews = get(&all, "ClusterRoleBinding", "pawl-server-reviews")?;
    ensure!(
        reviews["roleRef"]["name"] == "system:auth-delegator" && reviews["subjects"][0]["name"] == "pawl-server",
        "{reviews}"
    );
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

async fn standby_controllers_elect_a_leader(_: World) -> Result<()> {
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
    // Leases in its own namespace only.
    let role = get(&one, "Role", "pawl-controller-leases")?;
    ensure!(role["metadata"]["namespace"] == "pawl-system" && role["rules"][0]["resources"] == json!(["leases"]));
    let cluster = get(&one, "ClusterRole", "pawl-controller")?;
    ensure!(!cluster["rules"].to_string().contains("leases"));
    Ok(())
}

async fn tool_settings_reach_the_controller(_: World) -> Result<()> {
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

async fn required_confinement_reaches_the_controller(_: World) -> Result<()> {
    for (values, wanted) in [(vec![], false), (vec!["runner.requireConfinement=true"], true)] {
        let all = render(&values)?;
        let arguments = arguments(get(&all, "Deployment", "pawl-controller")?);
        ensure!(arguments.contains(&"--runner-require-confinement") == wanted, "{arguments:?}");
    }
    Ok(())
}

async fn restore_time_reaches_controller_and_policy(_: World) -> Result<()> {
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

async fn proxy_and_authorities_reach_the_controller(_: World) -> Result<()> {
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

async fn shared_states_reach_the_controller(_: World) -> Result<()> {
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

async fn runs_are_retained_for_a_finite_time(_: World) -> Result<()> {
    let kept = |values: &[&str]| -> Result<Option<String>> {
        let all = render(values)?;
        let arguments = arguments(get(&all, "Deployment", "pawl-controller")?);
        Ok(arguments.iter().find_map(|argument| argument.strip_prefix("--default-ttl-seconds=")).map(str::to_owned))
    };
    ensure!(kept(&[])?.as_deref() == Some("604800"), "a week");
    ensure!(kept(&["controller.ttlSecondsAfterFinished=null"])?.is_none(), "for ever, where somebody wants it");
    Ok(())
}

async fn slots_reach_the_controller(_: World) -> Result<()> {
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

/// `helm upgrade --reuse-values` leaves values unset that the earlier chart did not have.
async fn values_of_an_earlier_release_render(_: World) -> Result<()> {
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

async fn senseless_values_are_refused(_: World) -> Result<()> {
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
