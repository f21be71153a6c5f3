//! Calls to the API server with a timeout; the controller uses them too.

use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::{api::ListParams, core::Status};

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// A call that failed or whose response did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No response in time; the call may have taken effect.
    #[error("{what}: no answer within {} s", CALL_TIMEOUT.as_secs())]
    Timeout { what: &'static str },
    #[error("{what}: {} {}", status.code, status.message)]
    Refused {
        what: &'static str,
        status: Box<Status>,
    },
    /// The connection failed, or the response was invalid; the call may have taken effect.
    #[error("{what}: {source}")]
    Transport {
        what: &'static str,
        source: Box<kube::Error>,
    },
}

impl CallError {
    pub fn of(what: &'static str, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused { what, status },
            other => Self::Transport {
                what,
                source: Box::new(other),
            },
        }
    }

    /// The API server's response, if there was one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Refused { status, .. } => Some(status),
            Self::Timeout { .. } | Self::Transport { .. } => None,
        }
    }

    /// The HTTP code of the API server's response; 0 when there was none.
    pub fn code(&self) -> u16 {
        self.status().map_or(0, |status| status.code)
    }
}

/// A call to the API server behind a trait.
pub type Reply<'a, T> = BoxFuture<'a, Result<T, CallError>>;

/// Awaits a call for at most 10 seconds.
///
/// # Errors
/// When it failed, or there was no response.
pub async fn call<T>(
    what: &'static str,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, CallError> {
    // On the heap: requests are large, and a reconcile holds several of them.
    match Box::pin(tokio::time::timeout(CALL_TIMEOUT, request)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(CallError::of(what, error)),
        Err(_) => Err(CallError::Timeout { what }),
    }
}

/// Like [`call`], but returns `None` when the object does not exist. Only a 404 with reason `NotFound` counts: while
/// the API server does not serve a kind yet, for example after a restart, it answers 404 to every request.
///
/// # Errors
/// Those of [`call`].
pub async fn call_opt<T>(
    what: &'static str,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<Option<T>, CallError> {
    match call(what, request).await {
        Ok(answer) => Ok(Some(answer)),
        Err(error)
            if error
                .status()
                .is_some_and(|status| status.code == 404 && status.reason == "NotFound") =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Whether an admission policy itself refused a request, by the message of the API server.
pub fn is_of_policy(message: &str, policy: &str) -> bool {
    message.contains(&format!("ValidatingAdmissionPolicy '{policy}'"))
        && !message.contains("failed to configure")
}

/// The parameters of the page behind one that was listed with these; `None` after the last.
pub fn after(params: &ListParams, page: &ListMeta) -> Option<ListParams> {
    let token = page
        .continue_
        .as_deref()
        .filter(|token| !token.is_empty())?;
    Some(params.clone().continue_token(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_reason_not_found_counts_as_missing() {
        let asked = async |code, reason: &str| {
            let status = Status {
                code,
                reason: reason.into(),
                ..Status::default()
            };
            call_opt::<()>("read run", async {
                Err(kube::Error::Api(Box::new(status)))
            })
            .await
        };
        assert!(asked(404, "NotFound").await.unwrap().is_none());
        assert_eq!(
            asked(404, "").await.unwrap_err().code(),
            404,
            "of an API server that does not serve the kind yet"
        );
        assert_eq!(asked(403, "Forbidden").await.unwrap_err().code(), 403);
    }
}
