//! Buffers the log on disk until the datastore has it: one file per phase, written by the log's thread, read by the shipper. So
//! memory is bounded, the tool never waits for the datastore, and an outage loses nothing. The files have no names, so no other
//! process of the pod can replace them.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, FileExt},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
};

use crds::datastore::MAX_LOG;
use nix::fcntl::{FallocateFlags, fallocate};
use tokio::sync::Notify;

use crate::{files::Scratch, guard, process::LogSink};

/// Maximum number of bytes on disk that wait for the datastore, over all phases.
const MAX_WAITING: u64 = 1 << 30;
/// Bytes reserved for the line that reports dropped data.
const MARKER: u64 = 256;
/// Bytes that the datastore has are freed on disk in pieces of this size.
const PUNCH: u64 = 16 << 20;

#[derive(Debug)]
struct PhaseLog {
    name: &'static str,
    file: Scratch,
    /// Bytes written.
    length: u64,
    /// Bytes that the datastore has.
    acked: u64,
    /// Bytes freed on disk.
    punched: u64,
    /// Bytes dropped since the last one that was stored.
    cut: u64,
    /// The phase has ended.
    sealed: bool,
    /// The datastore knows that the phase has ended.
    ended: bool,
}

#[derive(Debug, Default)]
struct Inner {
    phases: Vec<PhaseLog>,
}

#[derive(Debug)]
pub struct Spool {
    dir: PathBuf,
    /// Maximum number of waiting bytes over all phases, and of bytes of one phase.
    most: (u64, u64),
    inner: Mutex<Inner>,
    /// Notified of new data and of a phase's end.
    pub(super) written: Notify,
}

/// A piece that the datastore lacks.
#[derive(Debug)]
pub struct Piece {
    pub phase: &'static str,
    pub offset: u64,
    /// Its bytes; empty if only the end is reported.
    pub bytes: Vec<u8>,
    /// The phase ends with this piece.
    pub end: bool,
}

impl Spool {
    /// Creates a spool in a directory, and the directory if it is missing.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn create(dir: PathBuf) -> io::Result<Arc<Self>> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)?;
        Ok(Arc::new(Self {
            dir,
            most: (MAX_WAITING, MAX_LOG),
            inner: Mutex::default(),
            written: Notify::new(),
        }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        guard(&self.inner)
    }

    /// Begins a phase and ends the one before. No effect if the phase is the current one.
    pub fn enter(&self, phase: &'static str) {
        let mut inner = self.inner();
        if inner.phases.last().is_some_and(|last| last.name == phase) {
            return;
        }
        if let Some(last) = inner.phases.last_mut() {
            last.seal();
        }
        match Scratch::create(&self.dir) {
            Ok(file) => inner.phases.push(PhaseLog {
                name: phase,
                file,
                length: 0,
                acked: 0,
                punched: 0,
                cut: 0,
                sealed: false,
                ended: false,
            }),
            Err(error) => tracing::warn!(%error, phase, "the log of this phase cannot be kept"),
        }
        drop(inner);
        self.written.notify_one();
    }

    /// Ends the log.
    pub fn seal(&self) {
        if let Some(last) = self.inner().phases.last_mut() {
            last.seal();
        }
        self.written.notify_one();
    }

    fn append(&self, bytes: &[u8]) {
        let mut inner = self.inner();
        let waiting: u64 = inner
            .phases
            .iter()
            .map(|phase| phase.length - phase.acked)
            .sum();
        let Some(last) = inner.phases.last_mut().filter(|last| !last.sealed) else {
            return;
        };
        let count = bytes.len() as u64;
        let room = self
            .most
            .0
            .saturating_sub(waiting)
            .min(self.most.1.saturating_sub(last.length))
            .saturating_sub(MARKER);
        if count > room {
            last.cut += count;
            return;
        }
        last.mark_cut();
        last.put(bytes);
        drop(inner);
        self.written.notify_one();
    }

    /// The next piece to upload, of at most `most` bytes.
    pub fn next(&self, most: usize) -> Option<Piece> {
        let inner = self.inner();
        let phase = inner
            .phases
            .iter()
            .find(|phase| phase.acked < phase.length || phase.sealed && !phase.ended)?;
        let count = usize::try_from(phase.length - phase.acked)
            .unwrap_or(most)
            .min(most);
        let (file, offset) = (phase.file.clone(), phase.acked);
        let end = phase.sealed && phase.acked + count as u64 == phase.length;
        let name = phase.name;
        drop(inner);
        let mut bytes = vec![0; count];
        if let Err(error) = file.file().read_exact_at(&mut bytes, offset) {
            tracing::warn!(%error, phase = name, "the spool cannot be read");
            return None;
        }
        Some(Piece {
            phase: name,
            offset,
            bytes,
            end,
        })
    }

    /// Records that the datastore has `length` bytes of a phase, and with `ended` that it knows of the phase's end.
    pub fn acked(&self, phase: &str, length: u64, ended: bool) {
        let mut inner = self.inner();
        let Some(log) = inner.phases.iter_mut().find(|log| log.name == phase) else {
            return;
        };
        log.acked = length.min(log.length);
        log.ended |= ended;
        if log.ended {
            let _ = log.file.file().set_len(0);
        } else if log.acked - log.punched >= PUNCH {
            let (from, count) = (log.punched, log.acked - log.punched);
            // A file system without hole punching frees the bytes at the end of the phase.
            if let (Ok(from), Ok(count)) = (i64::try_from(from), i64::try_from(count)) {
                let how =
                    FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                let _ = fallocate(log.file.file(), how, from, count);
            }
            log.punched = log.acked;
        }
    }

    /// Number of waiting bytes, and whether a phase's end is still to be reported.
    pub fn waiting(&self) -> (u64, bool) {
        let inner = self.inner();
        let bytes = inner
            .phases
            .iter()
            .map(|phase| phase.length - phase.acked)
            .sum();
        (
            bytes,
            inner
                .phases
                .iter()
                .any(|phase| phase.sealed && !phase.ended),
        )
    }
}

impl PhaseLog {
    fn put(&mut self, bytes: &[u8]) {
        match self.file.file().write_all_at(bytes, self.length) {
            Ok(()) => self.length += bytes.len() as u64,
            // The disk is full: drop the bytes, and report that with the next line that fits.
            Err(_) => self.cut += bytes.len() as u64,
        }
    }

    fn mark_cut(&mut self) {
        let cut = std::mem::take(&mut self.cut);
        if cut > 0 {
            self.put(
                format!("[{cut} bytes are missing here: the log could not be kept]\n").as_bytes(),
            );
        }
    }

    fn seal(&mut self) {
        if !self.sealed {
            self.mark_cut();
            self.sealed = true;
        }
    }
}

/// The log's thread writes to the spool through this.
#[derive(Clone, Debug)]
pub struct SpoolWriter(pub Arc<Spool>);

impl Write for SpoolWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.append(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes to standard output and the spool.
#[derive(Debug)]
pub struct Both<W> {
    /// Read by `kubectl logs`.
    pub out: W,
    /// Uploaded to the datastore.
    pub spool: SpoolWriter,
}

impl<W: Write> Write for Both<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.spool.0.append(bytes);
        // A failed standard output must not stop the spool.
        let _ = self.out.write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<W: Write + Send + 'static> LogSink for Both<W> {
    fn enter(&mut self, phase: &'static str) {
        self.spool.0.enter(phase);
    }
}

#[cfg(test)]
mod tests;
