//! The versions that tests and benchmarks use: two that CI builds from source for other reasons, and four that are built only on request,
//! since each takes minutes.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use tool_versions::Tool;

use super::Release;
use harness::cluster::cache::{self, Cache, Lock};
use harness::cluster::command::run;
use harness::cluster::gobuild::Toolset;
use harness::cluster::images;

/// A tool, its version, and its name in [`harness::cluster::gobuild`].
pub type Known = (Tool, &'static str, &'static str);

/// Versions whose real programs CI builds.
const BUILT: [Known; 2] = [
    (Tool::OpenTofu, "1.10.6", "tofu"),
    (Tool::Terraform, "1.5.7", "terraform"),
];

/// The others.
const OTHERS: [Known; 3] = [
    (Tool::OpenTofu, "1.9.4", "tofu-1.9.4"),
    (Tool::OpenTofu, "1.12.6", "tofu-1.12.6"),
    (Tool::Terraform, "1.8.5", "terraform-1.8.5"),
];

/// A version on no mirror: `cargo compare` runs it.
const COMPARED: [Known; 1] = [(Tool::Terraform, "1.13.3", "terraform-1.13.3")];

/// All versions, those of CI first.
pub fn known() -> impl Iterator<Item = Known> {
    BUILT.into_iter().chain(OTHERS).chain(COMPARED)
}

/// The versions that are real programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Programs {
    /// Two; the others are scripted.
    #[default]
    Some,
    /// All; missing ones are built from source.
    Real,
}

/// OpenTofu 1.9.4, 1.10.6 and 1.12.6, Terraform 1.5.7 and 1.8.5. Builds missing ones.
pub fn all(programs: Programs) -> Result<Vec<Release>> {
    let (real, scripted) = match programs {
        Programs::Some => (BUILT.to_vec(), OTHERS.to_vec()),
        Programs::Real => ([&BUILT[..], &OTHERS].concat(), Vec::new()),
    };
    let tools = Toolset::ensure(&real.iter().map(|known| known.2).collect::<Vec<_>>())?;
    let mut releases = Vec::new();
    for (tool, version, name) in real {
        releases.push(Release::new(tool, version, tools.path(name)?)?);
    }
    if !scripted.is_empty() {
        let program = scripted_tool()?;
        for (tool, version, _) in scripted {
            releases.push(Release::scripted(tool, version, &program)?);
        }
    }
    Ok(releases)
}

/// The scripted tool, built from this checkout, without debug information, which makes it twenty times as large.
pub fn scripted_tool() -> Result<PathBuf> {
    let built = images::programs(&["scripted-tool"], images::Profile::Same)?
        .pop()
        .context("the scripted tool was not built")?;
    let cache = Cache::open()?;
    let stripped = cache.path(format!(
        "releases/{}/scripted-tool",
        cache::file_key(&built)?
    ));
    let _lock = Lock::wait(&stripped.with_extension("lock"))?;
    if !stripped.exists() {
        Cache::install(&stripped, |temporary| {
            run(Command::new("strip")
                .args(["--strip-debug", "-o"])
                .arg(temporary)
                .arg(&built))
            .map(drop)
        })?;
    }
    Ok(stripped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_versions_match_the_go_modules() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools");
        for (tool, version, group) in known() {
            let pins = std::fs::read_to_string(directory.join(group).join("go.mod")).unwrap();
            let module = if tool == Tool::OpenTofu {
                "opentofu/opentofu"
            } else {
                "hashicorp/terraform"
            };
            assert!(
                pins.contains(&format!("\nrequire github.com/{module} v{version}\n")),
                "{group}"
            );
        }
    }
}
