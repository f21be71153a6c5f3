//! What `controller run` is told on its command line or by its environment.

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
    /// Image of the runner, for runs that name none.
    #[arg(long, env = "PAWL_RUNNER_IMAGE")]
    pub runner_image: String,
    /// Pull policy of that image: Always, IfNotPresent or Never; the cluster's default when empty.
    #[arg(long, env = "PAWL_RUNNER_IMAGE_PULL_POLICY", value_parser = ["Always", "IfNotPresent", "Never", ""])]
    pub runner_image_pull_policy: Option<String>,
    /// Secret of each run's namespace with credentials for the registry of that image; may be given several times.
    #[arg(long = "runner-image-pull-secret", env = "PAWL_RUNNER_IMAGE_PULL_SECRETS", value_delimiter = ',')]
    pub runner_image_pull_secrets: Vec<String>,
    /// What a pod requests of its node's disk, as a quantity, for runs that name no resources; nothing when empty.
    #[arg(long, env = "PAWL_RUNNER_EPHEMERAL_STORAGE")]
    pub runner_ephemeral_storage: Option<String>,
    /// Whether a run fails, before any code of its stack runs, on a node that cannot confine that code.
    #[arg(long, env = "PAWL_RUNNER_REQUIRE_CONFINEMENT")]
    pub runner_require_confinement: bool,
    /// User the runner's container runs as; the image's own when empty. Never 0.
    #[arg(long, env = "PAWL_RUNNER_USER", value_parser = clap::value_parser!(i64).range(1..))]
    pub runner_user: Option<i64>,
    /// Proxy for what pods fetch by http, `http://HOST:PORT`; none when empty.
    #[arg(long, env = "PAWL_RUNNER_HTTP_PROXY")]
    pub runner_http_proxy: Option<String>,
    /// Proxy for what pods fetch by https, `http://HOST:PORT`; none when empty.
    #[arg(long, env = "PAWL_RUNNER_HTTPS_PROXY")]
    pub runner_https_proxy: Option<String>,
    /// What pods reach without a proxy, separated by commas, besides the cluster itself.
    #[arg(long, env = "PAWL_RUNNER_NO_PROXY")]
    pub runner_no_proxy: Option<String>,
    /// Authorities for what pods fetch, besides those of the runner's image, as PEM.
    #[arg(long, env = "PAWL_RUNNER_CA")]
    pub runner_ca: Option<String>,
    /// Namespaces to watch, separated by commas; all when empty.
    #[arg(long, env = "PAWL_WATCH_NAMESPACES", value_delimiter = ',')]
    pub watch_namespaces: Vec<String>,
    /// Groups of namespaces that share states, as JSON: `[["team-a","team-b"]]`. Runs of a group apply to one state one after the
    /// other; those of any other namespaces know nothing of each other.
    #[arg(long, env = "PAWL_SHARED_STATES", default_value = "")]
    pub shared_states: SharedStates,
    /// The most attempts that are open at once; any number when empty. Approved applies have as many of their own.
    #[arg(long, env = "PAWL_MAX_CONCURRENT_RUNS", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_concurrent_runs: Option<u32>,
    /// The same of each namespace.
    #[arg(long, env = "PAWL_MAX_CONCURRENT_RUNS_PER_NAMESPACE", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_concurrent_runs_per_namespace: Option<u32>,
    /// Nothing new begins, in any namespace; what is under way goes on.
    #[arg(long, env = "PAWL_FREEZE")]
    pub freeze: bool,
    /// Seconds after its end until a run that does not say itself is deleted; none keeps it.
    #[arg(long, env = "PAWL_DEFAULT_TTL_SECONDS")]
    pub default_ttl_seconds: Option<u32>,
    /// Plans made before this time, as RFC 3339, are not applied: when the cluster or its datastore was restored.
    #[arg(long, env = "PAWL_REFUSE_PLANS_BEFORE")]
    pub refuse_plans_before: Option<Timestamp>,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, env = "PAWL_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Lease of the controller's namespace that names the one of several controllers which works; all work when empty.
    #[arg(long, env = "PAWL_LEADER_LEASE")]
    pub leader_lease: Option<String>,
    /// How many runs are worked on at a time.
    #[arg(long, env = "PAWL_CONCURRENCY", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    pub concurrency: u16,
    /// Address of the datastore, `https://HOST[:PORT]`; without it plans live and die with their pods.
    #[arg(long, env = "PAWL_DATASTORE_URL", requires_all = ["datastore_ca", "datastore_token"])]
    pub datastore_url: Option<String>,
    /// File with the certificate authority of the datastore, PEM; the only one it is trusted by.
    #[arg(long, env = "PAWL_DATASTORE_CA_FILE")]
    pub datastore_ca: Option<PathBuf>,
    /// File with the token for the datastore; read anew for each request.
    #[arg(long, env = "PAWL_DATASTORE_TOKEN_FILE")]
    pub datastore_token: Option<PathBuf>,
    /// Where the datastore serves `read.pawl.run`, `NAMESPACE/NAME:PORT` of a Service; nothing is registered when empty.
    #[arg(long, env = "PAWL_READ_API_SERVICE")]
    pub read_api_service: Option<String>,
    /// ClusterRole of this release, which owns the APIService of `read.pawl.run`.
    #[arg(long, env = "PAWL_READ_API_OWNER")]
    pub read_api_owner: Option<String>,
    /// What is said about tools, as JSON: mirrors, default versions, the cache, `offline`. The chart's `runner.tools`.
    #[arg(long, env = "PAWL_RUNNER_TOOLS", default_value = "")]
    pub runner_tools: ToolSettings,
    /// What is logged, as `tracing` writes filters: `info`, `controller=debug`.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log: String,
}

impl Settings {
    pub fn has_datastore(&self) -> bool {
        self.datastore_url.as_ref().is_some_and(|url| !url.is_empty())
    }

    pub fn datastore(&self) -> Option<Datastore> {
        let url = self.datastore_url.as_deref().filter(|_| self.has_datastore())?;
        let (authority, token) = (self.datastore_ca.clone(), self.datastore_token.clone());
        Some(Datastore::new(url, authority.unwrap_or_default(), token.unwrap_or_default()))
    }

    /// The namespaces to watch; none means all.
    pub fn scopes(&self) -> Vec<Option<String>> {
        scopes(&self.watch_namespaces)
    }
}

/// The namespaces that are named; none means all.
pub fn scopes(namespaces: &[String]) -> Vec<Option<String>> {
    let mut named: Vec<&str> = namespaces.iter().map(|n| n.trim()).filter(|n| !n.is_empty()).collect();
    named.sort_unstable();
    named.dedup();
    if named.is_empty() { vec![None] } else { named.into_iter().map(|n| Some(n.to_owned())).collect() }
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
    fn no_namespace_means_all_of_them() {
        let of = |names: &[&str]| {
            Settings { watch_namespaces: names.iter().map(ToString::to_string).collect(), ..Settings::default() }.scopes()
        };
        assert_eq!(of(&[]), [None]);
        assert_eq!(of(&[""]), [None], "an empty value of the chart");
        assert_eq!(of(&["b", " a", "b"]), [Some("a".into()), Some("b".into())]);
    }
}
