//! Where the releases of a tool are, and which there are.
//!
//! | module | holds |
//! |---|---|
//! | [`mirror`], [`source`] | where they are; reading them from there |
//! | [`lists`], [`list_cache`] | lists of versions; those that were got before |
//! | [`http`] | HTTP with our rules |

pub mod http;
pub mod list_cache;
pub mod lists;
pub mod mirror;
pub mod source;
