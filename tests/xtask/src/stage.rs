//! Stages: programs whose output goes to a file and, line by line, to whoever looks; each begins when what it needs is there.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, IsTerminal as _, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::count::Count;

/// What a stage runs, one after the other; made when it begins.
type Work<'a> = Box<dyn FnOnce() -> Result<Vec<Command>> + Send + 'a>;
/// What is made of all that was printed, when everything ended well.
type Then<'a> = Box<dyn FnOnce(&str) -> Result<()> + Send + 'a>;

/// A stage to run.
pub(crate) struct Stage<'a> {
    /// Its name in the table.
    pub(crate) name: &'static str,
    /// Stages that have to succeed before it begins.
    pub(crate) needs: &'static [&'static str],
    /// A stage that has to end before it begins, however it ends.
    pub(crate) after: Option<&'static str>,
    pub(crate) work: Work<'a>,
    pub(crate) then: Option<Then<'a>>,
}

/// How a stage went.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) name: &'static str,
    /// From the beginning of all.
    pub(crate) began: Duration,
    pub(crate) took: Duration,
    pub(crate) ok: bool,
    pub(crate) count: Count,
    /// Why it failed; empty when it did not.
    pub(crate) why: String,
}

impl Outcome {
    /// Whether it was not run, for want of what it needs.
    pub(crate) fn lacks(&self) -> bool {
        !self.ok && self.why.starts_with(NOT_RUN)
    }
}

const NOT_RUN: &str = "not run: ";

/// Outcomes so far, and who waits for them.
struct Board {
    outcomes: Mutex<Vec<Outcome>>,
    changed: Condvar,
}

impl Board {
    fn guard(&self) -> MutexGuard<'_, Vec<Outcome>> {
        // Outcomes are pushed whole.
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a stage has ended; whether it did well. A stage that is not among those to run counts as done well.
    fn wait(&self, name: &str, all: &[&'static str]) -> bool {
        let mut outcomes = self.guard();
        loop {
            if !all.contains(&name) {
                return true;
            }
            if let Some(outcome) = outcomes.iter().find(|outcome| outcome.name == name) {
                return outcome.ok;
            }
            outcomes = self.changed.wait(outcomes).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Runs all stages, each as soon as it may; the outcomes are in the order in which they ended. A stage that lacks what it needs fails.
pub(crate) fn run_all(stages: Vec<Stage<'_>>, logs: &Path) -> Vec<Outcome> {
    let all: Vec<&'static str> = stages.iter().map(|stage| stage.name).collect();
    let board = Board { outcomes: Mutex::default(), changed: Condvar::new() };
    let begun = Instant::now();
    thread::scope(|scope| {
        for stage in stages {
            let (board, all) = (&board, &all);
            scope.spawn(move || {
                if let Some(before) = stage.after {
                    board.wait(before, all);
                }
                let lacks = stage.needs.iter().find(|name| !board.wait(name, all));
                let (name, began) = (stage.name, begun.elapsed());
                let done = match lacks {
                    Some(lacks) => Err(anyhow::anyhow!("{NOT_RUN}`{lacks}` failed")),
                    None => run(stage, logs),
                };
                let took = begun.elapsed().saturating_sub(began);
                let (why, count) = done.unwrap_or_else(|error| (Some(format!("{error:#}")), Count::default()));
                println!("<== {name} {} {:.1} s", if why.is_none() { "ok" } else { "FAILED" }, took.as_secs_f64());
                let (ok, why) = (why.is_none(), why.unwrap_or_default());
                board.guard().push(Outcome { name, began, took, ok, count, why });
                board.changed.notify_all();
            });
        }
    });
    board.outcomes.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a stage. Its output is kept in `logs`; a terminal sees the last line of it, a log file the lines of tests. The end of what a
/// stage printed that failed is given back, so that it can stand at the end of everything, where it is not lost among other stages.
fn run(stage: Stage<'_>, logs: &Path) -> Result<(Option<String>, Count)> {
    println!("==> {}", stage.name);
    let path = logs.join(format!("{}.log", stage.name.replace(' ', "-")));
    let mut log = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let (mut text, mut ok) = (String::new(), true);
    for command in (stage.work)()? {
        ok &= follow(command, stage.name, &mut log, &mut text)?;
    }
    if ok && let Some(then) = stage.then {
        then(&text)?;
    }
    let why = (!ok).then(|| {
        let lines: Vec<&str> = text.lines().filter(|line| !is_message(line)).collect();
        let from = lines.len().saturating_sub(200);
        format!("{}\n(the last {} lines; all of it is in {})", lines[from..].join("\n"), lines.len() - from, path.display())
    });
    Ok((why, Count::read(&text)))
}

/// Runs one command and adds what it says to `text`; whether it succeeded.
fn follow(mut command: Command, name: &str, log: &mut File, text: &mut String) -> Result<bool> {
    // One pipe for both, so that lines keep their order.
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let spawned = command.spawn();
    let program = command.get_program().display().to_string();
    // The command holds the write ends of the pipe until it is dropped.
    drop(command);
    let mut child = spawned.with_context(|| format!("cannot run {program}"))?;
    let terminal = std::io::stdout().is_terminal();
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        if !is_message(&line) {
            writeln!(log, "{line}")?;
            if terminal {
                print!("\r\x1b[K    [{name}] {}\r", line.chars().take(90).collect::<String>());
                std::io::stdout().flush()?;
            } else if is_told(&line) {
                println!("    [{name}] {line}");
            }
        }
        text.push_str(&line);
        text.push('\n');
    }
    if terminal {
        print!("\r\x1b[K");
    }
    Ok(child.wait()?.success())
}

/// What Cargo says to programs.
fn is_message(line: &str) -> bool {
    line.starts_with(r#"{"reason":"#)
}

/// Lines that a log shows of a stage that goes well: what tests say, and how long work goes on.
fn is_told(line: &str) -> bool {
    let told = ["test ", "tools ", "packages ", "cluster ", "images ", "chart ", "left out", "dependencies ", "slowest "];
    // Of the kill loop and the searches: how much was tried.
    let counts = ["sim: ", "model: ", "kills ", "Seed ", "| ", "Checked: "];
    told.iter().chain(&counts).any(|start| line.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(
        name: &'static str,
        needs: &'static [&'static str],
        after: Option<&'static str>,
        script: &'static str,
    ) -> Stage<'static> {
        let work = move || {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Ok(vec![command])
        };
        Stage { name, needs, after, work: Box::new(work), then: None }
    }

    #[test]
    fn a_stage_waits_for_what_it_needs_and_fails_without_it() {
        let logs = std::env::temp_dir().join(format!("stages-{}", std::process::id()));
        std::fs::create_dir_all(&logs).unwrap();
        let stages = vec![
            stage("last", &["good"], Some("bad"), "echo 'test result: ok. 2 passed; 0 failed'"),
            stage("never", &["bad"], None, "echo 'test result: ok. 7 passed; 0 failed'"),
            stage("good", &[], None, "true"),
            stage("bad", &[], None, "echo what was wrong; exit 3"),
        ];
        let outcomes = run_all(stages, &logs);
        std::fs::remove_dir_all(&logs).unwrap();
        let of = |name: &str| outcomes.iter().find(|outcome| outcome.name == name).unwrap();
        assert_eq!(outcomes.last().map(|outcome| outcome.name == "last" || outcome.name == "never"), Some(true));
        assert!(of("last").ok && of("last").began >= of("bad").began + of("bad").took);
        assert_eq!((of("last").count.passed, of("never").count.passed), (2, 0));
        assert!(!of("never").ok && !of("bad").ok && of("good").ok);
        assert!(of("never").lacks() && !of("bad").lacks() && !of("good").lacks());
        assert!(of("bad").why.contains("what was wrong\n(the last 1 lines"), "{}", of("bad").why);
    }
}
