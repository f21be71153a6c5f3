//! A person's answer: a key at this terminal, or `kubectl` in another.

use std::io::{IsTerminal as _, Read as _, Write as _, stdin};
use std::sync::OnceLock;

use anyhow::{Context, Result};
use crds::{Phase, TerraformRun, names};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};
use nix::sys::termios::{self, LocalFlags, SetArg, SpecialCharacterIndices, Termios};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, mpsc};

use super::follow::Follower;
use harness::cluster::objects;

/// The answer to the question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// `y` was pressed.
    Yes,
    /// `n` was pressed.
    No,
    /// The run went on: someone answered in another terminal.
    Elsewhere,
    /// Ctrl-C or Ctrl-D: the run still waits.
    Left,
}

/// Whether there is a person at a terminal.
pub(super) fn somebody_is_there() -> bool {
    stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// Waits for a key, or for the run to go on.
pub(super) async fn ask(follower: &mut Follower) -> Result<Answer> {
    let mut keys = Keys::listen().await?;
    print!("or press y [y/N] ");
    std::io::stdout().flush()?;
    let answer = loop {
        tokio::select! {
            key = keys.pressed.recv() => match key {
                Some(b'y' | b'Y') => break Answer::Yes,
                Some(b'n' | b'N' | b'\n' | b'\r') => break Answer::No,
                Some(3 | 4) | None => break Answer::Left,
                Some(_) => {}
            },
            _ = tokio::signal::ctrl_c() => break Answer::Left,
            status = follower.changed() => {
                if status.phase != Some(Phase::AwaitingApproval) || status.approval.is_some() {
                    break Answer::Elsewhere;
                }
            }
        }
    };
    println!();
    Ok(answer)
}

/// Approves a plan as the client's user, like the printed command.
pub(super) async fn approve(
    client: &Client,
    runs: &Api<TerraformRun>,
    run: &str,
    checksum: &str,
) -> Result<()> {
    let reviews = Api::<SelfSubjectReview>::all(client.clone());
    let review = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await;
    let status = review
        .context("the API server does not tell the user of this demo")?
        .status;
    let user = status
        .and_then(|status| status.user_info)
        .and_then(|info| info.username);
    let user = user.context("a user without a name")?;
    let approval = json!({names::APPROVE: checksum, names::APPROVED_BY: user});
    annotate(runs, run, approval)
        .await
        .context("the approval was refused; the line above shows the plan that waits")
}

pub(super) async fn deny(runs: &Api<TerraformRun>, run: &str) -> Result<()> {
    let denial = json!({names::DENY: "n was pressed in the demo"});
    annotate(runs, run, denial)
        .await
        .context("the denial was refused; try it by kubectl")
}

async fn annotate(runs: &Api<TerraformRun>, run: &str, annotations: Value) -> kube::Result<()> {
    objects::merge(
        runs,
        run,
        &json!({"metadata": {"annotations": annotations}}),
    )
    .await
    .map(drop)
}

/// Reads single keys without Enter. Drop restores the terminal.
struct Keys {
    pressed: MutexGuard<'static, mpsc::UnboundedReceiver<u8>>,
    saved: Option<Termios>,
}

impl Keys {
    /// Begins to read keys. Discards earlier ones, which did not answer this question.
    async fn listen() -> Result<Self> {
        static READ: OnceLock<Mutex<mpsc::UnboundedReceiver<u8>>> = OnceLock::new();
        let saved = termios::tcgetattr(stdin()).ok();
        if let Some(saved) = &saved {
            let mut at_once = saved.clone();
            at_once.local_flags.remove(LocalFlags::ICANON);
            at_once.control_chars[SpecialCharacterIndices::VMIN as usize] = 1;
            at_once.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
            termios::tcsetattr(stdin(), SetArg::TCSAFLUSH, &at_once)
                .context("the terminal does not take single keys")?;
        }
        // One thread serves all questions. It blocks in a read, so it would take the first key of the next question from a second thread.
        let mut pressed = READ.get_or_init(|| Mutex::new(read())).lock().await;
        while pressed.try_recv().is_ok() {}
        Ok(Self { pressed, saved })
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(saved) = &self.saved {
            // If this fails, the shell's line editor sets the terminal anyway.
            let _ = termios::tcsetattr(stdin(), SetArg::TCSANOW, saved);
        }
    }
}

/// Reads keys from now on.
fn read() -> mpsc::UnboundedReceiver<u8> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let mut key = [0];
        // End of file or an error closes the channel, which counts as leaving.
        while matches!(stdin().lock().read(&mut key), Ok(1)) && sender.send(key[0]).is_ok() {}
    });
    receiver
}
