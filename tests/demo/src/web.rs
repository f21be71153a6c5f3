//! The web console of the demo: a loopback address that outlives the demo, and links that log in once.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use harness::cluster::{NAMESPACE as PAWL, cache, objects};

use super::stack::NAMESPACE;

/// The account of the demo's person in the browser, with the rights to write and approve runs in the demo's namespace.
const PERSON: &str = "visitor";
const ROLES: [&str; 2] = ["pawl-author", "pawl-approver"];
/// How long the person's token is valid, in seconds.
const LIFETIME: i64 = 8 * 3600;

/// Lets the demo's servers connect to the cluster's console.
pub(super) async fn connect(client: &Client, target: &Path) -> Result<()> {
    let services: Api<Service> = Api::namespaced(client.clone(), PAWL);
    let service = services.get("pawl-web").await?.spec.unwrap_or_default();
    let address = service.cluster_ip.context("the console has no address")?;
    cache::write(target, format!("{address}:80"))
}

/// A link to a page that logs the demo's person in, once.
pub(super) async fn link(client: &Client, web: SocketAddr, page: &str) -> Result<String> {
    let token = token(client).await?;
    let http = reqwest::Client::builder().no_proxy().build()?;
    let answer = http
        .post(format!("http://{web}/api/v1/codes"))
        .bearer_auth(token)
        .send()
        .await
        .and_then(reqwest::Response::error_for_status)
        .context("the web console gives no code for a login")?;
    let answer: Value = serde_json::from_str(&answer.text().await?)?;
    let code = answer["code"]
        .as_str()
        .context("an answer without a code")?;
    Ok(format!("http://{web}/{page}#code={code}"))
}

async fn token(client: &Client) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), NAMESPACE);
    if accounts.get_opt(PERSON).await?.is_none() {
        objects::create(&accounts, json!({"metadata": {"name": PERSON}})).await?;
    }
    for role in ROLES {
        let name = format!("{PERSON}-{role}");
        if bindings.get_opt(&name).await?.is_none() {
            let binding = json!({
                "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "ServiceAccount", "name": PERSON, "namespace": NAMESPACE}],
            });
            objects::create(&bindings, binding).await?;
        }
    }
    let request = TokenRequest {
        spec: TokenRequestSpec {
            expiration_seconds: Some(LIFETIME),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let made = accounts
        .create_token_request(PERSON, &PostParams::default(), &request)
        .await?;
    Ok(made.status.context("no token")?.token)
}
