//! What `controller server` is told on its command line or by its environment.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

/// Settings of `controller server`.
#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// Namespaces whose repositories take deliveries, separated by commas; all when empty.
    #[arg(long, env = "PAWL_WATCH_NAMESPACES", value_delimiter = ',')]
    pub watch_namespaces: Vec<String>,
    /// Address that forges reach: POST /hooks/UID.
    #[arg(long, env = "PAWL_SERVER_LISTEN", default_value = "0.0.0.0:8443")]
    pub listen: SocketAddr,
    /// Address of /metrics, /healthz and /readyz, and of /api, which takes tokens of the audience pawl-server; plain HTTP, for no client
    /// outside the cluster.
    #[arg(long, env = "PAWL_SERVER_METRICS_LISTEN", default_value = "0.0.0.0:8080")]
    pub metrics_listen: SocketAddr,
    /// Certificate chain of the address that forges reach, as PEM, read again when it changes; plain HTTP without it, for whoever has
    /// something before it that speaks TLS.
    #[arg(long, env = "PAWL_SERVER_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, as PEM.
    #[arg(long, env = "PAWL_SERVER_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// What is logged, as `tracing` writes filters: `info`, `controller=debug`.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log: String,
}
