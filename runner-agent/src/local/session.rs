//! One local run: observed, approved, cancelled, ended.

use std::{
    io::{BufRead as _, Write as _},
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use crds::{
    Changed, Phase, RunResult, TerraformRunStatus, names, pod_env, reason,
    reason::next_step::CodeOrigin, whole_seconds,
};
use jiff::Timestamp;
use nix::sys::termios::{FlushArg, tcflush};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

use super::{
    Ready, end_untold, log_file,
    screen::{Screen, Tee, Teller},
};
use crate::{
    driver::Driver,
    phases::PhaseRunner,
    plan_checksum,
    ports::SystemClock,
    process::{Children, Log, kill_others, reap_strangers},
    report::{Commands, failed},
    settings::Settings,
};

/// Exit code for a plan that waits for an approval.
const EXIT_WAITS: u8 = 2;
/// Maximum number of changed files in a message.
const NAMED: usize = 3;
/// Time limit at a run's end for its log, and for its remaining processes.
const FLUSH: Duration = Duration::from_secs(2);

/// The teller prints the whole history, so the screen prints none.
const HISTORY: usize = usize::MAX;

/// The name of the person at this terminal.
pub(super) fn person() -> String {
    ["USER", "LOGNAME"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()))
        .unwrap_or_else(|| "local".to_owned())
}

/// Works on a run until it ends or waits. Returns the exit code.
pub(super) async fn play(ready: Ready, screen: &Screen) -> Result<u8> {
    let Ready {
        api,
        settings,
        host,
    } = ready;
    let mut changes = api.changes();
    let children = Children::apart();
    let reaper = tokio::spawn(reap_strangers(children.clone()));
    let log = Log::to(Tee::new(log_file(&settings.work)?, screen.clone()));
    let teller = Teller::new(screen.clone(), log.clone());
    teller.tell(&api.status()).await;
    api.told_by(teller.clone());
    let work = Arc::new(PhaseRunner::new(
        settings.clone(),
        host,
        children.clone(),
        log.clone(),
    ));
    let driver = Driver::new(
        Arc::new(api.clone()),
        work.clone(),
        SystemClock,
        settings.clone(),
    );
    // The person's input reaches the state machine through the run, as in a cluster, so this channel of stop signals stays empty.
    let (_stop, stops) = mpsc::unbounded_channel();
    let mut driver = tokio::spawn(driver.run(stops));
    let mut signals = Signals::listen()?;
    let (answers, mut answered) = mpsc::unbounded_channel();
    let (mut asked, mut told) = (settings.restores, false);
    let mut waits = false;
    loop {
        let status = api.status();
        screen.show(&status, HISTORY);
        if status.phase == Some(Phase::AwaitingApproval) && !asked {
            asked = true;
            if !screen.can_ask() {
                waits = true;
                break;
            }
            ask(screen, &status, answers.clone());
        }
        tokio::select! {
            _ = &mut driver => break,
            changed = changes.changed() => changed?,
            Some(yes) = answered.recv() => {
                screen.wake();
                let checksum = api.status().plan.map(|plan| plan.checksum).unwrap_or_default();
                match yes {
                    Some(true) => api.approve(&checksum, &person())?,
                    Some(false) => api.annotate(names::DENY, "the question was answered with no")?,
                    None => {
                        waits = true;
                        break;
                    }
                }
            }
            why = signals.next() => match stop(screen, &api.status(), &mut told) {
                Told::Leave => {
                    waits = true;
                    break;
                }
                Told::Cancel => api.annotate(names::CANCEL, why)?,
                Told::Again => {}
            },
        }
    }
    if waits {
        driver.abort();
    }
    kill_others(&children, FLUSH).await;
    work.clean();
    log.flush(FLUSH).await;
    reaper.abort();
    close(&api, &settings.commands())?;
    name_changed(&api, &settings)?;
    let status = api.status();
    teller.tell(&status).await;
    screen.show(&status, HISTORY);
    screen.rest();
    Ok(say(
        screen,
        &status,
        &settings.work.display().to_string(),
        waits,
    ))
}

/// Signals that cancel a run. Includes a closed terminal, which would otherwise kill the tool during an apply.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The next signal, in words.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "Ctrl-C",
            _ = self.terminate.recv() => "asked to stop",
            _ = self.hangup.recv() => "the terminal was closed",
        }
    }
}

enum Told {
    /// Nothing runs: the plan continues to wait.
    Leave,
    Cancel,
    /// The run is cancelled already.
    Again,
}

fn stop(screen: &Screen, status: &TerraformRunStatus, told: &mut bool) -> Told {
    if status.phase == Some(Phase::AwaitingApproval) && status.approval.is_none() {
        return Told::Leave;
    }
    let again = std::mem::replace(told, true);
    // A running apply is not reported as cancelled; the final message tells how it ended.
    let head = match (again, status.claim.is_some()) {
        (true, _) => "Still waiting",
        (false, true) => "Interrupted",
        (false, false) => "Cancelled",
    };
    screen.strong(&format!("\n{head}: {}.", waits_for(status)), false);
    if again { Told::Again } else { Told::Cancel }
}

/// The step that a cancelled run waits for.
fn waits_for(status: &TerraformRunStatus) -> &'static str {
    match status.phase.unwrap_or(Phase::Pending) {
        _ if status.claim.is_some() => {
            "apply was asked to stop, once; it finishes what it has begun and saves its state, and a kill now would lose that"
        }
        Phase::Init => "init was asked to stop and is waited for; nothing was changed",
        Phase::Plan => "plan was asked to stop and is waited for; nothing was changed",
        Phase::Pending | Phase::Setup => {
            "the fetch of the source is waited for; nothing was changed"
        }
        _ => "the run is about to end; nothing was applied",
    }
}

/// Asks, and sends the answer; `None` at the end of input.
fn ask(screen: &Screen, status: &TerraformRunStatus, answers: mpsc::UnboundedSender<Option<bool>>) {
    let plan = status.plan.clone().unwrap_or_default();
    screen.rest();
    let question = format!("Apply {} ({})? [y/N] ", plan.checksum, plan.summary);
    std::thread::spawn(move || {
        // A key that was pressed before the question does not answer it.
        let _ = tcflush(std::io::stdin(), FlushArg::TCIFLUSH);
        let mut out = std::io::stdout().lock();
        let _ = write!(out, "{question}").and_then(|()| out.flush());
        drop(out);
        let mut line = String::new();
        let answer = match std::io::stdin().lock().read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(matches!(
                line.trim().to_ascii_lowercase().as_str(),
                "y" | "yes"
            )),
        };
        let _ = answers.send(answer);
    });
}

/// Closes the attempt, as the controller does. Never retries: the person can.
fn close(api: &super::FileApi, commands: &Commands) -> Result<()> {
    api.change(|run| {
        let status = run.status.get_or_insert_default();
        if let Some(attempt) = &mut status.attempt {
            attempt.open = false;
            attempt.closed_at = Some(whole_seconds(Timestamp::now()));
        }
        let waits = status.phase == Some(Phase::AwaitingApproval) && status.claim.is_none();
        if status.is_terminal() || waits {
            return;
        }
        end_untold(status);
        if let Some(failure) = &status.failure {
            status.next_step = failed(commands, failure, &CodeOrigin::default()).next_step;
        }
    })?;
    Ok(())
}

/// Names the files that changed since the plan, since the checksum only shows that something changed.
fn name_changed(api: &super::FileApi, settings: &Settings) -> Result<()> {
    let is_other = api
        .status()
        .failure
        .is_some_and(|failure| failure.reason == reason::CHECKSUM_MISMATCH);
    let (Some(stack), true) = (&settings.folder, is_other) else {
        return Ok(());
    };
    let planned = std::fs::metadata(settings.plan_file()).and_then(|plan| plan.modified());
    let changed = planned
        .map(|at| plan_checksum::changed_since(stack, at))
        .unwrap_or_default();
    let names = match changed.as_slice() {
        // A removed file, or another tool.
        [] => return Ok(()),
        names if names.len() > NAMED => format!(
            "{} and {} more",
            names[..NAMED].join(", "),
            names.len() - NAMED
        ),
        names => names.join(", "),
    };
    api.change(|run| {
        run.status.get_or_insert_default().message =
            Some(format!("{names} changed after the plan was made, so that it was not applied; nothing was changed"));
    })?;
    Ok(())
}

/// Prints the final message. Returns the exit code.
fn say(screen: &Screen, status: &TerraformRunStatus, record: &str, waits: bool) -> u8 {
    let message = status.message.clone().unwrap_or_default();
    if waits {
        screen.line(&format!(
            "\nThe plan waits; nothing was applied. Apply it with:\n\n  {}\n",
            status.next_step.clone().unwrap_or_default()
        ));
        return EXIT_WAITS;
    }
    let result = status.result.unwrap_or(RunResult::Failed);
    let good = result.phase() == Phase::Succeeded;
    let text = match result {
        RunResult::Failed | RunResult::Indeterminate => format!("{result}: {message}"),
        _ => sentence(&message),
    };
    screen.strong(&format!("\n{text}"), good);
    if !good {
        if let Some(next) = &status.next_step {
            screen.line(&format!("Next: {next}"));
        }
        screen.line(&format!("The log is in {record}/log"));
    }
    match status.failure.as_ref().map(|failure| failure.changes) {
        // The failure knows more about the changes than the result.
        Some(Changed::Unknown) => pod_env::exit_code(RunResult::Indeterminate),
        Some(Changed::None | Changed::Some) | None => pod_env::exit_code(result),
    }
}

fn sentence(message: &str) -> String {
    let mut chars = message.chars();
    chars.next().map_or_else(String::new, |first| {
        format!("{}{}.", first.to_uppercase(), chars.as_str())
    })
}
