//! Output of commands: cut into lines of bounded length, and written to our own standard output by a thread of its own, so
//! that a slow reader of our log never stops timers and signals.

use std::{io::Write, sync::mpsc as std_mpsc, time::Duration};

use tokio::sync::mpsc;

/// The longest line, in bytes; the rest of a longer one is cut off and counted.
pub const MAX_LINE: usize = 1 << 20;

/// Cuts a stream of bytes into lines. Holds at most [`MAX_LINE`] bytes.
#[derive(Debug, Default)]
pub struct Lines {
    partial: Vec<u8>,
    cut: u64,
}

impl Lines {
    /// Takes bytes and gives each line that they complete, without its end, and how many bytes of it were cut. Bytes that are no UTF-8
    /// are replaced.
    pub fn feed(&mut self, mut bytes: &[u8], mut line: impl FnMut(&str, u64)) {
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            let (head, rest) = bytes.split_at(end);
            if self.partial.is_empty() && head.len() <= MAX_LINE {
                give(head, 0, &mut line);
            } else {
                self.keep(head);
                self.flush(&mut line);
            }
            bytes = rest.get(1..).unwrap_or_default();
        }
        self.keep(bytes);
    }

    /// Gives what is left when the stream ends without a line end.
    pub fn finish(&mut self, mut line: impl FnMut(&str, u64)) {
        if !self.partial.is_empty() || self.cut > 0 {
            self.flush(&mut line);
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let (kept, cut) = bytes.split_at(bytes.len().min(MAX_LINE.saturating_sub(self.partial.len())));
        self.partial.extend_from_slice(kept);
        self.cut += cut.len() as u64;
    }

    fn flush(&mut self, line: &mut impl FnMut(&str, u64)) {
        if self.cut > 0 {
            // Half a character would hide from whoever looks for a secret that it is the end of half a secret.
            let whole = self.partial.len() - unfinished(&self.partial);
            self.cut += (self.partial.len() - whole) as u64;
            self.partial.truncate(whole);
        }
        give(&self.partial, self.cut, line);
        self.cut = 0;
        // A long line must not hold its memory for the rest of the run.
        if self.partial.capacity() > MAX_LINE / 8 { self.partial = Vec::new() } else { self.partial.clear() }
    }
}

fn give(bytes: &[u8], cut: u64, line: &mut impl FnMut(&str, u64)) {
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    line(&String::from_utf8_lossy(bytes), cut);
}

/// Bytes at the end that begin a character and do not complete it.
fn unfinished(bytes: &[u8]) -> usize {
    let begins = |back: &usize| bytes.len().checked_sub(*back).and_then(|at| bytes.get(at)).is_some_and(|b| *b >= 0xc0);
    let Some(back) = (1..=3).find(begins) else { return 0 };
    match std::str::from_utf8(&bytes[bytes.len() - back..]) {
        Err(error) if error.error_len().is_none() => back,
        Ok(_) | Err(_) => 0,
    }
}

/// What stands at the end of a line of which bytes were cut.
pub fn cut_marker(cut: u64) -> String {
    format!("… [{cut} more bytes of this line were cut]")
}

/// Where the log's thread writes to.
pub trait LogSink: Write + Send + 'static {
    /// A phase begins: what follows is of it.
    fn enter(&mut self, _phase: &'static str) {}
}

impl LogSink for std::io::Stdout {}
impl LogSink for std::io::Sink {}

/// The most bytes of a chunk on its way to the log's thread.
const MAX_CHUNK: usize = 64 << 10;
/// Chunks that wait for a slow reader: together with their size, all the memory that a log takes.
const MAX_CHUNKS: usize = 32;

/// The way to our own log. Cloned freely; waits when the log is slow, so that memory stays bounded.
#[derive(Clone, Debug)]
pub struct Log {
    chunks: mpsc::Sender<Chunk>,
}

#[derive(Debug)]
enum Chunk {
    Text(Vec<u8>),
    Enter(&'static str),
    Flush(std_mpsc::SyncSender<()>),
}

impl Log {
    /// A log that a thread writes to `sink`.
    pub fn to(mut sink: impl LogSink) -> Self {
        let (chunks, mut waiting) = mpsc::channel(MAX_CHUNKS);
        // A log that cannot be written must not stop a run, so a thread that cannot be had only means no log.
        let _ = std::thread::Builder::new().name("log".into()).stack_size(128 * 1024).spawn(move || {
            while let Some(chunk) = waiting.blocking_recv() {
                match chunk {
                    Chunk::Text(bytes) => {
                        let _ = sink.write_all(&bytes);
                        if waiting.is_empty() {
                            let _ = sink.flush();
                        }
                    }
                    Chunk::Enter(phase) => sink.enter(phase),
                    Chunk::Flush(done) => {
                        let _ = sink.flush();
                        let _ = done.try_send(());
                    }
                }
            }
        });
        Self { chunks }
    }

    /// Writes bytes, waiting for room.
    pub async fn write(&self, bytes: Vec<u8>) {
        if bytes.len() > MAX_CHUNK {
            // Long lines, one after the other, must not wait by the dozen.
            for piece in bytes.chunks(MAX_CHUNK) {
                let _ = self.chunks.send(Chunk::Text(piece.to_vec())).await;
            }
        } else if !bytes.is_empty() {
            let _ = self.chunks.send(Chunk::Text(bytes)).await;
        }
    }

    /// A phase begins: what is written from here on is of it.
    pub async fn enter(&self, phase: &'static str) {
        let _ = self.chunks.send(Chunk::Enter(phase)).await;
    }

    /// Writes one line, waiting for room.
    pub async fn line(&self, text: &str) {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(b'\n');
        self.write(bytes).await;
    }

    /// Waits until everything is written, at most for a while.
    pub async fn flush(&self, limit: Duration) {
        let (done, written) = std_mpsc::sync_channel(1);
        let send = tokio::time::timeout(limit, self.chunks.send(Chunk::Flush(done))).await;
        if matches!(send, Ok(Ok(()))) {
            let _ = tokio::task::spawn_blocking(move || written.recv_timeout(limit)).await;
        }
    }
}

#[cfg(test)]
mod tests;
