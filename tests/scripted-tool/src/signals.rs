//! Interrupts, handled like by the real tools: the first requests a graceful end, the second ends at once.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::record::Recorder;
use super::view::View;
use ledger::what;

#[derive(Debug, Default)]
struct Shared {
    received: AtomicU32,
    ignored: AtomicBool,
    /// Wakes the thread that waits in [`Signals::sleep`].
    interrupted: Mutex<bool>,
    changed: Condvar,
}

/// Signals that this process has received.
#[derive(Clone, Debug, Default)]
pub(super) struct Signals(Arc<Shared>);

impl Signals {
    /// Catches SIGINT and SIGTERM from now on.
    pub(super) fn catch(recorder: Recorder, view: View) -> anyhow::Result<Self> {
        let signals = Self::default();
        let (ready, caught) = mpsc::channel();
        let shared = signals.clone();
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                let run = || -> anyhow::Result<()> {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()?;
                    runtime.block_on(shared.listen(&recorder, &view, &ready))
                };
                if let Err(error) = run() {
                    let _ = ready.send(Err(error));
                }
            })
            .context("failed to start a thread")?;
        caught.recv().context("the signal thread ended")??;
        Ok(signals)
    }

    pub(super) fn received(&self) -> u32 {
        self.0.received.load(Ordering::SeqCst)
    }

    /// Whether the command should end.
    pub(super) fn interrupted(&self) -> bool {
        *self
            .0
            .interrupted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on records signals without another effect.
    pub(super) fn ignore(&self) {
        self.0.ignored.store(true, Ordering::SeqCst);
    }

    /// Sleeps until the time is over, or the command should end.
    pub(super) fn sleep(&self, time: Duration) {
        let end = Instant::now() + time;
        let mut interrupted = self
            .0
            .interrupted
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        while !*interrupted && Instant::now() < end {
            let left = end.saturating_duration_since(Instant::now());
            (interrupted, _) = self
                .0
                .changed
                .wait_timeout(interrupted, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    async fn listen(
        &self,
        recorder: &Recorder,
        view: &View,
        ready: &mpsc::Sender<anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let mut int = signal(SignalKind::interrupt())?;
        let mut term = signal(SignalKind::terminate())?;
        let _ = ready.send(Ok(()));
        loop {
            let name = tokio::select! {
                _ = int.recv() => "SIGINT",
                _ = term.recv() => "SIGTERM",
            };
            let count = self.0.received.fetch_add(1, Ordering::SeqCst) + 1;
            let ignored = self.0.ignored.load(Ordering::SeqCst);
            let second = !ignored && self.interrupted();
            let detail = json!({"signal": name, "count": count, "ignored": ignored});
            // Hold the lock during the ledger entry: a caller of `interrupted` waits until the signal is in the ledger, and a test that
            // sees the entry can rely on the flag.
            let mut interrupted = self
                .0
                .interrupted
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *interrupted |= !ignored;
            recorder.note(what::SIGNAL, detail.clone())?;
            drop(interrupted);
            if ignored {
                continue;
            }
            if second {
                view.log("\nTwo interrupts received. Exiting immediately. Note that data loss may have occurred.\n");
                recorder.note(what::FORCED_EXIT, detail)?;
                std::process::exit(1);
            }
            let name = view.name();
            view.log(&format!(
                "\nInterrupt received.\nPlease wait for {name} to exit or data loss may occur.\nGracefully shutting down...\n"
            ));
            view.log("Stopping operation...");
            self.0.changed.notify_all();
        }
    }
}
