//! Stages: programs whose output goes to a file and, line by line, to the terminal. Each begins when the stages that it needs have
//! succeeded.

use std::{
    fmt::Write as _,
    fs::File,
    io::{BufRead as _, BufReader, IsTerminal as _, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::{
    command::with_default_signals,
    count::Count,
    processor::{Meter, told_pods},
};

/// A command that prints nothing for so long hangs, and is killed: one hanging test must not cost the results of all others. The longest
/// silence of a healthy stage is the compilation of one crate, minutes on a busy machine.
const SILENCE: Duration = Duration::from_secs(12 * 60);

/// Creates the commands of a stage when it begins. They run one after the other.
type Work<'a> = Box<dyn FnOnce() -> Vec<Command> + Send + 'a>;
type Then<'a> = Box<dyn FnOnce(&str) -> Result<()> + Send + 'a>;

pub(crate) struct Stage<'a> {
    /// Its name in the table.
    pub(crate) name: &'static str,
    /// Stages that must succeed before it begins.
    pub(crate) needs: &'static [&'static str],
    after: Option<&'static str>,
    work: Work<'a>,
    then: Option<Then<'a>>,
}

impl<'a> Stage<'a> {
    pub(crate) fn new(
        name: &'static str,
        needs: &'static [&'static str],
        work: impl FnOnce() -> Vec<Command> + Send + 'a,
    ) -> Self {
        Self {
            name,
            needs,
            after: None,
            work: Box::new(work),
            then: None,
        }
    }

    /// Begins after the end of another stage, with any result.
    pub(crate) fn after(self, name: &'static str) -> Self {
        Self {
            after: Some(name),
            ..self
        }
    }

    /// Processes the whole output when all commands succeeded.
    pub(crate) fn then(self, then: impl FnOnce(&str) -> Result<()> + Send + 'a) -> Self {
        Self {
            then: Some(Box::new(then)),
            ..self
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) name: &'static str,
    /// Time since the start of the run.
    pub(crate) began: Duration,
    pub(crate) took: Duration,
    pub(crate) end: End,
    pub(crate) count: Count,
    /// Processor time of its commands and their descendants.
    pub(crate) processor: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Well,
    /// The reason.
    Failed(String),
    /// A stage that it needs did not succeed.
    NotRun,
}

impl End {
    /// The word in the table.
    pub(crate) const fn word(&self) -> &'static str {
        match self {
            Self::Well => "ok",
            Self::Failed(_) => "FAILED",
            Self::NotRun => "not run",
        }
    }
}

/// Outcomes so far, and a condition variable for stages that wait for them.
struct Board {
    outcomes: Mutex<Vec<Outcome>>,
    changed: Condvar,
}

impl Board {
    fn guard(&self) -> MutexGuard<'_, Vec<Outcome>> {
        // A push cannot leave the list half-changed, so a poisoned lock is safe to use.
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a stage has ended; returns whether it succeeded. A stage that is not selected counts as successful.
    fn wait(&self, name: &str, all: &[&'static str]) -> bool {
        let mut outcomes = self.guard();
        loop {
            if !all.contains(&name) {
                return true;
            }
            if let Some(outcome) = outcomes.iter().find(|outcome| outcome.name == name) {
                return outcome.end == End::Well;
            }
            outcomes = self
                .changed
                .wait(outcomes)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Runs all stages, each as soon as its dependencies allow. Returns the outcomes in the order of their ends. A stage whose dependency
/// failed does not run.
pub(crate) fn run_all(stages: Vec<Stage<'_>>, logs: &Path) -> Vec<Outcome> {
    let all: Vec<&'static str> = stages.iter().map(|stage| stage.name).collect();
    let board = Board {
        outcomes: Mutex::default(),
        changed: Condvar::new(),
    };
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
                let (mut meter, mut text) = (Meter::new(name), String::new());
                let end = match lacks {
                    Some(lacks) => {
                        println!("    [{name}] not run: `{lacks}` failed");
                        End::NotRun
                    }
                    None => run(stage, logs, &mut meter, &mut text)
                        .unwrap_or_else(|error| End::Failed(format!("{error:#}"))),
                };
                let (count, processor) = (Count::read(&text), meter.taken() + told_pods(&text));
                let took = begun.elapsed().saturating_sub(began);
                println!("<== {name} {} {:.1} s", end.word(), took.as_secs_f64());
                board.guard().push(Outcome {
                    name,
                    began,
                    took,
                    end,
                    count,
                    processor,
                });
                board.changed.notify_all();
            });
        }
    });
    board
        .outcomes
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Runs a stage. Its output goes to `logs`; a terminal shows the last line, a log the lines of tests. Returns the end of a failed stage's
/// output, so that it can be printed last, apart from other stages.
fn run(stage: Stage<'_>, logs: &Path, meter: &mut Meter, text: &mut String) -> Result<End> {
    println!("==> {}", stage.name);
    let path = logs.join(format!("{}.log", stage.name.replace(' ', "-")));
    let mut log =
        File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut ok = true;
    for command in (stage.work)() {
        ok &= follow(&command, stage.name, &mut log, text, meter, SILENCE)?;
    }
    if ok {
        stage.then.map_or(Ok(()), |then| then(text))?;
        return Ok(End::Well);
    }
    let lines: Vec<&str> = text.lines().filter(|line| !is_message(line)).collect();
    let from = lines.len().saturating_sub(200);
    let left = format!(
        "(the last {} lines; all of it is in {})",
        lines.len() - from,
        path.display()
    );
    Ok(End::Failed(format!("{}\n{left}", lines[from..].join("\n"))))
}

/// Runs one command and appends its output to `text`; returns whether it succeeded.
fn follow(
    command: &Command,
    name: &str,
    log: &mut File,
    text: &mut String,
    meter: &mut Meter,
    silence: Duration,
) -> Result<bool> {
    // One pipe for stdout and stderr preserves the order of lines.
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    let program = command.get_program().display().to_string();
    let mut command = meter.measured(with_default_signals(command));
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let spawned = command.spawn();
    // The command holds the write ends of the pipe until it is dropped.
    drop(command);
    let mut child = spawned.with_context(|| format!("cannot run {program}"))?;
    let terminal = std::io::stdout().is_terminal();
    // A thread of its own reads: a read has no timeout, and a descendant that hangs keeps the pipe open.
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut lines = BufReader::new(reader).split(b'\n');
        while lines.next().is_some_and(|line| sender.send(line).is_ok()) {}
    });
    loop {
        let line = match lines.recv_timeout(silence) {
            Ok(line) => String::from_utf8_lossy(&line?).into_owned(),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                meter.kill(&mut child)?;
                let seconds = silence.as_secs();
                writeln!(
                    text,
                    "{name} printed nothing for {seconds} s and was killed"
                )?;
                break;
            }
        };
        if !is_message(&line) {
            writeln!(log, "{line}")?;
            if terminal {
                print!(
                    "\r\x1b[K    [{name}] {}\r",
                    line.chars().take(90).collect::<String>()
                );
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
    Ok(meter.wait(&mut child)?.success())
}

/// Cargo's JSON messages.
fn is_message(line: &str) -> bool {
    line.starts_with(r#"{"reason":"#)
}

/// Lines of a successful stage that go to the log: results of tests, and progress.
fn is_told(line: &str) -> bool {
    let told = [
        "test ",
        "tools ",
        "packages ",
        "cluster ",
        "images ",
        "chart ",
        "left out",
        "dependencies ",
        "slowest ",
        "budget ",
    ];
    // Counts of the kill loop and the simulator.
    let counts = ["sim: ", "kills ", "Seed ", "| ", "Checked: ", "Layers: "];
    told.iter()
        .chain(&counts)
        .any(|start| line.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(
        name: &'static str,
        needs: &'static [&'static str],
        script: &'static str,
    ) -> Stage<'static> {
        Stage::new(name, needs, move || {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            vec![command]
        })
    }

    #[test]
    fn silent_command_is_killed() {
        let (mut log, mut text) = (File::create("/dev/null").unwrap(), String::new());
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600"]);
        let (mut meter, second) = (Meter::new("silent"), Duration::from_secs(1));
        assert!(!follow(&command, "silent", &mut log, &mut text, &mut meter, second).unwrap());
        assert_eq!(text, "silent printed nothing for 1 s and was killed\n");
    }

    #[test]
    fn stage_waits_for_its_needs_and_is_not_run_without_them() {
        let logs = std::env::temp_dir().join(format!("stages-{}", std::process::id()));
        std::fs::create_dir_all(&logs).unwrap();
        let stages = vec![
            stage(
                "last",
                &["good"],
                "echo 'test result: ok. 2 passed; 0 failed'",
            )
            .after("bad"),
            stage(
                "never",
                &["bad"],
                "echo 'test result: ok. 7 passed; 0 failed'",
            ),
            stage("good", &[], "true"),
            stage("bad", &[], "echo what was wrong; exit 3"),
        ];
        let outcomes = run_all(stages, &logs);
        std::fs::remove_dir_all(&logs).unwrap();
        let of = |name: &str| {
            outcomes
                .iter()
                .find(|outcome| outcome.name == name)
                .unwrap()
        };
        assert_eq!(
            outcomes
                .last()
                .map(|outcome| outcome.name == "last" || outcome.name == "never"),
            Some(true)
        );
        assert!(
            of("last").end == End::Well && of("last").began >= of("bad").began + of("bad").took
        );
        assert_eq!((of("last").count.passed, of("never").count.passed), (2, 0));
        assert_eq!(
            (&of("never").end, &of("good").end),
            (&End::NotRun, &End::Well)
        );
        let End::Failed(why) = &of("bad").end else {
            panic!("{:?}", of("bad").end)
        };
        assert!(why.contains("what was wrong\n(the last 1 lines"), "{why}");
    }
}
