//! The person who sends a request, named by the API server.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::FromRequestParts,
    http::{Request, StatusCode, request::Parts},
};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, UserInfo};
use kube::{
    Resource,
    api::{Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crds::datastore::UNAUTHENTICATED;
use serving::{
    auth::{Identity, Reviewer, bearer, expiry},
    call::{CallError, Reply},
};

use crate::{
    Console,
    api_server::{ApiServer, Token},
    problem::Problem,
    session::{Id, Session},
    strangers::Sender,
};

pub use crate::method::Method;

/// Who asks, and the token that proves it.
#[derive(Clone)]
pub struct Person {
    /// The user's name and groups at the API server.
    pub user: Arc<UserInfo>,
    pub token: Token,
    pub api_server: ApiServer,
    /// `None` with a bearer token.
    pub session: Option<Id>,
    pub method: Method,
    /// The end of the session, or of the bearer token, in seconds since 1970.
    pub until: Option<i64>,
}

impl Person {
    /// Asks the API server whom the token names. Requires no right of the console.
    ///
    /// # Errors
    /// The API server does not accept the token (401), or does not respond.
    pub async fn of_token(api_server: &ApiServer, token: Token) -> Result<Self, CallError> {
        let user = name_of(api_server, &token).await?;
        Ok(Self::bearer(api_server, token, Arc::new(user)))
    }

    fn bearer(api_server: &ApiServer, token: Token, user: Arc<UserInfo>) -> Self {
        Self {
            user,
            until: expiry(token.secret()),
            token,
            api_server: api_server.clone(),
            session: None,
            method: Method::Bearer,
        }
    }

    /// The user's name.
    pub fn name(&self) -> &str {
        self.user.username.as_deref().unwrap_or_default()
    }

    /// Reads an object as the person.
    ///
    /// # Errors
    /// The API server refused it or did not respond.
    pub async fn get<K>(&self, namespace: &str, name: &str) -> Result<K, CallError>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        self.get_in(Some(namespace), name).await
    }

    /// Like [`Self::get`], also for an object that is in no namespace.
    ///
    /// # Errors
    /// The API server refused it or did not respond.
    pub async fn get_in<K>(&self, namespace: Option<&str>, name: &str) -> Result<K, CallError>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let url = format!("{}/{name}", K::url_path(&(), namespace));
        let request = Request::get(url).body(Vec::new()).unwrap_or_default();
        self.api_server
            .call("read the object", &self.token, request)
            .await
    }

    /// Sets annotations of an object as the person, with one merge patch, like `kubectl annotate`; `null` removes one.
    ///
    /// # Errors
    /// The API server refused it or did not respond.
    pub async fn annotate<K>(
        &self,
        namespace: &str,
        name: &str,
        annotations: &Value,
    ) -> Result<K, CallError>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        self.annotate_in(Some(namespace), name, annotations).await
    }

    /// Like [`Self::annotate`], also for an object that is in no namespace.
    ///
    /// # Errors
    /// The API server refused it or did not respond.
    pub async fn annotate_in<K>(
        &self,
        namespace: Option<&str>,
        name: &str,
        annotations: &Value,
    ) -> Result<K, CallError>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        let request = kube::core::Request::new(K::url_path(&(), namespace))
            .patch(name, &PatchParams::default(), &patch)
            .map_err(|error| {
                CallError::of("annotate the object", kube::Error::BuildRequest(error))
            })?;
        self.api_server
            .call("annotate the object", &self.token, request)
            .await
    }
}

/// Waits until the person is logged out, or the token expires, or the console stops. Streams end then.
pub async fn ends(person: &Person, console: &Console) {
    let session = async {
        match person.session {
            Some(id) => console.sessions.ended(id).await,
            None => std::future::pending().await,
        }
    };
    let token = async {
        match expiry(person.token.secret()) {
            Some(expiry) => {
                let left = expiry - Timestamp::now().as_second();
                tokio::time::sleep(Duration::from_secs(left.try_into().unwrap_or_default())).await;
            }
            None => std::future::pending().await,
        }
    };
    let mut stopped = console.stopped.clone();
    tokio::select! {
        () = session => {}
        () = token => {}
        _ = stopped.wait_for(|stopped| *stopped) => {}
    }
}

impl FromRequestParts<Arc<Console>> for Person {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        console: &Arc<Console>,
    ) -> Result<Self, Problem> {
        let session = parts.extensions.get::<Option<Session>>();
        if let Some(session) = session.cloned().flatten() {
            let user = console.name(&session.token).await?;
            return Ok(Self {
                session: Some(session.id),
                method: session.method,
                until: Some(session.until),
                ..Self::bearer(&console.api_server, session.token, user)
            });
        }
        let token = bearer(&parts.headers).and_then(Token::new);
        let token = token.ok_or_else(Problem::unauthenticated)?;
        let user = console.meet(&token, &Sender::of(parts, console)).await?;
        Ok(Self::bearer(&console.api_server, token, user))
    }
}

impl Console {
    /// The user whom a token names that was accepted before, or that the provider gave. Kept for 60 s.
    ///
    /// # Errors
    /// The API server does not accept the token, or does not respond.
    pub async fn name(&self, token: &Token) -> Result<Arc<UserInfo>, Problem> {
        match self.names.identify_token(token.secret()).await {
            Ok(identity) => Ok(Arc::new(identity.info.clone())),
            Err(error) if error.reason == UNAUTHENTICATED => Err(Problem::unauthenticated()),
            Err(error) => Err(Problem::new(
                StatusCode::BAD_GATEWAY,
                "Unavailable",
                format!(
                    "{}: no one can log in meanwhile, and sessions stay; nothing was changed",
                    error.message
                ),
            )),
        }
    }
}

/// Names of people by their own tokens; requires no right of the console.
impl Reviewer for ApiServer {
    fn review<'a>(&'a self, token: &'a str) -> Reply<'a, Option<Identity>> {
        Box::pin(async move {
            let Some(token) = Token::new(token) else {
                return Ok(None);
            };
            match name_of(self, &token).await {
                Ok(info) => Ok(Some(Identity {
                    user: info.username.clone().unwrap_or_default(),
                    info,
                    ..Identity::default()
                })),
                Err(error) if error.code() == 401 => Ok(None),
                Err(error) => Err(error),
            }
        })
    }
}

async fn name_of(api_server: &ApiServer, token: &Token) -> Result<UserInfo, CallError> {
    let request = Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews");
    let request = body(request, &SelfSubjectReview::default());
    let review: SelfSubjectReview = api_server.call("read your name", token, request).await?;
    Ok(review
        .status
        .and_then(|status| status.user_info)
        .unwrap_or_default())
}

/// A request with this object.
pub(crate) fn body(
    builder: axum::http::request::Builder,
    object: &impl Serialize,
) -> Request<Vec<u8>> {
    builder
        .header("content-type", "application/json")
        .body(serde_json::to_vec(object).unwrap_or_default())
        .unwrap_or_default()
}
