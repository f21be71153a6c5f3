//! Lists, inbox and live updates of the web console, for two people of different rights.

use anyhow::{Context as _, Result, ensure};
use crds::TerraformLayer;
use harness::{cluster::objects, wait};
use kube::Api;
use reqwest::{Client, Response};
use serde_json::{Value, json};

use crate::{
    console::{self, front, person},
    world::{PATIENCE, World, plan, tests},
};

tests! {
    Guarded: lists_and_stream_show_what_roles_give,
}

/// The console in this process, with the rights of its account, on a loopback address.
struct Served {
    url: String,
    http: Client,
}

impl Served {
    async fn start(world: &World, namespaces: &[&str]) -> Result<Self> {
        let (console, url) = front::started(console::api_server(world).await?).await?;
        let client = world.process("pawl-server").await?;
        for namespace in namespaces {
            console.rows.watch(&client, Some(namespace), Vec::new());
        }
        Ok(Self {
            url: format!("{url}/api/v1"),
            http: Client::builder().no_proxy().build()?,
        })
    }

    async fn get(&self, token: &str, path: &str) -> Result<Value> {
        let request = self.http.get(format!("{}/{path}", self.url));
        let text = request.bearer_auth(token).send().await?.text().await?;
        Ok(serde_json::from_str(&text)?)
    }

    async fn stream(&self, token: &str, topics: &str, after: Option<&str>) -> Result<Events> {
        let request = self.http.get(format!("{}/stream?{topics}", self.url));
        let mut request = request.bearer_auth(token);
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        let response = request.send().await?.error_for_status()?;
        let field = |name: &str| {
            response
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        ensure!(
            field("x-accel-buffering") == Some("no")
                && field("content-type") == Some("text/event-stream")
        );
        Ok(Events {
            response,
            text: String::new(),
        })
    }
}

/// The events of a stream.
struct Events {
    response: Response,
    text: String,
}

impl Events {
    /// Name, data and id of the next event.
    async fn next(&mut self) -> Result<(String, Value, Option<String>)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let mut lines = event.lines();
                    lines
                        .find_map(|line| line.strip_prefix(name))
                        .map(|value| value.trim().to_owned())
                };
                let told = (field("event:"), field("data:"), field("id:"));
                let rest = rest.to_owned();
                self.text = rest;
                if let (Some(event), Some(data), id) = told {
                    return Ok((event, serde_json::from_str(&data)?, id));
                }
                continue;
            }
            let chunk = tokio::time::timeout(PATIENCE, self.response.chunk()).await??;
            self.text += std::str::from_utf8(&chunk.context("the stream ended")?)?;
        }
    }
}

async fn lists_and_stream_show_what_roles_give(world: World) -> Result<()> {
    let (a, b) = (world.namespace().await?, world.namespace().await?);
    let (mine, both) = ([a.as_str()], [a.as_str(), b.as_str()]);
    let approver = person(&world, &mine, "ada", "pawl-approver").await?;
    let viewer = person(&world, &both, "bob", "pawl-viewer").await?;
    for namespace in both {
        world.create(namespace, "waits", &json!({})).await?;
        world.create(namespace, "starts", &json!({})).await?;
        world
            .status(namespace, "waits", &json!({"phase": "Pending"}))
            .await?;
        let agent = world.open(namespace, "waits", 1).await?;
        agent.plans(1).await?;
        let waits = json!({"phase": "AwaitingApproval", "plan": plan(1, 'a')});
        agent.status(&waits).await?;
        let layers: Api<TerraformLayer> = Api::namespaced(world.admin.clone(), namespace);
        let layer = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformLayer", "metadata": {"name": "net"},
            "spec": {"repository": {"name": "code"}, "path": "net"}});
        objects::create(&layers, layer).await?;
    }
    let served = Served::start(&world, &both).await?;
    let total = async |token: &str, path: &str| {
        Ok::<_, anyhow::Error>(served.get(token, path).await?["total"].as_u64())
    };
    wait::until("the rows and the rights are known", PATIENCE, async || {
        let all = (
            total(&viewer, "runs").await?,
            total(&viewer, "layers").await?,
            total(&approver, "runs").await?,
        );
        Ok(all == (Some(4), Some(2), Some(2)))
    })
    .await?;
    let page = served.get(&approver, "runs?sort=name&limit=1").await?;
    ensure!(
        page["items"][0]["name"] == "starts" && page["total"] == 2,
        "{page}"
    );
    ensure!(!page.to_string().contains(&b), "{page}");
    let next = page["next"].as_str().context("no cursor")?;
    let page = served
        .get(&approver, &format!("runs?sort=name&limit=1&cursor={next}"))
        .await?;
    ensure!(
        page["items"][0]["name"] == "waits" && page["next"].is_null(),
        "{page}"
    );
    let layers = served.get(&approver, "layers?q=net").await?;
    ensure!(
        layers["total"] == 1 && !layers.to_string().contains(&b),
        "{layers}"
    );
    // A viewer may approve nothing.
    let needs = async |token: &str| {
        Ok::<_, anyhow::Error>(served.get(token, "inbox").await?["needs"].clone())
    };
    let (of_approver, of_viewer) = (needs(&approver).await?, needs(&viewer).await?);
    ensure!(
        of_approver[0]["why"] == "AwaitingApproval" && of_approver[0]["run"]["namespace"] == a,
        "{of_approver}"
    );
    ensure!(
        of_approver[1].is_null() && of_viewer[0].is_null(),
        "{of_approver} {of_viewer}"
    );
    // The change in the other namespace comes first, and is not sent.
    let mut events = served.stream(&approver, "topic=runs", None).await?;
    let (open, _, id) = events.next().await?;
    ensure!(open == "open" && id.is_some(), "{open} {id:?}");
    let mut agents = Vec::new();
    for namespace in [&b, &a] {
        let pending = json!({"phase": "Pending", "message": "m"});
        world.status(namespace, "starts", &pending).await?;
        let agent = world.open(namespace, "starts", 1).await?;
        agent.status(&agent.adoption(1, '0')).await?;
        agents.push(agent);
    }
    let (row, data, id) = events.next().await?;
    ensure!(
        row == "row" && data["namespace"] == a && data["name"] == "starts",
        "{row} {data}"
    );
    drop(events);
    let seen = id.context("no id")?;
    let agent = agents.pop().context("no agent")?;
    agent.status(&json!({"phase": "Init"})).await?;
    let mut events = served.stream(&approver, "topic=runs", Some(&seen)).await?;
    let (_, data, _) = loop {
        let next = events.next().await?;
        ensure!(next.0 != "resync", "nothing was missed");
        if next.1["row"]["phase"] == "Init" {
            break next;
        }
    };
    ensure!(data["namespace"] == a, "{data}");
    let mut events = served.stream(&viewer, "topic=runs", Some("0-7")).await?;
    let (again, ..) = events.next().await?;
    ensure!(again == "resync", "another process counted: {again}");
    Ok(())
}
