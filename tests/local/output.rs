//! Output: a progress bar and colours at a terminal, plain lines elsewhere, and only JSON with `--json`.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use crds::{RunResult, TerraformRunStatus};

use crate::{
    interrupts::SLOW,
    place::{End as _, Lab, Test, holds},
    terminal::{Terminal, spawning},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("output::terminal_gets_a_bar_and_colours", terminal),
        Test::new("output::no_colour_on_request", no_colour),
        Test::new("output::dumb_terminal_gets_plain_text", dumb),
        Test::new("output::plain_lines_without_a_terminal", plain),
        Test::new("output::json_lines", json),
        Test::new("output::closed_output_does_not_stop_an_apply", nobody_reads),
    ]
}

const GREEN: &str = "\x1b[32m";

/// Whether a text sets colours; a bar only moves the cursor.
fn is_coloured(text: &str) -> bool {
    let ends = |rest: &str| {
        rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';')
            .starts_with('m')
    };
    text.split("\x1b[").skip(1).any(ends)
}

fn terminal(lab: &Lab) -> Result<()> {
    let place = lab.place("tofu", &[("main.tf", &SLOW.replace("30s", "6s"))])?;
    let mut terminal = place.at_terminal(&[])?;
    terminal.until("[y/N]")?;
    let plan = terminal.text();
    holds(&plan, &format!("{GREEN}+\x1b[0m"))?;
    holds(&plan, "init runs")?;
    ensure!(
        !plan.contains("Plan to create"),
        "the plan is shown twice:\n{plan}"
    );
    terminal.press("y\n")?;
    // Resource by resource, with a bar below.
    let bar = |text: &str| {
        text.split_once("] 1/3 ")
            .is_some_and(|(_, rest)| rest.contains("s time_sleep.second"))
    };
    terminal.until_is("a bar with one of three done", bar)?;
    let text = terminal.end()?.with(0)?;
    holds(&text, "apply [")?;
    ensure!(!text.contains('░'), "a bar of another style:\n{text}");
    holds(&text, "terraform_data.first: Creating...\r\n")?;
    let last = text.trim_end().lines().next_back().unwrap_or_default();
    ensure!(
        last.contains("Applied +3 ~0 -0."),
        "the last line is `{last}`"
    );
    ensure!(!place.log()?.contains('\x1b'), "the log has colours");
    holds(&place.log()?, "  # time_sleep.second will be created\n")
}

fn no_colour(lab: &Lab) -> Result<()> {
    let place = lab.fixture("tofu", "hello")?;
    for (arguments, env, coloured) in [
        (&["plan", "--no-color"][..], "NONE", false),
        (&["plan"], "NO_COLOR", false),
        (&["plan"], "NONE", true),
    ] {
        let text = Terminal::start(place.agent(arguments).env(env, "1"))?
            .end()?
            .with(0)?;
        ensure!(is_coloured(&text) == coloured, "{arguments:?}: {text}");
    }
    Ok(())
}

fn dumb(lab: &Lab) -> Result<()> {
    let place = lab.fixture("tofu", "hello")?;
    let mut terminal = Terminal::start(place.agent(&["--no-color"]).env("TERM", "dumb"))?;
    terminal.answer("y")?;
    let text = terminal.end()?.with(0)?;
    ensure!(!text.contains('\x1b'), "{text}");
    holds(&text, "# terraform_data.greeting will be created")?;
    holds(&text, "Applied +2 ~0 -0, 1 output.")
}

fn plain(lab: &Lab) -> Result<()> {
    let place = lab.fixture("tofu", "hello")?;
    let text = place.ends(0, &["--auto-approve"])?;
    ensure!(!text.contains(['\x1b', '\r']), "{text}");
    for line in [
        "terraform_data.greeting: Creating...",
        "Apply complete! Resources: 2 added",
        "Applied +2 ~0 -0, 1 output.",
    ] {
        holds(&text, line)?;
    }
    Ok(())
}

fn json(lab: &Lab) -> Result<()> {
    let place = lab.fixture("tofu", "outputs")?;
    for (arguments, code) in [
        (&["plan", "--json"][..], 0),
        (&["apply", "--json"], 2),
        (&["--auto-approve", "--json"], 0),
    ] {
        let guard = spawning();
        let child = place.agent(arguments).spawn()?;
        drop(guard);
        let output = child.wait_with_output()?;
        ensure!(
            output.status.code() == Some(code) && output.stderr.is_empty(),
            "{arguments:?}: {output:?}"
        );
        let lines = String::from_utf8(output.stdout)?;
        ensure!(
            !lines.contains("never-to-be-shown"),
            "a secret is in {lines}"
        );
        let parsed: Result<Vec<TerraformRunStatus>, _> =
            lines.lines().map(serde_json::from_str).collect();
        let last = parsed
            .with_context(|| format!("not JSON: {lines}"))?
            .pop()
            .context("no line")?;
        ensure!(
            Some(last) == place.record().ok(),
            "the last line is not the record: {lines}"
        );
    }
    // The same at a terminal.
    let (code, text) = place.at_terminal(&["apply", "--json"])?.end()?;
    ensure!(
        code == 0
            && text
                .lines()
                .all(|line| serde_json::from_str::<TerraformRunStatus>(line.trim()).is_ok()),
        "{text}"
    );
    Ok(())
}

fn nobody_reads(lab: &Lab) -> Result<()> {
    let place = lab.fixture("tofu", "hello")?;
    for (verb, result) in [
        ("apply", RunResult::Applied),
        ("destroy", RunResult::Destroyed),
    ] {
        let guard = spawning();
        let mut child = place
            .agent(&[verb, "--auto-approve"])
            .stderr(Stdio::null())
            .spawn()?;
        // The reader closes the pipe before the first line.
        drop(child.stdout.take());
        drop(guard);
        let status = child.wait()?;
        ensure!(
            status.code() == Some(0) && place.record()?.result == Some(result),
            "{status}: {:?}",
            place.record()?
        );
    }
    Ok(())
}
