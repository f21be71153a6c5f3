//! The store's content: encrypted bytes.

pub mod identity;
pub mod keyring;
pub mod sealed;
pub mod store;
