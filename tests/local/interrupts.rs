//! Ctrl-C in each phase, as a key at a terminal: the program reports what it waits for, the tool gets one SIGINT for any number of keys,
//! and exit code and record are true. A closed terminal has the same effect.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crds::{RunResult, reason};
use nix::sys::signal::Signal;

use crate::{
    place::{Lab, Place, Test, approval, holds},
    stalled::Stalled,
    terminal::{CTRL_C, Terminal},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("interrupts::in_setup", in_setup),
        Test::new("interrupts::in_init", in_init),
        Test::new("interrupts::in_plan", in_plan),
        Test::new("interrupts::at_the_question", at_the_question),
        Test::new("interrupts::in_apply", in_apply),
        Test::new("interrupts::a_closed_terminal_in_apply", closed_in_apply),
        Test::new("interrupts::a_closed_terminal_at_the_question", closed_at_the_question),
    ]
}

/// Two slow creations, one after the other.
pub(crate) const SLOW: &str = include_str!("../fixtures/terragrunt/slow/main.tf");

/// A plan that reads from a server.
pub(crate) fn reading(server: &Stalled) -> String {
    format!(
        "data \"terraform_remote_state\" \"other\" {{\n  backend = \"http\"\n  config = {{ address = \"{}\" }}\n}}\n\
         resource \"terraform_data\" \"a\" {{}}\n",
        server.url("state")
    )
}

/// Checks that a run was cancelled before anything was applied.
fn is_cancelled(place: &Place, (code, text): &(i32, String)) -> Result<()> {
    let record = place.record()?;
    ensure!(*code == 3 && record.result == Some(RunResult::Canceled), "{code} {:?}: {text}", record.result);
    // An interrupted plan writes an empty state.
    ensure!(record.claim.is_none() && place.resources()?.unwrap_or_default() == 0, "something was applied: {text}");
    holds(text, "Cancelled: Ctrl-C; nothing was applied")
}

fn in_setup(lab: &Lab) -> Result<()> {
    let (place, server) = (lab.place("tofu", &[])?, Stalled::start()?);
    let mut terminal = place.at_terminal(&[&server.url("stacks.git")])?;
    server.until_asked()?;
    terminal.press(CTRL_C)?;
    terminal.until("Cancelled: the fetch of the source is waited for")?;
    // The server never answers.
    is_cancelled(&place, &terminal.end()?)
}

fn in_init(lab: &Lab) -> Result<()> {
    let server = Stalled::start()?;
    let code = format!("module \"m\" {{\n  source = \"git::{}\"\n}}\n", server.url("m.git"));
    let place = lab.place("tofu", &[("main.tf", &code)])?;
    let mut terminal = place.at_terminal(&[])?;
    server.until_asked()?;
    terminal.press(CTRL_C)?;
    terminal.until("Cancelled: init was asked to stop and is waited for; nothing was changed")?;
    is_cancelled(&place, &terminal.end()?)
}

fn in_plan(lab: &Lab) -> Result<()> {
    let server = Stalled::start()?;
    let place = lab.place("tofu", &[("main.tf", &reading(&server))])?;
    let mut terminal = place.at_terminal(&[])?;
    server.until_asked()?;
    terminal.press(CTRL_C)?;
    terminal.until("Cancelled: plan was asked to stop and is waited for; nothing was changed")?;
    terminal.until("Interrupt received")?;
    for _ in 0..3 {
        terminal.press(CTRL_C)?;
        std::thread::sleep(Duration::from_millis(100));
    }
    terminal.until("Still waiting: plan")?;
    server.release();
    let end = terminal.end()?;
    one_signal(&end.1)?;
    is_cancelled(&place, &end)
}

fn at_the_question(lab: &Lab) -> Result<()> {
    let place = lab.fixture("tofu", "hello")?;
    let mut terminal = place.at_terminal(&[])?;
    terminal.until("[y/N]")?;
    terminal.press(CTRL_C)?;
    let text = place.waits(terminal.end()?)?;
    ensure!(place.resources()?.is_none(), "{text}");
    let text = place.came_to(RunResult::Applied, place.paste(&approval(&text)?)?)?;
    ensure!(place.records()?.len() == 1 && place.resources()? == Some(2), "it is not the plan that waited: {text}");
    Ok(())
}

/// A terminal with an apply in progress that lasts longer than any key takes.
fn applying(lab: &Lab) -> Result<(Place, Terminal)> {
    let place = lab.place("tofu", &[("main.tf", SLOW)])?;
    let mut terminal = place.at_terminal(&[])?;
    terminal.answer("y")?;
    terminal.until("time_sleep.second: Creating...")?;
    Ok((place, terminal))
}

fn in_apply(lab: &Lab) -> Result<()> {
    let (place, mut terminal) = applying(lab)?;
    for _ in 0..3 {
        terminal.press(CTRL_C)?;
        std::thread::sleep(Duration::from_millis(100));
    }
    terminal.until("Interrupted: apply was asked to stop, once; it finishes what it has begun and saves its state")?;
    let (code, text) = terminal.end()?;
    one_signal(&text)?;
    interrupted(&place, code, &text)
}

fn closed_in_apply(lab: &Lab) -> Result<()> {
    let (place, terminal) = applying(lab)?;
    // As a closed terminal does; the kernel sends another SIGHUP when the last end is gone.
    terminal.signal(Signal::SIGHUP)?;
    let (code, text) = terminal.end()?;
    interrupted(&place, code, &text)
}

/// Checks that the tool ended by itself: its state has the created objects, and the lock is free.
fn interrupted(place: &Place, code: i32, text: &str) -> Result<()> {
    let record = place.record()?;
    ensure!(code == 1 && record.result == Some(RunResult::Failed), "{code} {:?}: {text}", record.result);
    let failure = record.failure.with_context(|| format!("no failure: {text}"))?;
    ensure!(!text.contains("Cancelled:"), "what was applied in part is called cancelled: {text}");
    ensure!(failure.reason == reason::APPLY_INTERRUPTED && failure.changes == crds::Changed::Some, "{failure:?}: {text}");
    let resources = place.resources()?.unwrap_or_default();
    ensure!((1..3).contains(&resources), "the state has {resources} resources: {text}");
    ensure!(!place.stack().join(".terraform.tfstate.lock.info").exists(), "the state is still locked: {text}");
    Ok(())
}

fn closed_at_the_question(lab: &Lab) -> Result<()> {
    let place = lab.fixture("tofu", "hello")?;
    let terminal = place.at_terminal(&[])?;
    terminal.until("[y/N]")?;
    terminal.signal(Signal::SIGHUP)?;
    place.waits(terminal.end()?)?;
    Ok(())
}

/// Fails if the tool got a second signal, which it reports, and at which it drops its state.
fn one_signal(text: &str) -> Result<()> {
    let told = text.matches("Interrupt received").count();
    ensure!(told == 1 && !text.contains("Two interrupts"), "the tool was told {told} times: {text}");
    Ok(())
}
