//! Requests: their paths, their bodies, and what they set off.

pub mod attempt;
pub mod body;
pub mod controller;
pub mod route;
