//! Authentication and authorization.

pub mod caller;
pub mod front_proxy;
pub mod lookup;
