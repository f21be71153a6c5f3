//! Servers that the tests run in their own process: git over http, and Terraform's `http` state backend; and git over ssh, beside it.
//!
//! Each listens only on the address it is given, counts what it was asked, and can be told to misbehave.

pub mod auth;
mod cgi;
#[cfg(test)]
mod fetched;
pub mod git;
pub mod gitea;
pub(crate) mod listener;
pub mod proxy;
pub mod repo;
pub mod ssh;
pub mod state;
mod state_store;
pub(crate) mod tls;
