//! Freeze of a namespace and suspension of a layer in the web console, with the rights that roles give.

use anyhow::{Result, ensure};
use crds::TerraformLayer;
use harness::{cluster::objects, wait};
use kube::Api;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    console::{self, front, person},
    world::{PATIENCE, World, tests},
};

tests! {
    Guarded: namespace_is_frozen_by_those_who_may_change_it,
    Guarded: layer_is_suspended_and_resumed_by_its_author,
}

async fn served(world: &World) -> Result<String> {
    Ok(front::started(console::api_server(world).await?).await?.1)
}

/// Code and answer of a request below the namespaces.
async fn ask(url: &str, token: &str, method: Method, path: &str) -> Result<(u16, Value)> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let request = client.request(method, format!("{url}/api/v1/namespaces/{path}"));
    console::read(request.bearer_auth(token).send().await?).await
}

async fn namespace_is_frozen_by_those_who_may_change_it(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let home = [namespace.as_str()];
    let viewer = person(&world, &home, "bob", "pawl-viewer").await?;
    let operator = person(&world, &home, "eve", "pawl-viewer").await?;
    let rules =
        json!([{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "patch"]}]);
    let eve = json!({"kind": "ServiceAccount", "name": "eve", "namespace": namespace});
    world.grant(&namespace, "freezer", &rules, &eve).await?;
    let url = served(&world).await?;
    wait::until("the role is known", PATIENCE, async || {
        let (code, page) = ask(&url, &operator, Method::GET, &namespace).await?;
        Ok((code == 200 && page["frozen"] == false)
            .then_some(())
            .ok_or(page))
    })
    .await?;
    let freeze = format!("{namespace}/acts/freeze");
    let (code, refused) = ask(&url, &viewer, Method::POST, &freeze).await?;
    ensure!(code == 403, "{code} {refused}");
    let (code, answer) = ask(&url, &operator, Method::POST, &freeze).await?;
    ensure!(code == 204, "{code} {answer}");
    let (_, page) = ask(&url, &operator, Method::GET, &namespace).await?;
    ensure!(
        page["frozen"] == true && page["acts"][0]["act"] == "unfreeze",
        "{page}"
    );
    // A viewer is not told, and is offered both.
    let (code, page) = ask(&url, &viewer, Method::GET, &namespace).await?;
    ensure!(
        code == 200 && page["frozen"].is_null() && page["acts"][1]["act"] == "unfreeze",
        "{page}"
    );
    let unfreeze = format!("{namespace}/acts/unfreeze");
    let (code, answer) = ask(&url, &operator, Method::POST, &unfreeze).await?;
    ensure!(code == 204, "{code} {answer}");
    let (_, page) = ask(&url, &operator, Method::GET, &namespace).await?;
    ensure!(page["frozen"] == false, "{page}");
    Ok(())
}

async fn layer_is_suspended_and_resumed_by_its_author(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let home = [namespace.as_str()];
    let author = person(&world, &home, "ada", "pawl-author").await?;
    let viewer = person(&world, &home, "bob", "pawl-viewer").await?;
    let layers: Api<TerraformLayer> = Api::namespaced(world.admin.clone(), &namespace);
    let layer = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformLayer", "metadata": {"name": "net"},
        "spec": {"repository": {"name": "code"}, "path": "net"}});
    objects::create(&layers, layer).await?;
    let url = served(&world).await?;
    let path = format!("{namespace}/layers/net");
    wait::until("the roles are known", PATIENCE, async || {
        let (code, page) = ask(&url, &author, Method::GET, &path).await?;
        let seen = ask(&url, &viewer, Method::GET, &path).await?.0;
        Ok((code == 200 && seen == 200 && page["runs"].is_array())
            .then_some(())
            .ok_or(page))
    })
    .await?;
    let suspend = format!("{path}/acts/suspend");
    let (code, refused) = ask(&url, &viewer, Method::POST, &suspend).await?;
    ensure!(code == 403, "{code} {refused}");
    let (code, page) = ask(&url, &author, Method::POST, &suspend).await?;
    ensure!(
        code == 200 && page["row"]["state"] == "Suspended",
        "{code} {page}"
    );
    let acts = |page: &Value| page["acts"].to_string();
    ensure!(
        acts(&page).contains("resume") && !acts(&page).contains("Plan now"),
        "{page}"
    );
    let (code, page) = ask(&url, &author, Method::POST, &format!("{path}/acts/resume")).await?;
    ensure!(
        code == 200 && page["row"]["state"] != "Suspended",
        "{code} {page}"
    );
    Ok(())
}
