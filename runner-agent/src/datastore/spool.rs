//! The log on disk until the datastore has it: one file a phase, written by the log's thread, read by the shipper. So memory is
//! bounded, the tool never waits for a datastore, and nothing is lost while it is away. The files have no names, so that nobody who
//! runs beside the agent puts something else in their place.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, FileExt},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crds::datastore::MAX_LOG;
use nix::fcntl::{FallocateFlags, fallocate};
use tokio::sync::Notify;

use crate::{files::Scratch, process::LogSink};

/// What may wait on disk for a datastore that is away, in bytes, of all phases together.
const MAX_WAITING: u64 = 1 << 30;
/// Room that is left for the line that says what was cut.
const MARKER: u64 = 256;
/// What the datastore has is given back to the disk in pieces of this many bytes.
const PUNCH: u64 = 16 << 20;

#[derive(Debug)]
struct PhaseLog {
    name: &'static str,
    file: Scratch,
    /// Bytes written.
    length: u64,
    /// Bytes the datastore has.
    acked: u64,
    /// Bytes given back to the disk.
    punched: u64,
    /// Bytes left out since the last that was kept.
    cut: u64,
    /// No more comes.
    sealed: bool,
    /// The datastore knows that no more comes.
    ended: bool,
}

#[derive(Debug, Default)]
struct Inner {
    phases: Vec<PhaseLog>,
}

#[derive(Debug)]
pub struct Spool {
    dir: PathBuf,
    /// The most bytes that wait, of all phases, and that one phase has.
    most: (u64, u64),
    inner: Mutex<Inner>,
    /// Something was written, or a phase ended.
    pub(super) written: Notify,
}

/// A piece that the datastore does not have yet.
#[derive(Debug)]
pub struct Piece {
    pub phase: &'static str,
    pub offset: u64,
    /// Its bytes; none when only the end is to be said.
    pub bytes: Vec<u8>,
    /// Nothing follows it.
    pub end: bool,
}

impl Spool {
    /// A spool on the file system of a directory, which is made when it is not there.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn create(dir: PathBuf) -> io::Result<Arc<Self>> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        Ok(Arc::new(Self { dir, most: (MAX_WAITING, MAX_LOG), inner: Mutex::default(), written: Notify::new() }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A phase begins; the one before it is at its end. A phase that has begun already goes on.
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

    /// Nothing is written any more.
    pub fn seal(&self) {
        if let Some(last) = self.inner().phases.last_mut() {
            last.seal();
        }
        self.written.notify_one();
    }

    fn append(&self, bytes: &[u8]) {
        let mut inner = self.inner();
        let waiting: u64 = inner.phases.iter().map(|phase| phase.length - phase.acked).sum();
        let Some(last) = inner.phases.last_mut().filter(|last| !last.sealed) else { return };
        let count = bytes.len() as u64;
        let room = self.most.0.saturating_sub(waiting).min(self.most.1.saturating_sub(last.length)).saturating_sub(MARKER);
        if count > room {
            last.cut += count;
            return;
        }
        last.mark_cut();
        last.put(bytes);
        drop(inner);
        self.written.notify_one();
    }

    /// The next piece to be sent, of at most `most` bytes.
    pub fn next(&self, most: usize) -> Option<Piece> {
        let inner = self.inner();
        let phase = inner.phases.iter().find(|phase| phase.acked < phase.length || phase.sealed && !phase.ended)?;
        let count = usize::try_from(phase.length - phase.acked).unwrap_or(most).min(most);
        let (file, offset) = (phase.file.clone(), phase.acked);
        let end = phase.sealed && phase.acked + count as u64 == phase.length;
        let name = phase.name;
        drop(inner);
        let mut bytes = vec![0; count];
        if let Err(error) = file.file().read_exact_at(&mut bytes, offset) {
            tracing::warn!(%error, phase = name, "the spool cannot be read");
            return None;
        }
        Some(Piece { phase: name, offset, bytes, end })
    }

    /// The datastore has so many bytes of a phase; `ended` when it knows that no more comes.
    pub fn acked(&self, phase: &str, length: u64, ended: bool) {
        let mut inner = self.inner();
        let Some(log) = inner.phases.iter_mut().find(|log| log.name == phase) else { return };
        log.acked = length.min(log.length);
        log.ended |= ended;
        if log.ended {
            let _ = log.file.file().set_len(0);
        } else if log.acked - log.punched >= PUNCH {
            let (from, count) = (log.punched, log.acked - log.punched);
            // The bytes are with the datastore; a file system that cannot give them back keeps them until the phase ends.
            if let (Ok(from), Ok(count)) = (i64::try_from(from), i64::try_from(count)) {
                let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                let _ = fallocate(log.file.file(), how, from, count);
            }
            log.punched = log.acked;
        }
    }

    /// How many bytes wait, and whether the end of anything waits to be said.
    pub fn waiting(&self) -> (u64, bool) {
        let inner = self.inner();
        let bytes = inner.phases.iter().map(|phase| phase.length - phase.acked).sum();
        (bytes, inner.phases.iter().any(|phase| phase.sealed && !phase.ended))
    }
}

impl PhaseLog {
    fn put(&mut self, bytes: &[u8]) {
        match self.file.file().write_all_at(bytes, self.length) {
            Ok(()) => self.length += bytes.len() as u64,
            // A full disk: what does not fit is missing, and the next line that fits says so.
            Err(_) => self.cut += bytes.len() as u64,
        }
    }

    fn mark_cut(&mut self) {
        let cut = std::mem::take(&mut self.cut);
        if cut > 0 {
            self.put(format!("[{cut} bytes are missing here: the log could not be kept]\n").as_bytes());
        }
    }

    fn seal(&mut self) {
        if !self.sealed {
            self.mark_cut();
            self.sealed = true;
        }
    }
}

/// Takes what the log's thread writes.
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

/// Standard output and the spool.
#[derive(Debug)]
pub struct Both<W> {
    /// Where `kubectl logs` reads.
    pub out: W,
    /// Where the datastore's log comes from.
    pub spool: SpoolWriter,
}

impl<W: Write> Write for Both<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.spool.0.append(bytes);
        // A reader that is gone is no reason to keep nothing.
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
