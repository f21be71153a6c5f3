//! Who asks, and whether they may.

pub mod caller;
pub mod front_proxy;
pub mod lookup;
