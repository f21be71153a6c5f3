//! Our agent's process: the real driver on the real API server, with a simulated tool.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use anyhow::{Context as _, Result};
use crds::{Changed, Changes, Claim, Failure, TerraformRun, termination::TerminationMessage};
use futures::{Stream, StreamExt};
use harness::wait;
use kube::api::{Patch, PatchParams, WatchEvent, WatchParams};
use runner_agent::ports::{
    Api, ApiError, ApplyReport, InitReport, Notice, Notices, PlanReport, Seen, SetupReport,
    Verified, Work,
};
use serde_json::Value;
use tokio::{sync::mpsc, task::JoinHandle};

use super::RUN;
use crate::world::{PATIENCE, sum};

/// A process of our agent.
pub(crate) struct Process {
    pub(super) task: JoinHandle<u8>,
    pub(super) gets: Arc<AtomicU32>,
    pub(super) log: tempfile::NamedTempFile,
    pub(super) _stop: mpsc::UnboundedSender<()>,
}

impl Process {
    /// Waits for its end and returns its exit code.
    pub(crate) async fn end(&mut self) -> Result<u8> {
        Ok(tokio::time::timeout(PATIENCE, &mut self.task)
            .await
            .context("the agent does not end")??)
    }

    /// Waits until it has read the run this many times.
    pub(crate) async fn until_read(&self, times: u32) -> Result<()> {
        wait::until("the agent looks again", PATIENCE, async || {
            Ok(self.gets.load(Ordering::Relaxed) >= times)
        })
        .await
    }

    /// Its termination message.
    pub(crate) fn message(&self) -> Result<TerminationMessage> {
        let text = std::fs::read_to_string(self.log.path())?;
        TerminationMessage::parse(&text).with_context(|| format!("no termination message: {text}"))
    }
}

/// The agent's access to the run, with the requests of its own client.
pub(super) struct Server {
    pub(super) runs: kube::Api<TerraformRun>,
    pub(super) gets: Arc<AtomicU32>,
}

fn error(error: &kube::Error) -> ApiError {
    let code = match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    };
    ApiError {
        code,
        text: error.to_string(),
        after: None,
    }
}

impl Api for Server {
    async fn get(&self) -> Result<TerraformRun, ApiError> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.runs.get(RUN).await.map_err(|e| error(&e))
    }

    async fn patch(&self, operations: Vec<Value>) -> Result<TerraformRun, ApiError> {
        let patch = serde_json::from_value(Value::Array(operations)).map_err(|e| ApiError {
            code: None,
            text: e.to_string(),
            after: None,
        })?;
        self.runs
            .patch_status(RUN, &PatchParams::default(), &Patch::Json::<()>(patch))
            .await
            .map_err(|e| error(&e))
    }

    async fn watch(
        &self,
        version: &str,
    ) -> Result<impl Stream<Item = Seen> + Send + 'static, ApiError> {
        let params = WatchParams::default()
            .fields(&format!("metadata.name={RUN}"))
            .timeout(60)
            .disable_bookmarks();
        let events = self
            .runs
            .watch(&params, version)
            .await
            .map_err(|e| error(&e))?;
        Ok(events.map(|event| match event {
            Ok(WatchEvent::Added(run) | WatchEvent::Modified(run)) => Seen::Run(Arc::new(run)),
            Ok(WatchEvent::Deleted(_)) => Seen::Gone,
            Ok(WatchEvent::Bookmark(_) | WatchEvent::Error(_)) | Err(_) => Seen::Lost,
        }))
    }
}

/// A tool whose plan is the plan `a`, with the given behaviour.
#[derive(Clone, Default)]
pub(crate) struct Played {
    /// Key of the state that the plan is for.
    pub(crate) state_key: Option<String>,
    pub(crate) applies: Arc<AtomicU32>,
    /// The command in which our own code panics.
    pub(crate) panics: &'static str,
}

impl Work for Played {
    async fn setup(
        &self,
        _run: Arc<TerraformRun>,
        _notices: Notices,
    ) -> Result<SetupReport, Failure> {
        Ok(SetupReport {
            revision: None,
            source: "inline".into(),
            tool: "OpenTofu 1.10.6".into(),
            why: "played".into(),
        })
    }

    async fn restore(
        &self,
        run: Arc<TerraformRun>,
        notices: Notices,
    ) -> Result<SetupReport, Failure> {
        self.setup(run, notices).await
    }

    async fn init(&self, _notices: Notices) -> Result<InitReport, Failure> {
        Ok(InitReport {
            backend: "http".into(),
            workspace: "default".into(),
            providers: None,
        })
    }

    async fn plan(&self, _notices: Notices) -> Result<PlanReport, Failure> {
        assert_ne!(self.panics, "plan", "a fault that the test asked for");
        Ok(PlanReport {
            has_changes: true,
            counts: Changes {
                add: 1,
                ..Changes::default()
            },
            lines: vec!["+ a.b".into()],
            checksum: sum('a'),
            bundle: None,
            platform: "linux_amd64".into(),
            notes: Vec::new(),
            state_key: self.state_key.clone(),
            unread: None,
            other_state: None,
        })
    }

    async fn verify(&self) -> Result<Verified, Failure> {
        Ok(Verified {
            checksum: sum('a'),
            differs: Vec::new(),
        })
    }

    async fn apply(&self, _claim: Claim, notices: Notices) -> Result<ApplyReport, Failure> {
        self.applies.fetch_add(1, Ordering::Relaxed);
        assert_ne!(self.panics, "apply", "a fault that the test asked for");
        let _ = notices.send(Notice::Started("apply"));
        let _ = notices.send(Notice::Ended("apply", 0));
        Ok(ApplyReport {
            done: 1,
            outputs: 0,
            unread: None,
        })
    }

    fn interrupt(&self) {}

    fn kill_providers(&self) {}

    fn kill_tool(&self) {}

    async fn kill_others(&self) -> bool {
        true
    }

    fn changed(&self) -> Changed {
        Changed::None
    }

    async fn deliver(&self, _message: TerminationMessage) -> bool {
        true
    }

    fn redact(&self, text: &str) -> String {
        text.to_owned()
    }

    async fn log(&self, _line: &str) {}
}
