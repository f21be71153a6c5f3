//! One local run: watched, asked about, cancelled, ended.

use std::{
    io::{BufRead as _, Write as _},
    sync::Arc,
};

use anyhow::Result;
use crds::{Phase, RunResult, TerraformRunStatus, contract, names, whole_seconds};
use jiff::Timestamp;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use super::{
    Prepared, end_untold, log_file,
    screen::{Screen, Tee},
};
use crate::{
    driver::Driver,
    phases::PodWork,
    ports::SystemClock,
    process::{Children, Log, kill_others, reap_strangers},
};

/// Exit code when a plan waits for an answer.
const EXIT_WAITS: u8 = 2;

/// Who answers at this terminal.
pub(super) fn person() -> String {
    ["USER", "LOGNAME"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()))
        .unwrap_or_else(|| "local".to_owned())
}

/// Works on a run until it ends or waits; the exit code.
pub(super) async fn play(prepared: Prepared, screen: &Screen) -> Result<u8> {
    let Prepared { api, settings } = prepared;
    let mut changes = api.changes();
    let children = Children::default();
    let reaper = tokio::spawn(reap_strangers(children.clone()));
    let log = Log::to(Tee::new(log_file(&settings.work)?, screen.clone()));
    let work = Arc::new(PodWork::new(settings.clone(), children.clone(), log.clone()));
    let driver = Driver::new(Arc::new(api.clone()), work.clone(), SystemClock, settings.clone());
    // The person's words reach the machine through the run, as they do in a cluster; the process has no other end.
    let (_stop, stops) = mpsc::unbounded_channel();
    let mut driver = tokio::spawn(driver.run(stops));
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (answers, mut answered) = mpsc::unbounded_channel();
    let (mut shown, mut asked, mut told) = (0, settings.restores, false);
    let mut waits = false;
    loop {
        let status = api.status();
        shown = screen.show(&status, shown);
        if status.phase == Some(Phase::AwaitingApproval) && !asked {
            asked = true;
            log.flush(std::time::Duration::from_secs(2)).await;
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
                let checksum = api.status().plan.map(|plan| plan.checksum).unwrap_or_default();
                match yes {
                    Some(true) => api.approve(&checksum, &person())?,
                    Some(false) => api.annotate(names::DENY, "denied at the question")?,
                    None => {
                        waits = true;
                        break;
                    }
                }
            }
            _ = interrupt.recv() => match stop(screen, &api.status(), &mut told) {
                Told::Leave => {
                    waits = true;
                    break;
                }
                Told::Cancel => api.annotate(names::CANCEL, "Ctrl-C")?,
                Told::Again => {}
            },
            _ = terminate.recv() => match stop(screen, &api.status(), &mut told) {
                Told::Leave => {
                    waits = true;
                    break;
                }
                Told::Cancel => api.annotate(names::CANCEL, "told to end")?,
                Told::Again => {}
            },
        }
    }
    if waits {
        driver.abort();
    }
    kill_others(&children, std::time::Duration::from_secs(2)).await;
    work.clean();
    log.flush(std::time::Duration::from_secs(2)).await;
    reaper.abort();
    close(&api)?;
    let status = api.status();
    screen.show(&status, shown);
    screen.rest();
    Ok(say(screen, &status, &settings.work.display().to_string(), waits))
}

enum Told {
    /// Nothing runs: the plan waits on.
    Leave,
    /// The run is cancelled.
    Cancel,
    /// It was told before.
    Again,
}

fn stop(screen: &Screen, status: &TerraformRunStatus, told: &mut bool) -> Told {
    if status.phase == Some(Phase::AwaitingApproval) && status.approval.is_none() {
        return Told::Leave;
    }
    let text = if status.claim.is_some() {
        "the tool was told to end and saves its state; to kill it now would lose what it has made"
    } else {
        "the tool was told to end; nothing was changed"
    };
    screen.strong(&format!("Cancelled: {text}."), false);
    if std::mem::replace(told, true) { Told::Again } else { Told::Cancel }
}

/// Asks, and sends the answer; none when there is nobody to answer.
fn ask(screen: &Screen, status: &TerraformRunStatus, answers: mpsc::UnboundedSender<Option<bool>>) {
    let plan = status.plan.clone().unwrap_or_default();
    screen.rest();
    let question = format!("Apply {} ({})? [y/N] ", plan.checksum, plan.summary);
    std::thread::spawn(move || {
        print!("{question}");
        let _ = std::io::stdout().flush();
        let mut line = String::new();
        let answer = match std::io::stdin().lock().read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes")),
        };
        let _ = answers.send(answer);
    });
}

/// Closes the attempt, as a controller would. Nothing is tried again by itself: a person is there to say so.
fn close(api: &super::FileApi) -> Result<()> {
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
    })?;
    Ok(())
}

/// The last words, and the exit code.
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
    screen.strong(&format!("{result}: {message}"), good);
    if !good {
        if let Some(next) = &status.next_step {
            screen.line(&format!("Next: {next}"));
        }
        screen.line(&format!("The log is in {record}/log"));
    }
    contract::exit_code(result)
}
