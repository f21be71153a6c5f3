//! The settings of the console within `controller server`.

use std::{net::SocketAddr, path::PathBuf};

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
    /// Most bytes of an answer's head that a proxy before the console passes on. 4096 is what nginx and ingress-nginx do by default
    /// (`proxy_buffer_size`).
    #[arg(long, env = "PAWL_PROXY_BUFFER_SIZE", default_value_t = 4096)]
    pub proxy_buffer_size: usize,
    /// Issuer of the OIDC provider (https), exactly as in its tokens. The API server must trust it.
    #[arg(long, env = "PAWL_OIDC_ISSUER", requires = "oidc_client_id")]
    pub oidc_issuer: Option<String>,
    /// The client at the provider. Its redirect URI is URL/login/oidc/callback.
    #[arg(long, env = "PAWL_OIDC_CLIENT_ID", requires = "oidc_issuer")]
    pub oidc_client_id: Option<String>,
    /// File with the client's secret; without it the client is a public one.
    #[arg(long, env = "PAWL_OIDC_CLIENT_SECRET_FILE")]
    pub oidc_client_secret_file: Option<PathBuf>,
    /// Authorities for the provider's certificate, PEM, beside the system's.
    #[arg(long, env = "PAWL_OIDC_CA")]
    pub oidc_ca: Option<PathBuf>,
    /// Scopes to ask for beside openid, separated by commas.
    #[arg(
        long,
        env = "PAWL_OIDC_SCOPES",
        value_delimiter = ',',
        default_value = "profile,email,groups"
    )]
    pub oidc_scopes: Vec<String>,
}
