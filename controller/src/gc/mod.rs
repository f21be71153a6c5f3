//! Garbage collection: whatever is deleted because nothing needs it any more.
//!
//! | module | holds |
//! |---|---|
//! | [`objects`] | what attempts were given and nobody took back |
//! | [`pods`] | pods whose run is gone or at a later attempt |
//! | [`ttl`] | runs whose time is over |

pub mod objects;
pub mod pods;
pub mod ttl;
