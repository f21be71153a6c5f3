//! The settings of an attempt's pod.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use crds::{datastore, pod_env, tools::ToolSettings};

use crate::report::Commands;

/// Name and UID of the pod on a person's machine.
pub const LOCAL: &str = "local";

/// The settings of an attempt.
#[derive(Clone, Debug)]
pub struct Settings {
    pub namespace: String,
    pub run: String,
    pub run_uid: String,
    pub attempt: u32,
    pub pod_name: String,
    pub pod_uid: String,
    /// The pod's node.
    pub node_name: Option<String>,
    /// Random per process; kept in memory only.
    pub nonce: String,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Directories of the image with tools, in order.
    pub tools: Vec<PathBuf>,
    /// The operator's settings for tools. `None` on a person's machine, where the agent installs no tool.
    pub tool_settings: Option<ToolSettings>,
    /// The tool cache, a volume. Without one the cache is below the work directory.
    pub cache: Option<PathBuf>,
    /// Credentials of mirrors, as `TOOL/KEY`.
    pub mirrors: PathBuf,
    /// Directory of a provider mirror.
    pub providers: PathBuf,
    /// Shared cache of providers.
    pub provider_cache: Option<PathBuf>,
    /// The work directory: source, home, temporary files and the tool's output. The agent also writes to `kept`.
    pub work: PathBuf,
    /// Files that only the agent writes and the tool reads: the plan that is shown, hashed and applied. In a pod it is a separate
    /// volume, which the stack's code cannot change if the kernel supports Landlock.
    pub kept: PathBuf,
    /// Other directories that code may write to, and that are empty in a new pod. Empty on a person's machine.
    pub scratch: Vec<PathBuf>,
    /// Secrets, as `NAME/KEY`.
    pub secrets: PathBuf,
    /// ConfigMaps, as `NAME/KEY`.
    pub config_maps: PathBuf,
    /// Tokens of the run's ServiceAccount for clouds and Vault, as `FIELD/token`.
    pub identity: PathBuf,
    /// Whether an attempt fails on a node that cannot confine the stack's code.
    pub require_confinement: bool,
    pub termination_log: PathBuf,
    /// PEM authorities besides the image's, for all downloads.
    pub ca: Option<String>,
    /// Environment passed on to commands: proxies, the API server's address, `PATH`.
    pub inherited: Vec<(OsString, OsString)>,
    /// All variables of the pod. Commands get those among them that webhooks of the cluster set for the cloud account of its ServiceAccount.
    pub injected: Vec<(String, String)>,
    /// The stack's folder, used in place; `None` if the source is fetched below the work directory, as in a pod.
    pub folder: Option<PathBuf>,
    /// The command line of a person to run again; `None` in a cluster.
    pub command: Option<String>,
    /// Restores the plan in the status, even if the attempt in the status does not request it.
    pub restores: bool,
    pub store: Option<Store>,
    /// Minimum interval of progress writes, and the shortest phase that has any.
    pub progress_every: Duration,
    /// Duration of silence before the status reports it.
    pub stall_after: Duration,
}

/// Connection to the datastore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// Its URL, `https://…`.
    pub url: String,
    /// Its certificate authority, as PEM.
    pub ca: String,
    /// Path of the token file.
    pub token: PathBuf,
}

/// Default time for an interrupted apply to end by itself: 10 minutes.
const GRACE: Duration = Duration::from_secs(600);

/// Minimum interval of progress writes in a cluster.
pub const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// Duration of silence before the status reports it: 60 s. Longer than a provider's usual silence, and short for people who wait.
pub const STALL_AFTER: Duration = Duration::from_secs(60);

/// A setting of the pod is missing or invalid.
#[derive(Debug, thiserror::Error)]
#[error("`{name}` {problem}")]
pub struct SettingsError {
    name: &'static str,
    problem: &'static str,
}

/// Environment variables passed on from the pod to commands. None reveals the path of the pod's token. The API server's address is
/// included, since the `kubernetes` backend and provider need it.
const INHERITED: &str = "PATH KUBERNETES_SERVICE_HOST KUBERNETES_SERVICE_PORT HTTP_PROXY HTTPS_PROXY NO_PROXY \
    http_proxy https_proxy no_proxy SSL_CERT_FILE SSL_CERT_DIR TZ";

impl Settings {
    /// Reads the pod's environment and generates the nonce.
    pub fn from_env() -> Result<Self, SettingsError> {
        let text = |name: &'static str| {
            std::env::var(name)
                .ok()
                .filter(|v| !v.is_empty())
                .ok_or(SettingsError {
                    name,
                    problem: "is not set",
                })
        };
        let dir = |name, default: &str| {
            std::env::var_os(name).map_or_else(|| PathBuf::from(default), PathBuf::from)
        };
        let number = |name: &'static str, text: String| {
            text.parse::<u32>().map_err(|_| SettingsError {
                name,
                problem: "is not a number",
            })
        };
        let grace =
            std::env::var(pod_env::ENV_GRACE).unwrap_or_else(|_| GRACE.as_secs().to_string());
        let said = std::env::var(pod_env::ENV_TOOL_SETTINGS).unwrap_or_default();
        let tool_settings = said.parse().map_err(|_| SettingsError {
            name: pod_env::ENV_TOOL_SETTINGS,
            problem: "is not what the controller writes",
        })?;
        // A controller of the previous version does not mount this volume.
        let kept = Some(PathBuf::from(pod_env::KEPT_DIR))
            .filter(|dir| dir.is_dir())
            .unwrap_or_else(|| PathBuf::from(pod_env::WORK_DIR).join("plan"));
        let ca = std::env::var(pod_env::ENV_CA)
            .ok()
            .filter(|pem| !pem.is_empty());
        let mut inherited: Vec<(OsString, OsString)> = INHERITED
            .split(' ')
            .filter_map(|name| Some((name.into(), std::env::var_os(name)?)))
            .collect();
        if ca.is_some() {
            source::authorities::trust(&mut inherited, &ca_file(&kept));
        }
        Ok(Self {
            namespace: text(pod_env::ENV_NAMESPACE)?,
            run: text(pod_env::ENV_RUN)?,
            run_uid: text(pod_env::ENV_RUN_UID)?,
            attempt: number(pod_env::ENV_ATTEMPT, text(pod_env::ENV_ATTEMPT)?)?,
            pod_name: text(pod_env::ENV_POD_NAME)?,
            pod_uid: text(pod_env::ENV_POD_UID)?,
            // A controller of the previous version does not set it.
            node_name: std::env::var(pod_env::ENV_NODE_NAME)
                .ok()
                .filter(|name| !name.is_empty()),
            grace: Duration::from_secs(number(pod_env::ENV_GRACE, grace)?.into()),
            tools: vec![dir(pod_env::ENV_TOOLS, pod_env::TOOLS_DIR)],
            tool_settings: Some(tool_settings),
            cache: std::env::var_os(pod_env::ENV_TOOLS_CACHE).map(PathBuf::from),
            mirrors: pod_env::MIRRORS_DIR.into(),
            providers: dir(pod_env::ENV_PROVIDERS, pod_env::PROVIDERS_DIR),
            provider_cache: std::env::var_os(pod_env::ENV_PROVIDERS_CACHE)
                .filter(|dir| !dir.is_empty())
                .map(PathBuf::from),
            kept,
            scratch: ["/tmp", "/dev/shm"].map(PathBuf::from).into(),
            secrets: pod_env::SECRETS_DIR.into(),
            config_maps: pod_env::CONFIG_MAPS_DIR.into(),
            identity: pod_env::IDENTITY_DIR.into(),
            require_confinement: std::env::var_os(pod_env::ENV_REQUIRE_CONFINEMENT)
                .is_some_and(|value| value == "true"),
            termination_log: pod_env::TERMINATION_LOG.into(),
            ca,
            inherited,
            injected: std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
            store: store()?,
            ..Self::below(Path::new(pod_env::WORK_DIR))
        })
    }

    /// Settings of an attempt with everything below one directory, and without Secrets, caches or datastore.
    pub fn below(work: &Path) -> Self {
        let none = || PathBuf::from("/nonexistent");
        Self {
            namespace: "local".to_owned(),
            run: "local".to_owned(),
            run_uid: "local".to_owned(),
            attempt: 1,
            pod_name: LOCAL.to_owned(),
            pod_uid: LOCAL.to_owned(),
            node_name: None,
            nonce: nonce(),
            grace: GRACE,
            tools: vec![work.join("tools")],
            tool_settings: None,
            cache: None,
            mirrors: none(),
            providers: none(),
            provider_cache: None,
            kept: work.join("plan"),
            work: work.to_owned(),
            scratch: Vec::new(),
            secrets: none(),
            config_maps: none(),
            identity: none(),
            require_confinement: false,
            termination_log: work.join("end.json"),
            ca: None,
            inherited: Vec::new(),
            injected: Vec::new(),
            folder: None,
            command: None,
            restores: false,
            store: None,
            progress_every: PROGRESS_EVERY,
            stall_after: STALL_AFTER,
        }
    }

    pub fn commands(&self) -> Commands {
        match &self.command {
            None => {
                let (namespace, run) = (self.namespace.clone(), self.run.clone());
                Commands::Cluster {
                    namespace,
                    run,
                    stored: self.store.is_some(),
                }
            }
            Some(command) => Commands::Folder {
                command: command.clone(),
                record: self.work.clone(),
            },
        }
    }

    pub fn source_dir(&self) -> PathBuf {
        self.folder.clone().unwrap_or_else(|| self.work.join("src"))
    }

    /// The top directory of a fetched source: of a Git repository, the one that a clone creates below [`Self::source_dir`].
    pub fn top_dir(&self) -> PathBuf {
        let name = std::fs::read_to_string(self.top_file()).unwrap_or_default();
        let is_name = matches!(
            Path::new(&name).components().collect::<Vec<_>>()[..],
            [std::path::Component::Normal(_)]
        );
        match &self.folder {
            None if is_name => self.source_dir().join(name),
            _ => self.source_dir(),
        }
    }

    /// The file with the name of the top directory, for later processes of the attempt.
    pub fn top_file(&self) -> PathBuf {
        self.kept.join("top")
    }

    /// The plan file that is shown, hashed and applied. It is outside the source, so no digest of the source includes it.
    pub fn plan_file(&self) -> PathBuf {
        self.kept.join("tfplan")
    }

    /// The path to which the tool writes a plan. The stack's code may change it, so it is read only once.
    pub fn plan_out(&self) -> PathBuf {
        self.out().join("tfplan")
    }

    /// Directory of that file only.
    pub fn out(&self) -> PathBuf {
        self.work.join("out")
    }

    /// The file with the authorities of image and operator, if the operator has any. The stack's code cannot change it.
    pub fn ca_file(&self) -> PathBuf {
        ca_file(&self.kept)
    }

    pub fn home(&self) -> PathBuf {
        self.work.join("home")
    }

    /// Temporary files of commands.
    pub fn tmp(&self) -> PathBuf {
        self.work.join("tmp")
    }
}

fn ca_file(kept: &Path) -> PathBuf {
    kept.join("ca.crt")
}

fn store() -> Result<Option<Store>, SettingsError> {
    let text = |name: &'static str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(url) = text(datastore::ENV_URL) else {
        return Ok(None);
    };
    let ca = text(datastore::ENV_CA).ok_or(SettingsError {
        name: datastore::ENV_CA,
        problem: "is not set",
    })?;
    Ok(Some(Store {
        url,
        ca,
        token: PathBuf::from(datastore::TOKEN_DIR).join("token"),
    }))
}

/// 32 random hexadecimal digits.
pub fn nonce() -> String {
    hex::encode(rand::random::<[u8; 16]>())
}
