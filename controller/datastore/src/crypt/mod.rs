//! Encryption at rest: AES-256-GCM, a key of its own for each object, in segments (the STREAM construction).

pub mod keys;
pub mod stream;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CryptError {
    #[error("the key `{0}` is not there")]
    KeyMissing(String),
    #[error("there is no key to write with")]
    NoKey,
    /// It was changed, cut off, is another object's, or was written with another key of that id.
    #[error("it does not open: changed, cut off, another object's, or of another key")]
    Corrupt,
    /// The cipher refused to work; more than 2^32 segments, for one.
    #[error("the cipher failed")]
    Cipher,
}
