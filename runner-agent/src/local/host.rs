//! A person's machine. Environment, credentials and the tool's configuration are that person's, and so are the files on disk.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

use crds::Failure;

use super::target::top_of;
use crate::{
    host::{Host, Terminal, UNATTENDED},
    settings::Settings,
};

/// A person's machine.
#[derive(Debug)]
pub struct Laptop {
    settings: Arc<Settings>,
    /// The top of the repository that contains the folder.
    top: Option<PathBuf>,
    plan_args: Vec<OsString>,
    colour: bool,
}

impl Laptop {
    /// Creates the host for a run with these settings and the person's plan arguments.
    pub fn new(settings: Arc<Settings>, plan_args: Vec<OsString>, colour: bool) -> Self {
        Self {
            top: settings.folder.as_deref().map(top_of),
            settings,
            plan_args,
            colour,
        }
    }
}

impl Host for Laptop {
    fn hidden(&self, _has_account: bool) -> Option<Vec<PathBuf>> {
        None
    }

    /// The person's environment, then the run's. Only interactive prompts are disabled.
    fn tool_env(&self, own: &[(String, String)]) -> Vec<(OsString, OsString)> {
        let unattended = UNATTENDED.map(|(name, value)| (name.into(), value.into()));
        let own = own.iter().map(|(name, value)| (name.into(), value.into()));
        self.settings
            .inherited
            .iter()
            .cloned()
            .chain(own)
            .chain(unattended)
            .collect()
    }

    fn cli_config(&self) -> Option<PathBuf> {
        None
    }

    fn version_root<'a>(&'a self, root: &'a Path) -> &'a Path {
        self.top.as_deref().unwrap_or(root)
    }

    fn version_option(&self) -> &'static str {
        "--tool"
    }

    /// For a waiting plan the tool's bytes are hashed again, since code that ran in between may have written to the digest cache.
    fn remembers_tools(&self) -> bool {
        !self.settings.restores
    }

    fn plan_args(&self) -> &[OsString] {
        &self.plan_args
    }

    fn terminal(&self) -> Option<Terminal> {
        Some(Terminal {
            colour: self.colour,
        })
    }

    /// A folder is permanent, and so is a state in it.
    fn is_state_kept(&self, in_pod: Result<(), Failure>) -> Result<(), Failure> {
        if self.settings.folder.is_some() {
            return Ok(());
        }
        let message = "the code names no backend that keeps its state, and this copy of it is of this run only".to_owned();
        in_pod.map_err(|failure| Failure { message, ..failure })
    }

    fn has_leases(&self) -> bool {
        false
    }

    fn keeps_disk(&self) -> bool {
        true
    }

    fn emptied(&self) -> Option<Vec<PathBuf>> {
        None
    }

    /// The record, the log and a waiting plan remain.
    fn leftovers(&self) -> Vec<PathBuf> {
        vec![self.settings.tmp(), self.settings.out()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        phases::PhaseRunner,
        process::{Children, Log},
    };
    use std::fs;

    #[tokio::test]
    async fn persons_machine_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = vec![dir.path().join("scratch")];
        let settings = Arc::new(Settings {
            scratch,
            ..Settings::below(dir.path())
        });
        let files = [settings.home(), settings.tmp(), settings.scratch[0].clone()]
            .map(|dir| dir.join("file"));
        for file in &files {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        let host = Arc::new(Laptop::new(settings.clone(), Vec::new(), false));
        let work = PhaseRunner::new(
            settings,
            host,
            Children::default(),
            Log::to(std::io::sink()),
        );
        work.empty_home().await.unwrap();
        assert!(files.iter().all(|file| file.exists()));
    }
}
