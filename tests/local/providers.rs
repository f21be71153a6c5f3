//! The provider cache with the real tools: installation from it, and verification by the lock file.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use runner_agent::providers::{Cache, Installation, LOCK_FILE, Lock, UserConfig, cli_config};

use crate::place::{End as _, Lab, Place, Test, ended, holds};

const MAIN: &str = r#"
terraform {
  required_providers {
    time = { source = "hashicorp/time" }
  }
}
resource "time_static" "it" {}
"#;

pub(crate) fn tests(lab: &Lab) -> Vec<Test> {
    let test = |tool| {
        Test::new(
            format!("providers::{tool}_installs_what_is_served"),
            move |lab| taken(lab, tool),
        )
    };
    lab.tools().into_iter().map(test).collect()
}

/// A stack whose provider is installed in a directory and locked, as after a download, and not linked from a mirror.
struct Stack {
    place: Place,
    tool: &'static str,
}

impl Stack {
    fn installed(lab: &Lab, tool: &'static str) -> Result<Self> {
        let stack = Self {
            place: lab.place(tool, &[("main.tf", MAIN)])?,
            tool,
        };
        ended(
            &mut stack
                .place
                .program(tool, &["init", "-input=false", "-no-color"]),
        )?
        .with(0)?;
        // Replaces the link from a mirror by a copy.
        let link = stack.provider()?;
        if link.is_symlink() {
            let from = link.canonicalize()?;
            fs::remove_file(&link)?;
            ended(Command::new("cp").arg("-r").arg(from).arg(&link))?.with(0)?;
        }
        Ok(stack)
    }

    /// The tool's directory of the provider.
    fn provider(&self) -> Result<PathBuf> {
        let host = if self.tool == "tofu" {
            "registry.opentofu.org"
        } else {
            "registry.terraform.io"
        };
        let versions = self
            .data()
            .join("providers")
            .join(host)
            .join("hashicorp/time");
        let version = fs::read_dir(&versions)?
            .next()
            .context("no version is installed")??;
        Ok(version
            .path()
            .join(tool_versions::Platform::here().to_string()))
    }

    fn data(&self) -> PathBuf {
        self.place.stack().join(".terraform")
    }

    fn lock(&self) -> Result<Lock> {
        Ok(Lock::of(&self.place.stack())?)
    }

    /// The tool's configuration that serves from the cache alone, and the number of providers in it.
    fn served(&self, cache: &Cache) -> Result<(usize, PathBuf)> {
        let mirror = self.place.home().join("mirror");
        let serving = cache.serve(&self.lock()?, &mirror);
        ensure!(serving.notes.is_empty(), "{:?}", serving.notes);
        let config = self.place.home().join("pawl.tfrc");
        fs::write(
            &config,
            cli_config(
                &Installation::of(
                    Path::new("/not-there"),
                    &mirror,
                    &serving.served,
                    &self.lock()?,
                    false,
                ),
                &UserConfig::default(),
            ),
        )?;
        Ok((serving.served.len(), config))
    }

    /// Removes the installed provider, and installs again only from the cache.
    fn init(&self, cache: &Cache) -> Result<(usize, i32, String)> {
        fs::remove_dir_all(self.data())?;
        let (served, config) = self.served(cache)?;
        let mut init = self.place.program(
            self.tool,
            &["init", "-input=false", "-no-color", "-lockfile=readonly"],
        );
        // Without a served provider, no other source is reachable.
        let (code, said) = ended(
            init.env("TF_CLI_CONFIG_FILE", config)
                .env("HTTPS_PROXY", "http://127.0.0.1:9"),
        )?;
        Ok((served, code, said))
    }
}

fn taken(lab: &Lab, tool: &'static str) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let cache = Cache::at(dir.path().join("cache"));
    let stack = Stack::installed(lab, tool)?;
    let kept = cache.keep(&stack.lock()?, &stack.data(), &|| false);
    ensure!(kept.kept.len() == 1 && kept.notes.is_empty(), "{kept:?}");
    let locked = fs::read(stack.place.stack().join(LOCK_FILE))?;
    let (served, code, said) = stack.init(&cache)?;
    ensure!((served, code) == (1, 0), "{served} served: {said}");
    ensure!(
        fs::read(stack.place.stack().join(LOCK_FILE))? == locked,
        "the lock file is another"
    );
    let from = stack.provider()?.canonicalize()?;
    ensure!(
        from.starts_with(dir.path().canonicalize()?),
        "installed from {}",
        from.display()
    );
    // The installed provider runs.
    let said = ended(&mut stack.place.program(
        tool,
        &["apply", "-auto-approve", "-input=false", "-no-color"],
    ))?
    .with(0)?;
    holds(&said, "1 added")?;
    // A stack whose lock file lists another package, or no lock file, gets nothing from it.
    let file = stack.place.stack().join(LOCK_FILE);
    let text = String::from_utf8(locked)?;
    let at = text.find("h1:").context("no h1:")?;
    let other = format!("{}h1:{}={}", &text[..at], "A".repeat(43), &text[at + 47..]);
    fs::write(&file, &other)?;
    let (served, code, _) = stack.init(&cache)?;
    ensure!(
        (served, code) == (0, 1),
        "{served} served, and init ended with {code}"
    );
    // The tool itself refuses an unlisted package, even if it is served.
    fs::write(&file, &text)?;
    let (_, config) = stack.served(&cache)?;
    fs::write(&file, &other)?;
    let mut init = stack
        .place
        .program(tool, &["init", "-input=false", "-no-color"]);
    let said = ended(init.env("TF_CLI_CONFIG_FILE", config))?.with(1)?;
    holds(
        &said.split_whitespace().collect::<Vec<_>>().join(" "),
        "doesn't match any of the checksums",
    )
}
