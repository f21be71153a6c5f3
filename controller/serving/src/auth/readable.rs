//! An extractor for paths with an object's name: a handler that takes it runs only for callers that may read the
//! object.

use std::{marker::PhantomData, sync::Arc};

use axum::{
    extract::{FromRequestParts, Path},
    http::request::Parts,
    response::{IntoResponse, Response},
};
use k8s_openapi::api::authorization::v1::ResourceAttributes;
use kube::Resource;
use serde::Deserialize;

use super::Authenticator;
use crate::problem;

/// The state of a router whose handlers take [`Readable`].
pub trait Authenticates: Send + Sync {
    fn authenticator(&self) -> &Authenticator;
}

impl<T: Authenticates> Authenticates for Arc<T> {
    fn authenticator(&self) -> &Authenticator {
        (**self).authenticator()
    }
}

/// The object of kind `K` from the path segments `{namespace}` and `{name}`, which the caller may `get`. Does not check
/// whether it exists. Answers 401 without a valid token and 403 ([`super::hidden`]) without the right.
pub struct Readable<K> {
    pub namespace: String,
    pub name: String,
    kind: PhantomData<fn() -> K>,
}

#[derive(Deserialize)]
struct Named {
    namespace: String,
    name: String,
}

impl<S: Authenticates, K: Resource<DynamicType = ()>> FromRequestParts<S> for Readable<K> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let authenticator = state.authenticator();
        let caller = authenticator
            .identify(&parts.headers)
            .await
            .map_err(|problem| problem::response(&problem))?;
        let named = Path::<Named>::from_request_parts(parts, state)
            .await
            .map_err(IntoResponse::into_response)?;
        let Named { namespace, name } = named.0;
        let access = ResourceAttributes {
            verb: Some("get".into()),
            group: Some(K::group(&()).into_owned()),
            resource: Some(K::plural(&()).into_owned()),
            namespace: Some(namespace.clone()),
            name: Some(name.clone()),
            ..ResourceAttributes::default()
        };
        authenticator
            .authorize(&caller, access)
            .await
            .map_err(|problem| problem::response(&problem))?;
        Ok(Self {
            namespace,
            name,
            kind: PhantomData,
        })
    }
}
