//! Servers for tests, in the test's own process: git over http, Terraform's `http` state backend, and texts at URLs; git over ssh runs as a
//! child.
//!
//! Each listens only on the given address, counts its requests, and can inject faults.

pub mod auth;
pub mod bucket;
mod cgi;
pub mod forward;
pub mod git;
pub mod gitea;
pub mod large;
pub mod listener;
pub mod local_git;
pub mod nginx;
pub mod objects;
pub mod port_forward;
pub mod proxy;
pub mod registry;
pub mod repo;
pub mod ssh;
pub mod state;
pub mod tls;
pub mod webhook;
