//! Settings of `controller server` from command line and environment.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

/// Settings of `controller server`.
#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// Namespaces whose repositories accept deliveries, separated by commas; all when empty.
    #[arg(long, env = "PAWL_WATCH_NAMESPACES", value_delimiter = ',')]
    pub watch_namespaces: Vec<String>,
    /// Address for forges: POST /hooks/UID; without it no webhook is received.
    #[arg(long, env = "PAWL_SERVER_LISTEN")]
    pub listen: Option<SocketAddr>,
    /// Address of /metrics, /healthz and /readyz, and of /api, which accepts tokens of the audience pawl-server; plain
    /// HTTP, for clients within the cluster only.
    #[arg(
        long,
        env = "PAWL_SERVER_METRICS_LISTEN",
        default_value = "0.0.0.0:8080"
    )]
    pub metrics_listen: SocketAddr,
    /// Certificate chain for the addresses of forges and people, PEM, reloaded when it changes; without it plain HTTP, for use behind
    /// a TLS proxy.
    #[arg(long, env = "PAWL_SERVER_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, env = "PAWL_SERVER_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    #[command(flatten)]
    pub web: web_console::settings::Settings,
    /// Log filter, in `tracing`'s syntax: `info`, `controller=debug`.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log: String,
}
