//! Requests that failed or whose outcome is unknown.

use std::{error::Error, io, path::PathBuf, sync::Arc, time::Duration};

use reqwest::{RequestBuilder, Response, StatusCode, header::RETRY_AFTER};

use crds::{
    datastore::{CORRUPT, INVALID, KEY_MISSING, Problem, causes},
    text::clip,
};

/// Maximum size of a response that is read into memory, in bytes.
pub(crate) const MAX_ANSWER: usize = 64 << 10;

/// The longest `Retry-After` of the datastore that is obeyed: after the claim, requests are retried for a few minutes only.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// A request that failed or whose outcome is unknown. [`causes`] prints it with its sources.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RequestError {
    /// A local file of the request failed: token, certificate authority or content.
    #[error("cannot use {}", path.display())]
    File {
        /// The file or its directory.
        path: PathBuf,
        /// The error.
        source: Arc<io::Error>,
    },
    /// The certificate authority is not PEM.
    #[error("the datastore's certificate authority cannot be used")]
    Authority(#[source] Arc<reqwest::Error>),
    /// No response, or one that may change on a retry. The request may have been carried out.
    #[error("the datastore does not answer")]
    Unanswered(#[source] Arc<dyn Error + Send + Sync>),
    /// A response that will not change on a retry.
    #[error("the datastore refuses")]
    Refused(#[source] Problem),
}

impl RequestError {
    /// An error with a file.
    pub fn file(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::File {
            path: path.into(),
            source: Arc::new(source),
        }
    }

    /// A missing response, with the reason.
    pub fn unanswered(why: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unanswered(Arc::from(why.into()))
    }

    /// A response that may change after this time.
    pub fn busy(problem: Problem, after: Duration) -> Self {
        Self::Unanswered(Arc::new(Busy { problem, after }))
    }

    /// Whether the datastore responded with this reason.
    pub fn is(&self, reason: &str) -> bool {
        matches!(self, Self::Refused(problem) if problem.reason == reason)
    }

    /// The minimum wait before a retry, as requested by a busy datastore.
    pub fn after(&self) -> Duration {
        match self {
            Self::Unanswered(source) => source
                .downcast_ref::<Busy>()
                .map_or(Duration::ZERO, |busy| busy.after.min(LONGEST_WAIT)),
            Self::File { .. } | Self::Authority(_) | Self::Refused(_) => Duration::ZERO,
        }
    }

    /// The cause of a failed request that the datastore certainly did not carry out.
    pub fn why(&self) -> String {
        match self {
            Self::File { path, source } => format!("{}: {source}", path.display()),
            Self::Authority(_) => causes(self),
            Self::Unanswered(source) => causes(source),
            Self::Refused(problem) => problem.to_string(),
        }
    }
}

/// A response that may change later.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
struct Busy {
    problem: Problem,
    after: Duration,
}

impl From<reqwest::Error> for RequestError {
    fn from(error: reqwest::Error) -> Self {
        Self::Unanswered(Arc::new(error))
    }
}

/// Returns a successful response; sorts others into those worth a retry and refusals.
pub(crate) async fn sorted(response: Response) -> Result<Response, RequestError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let seconds = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|after| after.to_str().ok()?.trim().parse().ok());
    let after = Duration::from_secs(seconds.unwrap_or_default());
    let text = read(response).await.unwrap_or_default();
    let problem = serde_json::from_slice::<Problem>(&text).unwrap_or_else(|_| Problem {
        reason: INVALID.to_owned(),
        message: format!("{status}: {}", clip(&String::from_utf8_lossy(&text), 200)),
        ..Problem::default()
    });
    let definite = [CORRUPT, KEY_MISSING].contains(&problem.reason.as_str());
    let later = status.is_server_error() && !definite || status == StatusCode::TOO_MANY_REQUESTS;
    Err(if later {
        RequestError::busy(problem, after)
    } else {
        RequestError::Refused(problem)
    })
}

/// Sends a request for which only a success counts.
pub(crate) async fn answer(request: RequestBuilder) -> Result<Response, RequestError> {
    sorted(request.send().await?).await
}

/// Like [`sorted`], but `None` for an object that does not exist.
pub(crate) async fn found(response: Response) -> Result<Option<Response>, RequestError> {
    if response.status() == StatusCode::NOT_FOUND {
        Ok(None)
    } else {
        sorted(response).await.map(Some)
    }
}

pub(crate) async fn read(response: Response) -> Result<Vec<u8>, RequestError> {
    read_up_to(response, MAX_ANSWER).await
}

/// The body of a response, at most `most` bytes.
pub(crate) async fn read_up_to(
    mut response: Response,
    most: usize,
) -> Result<Vec<u8>, RequestError> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await? {
        body.extend_from_slice(&piece);
        if body.len() > most {
            return Err(RequestError::unanswered(format!(
                "an answer of more than {most} bytes"
            )));
        }
    }
    Ok(body)
}

pub(crate) fn parsed<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, RequestError> {
    serde_json::from_slice(body)
        .map_err(|error| RequestError::unanswered(format!("an answer that is no JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn of(code: u16, body: &'static str) -> Result<Response, RequestError> {
        let answer = http::Response::builder()
            .status(code)
            .header(RETRY_AFTER, "7")
            .body(body)
            .unwrap();
        sorted(answer.into()).await
    }

    #[tokio::test]
    async fn transient_answers_are_not_refusals() {
        assert!(of(204, "").await.is_ok());
        let problem = r#"{"reason": "Unavailable", "message": "too many"}"#;
        for code in [503, 500, 429] {
            let error = of(code, problem).await.unwrap_err();
            assert!(matches!(error, RequestError::Unanswered(_)), "{code}");
            assert_eq!(
                causes(&error),
                "the datastore does not answer: Unavailable: too many"
            );
            assert_eq!(
                (error.why().as_str(), error.after().as_secs()),
                ("Unavailable: too many", 7)
            );
        }
        for (code, body) in [
            (500, r#"{"reason": "Corrupt", "message": "m"}"#),
            (403, problem),
        ] {
            let error = of(code, body).await.unwrap_err();
            assert!(
                matches!(error, RequestError::Refused(_)) && error.after().is_zero(),
                "{body}"
            );
        }
        let error = of(418, "<html>").await.unwrap_err();
        assert_eq!(
            causes(&error),
            "the datastore refuses: Invalid: 418 I'm a teapot: <html>"
        );
        assert!(error.is(INVALID));
    }

    #[tokio::test]
    async fn oversized_answer_is_an_error() {
        let body = |length: usize| http::Response::new("x".repeat(length)).into();
        assert_eq!(read(body(MAX_ANSWER)).await.unwrap().len(), MAX_ANSWER);
        assert!(read(body(MAX_ANSWER + 1)).await.is_err());
    }
}
