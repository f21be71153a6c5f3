//! The body of a delivery: read in chunks, bounded in size and time, and not stored here.

use std::time::Duration;

use axum::body::{Body, BodyDataStream, HttpBody as _};
use futures::StreamExt as _;
use tokio::time::{Instant, timeout_at};

use super::refusal::Refusal;

/// Maximum size of a body, in bytes; GitHub's own maximum.
pub const LIMIT: u64 = 25 << 20;
/// Timeout for a whole body.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// Bytes to read and discard after a rejection, so that a client that is still sending reads the response.
const DRAINED: u64 = 1 << 20;
/// Timeout for discarding.
const DRAINING: Duration = Duration::from_secs(1);

pub struct Incoming {
    pieces: BodyDataStream,
    /// The announced length, or its lower bound.
    said: u64,
    read: u64,
    ended: bool,
}

impl Incoming {
    pub fn new(body: Body) -> Self {
        let said = body.size_hint().lower();
        Self {
            pieces: body.into_data_stream(),
            said,
            read: 0,
            ended: false,
        }
    }

    /// Checks the announced length.
    ///
    /// # Errors
    /// `TooLarge`.
    pub fn fits(&self) -> Result<(), Refusal> {
        if self.said > LIMIT {
            Err(Refusal::TooLarge)
        } else {
            Ok(())
        }
    }

    /// Reads the whole body.
    ///
    /// # Errors
    /// `TooLarge`, `TooSlow`, `CutOff`.
    pub async fn read(&mut self, each: impl FnMut(&[u8])) -> Result<(), Refusal> {
        self.read_within(LIMIT, Instant::now() + DEADLINE, each)
            .await
    }

    /// Reads on after a rejection, within bounds.
    pub async fn drain(&mut self) {
        let limit = self.read.saturating_add(DRAINED);
        let _ = self
            .read_within(limit, Instant::now() + DRAINING, |_| {})
            .await;
    }

    async fn read_within(
        &mut self,
        limit: u64,
        until: Instant,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), Refusal> {
        while !self.ended {
            let Some(piece) = timeout_at(until, self.pieces.next())
                .await
                .map_err(|_| Refusal::TooSlow)?
            else {
                self.ended = true;
                break;
            };
            let piece = piece.map_err(|_| {
                self.ended = true;
                Refusal::CutOff
            })?;
            self.read = self.read.saturating_add(piece.len() as u64);
            if self.read > limit {
                return Err(Refusal::TooLarge);
            }
            each(&piece);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    /// A body in chunks of one MiB, without announced length.
    fn pieces(count: usize) -> Body {
        Body::from_stream(stream::iter(
            (0..count).map(|_| Ok::<_, std::io::Error>(vec![0; 1 << 20])),
        ))
    }

    #[tokio::test]
    async fn body_is_read_up_to_its_limit() {
        let mut read = 0;
        assert_eq!(
            Incoming::new(pieces(25))
                .read(|piece| read += piece.len())
                .await,
            Ok(())
        );
        assert_eq!(read, 25 << 20);
        let mut read = 0;
        assert_eq!(
            Incoming::new(pieces(4000))
                .read(|piece| read += piece.len())
                .await,
            Err(Refusal::TooLarge)
        );
        assert_eq!(read, 25 << 20, "and no more of it is looked at");
        assert_eq!(
            Incoming::new(Body::from(vec![0; (25 << 20) + 1])).fits(),
            Err(Refusal::TooLarge),
            "before any of it is read"
        );
        assert_eq!(Incoming::new(Body::from(vec![0; 25 << 20])).fits(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_body_is_rejected_at_the_deadline() {
        let begun = Instant::now();
        let mut silent = Incoming::new(Body::from_stream(stream::pending::<
            std::io::Result<Vec<u8>>,
        >()));
        assert_eq!(silent.read(|_| {}).await, Err(Refusal::TooSlow));
        assert_eq!(begun.elapsed(), DEADLINE);
        // Sending a byte now and then does not extend the deadline.
        let begun = Instant::now();
        let drops = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, std::io::Error>(vec![0]), ()))
        });
        assert_eq!(
            Incoming::new(Body::from_stream(drops)).read(|_| {}).await,
            Err(Refusal::TooSlow)
        );
        assert_eq!(begun.elapsed(), DEADLINE);
        // A rejection does not wait for the rest.
        let begun = Instant::now();
        silent.drain().await;
        assert_eq!(begun.elapsed(), DRAINING);
    }

    #[tokio::test]
    async fn truncated_body_is_rejected() {
        let cut = stream::iter([Ok(vec![0]), Err(std::io::Error::other("gone"))]);
        assert_eq!(
            Incoming::new(Body::from_stream(cut)).read(|_| {}).await,
            Err(Refusal::CutOff)
        );
    }
}
