//! Output of commands: splits it into lines of bounded length. A separate thread writes our own log to standard output, so that a
//! slow reader of the log never delays timers and signals.

use std::{io::Write, sync::mpsc as std_mpsc, time::Duration};

use tokio::sync::mpsc;

/// Maximum length of a line in bytes. The rest of a longer line is dropped and counted.
pub const MAX_LINE: usize = 1 << 20;

/// Splits a stream of bytes into lines. Buffers at most [`MAX_LINE`] bytes.
#[derive(Debug, Default)]
pub struct Lines {
    partial: Vec<u8>,
    cut: u64,
}

impl Lines {
    /// Passes each completed line without its end, and the number of dropped bytes. Replaces bytes that are not UTF-8.
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

    /// Passes the rest if the stream ends without a line end.
    pub fn finish(&mut self, mut line: impl FnMut(&str, u64)) {
        if !self.partial.is_empty() || self.cut > 0 {
            self.flush(&mut line);
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let (kept, cut) =
            bytes.split_at(bytes.len().min(MAX_LINE.saturating_sub(self.partial.len())));
        self.partial.extend_from_slice(kept);
        self.cut += cut.len() as u64;
    }

    fn flush(&mut self, line: &mut impl FnMut(&str, u64)) {
        if self.cut > 0 {
            // A partial character would hide from the redactor that the text ends within a secret.
            let whole = self.partial.len() - unfinished(&self.partial);
            self.cut += (self.partial.len() - whole) as u64;
            self.partial.truncate(whole);
        }
        give(&self.partial, self.cut, line);
        self.cut = 0;
        // Free the memory of a long line.
        if self.partial.capacity() > MAX_LINE / 8 {
            self.partial = Vec::new();
        } else {
            self.partial.clear();
        }
    }
}

fn give(bytes: &[u8], cut: u64, line: &mut impl FnMut(&str, u64)) {
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    line(&String::from_utf8_lossy(bytes), cut);
}

/// Number of trailing bytes that begin a character without completing it.
fn unfinished(bytes: &[u8]) -> usize {
    let begins = |back: &usize| {
        bytes
            .len()
            .checked_sub(*back)
            .and_then(|at| bytes.get(at))
            .is_some_and(|b| *b >= 0xc0)
    };
    let Some(back) = (1..=3).find(begins) else {
        return 0;
    };
    match std::str::from_utf8(&bytes[bytes.len() - back..]) {
        Err(error) if error.error_len().is_none() => back,
        Ok(_) | Err(_) => 0,
    }
}

/// Suffix of a line with dropped bytes.
pub fn cut_marker(cut: u64) -> String {
    format!("… [{cut} more bytes of this line were cut]")
}

/// The destination of the log's thread.
pub trait LogSink: Write + Send + 'static {
    /// A phase begins; later output belongs to it.
    fn enter(&mut self, _phase: &'static str) {}
}

impl LogSink for std::io::Stdout {}
impl LogSink for std::io::Sink {}

/// Maximum size in bytes of a chunk for the log's thread.
const MAX_CHUNK: usize = 64 << 10;
/// Maximum number of chunks that wait for a slow reader. With their size it bounds the log's memory.
const MAX_CHUNKS: usize = 32;

/// Handle to our own log. Cheap to clone. Waits while the log is slow, so memory stays bounded.
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
    /// Starts a thread that writes the log to `sink`.
    pub fn to(mut sink: impl LogSink) -> Self {
        let (chunks, mut waiting) = mpsc::channel(MAX_CHUNKS);
        // Without a thread there is no log: a log that cannot be written must not stop a run.
        let _ = std::thread::Builder::new()
            .name("log".into())
            .stack_size(128 * 1024)
            .spawn(move || {
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

    /// Writes bytes; waits for space.
    pub async fn write(&self, bytes: Vec<u8>) {
        if bytes.len() > MAX_CHUNK {
            // Split, so that the queue does not fill with huge chunks.
            for piece in bytes.chunks(MAX_CHUNK) {
                let _ = self.chunks.send(Chunk::Text(piece.to_vec())).await;
            }
        } else if !bytes.is_empty() {
            let _ = self.chunks.send(Chunk::Text(bytes)).await;
        }
    }

    /// Begins a phase; later output belongs to it.
    pub async fn enter(&self, phase: &'static str) {
        let _ = self.chunks.send(Chunk::Enter(phase)).await;
    }

    /// Writes one line; waits for space.
    pub async fn line(&self, text: &str) {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(b'\n');
        self.write(bytes).await;
    }

    /// Waits until everything is written, for at most `limit`.
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
