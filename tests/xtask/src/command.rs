//! Runs other programs to completion.

use std::borrow::BorrowMut;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a command and returns its stdout. An error contains the last lines of its output.
pub fn run(mut command: impl BorrowMut<Command>) -> Result<String> {
    let command = command.borrow_mut();
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {name}; is it installed?"))?;
    check(&name, &output)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program with arguments; see [`run`].
pub fn sh(program: &str, args: &[&str]) -> Result<String> {
    run(Command::new(program).args(args))
        .with_context(|| format!("`{program} {}` failed", args.join(" ")))
}

/// Cargo, to build more of this workspace from a program that Cargo runs. Removes the variables that Cargo sets for that program: build
/// scripts depend on them, so all their dependents would be compiled again each time.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let of_the_program = |name: &str| {
        [
            "CARGO_MANIFEST_",
            "CARGO_PKG_",
            "CARGO_BIN_",
            "CARGO_CRATE_",
        ]
        .iter()
        .any(|p| name.starts_with(p))
    };
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_the_program))
    {
        command.env_remove(name);
    }
    command
}

/// A command that runs this program again. The path still opens this program after Cargo has replaced its file, as `crates` makes Cargo do
/// while it runs.
pub(crate) fn this_program() -> Command {
    Command::new(format!("/proc/{}/exe", std::process::id()))
}

/// Appends a command to the arguments of a wrapper that executes it, and copies its directory and variables.
pub(crate) fn within(mut outer: Command, command: &Command) -> Command {
    outer.arg(command.get_program()).args(command.get_args());
    if let Some(directory) = command.get_current_dir() {
        outer.current_dir(directory);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

/// Runs the command with the default reaction to SIGHUP, SIGINT and SIGQUIT. A program that a shell started in the background, or `nohup`,
/// ignores some of them, and its children inherit that.
pub(crate) fn with_default_signals(command: &Command) -> Command {
    let mut env = Command::new("env");
    env.arg("--default-signal=HUP,INT,QUIT");
    within(env, command)
}

/// A program that Cargo built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executable {
    pub path: PathBuf,
    /// Name of the crate or test.
    pub target: String,
    /// Cargo's kind: `lib` (the crate's own tests), `bin`, `test`.
    pub kind: String,
    /// The manifest of its package.
    pub manifest: PathBuf,
}

/// Parses Cargo's messages, one per line, and skips other lines.
pub(crate) fn messages(text: &str) -> impl Iterator<Item = serde_json::Value> {
    text.lines()
        .filter(|line| line.starts_with('{'))
        .filter_map(|line| serde_json::from_str(line).ok())
}

/// The executables in Cargo's messages (`--message-format=json-render-diagnostics`).
pub fn executables(text: &str) -> Vec<Executable> {
    messages(text)
        .filter_map(|message| {
            Some(Executable {
                path: message["executable"].as_str()?.into(),
                target: message["target"]["name"].as_str()?.to_owned(),
                kind: message["target"]["kind"][0].as_str()?.to_owned(),
                manifest: message["manifest_path"].as_str()?.into(),
            })
        })
        .collect()
}

fn check(name: &str, output: &Output) -> Result<()> {
    if output.status.success() {
        return Ok(());
    }
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    bail!("{name} ended with {}:\n{}", output.status, tail(&text, 15));
}

/// The last lines of a text, without addresses of other hosts, so that messages name no registry.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    let words = |line: &&str| {
        line.split(' ')
            .map(|word| {
                if word.contains("://") {
                    "<address>"
                } else {
                    word
                }
            })
            .collect::<Vec<_>>()
            .join(" ")
    };
    all[all.len().saturating_sub(lines)..]
        .iter()
        .map(words)
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_have_their_default_in_children() {
        let mut status = Command::new("grep");
        status.args(["SigIgn", "/proc/self/status"]);
        for (command, ignored) in [(with_default_signals(&status), 0), (status, 0b111)] {
            let mut shell = Command::new("sh");
            shell.args(["-c", "trap '' HUP INT QUIT; exec \"$0\" \"$@\""]);
            let line = run(within(shell, &command)).unwrap();
            let mask = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
            // SIGHUP, SIGINT and SIGQUIT are the signals 1 to 3.
            assert_eq!(mask & 0b111, ignored, "{line}");
        }
    }
}
