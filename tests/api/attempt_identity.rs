//! Who may create, change and enter the objects of an attempt (policy `pawl-attempt`), with Kubernetes' own `edit` and `admin` and the roles
//! of the chart. Requests are sent raw: no client has all of these subresources.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use crds::names;
use harness::{cluster::objects, wait};
use http::{Method, Request, header::CONTENT_TYPE};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::{
    scene::Scene,
    world::{PATIENCE, World, tests, user},
};

tests! {
    Guarded: only_control_creates_objects_of_attempts,
    Guarded: only_control_changes_objects_of_attempts,
    Guarded: only_control_enters_pods_of_attempts,
    Guarded: only_kubelets_get_tokens_of_attempts,
}

const UID: &str = "0b9c1a4e-1f7e-4c07-9d43-2a1f35e3b8aa";
const RBAC: &str = "rbac.authorization.k8s.io";
/// Everything that a person may have in a namespace without `control`.
const ROLES: [&str; 8] = [
    "system:aggregate-to-view",
    "system:aggregate-to-edit",
    "pawl-author",
    "pawl-approver",
    "pawl-autoapprover",
    "pawl-abandoner",
    "pawl-repository-admin",
    "pawl-state-admin",
];

/// Name, client, request, body and verdict: `yes`, `no` (refused by the policy), or `dial` (admitted; there is no node to connect to).
type Row = (String, String, String, Value, String);

/// A namespace with the objects of attempt 1, as the controller creates them, and a pod of others.
struct Stage {
    namespace: String,
    clients: BTreeMap<&'static str, Client>,
}

/// The name of an attempt's pod, account and rights.
fn name(attempt: u32) -> String {
    names::attempt_name("net", UID, attempt)
}

fn labels(attempt: u32) -> Value {
    json!({names::LABEL_RUN: "net", names::LABEL_RUN_UID: UID, names::LABEL_ATTEMPT: attempt.to_string(),
        names::LABEL_MANAGED_BY: names::MANAGED_BY})
}

fn pod(metadata: &Value, more: &Value) -> Value {
    let resources = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}});
    let containers = json!([{"name": "runner", "image": "none", "resources": resources}]);
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}});
    json_patch::merge(&mut pod["spec"], more);
    pod
}

fn account(metadata: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
}

fn role(metadata: &Value) -> Value {
    json!({"apiVersion": format!("{RBAC}/v1"), "kind": "Role", "metadata": metadata, "rules": []})
}

fn binding(metadata: &Value) -> Value {
    json!({"apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name(1)}, "subjects": [user("eve")]})
}

/// A Secret that the API server fills with a token of an account.
fn secret(of: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": "token", "annotations": {"kubernetes.io/service-account.name": of}}})
}

/// A request for a token, bound to a pod if given.
fn wish(pod: Option<(&str, &str)>) -> Value {
    let bound =
        pod.map(|(name, uid)| json!({"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid}));
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"audiences": [], "boundObjectRef": bound}})
}

impl Stage {
    async fn new(world: World) -> Result<Self> {
        let scene = Scene::new(world, &[]).await?;
        let (world, namespace) = (&scene.world, scene.namespace.clone());
        for role in ROLES {
            world.bind_user(&namespace, role, "tenant").await?;
        }
        for role in ROLES.iter().chain(&["system:aggregate-to-admin"]) {
            world.bind_user(&namespace, role, "chief").await?;
        }
        for role in &ROLES[..2] {
            world.bind_user(&namespace, role, "operator").await?;
        }
        let control = json!([{"apiGroups": ["pawl.run"], "resources": ["terraformruns"], "verbs": ["control"]}]);
        world
            .grant(&namespace, "control", &control, &user("operator"))
            .await?;
        // `kubectl debug` needs more than `edit`.
        let debug = json!([{"apiGroups": [""], "resources": ["pods/ephemeralcontainers", "pods/resize", "pods/status"], "verbs": ["patch"]}]);
        world
            .grant(&namespace, "debug", &debug, &user("tenant"))
            .await?;
        let mut clients = BTreeMap::from([
            ("admin", world.admin.clone()),
            ("controller", world.process("pawl-controller").await?),
        ]);
        let users: [(_, _, &[_]); 8] = [
            ("tenant", "tenant", &[]),
            ("chief", "chief", &[]),
            ("operator", "operator", &[]),
            (
                "job",
                "system:serviceaccount:kube-system:job-controller",
                &[],
            ),
            (
                "collector",
                "system:serviceaccount:kube-system:generic-garbage-collector",
                &[],
            ),
            (
                "taints",
                "system:serviceaccount:kube-system:node-controller",
                &[],
            ),
            ("scheduler", "system:kube-scheduler", &[]),
            (
                "kubelet",
                "system:node:n1",
                &["system:nodes", "system:authenticated"],
            ),
        ];
        for (who, full, groups) in users {
            clients.insert(who, world.access.impersonate(full, groups).await?);
        }
        let accounts: Api<ServiceAccount> = Api::namespaced(world.admin.clone(), &namespace);
        for name in ["default", "plain"] {
            objects::create(&accounts, json!({"metadata": {"name": name}})).await?;
        }
        let pods: Api<Pod> = Api::namespaced(world.admin.clone(), &namespace);
        // Its name has the form, except that no hash has a vowel.
        objects::create(&pods, pod(&json!({"name": "redis-cache-a1"}), &json!({}))).await?;
        let stage = Self { namespace, clients };
        let metadata =
            json!({"name": name(1), "labels": labels(1), "finalizers": [names::POD_FINALIZER]});
        let mut given = metadata.clone();
        given["finalizers"] = Value::Null;
        for (kind, object) in [
            ("serviceaccounts", account(&given)),
            ("roles", role(&given)),
            ("rolebindings", binding(&given)),
            (
                "pods",
                pod(
                    &metadata,
                    &json!({"serviceAccountName": name(1), "nodeName": "n1"}),
                ),
            ),
        ] {
            let answer = stage
                .request("controller", &format!("POST {kind}"), &object, false)
                .await?;
            answer.with_context(|| format!("the controller creates {kind}"))?;
        }
        Ok(stage)
    }

    /// Sends `METHOD resource/name/subresource`.
    async fn request(
        &self,
        who: &str,
        request: &str,
        body: &Value,
        dry_run: bool,
    ) -> Result<kube::Result<String>> {
        let (method, path) = request.split_once(' ').context("no method")?;
        let group = if path.starts_with("role") {
            format!("/apis/{RBAC}/v1")
        } else {
            "/api/v1".to_owned()
        };
        let dry = if dry_run { "?dryRun=All" } else { "" };
        let content = match (method, body) {
            ("PATCH", Value::Array(_)) => "application/json-patch+json",
            ("PATCH", _) => "application/merge-patch+json",
            _ => "application/json",
        };
        let bytes = if body.is_null() {
            Vec::new()
        } else {
            serde_json::to_vec(body)?
        };
        let request = Request::builder()
            .method(Method::from_bytes(method.as_bytes())?)
            .uri(format!("{group}/namespaces/{}/{path}{dry}", self.namespace))
            .header(CONTENT_TYPE, content)
            .body(bytes)?;
        let client = self.clients.get(who).context("no client")?;
        Ok(client.request_text(request).await)
    }

    /// Sends the requests of a table; writes of objects as dry runs.
    async fn rows(&self, rows: Value) -> Result<()> {
        for (name, who, request, body, wanted) in serde_json::from_value::<Vec<Row>>(rows)? {
            let dry_run = wanted != "dial" && !request.contains('?') && !request.contains("/token");
            let answer = self.request(&who, &request, &body, dry_run).await?;
            let (verdict, said) = match &answer {
                Ok(_) => ("yes", String::new()),
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    let ours = status.message.contains("'pawl-attempt'");
                    (if ours { "no" } else { "403" }, status.message.clone())
                }
                Err(error) => ("dial", error.to_string()),
            };
            ensure!(
                verdict == wanted,
                "{who}: {name} ({request}): {verdict}, not {wanted}: {said}"
            );
        }
        Ok(())
    }
}

async fn only_control_creates_objects_of_attempts(world: World) -> Result<()> {
    let stage = Stage::new(world).await?;
    let (next, none) = (name(2), json!({}));
    let rows = json!([
        ["the next pod", "tenant", "POST pods", pod(&json!({"name": next}), &none), "no"],
        ["a generated name", "tenant", "POST pods", pod(&json!({"generateName": "x-", "labels": labels(2)}), &none), "no"],
        ["the finalizer", "tenant", "POST pods", pod(&json!({"name": "x", "finalizers": [names::POD_FINALIZER]}), &none), "no"],
        ["its account", "tenant", "POST pods", pod(&json!({"name": "x"}), &json!({"serviceAccountName": name(1)})), "no"],
        ["the older field", "tenant", "POST pods", pod(&json!({"name": "x"}), &json!({"serviceAccount": name(1)})), "no"],
        ["its account by a Job", "job", "POST pods", pod(&json!({"name": "x"}), &json!({"serviceAccountName": name(1)})), "no"],
        ["its labels by a Job", "job", "POST pods", pod(&json!({"name": "x", "labels": labels(1)}), &none), "no"],
        ["a pod of a Job", "job", "POST pods", pod(&json!({"name": "x"}), &none), "yes"],
        ["a pod", "tenant", "POST pods", pod(&json!({"generateName": "x-", "labels": {"app": "x"}}), &none), "yes"],
        ["the account by name", "tenant", "POST serviceaccounts", account(&json!({"name": next})), "no"],
        ["the account by label", "tenant", "POST serviceaccounts", account(&json!({"name": "x", "labels": labels(2)})), "no"],
        ["an account", "tenant", "POST serviceaccounts", account(&json!({"name": "x"})), "yes"],
        ["a Role", "chief", "POST roles", role(&json!({"name": next})), "no"],
        ["a Role by label", "chief", "POST roles", role(&json!({"name": "x", "labels": labels(2)})), "no"],
        ["another Role", "chief", "POST roles", role(&json!({"name": "x"})), "yes"],
        ["a RoleBinding, with all rights", "admin", "POST rolebindings", binding(&json!({"name": next})), "yes"],
        ["a pod, with control", "operator", "POST pods", pod(&json!({"name": next}), &none), "yes"],
        ["a token in a Secret", "tenant", "POST secrets", secret(&name(1)), "no"],
        ["for the next account", "tenant", "POST secrets", secret(&next), "no"],
        ["as administrator", "admin", "POST secrets", secret(&name(1)), "no"],
        ["of another account", "tenant", "POST secrets", secret("plain"), "yes"],
        ["another Secret", "tenant", "POST secrets", {"metadata": {"name": next, "labels": labels(1)}}, "yes"],
        ["the controller's pod", "controller", "POST pods",
            pod(&json!({"name": next, "labels": labels(2), "finalizers": [names::POD_FINALIZER]}), &json!({"serviceAccountName": name(1)})), "yes"],
        ["the controller's account", "controller", "POST serviceaccounts", account(&json!({"name": next, "labels": labels(2)})), "yes"],
    ]);
    stage.rows(rows).await?;
    let mut rows = Vec::new();
    for label in [
        names::LABEL_RUN,
        names::LABEL_RUN_UID,
        names::LABEL_ATTEMPT,
        names::LABEL_RELEASED,
    ] {
        let labelled = pod(&json!({"name": "x", "labels": {label: "1"}}), &none);
        rows.push(json!([label, "tenant", "POST pods", labelled, "no"]));
    }
    for similar in [
        "x-cache-a1",
        "x-bcdfg-a0",
        "x-bcdfg-a1-0",
        "x-bcdfg-b1",
        "bcdfg-a1",
        "x-bcdfgh-a1x",
    ] {
        let body = pod(&json!({"name": similar}), &none);
        rows.push(json!([
            "a similar name",
            "tenant",
            "POST pods",
            body,
            "yes"
        ]));
    }
    stage.rows(rows.into()).await
}

async fn only_control_changes_objects_of_attempts(world: World) -> Result<()> {
    let stage = Stage::new(world).await?;
    let gated = json!({"serviceAccountName": name(1), "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]});
    for (request, body) in [
        (
            "POST pods",
            pod(&json!({"name": name(3), "labels": labels(3)}), &gated),
        ),
        ("POST secrets", secret("plain")),
    ] {
        stage.request("admin", request, &body, false).await??;
    }
    let at = |kind: &str| format!("PATCH {kind}/{}", name(1));
    let (mine, waits, other) = (
        at("pods"),
        format!("PATCH pods/{}", name(3)),
        "PATCH pods/redis-cache-a1",
    );
    let label = |label: &str, value: Value| json!({"metadata": {"labels": {label: value}}});
    let image = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}]);
    let cpu =
        json!([{"op": "replace", "path": "/spec/containers/0/resources/limits/cpu", "value": "3"}]);
    let debugger = json!({"spec": {"ephemeralContainers": [{"name": "debugger", "image": "evil", "terminationMessagePolicy": "File"}]}});
    let note = |key: &str| json!({"metadata": {"annotations": {key: "x"}}});
    let ungated = json!({"spec": {"schedulingGates": null, "nodeSelector": {"pool": "a"}}});
    let owners = json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}]}});
    let release = json!({"metadata": {"finalizers": null, "labels": {names::LABEL_RELEASED: "1"}}});
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name(1)}});
    let bind = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "redis-cache-a1"}, "target": {"kind": "Node", "name": "n1"}});
    let of_account =
        |of: &str| json!({"metadata": {"annotations": {"kubernetes.io/service-account.name": of}}});
    let rows = json!([
        ["an annotation of a mesh", "tenant", mine, note("mesh"), "yes"],
        ["a label of a mesh", "tenant", mine, label("mesh", json!("x")), "yes"],
        ["another finalizer", "tenant", mine, {"metadata": {"finalizers": [names::POD_FINALIZER, "x/y"]}}, "yes"],
        ["no finalizer", "tenant", mine, {"metadata": {"finalizers": null}}, "no"],
        ["no label", "tenant", mine, label(names::LABEL_ATTEMPT, Value::Null), "no"],
        ["another run", "tenant", mine, label(names::LABEL_RUN_UID, json!("x")), "no"],
        ["released", "tenant", mine, label(names::LABEL_RELEASED, json!("1")), "no"],
        ["hidden", "tenant", mine, label(names::LABEL_MANAGED_BY, json!("x")), "no"],
        ["the image", "tenant", mine, image, "no"],
        ["the image", "chief", mine, image, "no"],
        ["a deadline", "tenant", mine, {"spec": {"activeDeadlineSeconds": 1}}, "no"],
        ["a toleration", "tenant", mine,
            [{"op": "add", "path": "/spec/tolerations/-", "value": {"key": "x", "operator": "Exists"}}], "no"],
        ["no label, by its status", "tenant", format!("{mine}/status"), label(names::LABEL_ATTEMPT, Value::Null), "no"],
        ["no finalizer, by its status", "tenant", format!("{mine}/status"), {"metadata": {"finalizers": null}}, "no"],
        ["labels on another pod, by its status", "tenant", format!("{other}/status"), {"metadata": {"labels": labels(2)}}, "no"],
        ["another pod's status", "tenant", format!("{other}/status"), {"status": {"reason": "x"}}, "yes"],
        ["a debugger", "tenant", format!("{mine}/ephemeralcontainers"), debugger, "no"],
        ["a resize", "tenant", format!("{mine}/resize"), cpu, "no"],
        ["a queue admits it", "tenant", waits, ungated, "yes"],
        ["a queue changes its image", "tenant", waits, image, "no"],
        ["a debugger before it runs", "tenant", format!("{waits}/ephemeralcontainers"), debugger, "no"],
        ["labels on another pod", "tenant", other, {"metadata": {"labels": labels(2)}}, "no"],
        ["the finalizer on another pod", "tenant", other, {"metadata": {"finalizers": [names::POD_FINALIZER]}}, "no"],
        ["another pod's image", "tenant", other, image, "yes"],
        ["another pod's debugger", "tenant", format!("{other}/ephemeralcontainers"), debugger, "yes"],
        ["a role of a cloud", "tenant", at("serviceaccounts"), note("eks.amazonaws.com/role-arn"), "no"],
        ["the account's label", "tenant", at("serviceaccounts"), label(names::LABEL_RUN_UID, Value::Null), "no"],
        ["OpenShift's pull Secret", "tenant", at("serviceaccounts"),
            {"metadata": {"annotations": {"openshift.io/x": "x"}}, "imagePullSecrets": [{"name": "x"}]}, "yes"],
        ["another account", "tenant", "PATCH serviceaccounts/plain", note("eks.amazonaws.com/role-arn"), "yes"],
        ["rules", "chief", at("roles"),
            {"rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]}, "no"],
        ["an annotation of a Role", "chief", at("roles"), note("x"), "yes"],
        ["subjects", "chief", at("rolebindings"), {"subjects": []}, "no"],
        ["the account of a Secret", "tenant", "PATCH secrets/token", of_account(&name(1)), "no"],
        ["another change of a Secret", "tenant", "PATCH secrets/token", note("x"), "yes"],
        ["an owner", "collector", mine, owners, "yes"],
        ["a condition", "taints", format!("{mine}/status"), {"status": {"reason": "x"}}, "yes"],
        ["a deletion by a taint", "taints", mine.replace("PATCH", "DELETE"), null, "yes"],
        ["a binding to a node", "scheduler", "POST pods/redis-cache-a1/binding", bind, "yes"],
        ["a deletion", "tenant", mine.replace("PATCH", "DELETE"), null, "yes"],
        ["an eviction", "tenant", format!("POST pods/{}/eviction", name(1)), eviction, "yes"],
        ["the release", "controller", mine, release, "yes"],
    ]);
    stage.rows(rows).await
}

async fn only_control_enters_pods_of_attempts(world: World) -> Result<()> {
    let stage = Stage::new(world).await?;
    let mut rows = Vec::new();
    let paths = |pod: &str| {
        [
            format!("pods/{pod}/exec?command=ls"),
            format!("pods/{pod}/attach?stdin=true"),
            format!("pods/{pod}/portforward?ports=9417"),
            format!("pods/{pod}/proxy/?x"),
            format!("pods/{pod}:9417/proxy/?x"),
            format!("pods/http:{pod}:/proxy/state?x"),
        ]
    };
    for method in ["GET", "POST"] {
        for path in paths(&name(1)) {
            let request = format!("{method} {path}");
            rows.push(json!(["its pod", "tenant", request, null, "no"]));
            rows.push(json!(["its pod", "chief", request, null, "no"]));
            rows.push(json!([
                "its pod, with control",
                "operator",
                request,
                null,
                "dial"
            ]));
            rows.push(json!([
                "its pod, with all rights",
                "admin",
                request,
                null,
                "dial"
            ]));
        }
        for path in paths("redis-cache-a1") {
            rows.push(json!([
                "another pod",
                "tenant",
                format!("{method} {path}"),
                null,
                "dial"
            ]));
        }
    }
    stage.rows(rows.into()).await
}

async fn only_kubelets_get_tokens_of_attempts(world: World) -> Result<()> {
    let stage = Stage::new(world.clone()).await?;
    let pods: Api<Pod> = Api::namespaced(world.admin.clone(), &stage.namespace);
    let (mine, redis) = (pods.get(&name(1)).await?, pods.get("redis-cache-a1").await?);
    let (mine, redis) = (
        mine.uid().unwrap_or_default(),
        redis.uid().unwrap_or_default(),
    );
    let bound = wish(Some((&name(1), &mine)));
    let own = format!("POST serviceaccounts/{}/token", name(1));
    let named = "POST serviceaccounts/plain/token";
    let elsewhere = wish(Some(("redis-cache-a1", &redis)));
    let mut rows = Vec::new();
    for who in ["tenant", "chief", "operator", "admin"] {
        if who != "operator" {
            rows.push(json!(["another account", who, named, wish(None), "yes"]));
        }
        rows.push(json!(["its account", who, own, wish(None), "no"]));
        rows.push(json!(["bound to its pod", who, own, bound, "no"]));
        rows.push(json!([
            "a named account, bound to its pod",
            who,
            named,
            bound,
            "no"
        ]));
    }
    rows.push(json!([
        "bound to another pod",
        "tenant",
        "POST serviceaccounts/default/token",
        elsewhere,
        "yes"
    ]));
    stage.rows(rows.into()).await?;
    // The authorizer of nodes knows the pod a moment later.
    wait::until(
        "a kubelet gets the token of its pod",
        PATIENCE,
        async || stage.request("kubelet", &own, &bound, false).await,
    )
    .await
    .map(drop)
}
