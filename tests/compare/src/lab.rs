//! Shared by all cases: tools, the provider mirror, and the agent.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use super::Options;
use harness::cluster::{
    cache,
    gobuild::{Toolset, architecture},
};
use releases::versions;

/// The provider that is built for the tests.
const PROVIDER: &str = "terraform-provider-time";

/// A tool of one version.
#[derive(Clone, Debug)]
pub struct Tool {
    /// In the agent's notation: `opentofu@1.10.6`.
    pub word: String,
    pub binary: &'static str,
    path: PathBuf,
}

/// The requested tools; one with a version is built if it is missing. Without a request, the tools that are built already.
pub fn tools(asked: &[String]) -> Result<Vec<Tool>> {
    let mut found = Vec::new();
    for (tool, version, name) in versions::known() {
        let word = format!("{}@{version}", tool.directory());
        let set = if asked.contains(&word) {
            Some(Toolset::ensure(&[name])?)
        } else if asked.is_empty() || asked.iter().any(|asked| asked == tool.directory()) {
            Toolset::cached(&[name])?
        } else {
            None
        };
        if let Some(set) = set {
            found.push(Tool {
                word,
                binary: tool.binary(),
                path: set.path(name)?.to_owned(),
            });
        }
    }
    let known: Vec<_> = versions::known()
        .map(|(tool, version, _)| format!("{}@{version}", tool.directory()))
        .collect();
    let is =
        |tool: &Tool, asked: &str| tool.word == asked || tool.word.split('@').next() == Some(asked);
    let lacking = |asked: &&String| !found.iter().any(|tool| is(tool, asked));
    if let Some(lacking) = asked.iter().find(lacking) {
        bail!(
            "there is no {lacking}; what can be named, and is built then: {}",
            known.join(", ")
        );
    }
    ensure!(
        !found.is_empty(),
        "no tool is built yet; name one of {}",
        known.join(", ")
    );
    Ok(found)
}

/// Creates a mirror with the one built provider, below a directory, and the configuration that references it and no registry.
pub fn mirror(tools: Option<&Toolset>, directory: &Path, config: &Path) -> Result<()> {
    let providers = directory.join("providers");
    cache::create_dir(&providers)?;
    if let Some(tools) = tools {
        let version = tools.version(PROVIDER)?;
        for host in ["registry.opentofu.org", "registry.terraform.io"] {
            let place = providers
                .join(host)
                .join("hashicorp/time")
                .join(version)
                .join(format!("linux_{}", architecture()));
            cache::create_dir(&place)?;
            fs::copy(
                tools.path(PROVIDER)?,
                place.join(format!("{PROVIDER}_v{version}")),
            )?;
        }
    }
    let text = format!(
        "provider_installation {{\n  filesystem_mirror {{\n    path = \"{}\"\n  }}\n}}\n",
        providers.display()
    );
    cache::write(config, text)
}

/// The files of a comparison.
pub(super) struct Lab {
    scratch: TempDir,
    /// Time limit per side, in whole seconds.
    pub(super) limit: u64,
    pub(super) agent: PathBuf,
    keep: bool,
    terragrunt: bool,
}

impl Lab {
    /// Links the tools and creates the mirror.
    pub(super) fn open(tools: &[Tool], options: &Options) -> Result<Self> {
        let agent = options
            .agent
            .canonicalize()
            .with_context(|| format!("there is no {}", options.agent.display()))?;
        let scratch = tempfile::tempdir().context("no directory for copies")?;
        // Fails for a harness that does not pin Terragrunt.
        let terragrunt = Toolset::cached(&["terragrunt"]).ok().flatten();
        for tool in tools {
            let bin = scratch.path().join("bin").join(&tool.word);
            cache::create_dir(&bin)?;
            symlink(&tool.path, bin.join(tool.binary))?;
            if let Some(terragrunt) = &terragrunt {
                terragrunt.link_into(&bin)?;
            }
        }
        let lab = Self {
            scratch,
            limit: options.limit.as_secs().max(1),
            agent,
            keep: options.keep,
            terragrunt: terragrunt.is_some(),
        };
        mirror(
            Toolset::cached(&[PROVIDER])?.as_ref(),
            lab.scratch.path(),
            &lab.config(),
        )?;
        Ok(lab)
    }

    pub(super) const fn has_terragrunt(&self) -> bool {
        self.terragrunt
    }

    /// Path of the tools' CLI configuration.
    pub(super) fn config(&self) -> PathBuf {
        self.scratch.path().join("tofurc")
    }

    /// PATH for a tool's cases.
    pub(super) fn path(&self, tool: &Tool) -> String {
        format!(
            "{}:/usr/bin:/bin",
            self.scratch.path().join("bin").join(&tool.word).display()
        )
    }

    /// The directory of a case.
    pub(super) fn place(&self, number: usize) -> PathBuf {
        self.scratch.path().join(format!("case-{}", number + 1))
    }

    /// Removes the files of a case, unless they are to be retained.
    pub(super) fn leave(&self, number: usize) -> Result<()> {
        if self.keep {
            Ok(())
        } else {
            cache::remove(&self.place(number))
        }
    }

    /// The directory of all files if they are retained; otherwise they are removed.
    pub(super) fn end(self) -> Option<PathBuf> {
        self.keep.then(|| self.scratch.keep())
    }
}
