//! The console while something that it needs is down: pages name it, show what still works, and come back by themselves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use axum::response::{IntoResponse as _, Response};
use harness::{cluster::access::ACTOR, wait};
use kube::{Client, Config};
use reqwest::{StatusCode, header};
use serde_json::{Value, json};
use servers::proxy::{Proxy, Weather};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::Instant,
};
use web_console::api_server::ApiServer;

use super::{Served, front, oidc, person, read, refuses, settings, told};
use crate::{
    scene::RUN,
    world::{PATIENCE, World, tests},
};

tests! {
    Guarded: outage_of_the_api_server_is_named_and_ends_by_itself,
    Guarded: outage_of_the_datastore_is_named_and_ends_by_itself,
    Guarded: outage_of_the_provider_is_named_and_ends_by_itself,
    Guarded: slow_clients_are_cut_off_and_keep_no_one_out,
}

/// A run, and the session of a person with a role.
struct Page {
    namespace: String,
    cookie: String,
    token: String,
}

impl Page {
    async fn open(world: &World, served: &Served, namespace: String, role: &str) -> Result<Self> {
        let token = person(world, &[&namespace], "ada", role).await?;
        let user = format!("system:serviceaccount:{namespace}:ada");
        world.until_allowed(&user, &namespace, role).await?;
        Ok(Self {
            cookie: served.session(&token).await?,
            namespace,
            token,
        })
    }

    fn get(&self, served: &Served, path: &str) -> reqwest::RequestBuilder {
        let url = format!(
            "{}/api/v1/{}",
            served.url,
            path.replace("NS", &self.namespace)
        );
        served.http.get(url).header(header::COOKIE, &self.cookie)
    }

    async fn code(&self, served: &Served, path: &str) -> Result<(u16, Value)> {
        read(self.get(served, path).send().await?).await
    }

    fn cancel(&self, served: &Served) -> reqwest::RequestBuilder {
        let path = format!("namespaces/{}/runs/{RUN}/acts/cancel", self.namespace);
        let act = served.change(&path, &json!({"comment": "not now"}));
        act.header(header::COOKIE, &self.cookie)
    }
}

/// A problem document with this status, and these words in its detail.
async fn names(request: reqwest::RequestBuilder, status: u16, words: &[&str]) -> Result<()> {
    let response = request.send().await?;
    let kind = response.headers().get(header::CONTENT_TYPE).cloned();
    ensure!(
        response.headers().get(header::SET_COOKIE).is_none(),
        "the session stays"
    );
    let (code, problem) = read(response).await?;
    let detail = problem["detail"].as_str().unwrap_or_default();
    ensure!(
        code == status && kind.is_some_and(|kind| kind == "application/problem+json"),
        "{code} {problem}"
    );
    for word in words {
        ensure!(detail.contains(word), "{word}: {problem}");
    }
    Ok(())
}

async fn outage_of_the_api_server_is_named_and_ends_by_itself(world: World) -> Result<()> {
    let server = world.access.server.trim_start_matches("https://").parse()?;
    let proxy = Proxy::start("127.0.0.1:0".parse()?, server).await?;
    let through = async |account: Option<&str>| -> Result<Config> {
        let mut config = world.access.config().await?;
        config.cluster_url = format!("https://{}", proxy.addr()).parse()?;
        config.headers.push((header::USER_AGENT, ACTOR.parse()?));
        config.auth_info.impersonate =
            account.map(|name| format!("system:serviceaccount:pawl-system:{name}"));
        Ok(config)
    };
    let api_server = ApiServer::without_credentials(through(None).await?)?;
    let served = Served::reading(&world, settings("http://127.0.0.1:8444")?, api_server).await?;
    let namespace = world.namespace().await?;
    world.create(&namespace, RUN, &json!({})).await?;
    let watches = Client::try_from(through(Some("pawl-server")).await?)?;
    let console = &served.console;
    console.rows.watch(&watches, Some(&namespace), Vec::new());
    tokio::spawn(web_console::away::follow(console.clone()));
    let page = Page::open(&world, &served, namespace, "pawl-approver").await?;
    let run = format!("namespaces/NS/runs/{RUN}");
    wait::until("the row is there", PATIENCE, async || {
        let (_, list) = page.code(&served, "runs").await?;
        Ok(if list["total"] == 1 {
            Ok(())
        } else {
            Err(list)
        })
    })
    .await?;
    let mut stream = page.get(&served, "stream?topic=runs").send().await?;
    let mut text = String::new();
    told(&mut stream, &mut text, "event: open").await?;

    proxy.set(Weather::Cut);
    let words = [
        "API server did not respond",
        "last known rows",
        "nothing is known to have changed",
    ];
    names(page.get(&served, &run), 502, &words).await?;
    names(page.cancel(&served), 502, &words).await?;
    names(
        served.log_in("ey.another.token"),
        502,
        &["API server", "no one can log in"],
    )
    .await?;
    let (code, list) = page.code(&served, "runs").await?;
    ensure!(code == 200 && list["total"] == 1, "{code} {list}");
    told(&mut stream, &mut text, "event: away\ndata: true").await?;

    proxy.set(Weather::Fair);
    told(&mut stream, &mut text, "event: away\ndata: false").await?;
    let (code, read) = page.code(&served, &run).await?;
    ensure!(code == 200, "{code} {read}");
    served.session(&page.token).await?;
    world.create(&page.namespace, "another", &json!({})).await?;
    told(&mut stream, &mut text, "\"name\":\"another\"").await
}

const UP: u8 = 0;
/// The extension server does not answer.
const DOWN: u8 = 1;
/// The API server has taken the group out of service.
const UNSERVED: u8 = 2;

/// The API server's answer for the datastore in such a state.
fn aggregated(state: u8) -> Response {
    match state {
        UP => "Plan: 1 to add".into_response(),
        DOWN => {
            let text = "error trying to reach service: dial tcp 10.96.0.9:443: connect: connection refused\n";
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
        _ => (StatusCode::NOT_FOUND, "404 page not found\n").into_response(),
    }
}

async fn outage_of_the_datastore_is_named_and_ends_by_itself(world: World) -> Result<()> {
    let state = Arc::new(AtomicU8::new(UP));
    let is = state.clone();
    let api_server = front::passing(&world, move |request| {
        let path = request.uri().path();
        path.starts_with("/apis/read.pawl.run/")
            .then(|| aggregated(is.load(Ordering::Relaxed)))
    })
    .await?;
    let served = Served::reading(&world, settings("http://127.0.0.1:8444")?, api_server).await?;
    let namespace = world.namespace().await?;
    world.create(&namespace, RUN, &json!({})).await?;
    let page = Page::open(&world, &served, namespace, "pawl-approver").await?;
    let plan = format!("namespaces/NS/runs/{RUN}/plan");
    for is in [UP, DOWN, UNSERVED, UP] {
        state.store(is, Ordering::Relaxed);
        if is == UP {
            let (code, _) = page.code(&served, &plan).await?;
            ensure!(code == 200, "{code}");
        } else {
            let words = ["datastore", "objects and acts work meanwhile"];
            for path in [plan.clone(), format!("namespaces/NS/runs/{RUN}/log/plan")] {
                names(page.get(&served, &path), 503, &words).await?;
            }
        }
        let (code, run) = page
            .code(&served, &format!("namespaces/NS/runs/{RUN}"))
            .await?;
        ensure!(code == 200, "{code} {run}");
        let (code, run) = read(page.cancel(&served).send().await?).await?;
        ensure!(code == 200, "{code} {run}");
    }
    Ok(())
}

async fn outage_of_the_provider_is_named_and_ends_by_itself(world: World) -> Result<()> {
    let issuer = oidc::Issuer::new()?;
    let served = oidc::served(&world, &issuer).await?;
    let page = Page::open(&world, &served, world.namespace().await?, "pawl-viewer").await?;
    let login = format!("{}/login/oidc", served.url);
    let (code, cookie, _, text) = oidc::visit(&served, &login, &page.cookie).await?;
    ensure!(
        code == 502 && text.contains(&issuer.url()) && text.contains("a token logs in meanwhile"),
        "{code} {text}"
    );
    ensure!(cookie.is_empty(), "the session stays: {cookie}");
    ensure!(page.code(&served, "me").await?.0 == 200, "sessions go on");
    served.session(&page.token).await?;
    let _provider = oidc::Provider::start(&issuer).await?;
    wait::until("a login begins", PATIENCE, async || {
        let (code, _, there, text) = oidc::visit(&served, &login, "").await?;
        Ok(if code == 303 && there.starts_with(&issuer.url()) {
            Ok(())
        } else {
            Err(text)
        })
    })
    .await
}

/// Half a head, and half a body.
async fn slow_clients_are_cut_off_and_keep_no_one_out(world: World) -> Result<()> {
    let served = Served::start(&world).await?;
    let page = Page::open(&world, &served, world.namespace().await?, "pawl-viewer").await?;
    let host = &served.host;
    let own = format!("Host: {host}\r\nOrigin: http://{host}\r\nPawl-Request: 1\r\n");
    let halves = [
        format!("GET /api/v1/me HTTP/1.1\r\nHost: {host}\r\nCookie: a"),
        format!("POST /api/v1/login/token HTTP/1.1\r\n{own}Content-Length: 900\r\n\r\n{{"),
    ];
    let begun = Instant::now();
    let mut slow = Vec::new();
    for number in 0..400 {
        let mut stream = TcpStream::connect(host).await?;
        stream.write_all(halves[number % 2].as_bytes()).await?;
        slow.push(stream);
    }
    let quick = tokio::time::timeout(Duration::from_secs(9), page.code(&served, "me")).await?;
    ensure!(quick?.0 == 200, "a person is served meanwhile");
    for mut stream in slow {
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest);
        // A connection that was reset has ended too.
        let _ = tokio::time::timeout(PATIENCE, ended).await?;
        let text = String::from_utf8_lossy(&rest);
        ensure!(text.is_empty() || text.contains(" 408 "), "{text}");
    }
    ensure!(begun.elapsed() > Duration::from_secs(9), "not at once");
    refuses(served.log_in("x"), "InvalidToken").await
}
