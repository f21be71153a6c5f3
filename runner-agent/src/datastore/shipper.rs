//! Sends the spool: piece by piece, in order, until the datastore has it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use crds::datastore::{MAX_APPEND, WRONG_OFFSET};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{Client, Trouble, spool::Spool};
use crate::api::backoff;

/// How long lines are gathered before they are sent: what people who follow a log wait for at most, besides the network.
const GATHER: Duration = Duration::from_millis(200);

/// How the sending goes.
#[derive(Clone, Debug, Default)]
enum State {
    /// It goes.
    #[default]
    Well,
    /// The last piece was not taken, and is tried again.
    Trouble(Trouble),
    /// The datastore will not have the log.
    Refused(Trouble),
}

/// Sends a spool in the background.
#[derive(Debug)]
pub struct Shipper {
    spool: Arc<Spool>,
    state: watch::Receiver<State>,
    hurry: Arc<watch::Sender<u64>>,
    task: tokio::task::JoinHandle<()>,
}

impl Shipper {
    /// Begins.
    pub fn start(client: Client, spool: Arc<Spool>) -> Self {
        let (said, state) = watch::channel(State::default());
        let hurry = Arc::new(watch::Sender::new(0));
        let task = tokio::spawn(ship(client, spool.clone(), said, hurry.subscribe()));
        Self { spool, state, hurry, task }
    }

    /// Waits until the datastore has all that was written before; ends of phases included.
    ///
    /// # Errors
    /// What keeps it from that, when the time is over or it never will.
    pub async fn flush(&self, limit: Duration) -> Result<(), Trouble> {
        let mut state = self.state.clone();
        let until = Instant::now() + limit;
        self.hurry.send_modify(|count| *count += 1);
        loop {
            if self.spool.waiting() == (0, false) {
                return Ok(());
            }
            let now = state.borrow_and_update().clone();
            if let State::Refused(trouble) = now {
                return Err(trouble);
            }
            if timeout(until.saturating_duration_since(Instant::now()), state.changed()).await.is_err() {
                return Err(match now {
                    State::Trouble(trouble) | State::Refused(trouble) => trouble,
                    State::Well => Trouble::Unavailable(format!("the log was not taken within {} s", limit.as_secs())),
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

async fn ship(client: Client, spool: Arc<Spool>, said: watch::Sender<State>, mut hurry: watch::Receiver<u64>) {
    let mut tries = 0;
    let most = usize::try_from(MAX_APPEND).unwrap_or(usize::MAX);
    loop {
        let Some(piece) = spool.next(most) else {
            said.send_replace(State::Well);
            spool.written.notified().await;
            // What is written at once is sent at once; somebody who waits for the end does not wait for more lines.
            let _ = timeout(GATHER, hurry.changed()).await;
            continue;
        };
        let count = piece.bytes.len() as u64;
        match client.append(piece.phase, piece.offset, Bytes::from(piece.bytes), piece.end).await {
            Ok(length) => {
                tries = 0;
                spool.acked(piece.phase, length, piece.end && length == piece.offset + count);
                said.send_replace(State::Well);
            }
            Err(Trouble::Refused(problem))
                if problem.reason == WRONG_OFFSET && problem.length.is_some_and(|l| l <= piece.offset + count) =>
            {
                // An answer was lost, or the datastore lost a tail: it says where to go on.
                let length = problem.length.unwrap_or_default();
                if length == piece.offset {
                    tries += 1;
                    sleep(backoff(tries)).await;
                }
                spool.acked(piece.phase, length, false);
            }
            Err(trouble) => {
                tries += 1;
                let refused = matches!(trouble, Trouble::Refused(_));
                tracing::info!(%trouble, phase = piece.phase, "a piece of the log was not taken");
                // Rights and tokens of a fresh pod may be late; after that a refusal stays one.
                if refused && tries > 8 {
                    said.send_replace(State::Refused(trouble));
                    return;
                }
                said.send_replace(State::Trouble(trouble));
                sleep(backoff(tries)).await;
            }
        }
    }
}
