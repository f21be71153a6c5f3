//! `cargo ci`: all checks of a change. Times each stage; ends with `N passed, N failed`.
//!
//! Go and Rust are built in parallel. Then there are lanes: suites in pods on one cluster; destructive suites and the kill loop on another;
//! suites with their own servers; and, at the lowest priority, tests that only compute.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::OnceLock,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{
    budgets::{self, Times},
    cache::{self, Cache},
    command::{self, Executable},
    count::Count,
    crates, rights, root,
    stage::{End, Outcome, Stage, run_all},
    ui,
};

/// The stages and tests to run.
#[derive(Debug, Args)]
pub struct Options {
    /// Only the stages whose name contains this, and those that they need.
    #[arg(long)]
    only: Option<String>,
    /// Only the tests whose name contains this.
    #[arg(long)]
    tests: Option<String>,
    /// Leave the test clusters up for inspection.
    #[arg(long)]
    keep: bool,
}

/// How long the kill loop starts kills. Runs in progress are then completed.
const KILLS: Duration = Duration::from_secs(180);

/// Runs the stages.
///
/// # Errors
/// When the list of stages cannot be made. A failed stage is no error.
pub fn run(options: &Options) -> Result<ExitCode> {
    let logs = Cache::open()?.path("ci-logs");
    fs::create_dir_all(&logs)?;
    let rights = logs.join("rights");
    cache::remove(&rights)?;
    let started = Instant::now();
    let built = OnceLock::new();
    let plan = Plan {
        options,
        built: &built,
        rights: &rights,
    };
    let outcomes = run_all(plan.wanted()?, &logs);
    // A filtered run is no measurement of a stage.
    if options.tests.is_none()
        && let Err(error) = remember(&outcomes, options.only.is_none())
    {
        println!("warning: processor times are not kept: {error:#}");
    }
    Ok(close(outcomes, started.elapsed()))
}

#[derive(Clone, Copy)]
struct Plan<'a> {
    options: &'a Options,
    /// The output of the stage `build`.
    built: &'a OnceLock<Built>,
    /// Where suites leave which rights were used.
    rights: &'a Path,
}

struct Built {
    programs: Vec<Executable>,
    /// All messages of Cargo.
    messages: String,
}

/// Messages for programs on stdout, diagnostics for people on stderr.
const JSON: &str = "--message-format=json-render-diagnostics";

const PODS: &[&str] = &["build", "tools"];

impl<'a> Plan<'a> {
    /// The selected stages, and those that they need.
    fn wanted(self) -> Result<Vec<Stage<'a>>> {
        let mut stages = self.all()?;
        if let Some(only) = &self.options.only {
            let named: Vec<_> = stages
                .iter()
                .filter(|stage| stage.name.contains(only.as_str()))
                .collect();
            ensure!(!named.is_empty(), "no stage is called {only}");
            let mut kept: Vec<_> = named.iter().map(|stage| stage.name).collect();
            let mut at = 0;
            while let Some(name) = kept.get(at) {
                let needs = stages.iter().filter(|stage| stage.name == *name);
                kept.extend(
                    needs
                        .flat_map(|stage| stage.needs)
                        .copied()
                        .collect::<Vec<_>>(),
                );
                at += 1;
            }
            stages.retain(|stage| kept.contains(&stage.name));
        }
        Ok(stages)
    }

    fn all(self) -> Result<Vec<Stage<'a>>> {
        let all = [
            "--release",
            "--workspace",
            "--lib",
            "--bins",
            "--tests",
            JSON,
        ];
        let built = move |text: &str| {
            crates::store(text);
            let programs = command::executables(text);
            ensure!(!programs.is_empty(), "cargo names no program that it built");
            self.built
                .set(Built {
                    programs,
                    messages: text.to_owned(),
                })
                .ok()
                .context("built twice")
        };
        let build = move || {
            crates::seed();
            vec![cargo(&["build"], &all)]
        };
        let suite = |name| Stage::new(name, &["build"], move || self.programs("test", name));
        let low = |name| {
            Stage::new(name, &["build"], move || {
                self.programs("test", name).iter().map(lowly).collect()
            })
        };
        let units = move || self.programs("lib", "").iter().map(lowly).collect();
        let ui_tests = || {
            ["check", "test", "look", "big"]
                .map(|script| {
                    let mut npm = Command::new("npm");
                    npm.current_dir(ui::directory()).args(["run", script]);
                    lowly(&npm)
                })
                .into()
        };
        let before = generated()?;
        let mut stages = vec![
            Stage::new("tools", &[], || vec![xtask("tools")]),
            // Gitea and a browser. After the tools, which everything in pods waits for, and in parallel with the later stages.
            Stage::new("forge", &["tools"], || vec![lowly(&xtask("forge"))]),
            Stage::new("format", &[], || {
                vec![cargo(&["fmt", "--all", "--check"], &[])]
            }),
            // The controller embeds it.
            Stage::new("ui", &[], || vec![xtask("ui")]),
            // One command, so that Cargo parallelises all crates and compiles none twice.
            Stage::new("build", &["ui"], build).then(built),
            // After the build, which downloads crates: Cargo locks its package cache.
            Stage::new("dependencies", &["build"], || vec![xtask("dependencies")]),
            Stage::new("commits", &[], || vec![xtask("commits")]),
            // Lines need no build, so that `--only budgets` takes seconds.
            Stage::new("budgets", &[], move || vec![self.budgets()]).after("build"),
            Stage::new("generate", &["build"], move || {
                self.programs("bin", "crdgen")
            })
            .then(move |_| unchanged(&before, &generated()?)),
            // Suites in pods.
            Stage::new("pods", PODS, move || self.pods("together")),
            Stage::new("pods alone", PODS, move || self.pods("alone")),
            Stage::new("kills", PODS, move || self.kills()).after("pods"),
            // Suites with their own servers, one after the other.
            suite("attempts"),
            suite("program").after("attempts"),
            Stage::new("store", PODS, move || self.programs("test", "store")).after("program"),
            Stage::new("local", PODS, move || self.programs("test", "local")).after("store"),
            Stage::new("api", &["build", "tools", "forge"], move || {
                self.programs("test", "api")
            })
            .after("local"),
            // At the lowest priority: tests that only compute, and beside them two that mostly wait.
            low("versions"),
            low("sim").after("versions"),
            low("fetched"),
            low("followed").after("fetched"),
            Stage::new("units", &["build"], units).after("sim"),
            Stage::new("ui tests", &["ui", "forge"], ui_tests).after("units"),
        ];
        // A filtered suite does not use all rights.
        if self.options.tests.is_none() {
            let suites = &["pods", "pods alone", "kills", "api"];
            stages
                .push(Stage::new("rights", suites, Vec::new).then(|_| rights::judge(self.rights)));
        }
        let clippy = move || {
            vec![lowly(
                cargo(&["clippy"], &all).args(["--", "-D", "warnings"]),
            )]
        };
        // With the messages of the build: a snapshot covers one target folder and is replaced whole.
        let checked = move |text: &str| {
            let built = self
                .built
                .get()
                .map(|built| built.messages.as_str())
                .unwrap_or_default();
            crates::store(&[built, text].concat());
            Ok(())
        };
        let docs = || {
            let mut docs = cargo(&["doc"], &["--release", "--workspace", "--no-deps"]);
            vec![lowly(docs.env("RUSTDOCFLAGS", "-D warnings"))]
        };
        stages.push(Stage::new("clippy", &["build"], clippy).then(checked));
        stages.push(Stage::new("docs", &["build"], docs).after("clippy"));
        Ok(stages)
    }

    /// The built programs of a kind, with `PAWL_PROGRAMS` set: all if `name` is empty, else the one of that name.
    fn programs(self, kind: &str, name: &str) -> Vec<Command> {
        let all = self
            .built
            .get()
            .map(|built| built.programs.as_slice())
            .unwrap_or_default();
        let programs = self.directory().unwrap_or(Path::new(""));
        let wanted = all
            .iter()
            .filter(|one| one.kind == kind && (name.is_empty() || one.target == name));
        wanted
            .map(|one| {
                let mut command = Command::new(&one.path);
                // Cargo's working directory for tests.
                command.current_dir(one.manifest.parent().unwrap_or(root()));
                command.env("CI", "true").env("PAWL_PROGRAMS", programs);
                if kind != "bin" {
                    command.args(self.options.tests.iter());
                }
                if self.options.keep {
                    command.env("PAWL_KEEP", "1");
                }
                command
            })
            .collect()
    }

    fn budgets(self) -> Command {
        let mut command = xtask("budgets");
        command.envs(
            self.directory()
                .map(|directory| ("PAWL_PROGRAMS", directory)),
        );
        command
    }

    /// The directory of the built programs.
    fn directory(self) -> Option<&'a Path> {
        self.built.get().and_then(|built| {
            built
                .programs
                .iter()
                .find(|one| one.kind == "bin")?
                .path
                .parent()
        })
    }

    fn pods(self, part: &str) -> Vec<Command> {
        let mut commands = self.programs("test", "pods");
        for command in &mut commands {
            command.env("PAWL_PART", part);
        }
        commands
    }

    fn kills(self) -> Vec<Command> {
        let mut commands = self.programs("bin", "chaos");
        for command in &mut commands {
            // A new seed each time; it is printed.
            let seed = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs();
            let seconds = KILLS.as_secs().to_string();
            command.args([
                "--kills",
                "100000",
                "--seconds",
                &seconds,
                "--seed",
                &seed.to_string(),
                "--layers",
                "3",
            ]);
        }
        commands
    }
}

fn cargo(task: &[&str], arguments: &[&str]) -> Command {
    let mut command = command::cargo();
    command
        .current_dir(root())
        .args(task)
        .args(arguments)
        .env("CARGO_TERM_COLOR", "never");
    command
}

/// Another task of this program.
fn xtask(task: &str) -> Command {
    let mut command = command::this_program();
    command.arg(task);
    command
}

/// Runs the command with the lowest priority, relative to the clusters' processes too, which are in other cgroups. Where the kernel
/// schedules by session (`sched_autogroup`), a nice value counts within its session only, so the command gets its own session with the
/// lowest weight. It still ends with this program.
fn lowly(command: &Command) -> Command {
    const SCRIPT: &str =
        "echo 19 2>/dev/null > /proc/self/autogroup; exec nice -n 19 \"$0\" \"$@\"";
    let mut lowly = Command::new("setsid");
    lowly.args(["setpriv", "--pdeathsig", "KILL", "sh", "-c", SCRIPT]);
    command::within(lowly, command)
}

/// The generated files and their content. Those of the guide are among handwritten pages.
fn generated() -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for directory in
        ["charts/pawl/files/crds", "design/guide"].map(|directory| root().join(directory))
    {
        for entry in fs::read_dir(&directory)
            .with_context(|| format!("cannot read {}", directory.display()))?
        {
            let path = entry?.path();
            files.insert(path.clone(), fs::read(&path)?);
        }
    }
    Ok(files)
}

fn unchanged(
    before: &BTreeMap<PathBuf, Vec<u8>>,
    after: &BTreeMap<PathBuf, Vec<u8>>,
) -> Result<()> {
    let changed = after
        .keys()
        .chain(before.keys())
        .find(|path| after.get(*path) != before.get(*path));
    changed.map_or(Ok(()), |path| {
        Err(anyhow::anyhow!(
            "{} was not up to date; commit what the generator wrote",
            path.display()
        ))
    })
}

/// Stores the processor time of successful stages, and the sum if all succeeded.
fn remember(outcomes: &[Outcome], all: bool) -> Result<()> {
    let well = || outcomes.iter().filter(|outcome| outcome.end == End::Well);
    let sum = (all && well().count() == outcomes.len()).then(|| {
        (
            Times::ALL.to_owned(),
            well().map(|outcome| outcome.processor).sum(),
        )
    });
    budgets::remember(
        well()
            .map(|outcome| (outcome.name.to_owned(), outcome.processor))
            .chain(sum),
    )
}

fn close(mut outcomes: Vec<Outcome>, took: Duration) -> ExitCode {
    outcomes.sort_by_key(|outcome| outcome.began);
    let mut count = Count::default();
    for outcome in &outcomes {
        if let End::Failed(why) = &outcome.end {
            println!("\n{} FAILED\n{why}", outcome.name);
        }
    }
    let times = Times::read();
    println!("\n   began     took    processor");
    for Outcome {
        name,
        began,
        took,
        end,
        count: tests,
        processor,
    } in &outcomes
    {
        let tests_run = if tests.passed + tests.failed > 0 {
            format!("{} tests", tests.passed + tests.failed)
        } else {
            String::new()
        };
        let (began, took, processor) = (
            began.as_secs_f64(),
            took.as_secs_f64(),
            times.beside(name, *processor),
        );
        println!(
            "{began:>6.0} s {took:>6.0} s  {processor}  {name:<12} {:<7} {tests_run}",
            end.word()
        );
        count += *tests;
    }
    let broken = outcomes
        .iter()
        .filter(|outcome| outcome.end != End::Well)
        .count() as u64;
    let processor: Duration = outcomes.iter().map(|outcome| outcome.processor).sum();
    println!(
        "         {:>6.0} s  {}  in all",
        took.as_secs_f64(),
        times.beside(Times::ALL, processor)
    );
    // A failed stage without a failed test counts as one failure.
    count.failed = count.failed.max(broken);
    println!("{} passed, {} failed", count.passed, count.failed);
    if broken == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
