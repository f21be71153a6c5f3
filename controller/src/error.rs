//! What can go wrong between the controller and the API server. No error says anything about a state: the reader of one reads
//! the objects again.

use std::{fmt, time::Duration};

use kube::core::Status;

use crds::datastore::causes;
use datastore_client::RequestError;

/// How long a call may take.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// A call that failed, or whose answer did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No answer in time; the call may have had its effect.
    #[error("{what}: no answer within {} s", CALL_TIMEOUT.as_secs())]
    Timeout {
        /// What was asked.
        what: &'static str,
    },
    /// The API server refused.
    #[error("{what}: {} {}", status.code, status.message)]
    Refused {
        /// What was asked.
        what: &'static str,
        /// Its answer.
        status: Box<Status>,
    },
    /// The connection failed, or the answer made no sense; the call may have had its effect.
    #[error("{what}: {source}")]
    Transport {
        /// What was asked.
        what: &'static str,
        /// What happened.
        source: Box<kube::Error>,
    },
    /// An object of that name exists and is not of this run.
    #[error("{kind} `{name}` exists and does not belong to this run")]
    Foreign {
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The datastore, or a file that is needed for it.
    #[error("{}", causes(.0))]
    Datastore(#[from] RequestError),
    /// An object cannot be written as JSON.
    #[error("{what}: {source}")]
    Encode {
        /// What was to be written.
        what: &'static str,
        /// Why not.
        source: serde_json::Error,
    },
}

/// The kind of an [`Error`]: a label of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// 409 on a write.
    Conflict,
    /// 409 on a creation.
    AlreadyExists,
    /// 404.
    NotFound,
    /// 401 and 403.
    Forbidden,
    /// 400 and 422.
    Invalid,
    /// 429.
    Throttled,
    /// 5xx.
    Server,
    /// No answer in time.
    Timeout,
    /// No connection, or no sense in the answer.
    Transport,
    /// An object that is not ours, or cannot be written.
    Internal,
}

impl ErrorKind {
    /// The word in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::AlreadyExists => "already_exists",
            Self::NotFound => "not_found",
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

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Error {
    /// Makes an error of `kube`'s.
    pub fn of(what: &'static str, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused { what, status },
            other => Self::Transport { what, source: Box::new(other) },
        }
    }

    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Timeout { .. } => ErrorKind::Timeout,
            Self::Transport { .. } => ErrorKind::Transport,
            Self::Foreign { .. } | Self::Datastore(_) | Self::Encode { .. } => ErrorKind::Internal,
            Self::Refused { status, .. } => match status.code {
                409 if status.is_already_exists() => ErrorKind::AlreadyExists,
                409 => ErrorKind::Conflict,
                // Only the API server's own word for it: while it does not serve a kind yet, as after a restart, it answers 404 to
                // everything.
                404 if status.reason == "NotFound" => ErrorKind::NotFound,
                404 => ErrorKind::Server,
                401 | 403 => ErrorKind::Forbidden,
                429 => ErrorKind::Throttled,
                code if code >= 500 => ErrorKind::Server,
                _ => ErrorKind::Invalid,
            },
        }
    }

    /// The API server's answer, when there was one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Refused { status, .. } => Some(status),
            Self::Timeout { .. } | Self::Transport { .. } | Self::Foreign { .. } | Self::Datastore(_) | Self::Encode { .. } => {
                None
            }
        }
    }
}

/// Awaits a call for at most [`CALL_TIMEOUT`].
pub async fn call<T>(what: &'static str, request: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    // On the heap: requests are large, and a look at a run holds several of them.
    match Box::pin(tokio::time::timeout(CALL_TIMEOUT, request)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Error::of(what, error)),
        Err(_) => Err(Error::Timeout { what }),
    }
}

/// As [`call`], where "not found" is an answer.
pub async fn call_opt<T>(what: &'static str, request: impl Future<Output = kube::Result<T>>) -> Result<Option<T>, Error> {
    match call(what, request).await {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_api_servers_own_word_says_that_something_is_not_there() {
        let kind = |code, reason: &str| {
            let status = Status { code, reason: reason.into(), ..Status::default() };
            Error::of("read run", kube::Error::Api(Box::new(status))).kind()
        };
        assert_eq!(kind(404, "NotFound"), ErrorKind::NotFound);
        assert_eq!(kind(404, ""), ErrorKind::Server, "of an API server that does not serve the kind yet");
        assert_eq!((kind(409, "AlreadyExists"), kind(409, "Conflict")), (ErrorKind::AlreadyExists, ErrorKind::Conflict));
        assert_eq!(
            (kind(403, ""), kind(429, ""), kind(503, "")),
            (ErrorKind::Forbidden, ErrorKind::Throttled, ErrorKind::Server)
        );
        assert_eq!(kind(422, "Invalid"), ErrorKind::Invalid);
    }
}
