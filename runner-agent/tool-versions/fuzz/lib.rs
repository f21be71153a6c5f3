//! Fuzzing of what reads the bytes of others (`README.md`).

pub mod bodies;
pub mod meter;
