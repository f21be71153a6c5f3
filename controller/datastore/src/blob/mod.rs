//! What stands in the store: bytes, sealed.

pub mod keyring;
pub mod sealed;
pub mod store;
