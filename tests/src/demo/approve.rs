//! A person's answer: by a key at this terminal, or by anybody with `kubectl` in another.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use crds::{Phase, TerraformRun, names};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;

use super::follow::Follower;

/// What came of the question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// `y` was pressed.
    Yes,
    /// `n` was pressed.
    No,
    /// The run went on by itself: somebody answered in another terminal.
    Elsewhere,
    /// Ctrl-C, Ctrl-D: the run goes on waiting.
    Left,
}

/// Whether there is a person to ask.
pub(super) fn somebody_is_there() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// Waits for a key, or for the run to go on.
pub(super) async fn ask(follower: &mut Follower) -> Result<Answer> {
    let mut keys = Keys::listen()?;
    print!("or press y [y/N] ");
    std::io::stdout().flush()?;
    let answer = loop {
        tokio::select! {
            key = keys.receiver.recv() => match key {
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

/// Approves a plan in the name of the client's user, as the printed line does.
pub(super) async fn approve(client: &Client, runs: &Api<TerraformRun>, run: &str, checksum: &str) -> Result<()> {
    let review = Api::<SelfSubjectReview>::all(client.clone())
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .context("the API server does not say who this is")?;
    let user =
        review.status.and_then(|status| status.user_info).and_then(|info| info.username).context("a user without a name")?;
    annotate(runs, run, &[(names::APPROVE, checksum), (names::APPROVED_BY, &user)])
        .await
        .context("the approval was refused; the line above shows the plan that waits")
}

/// Denies a plan.
pub(super) async fn deny(runs: &Api<TerraformRun>, run: &str) -> Result<()> {
    annotate(runs, run, &[(names::DENY, "n was pressed in the demo")]).await.context("the denial was refused; try it by kubectl")
}

async fn annotate(runs: &Api<TerraformRun>, run: &str, annotations: &[(&str, &str)]) -> Result<()> {
    let map: serde_json::Map<_, _> = annotations.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    let patch = Patch::Merge(json!({"metadata": {"annotations": map}}));
    runs.patch(run, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Keys as they are pressed, without Enter; the terminal is as it was when this goes.
struct Keys {
    receiver: mpsc::UnboundedReceiver<u8>,
    saved: Option<String>,
}

impl Keys {
    fn listen() -> Result<Self> {
        // Where there is no stty, Enter has to be pressed, and nothing else is different.
        let saved = stty(&["-g"]);
        if saved.is_some() {
            stty(&["-icanon", "min", "1"]);
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        std::thread::Builder::new().name("keys".to_owned()).spawn(move || {
            let mut key = [0];
            while let Ok(1) = std::io::stdin().read(&mut key) {
                if sender.send(key[0]).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { receiver, saved })
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(saved) = &self.saved {
            stty(&[saved.trim()]);
        }
    }
}

fn stty(arguments: &[&str]) -> Option<String> {
    let output = Command::new("stty").args(arguments).stdin(Stdio::inherit()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
