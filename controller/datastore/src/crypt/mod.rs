//! Encryption at rest: AES-256-GCM in segments (the STREAM construction), with a separate key for each object.

pub mod keys;
pub mod stream;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CryptError {
    #[error("the key `{0}` is not there")]
    KeyMissing(String),
    #[error("there is no key to write with")]
    NoKey,
    /// It was modified, truncated, moved from another name, or encrypted with another key under this id.
    #[error("it does not open: changed, cut off, another object's, or of another key")]
    Corrupt,
    /// The cipher failed, for example after 2^32 segments.
    #[error("the cipher failed")]
    Cipher,
}
