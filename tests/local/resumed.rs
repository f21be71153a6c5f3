//! A waiting plan outlives its process, however that ended, and is applied once.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use crds::{Changed, Phase, RunResult, reason};
use harness::wait;
use nix::sys::signal::Signal;

use crate::{
    interrupts::reading,
    place::{End as _, Lab, Test, approval, ended, holds},
    stalled::Stalled,
    terminal::PATIENCE,
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("resumed::plan_waits_without_a_terminal", without_terminal),
        Test::new("resumed::other_applies_make_a_waiting_plan_stale", overtaken),
        Test::new("resumed::run_killed_in_its_plan_is_failed", killed_in_plan),
        Test::new("resumed::plan_killed_at_the_question_waits", killed_at_the_question),
        Test::new("resumed::end_of_file_is_no_answer", end_of_file),
    ]
}

fn without_terminal(lab: &Lab) -> Result<()> {
    for tool in lab.tools() {
        let place = lab.fixture(tool, "hello")?;
        let text = place.waits(place.run(&["apply"])?)?;
        ensure!(place.resources()?.is_none() && !text.contains("[y/N]"), "{text}");
        let line = approval(&text)?;
        let checksum = place.record()?.plan.map(|plan| plan.checksum).unwrap_or_default();
        let (code, text) = place.paste(&line.replace(&checksum, &format!("sha256:{}", "0".repeat(64))))?;
        ensure!(code == 1 && place.resources()?.is_none(), "another plan was applied: {text}");
        let text = place.came_to(RunResult::Applied, place.paste(&line)?)?;
        ensure!(place.resources()? == Some(2), "{text}");
        let (code, text) = place.paste(&line)?;
        ensure!(code == 1, "applied twice: {text}");
        holds(&text, "no plan waits here")?;
    }
    Ok(())
}

fn overtaken(lab: &Lab) -> Result<()> {
    let place = lab.fixture("tofu", "hello")?;
    let text = place.ends(2, &["apply"])?;
    let line = approval(&text)?;
    place.ends(0, &["apply", "--auto-approve"])?;
    let (code, text) = place.paste(&line)?;
    ensure!(code == 1 && place.resources()? == Some(2), "{code}: {text}");
    holds(&text, "no longer waits: the apply of ")?;
    ensure!(place.records()?.swap_remove(0).result == Some(RunResult::Superseded), "it still waits: {text}");
    // A new plan waits for its own answer.
    let text = place.ends(2, &["destroy"])?;
    place.came_to(RunResult::Destroyed, place.paste(&approval(&text)?)?)?;
    // A person who uses the tool by hand is in no record, and the tool refuses the plan.
    let line = approval(&place.ends(2, &["apply"])?)?;
    ended(&mut place.program("tofu", &["apply", "-auto-approve", "-no-color"]))?.with(0)?;
    let text = place.came_to(RunResult::Failed, place.paste(&line)?)?;
    let failure = place.record()?.failure.context("no failure")?;
    ensure!(failure.reason == reason::STALE_PLAN && failure.changes == Changed::None, "{failure:?}: {text}");
    Ok(())
}

fn killed_in_plan(lab: &Lab) -> Result<()> {
    let server = Stalled::start()?;
    let place = lab.place("tofu", &[("main.tf", &reading(&server))])?;
    let terminal = place.at_terminal(&[])?;
    server.until_asked()?;
    terminal.signal(Signal::SIGKILL)?;
    let (code, text) = terminal.end()?;
    ensure!(code == 128 + Signal::SIGKILL as i32, "{code}: {text}");
    // The tool continues without the agent. It releases the state's lock at its end, or dies because the reader of its output is gone.
    server.release();
    wait::until_blocking("the tool ends", PATIENCE, || Ok(!somebody_works_in(&place.stack())))?;
    let text = place.came_to(RunResult::Applied, place.run(&["--auto-approve"])?)?;
    holds(&text, "the process ended before anything was applied")?;
    let first = place.records()?.swap_remove(0);
    ensure!(first.result == Some(RunResult::Failed), "{first:?}");
    ensure!(first.failure.map(|failure| failure.changes) == Some(Changed::None), "{:?}", first.message);
    Ok(())
}

fn somebody_works_in(directory: &Path) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.into_iter().any(|process| std::fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == directory))
}

fn killed_at_the_question(lab: &Lab) -> Result<()> {
    let place = lab.fixture("tofu", "hello")?;
    let terminal = place.at_terminal(&[])?;
    terminal.until("[y/N]")?;
    terminal.signal(Signal::SIGKILL)?;
    terminal.end()?;
    let record = place.record()?;
    ensure!(record.phase == Some(Phase::AwaitingApproval) && place.resources()?.is_none(), "{record:?}");
    let text = place.came_to(RunResult::Applied, place.paste(&record.next_step.unwrap_or_default())?)?;
    ensure!(place.records()?.len() == 1 && place.resources()? == Some(2), "it is not the plan that waited: {text}");
    let history = place.record()?.history.join("\n");
    ensure!(history.matches("  Plan  ").count() == 1, "planned again:\n{history}");
    Ok(())
}

fn end_of_file(lab: &Lab) -> Result<()> {
    let place = lab.fixture("tofu", "hello")?;
    let mut terminal = place.at_terminal(&[])?;
    terminal.until("[y/N]")?;
    terminal.press("\x04")?;
    let text = place.waits(terminal.end()?)?;
    approval(&text).map(drop)
}
