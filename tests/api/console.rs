//! The web console on a real API server: who logs in, as whom, and what is refused.

pub(crate) mod front;
pub(crate) mod gitea;
pub(crate) mod ingress;
pub(crate) mod oidc;
pub(crate) mod outages;

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use harness::{
    cluster::{access::ACTOR, objects},
    wait,
};
use k8s_openapi::api::{
    authentication::v1::TokenRequest, core::v1::ServiceAccount, rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use reqwest::{Client, Method, Response, header};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};
use web_console::{
    Console, access::Scope, api_server, person::Person, session, settings::Settings,
};

use crate::world::{PATIENCE, World, tests};

tests! {
    Guarded: token_logs_in_as_its_person,
    Guarded: code_logs_in_once_by_itself,
    Guarded: session_is_refused_after_logout_and_with_another_key,
    Guarded: login_never_keeps_a_session_that_was_planted,
    Guarded: change_from_another_page_is_refused,
    Guarded: forged_proxy_headers_are_not_believed,
    Guarded: smuggled_request_is_not_served,
    Guarded: replicas_fill_the_key_of_sessions_once,
    Guarded: lists_show_the_namespaces_that_roles_give,
}

/// The console in this process, on a loopback address.
struct Served {
    console: Arc<Console>,
    settings: Settings,
    /// The URL on loopback.
    url: String,
    host: String,
    http: Client,
    _serving: JoinHandle<()>,
    _stop: watch::Sender<bool>,
}

/// The API server for a console's people. The requests count as a test's: an account that logs in is no agent.
///
/// # Errors
/// The configuration cannot be used.
pub(crate) async fn api_server(world: &World) -> Result<api_server::ApiServer> {
    let mut config = world.access.config().await?;
    let actor = header::HeaderValue::from_static(ACTOR);
    config.headers.push((header::USER_AGENT, actor));
    api_server::ApiServer::without_credentials(config)
}

impl Served {
    async fn start(world: &World) -> Result<Self> {
        Self::at(world, "http://127.0.0.1:8444").await
    }

    /// A console whose people use this URL.
    async fn at(world: &World, url: &str) -> Result<Self> {
        Self::with(world, settings(url)?).await
    }

    async fn with(world: &World, settings: Settings) -> Result<Self> {
        Self::reading(world, settings, api_server(world).await?).await
    }

    /// A console whose people reach this API server.
    async fn reading(
        world: &World,
        settings: Settings,
        api_server: api_server::ApiServer,
    ) -> Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let secret = session::secret::read(&world.admin, None).await?;
        let console = Console::new(&settings, api_server, &secret, false, stopped.clone())?;
        let console = Arc::new(console);
        let listener = TcpListener::bind(settings.web_listen).await?;
        let host = listener.local_addr()?.to_string();
        let router = web_console::router(console.clone());
        let limits = web_console::LIMITS;
        let serving = serving::connections::serve(router, || (), limits, listener, None, stopped);
        Ok(Self {
            console,
            settings,
            url: format!("http://{host}"),
            host,
            http: Client::builder().no_proxy().build()?,
            _serving: tokio::spawn(serving),
            _stop: stop,
        })
    }

    /// A change of a page of the console.
    fn change(&self, path: &str, body: &Value) -> reqwest::RequestBuilder {
        self.http
            .request(Method::POST, format!("{}/api/v1/{path}", self.url))
            .header("sec-fetch-site", "same-origin")
            .header("origin", &self.url)
            .header("pawl-request", "1")
            .body(body.to_string())
    }

    fn log_in(&self, token: &str) -> reqwest::RequestBuilder {
        self.change("login/token", &json!({"token": token}))
    }

    async fn session(&self, token: &str) -> Result<String> {
        let response = self.log_in(token).send().await?;
        let cookie = cookies(&response)?;
        let (code, me) = read(response).await?;
        ensure!(code == 200, "{code} {me}");
        Ok(cookie)
    }

    async fn me(&self, name: header::HeaderName, value: &str) -> Result<(u16, Value)> {
        let request = self.http.get(format!("{}/api/v1/me", self.url));
        read(request.header(name, value).send().await?).await
    }
}

/// Settings with this URL, on a free port.
fn settings(url: &str) -> Result<Settings> {
    Ok(Settings {
        web_listen: "127.0.0.1:0".parse()?,
        url: url.parse()?,
        session_secret: None,
        behind_tls_proxy: Vec::new(),
        proxy_buffer_size: 4096,
        oidc_issuer: None,
        oidc_client_id: None,
        oidc_client_secret_file: None,
        oidc_ca: None,
        oidc_scopes: Vec::new(),
    })
}

pub(crate) async fn read(response: Response) -> Result<(u16, Value)> {
    let code = response.status().as_u16();
    let text = response.text().await?;
    Ok((code, serde_json::from_str(&text).unwrap_or_default()))
}

fn cookies(response: &Response) -> Result<String> {
    let mut pairs = Vec::new();
    for cookie in response.headers().get_all(header::SET_COOKIE) {
        pairs.extend(cookie.to_str()?.split(';').next());
    }
    Ok(pairs.join("; "))
}

/// Refuses with this reason.
async fn refuses(request: reqwest::RequestBuilder, reason: &str) -> Result<()> {
    let (code, problem) = read(request.send().await?).await?;
    ensure!(
        code >= 400 && problem["reason"] == reason,
        "{reason}: {code} {problem}"
    );
    Ok(())
}

/// A new ServiceAccount; its accounts, and the name of its user.
async fn account(
    world: &World,
    namespace: &str,
    name: &str,
) -> Result<(Api<ServiceAccount>, String)> {
    let accounts: Api<ServiceAccount> = Api::namespaced(world.admin.clone(), namespace);
    objects::create(&accounts, json!({"metadata": {"name": name}})).await?;
    Ok((
        accounts,
        format!("system:serviceaccount:{namespace}:{name}"),
    ))
}

/// As `kubectl create token NAME`.
async fn token(accounts: &Api<ServiceAccount>, name: &str, audiences: &[&str]) -> Result<String> {
    let request: TokenRequest =
        serde_json::from_value(json!({"metadata": {}, "spec": {"audiences": audiences}}))?;
    let answer = accounts
        .create_token_request(name, &PostParams::default(), &request)
        .await?;
    Ok(answer.status.context("no token")?.token)
}

/// The token of a new ServiceAccount with this role in these namespaces, the first of which is its own.
pub(crate) async fn person(
    world: &World,
    namespaces: &[&str],
    name: &str,
    role: &str,
) -> Result<String> {
    let home = namespaces.first().context("no namespace")?;
    let (accounts, _) = account(world, home, name).await?;
    for namespace in namespaces {
        let subject = json!({"kind": "ServiceAccount", "name": name, "namespace": home});
        world.bind(namespace, role, &subject).await?;
    }
    token(&accounts, name, &[]).await
}

/// Reads a stream until it has told this.
async fn told(stream: &mut Response, text: &mut String, word: &str) -> Result<()> {
    let reading = async {
        while !text.contains(word) {
            let chunk = stream.chunk().await?.context("the stream ended")?;
            text.push_str(std::str::from_utf8(&chunk)?);
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, reading)
        .await
        .with_context(|| format!("no {word}"))?
}

async fn token_logs_in_as_its_person(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let served = Served::start(&world).await?;
    let (accounts, user) = account(&world, &namespace, "ada").await?;
    let (good, foreign) = (
        token(&accounts, "ada", &[]).await?,
        token(&accounts, "ada", &["pawl-server"]).await?,
    );
    let cookie = served.session(&format!(" {good}\n")).await?;
    let (code, me) = served.me(header::COOKIE, &cookie).await?;
    ensure!(
        code == 200 && me["user"] == user && me["method"] == "Token",
        "{code} {me}"
    );
    let (code, me) = served
        .me(header::AUTHORIZATION, &format!("Bearer {good}"))
        .await?;
    ensure!(
        code == 200 && me["user"] == user && me["method"] == "Bearer",
        "{code} {me}"
    );
    ensure!(!cookie.contains(&good), "the cookie is encrypted");
    // No anonymous user logs in.
    for bad in [
        "",
        "forged",
        &foreign,
        &good[..good.len() - 4],
        "system:admin",
    ] {
        refuses(served.log_in(bad), "InvalidToken").await?;
        let (code, _) = served
            .me(header::AUTHORIZATION, &format!("Bearer {bad}"))
            .await?;
        ensure!(code == 401, "{bad}: {code}");
    }
    let both = served.log_in(&good).header(header::COOKIE, &cookie);
    refuses(both.bearer_auth(&good), "TwoIdentities").await?;
    // Each console keeps a name for 60 s, so each look is one of a new console.
    accounts.delete("ada", &DeleteParams::default()).await?;
    wait::until("the token is refused", PATIENCE, async || {
        let fresh = Served::start(&world).await?;
        let (code, answer) = fresh.me(header::COOKIE, &cookie).await?;
        ensure!(code == 401, "a cookie of another key: {code}");
        let (code, _) = fresh
            .me(header::AUTHORIZATION, &format!("Bearer {good}"))
            .await?;
        Ok((code == 401).then_some(()).ok_or(answer))
    })
    .await
}

async fn code_logs_in_once_by_itself(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let served = Served::start(&world).await?;
    let (accounts, user) = account(&world, &namespace, "ada").await?;
    let good = token(&accounts, "ada", &[]).await?;
    let codes = served.http.post(format!("{}/api/v1/codes", served.url));
    let (code, made) = read(codes.bearer_auth(&good).send().await?).await?;
    ensure!(code == 201, "{code} {made}");
    let link = made["link"].as_str().context("no link")?;
    ensure!(link.contains("/#code=") && !link.contains(&good), "{link}");
    let log_in = || served.change("login/code", &json!({"code": made["code"]}));
    let (code, me) = read(log_in().send().await?).await?;
    ensure!(code == 200 && me["user"] == user, "{code} {me}");
    refuses(log_in(), "InvalidCode").await?;
    let anonymous = served.http.post(format!("{}/api/v1/codes", served.url));
    refuses(anonymous.bearer_auth("forged"), "Unauthenticated").await
}

async fn session_is_refused_after_logout_and_with_another_key(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let (served, other) = (Served::start(&world).await?, Served::start(&world).await?);
    let (accounts, _) = account(&world, &namespace, "ada").await?;
    let cookie = served.session(&token(&accounts, "ada", &[]).await?).await?;
    ensure!(other.me(header::COOKIE, &cookie).await?.0 == 401);
    let out = served
        .change("logout", &Value::Null)
        .header(header::COOKIE, &cookie);
    let response = out.send().await?;
    ensure!(response.status() == 204, "{}", response.status());
    let (code, _) = served.me(header::COOKIE, &cookie).await?;
    ensure!(code == 401, "a replayed cookie: {code}");
    Ok(())
}

async fn login_never_keeps_a_session_that_was_planted(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let served = Served::start(&world).await?;
    let (accounts, _) = account(&world, &namespace, "eve").await?;
    let (_, ada) = account(&world, &namespace, "ada").await?;
    let planted = served.session(&token(&accounts, "eve", &[]).await?).await?;
    let log_in = served.log_in(&token(&accounts, "ada", &[]).await?);
    let response = log_in.header(header::COOKIE, &planted).send().await?;
    let own = cookies(&response)?;
    ensure!(own != planted);
    ensure!(
        served.me(header::COOKIE, &planted).await?.0 == 401,
        "the planted session goes on"
    );
    let (_, me) = served.me(header::COOKIE, &own).await?;
    ensure!(me["user"] == ada, "{me}");
    let tossed = served
        .log_in("x")
        .header(header::COOKIE, format!("{planted}; {own}"));
    refuses(tossed, "DuplicateCookie").await
}

async fn change_from_another_page_is_refused(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let served = Served::start(&world).await?;
    let (accounts, _) = account(&world, &namespace, "ada").await?;
    let good = token(&accounts, "ada", &[]).await?;
    let cookie = served.session(&good).await?;
    for (path, body) in [
        ("logout", Value::Null),
        ("login/token", json!({"token": good})),
        ("login/code", json!({"code": "x"})),
    ] {
        for (name, value, reason) in [
            ("origin", Some("https://evil.example"), "OtherOrigin"),
            ("origin", Some("null"), "OtherOrigin"),
            ("sec-fetch-site", Some("cross-site"), "OtherOrigin"),
            ("sec-fetch-site", Some("same-site"), "OtherOrigin"),
            ("pawl-request", None, "NotAsked"),
            ("pawl-request", Some("2"), "NotAsked"),
        ] {
            let mut request = served
                .change(path, &body)
                .header(header::COOKIE, &cookie)
                .build()?;
            match value {
                Some(value) => drop(request.headers_mut().insert(name, value.parse()?)),
                None => drop(request.headers_mut().remove(name)),
            }
            let (code, problem) = read(served.http.execute(request).await?).await?;
            ensure!(
                code == 403 && problem["reason"] == reason,
                "{path} {name} {value:?}: {code} {problem}"
            );
        }
    }
    let (code, _) = served.me(header::COOKIE, &cookie).await?;
    ensure!(code == 200, "the session is as it was");
    let page = served.http.get(&served.url).send().await?;
    let policy = page.headers()[header::CONTENT_SECURITY_POLICY]
        .to_str()?
        .to_owned();
    ensure!(policy.contains("frame-ancestors 'none'"), "{policy}");
    ensure!(page.headers()[header::X_FRAME_OPTIONS] == "DENY");
    Ok(())
}

async fn forged_proxy_headers_are_not_believed(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let (accounts, _) = account(&world, &namespace, "ada").await?;
    let good = token(&accounts, "ada", &[]).await?;
    let served = Served::at(&world, "https://pawl.example").await?;
    let log_in = || {
        served
            .http
            .post(format!("{}/api/v1/login/token", served.url))
            .header("origin", "https://pawl.example")
            .header("pawl-request", "1")
            .body(json!({"token": good}).to_string())
    };
    refuses(log_in(), "PlainHttp").await?;
    for (name, value) in [
        ("x-forwarded-proto", "https"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-host", "localhost"),
        ("forwarded", "proto=https;host=localhost"),
        ("host", "localhost"),
    ] {
        refuses(log_in().header(name, value), "PlainHttp")
            .await
            .with_context(|| name)?;
    }
    // A session that was made elsewhere is not moved into plain HTTP by the default URL.
    let local = Served::start(&world).await?;
    refuses(
        local.log_in(&good).header("host", "pawl.example"),
        "PlainHttp",
    )
    .await
}

/// Sends bytes on one connection and reads until it ends.
async fn raw(host: &str, bytes: &str) -> Result<String> {
    let mut stream = TcpStream::connect(host).await?;
    stream.write_all(bytes.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

async fn smuggled_request_is_not_served(world: World) -> Result<()> {
    let served = Served::start(&world).await?;
    let host = &served.host;
    let inner = format!("GET /api/v1/me HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let head = format!(
        "POST /api/v1/logout HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nPawl-Request: 1\r\n"
    );
    let length = inner.len() + 5;
    for lengths in [
        format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"),
        format!("Content-Length: 0\r\nContent-Length: {length}\r\n"),
        "Transfer-Encoding: chunked, identity\r\n".to_owned(),
        "Content-Length: +5\r\n".to_owned(),
        "Content-Length : 5\r\n".to_owned(),
    ] {
        let answer = raw(host, &format!("{head}{lengths}\r\n0\r\n\r\n{inner}")).await?;
        let answers = answer.matches("HTTP/1.1 ").count();
        ensure!(answers == 1, "{lengths}: {answer}");
    }
    let whole = raw(host, &format!("{head}Content-Length: 0\r\n\r\n{inner}")).await?;
    ensure!(
        whole.matches("HTTP/1.1 ").count() == 2,
        "two requests are two answers: {whole}"
    );
    Ok(())
}

async fn lists_show_the_namespaces_that_roles_give(world: World) -> Result<()> {
    const RUNS: &str = "terraformruns";
    let (one, two) = (world.namespace().await?, world.namespace().await?);
    let served = Served::start(&world).await?;
    let (accounts, _) = account(&world, &one, "ada").await?;
    let subject = json!({"kind": "ServiceAccount", "name": "ada", "namespace": one});
    world.bind(&one, "pawl-viewer", &subject).await?;
    let person = async || {
        let token =
            api_server::Token::new(&token(&accounts, "ada", &[]).await?).context("no token")?;
        anyhow::Ok(Person::of_token(&served.console.api_server, token).await?)
    };
    let scope = async |access: &web_console::access::Access| -> Result<Scope> {
        let namespaces = [one.clone(), two.clone()].into_iter();
        let scope = access.scope(&person().await?, RUNS, namespaces).await;
        scope.map_err(|problem| anyhow::anyhow!("{problem:?}"))
    };
    wait::until("the role counts", PATIENCE, async || {
        let scope = scope(&web_console::access::Access::default()).await?;
        Ok((scope.has(&one) && !scope.has(&two))
            .then_some(())
            .ok_or_else(|| format!("{scope:?}")))
    })
    .await?;
    let bindings: Api<ClusterRoleBinding> = Api::all(world.admin.clone());
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "pawl-viewer"});
    let binding =
        json!({"metadata": {"name": format!("ada-{one}")}, "roleRef": role, "subjects": [subject]});
    objects::create(&bindings, binding).await?;
    wait::until("the role counts everywhere", PATIENCE, async || {
        let scope = scope(&web_console::access::Access::default()).await?;
        Ok((scope == Scope::All)
            .then_some(())
            .ok_or_else(|| format!("{scope:?}")))
    })
    .await
}

/// With the rights that the chart gives the server.
async fn replicas_fill_the_key_of_sessions_once(world: World) -> Result<()> {
    let client = world.process("pawl-server").await?;
    let name = Some("pawl-system/pawl-server-sessions");
    let read = || session::secret::read(&client, name);
    let (one, two) = tokio::try_join!(read(), read())?;
    ensure!(
        one == two && one.len() == 32,
        "replicas that start together"
    );
    ensure!(read().await? == one, "and later");
    let other = session::secret::read(&client, Some("pawl-system/other")).await;
    ensure!(
        other.is_err_and(|error| format!("{error:#}").contains("403")),
        "no other Secret"
    );
    Ok(())
}
