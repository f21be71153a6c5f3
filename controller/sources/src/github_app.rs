//! Tokens of a GitHub App's installation: exchanges a JWT signed with the App's key for a one-hour token that can only
//! read contents.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use crds::{Reason, datastore::causes, digest::hex_digest, text::clip};
use jiff::{SignedDuration, Timestamp};
use ring::{
    rand::SystemRandom,
    signature::{RSA_PKCS1_SHA256, RsaKeyPair},
};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject as _};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use source::Url;

use crate::{failure::Problem, proxy::Outbound};

/// Minimum remaining validity of a token to be used: a fetch may take long.
const LEFT: SignedDuration = SignedDuration::from_mins(5);
/// Timeout of a request for a token.
const DEADLINE: Duration = Duration::from_secs(30);
/// Maximum size of a response, in bytes.
const MAX_ANSWER: usize = 256 << 10;

/// An installation of an App, with the App's key.
#[derive(Clone)]
pub struct App {
    id: String,
    installation: String,
    key: Arc<RsaKeyPair>,
    /// Identifies the key without revealing it.
    digest: String,
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "App({}, {})", self.id, self.installation)
    }
}

impl App {
    /// The App in a Secret, under the keys that Flux uses; `None` when the Secret has none.
    ///
    /// # Errors
    /// The missing or unusable key, and why.
    pub fn of(
        key: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, (&'static str, String)> {
        const NAMES: [&str; 3] = [
            "githubAppID",
            "githubAppInstallationID",
            "githubAppPrivateKey",
        ];
        let values = NAMES.map(key);
        if values.iter().all(Option::is_none) {
            return Ok(None);
        }
        if let Some(at) = values.iter().position(Option::is_none) {
            return Err((
                NAMES[at],
                "is missing: a GitHub App is named by all three".to_owned(),
            ));
        }
        let [id, installation, pem] =
            values.map(|value| value.unwrap_or_default().trim().to_owned());
        for (name, value) in [(NAMES[0], &id), (NAMES[1], &installation)] {
            if !value.chars().all(|c| c.is_ascii_alphanumeric() || c == '.') {
                return Err((name, "is no id".to_owned()));
            }
        }
        let key = private_key(&pem).ok_or_else(|| {
            (
                NAMES[2],
                "is no private key of RSA as GitHub gives it (a line BEGIN … PRIVATE KEY, without a passphrase)".to_owned(),
            )
        })?;
        Ok(Some(Self {
            id,
            installation,
            key: Arc::new(key),
            digest: hex_digest(&Sha256::digest(pem)),
        }))
    }

    /// The JWT that authenticates the App, valid for nine minutes.
    fn jwt(&self, now: Timestamp) -> Option<String> {
        let encode = |value: serde_json::Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        // One minute earlier, since GitHub's clock may be behind.
        let now = now.as_second();
        let claims = json!({"iat": now - 60, "exp": now + 480, "iss": self.id});
        let text = format!(
            "{}.{}",
            encode(json!({"alg": "RS256", "typ": "JWT"})),
            encode(claims)
        );
        let mut signature = vec![0; self.key.public().modulus_len()];
        self.key
            .sign(
                &RSA_PKCS1_SHA256,
                &SystemRandom::new(),
                text.as_bytes(),
                &mut signature,
            )
            .ok()?;
        Some(format!(
            "{text}.{}",
            BASE64_URL_SAFE_NO_PAD.encode(signature)
        ))
    }
}

/// Parses PKCS#1, as GitHub issues it, or PKCS#8.
fn private_key(pem: &str) -> Option<RsaKeyPair> {
    match PrivateKeyDer::from_pem_slice(pem.as_bytes()).ok()? {
        PrivateKeyDer::Pkcs1(key) => RsaKeyPair::from_der(key.secret_pkcs1_der()).ok(),
        PrivateKeyDer::Pkcs8(key) => RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).ok(),
        _ => None,
    }
}

/// The API's URL for a repository's host.
fn api(url: &Url) -> String {
    let host = url.host().to_ascii_lowercase();
    if host == "github.com" || host.ends_with(".ghe.com") {
        return format!("https://api.{host}/");
    }
    format!("{}api/v3/", url.web_origin())
}

/// A cache of tokens.
#[derive(Default)]
pub struct Tokens {
    given: Mutex<BTreeMap<String, (String, Timestamp)>>,
    /// The operator's certificate authorities, PEM.
    own: Option<String>,
    /// The way to servers; direct when `None`.
    outbound: Option<Outbound>,
}

#[derive(Deserialize)]
struct Answer {
    token: String,
    expires_at: Timestamp,
}

impl Tokens {
    /// Starts empty; also trusts these certificate authorities, PEM.
    pub fn trusting(own: Option<String>, outbound: Outbound) -> Self {
        Self {
            own,
            outbound: Some(outbound),
            ..Self::default()
        }
    }

    /// The token of an installation for the host of a URL. Uses a cached token that is valid for five more minutes.
    ///
    /// # Errors Why there is none. Failures worth a retry have class Transient.
    pub async fn token(
        &self,
        app: &App,
        url: &Url,
        authority: Option<&str>,
        now: Timestamp,
    ) -> Result<String, Problem> {
        let api = api(url);
        let name = format!("{api} {} {} {}", app.id, app.installation, app.digest);
        if let Some((token, until)) = self.lock().get(&name)
            && now.checked_add(LEFT).is_ok_and(|then| then < *until)
        {
            return Ok(token.clone());
        }
        let answer = self.ask(app, &api, authority, now).await?;
        let mut all = self.lock();
        all.retain(|_, (_, until)| *until > now);
        all.insert(name, (answer.token.clone(), answer.expires_at));
        Ok(answer.token)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, (String, Timestamp)>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(
        &self,
        app: &App,
        api: &str,
        authority: Option<&str>,
        now: Timestamp,
    ) -> Result<Answer, Problem> {
        let place = format!("{api}app/installations/{}/access_tokens", app.installation);
        let said = |reason, why: &str| {
            Problem::new(
                reason,
                format!("no token of GitHub App {} from {place}: {why}", app.id),
            )
        };
        let jwt = app
            .jwt(now)
            .ok_or_else(|| said(Reason::SourceUnauthorized, "its key cannot sign"))?;
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // The program installs it, but other users of this crate may not, and reqwest would panic.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("pawl/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .timeout(DEADLINE);
        for (pem, place) in [
            (self.own.as_deref(), "--ca"),
            (authority, "ca.crt of the Secret"),
        ] {
            let Some(pem) = pem else { continue };
            let all = reqwest::Certificate::from_pem_bundle(pem.as_bytes())
                .ok()
                .filter(|all| !all.is_empty());
            let all = all.ok_or_else(|| {
                said(
                    Reason::SourceUnauthorized,
                    &format!("{place} has no certificate in PEM"),
                )
            })?;
            builder = builder.tls_certs_merge(all);
        }
        if let Some(proxy) = self.outbound.as_ref().and_then(|way| way.proxy(api)) {
            let proxy = reqwest::Proxy::all(proxy);
            builder =
                builder.proxy(proxy.map_err(|error| said(Reason::AgentFault, &causes(&error)))?);
        }
        let client = builder
            .build()
            .map_err(|error| said(Reason::AgentFault, &causes(&error)))?;
        let body = json!({"permissions": {"contents": "read"}}).to_string();
        let request = client
            .post(&place)
            .bearer_auth(jwt)
            .header("Accept", "application/vnd.github+json")
            .body(body);
        let mut answer = request
            .send()
            .await
            .map_err(|error| Problem::no_repository(&place, &causes(&error)))?;
        let status = answer.status();
        let mut text = Vec::new();
        while let Some(piece) = answer
            .chunk()
            .await
            .map_err(|error| said(Reason::SourceUnreachable, &causes(&error)))?
        {
            text.extend_from_slice(&piece);
            if text.len() > MAX_ANSWER {
                return Err(said(
                    Reason::SourceUnreachable,
                    "an answer that is too long",
                ));
            }
        }
        if !status.is_success() {
            let refused = matches!(status.as_u16(), 401 | 403 | 404 | 422);
            let reason = if refused {
                Reason::SourceUnauthorized
            } else {
                Reason::SourceUnreachable
            };
            return Err(said(
                reason,
                &format!("{status}: {}", clip(&String::from_utf8_lossy(&text), 200)),
            ));
        }
        serde_json::from_slice(&text).map_err(|error| {
            said(
                Reason::SourceUnreachable,
                &format!("an answer that is not understood: {error}"),
            )
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::{
        Router,
        extract::State,
        http::{HeaderMap, StatusCode},
        routing::post,
    };
    use crds::FailureClass;
    use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};

    use super::*;

    /// A test key, created by openssl.
    fn pem(args: &[&str]) -> String {
        let output = std::process::Command::new("openssl")
            .args(args)
            .stderr(std::process::Stdio::null())
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn app(pem: &str) -> App {
        let key = |name: &str| {
            Some(match name {
                "githubAppID" => "12345".to_owned(),
                "githubAppInstallationID" => "678\n".to_owned(),
                _ => pem.to_owned(),
            })
        };
        App::of(key).unwrap().unwrap()
    }

    pub(crate) fn rsa_key() -> String {
        pem(&[
            "genpkey",
            "-algorithm",
            "RSA",
            "-pkeyopt",
            "rsa_keygen_bits:2048",
        ])
    }

    #[test]
    fn pkcs1_and_pkcs8_keys_sign() {
        let pkcs8 = rsa_key();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        std::fs::write(&file, &pkcs8).unwrap();
        let pkcs1 = pem(&["rsa", "-traditional", "-in", file.to_str().unwrap()]);
        assert!(pkcs1.contains("BEGIN RSA PRIVATE KEY"), "{pkcs1}");
        for pem in [pkcs8, pkcs1] {
            let app = app(&pem);
            let jwt = app
                .jwt(Timestamp::from_second(1_800_000_000).unwrap())
                .unwrap();
            let (text, signature) = jwt.rsplit_once('.').unwrap();
            let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).unwrap();
            let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, app.key.public());
            public.verify(text.as_bytes(), &signature).unwrap();
            let claims: serde_json::Value = serde_json::from_slice(
                &BASE64_URL_SAFE_NO_PAD
                    .decode(text.split_once('.').unwrap().1)
                    .unwrap(),
            )
            .unwrap();
            assert_eq!(
                claims,
                json!({"iat": 1_799_999_940, "exp": 1_800_000_480, "iss": "12345"})
            );
        }
        for pem in [
            "",
            "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----",
            "-----BEGIN PUBLIC KEY-----\nAAAA",
        ] {
            assert!(private_key(pem).is_none());
        }
    }

    #[test]
    fn api_url_follows_the_repositorys_host() {
        let rows = [
            ("https://github.com/o/r.git", "https://api.github.com/"),
            ("https://octo.ghe.com/o/r", "https://api.octo.ghe.com/"),
            (
                "https://git.example.org:8443/o/r.git",
                "https://git.example.org:8443/api/v3/",
            ),
            // Burrito 11.24: a host that only resembles GitHub receives no GitHub credentials.
            (
                "https://github.com.evil.example/o/r",
                "https://github.com.evil.example/api/v3/",
            ),
        ];
        for (url, expected) in rows {
            assert_eq!(api(&Url::parse(url).unwrap()), expected);
        }
    }

    #[derive(Clone, Default)]
    struct Forge {
        asked: Arc<AtomicUsize>,
        fails: Arc<AtomicUsize>,
    }

    async fn give(
        State(forge): State<Forge>,
        headers: HeaderMap,
        body: String,
    ) -> (StatusCode, String) {
        let asked = forge.asked.fetch_add(1, Ordering::Relaxed) + 1;
        let code = forge.fails.load(Ordering::Relaxed);
        if code != 0 {
            return (
                StatusCode::from_u16(u16::try_from(code).unwrap()).unwrap(),
                "no".to_owned(),
            );
        }
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        let bearer = headers["authorization"].to_str().unwrap();
        assert!(
            bearer.starts_with("Bearer ey") && body["permissions"]["contents"] == "read",
            "{bearer} {body}"
        );
        (
            StatusCode::CREATED,
            json!({"token": format!("ghs_{asked}"), "expires_at": "2027-01-15T09:00:00Z"})
                .to_string(),
        )
    }

    /// Burrito 11.11: a transient error for a token ended polling. Here it has a class that is retried.
    #[tokio::test]
    async fn token_is_cached_until_near_expiry_and_errors_are_transient() {
        let forge = Forge::default();
        let routes = Router::new()
            .route("/api/v3/app/installations/678/access_tokens", post(give))
            .with_state(forge.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!(
            "http://{}/o/r.git",
            listener.local_addr().unwrap()
        ))
        .unwrap();
        let serving = tokio::spawn(async move { axum::serve(listener, routes).await });
        let app = app(&pem(&[
            "genpkey",
            "-algorithm",
            "RSA",
            "-pkeyopt",
            "rsa_keygen_bits:2048",
        ]));
        let (tokens, at) = (Tokens::default(), |text: &str| {
            text.parse::<Timestamp>().unwrap()
        });
        for (code, class) in [
            (502, FailureClass::Transient),
            (401, FailureClass::Credentials),
        ] {
            forge.fails.store(code, Ordering::Relaxed);
            let problem = tokens
                .token(&app, &url, None, at("2027-01-15T08:00:00Z"))
                .await
                .unwrap_err();
            assert_eq!(problem.class(), class, "{}", problem.message);
        }
        forge.fails.store(0, Ordering::Relaxed);
        let mut given = Vec::new();
        for time in [
            "2027-01-15T08:00:00Z",
            "2027-01-15T08:54:59Z",
            "2027-01-15T08:55:00Z",
        ] {
            given.push(tokens.token(&app, &url, None, at(time)).await.unwrap());
        }
        assert_eq!(given, ["ghs_3", "ghs_3", "ghs_4"]);
        serving.abort();
        let problem = Tokens::default()
            .token(&app, &url, None, at("2027-01-15T08:00:00Z"))
            .await
            .unwrap_err();
        assert_eq!(
            problem.class(),
            FailureClass::Transient,
            "{}",
            problem.message
        );
    }
}
