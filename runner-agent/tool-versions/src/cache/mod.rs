//! The cache of tools: [`store`] installs, verifies and prunes; [`shared_dir`] is the shared directory beneath.

pub mod shared_dir;
pub mod store;
