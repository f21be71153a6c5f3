//! What `controller sources` is told on its command line or by its environment.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

/// Settings of `controller sources`.
#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// Namespaces to watch, separated by commas; all when empty.
    #[arg(long, env = "PAWL_WATCH_NAMESPACES", value_delimiter = ',')]
    pub watch_namespaces: Vec<String>,
    /// Address of the datastore, `https://HOST[:PORT]`.
    #[arg(long, env = "PAWL_DATASTORE_URL")]
    pub datastore_url: String,
    /// File with the certificate authority of the datastore, PEM; the only one it is trusted by.
    #[arg(long, env = "PAWL_DATASTORE_CA_FILE")]
    pub datastore_ca: PathBuf,
    /// File with the token for the datastore; read anew for each request.
    #[arg(long, env = "PAWL_DATASTORE_TOKEN_FILE")]
    pub datastore_token: PathBuf,
    /// Directory of the mirrors. What is in it at the start is deleted, and it may be lost at any time.
    #[arg(long, env = "PAWL_SOURCES_MIRRORS", default_value = "/pawl/mirrors")]
    pub mirrors: PathBuf,
    /// MiB of mirrors above which those that were used longest ago are deleted; no repository may be larger.
    #[arg(long, env = "PAWL_SOURCES_MIRRORS_MIB", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..))]
    pub mirrors_mib: u64,
    /// How many repositories are looked at at a time.
    #[arg(long, env = "PAWL_SOURCES_CONCURRENCY", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    pub concurrency: u16,
    /// Seconds that a command of git may take which asks a server.
    #[arg(long, env = "PAWL_SOURCES_GIT_TIMEOUT", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub git_timeout: u64,
    /// Seconds between two looks for bundles that nobody needs any more.
    #[arg(long, env = "PAWL_SOURCES_SWEEP_INTERVAL", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..))]
    pub sweep_interval: u64,
    /// ClusterRole that lets this process read Secrets where a namespace binds it: for messages.
    #[arg(long, env = "PAWL_SOURCES_SECRETS_ROLE", default_value = "pawl-sources-secrets")]
    pub secrets_role: String,
    /// Authorities that Git servers are trusted by besides those of the image, as PEM. A Secret's own count for its host alone.
    #[arg(long, env = "PAWL_CA")]
    pub ca: Option<String>,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, env = "PAWL_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// What is logged, as `tracing` writes filters: `info`, `sources=debug`.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log: String,
}

impl Settings {
    /// The namespaces to watch; none means all.
    pub fn scopes(&self) -> Vec<Option<String>> {
        let mut named: Vec<&str> = self.watch_namespaces.iter().map(|n| n.trim()).filter(|n| !n.is_empty()).collect();
        named.sort_unstable();
        named.dedup();
        if named.is_empty() { vec![None] } else { named.into_iter().map(|n| Some(n.to_owned())).collect() }
    }
}
