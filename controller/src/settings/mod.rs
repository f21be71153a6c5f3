//! Settings of `controller run` from command line and environment.

pub mod sharing;

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;
use crds::tools::ToolSettings;
use datastore_client::controller::Datastore;
use jiff::Timestamp;

use sharing::SharedStates;

/// Settings of `controller run`.
#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// Image of the runner, for runs that set none.
    #[arg(long, env = "PAWL_RUNNER_IMAGE")]
    pub runner_image: String,
    /// Pull policy of that image: Always, IfNotPresent or Never; the cluster's default when empty.
    #[arg(long, env = "PAWL_RUNNER_IMAGE_PULL_POLICY", value_parser = ["Always", "IfNotPresent", "Never", ""])]
    pub runner_image_pull_policy: Option<String>,
    /// Secret in each run's namespace with credentials for that image's registry; may be repeated.
    #[arg(
        long = "runner-image-pull-secret",
        env = "PAWL_RUNNER_IMAGE_PULL_SECRETS",
        value_delimiter = ','
    )]
    pub runner_image_pull_secrets: Vec<String>,
    /// Node disk that pods request, as a quantity, for runs without resources; none when empty.
    #[arg(long, env = "PAWL_RUNNER_EPHEMERAL_STORAGE")]
    pub runner_ephemeral_storage: Option<String>,
    /// Fail a run, before any code of its stack runs, on a node that cannot confine that code.
    #[arg(long, env = "PAWL_RUNNER_REQUIRE_CONFINEMENT")]
    pub runner_require_confinement: bool,
    /// User that the runner's container runs as; the image's own when empty. Never 0.
    #[arg(long, env = "PAWL_RUNNER_USER", value_parser = clap::value_parser!(i64).range(1..))]
    pub runner_user: Option<i64>,
    /// Proxy of pods for http, `http://HOST:PORT`; none when empty.
    #[arg(long, env = "PAWL_RUNNER_HTTP_PROXY")]
    pub runner_http_proxy: Option<String>,
    /// Proxy of pods for https, `http://HOST:PORT`; none when empty.
    #[arg(long, env = "PAWL_RUNNER_HTTPS_PROXY")]
    pub runner_https_proxy: Option<String>,
    /// Hosts that pods reach without a proxy, separated by commas, in addition to the cluster.
    #[arg(long, env = "PAWL_RUNNER_NO_PROXY")]
    pub runner_no_proxy: Option<String>,
    /// Certificate authorities for downloads of pods, in addition to those of the runner's image, PEM.
    #[arg(long, env = "PAWL_RUNNER_CA")]
    pub runner_ca: Option<String>,
    /// Namespaces to watch, separated by commas; all when empty.
    #[arg(long, env = "PAWL_WATCH_NAMESPACES", value_delimiter = ',')]
    pub watch_namespaces: Vec<String>,
    /// Groups of namespaces that share states, as JSON: `[["team-a","team-b"]]`. Runs in a group apply to a state one
    /// after the other; all other namespaces are independent.
    #[arg(long, env = "PAWL_SHARED_STATES", default_value = "")]
    pub shared_states: SharedStates,
    /// Maximum number of open attempts; unlimited when empty. Approved applies have as many additional slots.
    #[arg(long, env = "PAWL_MAX_CONCURRENT_RUNS", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_concurrent_runs: Option<u32>,
    /// Maximum number of open attempts per namespace.
    #[arg(long, env = "PAWL_MAX_CONCURRENT_RUNS_PER_NAMESPACE", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_concurrent_runs_per_namespace: Option<u32>,
    /// Start nothing new in any namespace; work in progress continues.
    #[arg(long, env = "PAWL_FREEZE")]
    pub freeze: bool,
    /// Seconds from its end until a run without its own TTL is deleted; never when empty.
    #[arg(long, env = "PAWL_DEFAULT_TTL_SECONDS")]
    pub default_ttl_seconds: Option<u32>,
    /// Do not apply plans made before this time (RFC 3339): set it after the cluster or its datastore was restored.
    #[arg(long, env = "PAWL_REFUSE_PLANS_BEFORE")]
    pub refuse_plans_before: Option<Timestamp>,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, env = "PAWL_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Lease in the controller's namespace for leader election; all controllers work when empty.
    #[arg(long, env = "PAWL_LEADER_LEASE")]
    pub leader_lease: Option<String>,
    /// Number of runs reconciled concurrently.
    #[arg(long, env = "PAWL_CONCURRENCY", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    pub concurrency: u16,
    /// Address of the datastore, `https://HOST[:PORT]`; without it plans exist only in their pods.
    #[arg(long, env = "PAWL_DATASTORE_URL", requires_all = ["datastore_ca", "datastore_token"])]
    pub datastore_url: Option<String>,
    /// File with the datastore's certificate authority, PEM; the only trusted one.
    #[arg(long, env = "PAWL_DATASTORE_CA_FILE")]
    pub datastore_ca: Option<PathBuf>,
    /// File with the token for the datastore; read for each request.
    #[arg(long, env = "PAWL_DATASTORE_TOKEN_FILE")]
    pub datastore_token: Option<PathBuf>,
    /// Service through which the datastore serves `read.pawl.run`, `NAMESPACE/NAME:PORT`; nothing is registered when
    /// empty.
    #[arg(long, env = "PAWL_READ_API_SERVICE")]
    pub read_api_service: Option<String>,
    /// ClusterRole of this release, which owns the APIService of `read.pawl.run`.
    #[arg(long, env = "PAWL_READ_API_OWNER")]
    pub read_api_owner: Option<String>,
    /// Tool settings as JSON: mirrors, default versions, the cache, `offline`. The chart's `runner.tools`.
    #[arg(long, env = "PAWL_RUNNER_TOOLS", default_value = "")]
    pub runner_tools: ToolSettings,
    /// Log filter, in `tracing`'s syntax: `info`, `controller=debug`.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log: String,
}

impl Settings {
    pub fn has_datastore(&self) -> bool {
        self.datastore_url
            .as_ref()
            .is_some_and(|url| !url.is_empty())
    }

    pub fn datastore(&self) -> Option<Datastore> {
        let url = self
            .datastore_url
            .as_deref()
            .filter(|_| self.has_datastore())?;
        let (authority, token) = (self.datastore_ca.clone(), self.datastore_token.clone());
        Some(Datastore::new(
            url,
            authority.unwrap_or_default(),
            token.unwrap_or_default(),
        ))
    }

    /// The namespaces to watch; `None` means all.
    pub fn scopes(&self) -> Vec<Option<String>> {
        scopes(&self.watch_namespaces)
    }
}

/// The listed namespaces; `None` means all.
pub fn scopes(namespaces: &[String]) -> Vec<Option<String>> {
    let mut named: Vec<&str> = namespaces
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

impl Default for Settings {
    fn default() -> Self {
        Self {
            runner_image: "pawl/runner-agent:dev".into(),
            runner_image_pull_policy: None,
            runner_image_pull_secrets: Vec::new(),
            runner_ephemeral_storage: None,
            runner_require_confinement: false,
            runner_user: None,
            runner_http_proxy: None,
            runner_https_proxy: None,
            runner_no_proxy: None,
            runner_ca: None,
            watch_namespaces: Vec::new(),
            shared_states: SharedStates::default(),
            max_concurrent_runs: None,
            max_concurrent_runs_per_namespace: None,
            freeze: false,
            default_ttl_seconds: None,
            refuse_plans_before: None,
            listen: SocketAddr::from(([0, 0, 0, 0], 8080)),
            leader_lease: None,
            concurrency: 16,
            datastore_url: None,
            datastore_ca: None,
            datastore_token: None,
            read_api_service: None,
            read_api_owner: None,
            runner_tools: ToolSettings::default(),
            log: "info".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_namespace_means_all() {
        let of = |names: &[&str]| {
            Settings {
                watch_namespaces: names.iter().map(ToString::to_string).collect(),
                ..Settings::default()
            }
            .scopes()
        };
        assert_eq!(of(&[]), [None]);
        assert_eq!(of(&[""]), [None], "an empty value of the chart");
        assert_eq!(of(&["b", " a", "b"]), [Some("a".into()), Some("b".into())]);
    }
}
