//! Datastore requests with a file as content, and retries.

use std::{io, path::Path, time::Duration};

use crds::datastore::{self as words, ObjectKind, causes};
use datastore_client::{
    RequestError,
    attempt::{AttemptId, Client, Content},
};
use reqwest::Body;
use tokio::{
    fs::File,
    io::AsyncWriteExt as _,
    time::{Instant, sleep},
};
use tokio_util::io::ReaderStream;

use crate::{api::backoff, files::Scratch, settings::Store};

/// Creates a client for an attempt. Sends nothing yet.
///
/// # Errors
/// The certificate authority is not PEM.
pub fn client(
    store: &Store,
    namespace: &str,
    run: &str,
    attempt: u32,
    nonce: &str,
) -> Result<Client, RequestError> {
    let of = AttemptId {
        namespace: namespace.to_owned(),
        run: run.to_owned(),
        attempt,
        nonce: nonce.to_owned(),
    };
    Client::new(&store.url, &store.ca, store.token.clone(), &of)
}

/// Stores a file as an object that is written once. Storing the same content again succeeds.
pub async fn put_file(
    client: &Client,
    kind: ObjectKind,
    file: &Scratch,
    digest: &str,
) -> Result<(), RequestError> {
    let size = file
        .size()
        .map_err(|error| RequestError::file(kind.as_str(), error))?;
    client
        .put(
            kind,
            Content {
                body: Body::wrap_stream(file.stream()),
                size,
                digest: digest.to_owned(),
            },
        )
        .await
}

/// Downloads an object of an attempt of this run into a scratch file in a directory.
pub async fn get_file(
    client: &Client,
    kind: ObjectKind,
    attempt: u32,
    dir: &Path,
) -> Result<Scratch, RequestError> {
    let mut response = client.get(kind, attempt).await?;
    let local = |error: io::Error| RequestError::file(dir, error);
    let scratch = Scratch::create(dir).map_err(local)?;
    let mut file = File::from_std(scratch.file().try_clone().map_err(local)?);
    while let Some(chunk) = response.chunk().await? {
        file.write_all(&chunk).await.map_err(local)?;
    }
    file.flush().await.map_err(local)?;
    Ok(scratch)
}

/// Writes a new version of the state under its lock.
pub async fn put_state(
    client: &Client,
    lock: &str,
    path: &Path,
    digest: &str,
) -> Result<(), RequestError> {
    let local = |error: io::Error| RequestError::file(path, error);
    let file = File::open(path).await.map_err(local)?;
    let size = file.metadata().await.map_err(local)?.len();
    let body = Body::wrap_stream(ReaderStream::with_capacity(file, 256 << 10));
    client
        .put_state(
            lock,
            Content {
                body,
                size,
                digest: digest.to_owned(),
            },
        )
        .await
}

/// Retries until the datastore responds or `limit` has passed. Rejected tokens and missing permissions are retried for 3 s too: a
/// token may have been renewed just now, and a fresh pod's permissions may not be in force yet.
///
/// # Errors
/// The last error.
pub async fn retry_for<T, F: Future<Output = Result<T, RequestError>>>(
    limit: Duration,
    mut request: impl FnMut() -> F,
) -> Result<T, RequestError> {
    let begun = Instant::now();
    let mut tries = 0;
    loop {
        let error = match request().await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let fresh = [words::UNAUTHENTICATED, words::FORBIDDEN]
            .iter()
            .any(|reason| error.is(reason))
            && begun.elapsed() < Duration::from_secs(3);
        if matches!(error, RequestError::Refused(_)) && !fresh {
            return Err(error);
        }
        tries += 1;
        let wait = backoff(tries).max(error.after());
        if begun.elapsed() + wait > limit {
            return Err(error);
        }
        tracing::info!(
            error = causes(&error),
            "the datastore did not carry out a request; it is sent again"
        );
        sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use crds::datastore::Problem;

    use super::*;

    #[tokio::test]
    async fn only_temporary_errors_are_retried() {
        let retried = async |limit: u64, answer: &dyn Fn(u32) -> Result<u32, RequestError>| {
            let mut times = 0;
            let result = retry_for(Duration::from_millis(limit), || {
                times += 1;
                std::future::ready(answer(times))
            });
            (result.await, times)
        };
        let refused = || {
            RequestError::Refused(Problem {
                reason: words::TOO_LARGE.into(),
                ..Problem::default()
            })
        };
        let (result, times) = retried(60_000, &|_| Err(refused())).await;
        assert!(result.unwrap_err().is(words::TOO_LARGE) && times == 1);
        let away = || Err(RequestError::unanswered("away"));
        let (result, times) =
            retried(60_000, &|times| if times == 4 { Ok(7) } else { away() }).await;
        assert_eq!((result.unwrap(), times), (7, 4));
        let (result, times) = retried(400, &|_| away()).await;
        assert!(result.is_err() && times > 1);
    }

    #[tokio::test(start_paused = true)]
    async fn busy_datastore_sets_the_wait() {
        let (begun, mut times) = (Instant::now(), 0);
        let result = retry_for(Duration::from_secs(60), || {
            times += 1;
            let busy = RequestError::busy(Problem::default(), Duration::from_secs(9));
            let answer = if times == 3 { Ok(()) } else { Err(busy) };
            async { answer }
        });
        result.await.unwrap();
        assert!(begun.elapsed() >= Duration::from_secs(18));
    }
}
