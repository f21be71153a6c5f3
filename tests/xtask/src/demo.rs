//! The first part of `cargo demo`: builds Go and Rust in parallel, then executes the demo.

use std::{
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode, Stdio},
    thread,
};

use anyhow::{Context, Result, bail};

use crate::{cache::Cache, command, crates, gobuild, prepare, report, root, ui};

/// Programs of the demo and of its images.
const PROGRAMS: &[&str] = &["demo", "runner-agent", "controller"];

/// Builds missing programs and executes the demo in this process.
///
/// # Errors
/// When a program cannot be built. Programs already built stay.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    // The tasks that remove or describe a cluster, and help, need no images.
    let runs = arguments
        .iter()
        .all(|argument| ["--yes", "--fresh"].contains(&argument.as_str()));
    let programs = if runs { PROGRAMS } else { &PROGRAMS[..1] };
    if runs && !Cache::open()?.path("demo-was-up").exists() {
        report::note(
            "demo",
            &format!(
                "the first time takes a quarter of an hour or more: Kubernetes, OpenTofu and images are built from source.\n\
                 They are kept in {}; you may interrupt, and the next run resumes there.",
                Cache::open()?.path("").display()
            ),
        );
    }
    let built = thread::scope(|scope| {
        let tools = scope.spawn(move || {
            if runs {
                prepare(gobuild::DEMO_IN_PODS)
            } else {
                Ok(())
            }
        });
        crates::seed();
        // The controller embeds it.
        let ui = if runs { ui::build() } else { Ok(()) };
        let built = ui.and_then(|()| build(programs));
        let tools = tools
            .join()
            .unwrap_or_else(|_| bail!("building tools has a fault of its own"));
        tools.context("the tools are not ready; run `cargo demo` again")?;
        built
    })?;
    let mut demo = Command::new(&built[0].path);
    if let Some(directory) = built[0].path.parent() {
        demo.env("PAWL_PROGRAMS", directory);
    }
    Err(demo.args(arguments).exec()).context("the demo does not start")
}

/// Builds programs. Cargo's diagnostics go to the terminal.
fn build(names: &[&str]) -> Result<Vec<command::Executable>> {
    let mut cargo = command::cargo();
    cargo.current_dir(root()).args([
        "build",
        "--release",
        "--quiet",
        "--message-format=json-render-diagnostics",
    ]);
    for name in names {
        cargo.args(["--bin", name]);
    }
    let step = report::step("build", names.join(", "));
    let output = cargo
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo ended with {}", output.status);
    }
    step.done();
    let messages = String::from_utf8_lossy(&output.stdout);
    crates::store(&messages);
    let found = command::executables(&messages);
    names
        .iter()
        .map(|name| {
            found
                .iter()
                .find(|one| one.target == *name)
                .cloned()
                .with_context(|| format!("cargo built no {name}"))
        })
        .collect()
}
