//! Digests as text.

/// `sha256:` followed by the digest in hexadecimal.
pub fn hex_digest(digest: &[u8]) -> String {
    format!("sha256:{}", hex::encode(digest))
}
