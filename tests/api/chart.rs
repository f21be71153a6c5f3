//! Renders the chart with Helm. Needs no cluster.

pub(crate) mod datastore;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::world::{World, rendered, tests};

tests! {
    Bare: sources_are_restricted_and_read_bound_secrets,
    Bare: standby_controllers_elect_a_leader,
    Bare: tool_settings_reach_the_controller,
    Bare: values_reach_the_controller,
    Bare: restore_time_reaches_the_policy,
    Bare: shared_states_reach_the_controller,
    Bare: values_of_an_earlier_release_render,
    Bare: server_is_optional_and_restricted,
    Bare: nothing_else_refers_to_the_server,
    Bare: users_have_their_own_priority_level,
    Bare: senseless_values_are_refused,
}

const CONTROLLER: &str = "Deployment/pawl-controller";
const DATASTORE: &str = "Deployment/pawl-datastore";
const SERVER: &str = "Deployment/pawl-server";
const SOURCES: &str = "Deployment/pawl-sources";

/// Renders the chart with values by their paths.
pub(crate) fn render(values: &Value) -> Result<Vec<Value>> {
    let values = values.as_object().context("no object")?.iter();
    let values: Vec<_> = values
        .map(|(path, value)| format!("--set-json={path}={value}"))
        .collect();
    let text = String::from_utf8(rendered("pawl", &values)?)?;
    let documents = text.split("\n---\n").filter(|part| {
        part.lines()
            .any(|line| !line.starts_with('#') && !line.is_empty())
    });
    documents
        .map(|part| serde_saphyr::from_str(part.trim_start_matches("---\n")).context("YAML"))
        .collect()
}

/// An object by `KIND/NAME`.
fn find<'a>(all: &'a [Value], object: &str) -> Option<&'a Value> {
    let (kind, name) = object.split_once('/')?;
    all.iter()
        .find(|object| object["kind"] == kind && name_of(object) == name)
}

pub(crate) fn get<'a>(all: &'a [Value], object: &str) -> Result<&'a Value> {
    find(all, object).with_context(|| format!("no {object}"))
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Fails if an object is rendered whose name contains `part`.
fn lacks_objects(all: &[Value], part: &str) -> Result<()> {
    let found: Vec<_> = all
        .iter()
        .map(name_of)
        .filter(|name| name.contains(part))
        .collect();
    ensure!(found.is_empty(), "{found:?}");
    Ok(())
}

/// Compares values by object and path. `pod` and `container` begin paths in a Deployment; null stands for no value.
fn holds(all: &[Value], wanted: Value) -> Result<()> {
    for (object, values) in
        serde_json::from_value::<BTreeMap<String, BTreeMap<String, Value>>>(wanted)?
    {
        for (path, wanted) in values {
            let pointer = match path.split_once('/') {
                Some(("pod", path)) => format!("/spec/template/spec/{path}"),
                Some(("container", path)) => format!("/spec/template/spec/containers/0/{path}"),
                _ => format!("/{path}"),
            };
            let found = get(all, &object)?.pointer(&pointer).unwrap_or(&Value::Null);
            ensure!(
                *found == wanted,
                "{object} {path} is {found} and not {wanted}"
            );
        }
    }
    Ok(())
}

/// The arguments of a Deployment's container.
fn arguments<'a>(all: &'a [Value], deployment: &str) -> Result<Vec<&'a str>> {
    let arguments = &get(all, deployment)?["spec"]["template"]["spec"]["containers"][0]["args"];
    Ok(arguments
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect())
}

/// Fails unless a Deployment has all these arguments, which are separated by spaces.
fn passes(all: &[Value], deployment: &str, wanted: &str) -> Result<()> {
    let arguments = arguments(all, deployment)?;
    let missing = wanted
        .split_whitespace()
        .find(|wanted| !arguments.contains(wanted));
    ensure!(
        missing.is_none(),
        "{deployment} lacks {missing:?}: {arguments:?}"
    );
    Ok(())
}

/// Fails if an argument of a Deployment contains one of these parts, which are separated by spaces.
fn passes_no(all: &[Value], deployment: &str, parts: &str) -> Result<()> {
    let arguments = arguments(all, deployment)?;
    let found = arguments
        .iter()
        .find(|argument| parts.split(' ').any(|part| argument.contains(part)));
    ensure!(found.is_none(), "{deployment}: {found:?}");
    Ok(())
}

/// `NAMESPACE/ROLE` of each binding of roles whose names begin with `start`, separated by spaces.
fn bindings(all: &[Value], start: &str) -> String {
    let role = |object: &Value| {
        object["roleRef"]["name"]
            .as_str()
            .filter(|name| name.starts_with(start))
            .map(str::to_owned)
    };
    let of = |object: &Value| {
        Some(format!(
            "{}/{}",
            object["metadata"]["namespace"].as_str().unwrap_or_default(),
            role(object)?
        ))
    };
    all.iter().filter_map(of).collect::<Vec<_>>().join(" ")
}

/// A rule that grants verbs on resources of an API group. Resources and verbs are separated by spaces.
fn rule(group: &str, resources: &str, verbs: &str) -> Value {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    json!({"apiGroups": [group], "resources": words(resources), "verbs": words(verbs)})
}

/// A pod without root, with the runtime's seccomp profile, without capabilities, and with a read-only root file system.
fn restricted(all: &[Value], deployment: &str) -> Result<()> {
    let rows = json!({
        deployment: {
            "pod/securityContext/runAsNonRoot": true,
            "pod/securityContext/seccompProfile/type": "RuntimeDefault",
            "container/securityContext/allowPrivilegeEscalation": false,
            "container/securityContext/capabilities/drop": ["ALL"],
            "container/securityContext/readOnlyRootFilesystem": true,
            "pod/hostNetwork": null,
            "pod/hostPID": null,
        },
    });
    holds(all, rows)
}

/// Users' writes of runs have their own priority level, which excludes run statuses and the controller's writes.
async fn users_have_their_own_priority_level(_: World) -> Result<()> {
    let all = render(&json!({}))?;
    let (people, own) = ("FlowSchema/pawl-people", "FlowSchema/pawl-controller");
    let level = get(&all, people)?["spec"]["priorityLevelConfiguration"]["name"]
        .as_str()
        .context("no level")?;
    let level = format!("PriorityLevelConfiguration/{level}");
    let mut writes = rule("pawl.run", "terraformruns", "patch update");
    writes["namespaces"] = json!(["*"]);
    let account = json!({"name": "pawl-controller", "namespace": "pawl-system"});
    let rows = json!({
        level: {
            "spec/limited/limitResponse/type": "Queue",
            "spec/limited/borrowingLimitPercent": 0,
        },
        people: {
            "spec/rules/0/resourceRules": [writes],
            "spec/distinguisherMethod/type": "ByUser",
        },
        own: {"spec/rules/0/subjects/0/serviceAccount": account},
    });
    holds(&all, rows)?;
    // The lower number takes precedence.
    let precedence = |schema: &str| {
        Ok::<_, anyhow::Error>(get(&all, schema)?["spec"]["matchingPrecedence"].as_u64())
    };
    ensure!(precedence(own)? < precedence(people)?);
    ensure!(find(&render(&json!({"policies.install": false}))?, people).is_none());
    Ok(())
}

async fn sources_are_restricted_and_read_bound_secrets(_: World) -> Result<()> {
    let all = render(&json!({}))?;
    restricted(&all, SOURCES)?;
    passes(
        &all,
        SOURCES,
        "--datastore-url=https://pawl-datastore.pawl-system.svc --mirrors-mib=4096",
    )?;
    passes(&all, SOURCES, "--secrets-role=pawl-sources-secrets")?;
    let account = "--sources-account=system:serviceaccount:pawl-system:pawl-sources";
    passes(&all, DATASTORE, account)?;
    // All its rights: it writes status only, and cannot list Secrets.
    let rights = [
        rule(
            "pawl.run",
            "terraformrepositories terraformlayers",
            "list watch",
        ),
        rule(
            "pawl.run",
            "terraformrepositories/status terraformlayers/status",
            "patch",
        ),
        rule("events.k8s.io", "events", "create patch"),
        rule("pawl.run", "terraformruns", "list"),
    ];
    let mut endpoints = rule("discovery.k8s.io", "endpointslices", "get");
    endpoints["resourceNames"] = json!(["kubernetes"]);
    let audience = "pod/volumes/0/projected/sources/1/serviceAccountToken/audience";
    let rows = json!({
        SOURCES: {
            audience: "pawl-datastore",
            "pod/volumes/1/emptyDir/sizeLimit": "6144Mi",
        },
        "ClusterRole/pawl-sources": {"rules": rights},
        "ClusterRole/pawl-sources-secrets": {"rules": [rule("", "secrets", "get")]},
        "Role/pawl-sources-endpoints": {"rules": [endpoints]},
    });
    holds(&all, rows)?;
    ensure!(bindings(&all, "pawl-sources") == "/pawl-sources default/pawl-sources-endpoints");
    let some = render(&json!({"watchNamespaces": ["a", "b"], "sources.namespaces": ["b"]}))?;
    let bound = bindings(&some, "pawl-sources");
    ensure!(
        bound
            == "a/pawl-sources b/pawl-sources default/pawl-sources-endpoints b/pawl-sources-secrets",
        "{bound}"
    );
    for off in ["sources.enabled", "datastore.enabled"] {
        let all = render(&json!({off: false}))?;
        lacks_objects(&all, "pawl-sources").context(off)?;
        ensure!(
            !serde_json::to_string(&all)?.contains("sources-account"),
            "{off}"
        );
    }
    Ok(())
}

async fn server_is_optional_and_restricted(_: World) -> Result<()> {
    let none = render(&json!({"server.enabled": false, "server.hooks.enabled": true}))?;
    lacks_objects(&none, "-server")?;
    lacks_objects(&none, "-web")?;
    // By default it serves people: it lists the rows, and has no other right.
    let people = render(&json!({}))?;
    let rows = rule(
        "pawl.run",
        "terraformruns terraformlayers terraformrepositories",
        "list watch",
    );
    holds(
        &people,
        json!({"ClusterRole/pawl-server": {"rules": [rows]}}),
    )?;
    passes(&people, SERVER, "--web-listen=0.0.0.0:8444")?;
    passes_no(&people, SERVER, "--listen")?;
    for hooks in [
        "Service/pawl-server",
        "ClusterRole/pawl-server-secrets",
        "ClusterRoleBinding/pawl-server-reviews",
        "ValidatingAdmissionPolicy/pawl-server",
    ] {
        ensure!(find(&people, hooks).is_none(), "{hooks}");
    }
    let all = render(
        &json!({"server.hooks.enabled": true, "server.hooks.port": 8443, "server.url": "https://pawl.example.com/a",
            "server.behindTlsProxy": ["10.0.0.0/8"], "watchNamespaces": ["a", "b"]}),
    )?;
    restricted(&all, SERVER)?;
    let wanted = "server --listen=0.0.0.0:8443 --web-listen=0.0.0.0:8444 --session-secret=pawl-system/pawl-server-sessions \
        --url=https://pawl.example.com/a --behind-tls-proxy=10.0.0.0/8 --metrics-listen=0.0.0.0:8080 --watch-namespaces=a,b";
    ensure!(
        arguments(&all, SERVER)?.join(" ") == wanted,
        "{:?}",
        arguments(&all, SERVER)?
    );
    // It may patch repositories in watched namespaces; the policy limits that to one annotation. The role for Secrets is bound nowhere. It
    // reviews tokens and access cluster-wide.
    let labels = &get(&all, SERVER)?["spec"]["template"]["metadata"]["labels"];
    let patch = rule("pawl.run", "terraformrepositories", "patch");
    let port = json!({"name": "hooks", "port": 8443, "targetPort": "hooks"});
    let reviews = "ClusterRoleBinding/pawl-server-reviews";
    let wanted = json!({
        SERVER: {"pod/volumes": null},
        "Service/pawl-server": {
            "spec/ports": [port],
            "spec/selector": labels,
        },
        "Service/pawl-web": {
            "spec/ports": [{"name": "web", "port": 80, "targetPort": "web"}],
            "spec/selector": labels,
        },
        "Service/pawl-server-metrics": {"spec/selector": labels},
        "ClusterRole/pawl-server": {"rules": [rows, patch]},
        "ClusterRole/pawl-server-secrets": {"rules": [rule("", "secrets", "get")]},
        reviews: {
            "roleRef/name": "system:auth-delegator",
            "subjects/0/name": "pawl-server",
        },
    });
    holds(&all, wanted)?;
    let bound = bindings(&all, "pawl-server");
    ensure!(
        bound == "a/pawl-server b/pawl-server pawl-system/pawl-server-sessions",
        "{bound}"
    );
    let oidc = render(
        &json!({"server.oidc.issuer": "https://git.example.com", "server.oidc.clientId": "pawl", "server.oidc.ca": "PEM",
            "server.oidc.existingSecret": "client", "server.proxyBufferSize": 16384}),
    )?;
    for flag in [
        "--proxy-buffer-size=16384",
        "--oidc-issuer=https://git.example.com",
        "--oidc-client-id=pawl",
        "--oidc-client-secret-file=/pawl/oidc/clientSecret",
        "--oidc-ca=/pawl/oidc-ca/ca.crt",
    ] {
        passes(&oidc, SERVER, flag)?;
    }
    let volumes = json!({"pod/volumes/0/secret/secretName": "client", "pod/volumes/1/configMap/name": "pawl-server-oidc-ca",
        "container/volumeMounts/0/mountPath": "/pawl/oidc", "container/volumeMounts/1/mountPath": "/pawl/oidc-ca"});
    holds(
        &oidc,
        json!({SERVER: volumes, "ConfigMap/pawl-server-oidc-ca": {"data/ca.crt": "PEM"}}),
    )?;
    let tls = render(
        &json!({"server.hooks.enabled": true, "server.tls.existingSecret": "cert",
            "policies.install": false}),
    )?;
    holds(
        &tls,
        json!({SERVER: {"pod/volumes/0/secret/secretName": "cert", "pod/volumes/1": null},
            "Service/pawl-web": {"spec/ports/0/port": 443}}),
    )?;
    passes(
        &tls,
        SERVER,
        "--tls-cert=/pawl/tls/tls.crt --tls-key=/pawl/tls/tls.key",
    )?;
    get(&tls, "ValidatingAdmissionPolicy/pawl-server")?;
    get(&tls, "ClusterRoleBinding/pawl-server").map(drop)
}

/// So everything else works while the server is down.
async fn nothing_else_refers_to_the_server(_: World) -> Result<()> {
    let others = |values: Value| -> Result<Vec<Value>> {
        let is_own = |object: &Value| {
            ["-server", "-web"]
                .iter()
                .any(|part| name_of(object).contains(part))
        };
        let all = render(&values)?.into_iter();
        Ok(all.filter(|object| !is_own(object)).collect())
    };
    let with = others(json!({"server.hooks.enabled": true, "server.url": "https://pawl.example"}))?;
    let without = others(json!({"server.enabled": false}))?;
    for object in &with {
        let name = name_of(object);
        ensure!(without.contains(object), "{name} depends on it: {object}");
        let kind = object["kind"].as_str().unwrap_or_default();
        ensure!(!kind.ends_with("WebhookConfiguration"), "{name}: {kind}");
    }
    Ok(())
}

async fn standby_controllers_elect_a_leader(_: World) -> Result<()> {
    let one = render(&json!({}))?;
    ensure!(find(&one, "PodDisruptionBudget/pawl-controller").is_none());
    passes_no(&one, CONTROLLER, "--leader-lease")?;
    // Leases in its own namespace only.
    ensure!(
        !get(&one, "ClusterRole/pawl-controller")?["rules"]
            .to_string()
            .contains("leases")
    );
    let role = "Role/pawl-controller-leases";
    let rows = json!({
        CONTROLLER: {
            "spec/replicas": 1,
            "spec/strategy/type": "Recreate",
        },
        role: {
            "metadata/namespace": "pawl-system",
            "rules/0/resources": ["leases"],
        },
    });
    holds(&one, rows)?;
    let two = render(&json!({"controller.replicas": 2}))?;
    passes(&two, CONTROLLER, "--leader-lease=pawl-controller")?;
    let budget = "PodDisruptionBudget/pawl-controller";
    let rows = json!({
        CONTROLLER: {
            "spec/replicas": 2,
            "spec/strategy/type": "RollingUpdate",
        },
        budget: {
            "spec/minAvailable": 1,
            "spec/selector": get(&two, CONTROLLER)?["spec"]["selector"],
        },
    });
    holds(&two, rows)
}

async fn tool_settings_reach_the_controller(_: World) -> Result<()> {
    use crds::tools::{ToolSettings, ToolVerification};
    let settings = |all: &[Value]| -> Result<ToolSettings> {
        let arguments = arguments(all, CONTROLLER)?;
        let argument = arguments
            .into_iter()
            .find_map(|argument| argument.strip_prefix("--runner-tools="));
        argument
            .context("no argument")?
            .parse()
            .map_err(anyhow::Error::msg)
    };
    let reads_namespaces = |all: &[Value]| -> Result<bool> {
        Ok(get(all, "ClusterRole/pawl-controller")?["rules"]
            .to_string()
            .contains("namespaces"))
    };
    let all = render(&json!({}))?;
    ensure!(
        settings(&all)? == ToolSettings::default() && !reads_namespaces(&all)?,
        "{:?}",
        settings(&all)?
    );
    let mirror = json!({"tool": "Terraform", "url": "https://m/x", "secretName": "m", "ca": "A\nB", "verification": "Sums"});
    let cache = json!({"hostPath": "/var/cache/pawl"});
    let tools = json!({"mirrors": [mirror], "offline": true, "cache": cache});
    let all = render(&json!({"runner.tools": tools}))?;
    let settings = settings(&all)?;
    ensure!(
        settings.offline && settings.cache.host_path.as_deref() == Some("/var/cache/pawl"),
        "{settings:?}"
    );
    let mirror = &settings.mirrors[0];
    ensure!(
        mirror.verification == ToolVerification::Sums && mirror.ca.as_deref() == Some("A\nB"),
        "{mirror:?}"
    );
    ensure!(reads_namespaces(&all)?);
    Ok(())
}

/// Rows of values, of beginnings of arguments, and of the arguments with these beginnings.
async fn values_reach_the_controller(_: World) -> Result<()> {
    let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let proxy = json!({"https": "http://p.example.org:3128", "noProxy": ".example.org,10.0.0.0/8"});
    let bounds = json!({"total": 40, "perNamespace": 4});
    let proxies = "--runner-https-proxy --runner-http-proxy --runner-no-proxy";
    let proxied =
        "--runner-https-proxy=http://p.example.org:3128 --runner-no-proxy=.example.org,10.0.0.0/8";
    let confinement = "--runner-require-confinement";
    let restore = "--refuse-plans-before";
    let bounded = "--max-concurrent-runs=40 --max-concurrent-runs-per-namespace=4 --freeze";
    let slots = json!({"controller.maxConcurrentRuns": bounds, "controller.freeze": true});
    // Values, beginnings of arguments, and the arguments with these beginnings.
    let rows = json!([
        [{}, confinement, ""],
        [{"runner.requireConfinement": true}, confinement, confinement],
        [{}, restore, ""],
        [{"controller.refusePlansBefore": RESTORED}, restore, format!("{restore}={RESTORED}")],
        [{}, proxies, ""],
        [{"runner.proxy": proxy}, proxies, proxied],
        [{}, "--runner-ca=", ""],
        [{"runner.ca": pem}, "--runner-ca=", format!("--runner-ca={pem}")],
        // A week, or for ever.
        [{}, "--default-ttl-seconds", "--default-ttl-seconds=604800"],
        [{"controller.ttlSecondsAfterFinished": null}, "--default-ttl-seconds", ""],
        [{}, "--max-concurrent --freeze", "--max-concurrent-runs=10"],
        [{"controller.maxConcurrentRuns.total": null}, "--max-concurrent --freeze", ""],
        [slots, "--max-concurrent --freeze", bounded],
    ]);
    for (values, starts, wanted) in serde_json::from_value::<Vec<(Value, String, String)>>(rows)? {
        let all = render(&values)?;
        let is_of = |argument: &&str| starts.split(' ').any(|start| argument.starts_with(start));
        let found: Vec<_> = arguments(&all, CONTROLLER)?
            .into_iter()
            .filter(is_of)
            .collect();
        ensure!(found.join(" ") == wanted, "{values}: {found:?}");
    }
    // Sources trust the same authorities.
    let all = render(&json!({"runner.ca": pem}))?;
    ensure!(
        arguments(&all, SOURCES)?.contains(&format!("--ca={pem}").as_str()),
        "{:?}",
        arguments(&all, SOURCES)?
    );
    Ok(())
}

const RESTORED: &str = "2026-11-22T05:13:16Z";

async fn restore_time_reaches_the_policy(_: World) -> Result<()> {
    for (values, wanted) in [
        (json!({}), false),
        (json!({"controller.refusePlansBefore": RESTORED}), true),
    ] {
        let all = render(&values)?;
        let policy = get(&all, "ValidatingAdmissionPolicy/pawl-status")?.to_string();
        ensure!(
            policy.contains(&format!(">= timestamp('{RESTORED}')")) == wanted,
            "{policy}"
        );
    }
    Ok(())
}

async fn shared_states_reach_the_controller(_: World) -> Result<()> {
    use ::controller::settings::sharing::SharedStates;
    passes_no(&render(&json!({}))?, CONTROLLER, "--shared-states=")?;
    let all = render(&json!({"sharedStates": [["team-a", "team-b"], ["team-c", "team-d"]]}))?;
    let arguments = arguments(&all, CONTROLLER)?;
    let groups = arguments
        .iter()
        .find_map(|argument| argument.strip_prefix("--shared-states="))
        .context("no argument")?;
    let shared: SharedStates = groups.parse().map_err(anyhow::Error::msg)?;
    ensure!(
        shared.group("team-d") == ["team-c", "team-d"] && shared.group("team-e") == ["team-e"],
        "{shared:?}"
    );
    Ok(())
}

/// `helm upgrade --reuse-values` leaves values unset that the earlier chart did not have.
async fn values_of_an_earlier_release_render(_: World) -> Result<()> {
    let values = json!({"server": null, "outputs": null, "runner.proxy": null, "runner.ca": null,
        "runner.ephemeralStorage": null, "runner.requireConfinement": null, "datastore.ca": null,
        "controller.maxConcurrentRuns": null, "controller.freeze": null});
    let all = render(&values)?;
    passes(&all, CONTROLLER, "--runner-ephemeral-storage=")?;
    passes_no(&all, CONTROLLER, "-proxy=")
}

async fn senseless_values_are_refused(_: World) -> Result<()> {
    let mirror =
        |url: &str, tool: &str| json!({"runner.tools.mirrors": [{"tool": tool, "url": url}]});
    let unverified = json!({"tool": "OpenTofu", "url": "https://m", "verification": "Off"});
    let rows = json!([
        {"datastore.networkPolicy.apiServerCIDRs": ["everywhere"]},
        {"datastore.enabled": "no"},
        {"server.enabled": "yes"},
        {"server.replicas": 0},
        {"server.hooks.port": "https"},
        {"server.url": "pawl.example.com"},
        {"server.behindTlsProxy": ["10.0.0.1"]},
        {"server.proxyBufferSize": "16k"},
        {"sharedStates": ["team-a", "team-b"]},
        {"datastore.store": "ftp://x"},
        {"datastore.persistance": {"enabled": true}},
        {"runner.tools.ofline": true},
        {"runner.requireConfinement": "yes"},
        {"controller.refusePlansBefore": "yesterday"},
        {"controller.maxConcurrentRuns": {"total": 0}},
        {"controller.maxConcurrentRuns": 40},
        {"controller.freeze": "yes"},
        {"runner.proxy.https": "http://me:pw@p.example.org:3128"},
        {"runner.ca": "/etc/ssl/ca.crt"},
        {"runner.tools.mirrors": [unverified]},
        mirror("https://m", "Pulumi"),
        mirror("m.example.org", "OpenTofu"),
    ]);
    for values in serde_json::from_value::<Vec<Value>>(rows)? {
        ensure!(render(&values).is_err(), "{values} was accepted");
    }
    Ok(())
}
