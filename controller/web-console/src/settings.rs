//! The settings of the console within `controller server`.

use std::net::SocketAddr;

use clap::Args;
use ipnet::IpNet;

use crate::address::Address;

/// Settings of the console.
#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// Address for people: the web UI and its REST API.
    #[arg(long, env = "PAWL_WEB_LISTEN", default_value = "0.0.0.0:8444")]
    pub web_listen: SocketAddr,
    /// The URL that people use, with an optional base path. Without it, people forward a local port.
    #[arg(long, env = "PAWL_URL", default_value = "http://127.0.0.1:8444")]
    pub url: Address,
    /// Secret (NAMESPACE/NAME) with the key of sessions, at least 32 random bytes in `key`; it is filled if it is empty. Without it, sessions
    /// end with the process.
    #[arg(long, env = "PAWL_SESSION_SECRET")]
    pub session_secret: Option<String>,
    /// Networks of proxies that terminate TLS, in CIDR notation, separated by commas. X-Forwarded-Proto is believed from these alone.
    #[arg(long, env = "PAWL_BEHIND_TLS_PROXY", value_delimiter = ',')]
    pub behind_tls_proxy: Vec<IpNet>,
}
