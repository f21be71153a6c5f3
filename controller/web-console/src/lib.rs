//! The web console: what people see of Pawl in a browser (`design/0033-web-console.md`). REST API, live updates and the web UI of
//! `controller server`, on a listener of its own.
//!
//! The console decides no rights. It reads and writes objects as the person who asks ([`api_server`]), so RBAC and the admission policies
//! that guard `kubectl` guard the browser.

pub mod access;
pub mod api_server;
pub mod inbox;
pub mod lists;
pub mod person;
pub mod problem;
pub mod rows;
pub mod stream;

use std::sync::Arc;

use axum::Router;

use access::Access;
use api_server::ApiServer;
use rows::Rows;
use stream::Streams;

/// The state of all handlers.
pub struct Console {
    pub api_server: ApiServer,
    pub access: Access,
    pub rows: Arc<Rows>,
    pub streams: Streams,
}

/// The router of the listener for people.
pub fn router(console: Arc<Console>) -> Router {
    Router::new()
        .merge(lists::router())
        .merge(inbox::router())
        .merge(stream::router())
        .with_state(console)
}
