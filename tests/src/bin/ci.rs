//! `cargo ci`: everything that has to hold before a change lands, each stage timed; ends with `N passed, N failed`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use tests::{
    ci::{Count, Outcome, Stage, run},
    cluster::{Cluster, cache::Cache, command},
};

/// Everything that has to hold before a change lands.
#[derive(Parser)]
#[command(name = "cargo ci")]
struct Arguments {
    /// Only the stages whose name holds this.
    #[arg(long)]
    only: Option<String>,
    /// Only the tests whose name holds this.
    #[arg(long)]
    tests: Option<String>,
    /// Leave the cluster of the tests up, to look at.
    #[arg(long)]
    keep: bool,
    /// What the stage of that name runs.
    #[arg(long, hide = true)]
    tools: bool,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    if arguments.tools {
        Cluster::prepare()?;
        return Ok(ExitCode::SUCCESS);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    let logs = Cache::open()?.path("ci-logs");
    fs::create_dir_all(&logs)?;
    let started = Instant::now();
    let mut outcomes = Vec::new();
    let before = generated(&root)?;
    let wanted = |stage: &Stage| arguments.only.as_ref().is_none_or(|only| stage.name.contains(only.as_str()));
    thread::scope(|scope| {
        let mut asides = Vec::new();
        for stage in stages(&root, &arguments)?.into_iter().filter(wanted) {
            if stage.aside {
                let logs = &logs;
                asides.push(scope.spawn(move || run(stage, logs)));
                continue;
            }
            if stage.name == "tests" {
                join(&mut asides, &mut outcomes)?;
            }
            let is_generation = stage.name == "generate";
            let mut outcome = run(stage, &logs)?;
            if is_generation {
                let after = generated(&root)?;
                for path in after.keys().chain(before.keys()).filter(|path| after.get(*path) != before.get(*path)) {
                    println!("    {} was not up to date; commit what the generator wrote", path.display());
                    outcome.ok = false;
                }
            }
            outcomes.push(outcome);
        }
        join(&mut asides, &mut outcomes)
    })?;
    Ok(close(&outcomes, started.elapsed()))
}

/// Waits for what runs aside.
fn join(asides: &mut Vec<thread::ScopedJoinHandle<'_, Result<Outcome>>>, outcomes: &mut Vec<Outcome>) -> Result<()> {
    for aside in asides.drain(..) {
        outcomes.push(aside.join().map_err(|_| anyhow!("a stage has a fault of its own"))??);
    }
    Ok(())
}

fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = command::cargo();
    command.current_dir(root).args(arguments).env("CARGO_TERM_COLOR", "never");
    command
}

fn stages(root: &Path, arguments: &Arguments) -> Result<Vec<Stage>> {
    let stage = |name, command| Stage { name, command, aside: false };
    let itself = std::env::current_exe()?;
    // Compiling Go and compiling Rust each leave a core idle while they link.
    let mut tools = Stage { name: "tools", command: Command::new(&itself), aside: true };
    tools.command.arg("--tools");
    let mut tests = cargo(root, &["test", "--release", "--workspace", "--no-fail-fast", "--"]);
    tests.args(arguments.tests.iter()).env("CI", "true");
    if arguments.keep {
        tests.env("PAWL_KEEP", "1");
    }
    let mut kills = Command::new(itself.with_file_name("chaos"));
    // Another course of things each time; the seed stands in what it prints. What is under way comes to its end after the time.
    let seed = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    kills.args(["--kills", "100000", "--seconds", "130", "--seed", &seed.to_string()]).env("CI", "true");
    let mut docs = cargo(root, &["doc", "--release", "--workspace", "--no-deps"]);
    docs.env("RUSTDOCFLAGS", "-D warnings");
    let mut deny_tool = cargo(root, &["install", "cargo-deny", "--version", "0.20.2", "--locked", "--quiet", "--root"]);
    let cache = Cache::open()?;
    let tool_root = cache.path("cargo-tools");
    // Not ours: without the flags of our own build, which would link it statically, and below the tests in rank.
    deny_tool.arg(&tool_root).current_dir(cache.path(""));
    // It works for a second; building it well would take minutes.
    deny_tool.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0").env("CARGO_PROFILE_RELEASE_DEBUG", "false");
    let mut deny = Command::new(tool_root.join("bin/cargo-deny"));
    deny.current_dir(root).args(["--config", ".cargo/deny.toml", "--offline", "check", "bans", "licenses", "sources"]);
    Ok(vec![
        tools,
        stage("format", cargo(root, &["fmt", "--all", "--check"])),
        // For all platforms, as the last stage reads the manifests of all of them without a network.
        stage("fetch", cargo(root, &["fetch", "--locked"])),
        stage("build", cargo(root, &["build", "--release", "--workspace"])),
        stage("generate", cargo(root, &["run", "--release", "--bin", "crdgen"])),
        stage("compile", cargo(root, &["test", "--release", "--workspace", "--no-run"])),
        stage("tests", tests),
        stage("kills", kills),
        stage("clippy", cargo(root, &["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"])),
        stage("docs", docs),
        stage("deny tool", deny_tool),
        stage("deny", deny),
    ])
}

/// The generated files and what is in them.
fn generated(root: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let directory = root.join("charts/pawl/files/crds");
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let path = entry?.path();
        files.insert(path.clone(), fs::read(&path)?);
    }
    Ok(files)
}

fn close(outcomes: &[Outcome], took: Duration) -> ExitCode {
    let mut count = Count::default();
    println!();
    for outcome in outcomes {
        println!("{:>8.1} s  {:<10} {}", outcome.took.as_secs_f64(), outcome.name, if outcome.ok { "ok" } else { "FAILED" });
        count += outcome.count;
    }
    let broken = outcomes.iter().filter(|o| !o.ok).count() as u64;
    println!("{:>8.1} s  in all", took.as_secs_f64());
    // A stage that failed without a failed test counts as one.
    count.failed = count.failed.max(broken);
    println!("{} passed, {} failed", count.passed, count.failed);
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
