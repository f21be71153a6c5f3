//! What the driver needs from the world, so that a simulator and `local` mode can stand in for API, tool and clock.

use std::{sync::Arc, time::Duration};

use crds::{
    Changes, Claim, FailedHook, Failure, HookWhen, OutputsStatus, Progress, RunResult, StateLock, TerraformRun,
    clock::ServerClock, termination::TerminationMessage,
};
use futures::Stream;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::mpsc;

/// An API request that did not plainly succeed. It says nothing about what stands in the API.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct ApiError {
    /// The HTTP status, when there was an answer.
    pub code: Option<u16>,
    pub text: String,
    /// For how long a server that is busy asks to be left alone.
    pub after: Option<Duration>,
}

impl ApiError {
    /// The longest that a server is left alone because it asks for it: 30 s. An end that has to be written waits behind such a wait.
    pub const LONGEST_WAIT: Duration = crds::clock::LONGEST_WAIT;

    /// How long to leave the server alone, besides the usual wait. A run that is claimed waits for nobody: its writes are what
    /// tells of changes in the world.
    pub fn wait(&self, claimed: bool) -> Duration {
        if claimed { Duration::ZERO } else { self.after.unwrap_or_default().min(Self::LONGEST_WAIT) }
    }
}

/// The run in the API.
pub trait Api: Send + Sync + 'static {
    fn get(&self) -> impl Future<Output = Result<TerraformRun, ApiError>> + Send;
    /// Sends a JSON Patch to the run's status.
    fn patch(&self, operations: Vec<Value>) -> impl Future<Output = Result<TerraformRun, ApiError>> + Send;
    /// Follows the run from a version on, until the stream ends or fails.
    fn watch(&self, version: &str) -> impl Future<Output = Result<impl Stream<Item = Seen> + Send + 'static, ApiError>> + Send;
}

#[derive(Clone, Debug)]
pub enum Seen {
    Run(Arc<TerraformRun>),
    Gone,
    /// The watch is of no use any more: read and watch again.
    Lost,
}

/// What happens within a step.
#[derive(Clone, Debug)]
pub enum Notice {
    /// A command was started.
    Started(&'static str),
    /// A command ended.
    Ended(&'static str, i32),
    /// The tool said something else than that it still waits. Told at most once a second.
    Happened,
    HookStarted(String, HookWhen),
    HookEnded(String, i32),
    /// A hook failed, and the run goes on.
    HookFailed(FailedHook),
    Progress(Progress),
    /// What became of the objects of an apply that did not end well.
    Journal(Box<crds::Journal>),
    /// Somebody holds the state's lock, and the step waits for it.
    Locked(StateLock),
    /// A lock was released, in words.
    Unlocked(String),
    /// Code of the stack is not confined.
    Unconfined,
}

pub type Notices = mpsc::UnboundedSender<Notice>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetupReport {
    /// The commit.
    pub revision: Option<String>,
    /// Where the source is from: `git 4c1d2e3 of main`.
    pub source: String,
    /// Tool and version: `OpenTofu 1.10.6`.
    pub tool: String,
    /// Why that version: `from .opentofu-version`.
    pub why: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitReport {
    /// The backend's type, and what people have to know of it.
    pub backend: String,
    /// The workspace, in words.
    pub workspace: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanReport {
    pub has_changes: bool,
    pub counts: Changes,
    /// One line a resource, destroys first.
    pub lines: Vec<String>,
    /// The checksum of the manifest.
    pub checksum: String,
    /// Digest of what the datastore keeps of it; none when the plan dies with its pod.
    pub bundle: Option<String>,
    /// `linux_amd64`.
    pub platform: String,
    /// What else people have to know of it; a line of the history each.
    pub notes: Vec<String>,
    /// Key of the state it is of; none where nobody else can work on it through Pawl.
    pub state_key: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyReport {
    /// Operations on resources that were carried out.
    pub done: u32,
    /// Outputs of the stack.
    pub outputs: u32,
}

/// What is on disk before a plan is claimed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// The checksum of the manifest as it is now.
    pub checksum: String,
    /// What is another than it was when the plan was made, in words; empty where that is not known.
    pub differs: Vec<&'static str>,
}

/// The work of an attempt: everything with source, tool and disk.
pub trait Work: Send + Sync + 'static {
    /// Fetches the source, finds the tool, writes the inputs.
    fn setup(&self, run: Arc<TerraformRun>, notices: Notices) -> impl Future<Output = Result<SetupReport, Failure>> + Send;
    /// Finds again what the plan of an earlier process was made with: source and tool, and nothing is run.
    fn restore(&self, run: Arc<TerraformRun>, notices: Notices) -> impl Future<Output = Result<SetupReport, Failure>> + Send;
    /// Runs `init`, selects the workspace, and refuses a state that would die with the pod.
    fn init(&self, notices: Notices) -> impl Future<Output = Result<InitReport, Failure>> + Send;
    /// Runs `plan`, reads the plan, and computes its checksum.
    fn plan(&self, notices: Notices) -> impl Future<Output = Result<PlanReport, Failure>> + Send;
    /// Computes the checksum again from the bytes on disk, and proves that a claim of it can be recorded where it would be.
    fn verify(&self) -> impl Future<Output = Result<Verified, Failure>> + Send;
    /// Whether hooks run between the claim and the apply.
    fn has_hooks_before(&self) -> bool {
        false
    }
    /// Records the claim where it outlives the pod, and runs the hooks before the apply. They run once: nothing is applied when this
    /// fails.
    fn hooks_before(&self, _claim: Claim, _notices: Notices) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }
    /// Computes the checksum once more behind these hooks, of which nothing runs any more.
    fn verify_again(&self) -> impl Future<Output = Result<Verified, Failure>> + Send {
        self.verify()
    }
    /// Applies the plan file, which this process claimed.
    fn apply(&self, claim: Claim, notices: Notices) -> impl Future<Output = Result<ApplyReport, Failure>> + Send;
    /// Sends the one SIGINT to what runs, and starts nothing any more.
    fn interrupt(&self);
    /// The controller's word that a lock was left by an ended process of ours: no other lock is meant.
    fn may_unlock(&self, _id: &str, _holder: &str) {}
    fn kill_providers(&self);
    fn kill_tool(&self);
    /// Kills every other process. Whether none is left.
    fn kill_others(&self) -> impl Future<Output = bool> + Send;
    /// What the last apply changed, as far as it was seen; for an apply whose end was not seen.
    fn changed(&self) -> crds::Changed;
    /// Leaves the result of a claimed run where it outlives the pod, if there is such a place. Whether it is there.
    fn deliver(&self, message: TerminationMessage) -> impl Future<Output = bool> + Send;
    /// Whether hooks run at the end of an attempt, which has applied or not.
    fn has_hooks_after(&self, _applied: bool) -> bool {
        false
    }
    /// Runs the hooks at the end of an attempt, whatever was stopped before; `result` is how its run ended, if it did. Those that fail
    /// are told.
    fn hooks_after(&self, _applied: bool, _result: Option<RunResult>, _notices: Notices) -> impl Future<Output = ()> + Send {
        async {}
    }
    /// Publishes the outputs of a run that ended with success, as its spec asks for it; what became of them. None when it asks for
    /// nothing.
    fn publish(&self, _claimed: bool) -> impl Future<Output = Option<OutputsStatus>> + Send {
        async { None }
    }
    fn redact(&self, text: &str) -> String;
    fn log(&self, line: &str) -> impl Future<Output = ()> + Send;
}

pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
}

/// In a pod, the API server's: times that one pod writes are read by others, and by the controller.
impl Clock for ServerClock {
    fn now(&self) -> Timestamp {
        Self::now(self)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}
