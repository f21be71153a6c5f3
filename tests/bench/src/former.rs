//! Chart and programs of an earlier commit, built from its own tree in the cache, outside of this checkout: `--commit COMMIT` measures them
//! instead of this checkout's.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use xtask::root;

use harness::cluster::{
    cache::{self, Cache, Lock},
    chart::PawlImages,
    command::{cargo, executables, run},
    gobuild::{IN_PODS, Toolset},
    images::{self, Builder},
    report,
};

/// Chart and images of a commit.
pub(super) struct Former {
    /// Its tree, without history.
    pub(super) checkout: PathBuf,
    pub(super) images: PawlImages,
}

impl Former {
    /// Builds what is missing, which takes minutes the first time.
    pub(super) fn build(from: &str) -> Result<Self> {
        let commit = resolve(from)?;
        let base = Cache::open()?.path(format!("former/{commit}"));
        let checkout = base.join("tree");
        let programs = {
            let _lock = Lock::wait(&base.join("lock"))?;
            if !checkout.exists() {
                Cache::install(&checkout, |to| unpack(&commit, to))?;
            }
            programs(&checkout, &base.join("target"))?
        };
        // The tools are this checkout's: both agents look for them at the same path.
        let scripted = images::programs(&["scripted-tool"], images::Profile::Same)?;
        let files = images::test_files(&Toolset::ensure(IN_PODS)?, Some(&scripted[0]))?;
        let builder = Builder::of(&checkout, "former")?;
        let sources = checkout
            .join("images/sources")
            .exists()
            .then(|| builder.sources(&programs[1]))
            .transpose()?;
        let images = PawlImages {
            runner: builder.runner(&programs[0], &files)?,
            controller: builder.controller(&programs[1])?,
            sources,
        };
        Ok(Self { checkout, images })
    }
}

/// The full id of a commit.
fn resolve(from: &str) -> Result<String> {
    let mut command = Command::new("git");
    command
        .current_dir(root())
        .args(["rev-parse", "--verify", "--quiet", "--end-of-options"]);
    let commit = run(command.arg(format!("{from}^{{commit}}"))).with_context(|| {
        format!("this checkout has no commit {from} in its history; `git fetch --unshallow` gets the history of a shallow clone")
    })?;
    Ok(commit.trim().to_owned())
}

fn unpack(commit: &str, to: &Path) -> Result<()> {
    cache::create_dir(to)?;
    let archive = to.with_extension("tar");
    run(Command::new("git")
        .current_dir(root())
        .args(["archive", "--format=tar", "-o"])
        .arg(&archive)
        .arg(commit))
    .with_context(|| format!("cannot read the tree of {commit}"))?;
    run(Command::new("tar")
        .arg("-xf")
        .arg(&archive)
        .arg("-C")
        .arg(to))
    .with_context(|| format!("cannot unpack {commit}"))?;
    cache::remove(&archive)
}

/// Agent and controller of a tree, with the dependencies of its own lock file.
fn programs(checkout: &Path, target: &Path) -> Result<[PathBuf; 2]> {
    let step = report::step(
        "build",
        "runner-agent, controller of the commit that is measured",
    );
    let mut command = cargo();
    command.current_dir(checkout).args([
        "build",
        "--release",
        "--locked",
        "--message-format=json-render-diagnostics",
    ]);
    command.args([
        "-p",
        "runner-agent",
        "-p",
        "controller",
        "--bin",
        "runner-agent",
        "--bin",
        "controller",
    ]);
    let output = run(command.arg("--target-dir").arg(target))
        .context("cannot build the commit that is measured")?;
    let found = executables(&output);
    let path = |name: &str| {
        let path = found
            .iter()
            .map(|found| &found.path)
            .find(|path| path.file_name().is_some_and(|file| file == name));
        path.cloned()
            .with_context(|| format!("cargo built no program called {name}"))
    };
    let programs = [path("runner-agent")?, path("controller")?];
    step.done();
    Ok(programs)
}
