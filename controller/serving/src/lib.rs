//! Serves HTTP for `controller run`, `datastore`, `sources` and `server`. Holds no objects of Pawl.
//!
//! | module | holds | touches |
//! |---|---|---|
//! | [`connections`] | accept loop with bounds on connections, heads and idle time | sockets |
//! | [`tls`] | certificate files, reloaded when they change; the authority of client certificates | files |
//! | [`auth`] | bearer tokens by `TokenReview`, rights by `SubjectAccessReview`, the extractor [`auth::Readable`] | the API server |
//! | [`problem`] | errors as JSON answers: a `Problem`, or a `Status` for the API server | nothing |
//! | [`health`], [`metrics`] | `/healthz`, `/readyz`, `/metrics` | nothing |
//! | [`call`] | calls to the API server with a timeout | nothing |
//! | [`events`] | Events for people, published in the background | the API server |
//!
//! An endpoint for people is a route with the segments `{namespace}` and `{name}`, a state that is [`auth::Authenticates`] and a handler that
//! takes [`auth::Readable`].

pub mod auth;
pub mod call;
pub mod connections;
pub mod events;
pub mod health;
pub mod metrics;
pub mod problem;
pub mod tls;
