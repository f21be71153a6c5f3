//! The cache of tools: [`store`] installs, verifies and prunes; [`shared_dir`] is a directory that many processes share.

pub mod shared_dir;
pub mod store;
