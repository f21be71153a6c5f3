//! The API client: one object, three requests.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use axum::http::{Response, header::DATE};
use crds::{TerraformRun, clock::ServerClock, names};
use futures::{Stream, StreamExt, future::BoxFuture};
use kube::{
    Config,
    api::{Patch, PatchParams, WatchEvent, WatchParams},
    client::{ClientBuilder, DynBody},
};
use serde_json::Value;
use tool_versions::releases::http::waiting;
use tower::{BoxError, util::MapFutureLayer};

use crate::{
    guard,
    ports::{Api, ApiError, Seen},
};

/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(10);
/// Maximum duration of a watch in seconds, so that a dead connection is noticed.
const WATCH: u32 = 240;

/// The run in a cluster's API.
#[derive(Clone)]
pub struct KubeApi {
    runs: kube::Api<TerraformRun>,
    name: String,
    /// `Retry-After` of the last response of a busy server. The client's errors contain no headers.
    after: Arc<Mutex<Option<Duration>>>,
    clock: ServerClock,
}

impl KubeApi {
    /// Connects as the pod's ServiceAccount, or by `KUBECONFIG` if that is set.
    pub async fn connect(namespace: &str, name: &str) -> anyhow::Result<Self> {
        let config = if std::env::var_os("KUBECONFIG").is_some() {
            Config::infer().await?
        } else {
            Config::incluster_env()?
        };
        Self::with(config, namespace, name)
    }

    fn with(mut config: Config, namespace: &str, name: &str) -> anyhow::Result<Self> {
        // The client's own retry would hide requests from the writer. Proxies are for the tool's traffic, not for the API server.
        config.default_retry = false;
        config.proxy_url = None;
        config.connect_timeout = Some(REQUEST);
        let after = Arc::<Mutex<Option<Duration>>>::default();
        let noted = Arc::clone(&after);
        let clock = ServerClock::default();
        let told = clock.clone();
        let note = MapFutureLayer::new(
            move |answer: BoxFuture<'static, Result<Response<Box<DynBody>>, BoxError>>| {
                let (noted, told, sent) = (Arc::clone(&noted), told.clone(), told.sent());
                async move {
                    let response = answer.await?;
                    if is_busy(response.status().as_u16()) {
                        let asked = waiting::asked_for(response.headers(), SystemTime::now());
                        *guard(&noted) = asked;
                    }
                    // An error may come from an intermediary, and so may its `Date`.
                    if let Some(date) = response
                        .headers()
                        .get(DATE)
                        .filter(|_| response.status().is_success())
                    {
                        told.answered(sent, date.as_bytes());
                    }
                    Ok::<_, BoxError>(response)
                }
            },
        );
        let client = ClientBuilder::try_from(config)?.with_layer(&note).build();
        Ok(Self {
            runs: kube::Api::namespaced(client, namespace),
            name: name.to_owned(),
            after,
            clock,
        })
    }

    /// The API server's clock, estimated from its responses to this client.
    pub fn clock(&self) -> ServerClock {
        self.clock.clone()
    }

    async fn bounded<T>(
        &self,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ApiError> {
        match tokio::time::timeout(REQUEST, request).await {
            Ok(result) => result.map_err(|error| self.error(&error)),
            Err(_) => Err(ApiError {
                code: None,
                text: format!("no answer within {} s", REQUEST.as_secs()),
                after: None,
            }),
        }
    }

    fn error(&self, error: &kube::Error) -> ApiError {
        let code = match error {
            // While the API server does not serve a kind yet, for example after a restart, it answers 404 without this reason to every
            // request; that tells nothing about the run.
            kube::Error::Api(status) => {
                Some(status.code).filter(|code| *code != 404 || status.reason == "NotFound")
            }
            _ => None,
        };
        let noted = || *guard(&self.after);
        ApiError {
            code,
            text: error.to_string(),
            after: code.filter(|code| is_busy(*code)).and_then(|_| noted()),
        }
    }
}

/// Whether `Retry-After` applies: too many requests, or the server is not ready.
const fn is_busy(code: u16) -> bool {
    matches!(code, 429 | 503)
}

impl Api for KubeApi {
    async fn get(&self) -> Result<TerraformRun, ApiError> {
        self.bounded(self.runs.get(&self.name)).await
    }

    async fn patch(&self, operations: Vec<Value>) -> Result<TerraformRun, ApiError> {
        let patch = serde_json::from_value(Value::Array(operations)).map_err(|e| ApiError {
            code: None,
            text: format!("not a patch: {e}"),
            after: None,
        })?;
        let params = PatchParams {
            field_manager: Some(names::AGENT_MANAGER.into()),
            ..PatchParams::default()
        };
        self.bounded(
            self.runs
                .patch_status(&self.name, &params, &Patch::Json::<()>(patch)),
        )
        .await
    }

    async fn watch(
        &self,
        version: &str,
    ) -> Result<impl Stream<Item = Seen> + Send + 'static, ApiError> {
        let params = WatchParams::default()
            .fields(&format!("metadata.name={}", self.name))
            .timeout(WATCH)
            .disable_bookmarks();
        let events = self.bounded(self.runs.watch(&params, version)).await?;
        Ok(events.map(|event| match event {
            Ok(WatchEvent::Added(run) | WatchEvent::Modified(run)) => Seen::Run(Arc::new(run)),
            Ok(WatchEvent::Deleted(_)) => Seen::Gone,
            Ok(WatchEvent::Bookmark(_) | WatchEvent::Error(_)) | Err(_) => Seen::Lost,
        }))
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// The client's error for this response of a server.
    async fn refused(answer: &'static str) -> ApiError {
        asked(answer).await.0.unwrap_err()
    }

    /// The client's result for this response of a server, and its clock's time afterwards.
    async fn asked(answer: &'static str) -> (Result<TerraformRun, ApiError>, Timestamp) {
        // Fails only if a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        });
        let api = KubeApi::with(Config::new(url.parse().unwrap()), "team", "vpc").unwrap();
        let answer = api.get().await;
        server.await.unwrap();
        (answer, api.clock().now())
    }

    #[tokio::test]
    async fn busy_server_sets_the_wait() {
        // As API Priority and Fairness responds: in plain text, so the header is the only source.
        let busy = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 8\r\nConnection: close\r\n\r\ntoo many";
        let error = refused(busy).await;
        assert_eq!(
            (error.code, error.after),
            (Some(429), Some(Duration::from_secs(7))),
            "{error}"
        );
        assert_eq!(
            (error.wait(false), error.wait(true)),
            (Duration::from_secs(7), Duration::ZERO)
        );
        let long = "HTTP/1.1 503 Unavailable\r\nRetry-After: 3600\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        assert_eq!(refused(long).await.wait(false), ApiError::LONGEST_WAIT);
        let other = "HTTP/1.1 409 Conflict\r\nRetry-After: 7\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        assert_eq!(refused(other).await.after, None);
    }

    #[tokio::test]
    async fn only_reason_not_found_counts_as_missing() {
        let unserved = "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 18\r\nConnection: close\r\n\r\n404 page not found";
        assert_eq!(refused(unserved).await.code, None);
        let gone = "HTTP/1.1 404 Not Found\r\nContent-Length: 84\r\nConnection: close\r\n\r\n{\"kind\":\"Status\",\"status\":\"Failure\",\"reason\":\"NotFound\",\"message\":\"gone\",\"code\":404}";
        assert_eq!(refused(gone).await.code, Some(404));
    }

    #[tokio::test]
    async fn successful_response_sets_the_clock_and_error_does_not() {
        let far = Timestamp::from_second(4_000_000_000).unwrap();
        let fine = "HTTP/1.1 200 OK\r\nDate: Tue, 02 Oct 2096 07:06:40 GMT\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
        let (_, now) = asked(fine).await;
        assert!(
            (far..far + SignedDuration::from_mins(10)).contains(&now),
            "{now}"
        );
        let error = "HTTP/1.1 502 Bad Gateway\r\nDate: Tue, 02 Oct 2096 07:06:40 GMT\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let (refused, now) = asked(error).await;
        assert!(refused.is_err() && now < far, "{now}");
    }
}
