//! Errors of calls to the API server and the datastore. An error tells nothing about the state of an object: after an
//! error, read the objects again.

use std::{fmt, time::Duration};

use futures::TryFutureExt as _;
use kube::core::Status;

use crds::datastore::causes;
use datastore_client::RequestError;
use serving::call::{self, CallError};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Call(#[from] CallError),
    /// An object of this name exists that this controller did not create.
    #[error(
        "{kind} {name} exists and was not created by Pawl, so it gets no rights and no pod is started; delete it"
    )]
    Foreign { kind: &'static str, name: String },
    /// The run is no longer as the decision read it.
    #[error("the run has changed meanwhile")]
    Changed,
    /// The datastore, or a file needed for it, failed.
    #[error("{}", causes(.0))]
    Datastore(#[from] RequestError),
    #[error("{what}: {source}")]
    Encode {
        what: &'static str,
        source: serde_json::Error,
    },
}

/// The kind of an [`Error`], a label of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// 409 for a write.
    Conflict,
    /// 409 for a creation.
    AlreadyExists,
    /// 404.
    NotFound,
    /// 401: the API server does not know who asks, which tells nothing about rights.
    Unauthenticated,
    /// 403: of a lacking right, or of admission.
    Forbidden,
    /// 400 and 422.
    Invalid,
    /// 429.
    Throttled,
    /// 5xx.
    Server,
    Timeout,
    /// No connection, or an invalid response.
    Transport,
    /// An object that is not ours, or cannot be serialized.
    Internal,
}

impl ErrorKind {
    /// The name in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::AlreadyExists => "already_exists",
            Self::NotFound => "not_found",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::Invalid => "invalid",
            Self::Throttled => "throttled",
            Self::Server => "server",
            Self::Timeout => "timeout",
            Self::Transport => "transport",
            Self::Internal => "internal",
        }
    }
}

impl ErrorKind {
    /// Whether the API server definitely did not carry out the request. For all other errors this is unknown.
    pub const fn is_refusal(self) -> bool {
        match self {
            Self::Conflict
            | Self::AlreadyExists
            | Self::NotFound
            | Self::Unauthenticated
            | Self::Forbidden
            | Self::Invalid
            | Self::Throttled => true,
            Self::Server | Self::Timeout | Self::Transport | Self::Internal => false,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Call(CallError::Timeout { .. }) => ErrorKind::Timeout,
            Self::Call(CallError::Transport { .. }) => ErrorKind::Transport,
            Self::Changed => ErrorKind::Conflict,
            Self::Foreign { .. } | Self::Datastore(_) | Self::Encode { .. } => ErrorKind::Internal,
            Self::Call(CallError::Refused { status, .. }) => match status.code {
                409 if status.is_already_exists() => ErrorKind::AlreadyExists,
                409 => ErrorKind::Conflict,
                // Only the API server's explicit reason counts: while it does not serve a kind yet, for example after a
                // restart, it answers 404 to every request.
                404 if status.reason == "NotFound" => ErrorKind::NotFound,
                404 => ErrorKind::Server,
                401 => ErrorKind::Unauthenticated,
                403 => ErrorKind::Forbidden,
                429 => ErrorKind::Throttled,
                code if code >= 500 => ErrorKind::Server,
                _ => ErrorKind::Invalid,
            },
        }
    }

    /// Whether the request failed because its namespace is being deleted or is gone.
    pub fn is_of_terminating_namespace(&self) -> bool {
        let details = self.status().and_then(|status| status.details.as_ref());
        details.is_some_and(|details| {
            let goes =
                |cause: &kube::core::response::StatusCause| cause.reason == "NamespaceTerminating";
            let gone = self.kind() == ErrorKind::NotFound && details.kind == "namespaces";
            gone || details.causes.iter().any(goes)
        })
    }

    /// The wait that a busy datastore requests. The clock tracks the API server's.
    pub fn after(&self) -> Duration {
        match self {
            Self::Datastore(error) => error.after(),
            Self::Call(_) | Self::Foreign { .. } | Self::Changed | Self::Encode { .. } => {
                Duration::ZERO
            }
        }
    }

    /// The API server's response, if there was one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Call(error) => error.status(),
            Self::Foreign { .. } | Self::Changed | Self::Datastore(_) | Self::Encode { .. } => None,
        }
    }
}

/// Awaits a call for at most 10 seconds.
pub fn call<T>(
    what: &'static str,
    request: impl Future<Output = kube::Result<T>>,
) -> impl Future<Output = Result<T, Error>> {
    call::call(what, request).err_into()
}

/// Like [`call()`], but returns `None` when the object does not exist.
pub fn call_opt<T>(
    what: &'static str,
    request: impl Future<Output = kube::Result<T>>,
) -> impl Future<Output = Result<Option<T>, Error>> {
    call::call_opt(what, request).err_into()
}
