//! Fuzz targets for the parsers of untrusted bytes (`README.md`).

pub mod bodies;
pub mod meter;
