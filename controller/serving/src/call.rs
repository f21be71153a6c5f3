//! Calls to the API server, each for a limited time; the controller's are the same ones.

use std::time::Duration;

use kube::core::Status;

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// A call that failed, or whose answer did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No answer in time; the call may have had its effect.
    #[error("{what}: no answer within {} s", CALL_TIMEOUT.as_secs())]
    Timeout { what: &'static str },
    #[error("{what}: {} {}", status.code, status.message)]
    Refused { what: &'static str, status: Box<Status> },
    /// The connection failed, or the answer made no sense; the call may have had its effect.
    #[error("{what}: {source}")]
    Transport { what: &'static str, source: Box<kube::Error> },
}

impl CallError {
    pub fn of(what: &'static str, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused { what, status },
            other => Self::Transport { what, source: Box::new(other) },
        }
    }

    /// The API server's answer, when there was one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Refused { status, .. } => Some(status),
            Self::Timeout { .. } | Self::Transport { .. } => None,
        }
    }

    /// The code of the API server's answer; 0 when there was none.
    pub fn code(&self) -> u16 {
        self.status().map_or(0, |status| status.code)
    }
}

/// Awaits a call for at most 10 seconds.
///
/// # Errors
/// When it failed, or nothing was answered.
pub async fn call<T>(what: &'static str, request: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    // On the heap: requests are large, and a look at a run holds several of them.
    match Box::pin(tokio::time::timeout(CALL_TIMEOUT, request)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(CallError::of(what, error)),
        Err(_) => Err(CallError::Timeout { what }),
    }
}

/// As [`call`], where "not found" is an answer. Only the API server's own word for it counts: while it does not serve a kind yet,
/// as after a restart, it answers 404 to everything.
///
/// # Errors
/// As those of [`call`].
pub async fn call_opt<T>(what: &'static str, request: impl Future<Output = kube::Result<T>>) -> Result<Option<T>, CallError> {
    match call(what, request).await {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.status().is_some_and(|status| status.code == 404 && status.reason == "NotFound") => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_api_servers_own_word_says_that_something_is_not_there() {
        let asked = async |code, reason: &str| {
            let status = Status { code, reason: reason.into(), ..Status::default() };
            call_opt::<()>("read run", async { Err(kube::Error::Api(Box::new(status))) }).await
        };
        assert!(asked(404, "NotFound").await.unwrap().is_none());
        assert_eq!(asked(404, "").await.unwrap_err().code(), 404, "of an API server that does not serve the kind yet");
        assert_eq!(asked(403, "Forbidden").await.unwrap_err().code(), 403);
    }
}
