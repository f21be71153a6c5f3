//! Stores similar JSON values compactly: deflate with the first value as the preset dictionary.

use std::{
    cell::RefCell,
    sync::{Arc, OnceLock},
};

use anyhow::{Context, Result, ensure};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use serde::{Serialize, de::DeserializeOwned};

/// Upper bound of deflate's overhead for incompressible data, in bytes per 16 KiB.
const MORE: usize = 64;
/// Size of the length prefix, in bytes.
const LENGTH: usize = size_of::<u32>();

// Compressors are large, so one is reused: allocating one per text would fragment the heap between long-lived values.
thread_local! {
    static DEFLATE: RefCell<Compress> = RefCell::new(Compress::new(Compression::default(), false));
    static INFLATE: RefCell<Decompress> = RefCell::new(Decompress::new(false));
}

/// The dictionary: the first packed text.
#[derive(Debug)]
pub(crate) struct Alike(OnceLock<Box<[u8]>>);

/// A packed text, cheap to clone: its length and the compressed bytes.
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    bytes: Arc<[u8]>,
    alike: &'static Alike,
}

/// Equal when packed with the same dictionary into the same bytes.
impl PartialEq for Packed {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.alike, other.alike) && self.bytes == other.bytes
    }
}

impl Alike {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Packs a value.
    ///
    /// # Errors
    /// When it cannot be serialized or compressed.
    pub(crate) fn keep(&'static self, value: &impl Serialize) -> Result<Packed> {
        self.pack(&serde_json::to_vec(value)?)
    }

    fn pack(&'static self, text: &[u8]) -> Result<Packed> {
        let mut bytes =
            Vec::with_capacity(LENGTH + text.len() + MORE * (1 + text.len() / (16 << 10)));
        bytes.extend(
            u32::try_from(text.len())
                .context("a text of more than 4 GiB")?
                .to_le_bytes(),
        );
        let status = DEFLATE.with_borrow_mut(|deflate| {
            deflate.reset();
            deflate.set_dictionary(self.0.get_or_init(|| text.into()))?;
            deflate.compress_vec(text, &mut bytes, FlushCompress::Finish)
        })?;
        ensure!(
            status == Status::StreamEnd,
            "a text of {} bytes is larger when it is packed",
            text.len()
        );
        Ok(Packed {
            bytes: bytes.into(),
            alike: self,
        })
    }
}

impl Packed {
    /// The value; `None` (logged) when it cannot be unpacked.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Option<T> {
        let read = self
            .text()
            .and_then(|text| Ok(serde_json::from_slice(&text)?));
        read.inspect_err(
            |error| tracing::error!(%error, "a packed object in the cache cannot be read"),
        )
        .ok()
    }

    /// The text; an error when it differs from the packed one.
    fn text(&self) -> Result<Vec<u8>> {
        let (length, bytes) = self.bytes.split_first_chunk().context("no length")?;
        let length = usize::try_from(u32::from_le_bytes(*length))?;
        let mut text = Vec::with_capacity(length);
        let dictionary = self.alike.0.get().context("nothing was packed yet")?;
        let status = INFLATE.with_borrow_mut(|inflate| {
            inflate.reset(false);
            inflate.set_dictionary(dictionary)?;
            inflate.decompress_vec(bytes, &mut text, FlushDecompress::Finish)
        })?;
        ensure!(
            status == Status::StreamEnd && text.len() == length,
            "{} of {length} bytes came back",
            text.len()
        );
        Ok(text)
    }

    /// Size in bytes.
    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_texts_round_trip() {
        static ALIKE: [Alike; 4] = [const { Alike::new() }; 4];
        let long: Vec<u8> = (0..100_000_u32)
            .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
            .collect();
        let texts = [
            br#"{"a": 1, "b": "one text and another"}"#.as_slice(),
            b"",
            b"{}",
            &long,
        ];
        for (first, alike) in texts.iter().zip(&ALIKE) {
            for text in [first].into_iter().chain(&texts) {
                assert_eq!(alike.pack(text).unwrap().text().unwrap(), *text);
            }
        }
    }

    #[test]
    fn shared_content_costs_almost_nothing() {
        static ALIKE: Alike = Alike::new();
        let text = |n: u32| {
            format!(
                r#"{{"kind": "TerraformRun", "name": "run-{n}", "phase": "Succeeded", "message": "no changes"}}"#
            )
        };
        ALIKE.pack(text(1).as_bytes()).unwrap();
        let second = ALIKE.pack(text(2).as_bytes()).unwrap().size();
        assert!(second < 24, "{second} bytes");
    }

    #[test]
    fn damaged_packed_text_is_an_error() {
        static ALIKE: [Alike; 2] = [const { Alike::new() }; 2];
        let packed = ALIKE[0]
            .pack(br#"{"a": "some words that are no others"}"#)
            .unwrap();
        let mut longer = packed.bytes.to_vec();
        longer[0] += 1;
        assert!(
            Packed {
                bytes: longer.into(),
                alike: &ALIKE[0]
            }
            .text()
            .is_err()
        );
        assert!(
            Packed {
                alike: &ALIKE[1],
                ..packed
            }
            .text()
            .is_err(),
            "packed elsewhere"
        );
    }
}
