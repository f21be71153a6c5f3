//! Settings of `controller datastore` from command line and environment.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

use clap::Args;

/// A Secret, `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretName {
    pub namespace: String,
    pub name: String,
}

impl FromStr for SecretName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name))
                if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
            {
                Ok(Self {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                })
            }
            Some(_) | None => Err(format!("`{text}` is not NAMESPACE/NAME")),
        }
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Settings of `controller datastore`.
#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// URL of the store: file:///DIRECTORY, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX. Buckets
    /// take credentials and endpoints from the usual variables (AWS_…, GOOGLE_…, AZURE_…).
    #[arg(
        long,
        env = "PAWL_DATASTORE_STORE",
        default_value = "file:///pawl/data"
    )]
    pub store: String,
    /// Directory of the keys: one file per key id with the base64 of 32 bytes, and `active` with the id of the key for
    /// writing.
    #[arg(long, env = "PAWL_DATASTORE_KEYS", default_value = "/pawl/keys")]
    pub keys: PathBuf,
    /// Secret that is mounted there, NAMESPACE/NAME: filled with a new key when it has none and the store is empty.
    /// Without it the keys must exist.
    #[arg(long, env = "PAWL_DATASTORE_KEYS_SECRET")]
    pub keys_secret: Option<SecretName>,
    /// Secret, NAMESPACE/NAME, whose UID is the cluster's id, and that has the id of the cluster's store. A store of another cluster, and one
    /// without an id where an id is expected, is not served from. Without it neither is checked.
    #[arg(long, env = "PAWL_DATASTORE_IDENTITY_SECRET")]
    pub identity_secret: Option<SecretName>,
    /// Id of the store that takes the place of the cluster's own: after a restore, in a new cluster, or of the lost store in whose place an
    /// empty one is used.
    #[arg(long, env = "PAWL_DATASTORE_ADOPT", default_value = "")]
    pub adopt: String,
    /// Certificate chain of the service, PEM; reloaded when it changes.
    #[arg(
        long,
        env = "PAWL_DATASTORE_TLS_CERT",
        default_value = "/pawl/tls/tls.crt"
    )]
    pub tls_cert: PathBuf,
    /// Private key of the service, PEM; reloaded when it changes.
    #[arg(
        long,
        env = "PAWL_DATASTORE_TLS_KEY",
        default_value = "/pawl/tls/tls.key"
    )]
    pub tls_key: PathBuf,
    /// Secret that is mounted there, NAMESPACE/NAME: filled with a certificate for --tls-names and its authority
    /// (ca.crt, beside the certificate) when it has none. Without it the files must exist.
    #[arg(long, env = "PAWL_DATASTORE_TLS_SECRET", requires = "tls_names")]
    pub tls_secret: Option<SecretName>,
    /// Host names of the service, separated by commas, for the created certificate.
    #[arg(long, env = "PAWL_DATASTORE_TLS_NAMES", value_delimiter = ',')]
    pub tls_names: Vec<String>,
    /// User name of the controller: system:serviceaccount:NAMESPACE:NAME.
    #[arg(long, env = "PAWL_DATASTORE_CONTROLLER_ACCOUNT")]
    pub controller_account: String,
    /// User name of `controller sources`: system:serviceaccount:NAMESPACE:NAME. Without it, snapshots of repositories
    /// cannot be stored.
    #[arg(long, env = "PAWL_DATASTORE_SOURCES_ACCOUNT")]
    pub sources_account: Option<String>,
    /// Address of the service, of /healthz and of /readyz; HTTPS.
    #[arg(long, env = "PAWL_DATASTORE_LISTEN", default_value = "0.0.0.0:8443")]
    pub listen: SocketAddr,
    /// Address of /metrics, /healthz and /readyz; plain HTTP.
    #[arg(
        long,
        env = "PAWL_DATASTORE_METRICS_LISTEN",
        default_value = "0.0.0.0:8080"
    )]
    pub metrics_listen: SocketAddr,
    /// Seconds between two sweeps for data of deleted runs.
    #[arg(long, env = "PAWL_DATASTORE_SWEEP_INTERVAL", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..))]
    pub sweep_interval: u64,
    /// Name of the admission policy that limits this process to objects with outputs. It is probed before writes, at most once a minute;
    /// without it outputs are not published.
    #[arg(long, env = "PAWL_DATASTORE_OUTPUTS_POLICY")]
    pub outputs_policy: Option<String>,
    /// Seconds between two checks that published outputs are unchanged; no requests are made while there are none.
    #[arg(long, env = "PAWL_DATASTORE_OUTPUTS_INTERVAL", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub outputs_interval: u64,
    /// Disable the read API, which serves people through the API server.
    #[arg(long, env = "PAWL_DATASTORE_NO_READ_API")]
    pub no_read_api: bool,
    /// Log filter, in `tracing`'s syntax: `info`, `controller=debug`.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log: String,
}
