//! Verification: sums, and a signature over them by a key that counts.

pub mod digest;
pub mod keys;
pub mod signature;
pub mod sums;
