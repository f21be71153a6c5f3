//! Uploads the spool: piece by piece, in order, until the datastore has it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use crds::datastore::{MAX_APPEND, WRONG_OFFSET, causes};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{Client, RequestError, spool::Spool};
use crate::api::backoff;

/// Time to gather lines before an upload. It is most of the delay for people who follow a log.
const GATHER: Duration = Duration::from_millis(200);

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Well,
    /// The last piece was not accepted, and is retried.
    Failing(RequestError),
    /// The datastore refuses the log permanently.
    Refused(RequestError),
}

/// Uploads a spool in the background.
#[derive(Debug)]
pub struct Shipper {
    spool: Arc<Spool>,
    state: watch::Receiver<State>,
    hurry: Arc<watch::Sender<u64>>,
    task: tokio::task::JoinHandle<()>,
}

impl Shipper {
    pub fn start(client: Client, spool: Arc<Spool>) -> Self {
        let (said, state) = watch::channel(State::default());
        let hurry = Arc::new(watch::Sender::new(0));
        let task = tokio::spawn(ship(client, spool.clone(), said, hurry.subscribe()));
        Self {
            spool,
            state,
            hurry,
            task,
        }
    }

    /// Waits until the datastore has everything written so far, including ends of phases.
    ///
    /// # Errors
    /// The cause, if the datastore has accepted nothing for `limit` or refuses permanently. A large log is not cut off as long as
    /// the upload progresses.
    pub async fn flush(&self, limit: Duration) -> Result<(), RequestError> {
        let mut state = self.state.clone();
        let mut until = Instant::now() + limit;
        let mut left = u64::MAX;
        self.hurry.send_modify(|count| *count += 1);
        loop {
            let (bytes, ends) = self.spool.waiting();
            if (bytes, ends) == (0, false) {
                return Ok(());
            }
            if bytes < left {
                left = bytes;
                until = Instant::now() + limit;
            }
            let now = state.borrow_and_update().clone();
            if let State::Refused(error) = now {
                return Err(error);
            }
            if timeout(
                until.saturating_duration_since(Instant::now()),
                state.changed(),
            )
            .await
            .is_err()
            {
                return Err(match now {
                    State::Failing(error) | State::Refused(error) => error,
                    State::Well => RequestError::unanswered(format!(
                        "the datastore accepted no part of the log within {} s",
                        limit.as_secs()
                    )),
                });
            }
        }
    }
}

impl Drop for Shipper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn ship(
    client: Client,
    spool: Arc<Spool>,
    said: watch::Sender<State>,
    mut hurry: watch::Receiver<u64>,
) {
    let mut tries = 0;
    let most = usize::try_from(MAX_APPEND).unwrap_or(usize::MAX);
    loop {
        let Some(piece) = spool.next(most) else {
            said.send_replace(State::Well);
            spool.written.notified().await;
            // Lines written together are sent together. A `flush` ends the wait for more lines.
            let _ = timeout(GATHER, hurry.changed()).await;
            continue;
        };
        let count = piece.bytes.len() as u64;
        match client
            .append(
                piece.phase,
                piece.offset,
                Bytes::from(piece.bytes),
                piece.end,
            )
            .await
        {
            Ok(length) => {
                tries = 0;
                spool.acked(
                    piece.phase,
                    length,
                    piece.end && length == piece.offset + count,
                );
                said.send_replace(State::Well);
            }
            Err(RequestError::Refused(problem))
                if problem.reason == WRONG_OFFSET
                    && problem.length.is_some_and(|l| l <= piece.offset + count) =>
            {
                // A response was lost, or the datastore lost a tail. Its length tells where to continue.
                let length = problem.length.unwrap_or_default();
                if length == piece.offset {
                    tries += 1;
                    sleep(backoff(tries)).await;
                }
                spool.acked(piece.phase, length, false);
            }
            Err(error) => {
                tries += 1;
                let refused = matches!(error, RequestError::Refused(_));
                tracing::info!(
                    error = causes(&error),
                    phase = piece.phase,
                    "a part of the log was not accepted"
                );
                // A fresh pod's token and permissions may be late; after 8 attempts a refusal is permanent.
                if refused && tries > 8 {
                    said.send_replace(State::Refused(error));
                    return;
                }
                let wait = backoff(tries).max(error.after());
                said.send_replace(State::Failing(error));
                sleep(wait).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::datastore::spool::SpoolWriter;

    /// Flushes a spool of 100 bytes to a datastore that accepts ten bytes every ten seconds, up to `taken`.
    async fn flushed(taken: u64) -> Result<(), RequestError> {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::create(dir.path().join("log")).unwrap();
        spool.enter("apply");
        SpoolWriter(spool.clone()).write_all(&[b'x'; 100]).unwrap();
        spool.seal();
        let (said, state) = watch::channel(State::default());
        let sent = spool.clone();
        let task = tokio::spawn(async move {
            for length in (10..=taken).step_by(10) {
                sleep(Duration::from_secs(10)).await;
                sent.acked("apply", length, length == 100);
                said.send_replace(State::Well);
            }
            std::future::pending::<()>().await;
        });
        Shipper {
            spool,
            state,
            hurry: Arc::default(),
            task,
        }
        .flush(Duration::from_secs(15))
        .await
    }

    /// Regression of Burrito 11.15: the log was read once, after the pod's end, and was lost with an error or with the pod.
    #[tokio::test(start_paused = true)]
    async fn flush_waits_for_progress_and_ends_without_it() {
        flushed(100).await.unwrap();
        let begun = Instant::now();
        assert!(flushed(30).await.is_err());
        assert_eq!(begun.elapsed().as_secs(), 45);
    }
}
