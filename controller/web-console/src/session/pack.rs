//! A smaller form of tokens. The claims of a JWT are base64url, which no compression shrinks: they are decoded before they are compressed.

use std::io::{Read as _, Write as _};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use flate2::{Compression, read::DeflateDecoder, write::DeflateEncoder};

/// Most bytes of the parts with their lengths; a token of 16 KiB has fewer.
const LONGEST: u64 = 64 << 10;

/// The token's parts, each after its length, compressed; `None` unless all parts are base64url.
pub(super) fn pack(token: &str) -> Option<Vec<u8>> {
    let mut packed = DeflateEncoder::new(Vec::new(), Compression::best());
    for part in token.split('.') {
        let part = BASE64_URL_SAFE_NO_PAD.decode(part).ok()?;
        let length = u16::try_from(part.len()).ok()?;
        packed.write_all(&length.to_be_bytes()).ok()?;
        packed.write_all(&part).ok()?;
    }
    packed.finish().ok()
}

/// The token of these bytes.
pub(super) fn unpack(packed: &[u8]) -> Option<String> {
    let mut bytes = Vec::new();
    let limited = DeflateDecoder::new(packed).take(LONGEST);
    { limited }.read_to_end(&mut bytes).ok()?;
    let (mut parts, mut rest) = (Vec::new(), &bytes[..]);
    while let Some((length, after)) = rest.split_first_chunk() {
        let (part, after) = after.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        parts.push(BASE64_URL_SAFE_NO_PAD.encode(part));
        rest = after;
    }
    Some(parts.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_token_is_the_same_again() {
        for token in ["", "YQ", "YQ.Yg.Yw", "YQ..Yw", "....", &"YWFh".repeat(4000)] {
            assert_eq!(unpack(&pack(token).unwrap()).as_deref(), Some(token));
        }
        // Other bytes than base64url, and base64url whose unused bits are lost.
        for token in ["a b", "YQ==", "Yb", "a+/b", "YQ.é"] {
            assert!(pack(token).is_none(), "{token}");
        }
    }
}
