//! `controller server`: the rights of its account, and webhooks of a real forge.

use std::sync::Arc;

use ::controller::server::{self, notifier, receiver::Receiver};
use anyhow::{Context, Result, ensure};
use crds::{TerraformRepository, clock::ServerClock, names};
use harness::{cluster::objects, guide::block, wait};
use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    core::v1::{Secret, ServiceAccount},
};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    core::DeserializeGuard,
};
use serde_json::{Value, json};
use servers::gitea::Gitea;
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use web_console::pages::repository::Verdict;

use crate::{
    scene::Scene,
    world::{PATIENCE, World, tests},
};

tests! {
    Guarded: server_requests_reconciles_and_nothing_else,
    Guarded: delivery_requests_once_until_answered,
    Guarded: guide_leads_to_a_delivery,
    Guarded: gitea_push_requests_reconcile,
    Guarded: deliveries_need_a_token_and_a_right,
}

const ACCOUNT: &str = "system:serviceaccount:pawl-system:pawl-server";
const SECRET: &str = "a secret of tests";

/// A namespace with a repository whose webhooks are authenticated with a Secret.
async fn repository(world: &World) -> Result<(Api<TerraformRepository>, String, String)> {
    let namespace = world.namespace().await?;
    let secrets: Api<Secret> = Api::namespaced(world.admin.clone(), &namespace);
    let secret = json!({"metadata": {"name": "hook"}, "stringData": {"secret": SECRET}});
    objects::create(&secrets, secret).await?;
    let repositories: Api<TerraformRepository> = Api::namespaced(world.admin.clone(), &namespace);
    let repository = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRepository",
        "metadata": {"name": "net", "labels": {"a": "b"}, "annotations": {"a": "b"}},
        "spec": {"url": "https://git.example.org/net", "webhook": {"secretRef": {"name": "hook"}}}});
    let made = objects::create(&repositories, repository).await?;
    Ok((repositories, namespace, made.uid().context("no UID")?))
}

async fn server_requests_reconciles_and_nothing_else(world: World) -> Result<()> {
    const NET: &str = "repository/net";
    let (_, namespace, uid) = repository(&world).await?;
    let mut scene = Scene::within(world, namespace).await?;
    scene.add(
        "server",
        scene.world.access.impersonate(ACCOUNT, &[]).await?,
    );
    scene
        .refuses(
            "server",
            NET,
            json!({"merge": {"metadata": {"labels": {"a": "c"}}}}),
            "'pawl-server'",
        )
        .await?;
    let request = |value: &str| json!({"uid": uid, "annotations": {names::RECONCILE: value}});
    let time = "2026-11-24T10:00:01Z";
    let with = |mut metadata: Value| {
        metadata["annotations"][names::RECONCILE] = time.into();
        json!({"metadata": metadata})
    };
    let with_spec =
        |spec: Value| json!({"metadata": {"annotations": {names::RECONCILE: time}}, "spec": spec});
    let owner = json!({"apiVersion": "v1", "kind": "Secret", "name": "x", "uid": "x"});
    // A recreated repository has another UID.
    let other = json!({"uid": "0b9c1a4e-0000-4000-8000-000000000001", "annotations": {names::RECONCILE: time}});
    let (alone, a_time) = ("changes nothing else", "writes a time");
    let fine = "2026-11-24T10:00:00.123456789Z";
    let rows = json!([
        ["a request", "server", {"merge": {"metadata": request("2026-11-24T10:00:00Z")}}, ""],
        ["a request to the nanosecond", "server", {"merge": {"metadata": request(fine)}}, ""],
        ["an annotation", "server", {"merge": with(json!({"annotations": {"a": "c"}}))}, alone],
        ["an annotation removed", "server", {"merge": with(json!({"annotations": {"a": null}}))}, alone],
        ["an approval", "server", {"merge": with(json!({"annotations": {"pawl.run/approve": "x"}}))}, alone],
        ["a label removed", "server", {"merge": with(json!({"labels": {"a": null}}))}, alone],
        ["a layer's label", "server", {"merge": with(json!({"labels": {"pawl.run/layer": "x"}}))}, alone],
        ["a finalizer", "server", {"merge": with(json!({"finalizers": ["pawl.run/x"]}))}, alone],
        ["an owner", "server", {"merge": with(json!({"ownerReferences": [owner]}))}, alone],
        ["the URL", "server", {"merge": with_spec(json!({"url": "https://evil.example.org/net"}))}, alone],
        ["the webhook", "server", {"merge": with_spec(json!({"webhook": null}))}, alone],
        ["suspension", "server", {"merge": with_spec(json!({"suspend": true}))}, alone],
        ["a request removed", "server", {"annotate": {names::RECONCILE: null}}, alone],
        ["a command", "server", {"merge": {"metadata": request("$(reboot)")}}, a_time],
        ["nothing", "server", {"merge": {"metadata": request("")}}, a_time],
        ["a long number", "server", {"merge": {"metadata": request(&"1".repeat(41))}}, a_time],
        ["a word", "server", {"merge": {"metadata": request("now")}}, a_time],
        ["another UID", "server", {"merge": {"metadata": other}}, "uid"],
        ["status", "server", {"status": {"lastHandledReconcile": "x"}}, "cannot patch resource"],
        ["deletion", "server", {"delete": ""}, "cannot delete resource"],
    ]);
    scene.rows(NET, rows).await?;
    let rows = json!([
        ["get", "server", {"get": ""}, "cannot get resource"],
        ["list", "server", {"list": null}, "cannot list resource"],
    ]);
    scene.rows("secret/hook", rows).await?;
    let rows = json!([["creation", "server", {"create": {}}, "cannot create resource"]]);
    scene.rows("a", rows).await?;
    // The policy refuses even granted rights.
    let subject =
        json!({"kind": "ServiceAccount", "name": "pawl-server", "namespace": "pawl-system"});
    scene
        .world
        .bind(&scene.namespace, "cluster-admin", &subject)
        .await?;
    scene
        .eventually("server", "secret/hook", json!({"get": ""}))
        .await?;
    let nothing = "does nothing else";
    let rows = json!([
        ["status", "server", {"status": {"lastHandledReconcile": "x"}}, nothing],
        ["deletion", "server", {"delete": ""}, nothing],
    ]);
    scene.rows(NET, rows).await?;
    let rows = json!([["creation", "server", {"create": {}}, nothing]]);
    scene.rows("a", rows).await?;
    let rows = json!([["creation", "server", {"create": {}}, nothing]]);
    scene.rows("repository/other", rows).await
}

/// The status of `controller sources` after a poll.
fn answer(request: &str) -> Patch<Value> {
    Patch::Merge(json!({"status": {"lastHandledReconcile": request}}))
}

/// The server in this process, with its account's rights, on two loopback addresses.
struct Server {
    receiver: Arc<Receiver>,
    /// Address for forges.
    address: String,
    /// Address for people.
    admin: String,
    _tasks: JoinSet<()>,
    _stop: watch::Sender<bool>,
}

impl Server {
    async fn start(world: &World, namespace: &str) -> Result<Self> {
        let client = world.process("pawl-server").await?;
        let (receiver, clock) = (
            Arc::new(Receiver::new(client.clone(), ServerClock::default())),
            ServerClock::default(),
        );
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tokio::spawn(watching::follow(
            "repositories",
            watching::scoped::<DeserializeGuard<TerraformRepository>>(&client, Some(namespace)),
            kube::runtime::watcher::Config::default(),
            server::repositories(&receiver),
        ));
        tasks.spawn(notifier::run(
            receiver.clone(),
            client,
            clock,
            stopped.clone(),
        ));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = format!("http://{}", listener.local_addr()?);
        let (router, limits) = (server::receiver::router(receiver.clone()), server::LIMITS);
        tasks.spawn(serving::connections::serve(
            router,
            || (),
            limits,
            listener,
            None,
            stopped,
        ));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let admin = format!("http://{}", listener.local_addr()?);
        let routes = server::admin(receiver.clone());
        tasks.spawn(async move { drop(axum::serve(listener, routes).await) });
        Ok(Self {
            receiver,
            address,
            admin,
            _tasks: tasks,
            _stop: stop,
        })
    }

    /// Reads the deliveries of a repository. Returns status code and JSON.
    async fn read(&self, token: Option<&str>, namespace: &str, name: &str) -> Result<(u16, Value)> {
        let url = format!(
            "{}/api/v1/namespaces/{namespace}/repositories/{name}/deliveries",
            self.admin
        );
        let mut request = reqwest::Client::builder().no_proxy().build()?.get(url);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await?;
        Ok((
            response.status().as_u16(),
            serde_json::from_str(&response.text().await?)?,
        ))
    }

    /// Delivers a webhook of the repository with this UID. Returns the status code.
    async fn post(&self, uid: &str, secret: &str, id: &str) -> Result<u16> {
        let http = reqwest::Client::builder().no_proxy().build()?;
        let request = http
            .post(format!("{}/hooks/{uid}", self.address))
            .bearer_auth(secret);
        Ok(request
            .header("x-request-id", id)
            .body("{}")
            .send()
            .await?
            .status()
            .as_u16())
    }

    /// Grants it access to the Secrets of a namespace, and waits until that takes effect.
    async fn may_read(&self, world: &World, namespace: &str) -> Result<()> {
        let subject =
            json!({"kind": "ServiceAccount", "name": "pawl-server", "namespace": "pawl-system"});
        world
            .bind(namespace, "pawl-server-secrets", &subject)
            .await?;
        let secrets: Api<Secret> =
            Api::namespaced(world.access.impersonate(ACCOUNT, &[]).await?, namespace);
        wait::until("it may read", PATIENCE, async || {
            Ok(secrets.get("hook").await)
        })
        .await
        .map(drop)
    }
}

/// Waits for a request other than `not`.
async fn requested(repositories: &Api<TerraformRepository>, not: &str) -> Result<String> {
    let request = async || {
        Ok(repositories
            .get("net")
            .await?
            .annotations()
            .get(names::RECONCILE)
            .cloned()
            .filter(|request| request != not))
    };
    wait::until("a request", PATIENCE, request).await
}

/// Waits for a request and handles it.
async fn answers(repositories: &Api<TerraformRepository>, not: &str) -> Result<String> {
    let request = requested(repositories, not).await?;
    repositories
        .patch_status("net", &PatchParams::default(), &answer(&request))
        .await?;
    Ok(request)
}

async fn delivery_requests_once_until_answered(world: World) -> Result<()> {
    let (repositories, namespace, uid) = repository(&world).await?;
    let server = Server::start(&world, &namespace).await?;
    let post = async |secret: &str, id: &str| server.post(&uid, secret, id).await;
    wait::until("the repositories are listed", PATIENCE, async || {
        Ok(post(SECRET, "0").await? != 503)
    })
    .await?;
    ensure!(
        post(SECRET, "0").await? == 403,
        "the server has no right to Secrets"
    );
    server.may_read(&world, &namespace).await?;
    wait::until("the Secret is read anew", PATIENCE, async || {
        Ok(post(SECRET, "1").await? == 202)
    })
    .await?;
    ensure!(post("wrong", "2").await? == 401);
    let first = requested(&repositories, "").await?;
    // All webhooks before it is handled cause one further request.
    for id in 10..30 {
        ensure!(post(SECRET, &id.to_string()).await? == 202);
    }
    let version = repositories.get("net").await?.resource_version();
    ensure!(
        repositories.get("net").await?.annotations()[names::RECONCILE] == first,
        "it waits for an answer"
    );
    repositories
        .patch_status("net", &PatchParams::default(), &answer(&first))
        .await?;
    let second = answers(&repositories, &first).await?;
    ensure!(second > first && repositories.get("net").await?.resource_version() != version);
    // The next one requests at once, and the earlier ones cause no third.
    ensure!(post(SECRET, "30").await? == 202);
    let third = answers(&repositories, &second).await?;
    let time: jiff::Timestamp = third.parse()?;
    ensure!(time > second.parse::<jiff::Timestamp>()?, "{third}");
    Ok(())
}

/// Runs the page of the guide with another namespace and another address.
async fn guide_leads_to_a_delivery(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let server = Server::start(&world, &namespace).await?;
    let here = |name: &str| -> Result<String> {
        let text = block(name)?
            .replace("-n prod", &format!("-n {namespace}"))
            .replace("namespace: prod", &format!("namespace: {namespace}"))
            .replace("prod:reader", &format!("{namespace}:reader"))
            .replace("namespaces/prod/", &format!("namespaces/{namespace}/"));
        Ok(text
            .replace("https://hooks.example.com", &server.address)
            .replace("http://localhost:8080", &server.admin))
    };
    world.paste(&here("webhook secret")?)?;
    let repositories: Api<TerraformRepository> = Api::namespaced(world.admin.clone(), &namespace);
    let manifest: Value = serde_saphyr::from_str(&here("webhook.yaml")?)?;
    let uid = objects::create(&repositories, manifest)
        .await?
        .uid()
        .context("no UID")?;
    let address = world.paste(&here("webhook address")?)?;
    ensure!(
        address == format!("{}/hooks/{uid}", server.address),
        "{address}"
    );
    // Until the API server knows the right, and the server the repository.
    let by_hand = here("webhook by hand")?;
    wait::until("a delivery by hand is taken", PATIENCE, async || {
        Ok(world.paste(&by_hand)?.contains(r#""verdict":"accepted""#))
    })
    .await?;
    let requested = async || {
        Ok(repositories
            .get("network")
            .await?
            .annotations()
            .contains_key(names::RECONCILE))
    };
    wait::until("a request", PATIENCE, requested).await?;
    world.paste(&here("webhook reader")?)?;
    let reading = here("webhook deliveries")?;
    wait::until("the delivery is read", PATIENCE, async || {
        Ok(world.paste(&reading)?.contains(r#""verdict":"accepted""#))
    })
    .await
}

/// A ServiceAccount's token for an audience; without one, for the API server itself.
async fn token(
    accounts: &Api<ServiceAccount>,
    account: &str,
    audiences: &[&str],
) -> Result<String> {
    let request: TokenRequest =
        serde_json::from_value(json!({"metadata": {}, "spec": {"audiences": audiences}}))?;
    let answer = accounts
        .create_token_request(account, &PostParams::default(), &request)
        .await?;
    Ok(answer.status.context("no token")?.token)
}

async fn deliveries_need_a_token_and_a_right(world: World) -> Result<()> {
    let (_, namespace, uid) = repository(&world).await?;
    let server = Server::start(&world, &namespace).await?;
    server.may_read(&world, &namespace).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(world.admin.clone(), &namespace);
    objects::create(&accounts, json!({"metadata": {"name": "reader"}})).await?;
    let (foreign, own) = (
        token(&accounts, "reader", &[]).await?,
        token(&accounts, "reader", &["pawl-server"]).await?,
    );
    // Until then the API server does not know that the server may review tokens.
    wait::until("a token is reviewed", PATIENCE, async || {
        Ok(server.read(Some(&own), &namespace, "net").await?.0 == 403)
    })
    .await?;
    for token in [None, Some("forged"), Some(foreign.as_str())] {
        let (code, answer) = server.read(token, &namespace, "net").await?;
        ensure!(code == 401, "{token:?}: {code} {answer}");
    }
    let refused = server.read(Some(&own), &namespace, "net").await?;
    ensure!(
        refused.0 == 403 && server.read(Some(&own), &namespace, "no-such").await? == refused,
        "{refused:?}"
    );
    let subject = json!({"kind": "ServiceAccount", "name": "reader", "namespace": namespace});
    world.bind(&namespace, "pawl-viewer", &subject).await?;
    wait::until("it may read", PATIENCE, async || {
        Ok(server.read(Some(&own), &namespace, "net").await?.0 == 200)
    })
    .await?;
    ensure!(
        server.read(Some(&own), &namespace, "no-such").await? == refused,
        "there is no such repository"
    );
    ensure!(server.post(&uid, SECRET, "7").await? == 202);
    let (_, read) = server.read(Some(&own), &namespace, "net").await?;
    let newest = &read["items"][0];
    ensure!(
        newest["id"] == "7"
            && newest["verdict"] == "accepted"
            && newest["repository"] == format!("{namespace}/net"),
        "{read}"
    );
    Ok(())
}

async fn gitea_push_requests_reconcile(world: World) -> Result<()> {
    let Some(tools) = Gitea::tools()? else {
        println!("left out: deliveries of Gitea (it is not built yet; `PAWL_SUITES=1` builds it)");
        return Ok(());
    };
    let (repositories, namespace, uid) = repository(&world).await?;
    let server = Server::start(&world, &namespace).await?;
    server.may_read(&world, &namespace).await?;
    let gitea = Gitea::start(&tools, "127.0.0.1".parse()?, "").await?;
    gitea.create("net").await?;
    gitea
        .hook("net", &format!("{}/hooks/{uid}", server.address), SECRET)
        .await?;
    let sha = gitea.commit("net", "main", "main.tf", "# one\n").await?;
    ensure!(sha.len() == 40, "{sha}");
    let first = answers(&repositories, "")
        .await
        .with_context(|| gitea.log())?;
    let taken = server.receiver.deliveries.of(&namespace, "net");
    let push = taken.first().context("no delivery is shown")?;
    ensure!(
        push.forge == "Gitea"
            && push.event.as_deref() == Some("push")
            && push.verdict == Verdict::Accepted,
        "{taken:?}"
    );
    ensure!(
        push.repository == format!("{namespace}/net")
            && push.id.as_ref().is_some_and(|id| id.len() == 36),
        "{taken:?}"
    );
    // With git, to another branch.
    let folder = tempfile::tempdir()?;
    let git = |arguments: &[&str]| -> Result<()> {
        let mut command = std::process::Command::new("git");
        command
            .current_dir(folder.path())
            .args(["-c", "user.name=t", "-c", "user.email=t@pawl.invalid"])
            .args(arguments);
        command
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("no_proxy", "*");
        let output = command.output()?;
        ensure!(
            output.status.success(),
            "git: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    };
    git(&["clone", "--quiet", &gitea.push_url("net"), "."])?;
    ensure!(std::fs::read_to_string(folder.path().join("main.tf"))? == "# one\n");
    git(&["commit", "--quiet", "--allow-empty", "-m", "two"])?;
    git(&["push", "--quiet", "origin", "HEAD:refs/heads/other"])?;
    let second = answers(&repositories, &first)
        .await
        .with_context(|| gitea.log())?;
    // An issue changes no ref; a hook with another secret is not authentic.
    let issue = json!({"title": "t"});
    gitea
        .api(reqwest::Method::POST, "repos/root/net/issues", &issue)
        .await?;
    let ignored = || {
        server
            .receiver
            .deliveries
            .of(&namespace, "net")
            .iter()
            .any(|one| one.verdict == Verdict::Ignored)
    };
    wait::until("the issue is told of", PATIENCE, async || Ok(ignored())).await?;
    gitea
        .hook("net", &format!("{}/hooks/{uid}", server.address), "another")
        .await?;
    gitea.commit("net", "main", "main.tf", "# three\n").await?;
    let wrong = || {
        server
            .receiver
            .metrics
            .exposition()
            .1
            .contains(r#"refused_total{reason="wrongProof"}"#)
    };
    wait::until("the other hook is refused", PATIENCE, async || Ok(wrong())).await?;
    answers(&repositories, &second).await.map(drop)
}
