//! Releases: mirrors, lists of versions, download.
//!
//! | module | holds |
//! |---|---|
//! | [`mirror`], [`read_mirror`] | locations; reading from them |
//! | [`lists`], [`list_cache`] | lists of versions and their cache |
//! | [`http`] | the HTTP client |

pub mod http;
pub mod list_cache;
pub mod lists;
pub mod mirror;
pub mod read_mirror;
