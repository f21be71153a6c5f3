//! Settings of `controller sources` from command line and environment.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;
use ipnet::IpNet;

/// Settings of `controller sources`.
#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// Namespaces to watch, separated by commas; all when empty.
    #[arg(long, env = "PAWL_WATCH_NAMESPACES", value_delimiter = ',')]
    pub watch_namespaces: Vec<String>,
    /// Address of the datastore, `https://HOST[:PORT]`.
    #[arg(long, env = "PAWL_DATASTORE_URL")]
    pub datastore_url: String,
    /// File with the datastore's certificate authority, PEM; the only trusted one.
    #[arg(long, env = "PAWL_DATASTORE_CA_FILE")]
    pub datastore_ca: PathBuf,
    /// File with the token for the datastore; read for each request.
    #[arg(long, env = "PAWL_DATASTORE_TOKEN_FILE")]
    pub datastore_token: PathBuf,
    /// Directory of the mirrors. Its content is deleted at the start and may be lost at any time.
    #[arg(long, env = "PAWL_SOURCES_MIRRORS", default_value = "/pawl/mirrors")]
    pub mirrors: PathBuf,
    /// MiB of mirrors above which the least recently used ones are deleted; no repository may be larger.
    #[arg(long, env = "PAWL_SOURCES_MIRRORS_MIB", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..))]
    pub mirrors_mib: u64,
    /// Number of repositories checked concurrently.
    #[arg(long, env = "PAWL_SOURCES_CONCURRENCY", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    pub concurrency: u16,
    /// Timeout in seconds of a git command that contacts a server.
    #[arg(long, env = "PAWL_SOURCES_GIT_TIMEOUT", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub git_timeout: u64,
    /// Seconds between two sweeps for unused snapshots.
    #[arg(long, env = "PAWL_SOURCES_SWEEP_INTERVAL", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..))]
    pub sweep_interval: u64,
    /// ClusterRole that lets this process read Secrets in namespaces that bind it; named in messages.
    #[arg(
        long,
        env = "PAWL_SOURCES_SECRETS_ROLE",
        default_value = "pawl-sources-secrets"
    )]
    pub secrets_role: String,
    /// Certificate authorities for Git servers in addition to those of the image, PEM. The authority in a Secret
    /// applies only to its host.
    #[arg(long, env = "PAWL_CA")]
    pub ca: Option<String>,
    /// Blocks of addresses that Git may not reach, separated by commas, such as that of the cluster's Services: 10.96.0.0/12.
    #[arg(long, value_delimiter = ',')]
    pub denied_cidrs: Vec<IpNet>,
    /// Lets Git reach loopback, link-local and metadata addresses, and the API server's. For tests.
    #[arg(long, hide = true)]
    pub allow_local_addresses: bool,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, env = "PAWL_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Log filter, in `tracing`'s syntax: `info`, `sources=debug`.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log: String,
}

impl Settings {
    /// The namespaces to watch; `None` means all.
    pub fn scopes(&self) -> Vec<Option<String>> {
        let mut named: Vec<&str> = self
            .watch_namespaces
            .iter()
            .map(|n| n.trim())
            .filter(|n| !n.is_empty())
            .collect();
        named.sort_unstable();
        named.dedup();
        if named.is_empty() {
            vec![None]
        } else {
            named.into_iter().map(|n| Some(n.to_owned())).collect()
        }
    }
}
