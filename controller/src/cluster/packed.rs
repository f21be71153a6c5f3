//! Values that look much alike as JSON, kept small: each says only what the first one of them did not.

use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use serde::{Serialize, de::DeserializeOwned};

/// More than deflate adds to what cannot be made smaller, in bytes, for each 16 KiB.
const MORE: usize = 64;

/// What texts are compared with: the first of them.
#[derive(Debug)]
pub(crate) struct Alike(OnceLock<Box<[u8]>>);

/// A text among others like it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    bytes: Box<[u8]>,
    length: usize,
}

impl Alike {
    /// There is no text yet.
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Packs a value.
    ///
    /// # Errors
    /// When it is no JSON, or cannot be compressed.
    pub(crate) fn keep(&self, value: &impl Serialize) -> Result<Packed> {
        self.pack(&serde_json::to_vec(value)?)
    }

    /// A value that was packed here; `None`, which is logged, when it cannot be read.
    pub(crate) fn read<T: DeserializeOwned>(&self, packed: &Packed) -> Option<T> {
        let read = self.text(packed).and_then(|text| Ok(serde_json::from_slice(&text)?));
        read.inspect_err(|error| tracing::error!(%error, "what a cache keeps packed cannot be read")).ok()
    }

    fn pack(&self, text: &[u8]) -> Result<Packed> {
        let mut bytes = Vec::with_capacity(text.len() + MORE * (1 + text.len() / (16 << 10)));
        let mut deflate = Compress::new(Compression::default(), false);
        deflate.set_dictionary(self.0.get_or_init(|| text.into()))?;
        let status = deflate.compress_vec(text, &mut bytes, FlushCompress::Finish)?;
        ensure!(status == Status::StreamEnd, "a text of {} bytes is larger when it is packed", text.len());
        Ok(Packed { bytes: bytes.into(), length: text.len() })
    }

    /// A text that was packed here; an error when it is not what was packed.
    fn text(&self, packed: &Packed) -> Result<Vec<u8>> {
        let mut text = Vec::with_capacity(packed.length);
        let mut inflate = Decompress::new(false);
        inflate.set_dictionary(self.0.get().context("nothing was packed yet")?)?;
        let status = inflate.decompress_vec(&packed.bytes, &mut text, FlushDecompress::Finish)?;
        ensure!(
            status == Status::StreamEnd && text.len() == packed.length,
            "{} of {} bytes came back",
            text.len(),
            packed.length
        );
        Ok(text)
    }
}

#[cfg(test)]
impl Packed {
    /// How many bytes it takes.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_comes_back_as_it_was_whatever_it_is() {
        let long: Vec<u8> = (0..100_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        let texts = [br#"{"a": 1, "b": "one text and another"}"#.as_slice(), b"", b"{}", &long];
        for first in texts {
            let alike = Alike::new();
            for text in [first].iter().chain(&texts) {
                assert_eq!(alike.text(&alike.pack(text).unwrap()).unwrap(), *text);
            }
        }
    }

    #[test]
    fn what_others_say_as_well_costs_next_to_nothing() {
        let text =
            |n: u32| format!(r#"{{"kind": "TerraformRun", "name": "run-{n}", "phase": "Succeeded", "message": "no changes"}}"#);
        let alike = Alike::new();
        alike.pack(text(1).as_bytes()).unwrap();
        let second = alike.pack(text(2).as_bytes()).unwrap().size();
        assert!(second < 20, "{second} bytes");
    }

    #[test]
    fn what_was_damaged_is_no_text() {
        let alike = Alike::new();
        let mut packed = alike.pack(br#"{"a": "some words that are no others"}"#).unwrap();
        packed.length += 1;
        assert!(alike.text(&packed).is_err());
        assert!(Alike::new().text(&packed).is_err(), "packed elsewhere");
    }
}
