//! What README says, done; completion and manual, as shells and people use them.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};

use crate::{
    place::{Lab, Test, ended, holds},
    terminal::Terminal,
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("documents::the_first_example_of_the_readme", readme),
        Test::new("documents::bash_completes", completion),
        Test::new("documents::manual", manual),
    ]
}

/// The first example, line by line as it stands there; only the build is left out, since it has been done.
fn readme(lab: &Lab) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    let text = fs::read_to_string(root.join("README.md"))?;
    let lines: Vec<&str> =
        text.lines().skip_while(|line| !line.starts_with("    ")).take_while(|line| line.starts_with("    ")).collect();
    ensure!(lines.first().is_some_and(|line| line.contains("cargo build")), "the first example is another one: {lines:?}");
    let script: Vec<&str> = lines.iter().map(|line| line.trim()).filter(|line| !line.starts_with("cargo ")).collect();
    ensure!(script.last().is_some_and(|line| line.starts_with("runner-agent local")), "it ends in {script:?}");
    let place = lab.place("tofu", &[])?;
    // The toolchain's own directories are of the person who builds.
    let script = format!("set -e\n{}\n", script.join("\n")).replace("$(rustc --print host-tuple)", "*");
    let mut shell = place.program("/bin/bash", &["-c", &script]);
    let mut terminal = Terminal::start(shell.current_dir(&root))?;
    terminal.answer("y")?;
    let (code, text) = terminal.end()?;
    ensure!(code == 0, "{text}");
    holds(&text, "Applied +2 ~0 -0, 1 output.")?;
    ensure!(place.home().join("hello/terraform.tfstate").is_file(), "{text}");
    Ok(())
}

fn completion(lab: &Lab) -> Result<()> {
    let place = lab.place("tofu", &[])?;
    let offered = |words: &str| -> Result<Vec<String>> {
        let script = format!(
            "source <(runner-agent completion bash)\nCOMP_WORDS=({words} '')\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             cur= prev=${{COMP_WORDS[COMP_CWORD-1]}}\n$(complete -p runner-agent | sed 's/.*-F \\([^ ]*\\).*/\\1/') runner-agent '' \"$prev\"\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
        );
        let (code, text) = ended(&mut place.program("/bin/bash", &["-c", &script]))?;
        ensure!(code == 0, "{text}");
        Ok(text.lines().map(str::to_owned).collect())
    };
    let has = |words: &str, wanted: &[&str]| -> Result<()> {
        let offered = offered(words)?;
        for word in wanted {
            ensure!(offered.iter().any(|offer| offer == word), "`{words}` is not completed with {word}: {offered:?}");
        }
        Ok(())
    };
    has("runner-agent", &["local", "completion", "man"])?;
    has("runner-agent local", &["plan", "apply", "destroy", "--approve", "--auto-approve", "--var-file", "--json"])?;
    has("runner-agent completion", &["bash", "zsh", "fish"])
}

fn manual(lab: &Lab) -> Result<()> {
    let place = lab.place("tofu", &[])?;
    let (code, text) = place.paste("runner-agent man local")?;
    ensure!(code == 0, "{text}");
    // Where there is `man`, it is read as a person reads it.
    let shown = place.paste("command -v man >/dev/null && runner-agent man local | MANWIDTH=100 man -l - | col -b || true")?.1;
    let text = if shown.trim().is_empty() { text.replace("\\-", "-") } else { shown };
    for part in ["runner-agent local", "--approve", "CHECKSUM", "--auto-approve", "a plan waits for an answer"] {
        holds(&text, part)?;
    }
    text.lines().find(|line| line.contains("NAME")).map(drop).context("no NAME")
}
