//! The web console: what people see of Pawl in a browser (`design/0033-web-console.md`). REST API, live updates and the web UI of
//! `controller server`, on a listener of its own.
//!
//! The console decides no rights. It reads and writes objects as the person who asks ([`api_server`]), so RBAC and the admission policies
//! that guard `kubectl` guard the browser.

pub mod api_server;
pub mod assets;
pub mod person;
pub mod problem;

use std::sync::Arc;

use axum::Router;

use api_server::ApiServer;

/// The state of all handlers.
pub struct Console {
    pub api_server: ApiServer,
}

/// The router of the listener for people.
pub fn router(console: Arc<Console>) -> Router {
    Router::new().with_state(console)
}
