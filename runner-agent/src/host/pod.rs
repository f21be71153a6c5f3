//! The host of an attempt in its own pod.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use crds::{Failure, datastore, pod_env};

use super::{Host, Terminal, UNATTENDED};
use crate::settings::Settings;

#[derive(Clone, Debug)]
pub struct Pod(Arc<Settings>);

impl Pod {
    pub const fn new(settings: Arc<Settings>) -> Self {
        Self(settings)
    }
}

impl Host for Pod {
    /// The pod's tokens, its Secrets and the termination message. The agent passes on the values from Secrets that the run
    /// references; credentials for the source are not among them.
    fn hidden(&self, has_account: bool) -> Option<Vec<PathBuf>> {
        let own = (!has_account).then_some(pod_env::TOKEN_DIR);
        let fixed = [datastore::TOKEN_DIR, pod_env::TERMINATION_LOG]
            .into_iter()
            .chain(own)
            .map(PathBuf::from);
        Some(
            fixed
                .chain([self.0.mirrors.clone(), self.0.secrets.clone()])
                .collect(),
        )
    }

    /// The listed variables, then those of the run. Nothing else of the agent's environment.
    fn tool_env(&self, own: &[(String, String)]) -> Vec<(OsString, OsString)> {
        let settings = &self.0;
        let mut env = settings.inherited.clone();
        // Some programs prefer the proxy variable in upper case, others in lower case. If the run sets one of the two, both of the agent's
        // are dropped.
        let is_said = |name: &OsString| own.iter().any(|(own, _)| name.eq_ignore_ascii_case(own));
        let is_proxy = |name: &OsString| {
            name.to_ascii_lowercase()
                .to_string_lossy()
                .ends_with("_proxy")
        };
        env.retain(|(name, _)| !(is_proxy(name) && is_said(name)));
        let mut set = |name: &str, value: OsString| env.push((name.into(), value));
        if !settings.inherited.iter().any(|(name, _)| name == "PATH") {
            set(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into(),
            );
        }
        set("HOME", settings.home().into());
        set("TMPDIR", settings.tmp().into());
        for (name, value) in [
            ("USER", "pawl"),
            ("LANG", "C.UTF-8"),
            ("CHECKPOINT_DISABLE", "1"),
            // A program that only asks git would otherwise change a file of the plan's work directory.
            ("GIT_OPTIONAL_LOCKS", "0"),
        ]
        .into_iter()
        .chain(UNATTENDED)
        {
            set(name, value.into());
        }
        if let Some(path) = self.cli_config() {
            set("TF_CLI_CONFIG_FILE", path.into());
        }
        for (name, value) in own {
            set(name, value.into());
        }
        env
    }

    fn cli_config(&self) -> Option<PathBuf> {
        Some(self.0.kept.join("pawl.tfrc"))
    }

    fn version_root<'a>(&'a self, root: &'a Path) -> &'a Path {
        root
    }

    fn version_option(&self) -> &'static str {
        "spec.tool.version"
    }

    fn remembers_tools(&self) -> bool {
        false
    }

    fn plan_args(&self) -> &[OsString] {
        &[]
    }

    fn terminal(&self) -> Option<Terminal> {
        None
    }

    fn is_state_kept(&self, in_pod: Result<(), Failure>) -> Result<(), Failure> {
        in_pod
    }

    fn has_leases(&self) -> bool {
        true
    }

    fn keeps_disk(&self) -> bool {
        false
    }

    fn emptied(&self) -> Option<Vec<PathBuf>> {
        let settings = &self.0;
        let scratch = settings.scratch.iter().filter(|dir| dir.is_dir()).cloned();
        Some(
            [settings.home(), settings.tmp()]
                .into_iter()
                .chain(scratch)
                .collect(),
        )
    }

    fn leftovers(&self) -> Vec<PathBuf> {
        let Settings { work, kept, .. } = &*self.0;
        let kept = Some(kept).filter(|dir| !dir.starts_with(work));
        let entries = std::iter::once(work)
            .chain(kept)
            .flat_map(fs::read_dir)
            .flatten()
            .flatten();
        entries.map(|entry| entry.path()).collect()
    }
}
