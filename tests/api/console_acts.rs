//! Acts through the web console: each person tries each act in each place of a run's life, by the console with a token and by the API server
//! with the same token, as `kubectl` does. Both end the same way, in the same words.
//!
//! All writes are dry runs: the console's way to the API server adds `dryRun`.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use crds::names;
use harness::cluster::access::ACTOR;
use http::Method;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client};
use serde_json::{Value, json};
use web_console::pages::stored::UNSERVED;

use crate::{
    console::front,
    matrix,
    scene::RUN,
    world::{Test, World, sum},
};

/// Name, roles, and the only place where the person tries. Those with few rights are refused for the same reasons in each place.
const PEOPLE: [(&str, &[&str], Option<&str>); 8] = [
    ("viewer", &["viewer"], None),
    ("author", &["author"], None),
    ("approver", &["approver"], None),
    ("autoapprover", &["autoapprover"], None),
    (
        "lead",
        &["approver", "autoapprover", "abandoner", "repository-admin"],
        None,
    ),
    ("state-admin", &["state-admin"], Some("Approved")),
    ("repository-admin", &["repository-admin"], Some("Failed")),
    ("none", &[], Some("AwaitingApproval")),
];
const PLACES: [&str; 7] = [
    "Pending",
    "AwaitingApproval",
    "Approved",
    "Apply",
    "Succeeded",
    "Failed",
    "Canceled",
];

pub(crate) fn tests() -> Vec<Test> {
    PLACES
        .into_iter()
        .map(|place| {
            let name = format!("console_acts::act_by_console_ends_as_by_kubectl_{place}");
            Test::new(&name, true, move |world| same_end(world, place))
        })
        .collect()
}

/// Name, method and path below the namespace, body, and what `kubectl` does for it: an annotation of an object, or a request.
type Case = (&'static str, Method, String, Value, Kubectl);

enum Kubectl {
    /// Path of the object, and the annotations.
    Annotate(String, Value),
    /// The same without reading the object first.
    Patch(String, Value),
    Get(String),
    Post(String, Value),
}

const RUNS: &str = "/apis/pawl.run/v1alpha1/namespaces/NS/terraformruns/run";
const LAYERS: &str = "/apis/pawl.run/v1alpha1/namespaces/NS/terraformlayers";
const REPOSITORY: &str = "/apis/pawl.run/v1alpha1/namespaces/NS/terraformrepositories/infra";
const READ: &str = "/apis/read.pawl.run/v1alpha1/namespaces/NS";

/// The acts, written apart from the console's own table. `ME` is the person's name.
fn cases() -> Vec<Case> {
    let act = |name: &'static str, body: Value, annotations: Value| {
        let to = Kubectl::Annotate(RUNS.into(), annotations);
        (
            name,
            Method::POST,
            format!("runs/{RUN}/acts/{name}"),
            body,
            to,
        )
    };
    let of_layer = |layer: &str, name: &'static str, annotations: Value| {
        let to = Kubectl::Annotate(format!("{LAYERS}/{layer}"), annotations);
        (
            name,
            Method::POST,
            format!("layers/{layer}/acts/{name}"),
            json!({}),
            to,
        )
    };
    let get = |name: &'static str, path: &str, of: String| {
        (
            name,
            Method::GET,
            path.to_owned(),
            json!(null),
            Kubectl::Get(of),
        )
    };
    let why = json!({"comment": "not on a Friday"});
    let approved =
        json!({names::APPROVE: sum('a'), names::APPROVED_BY: "ME", names::COMMENT: "fine"});
    let other = json!({names::APPROVE: sum('b'), names::APPROVED_BY: "ME", names::COMMENT: null});
    let unlock = json!({"reason": "its pod is gone"});
    let mut cases = vec![
        get("read", &format!("runs/{RUN}"), RUNS.into()),
        get(
            "read the plan",
            &format!("runs/{RUN}/plan"),
            format!("{READ}/terraformruns/run/plan"),
        ),
        get("read a repository", "repositories/infra", REPOSITORY.into()),
        get("read a layer", "layers/manual", format!("{LAYERS}/manual")),
        act(
            "approve",
            json!({"checksum": sum('a'), "comment": "fine"}),
            approved,
        ),
        act("approve", json!({"checksum": sum('b')}), other),
        act(
            "deny",
            why.clone(),
            json!({names::DENY: "not on a Friday", names::DENIED_BY: "ME"}),
        ),
        act(
            "cancel",
            why.clone(),
            json!({names::CANCEL: "not on a Friday", names::CANCELED_BY: "ME"}),
        ),
        act(
            "withdraw",
            json!({}),
            json!({names::APPROVE: null, names::APPROVED_BY: null, names::COMMENT: null}),
        ),
        act(
            "rerun",
            json!({}),
            json!({names::RERUN: "true", names::ASKED_BY: "ME"}),
        ),
        act(
            "recover",
            json!({}),
            json!({names::RECOVER: "true", names::ASKED_BY: "ME"}),
        ),
        act(
            "abandon",
            why,
            json!({names::ABANDON: "not on a Friday", names::ABANDONED_BY: "ME"}),
        ),
        (
            "unlock",
            Method::POST,
            "states/net/unlock".into(),
            unlock.clone(),
            Kubectl::Post(format!("{READ}/states/net/unlock"), unlock),
        ),
        (
            "reconcile",
            Method::POST,
            "repositories/infra/acts/reconcile".into(),
            json!({}),
            Kubectl::Annotate(REPOSITORY.into(), json!({names::RECONCILE: "1"})),
        ),
    ];
    for (name, value) in [("freeze", json!("true")), ("unfreeze", json!(null))] {
        let to = Kubectl::Patch(
            "/api/v1/namespaces/NS".into(),
            json!({names::FREEZE: value}),
        );
        cases.push((name, Method::POST, format!("acts/{name}"), json!({}), to));
    }
    for layer in ["manual", "automatic"] {
        cases.extend([
            of_layer(
                layer,
                "plan",
                json!({names::PLAN: "now", names::REQUESTED_BY: "ME"}),
            ),
            of_layer(layer, "suspend", json!({names::SUSPEND: "true"})),
            of_layer(
                layer,
                "resume",
                json!({names::SUSPEND: null, names::REQUESTED_BY: "ME"}),
            ),
            of_layer(
                layer,
                "confirm",
                json!({names::UNVERIFIED: null, names::REQUESTED_BY: "ME"}),
            ),
        ]);
    }
    cases
}

/// How a request ended: code, words of a refusal, annotations of the answer.
#[derive(Debug, PartialEq)]
struct End {
    code: u16,
    words: String,
    annotations: Value,
}

async fn same_end(world: World, place: &'static str) -> Result<()> {
    let (scene, _agent) = matrix::come(world, place).await?;
    let namespace = scene.namespace.clone();
    let rows = json!([
        ["creation", "admin", {"create": {"metadata": {"annotations": {names::SUSPEND: "true"}}}}, ""],
        ["mark", "controller", {"annotate": {names::UNVERIFIED: "why"}}, ""],
    ]);
    scene.rows("layer/manual", rows).await?;
    let automatic = json!({"metadata": {"annotations": {names::SUSPEND: "true"}}, "spec": {"remediation": {"onCommit": "Automatic"}}});
    scene
        .rows(
            "layer/automatic",
            json!([["creation", "admin", {"create": automatic}, ""]]),
        )
        .await?;
    let repository = json!([["creation", "admin", {"create": {}}, ""]]);
    scene.rows("repository/infra", repository).await?;
    let tokens = tokens(&scene.world, &namespace, place).await?;
    let console = console(&scene.world).await?;
    let (mut wrong, mut succeeded, mut cases_seen) = (Vec::new(), 0, 0);
    for (who, token) in &tokens {
        let direct = scene
            .world
            .access
            .client_for_token(token, Some(ACTOR))
            .await?;
        let me = format!("system:serviceaccount:{namespace}:{who}");
        for (name, method, path, body, kubectl) in cases() {
            let by_console = by_console(&console, token, &method, &namespace, &path, &body).await?;
            let by_kubectl = by_kubectl(&direct, &kubectl, &namespace, &me).await?;
            cases_seen += 1;
            succeeded += usize::from(by_kubectl.code < 300);
            if by_console != by_kubectl {
                wrong.push(format!(
                    "{who}, {name} {path}:\n  console {by_console:?}\n  kubectl {by_kubectl:?}"
                ));
            }
        }
    }
    ensure!(
        wrong.is_empty(),
        "{place}: {} of {cases_seen} cases end otherwise:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    // Otherwise the comparison shows nothing.
    ensure!(
        succeeded * 3 >= cases_seen,
        "only {succeeded} of {cases_seen} cases succeed"
    );
    Ok(())
}

/// Tokens of ServiceAccounts, one for each person, with the person's roles.
async fn tokens(
    world: &World,
    namespace: &str,
    place: &str,
) -> Result<BTreeMap<&'static str, String>> {
    let accounts: Api<ServiceAccount> = Api::namespaced(world.admin.clone(), namespace);
    let mut tokens = BTreeMap::new();
    let freezes =
        json!([{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "patch"]}]);
    let lead = json!({"kind": "ServiceAccount", "name": "lead", "namespace": namespace});
    world.grant(namespace, "freezer", &freezes, &lead).await?;
    for (who, roles, only) in PEOPLE {
        if only.is_some_and(|only| only != place) {
            continue;
        }
        harness::cluster::objects::create(&accounts, json!({"metadata": {"name": who}})).await?;
        for role in roles {
            let subject = json!({"kind": "ServiceAccount", "name": who, "namespace": namespace});
            let role = format!("pawl-{role}");
            world.bind(namespace, &role, &subject).await?;
            let user = format!("system:serviceaccount:{namespace}:{who}");
            if who != "state-admin" {
                world.until_allowed(&user, namespace, &role).await?;
            }
        }
        let token = world
            .access
            .kubectl(&["create", "token", who, "-n", namespace])?;
        tokens.insert(who, token.trim().to_owned());
    }
    Ok(tokens)
}

/// The console's address. Its requests reach the API server as dry runs.
async fn console(world: &World) -> Result<String> {
    let api_server = front::passing(world, |request| {
        let uri = request.uri().clone();
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let is_review = path.contains("selfsubjectreviews");
        if *request.method() != Method::GET && !is_review {
            let mark = if path.contains('?') { '&' } else { '?' };
            *request.uri_mut() = format!("{path}{mark}dryRun=All")
                .parse()
                .unwrap_or_default();
        }
        None
    });
    Ok(front::started(api_server.await?).await?.1)
}

async fn by_console(
    console: &str,
    token: &str,
    method: &Method,
    namespace: &str,
    path: &str,
    body: &Value,
) -> Result<End> {
    let url = format!("{console}/api/v1/namespaces/{namespace}/{path}");
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let request = reqwest::Client::new()
        .request(method.clone(), url)
        .bearer_auth(token)
        .body(body);
    let response = request.send().await?;
    let code = response.status().as_u16();
    let answer: Value = serde_json::from_slice(&response.bytes().await?).unwrap_or_default();
    let mut objects = ["run", "layer", "repository"]
        .iter()
        .map(|kind| &answer[kind]);
    let object = objects.find(|object| !object.is_null());
    Ok(End {
        // A namespace and a state have no page.
        code: if code == 204 { 200 } else { code },
        words: answer["detail"].as_str().unwrap_or_default().to_owned(),
        annotations: annotations(object.unwrap_or(&Value::Null)),
    })
}

/// The annotations of an object, without the time in one of them.
fn annotations(object: &Value) -> Value {
    let mut all = object["metadata"]["annotations"].clone();
    if let Some(at) = all.get_mut(names::RECONCILE) {
        *at = "now".into();
    }
    all
}

async fn by_kubectl(client: &Client, act: &Kubectl, namespace: &str, me: &str) -> Result<End> {
    let send = async |method: Method, url: &str, kind: &str, body: String| {
        let mut url = url.replace("NS", namespace);
        if method != Method::GET {
            url.push_str("?dryRun=All");
        }
        let request = http::Request::builder()
            .method(method)
            .uri(url)
            .header("content-type", format!("application/{kind}json"))
            .body(body.into_bytes())?;
        let (code, words, annotations) = match client.request::<Value>(request).await {
            Ok(object) => (200, String::new(), annotations(&object)),
            // Without a datastore the API server does not serve the group.
            Err(kube::Error::Api(status)) if status.message.contains("404 page not found") => {
                (503, UNSERVED.to_owned(), Value::Null)
            }
            Err(kube::Error::Api(status)) => (status.code, status.message.clone(), Value::Null),
            Err(error) => return Err(error).context("no answer"),
        };
        Ok(End {
            code,
            words,
            annotations,
        })
    };
    match act {
        Kubectl::Get(url) => send(Method::GET, url, "", String::new()).await,
        Kubectl::Post(url, body) => send(Method::POST, url, "", body.to_string()).await,
        Kubectl::Patch(url, annotations) => {
            let patch = json!({"metadata": {"annotations": annotations}}).to_string();
            let end = send(Method::PATCH, url, "merge-patch+", patch).await?;
            Ok(End {
                annotations: Value::Null,
                ..end
            })
        }
        // It reads the object first.
        Kubectl::Annotate(url, annotations) => {
            let read = send(Method::GET, url, "", String::new()).await?;
            if read.code >= 300 {
                return Ok(read);
            }
            let patch = json!({"metadata": {"annotations": annotations}}).to_string();
            let patch = patch.replace("\"ME\"", &json!(me).to_string());
            send(Method::PATCH, url, "merge-patch+", patch).await
        }
    }
}
