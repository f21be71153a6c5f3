//! Texts that look much alike, kept small: each says only what the first one of them did not.

use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// The first text of this process: what others are compared with.
static FIRST: OnceLock<Box<[u8]>> = OnceLock::new();
/// More than deflate adds to what cannot be made smaller, in bytes, for each 16 KiB.
const MORE: usize = 64;

/// A text of this process.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    bytes: Box<[u8]>,
    length: usize,
}

impl Packed {
    /// Keeps a text.
    ///
    /// # Errors
    /// When it cannot be compressed.
    pub(super) fn of(text: &[u8]) -> Result<Self> {
        let mut bytes = Vec::with_capacity(text.len() + MORE * (1 + text.len() / (16 << 10)));
        let mut deflate = Compress::new(Compression::default(), false);
        deflate.set_dictionary(FIRST.get_or_init(|| text.into()))?;
        let status = deflate.compress_vec(text, &mut bytes, FlushCompress::Finish)?;
        ensure!(status == Status::StreamEnd, "a text of {} bytes is larger when it is packed", text.len());
        Ok(Self { bytes: bytes.into(), length: text.len() })
    }

    /// The text.
    ///
    /// # Errors
    /// When it is not what was kept.
    pub(super) fn text(&self) -> Result<Vec<u8>> {
        let mut text = Vec::with_capacity(self.length);
        let mut inflate = Decompress::new(false);
        inflate.set_dictionary(FIRST.get().context("nothing was packed yet")?)?;
        let status = inflate.decompress_vec(&self.bytes, &mut text, FlushDecompress::Finish)?;
        ensure!(status == Status::StreamEnd && text.len() == self.length, "{} of {} bytes came back", text.len(), self.length);
        Ok(text)
    }

    /// How many bytes it takes.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_comes_back_as_it_was_whatever_it_is() {
        let long: Vec<u8> = (0..100_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        for text in [b"".as_slice(), b"{}", br#"{"a": 1, "b": "one text and another"}"#, &long] {
            assert_eq!(Packed::of(text).unwrap().text().unwrap(), text);
        }
    }

    #[test]
    fn what_others_say_as_well_costs_next_to_nothing() {
        let text =
            |n: u32| format!(r#"{{"kind": "TerraformRun", "name": "run-{n}", "phase": "Succeeded", "message": "no changes"}}"#);
        let one = Packed::of(text(1).as_bytes()).unwrap();
        let like = FIRST.get().unwrap();
        // Another test may have been first.
        if **like == *text(1).as_bytes() {
            assert!(Packed::of(text(2).as_bytes()).unwrap().size() < 20, "{}", one.size());
        }
        let twice = [like.as_ref(), b"!"].concat();
        assert!(Packed::of(&twice).unwrap().size() < 20 + like.len() / 100);
    }

    #[test]
    fn what_was_damaged_is_no_text() {
        let mut packed = Packed::of(br#"{"a": "some words that are no others"}"#).unwrap();
        packed.length += 1;
        assert!(packed.text().is_err());
    }
}
