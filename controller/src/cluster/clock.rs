//! Reads the API server's clock off the answers to this process (`design/0001-run-protocol.md`, "Whose clock counts").

use std::task::{Context, Poll};

use axum::http::{Response, header::DATE};
use futures::{FutureExt as _, future::BoxFuture};
use tower::Service;

use crds::clock::ServerClock;

/// A client's connection whose answers tell the time.
#[derive(Clone)]
pub struct Timed<S> {
    inner: S,
    clock: ServerClock,
}

impl<S> Timed<S> {
    /// Tells `clock` of the answers of `inner`.
    pub fn new(inner: S, clock: ServerClock) -> Self {
        Self { inner, clock }
    }
}

impl<S, R, B> Service<R> for Timed<S>
where
    S: Service<R, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<B>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let (clock, sent) = (self.clock.clone(), self.clock.sent());
        let answer = self.inner.call(request);
        async move {
            let answer = answer.await?;
            // An error may be one of something in between, and its time with it.
            if let Some(date) = answer.headers().get(DATE).filter(|_| answer.status().is_success()) {
                clock.answered(sent, date.as_bytes());
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
            std::future::ready(Ok(Response::builder().status(self.0).header(DATE, self.1).body(()).unwrap()))
        }
    }

    #[tokio::test]
    async fn what_the_api_server_carried_out_tells_the_time_and_an_error_does_not() {
        let (clock, far) = (ServerClock::default(), Timestamp::from_second(4_000_000_000).unwrap());
        let ask = async |code| Timed::new(Server(code, "Tue, 02 Oct 2096 07:06:40 GMT"), clock.clone()).call(()).await.unwrap();
        ask(503).await;
        assert!(clock.now() < far);
        ask(200).await;
        assert!((far..far + jiff::SignedDuration::from_mins(10)).contains(&clock.now()), "{}", clock.now());
    }
}
