//! What proves that a file is the one which was published: sums, and a signature of them by a key that counts now.

pub mod digest;
pub mod keys;
pub mod signature;
pub mod sums;
