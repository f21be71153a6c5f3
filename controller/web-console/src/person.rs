//! The person who sends a request, named by the API server.

use std::sync::Arc;

use axum::{
    extract::FromRequestParts,
    http::{Request, header, request::Parts},
};
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, UserInfo};
use kube::{
    Resource,
    api::{Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use serving::call::CallError;

use crate::{
    Console,
    api_server::{ApiServer, Token},
    problem::Problem,
};

/// Who asks, and the token that proves it.
#[derive(Clone)]
pub struct Person {
    /// The user's name and groups at the API server.
    pub user: Arc<UserInfo>,
    pub token: Token,
    pub api_server: ApiServer,
}

impl Person {
    /// Asks the API server whom the token names. Requires no right of the console.
    ///
    /// # Errors
    /// The API server does not accept the token (401), or does not respond.
    pub async fn of_token(api_server: &ApiServer, token: Token) -> Result<Self, CallError> {
        let request = Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews");
        let review: SelfSubjectReview = api_server
            .call(
                "read your name",
                &token,
                body(request, &SelfSubjectReview::default()),
            )
            .await?;
        let user = review.status.and_then(|status| status.user_info);
        Ok(Self {
            user: Arc::new(user.unwrap_or_default()),
            token,
            api_server: api_server.clone(),
        })
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
        let url = format!("{}/{name}", K::url_path(&(), Some(namespace)));
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
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        let request = kube::core::Request::new(K::url_path(&(), Some(namespace)))
            .patch(name, &PatchParams::default(), &patch)
            .map_err(|error| {
                CallError::of("annotate the object", kube::Error::BuildRequest(error))
            })?;
        self.api_server
            .call("annotate the object", &self.token, request)
            .await
    }
}

/// Waits until the session of the person ends. A bearer token has none: the API server refuses it once it has expired.
pub async fn ends(_: &Person, _: &Console) {
    std::future::pending().await
}

impl FromRequestParts<Arc<Console>> for Person {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        console: &Arc<Console>,
    ) -> Result<Self, Problem> {
        let token = parts
            .headers
            .get(header::AUTHORIZATION)
            .and_then(|value| Token::new(value.to_str().ok()?.strip_prefix("Bearer ")?))
            .ok_or_else(Problem::unauthenticated)?;
        Ok(Self::of_token(&console.api_server, token).await?)
    }
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
