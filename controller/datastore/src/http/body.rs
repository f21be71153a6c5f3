//! The body of a request, with bounds on length, idle time and rate.

use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures::Stream;
use http_body_util::BodyExt as _;

use crds::datastore::{Problem, TOO_LARGE};
use serving::problem::{invalid, problem};

use crate::metrics::Metrics;

/// Maximum time without data from the client.
const IDLE: Duration = Duration::from_secs(30);
/// After this time, the average rate must exceed [`SLOWEST`].
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes per second.
const SLOWEST: u64 = 16 << 10;
/// How many bytes to read and discard after a rejection, so that a client that is still sending reads the response.
const DRAINED: u64 = 4 << 20;
/// Maximum time for that.
const DRAINING: Duration = Duration::from_secs(2);

pub struct Incoming<'a> {
    body: Body,
    limit: u64,
    read: u64,
    begun: Instant,
    ended: bool,
    metrics: &'a Metrics,
}

impl<'a> Incoming<'a> {
    /// A body of at most `limit` bytes.
    pub fn new(body: Body, limit: u64, metrics: &'a Metrics) -> Self {
        Self {
            body,
            limit,
            read: 0,
            begun: Instant::now(),
            ended: false,
            metrics,
        }
    }

    /// The next chunk; `None` at the end.
    ///
    /// # Errors
    /// `TooLarge`; `Invalid` when the client stopped or is too slow.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        while !self.ended {
            let frame = tokio::time::timeout(IDLE, self.body.frame()).await;
            let Some(frame) = frame.map_err(|_| invalid("the body did not go on"))? else {
                self.ended = true;
                break;
            };
            let frame = frame.map_err(|_| invalid("the body was cut off"))?;
            let Ok(piece) = frame.into_data() else {
                continue;
            };
            if piece.is_empty() {
                continue;
            }
            self.read = self.read.saturating_add(piece.len() as u64);
            self.metrics.received(piece.len());
            if self.read > self.limit {
                return Err(problem(TOO_LARGE, format!("at most {} bytes", self.limit)));
            }
            let elapsed = self.begun.elapsed();
            if elapsed > PATIENCE && self.read < SLOWEST * elapsed.as_secs() {
                return Err(invalid("the body is too slow"));
            }
            return Ok(Some(piece));
        }
        Ok(None)
    }

    /// Collects the whole body.
    ///
    /// # Errors
    /// Those of [`Self::next`].
    pub async fn collect(&mut self) -> Result<Bytes, Problem> {
        let mut all = BytesMut::new();
        while let Some(piece) = self.next().await? {
            all.extend_from_slice(&piece);
        }
        Ok(all.freeze())
    }

    pub fn stream(&mut self) -> impl Stream<Item = Result<Bytes, Problem>> {
        futures::stream::try_unfold(self, |body| async move {
            Ok(body.next().await?.map(|piece| (piece, body)))
        })
    }

    /// Reads on after a rejection, within bounds.
    pub async fn drain(&mut self) {
        self.limit = self.read.saturating_add(DRAINED);
        let drained = async { while let Ok(Some(_)) = self.next().await {} };
        let _ = tokio::time::timeout(DRAINING, drained).await;
    }
}
