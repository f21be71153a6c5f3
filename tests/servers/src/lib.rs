//! Servers that the tests run in their own process: git over http, Terraform's `http` state backend, and texts at URLs; and git over ssh, beside it.
//!
//! Each listens only on the address it is given, counts what it was asked, and can be told to misbehave.

pub mod auth;
pub mod bucket;
mod cgi;
pub mod forward;
pub mod git;
pub mod gitea;
pub mod large;
pub mod listener;
pub mod objects;
pub mod proxy;
pub mod registry;
pub mod repo;
pub mod ssh;
pub mod state;
pub mod tls;
pub mod webhook;
