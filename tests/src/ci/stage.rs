//! One stage: a program whose output goes to a file and, line by line, to whoever looks.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, IsTerminal as _, Write as _},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::Count;

/// A stage to run.
#[derive(Debug)]
pub struct Stage {
    /// Its name in the table.
    pub name: &'static str,
    /// What it runs.
    pub command: Command,
    /// Runs beside the stages after it, until one that needs all before it. A terminal sees nothing of it until it has ended.
    pub aside: bool,
}

/// How a stage went.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its name.
    pub name: &'static str,
    /// How long it took.
    pub took: Duration,
    /// Whether it succeeded.
    pub ok: bool,
    /// Tests it ran.
    pub count: Count,
}

/// Runs a stage. Its output is kept in `logs`; a terminal sees the last line of it, a log file the lines of tests, and both
/// see everything of a stage that failed.
pub fn run(mut stage: Stage, logs: &Path) -> Result<Outcome> {
    let started = Instant::now();
    let path = logs.join(format!("{}.log", stage.name.replace(' ', "-")));
    let mut log = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    println!("==> {}", stage.name);
    // One pipe for both, so that lines keep their order.
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    stage.command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let spawned = stage.command.spawn();
    // The command holds the write ends of the pipe until it is dropped.
    let program = stage.command.get_program().display().to_string();
    drop(stage.command);
    let mut child = spawned.with_context(|| format!("cannot run {program}"))?;
    let terminal = std::io::stdout().is_terminal();
    let shown = terminal && !stage.aside;
    let mut text = String::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        writeln!(log, "{line}")?;
        if shown {
            print!("\r\x1b[K    {}", line.chars().take(100).collect::<String>());
            std::io::stdout().flush()?;
        } else if !terminal && is_told(&line) {
            println!("    {line}");
        }
        text.push_str(&line);
        text.push('\n');
    }
    let ok = child.wait()?.success();
    let outcome = Outcome { name: stage.name, took: started.elapsed(), ok, count: Count::read(&text) };
    if shown {
        print!("\r\x1b[K");
    }
    if !ok {
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(200);
        println!("{}\n    (the last {} lines; all of it is in {})", lines[from..].join("\n"), lines.len() - from, path.display());
    }
    println!("<== {} {} {:.1} s", outcome.name, if ok { "ok" } else { "FAILED" }, outcome.took.as_secs_f64());
    Ok(outcome)
}

/// Lines that a log shows of a stage that goes well: what tests say, and how long work goes on.
fn is_told(line: &str) -> bool {
    let told = ["test ", "tools ", "packages ", "cluster ", "images ", "chart ", "left out"];
    // Of the kill loop and the searches: how much was tried.
    let counts = ["sim: ", "model: ", "kills ", "Seed ", "| ", "Checked: "];
    told.iter().chain(&counts).any(|start| line.starts_with(start))
}
