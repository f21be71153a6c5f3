//! Logs: one per phase of an attempt, stored in segments whose names contain their byte ranges.
//!
//! The last segment grows up to 256 KiB: a longer one is written, then the shorter one deleted. So neither a writer
//! that was stopped in between nor a replica with an outdated view removes acknowledged bytes. Readers use the longest
//! segment.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{StreamExt as _, stream::BoxStream};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crds::datastore::{
    ALREADY_EXISTS, LOG_PHASES, Length, LogStand, MAX_APPEND, MAX_LOG, Problem, TOO_LARGE,
    WRONG_OFFSET,
};
use serving::problem::{corrupt, invalid, problem};

use crate::{
    blob::sealed::Sealed,
    names::{LogKey, RunKey},
};

/// Maximum size of the growing last segment, in bytes.
const TAIL: u64 = 256 << 10;
/// Maximum number of logs with a cached last segment.
const ACTIVE: usize = 256;

/// The stored segments of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// Segments in order: read offset, first and last byte of the segment.
    pub segments: Vec<(u64, u64)>,
    /// Bytes readable from the start without a gap.
    pub length: u64,
    /// Whether the writer has marked the end.
    pub ended: bool,
    /// Whether there are bytes after a gap.
    pub gap: bool,
}

impl Index {
    /// Builds the index from listed bounds: the chain from byte 0, taking the segment that reaches furthest at each
    /// step.
    pub fn of(mut bounds: Vec<(u64, u64)>, ended: bool) -> Self {
        bounds.sort_unstable();
        let (mut index, mut next) = (
            Self {
                ended,
                ..Self::default()
            },
            0,
        );
        loop {
            let mut best: Option<(u64, u64)> = None;
            while let Some(&(start, end)) =
                bounds.get(next).filter(|(start, _)| *start <= index.length)
            {
                if end > index.length && best.is_none_or(|(_, furthest)| end > furthest) {
                    best = Some((start, end));
                }
                next += 1;
            }
            let Some(found) = best else { break };
            index.length = found.1;
            index.segments.push(found);
        }
        index.gap = next < bounds.len();
        index
    }
}

/// The `end` record.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct End {
    length: u64,
}

struct Tail {
    /// Offset of the last segment.
    start: u64,
    bytes: Vec<u8>,
    ended: bool,
}

impl Tail {
    fn length(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

/// The cached last segment of a log; `None` while it is changed or unknown.
type Active = Arc<tokio::sync::Mutex<Option<Tail>>>;

pub struct Logs {
    sealed: Sealed,
    /// With the time of the last use.
    active: Mutex<HashMap<LogKey, (Instant, Active)>>,
    grown: watch::Sender<u64>,
}

impl Logs {
    pub fn new(sealed: Sealed) -> Self {
        Self {
            sealed,
            active: Mutex::default(),
            grown: watch::Sender::new(0),
        }
    }

    /// Changes whenever any log grew in this process.
    pub fn grown(&self) -> watch::Receiver<u64> {
        self.grown.subscribe()
    }

    /// Appends bytes at an offset. Bytes that are already stored are acknowledged; of a partially stored piece, the
    /// rest is appended.
    ///
    /// # Errors
    /// `WrongOffset` with the length when there would be a gap; `TooLarge`; `AlreadyExists` after the end;
    /// `Unavailable`.
    pub async fn append(
        &self,
        key: &LogKey,
        offset: u64,
        piece: &[u8],
        end: bool,
    ) -> Result<Length, Problem> {
        if piece.len() as u64 > MAX_APPEND {
            return Err(problem(
                TOO_LARGE,
                format!("an append has at most {MAX_APPEND} bytes"),
            ));
        }
        let upto = offset
            .checked_add(piece.len() as u64)
            .filter(|upto| *upto <= MAX_LOG);
        let upto =
            upto.ok_or_else(|| problem(TOO_LARGE, format!("a log has at most {MAX_LOG} bytes")))?;
        let active = self.active(key);
        let mut guard = active.lock().await;
        // Remove the cache entry during the change. If the change is interrupted, the next append reads the store.
        let mut tail = match guard.take() {
            Some(tail) if tail.length() == offset => tail,
            // Another replica may have appended.
            Some(_) | None => self.load(key).await?,
        };
        let length = tail.length();
        if offset > length {
            *guard = Some(tail);
            return Err(Problem {
                length: Some(length),
                ..problem(WRONG_OFFSET, format!("the log has {length} bytes"))
            });
        }
        let known = usize::try_from(length - offset)
            .unwrap_or(usize::MAX)
            .min(piece.len());
        let new = &piece[known..];
        if tail.ended && !new.is_empty() {
            *guard = Some(tail);
            return Err(problem(
                ALREADY_EXISTS,
                format!("the log has ended with {length} bytes"),
            ));
        }
        if !new.is_empty() {
            self.grow(key, &mut tail, new).await?;
        }
        if end && !tail.ended {
            if upto < tail.length() {
                let length = tail.length();
                *guard = Some(tail);
                return Err(invalid(format!(
                    "the log has {length} bytes and cannot end before them"
                )));
            }
            self.sealed
                .create(
                    &key.end(),
                    &End {
                        length: tail.length(),
                    },
                    &[],
                )
                .await?;
            tail.ended = true;
        }
        let length = tail.length();
        *guard = Some(tail);
        drop(guard);
        self.grown
            .send_modify(|count| *count = count.wrapping_add(1));
        Ok(Length { length })
    }

    /// Performs one write: extends the last segment, or starts the next one.
    async fn grow(&self, key: &LogKey, tail: &mut Tail, new: &[u8]) -> Result<(), Problem> {
        let length = tail.length();
        let (room, added) = (
            TAIL.saturating_sub(tail.bytes.len() as u64),
            new.len() as u64,
        );
        if added <= room && !tail.bytes.is_empty() {
            let shorter = key.segment(tail.start, length);
            tail.bytes.extend_from_slice(new);
            self.sealed
                .overwrite_bytes(&key.segment(tail.start, tail.length()), &tail.bytes)
                .await?;
            let store = self.sealed.store().clone();
            // Delete in the background. Readers ignore the shorter segment if it remains.
            tokio::spawn(async move { store.delete(&shorter).await });
            return Ok(());
        }
        self.sealed
            .overwrite_bytes(&key.segment(length, length + added), new)
            .await?;
        *tail = Tail {
            start: length,
            bytes: new.to_vec(),
            ended: tail.ended,
        };
        if added >= TAIL {
            *tail = Tail {
                start: length + added,
                bytes: Vec::new(),
                ended: tail.ended,
            };
        }
        Ok(())
    }

    async fn load(&self, key: &LogKey) -> Result<Tail, Problem> {
        let index = self.index(key).await?;
        let Some(&(start, end)) = index.segments.last() else {
            return Ok(Tail {
                start: 0,
                bytes: Vec::new(),
                ended: index.ended,
            });
        };
        if end - start >= TAIL {
            return Ok(Tail {
                start: end,
                bytes: Vec::new(),
                ended: index.ended,
            });
        }
        let bytes = self.segment(key, start, end).await?.to_vec();
        Ok(Tail {
            start,
            bytes,
            ended: index.ended,
        })
    }

    /// The stored segments of a log.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn index(&self, key: &LogKey) -> Result<Index, Problem> {
        let (_, words) = self.sealed.store().children(&key.prefix()).await?;
        let ended = words.iter().any(|word| word == "end");
        Ok(Index::of(
            words
                .iter()
                .filter_map(|word| LogKey::bounds(word))
                .collect(),
            ended,
        ))
    }

    /// The completeness of an attempt's logs. The agent marks the end of a phase's log when the next phase starts, and
    /// that of the last one when the agent exits.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn stand(&self, run: &RunKey, attempt: u32) -> Result<LogStand, Problem> {
        let mut begun = false;
        for phase in LOG_PHASES {
            let index = self
                .index(&LogKey {
                    run: run.clone(),
                    attempt,
                    phase,
                })
                .await?;
            if index.gap || !index.ended && !index.segments.is_empty() {
                return Ok(LogStand { whole: false });
            }
            begun |= index.ended;
        }
        Ok(LogStand { whole: begun })
    }

    async fn segment(&self, key: &LogKey, start: u64, end: u64) -> Result<Bytes, Problem> {
        let name = key.segment(start, end);
        let length = usize::try_from(end - start).unwrap_or(usize::MAX);
        if length as u64 > MAX_APPEND + TAIL {
            return Err(corrupt(format!("{name} is longer than any segment")));
        }
        let bytes = self
            .sealed
            .read_bytes(&name, length)
            .await?
            .ok_or_else(|| corrupt(format!("{name} is gone")))?;
        if bytes.len() == length {
            Ok(bytes)
        } else {
            Err(corrupt(format!(
                "{name} does not have the length that it records"
            )))
        }
    }

    /// Reads a log from byte `from` up to the end of the index.
    pub fn read(
        self: &Arc<Self>,
        key: &LogKey,
        index: &Index,
        from: u64,
    ) -> BoxStream<'static, Result<Bytes, Problem>> {
        let segments: Vec<(u64, u64)> = index
            .segments
            .iter()
            .copied()
            .filter(|(_, end)| *end > from)
            .collect();
        let (logs, key) = (self.clone(), key.clone());
        let state = (logs, key, segments.into_iter(), from);
        futures::stream::try_unfold(state, |(logs, key, mut segments, at)| async move {
            let Some((start, end)) = segments.next() else {
                return Ok(None);
            };
            let bytes = logs.bytes(&key, start, end).await?;
            let skip = usize::try_from(at.saturating_sub(start))
                .unwrap_or(usize::MAX)
                .min(bytes.len());
            Ok(Some((bytes.slice(skip..), (logs, key, segments, end))))
        })
        .boxed()
    }

    /// The offset at which the last `lines` lines of a log start.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`, `KeyMissing`.
    pub async fn lines_before_end(
        &self,
        key: &LogKey,
        index: &Index,
        lines: u64,
    ) -> Result<u64, Problem> {
        let mut left = lines;
        if lines == 0 {
            return Ok(index.length);
        }
        for &(start, end) in index.segments.iter().rev() {
            let bytes = self.bytes(key, start, end).await?;
            // A line feed at the end of the log starts no further line.
            let upto = if end == index.length && bytes.ends_with(b"\n") {
                bytes.len() - 1
            } else {
                bytes.len()
            };
            for (at, _) in bytes[..upto]
                .iter()
                .enumerate()
                .rev()
                .filter(|(_, byte)| **byte == b'\n')
            {
                left = left.saturating_sub(1);
                if left == 0 {
                    return Ok(start + at as u64 + 1);
                }
            }
        }
        Ok(0)
    }

    /// The bytes of a listed segment, from a longer one if that replaced it between the list and the read.
    async fn bytes(&self, key: &LogKey, start: u64, end: u64) -> Result<Bytes, Problem> {
        let mut found = self.segment(key, start, end).await;
        for _ in 0..8 {
            let Err(problem) = found else { break };
            let index = self.index(key).await?;
            let longer = index
                .segments
                .iter()
                .find(|(first, last)| *first == start && *last > end);
            found = self.segment(key, start, longer.ok_or(problem)?.1).await;
        }
        let length = usize::try_from(end - start).unwrap_or(usize::MAX);
        found.map(|bytes| bytes.slice(..length.min(bytes.len())))
    }

    /// Drops the cached segments of a deleted run.
    pub fn forget(&self, run: &RunKey) {
        self.active
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|key, _| key.run != *run);
    }

    fn active(&self, key: &LogKey) -> Active {
        let now = Instant::now();
        let mut active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        if active.len() >= ACTIVE && !active.contains_key(key) {
            active.retain(|_, (used, tail)| {
                Arc::strong_count(tail) > 1 || now.duration_since(*used) < Duration::from_secs(60)
            });
            while active.len() >= ACTIVE {
                // Dropping an entry in use is safe: two writers of one log synchronize through the store.
                let oldest = active
                    .iter()
                    .min_by_key(|(_, (used, _))| *used)
                    .map(|(key, _)| key.clone());
                let Some(oldest) = oldest else { break };
                active.remove(&oldest);
            }
        }
        let (used, tail) = active
            .entry(key.clone())
            .or_insert_with(|| (now, Active::default()));
        *used = now;
        tail.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_use_the_segments_that_reach_furthest() {
        let index = Index::of(
            vec![(0, 5), (0, 9), (9, 20), (9, 12), (4, 7), (20, 21)],
            false,
        );
        assert_eq!(index.segments, [(0, 9), (9, 20), (20, 21)]);
        assert_eq!((index.length, index.gap), (21, false));
        let overlap = Index::of(vec![(0, 9), (5, 30), (9, 12)], true);
        assert_eq!(
            (overlap.segments.as_slice(), overlap.length),
            ([(0, 9), (5, 30)].as_slice(), 30)
        );
    }

    #[test]
    fn bytes_after_a_gap_are_not_read() {
        let index = Index::of(vec![(0, 5), (6, 9)], false);
        assert_eq!((index.length, index.gap), (5, true));
        assert_eq!(Index::of(vec![(1, 5)], false).length, 0);
        assert_eq!(
            Index::of(Vec::new(), true),
            Index {
                ended: true,
                ..Index::default()
            }
        );
    }
}
