//! The console behind nginx, as ingress-nginx sets it up by default: each page and answer, the stream, each way to log in.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use axum::{body::Body, extract::Request, response::Response};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use futures::{StreamExt as _, stream};
use harness::{
    cluster::{
        control_plane::free_ports,
        pki::{Identity, Pki},
    },
    wait,
};
use reqwest::{Certificate, Client, Method, header, redirect::Policy};
use serde_json::{Value, json};
use servers::nginx::{self, BASE, Nginx};
use tempfile::TempDir;
use tokio::sync::mpsc;
use web_console::{api_server::ApiServer, settings::Settings};

use super::{Served, account, api_server, cookies, front, read, settings, token, told};
use crate::world::{PATIENCE, World, tests};

tests! {
    Guarded: pages_and_answers_pass_nginx_as_they_are,
    Guarded: each_login_passes_nginx_or_is_refused_by_name,
    Guarded: stream_is_live_behind_nginx,
    Guarded: plan_and_log_larger_than_buffers_pass_nginx,
}

/// A console behind nginx, at an https URL with a base path.
pub(super) struct Behind {
    pub(super) served: Served,
    pub(super) nginx: Nginx,
    /// The URL that people use.
    pub(super) url: String,
    pub(super) http: Client,
    /// PEM of nginx's authority.
    pub(super) authority: String,
    _directory: TempDir,
}

impl Behind {
    async fn start(world: &World, strips: bool) -> Result<Self> {
        let proxy = nginx::Settings {
            strips,
            ..nginx::Settings::default()
        };
        Self::with(world, proxy, api_server(world).await?, async |_| Ok(())).await
    }

    /// With more settings, and people who reach this API server.
    pub(super) async fn with(
        world: &World,
        proxy: nginx::Settings<'_>,
        api_server: ApiServer,
        set: impl AsyncFnOnce(&mut Settings) -> Result<()>,
    ) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let pki = Pki::bare(directory.path(), "ingress")?;
        let pair = pki.issue(Identity {
            file: "ingress",
            user: "ingress",
            group: "ingress",
            hosts: &["127.0.0.1"],
        })?;
        let port = free_ports(1)?[0];
        let url = format!("https://127.0.0.1:{port}{BASE}");
        let mut settings = settings(&url)?;
        settings.behind_tls_proxy = vec!["127.0.0.0/8".parse()?];
        set(&mut settings).await?;
        let served = Served::reading(world, settings, api_server).await?;
        let nginx = Nginx::start(port, &pair, &served.host, proxy)?;
        let http = Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .tls_certs_merge([Certificate::from_pem(pki.authority().as_bytes())?])
            .build()?;
        Ok(Self {
            served,
            nginx,
            url,
            http,
            authority: pki.authority(),
            _directory: directory,
        })
    }

    /// A change of a page of the console, by a browser.
    pub(super) fn change(&self, path: &str, body: &Value) -> reqwest::RequestBuilder {
        let origin = self.url.trim_end_matches(BASE);
        self.http
            .request(Method::POST, format!("{}/api/v1/{path}", self.url))
            .header("sec-fetch-site", "same-origin")
            .header("origin", origin)
            .header("pawl-request", "1")
            .body(body.to_string())
    }

    pub(super) async fn me(&self, cookie: &str) -> Result<(u16, Value)> {
        let request = self.http.get(format!("{}/api/v1/me", self.url));
        read(request.header(header::COOKIE, cookie).send().await?).await
    }

    fn get(&self, path: &str, token: &str) -> reqwest::RequestBuilder {
        let request = self.http.get(format!("{}/api/v1/{path}", self.url));
        request.bearer_auth(token)
    }
}

async fn pages_and_answers_pass_nginx_as_they_are(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let (accounts, user) = account(&world, &namespace, "ada").await?;
    world.person(&user, &namespace, "pawl-author").await?;
    world.create(&namespace, "run", &json!({})).await?;
    let good = token(&accounts, "ada", &[]).await?;
    for strips in [false, true] {
        let behind = Behind::start(&world, strips).await?;
        let served = &behind.served;
        let direct = |method: Method, path: &str| {
            let request = served.http.request(method, format!("{}{path}", served.url));
            request
                .header("x-forwarded-proto", "https")
                .header("host", "127.0.0.1")
        };
        let response = behind
            .change("login/token", &json!({"token": good}))
            .send()
            .await?;
        let cookie = cookies(&response)?;
        ensure!(response.status() == 200, "{}", response.status());
        let mut paths: Vec<(Method, String)> = [
            "/",
            "/layers",
            "/layers/a/b",
            "/runs?phase=Plan&q=a%20b",
            &format!("/runs/{namespace}/run?log=plan"),
            "/repositories",
            "/repositories/a/b",
            "/queue",
            "/me",
            "/login?to=%2Fruns%2Fa%2Fb%3Fq%3Da%2520b",
            "/login/oidc?next=/runs",
            "/login/oidc/callback?code=a&state=b",
            "/none/of/ours",
        ]
        .map(|path| (Method::GET, path.to_owned()))
        .into();
        // The assets that the page names.
        let page = direct(Method::GET, "/").send().await?.text().await?;
        let assets = page.split('"').filter_map(|word| word.strip_prefix(BASE));
        let assets = assets.filter(|path| path.starts_with("/assets/"));
        paths.extend(assets.map(|path| (Method::GET, path.to_owned())));
        let api = direct(Method::GET, "/api/v1/openapi.json").send().await?;
        let (_, api) = read(api).await?;
        for (path, methods) in api["paths"].as_object().context("no paths")? {
            // Sessions have their own test, and a stream does not end.
            if ["/login/", "/codes", "/logout", "/stream"]
                .iter()
                .any(|own| path.starts_with(own))
            {
                continue;
            }
            for method in methods.as_object().context("no methods")?.keys() {
                let name = if method == "get" { "run" } else { "none" };
                let path = path
                    .replace("{namespace}", &namespace)
                    .replace("{name}", name)
                    .replace("{phase}", "plan")
                    .replace("{act}", "cancel")
                    .replace("{state}", "none");
                let method = method.to_uppercase().parse()?;
                paths.push((method, format!("/api/v1{path}")));
            }
        }
        ensure!(paths.len() > 30, "{paths:?}");
        for (method, path) in paths {
            let origin = behind.url.trim_end_matches(BASE);
            let sent = async |request: reqwest::RequestBuilder| -> Result<_> {
                let request = request
                    .header("sec-fetch-site", "same-origin")
                    .header("origin", origin)
                    .header("pawl-request", "1")
                    .header(header::COOKIE, &cookie)
                    .body("{}");
                let response = request.send().await?;
                let mut headers = response.headers().clone();
                // Of the connection, and of the time.
                for name in ["server", "date", "connection", "transfer-encoding"] {
                    headers.remove(name);
                }
                Ok((response.status(), headers, response.bytes().await?))
            };
            let way = behind
                .http
                .request(method.clone(), format!("{}{path}", behind.url));
            let (through, plain) = (sent(way).await?, sent(direct(method.clone(), &path)).await?);
            ensure!(
                through == plain && plain.0 != 502,
                "{method} {path}, stripped {strips}: {through:?}, without a proxy {plain:?}\n{}",
                behind.nginx.log()
            );
        }
    }
    Ok(())
}

/// A token of a ServiceAccount, as large as that of a person in `groups` groups: each further audience is as long as a group's id.
async fn large(world: &World, namespace: &str, groups: usize) -> Result<String> {
    let accounts = kube::Api::namespaced(world.admin.clone(), namespace);
    let plain = token(&accounts, "ada", &[]).await?;
    let claims = plain.split('.').nth(1).context("no claims")?;
    let claims: Value = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims)?)?;
    let own = claims["aud"][0].as_str().context("no audience")?.to_owned();
    let ids = (0..groups).map(|_| {
        let id: u128 = rand::random();
        format!("{id:032x}")
    });
    let all: Vec<String> = [own].into_iter().chain(ids).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    token(&accounts, "ada", &all).await
}

async fn each_login_passes_nginx_or_is_refused_by_name(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let (_, user) = account(&world, &namespace, "ada").await?;
    let behind = Behind::start(&world, false).await?;
    // With a proxy that passes more.
    let wide = nginx::Settings {
        buffer: "16k",
        ..nginx::Settings::default()
    };
    let wide = Behind::with(
        &world,
        wide,
        api_server(&world).await?,
        async |settings: &mut Settings| {
            settings.proxy_buffer_size = 16 << 10;
            Ok(())
        },
    )
    .await?;
    let (mut passed, mut most) = ([0, 0], [0, 0]);
    for groups in (0..=300).step_by(20) {
        let token = large(&world, &namespace, groups).await?;
        // The console takes ten unknown tokens a second of one address.
        tokio::time::sleep(std::time::Duration::from_millis(150)).await;
        for (index, behind) in [&behind, &wide].into_iter().enumerate() {
            let log_in = behind.change("login/token", &json!({"token": token}));
            let response = log_in.send().await?;
            let cookie = cookies(&response)?;
            let (code, answer) = read(response).await?;
            if code == 413 {
                let words = answer["detail"].as_str().unwrap_or_default();
                ensure!(
                    answer["reason"] == "TokenTooLarge" && cookie.is_empty(),
                    "{answer}"
                );
                let bound = ["proxy-buffer-size: 16k", "a browser sends at most"];
                ensure!(bound.iter().any(|bound| words.contains(bound)), "{words}");
                continue;
            }
            // Use returns all cookies to the console.
            let (again, me) = behind.me(&cookie).await?;
            ensure!(
                (code, again) == (200, 200) && me["user"] == user,
                "{groups} groups: {code} {again} {me} {}",
                behind.nginx.log()
            );
            (passed[index], most[index]) = (groups, cookie.len());
        }
    }
    ensure!(
        passed[0] >= 80 && passed[1] >= 240 && passed[1] < 300,
        "{passed:?} groups, {most:?} bytes of cookies"
    );
    // By a code.
    let token = large(&world, &namespace, 0).await?;
    let codes = behind.http.post(format!("{}/api/v1/codes", behind.url));
    let (code, made) = read(codes.bearer_auth(&token).send().await?).await?;
    ensure!(code == 201, "{code} {made}");
    let link = made["link"].as_str().context("no link")?;
    ensure!(
        link.starts_with(&format!("{}/#code=", behind.url)),
        "{link}"
    );
    let log_in = behind.change("login/code", &json!({"code": made["code"]}));
    let response = log_in.send().await?;
    let cookie = cookies(&response)?;
    let (code, me) = behind.me(&cookie).await?;
    ensure!(code == 200 && me["user"] == user, "{code} {me}");
    let out = behind
        .change("logout", &Value::Null)
        .header(header::COOKIE, &cookie);
    ensure!(out.send().await?.status() == 204);
    ensure!(behind.me(&cookie).await?.0 == 401);
    Ok(())
}

async fn stream_is_live_behind_nginx(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let (accounts, user) = account(&world, &namespace, "ada").await?;
    world.person(&user, &namespace, "pawl-author").await?;
    let token = token(&accounts, "ada", &[]).await?;
    let behind = Behind::start(&world, false).await?;
    let client = world.process("pawl-server").await?;
    let rows = &behind.served.console.rows;
    rows.watch(&client, Some(&namespace), Vec::new());
    world.create(&namespace, "first", &json!({})).await?;
    wait::until("the rows and the rights are known", PATIENCE, async || {
        let (_, page) = read(behind.get("runs", &token).send().await?).await?;
        Ok((page["total"] == 1).then_some(()).ok_or(page))
    })
    .await?;
    let stream = behind.get("stream?topic=runs", &token).send().await?;
    let mut stream = stream.error_for_status()?;
    let mut next = async |wanted: &str| told(&mut stream, &mut String::new(), wanted).await;
    next("event: open").await?;
    // One at a time: an event that waits in a buffer for the next would never arrive.
    for name in ["one", "two", "three"] {
        world.create(&namespace, name, &json!({})).await?;
        next(&format!("\"name\":\"{name}\"")).await?;
    }
    // A quiet stream tells that it lives, long before the proxy would end it.
    let begun = Instant::now();
    next(":\n").await?;
    ensure!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
    Ok(())
}

/// The API server, with a datastore whose log is this text, and whose followed log is what a test sends.
async fn with_datastore(
    world: &World,
    text: &'static str,
    followed: mpsc::Receiver<&'static str>,
) -> Result<ApiServer> {
    let followed = std::sync::Arc::new(std::sync::Mutex::new(Some(followed)));
    let answer = move |request: &mut Request| {
        if !request.uri().path().starts_with("/apis/read.pawl.run/") {
            return None;
        }
        let query = request.uri().query().unwrap_or_default();
        if query.contains("follow=true") {
            let receiver = followed.lock().ok().and_then(|mut it| it.take());
            let pieces = stream::unfold(receiver, async |receiver| {
                let mut receiver = receiver?;
                let piece = receiver.recv().await?;
                Some((Ok::<_, std::convert::Infallible>(piece), Some(receiver)))
            });
            return Some(Response::new(Body::from_stream(pieces.boxed())));
        }
        let mut from = query
            .split('&')
            .filter_map(|pair| pair.strip_prefix("offset="));
        let from = from.next().and_then(|from| from.parse().ok()).unwrap_or(0);
        Some(Response::new(Body::from(&text[from..])))
    };
    front::passing(world, answer).await
}

async fn plan_and_log_larger_than_buffers_pass_nginx(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let (accounts, _) = account(&world, &namespace, "ada").await?;
    let token = token(&accounts, "ada", &[]).await?;
    let lines =
        (0..400_000).map(|line| format!("{line}: a line of a log that is longer than buffers\n"));
    let text: &'static str = lines.collect::<String>().leak();
    let (sender, receiver) = mpsc::channel(1);
    let api_server = with_datastore(&world, text, receiver).await?;
    let proxy = nginx::Settings::default();
    let behind = Behind::with(&world, proxy, api_server, async |_| Ok(())).await?;
    let run = format!("namespaces/{namespace}/runs/run");
    for (path, from) in [
        ("plan", 0),
        ("changes", 0),
        ("log/plan", 0),
        ("log/plan?attempt=1&offset=20000001", 20_000_001),
    ] {
        let response = behind.get(&format!("{run}/{path}"), &token).send().await?;
        let length = response.content_length();
        let answer = response.error_for_status()?.text().await?;
        ensure!(
            answer == text[from..] && length == Some(answer.len() as u64),
            "{path}: {} bytes of {length:?}",
            answer.len()
        );
    }
    let follow = format!("{run}/log/plan?attempt=1&follow=1");
    // By HTTP/2 nginx holds the head until the first byte of the body.
    let (response, sent) = tokio::join!(behind.get(&follow, &token).send(), sender.send("first\n"));
    sent?;
    let mut response = response?.error_for_status()?;
    ensure!(
        response.version() == http::Version::HTTP_2,
        "as browsers do"
    );
    let first = response.chunk().await?;
    ensure!(first.as_deref() == Some(b"first\n"), "{first:?}");
    for piece in ["two\n", "three\n"] {
        sender.send(piece).await?;
        let arrived = tokio::time::timeout(PATIENCE, response.chunk()).await??;
        ensure!(arrived.as_deref() == Some(piece.as_bytes()), "{arrived:?}");
    }
    drop(sender);
    let rest = tokio::time::timeout(PATIENCE, response.bytes()).await??;
    ensure!(rest.is_empty(), "the log ended: {rest:?}");
    Ok(())
}
