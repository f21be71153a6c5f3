//! Reading the cluster: its watches, what of them is kept, its clock, and which of several controllers works on it.
//!
//! | module | holds |
//! |---|---|
//! | [`pods`], [`nodes`] | caches |
//! | [`clock`] | the API server's clock, off its answers |
//! | [`leader`] | which of several controllers works |

pub mod clock;
pub mod leader;
pub mod nodes;
pub mod pods;
