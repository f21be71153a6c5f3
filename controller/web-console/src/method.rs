//! The ways to log in.

use schemars::JsonSchema;
use serde::Serialize;

/// How a person proves who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub enum Method {
    /// A session with a token of the person's own.
    Token,
    /// A session with an ID token of a provider.
    Oidc,
    /// The header `Authorization`.
    Bearer,
}
