//! The guide's local mode, executed; shell completion and the manual.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use harness::guide;

use crate::{
    place::{End as _, Lab, Test, approval, ended, holds},
    terminal::Terminal,
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("documents::the_first_example_of_the_guide", first),
        Test::new("documents::the_lines_of_the_guide_after_it", more),
        Test::new("documents::bash_completes", completion),
        Test::new("documents::manual", manual),
    ]
}

/// The first example line by line, without the build, which is done already.
fn first(lab: &Lab) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()?;
    let text = guide::block("local first")?;
    let (build, script): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| line.starts_with("cargo "));
    ensure!(
        build == ["cargo build --release --workspace"],
        "it is built by {build:?}"
    );
    ensure!(
        script
            .last()
            .is_some_and(|line| line.starts_with("runner-agent local")),
        "it ends in {script:?}"
    );
    let place = lab.place("tofu", &[])?;
    // The toolchain's directories depend on the user who builds.
    let script =
        format!("set -e\n{}\n", script.join("\n")).replace("$(rustc --print host-tuple)", "*");
    let mut shell = place.program("/bin/bash", &["-c", &script]);
    let mut terminal = Terminal::start(shell.current_dir(&root))?;
    terminal.answer("y")?;
    let text = terminal.end()?.with(0)?;
    holds(&text, "Applied +2 ~0 -0, 1 output.")?;
    ensure!(
        place.home().join("hello/terraform.tfstate").is_file(),
        "{text}"
    );
    Ok(())
}

/// The lines after the first example, executed in its folder: each ends as its comment says.
fn more(lab: &Lab) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()?;
    let block = guide::block("local more")?;
    // The server in the example does not exist.
    let lines: Vec<&str> = block
        .lines()
        .filter(|line| !line.contains("https://"))
        .collect();
    ensure!(lines.len() >= 4, "{lines:?}");
    let place = lab.place("tofu", &[])?;
    let copy = format!(
        "cp -r {}/tests/fixtures/stacks/hello ~/hello && runner-agent local ~/hello --auto-approve",
        root.display()
    );
    let mut text = place.paste(&copy)?.with(0)?;
    for line in lines {
        let mut line = line.to_owned();
        if line.contains("sha256:…") {
            let waits = approval(&text)?;
            let checksum = waits
                .split_whitespace()
                .find(|word| word.starts_with("sha256:"))
                .context("no checksum")?;
            line = line.replace("sha256:…", checksum);
        }
        let code = if line.contains("exit code 2") { 2 } else { 0 };
        text = place
            .paste(&line)?
            .with(code)
            .with_context(|| line.trim().to_owned())?;
    }
    Ok(())
}

fn completion(lab: &Lab) -> Result<()> {
    let place = lab.place("tofu", &[])?;
    // As in the guide, in a shell of its own.
    let line = guide::block("local completion")?;
    let script = format!("set -e\n{line}complete -p runner-agent\n");
    holds(
        &ended(&mut place.program("/bin/bash", &["-c", &script]))?.with(0)?,
        "runner-agent",
    )?;
    let has = |words: &str, wanted: &[&str]| -> Result<()> {
        let script = format!(
            "source <(runner-agent completion bash)\nCOMP_WORDS=({words} '')\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             cur= prev=${{COMP_WORDS[COMP_CWORD-1]}}\n$(complete -p runner-agent | sed 's/.*-F \\([^ ]*\\).*/\\1/') runner-agent '' \"$prev\"\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
        );
        let text = ended(&mut place.program("/bin/bash", &["-c", &script]))?.with(0)?;
        let lacking = wanted
            .iter()
            .find(|word| !text.lines().any(|offer| offer == **word));
        ensure!(
            lacking.is_none(),
            "`{words}` is not completed with {lacking:?}: {text}"
        );
        Ok(())
    };
    has("runner-agent", &["local", "completion", "man"])?;
    has(
        "runner-agent local",
        &[
            "plan",
            "apply",
            "destroy",
            "--approve",
            "--auto-approve",
            "--var-file",
            "--json",
        ],
    )?;
    has("runner-agent completion", &["bash", "zsh", "fish"])
}

fn manual(lab: &Lab) -> Result<()> {
    let place = lab.place("tofu", &[])?;
    let text = place.paste("runner-agent man local")?.with(0)?;
    // With `man`, it is rendered as for a reader.
    let shown = place.paste("command -v man >/dev/null && runner-agent man local | MANWIDTH=100 man -l - | col -b || true")?.1;
    let text = if shown.trim().is_empty() {
        text.replace("\\-", "-")
    } else {
        shown
    };
    for part in [
        "runner-agent local",
        "--approve",
        "CHECKSUM",
        "--auto-approve",
        "a plan waits for an answer",
    ] {
        holds(&text, part)?;
    }
    let raw = place.paste("runner-agent man local")?.1;
    holds(&raw, "\\fICHECKSUM\\fR]")?;
    holds(
        &raw,
        ".SH EXIT CODES\n.nf\n  0   applied, destroyed, planned, or nothing to do\n  1   failed\n",
    )?;
    text.lines()
        .find(|line| line.contains("NAME"))
        .map(drop)
        .context("no NAME")
}
