//! Reads the API server's clock from the responses to this process (`design/0001-run-protocol.md`, "Whose clock
//! counts"), and bounds the wait for each response.

use std::{
    io,
    task::{Context, Poll},
    time::Duration,
};

use axum::http::{
    Response, StatusCode,
    header::{DATE, RETRY_AFTER},
};
use futures::{FutureExt as _, future::BoxFuture};
use tower::{BoxError, Service};

use crds::clock::ServerClock;

/// Timeout until a response starts; a list or watch may continue longer. It equals the API server's own request
/// timeout. Without it, an API server that disappears during the request would leave a watch hanging, because the
/// watch's own timeout starts with the first response.
const BEGINS: Duration = Duration::from_secs(60);

/// A client's transport that reads time and `Retry-After` from responses: errors of the client contain no headers, and
/// rejections by API Priority and Fairness have no Status body.
#[derive(Clone)]
pub struct Timed<S> {
    inner: S,
    clock: ServerClock,
}

impl<S> Timed<S> {
    /// Reports the responses of `inner` to `clock`.
    pub fn new(inner: S, clock: ServerClock) -> Self {
        Self { inner, clock }
    }
}

impl<S, R, B> Service<R> for Timed<S>
where
    S: Service<R, Response = Response<B>, Error: Into<BoxError>, Future: Send + 'static>,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let (clock, sent) = (self.clock.clone(), self.clock.sent());
        let answer = self.inner.call(request);
        async move {
            let none = |_| {
                io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no answer within {} s", BEGINS.as_secs()),
                )
            };
            let answer = tokio::time::timeout(BEGINS, answer)
                .await
                .map_err(none)?
                .map_err(Into::into)?;
            // An error may come from a proxy, with the proxy's time.
            if let Some(date) = answer
                .headers()
                .get(DATE)
                .filter(|_| answer.status().is_success())
            {
                clock.answered(sent, date.as_bytes());
            }
            let busy = matches!(
                answer.status(),
                StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
            );
            if let Some(after) = answer.headers().get(RETRY_AFTER).filter(|_| busy) {
                clock.busy(after.as_bytes());
            }
            Ok(answer)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use jiff::Timestamp;

    use super::*;

    #[derive(Clone)]
    struct Server(u16, &'static str);

    impl Service<()> for Server {
        type Response = Response<()>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Response<()>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, (): ()) -> Self::Future {
            let answer = Response::builder()
                .status(self.0)
                .header(DATE, self.1)
                .header(RETRY_AFTER, "7");
            std::future::ready(Ok(answer.body(()).unwrap()))
        }
    }

    #[derive(Clone)]
    struct Silent;

    impl Service<()> for Silent {
        type Response = Response<()>;
        type Error = Infallible;
        type Future = std::future::Pending<Result<Response<()>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, (): ()) -> Self::Future {
            std::future::pending()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silent_api_server_times_out() {
        let asked = tokio::time::timeout(
            2 * BEGINS,
            Timed::new(Silent, ServerClock::default()).call(()),
        );
        assert_eq!(
            asked.await.unwrap().unwrap_err().to_string(),
            "no answer within 60 s"
        );
    }

    #[tokio::test]
    async fn only_successful_responses_set_the_clock() {
        let (clock, far) = (
            ServerClock::default(),
            Timestamp::from_second(4_000_000_000).unwrap(),
        );
        let ask = async |code| {
            Timed::new(Server(code, "Tue, 02 Oct 2096 07:06:40 GMT"), clock.clone())
                .call(())
                .await
                .unwrap()
        };
        ask(502).await;
        assert!(clock.now() < far);
        ask(200).await;
        assert!(clock.busy_for().is_zero(), "neither asks for time");
        assert!(
            (far..far + jiff::SignedDuration::from_mins(10)).contains(&clock.now()),
            "{}",
            clock.now()
        );
    }

    #[tokio::test]
    async fn retry_after_of_a_busy_server_is_recorded() {
        for code in [429, 503] {
            let clock = ServerClock::default();
            Timed::new(Server(code, ""), clock.clone())
                .call(())
                .await
                .unwrap();
            assert!(
                (6_000..=7_000).contains(&clock.busy_for().as_millis()),
                "{code}"
            );
        }
    }
}
