//! The bytes received so far, over all tries.

use std::io::SeekFrom;

use tokio::{
    fs::File,
    io::{AsyncSeekExt as _, AsyncWriteExt as _},
};

use super::answer::is_strong;
use crate::{Error, Result};

/// The destination of a body.
#[derive(Debug)]
pub(super) enum Sink<'a> {
    Memory(Vec<u8>),
    File(&'a mut File),
}

#[derive(Debug)]
pub(super) struct Received<'a> {
    pub(super) sink: Sink<'a>,
    pub(super) bytes: u64,
    /// The length of the whole body, when the server gave it.
    pub(super) whole: Option<u64>,
    /// The ETag of the entity that the bytes are part of.
    pub(super) etag: Option<String>,
}

impl<'a> Received<'a> {
    pub(super) fn new(sink: Sink<'a>) -> Self {
        Self { sink, bytes: 0, whole: None, etag: None }
    }

    /// The ETag for `If-Range`, when the download can be resumed.
    pub(super) fn resumable(&self) -> Option<&str> {
        self.etag.as_deref().filter(|tag| self.bytes > 0 && is_strong(tag))
    }

    /// Discards all bytes.
    pub(super) async fn restart(&mut self, what: &str) -> Result<()> {
        (self.bytes, self.whole, self.etag) = (0, None, None);
        match &mut self.sink {
            Sink::Memory(bytes) => bytes.clear(),
            Sink::File(file) => {
                let storage = |error| Error::storage(format!("the file for {what}"), &error);
                file.set_len(0).await.map_err(storage)?;
                file.seek(SeekFrom::Start(0)).await.map_err(storage)?;
            }
        }
        Ok(())
    }

    pub(super) async fn add(&mut self, what: &str, piece: &[u8]) -> Result<()> {
        match &mut self.sink {
            Sink::Memory(bytes) => bytes.extend_from_slice(piece),
            Sink::File(file) => {
                let written = file.write_all(piece).await;
                written.map_err(|error| Error::storage(format!("the file for {what}"), &error))?;
            }
        }
        self.bytes += piece.len() as u64;
        Ok(())
    }

    /// Flushes the file: `tokio` reports a failure of the last write only here.
    pub(super) async fn finish(&mut self, what: &str) -> Result<()> {
        if let Sink::File(file) = &mut self.sink {
            file.flush().await.map_err(|error| Error::storage(format!("the file for {what}"), &error))?;
        }
        Ok(())
    }
}
