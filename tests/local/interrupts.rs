//! Ctrl-C in each phase, as a key at a terminal: the program reports what it waits for, the tool gets one SIGINT for any number of keys,
//! and exit code and record are true. A closed terminal has the same effect.

use std::time::Duration;

use anyhow::{Result, ensure};
use crds::{RunResult, reason};
use nix::sys::signal::Signal;

use crate::{
    place::{Lab, Place, Test, holds},
    stalled::Stalled,
    terminal::{CTRL_C, Terminal},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("interrupts::in_setup_and_init", before_plan),
        Test::new("interrupts::in_plan", in_plan),
        Test::new("interrupts::in_apply", in_apply),
        Test::new("interrupts::a_closed_terminal_in_apply", closed_in_apply),
    ]
}

/// Two slow creations, one after the other.
pub(crate) const SLOW: &str = include_str!("../fixtures/terragrunt/slow/main.tf");

/// A plan that reads from a server.
fn reading(server: &Stalled) -> String {
    format!(
        "data \"terraform_remote_state\" \"other\" {{\n  backend = \"http\"\n  config = {{ address = \"{}\" }}\n}}\n\
         resource \"terraform_data\" \"a\" {{}}\n",
        server.url("state")
    )
}

/// Checks that a run was cancelled before anything was applied.
fn is_cancelled(place: &Place, (code, text): &(i32, String)) -> Result<()> {
    let record = place.record()?;
    ensure!(
        *code == 3 && record.result == Some(RunResult::Canceled),
        "{code} {:?}: {text}",
        record.result
    );
    // An interrupted plan writes an empty state.
    ensure!(
        record.claim.is_none() && place.resources()?.unwrap_or_default() == 0,
        "something was applied: {text}"
    );
    holds(text, "Cancelled: Ctrl-C; nothing was applied")
}

fn before_plan(lab: &Lab) -> Result<()> {
    for (in_setup, told) in [
        (true, "the fetch of the source is waited for"),
        (
            false,
            "init was asked to stop and is waited for; nothing was changed",
        ),
    ] {
        let server = Stalled::start()?;
        let source = server.url("stacks.git");
        let code = format!("module \"m\" {{\n  source = \"git::{source}\"\n}}\n");
        let (files, arguments) = ([("main.tf", code.as_str())], [source.as_str()]);
        let place = lab.place("tofu", if in_setup { &[] } else { &files })?;
        let mut terminal = place.at_terminal(if in_setup { &arguments } else { &[] })?;
        server.until_asked()?;
        terminal.press(CTRL_C)?;
        terminal.until(&format!("Cancelled: {told}"))?;
        // The server never answers.
        is_cancelled(&place, &terminal.end()?)?;
    }
    Ok(())
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

/// A terminal with an apply in progress that lasts longer than any key takes.
pub(crate) fn applying(place: Place) -> Result<(Place, Terminal)> {
    let mut terminal = place.at_terminal(&[])?;
    terminal.answer("y")?;
    terminal.until("time_sleep.second: Creating...")?;
    Ok((place, terminal))
}

fn in_apply(lab: &Lab) -> Result<()> {
    let (place, mut terminal) = applying(lab.place("tofu", &[("main.tf", SLOW)])?)?;
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
    let (place, terminal) = applying(lab.place("tofu", &[("main.tf", SLOW)])?)?;
    // As a closed terminal does; the kernel sends another SIGHUP when the last end is gone.
    terminal.signal(Signal::SIGHUP)?;
    let (code, text) = terminal.end()?;
    interrupted(&place, code, &text)
}

/// Checks that the tool ended by itself: its state has the created objects, and the lock is free.
fn interrupted(place: &Place, code: i32, text: &str) -> Result<()> {
    let record = place.record()?;
    ensure!(
        code == 1 && record.result == Some(RunResult::Failed),
        "{code} {:?}: {text}",
        record.result
    );
    let failure = place.failure()?;
    ensure!(
        !text.contains("Cancelled:"),
        "what was applied in part is called cancelled: {text}"
    );
    ensure!(
        failure.reason == reason::APPLY_INTERRUPTED && failure.changes == crds::Changed::Some,
        "{failure:?}: {text}"
    );
    let resources = place.resources()?.unwrap_or_default();
    ensure!(
        (1..3).contains(&resources),
        "the state has {resources} resources: {text}"
    );
    ensure!(
        !place.stack().join(".terraform.tfstate.lock.info").exists(),
        "the state is still locked: {text}"
    );
    Ok(())
}

/// Fails if the tool got a second signal, which it reports, and at which it drops its state.
fn one_signal(text: &str) -> Result<()> {
    let told = text.matches("Interrupt received").count();
    ensure!(
        told == 1 && !text.contains("Two interrupts"),
        "the tool was told {told} times: {text}"
    );
    Ok(())
}
