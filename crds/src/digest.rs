//! Digests as text.

/// `sha256:` and the hexadecimal digits of a digest.
pub fn hex_digest(digest: &[u8]) -> String {
    format!("sha256:{}", hex::encode(digest))
}
