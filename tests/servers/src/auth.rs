//! Access to a repository or a state by HTTP `Authorization` header.

use axum::http::{HeaderMap, header};

pub use ledger::basic_header;

/// Who has access to a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Access {
    #[default]
    Public,
    /// Requests with this user and password.
    Basic { user: String, password: String },
    /// Requests with this bearer token.
    Bearer(String),
}

impl Access {
    pub fn basic(user: &str, password: &str) -> Self {
        Self::Basic {
            user: user.to_owned(),
            password: password.to_owned(),
        }
    }

    /// Whether a request with these headers is admitted.
    pub fn admits(&self, headers: &HeaderMap) -> bool {
        let sent = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        match self {
            Self::Public => true,
            Self::Basic { user, password } => sent == Some(basic_header(user, password).as_str()),
            Self::Bearer(token) => sent == Some(format!("Bearer {token}").as_str()),
        }
    }

    /// The `WWW-Authenticate` challenge for a refused request.
    pub fn challenge(&self) -> &'static str {
        match self {
            Self::Bearer(_) => "Bearer realm=\"tests\"",
            Self::Public | Self::Basic { .. } => "Basic realm=\"tests\"",
        }
    }
}
