//! The provider: discovery, authorization and the exchange of a code.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use axum::http::StatusCode;
use futures::future::BoxFuture;
use openidconnect::{
    AsyncHttpClient, AuthorizationCode, ClientId, ClientSecret, CsrfToken, HttpRequest,
    HttpResponse, IssuerUrl, Nonce, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl,
    RequestTokenError, Scope, TokenResponse as _,
    core::{CoreAuthenticationFlow, CoreClient, CoreProviderMetadata},
};
use tokio::{sync::Mutex, time::Instant};

use crate::{problem::Problem, settings::Settings, strangers::Strangers};

use super::{Attempt, callback, problem};

/// Age at which endpoints and keys are read again.
const FRESH: Duration = Duration::from_secs(600);
/// Least age before that, for a token with an unknown key.
const ROTATED: Duration = Duration::from_secs(10);
/// Time between two tries while it does not answer.
const RESTED: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum size of an answer, in bytes.
const ANSWER: usize = 1 << 20;

/// The OIDC provider of this installation.
pub struct Provider {
    issuer: IssuerUrl,
    client_id: ClientId,
    secret: Option<ClientSecret>,
    scopes: Vec<Scope>,
    /// PEM of its private authority.
    authority: Option<String>,
    callback: RedirectUrl,
    http: Http,
    known: Mutex<Known>,
    /// Of codes: anyone may send one that the provider did not give, and it answers in its own time, for which no token has to wait.
    pub(super) strangers: Strangers,
}

/// The last answers of the provider.
#[derive(Default)]
struct Known {
    metadata: Option<(Instant, Arc<CoreProviderMetadata>)>,
    failed: Option<(Instant, Problem)>,
}

impl Known {
    /// Endpoints and keys, at most this old, or older ones after a failure; that failure if there are none. `None`: the provider has to be
    /// asked.
    fn answer(&self, age: Duration) -> Option<Result<Arc<CoreProviderMetadata>, Problem>> {
        let failed = self.failed.as_ref();
        let failed = failed.filter(|(at, _)| at.elapsed() < RESTED);
        match (&self.metadata, failed) {
            (Some((read, metadata)), failed) if read.elapsed() < age || failed.is_some() => {
                Some(Ok(metadata.clone()))
            }
            (None, Some((_, problem))) => Some(Err(problem.clone())),
            _ => None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("{0} is not https")]
    PlainHttp(String),
    #[error("the answer is larger than 1 MiB")]
    TooLarge,
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    #[error(transparent)]
    Response(#[from] axum::http::Error),
}

struct Http(reqwest::Client);

impl<'c> AsyncHttpClient<'c> for Http {
    type Error = FetchError;
    type Future = BoxFuture<'c, Result<HttpResponse, FetchError>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(self.fetch(request))
    }
}

impl Http {
    /// Sends a request to the provider. A redirect is not followed: it could lead into the cluster.
    async fn fetch(&self, request: HttpRequest) -> Result<HttpResponse, FetchError> {
        if request.uri().scheme_str() != Some("https") {
            return Err(FetchError::PlainHttp(request.uri().to_string()));
        }
        let mut answer = self.0.execute(request.try_into()?).await?;
        let mut response = axum::http::Response::builder().status(answer.status());
        for (name, value) in answer.headers() {
            response = response.header(name, value);
        }
        let mut body = Vec::new();
        while let Some(piece) = answer.chunk().await? {
            if body.len() + piece.len() > ANSWER {
                return Err(FetchError::TooLarge);
            }
            body.extend_from_slice(&piece);
        }
        Ok(response.body(body)?)
    }
}

impl Provider {
    /// The provider of these settings, if they name one. Sends no request.
    ///
    /// # Errors
    /// A setting cannot be used.
    pub fn new(settings: &Settings) -> anyhow::Result<Option<Self>> {
        let Some((issuer, client_id)) = settings
            .oidc_issuer
            .clone()
            .zip(settings.oidc_client_id.clone())
        else {
            return Ok(None);
        };
        ensure!(
            issuer.starts_with("https://"),
            "--oidc-issuer: the API server trusts https alone"
        );
        let read = |path| {
            std::fs::read_to_string(path)
                .with_context(|| format!("{}", std::path::Path::display(path)))
        };
        let secret = settings
            .oidc_client_secret_file
            .as_deref()
            .map(read)
            .transpose()?;
        // Fails only when a provider is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder()
            .user_agent(concat!("pawl/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .timeout(DEADLINE);
        let authority = settings.oidc_ca.as_deref().map(read).transpose()?;
        if let Some(authority) = &authority {
            let authorities = reqwest::Certificate::from_pem_bundle(authority.as_bytes());
            http = http.tls_certs_merge(authorities.context("--oidc-ca")?);
        }
        Ok(Some(Self {
            issuer: IssuerUrl::new(issuer).context("--oidc-issuer")?,
            client_id: ClientId::new(client_id),
            secret: secret.map(|secret| ClientSecret::new(secret.trim().to_owned())),
            scopes: settings
                .oidc_scopes
                .iter()
                .cloned()
                .map(Scope::new)
                .collect(),
            authority,
            callback: RedirectUrl::new(callback(&settings.url)).context("--url")?,
            http: Http(http.build()?),
            known: Mutex::default(),
            strangers: Strangers::default(),
        }))
    }

    /// Endpoints and keys, at most this old. While the provider does not answer, older ones count, and it is asked again every 2 s.
    async fn metadata(&self, age: Duration) -> Result<Arc<CoreProviderMetadata>, Problem> {
        let mut known = self.known.lock().await;
        if let Some(answer) = known.answer(age) {
            return answer;
        }
        match CoreProviderMetadata::discover_async(self.issuer.clone(), &self.http).await {
            Ok(metadata) => {
                let metadata = Arc::new(metadata);
                known.metadata = Some((Instant::now(), metadata.clone()));
                Ok(metadata)
            }
            Err(error) => {
                let problem = self.unavailable(&error);
                known.failed = Some((Instant::now(), problem.clone()));
                known.answer(age).unwrap_or(Err(problem))
            }
        }
    }

    fn unavailable(&self, error: &dyn std::error::Error) -> Problem {
        let mut causes = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            causes = format!("{causes}: {error}");
            cause = error.source();
        }
        Problem::new(
            StatusCode::BAD_GATEWAY,
            "ProviderUnavailable",
            format!(
                "the provider {} did not answer as expected ({causes}); no session was made. Sessions go on, and a token logs in meanwhile",
                *self.issuer
            ),
        )
    }

    fn client(&self, metadata: &CoreProviderMetadata) -> Client {
        let (id, secret) = (self.client_id.clone(), self.secret.clone());
        CoreClient::from_provider_metadata(metadata.clone(), id, secret)
            .set_redirect_uri(self.callback.clone())
    }

    /// The URL at the provider to send the browser to, and what to remember meanwhile.
    pub(super) async fn authorize(
        &self,
        next: String,
        is_again: bool,
    ) -> Result<(String, Attempt), Problem> {
        let metadata = self.metadata(FRESH).await?;
        let client = self.client(&metadata);
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let flow = CoreAuthenticationFlow::AuthorizationCode;
        let (location, state, nonce) = client
            .authorize_url(flow, CsrfToken::new_random, Nonce::new_random)
            .add_scopes(self.scopes.iter().cloned())
            .set_pkce_challenge(challenge)
            .url();
        if location.scheme() != "https" {
            return Err(self.unavailable(&FetchError::PlainHttp(location.to_string())));
        }
        let attempt = Attempt {
            state: state.into_secret(),
            nonce: nonce.secret().clone(),
            verifier: verifier.into_secret(),
            next,
            is_again,
            until: Attempt::until(),
        };
        Ok((location.into(), attempt))
    }

    /// The ID token for a code; `None` if it is not valid for this login. The access token is dropped: at some forges it may do all that
    /// the person may.
    pub(super) async fn exchange(
        &self,
        code: String,
        attempt: &Attempt,
    ) -> Result<Option<String>, Problem> {
        let metadata = self.metadata(FRESH).await?;
        let client = self.client(&metadata);
        let request = client.exchange_code(AuthorizationCode::new(code));
        let request = request.map_err(|error| self.unavailable(&error))?;
        let verifier = PkceCodeVerifier::new(attempt.verifier.clone());
        let answer = request
            .set_pkce_verifier(verifier)
            .request_async(&self.http)
            .await;
        let answer = answer.map_err(|error| match &error {
            RequestTokenError::ServerResponse(error) => problem(&format!(
                "the provider refused the code ({})",
                error.error()
            )),
            _ => self.unavailable(&error),
        })?;
        let Some(token) = answer.id_token() else {
            return Err(Problem::new(
                StatusCode::FORBIDDEN,
                "NoIdToken",
                "the provider gave no ID token: it remembers an earlier consent without the scope openid. Revoke the application there and \
                 log in again",
            ));
        };
        let nonce = Nonce::new(attempt.nonce.clone());
        if token.claims(&client.id_token_verifier(), &nonce).is_ok() {
            return Ok(Some(token.to_string()));
        }
        // Its key may be new.
        let client = self.client(&*self.metadata(ROTATED).await?);
        match token.claims(&client.id_token_verifier(), &nonce) {
            Ok(_) => Ok(Some(token.to_string())),
            Err(error) => {
                tracing::info!(%error, "refused an ID token");
                Ok(None)
            }
        }
    }

    /// How an API server comes to trust the provider.
    pub(super) fn trust(&self) -> String {
        let authority = self.authority.as_ref().map_or_else(
            || "# certificateAuthority: PEM of a private authority".to_owned(),
            |pem| format!("certificateAuthority: {}", serde_json::json!(pem)),
        );
        format!(
            "the API server does not accept ID tokens of this provider, so no session was made. Log in with a token (kubectl create token \
             NAME), or start kube-apiserver with --authentication-config=FILE, with this in FILE:

apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
  - issuer:
      url: {}
      audiences: [{}]
      {authority}
    claimMappings:
      username: {{claim: sub, prefix: \"oidc:\"}}
      groups: {{claim: groups, prefix: \"oidc:\"}}",
            *self.issuer, *self.client_id
        )
    }
}

type Client = CoreClient<
    openidconnect::EndpointSet,
    openidconnect::EndpointNotSet,
    openidconnect::EndpointNotSet,
    openidconnect::EndpointNotSet,
    openidconnect::EndpointMaybeSet,
    openidconnect::EndpointMaybeSet,
>;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn known_endpoints_count_while_the_provider_fails() {
        let metadata: CoreProviderMetadata = serde_json::from_value(json!({"issuer": "https://o.example",
            "authorization_endpoint": "https://o.example/a", "jwks_uri": "https://o.example/k", "response_types_supported": ["code"],
            "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": ["RS256"]}))
        .unwrap();
        let mut known = Known::default();
        assert!(known.answer(FRESH).is_none());
        let failure = || Some((Instant::now(), problem("no answer")));
        known.failed = failure();
        assert!(known.answer(FRESH).unwrap().is_err());
        known.metadata = Some((Instant::now(), Arc::new(metadata)));
        for age in [FRESH, ROTATED] {
            tokio::time::advance(age).await;
            assert!(known.answer(age).is_none(), "too old");
            known.failed = failure();
            let answer = known.answer(age).unwrap();
            assert!(answer.is_ok(), "a login goes on, and asks no one");
        }
    }
}
