//! Logging in by an OIDC provider that the API server trusts, and by one that it does not.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, Result, ensure};
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use harness::{
    cluster::{
        access::issuer,
        pki::{self, Identity, Pki},
    },
    wait,
};
use jiff::Timestamp;
use reqwest::Url;
use serde_json::{Value, json};
use servers::listener::Listener;
use tempfile::TempDir;

use super::{Served, cookies, read, settings};
use crate::world::{PATIENCE, World, tests};

tests! {
    Guarded: oidc_logs_in_and_leads_to_the_link,
    Guarded: oidc_login_of_another_browser_is_refused,
    Guarded: oidc_provider_leads_the_console_nowhere_else,
    Guarded: oidc_provider_that_the_api_server_does_not_trust_is_named,
}

const CLIENT: &str = "pawl";

/// An issuer's address, keys and certificates. The API server is started so that it trusts it; it serves once a test starts it.
pub(crate) struct Issuer {
    directory: TempDir,
    port: u16,
    certificate: pki::Pair,
}

impl Issuer {
    pub(crate) fn new() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let pki = Pki::create(directory.path())?;
        let identity = Identity {
            file: "issuer",
            user: "issuer",
            group: "issuer",
            hosts: &["127.0.0.1"],
        };
        Ok(Self {
            certificate: pki.issue(identity)?,
            port: std::net::TcpListener::bind("127.0.0.1:0")?
                .local_addr()?
                .port(),
            directory,
        })
    }

    pub(super) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    fn file(&self, name: &str) -> Result<String> {
        Ok(std::fs::read_to_string(self.directory.path().join(name))?)
    }

    /// Its entry in an AuthenticationConfiguration.
    pub(crate) fn trusted(&self) -> Result<Value> {
        Ok(issuer(&self.url(), CLIENT, &self.file("ca.crt")?))
    }
}

/// How the provider misbehaves.
#[derive(Clone, Copy, Default, PartialEq)]
enum Fault {
    #[default]
    None,
    /// Its ID tokens have the nonce of another login.
    Nonce,
    /// It redirects the console into the cluster.
    Redirect,
}

#[derive(Default)]
struct Provided {
    issuer: String,
    key: String,
    jwk: Value,
    fault: Mutex<Fault>,
    /// Challenge and nonce by code.
    codes: Mutex<HashMap<String, (String, String)>>,
    /// Requests for what a redirect leads to.
    led: Mutex<usize>,
}

pub(super) struct Provider {
    provided: Arc<Provided>,
    _listener: Listener,
}

impl Provider {
    pub(super) async fn start(issuer: &Issuer) -> Result<Self> {
        use base64::{
            Engine as _,
            prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
        };
        let public: String = issuer
            .file("sa.pub")?
            .lines()
            .filter(|line| !line.starts_with('-'))
            .collect();
        let public = BASE64_STANDARD.decode(public)?;
        // The coordinates are the end of a key on P-256.
        let point = public.last_chunk::<64>().context("no key")?;
        let [x, y] = [&point[..32], &point[32..]].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part));
        let provided = Arc::new(Provided {
            issuer: issuer.url(),
            key: issuer.file("sa.key")?,
            jwk: json!({"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "x": x, "y": y}),
            ..Provided::default()
        });
        let app = Router::new()
            .route("/.well-known/openid-configuration", get(configuration))
            .route(
                "/keys",
                get(async |State(it): State<Arc<Provided>>| answer(&json!({"keys": [it.jwk]}))),
            )
            .route("/authorize", get(authorize))
            .route("/token", post(token))
            .route("/inside", get(inside).post(inside))
            .with_state(provided.clone());
        let tls = servers::tls::config(&issuer.certificate)?;
        let bind = format!("127.0.0.1:{}", issuer.port).parse()?;
        Ok(Self {
            provided,
            _listener: Listener::start(bind, app, Some(tls)).await?,
        })
    }

    fn set(&self, fault: Fault) {
        *lock(&self.provided.fault) = fault;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer(object: &Value) -> Response {
    (
        [(header::CONTENT_TYPE, "application/json")],
        object.to_string(),
    )
        .into_response()
}

async fn configuration(State(it): State<Arc<Provided>>) -> Response {
    let at = |path| format!("{}/{path}", it.issuer);
    answer(
        &json!({"issuer": it.issuer, "authorization_endpoint": at("authorize"), "token_endpoint": at("token"),
        "jwks_uri": at("keys"), "response_types_supported": ["code"], "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"]}),
    )
}

/// The person is signed in, and consents.
async fn authorize(State(it): State<Arc<Provided>>, uri: Uri) -> Response {
    let query = query(&format!("http://a{uri}"));
    let code = format!("code-{}", lock(&it.codes).len());
    let of = |name: &str| query.get(name).cloned().unwrap_or_default();
    if of("code_challenge_method") != "S256" || !of("scope").contains("openid") {
        return StatusCode::BAD_REQUEST.into_response();
    }
    lock(&it.codes).insert(code.clone(), (of("code_challenge"), of("nonce")));
    let back = format!("{}?code={code}&state={}", of("redirect_uri"), of("state"));
    (StatusCode::SEE_OTHER, [(header::LOCATION, back)]).into_response()
}

async fn token(State(it): State<Arc<Provided>>, body: Bytes) -> Response {
    use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
    use sha2::{Digest as _, Sha256};
    let fault = *lock(&it.fault);
    if fault == Fault::Redirect {
        let inside = [(header::LOCATION, format!("{}/inside", it.issuer))];
        return (StatusCode::TEMPORARY_REDIRECT, inside).into_response();
    }
    let form = query(&format!("http://a/?{}", String::from_utf8_lossy(&body)));
    let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(
        form.get("code_verifier").cloned().unwrap_or_default(),
    ));
    // Kept, so that the nonce of a code that was used is wrong and nothing else.
    let known = lock(&it.codes)
        .get_mut(form.get("code").map_or("", String::as_str))
        .map(std::mem::take);
    let Some((_, nonce)) = known.filter(|(wanted, _)| *wanted == challenge) else {
        return (
            StatusCode::BAD_REQUEST,
            answer(&json!({"error": "invalid_grant"})),
        )
            .into_response();
    };
    let nonce = if fault == Fault::Nonce {
        "of another login".into()
    } else {
        nonce
    };
    let now = Timestamp::now().as_second();
    let claims = json!({"iss": it.issuer, "aud": [CLIENT], "sub": "7", "groups": ["Platform:sre"], "nonce": nonce,
        "iat": now, "exp": now + 3600});
    let token = pki::token(&it.key, &claims).unwrap_or_default();
    answer(
        &json!({"access_token": "all rights", "token_type": "bearer", "expires_in": 3600, "id_token": token}),
    )
}

async fn inside(State(it): State<Arc<Provided>>) -> StatusCode {
    *lock(&it.led) += 1;
    StatusCode::OK
}

fn query(url: &str) -> HashMap<String, String> {
    let url = Url::parse(url).ok();
    url.map(|url| url.query_pairs().into_owned().collect())
        .unwrap_or_default()
}

/// A console with this provider.
pub(super) async fn served(world: &World, issuer: &Issuer) -> Result<Served> {
    let mut settings = settings("http://127.0.0.1:8444")?;
    settings.oidc_issuer = Some(issuer.url());
    settings.oidc_client_id = Some(CLIENT.into());
    settings.oidc_ca = Some(Path::new(issuer.directory.path()).join("ca.crt"));
    settings.oidc_scopes = vec!["profile".into(), "groups".into()];
    Served::with(world, settings).await
}

/// A browser's request: status, cookies, location, text.
pub(super) async fn visit(
    served: &Served,
    url: &str,
    cookie: &str,
) -> Result<(u16, String, String, String)> {
    let url = url.replace("http://127.0.0.1:8444", &served.url);
    let authority = served.settings.oidc_ca.as_ref().context("no authority")?;
    let http = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .tls_certs_merge(reqwest::Certificate::from_pem_bundle(&std::fs::read(
            authority,
        )?)?)
        .build()?;
    let response = http.get(url).header(header::COOKIE, cookie).send().await?;
    let location = response.headers().get(header::LOCATION);
    let location = location
        .map_or(Ok(""), |location| location.to_str())?
        .to_owned();
    let set = cookies(&response)?;
    Ok((
        response.status().as_u16(),
        set,
        location,
        response.text().await?,
    ))
}

/// Goes to the provider; the URL that leads back, and the cookie of the attempt.
async fn attempt(served: &Served, next: &str) -> Result<(String, String)> {
    let (code, cookie, there, text) = visit(
        served,
        &format!("{}/login/oidc?next={next}", served.url),
        "",
    )
    .await?;
    ensure!(code == 303, "{code} {text}");
    let (code, _, back, text) = visit(served, &there, "").await?;
    ensure!(code == 303, "{code} {text}");
    Ok((back, cookie))
}

async fn oidc_logs_in_and_leads_to_the_link(world: World) -> Result<()> {
    let provider = Provider::start(&world.issuer).await?;
    let served = served(&world, &world.issuer).await?;
    let (_, ways) = read(
        served
            .http
            .get(format!("{}/api/v1/login", served.url))
            .send()
            .await?,
    )
    .await?;
    ensure!(ways["oidc"] == "http://127.0.0.1:8444/login/oidc", "{ways}");
    // The API server reads the provider's keys within seconds.
    let cookie = wait::until("the API server trusts the provider", PATIENCE, async || {
        // The console takes ten unknown tokens a second of one address.
        tokio::time::sleep(std::time::Duration::from_millis(250)).await;
        let (back, cookie) = attempt(&served, "/runs/a/b%3Fline%3D7").await?;
        let (code, session, location, text) = visit(&served, &back, &cookie).await?;
        if code != 303 {
            return Ok(Err(text));
        }
        ensure!(
            location == "http://127.0.0.1:8444/runs/a/b?line=7",
            "{location}"
        );
        // The code, and the cookie of the attempt, are of no more use.
        let (code, _, _, text) = visit(&served, &back, &cookie).await?;
        ensure!(code == 403 && text.contains("LoginFailed"), "{code} {text}");
        Ok(Ok(session))
    })
    .await?;
    let (code, me) = served.me(header::COOKIE, &cookie).await?;
    ensure!(
        code == 200 && me["user"] == "oidc:7" && me["method"] == "Oidc",
        "{code} {me}"
    );
    ensure!(
        me["groups"].to_string().contains("oidc:Platform:sre"),
        "{me}"
    );
    for next in [
        "//evil.example",
        "https://evil.example",
        "%2F%5Cevil.example",
        "%0d%0aSet-Cookie:a",
    ] {
        let (back, cookie) = attempt(&served, next).await?;
        let (code, _, location, text) = visit(&served, &back, &cookie).await?;
        ensure!(
            code == 303 && location == "http://127.0.0.1:8444/",
            "{next}: {code} {location} {text}"
        );
    }
    // Another login at the same time: once more, and once only.
    provider.set(Fault::Nonce);
    let (back, cookie) = attempt(&served, "/runs").await?;
    let (code, cookie, there, text) = visit(&served, &back, &cookie).await?;
    ensure!(
        code == 303 && there.contains("/authorize?"),
        "{code} {there} {text}"
    );
    let (_, _, back, _) = visit(&served, &there, "").await?;
    let (code, _, _, text) = visit(&served, &back, &cookie).await?;
    ensure!(code == 403 && text.contains("LoginFailed"), "{code} {text}");
    Ok(())
}

async fn oidc_login_of_another_browser_is_refused(world: World) -> Result<()> {
    let issuer = Issuer::new()?;
    let _provider = Provider::start(&issuer).await?;
    let served = served(&world, &issuer).await?;
    let (back, _) = attempt(&served, "/").await?;
    let (code, session, _, text) = visit(&served, &back, "").await?;
    ensure!(
        code == 403 && text.contains("another browser") && !session.contains('.'),
        "{code} {text}"
    );
    let (_, own) = attempt(&served, "/").await?;
    let (code, cookie, there, _) = visit(&served, &back, &own).await?;
    ensure!(
        code == 303 && there.contains("/authorize?"),
        "{code}: a login of its own begins"
    );
    let (code, _, _, text) = visit(&served, &back, &cookie).await?;
    ensure!(code == 403 && text.contains("LoginFailed"), "{code} {text}");
    let (code, _, _, text) = visit(
        &served,
        &format!("{}/login/oidc/callback?error=%3Cscript%3E", served.url),
        &own,
    )
    .await?;
    ensure!(code == 303 || !text.contains("<html"), "{text}");
    Ok(())
}

async fn oidc_provider_leads_the_console_nowhere_else(world: World) -> Result<()> {
    let issuer = Issuer::new()?;
    let provider = Provider::start(&issuer).await?;
    let served = served(&world, &issuer).await?;
    let (back, cookie) = attempt(&served, "/").await?;
    provider.set(Fault::Redirect);
    let (code, _, _, text) = visit(&served, &back, &cookie).await?;
    ensure!(code >= 400, "{code} {text}");
    ensure!(
        *lock(&provider.provided.led) == 0,
        "the redirect was followed"
    );
    // The issuer of the settings, and no other, may be discovered there.
    let mut settings = served.settings.clone();
    settings.oidc_issuer = Some(format!("{}/", issuer.url()));
    let other = Served::with(&world, settings).await?;
    let (code, _, _, text) = visit(&other, &format!("{}/login/oidc", other.url), "").await?;
    ensure!(
        code == 502 && text.contains("ProviderUnavailable"),
        "{code} {text}"
    );
    let mut settings = served.settings.clone();
    settings.oidc_issuer = Some("http://169.254.169.254".into());
    ensure!(
        Served::with(&world, settings).await.is_err(),
        "an issuer without TLS"
    );
    Ok(())
}

async fn oidc_provider_that_the_api_server_does_not_trust_is_named(world: World) -> Result<()> {
    let issuer = Issuer::new()?;
    let _provider = Provider::start(&issuer).await?;
    let served = served(&world, &issuer).await?;
    let (back, cookie) = attempt(&served, "/").await?;
    let (code, _, _, text) = visit(&served, &back, &cookie).await?;
    ensure!(
        code == 403 && text.starts_with("IssuerNotTrusted"),
        "{code} {text}"
    );
    let yaml = text.split_once("\n\n").context("no configuration")?.1;
    let configuration: Value = serde_saphyr::from_str(yaml)?;
    ensure!(
        configuration["jwt"][0]["issuer"]["url"] == issuer.url(),
        "{configuration}"
    );
    ensure!(
        configuration["jwt"][0]["issuer"]["audiences"][0] == CLIENT,
        "{configuration}"
    );
    Ok(())
}
