//! Interfaces of the driver, so that a simulator and `local` mode can replace the API, the tool and the clock.

use std::{sync::Arc, time::Duration};

use crds::{
    Changes, Claim, FailedHook, Failure, HookWhen, OutputsStatus, Progress, RunResult, StateLock,
    TerraformRun, clock::ServerClock, termination::TerminationMessage,
};
use futures::Stream;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::mpsc;

/// A failed API request. It does not prove what the API contains.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct ApiError {
    /// The HTTP status of the response, if any.
    pub code: Option<u16>,
    pub text: String,
    /// The wait that a busy server requests.
    pub after: Option<Duration>,
}

impl ApiError {
    /// Maximum wait at a busy server's request: 30 s. Writing an end waits at most as long.
    pub const LONGEST_WAIT: Duration = crds::clock::LONGEST_WAIT;

    /// The wait that a busy server requested, in addition to the usual backoff. Zero for a claimed run, since its writes report changes of
    /// infrastructure.
    pub fn wait(&self, claimed: bool) -> Duration {
        if claimed {
            Duration::ZERO
        } else {
            self.after.unwrap_or_default().min(Self::LONGEST_WAIT)
        }
    }
}

/// The run in the API.
pub trait Api: Send + Sync + 'static {
    fn get(&self) -> impl Future<Output = Result<TerraformRun, ApiError>> + Send;
    /// Sends a JSON Patch to the run's status.
    fn patch(
        &self,
        operations: Vec<Value>,
    ) -> impl Future<Output = Result<TerraformRun, ApiError>> + Send;
    /// Watches the run from a version on, until the stream ends or fails.
    fn watch(
        &self,
        version: &str,
    ) -> impl Future<Output = Result<impl Stream<Item = Seen> + Send + 'static, ApiError>> + Send;
}

#[derive(Clone, Debug)]
pub enum Seen {
    Run(Arc<TerraformRun>),
    Gone,
    /// The watch is lost: read the run and watch again.
    Lost,
}

/// Events within a step.
#[derive(Clone, Debug)]
pub enum Notice {
    /// A command was started.
    Started(&'static str),
    /// A command ended.
    Ended(&'static str, i32),
    /// The tool reported more than that it still waits. Sent at most once a second.
    Happened,
    HookStarted(String, HookWhen),
    HookEnded(String, i32),
    /// A hook failed, and the run continues.
    HookFailed(FailedHook),
    Progress(Progress),
    /// The account of the objects of a failed apply.
    Journal(Box<crds::Journal>),
    /// The step waits for the state's lock, which another holds.
    Locked(StateLock),
    /// A lock was released; the text names it.
    Unlocked(String),
    /// The stack's code is not confined.
    Unconfined,
}

pub type Notices = mpsc::UnboundedSender<Notice>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetupReport {
    /// The commit.
    pub revision: Option<String>,
    /// The source's origin, e.g. `git 4c1d2e3 of main`.
    pub source: String,
    /// Tool and version, e.g. `OpenTofu 1.10.6`.
    pub tool: String,
    /// Reason for the version, e.g. `from .opentofu-version`.
    pub why: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitReport {
    /// The backend's type, and warnings about it.
    pub backend: String,
    /// The workspace, in words.
    pub workspace: String,
    /// Why providers do not come from where they were looked for first.
    pub providers: Option<String>,
}

impl InitReport {
    pub fn of(backend: String, workspace: String) -> Self {
        Self {
            backend,
            workspace,
            providers: None,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanReport {
    pub has_changes: bool,
    pub counts: Changes,
    /// One line per resource, destroys first.
    pub lines: Vec<String>,
    /// The checksum of the manifest.
    pub checksum: String,
    /// Digest of the bundle in the datastore; `None` if the plan is lost with its pod.
    pub bundle: Option<String>,
    /// E.g. `linux_amd64`.
    pub platform: String,
    /// Notes for people, one history line each.
    pub notes: Vec<String>,
    /// Why the plan file could not be read. Counts and lines are then what the tool printed.
    pub unread: Option<String>,
    /// Why the state is not that of the last apply.
    pub other_state: Option<String>,
    /// Key of the state's lease; `None` without leases.
    pub state_key: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyReport {
    /// Number of operations on resources that were carried out.
    pub done: u32,
    /// Number of the stack's outputs.
    pub outputs: u32,
    /// Why the state could not be read back, where another client may have written it.
    pub unread: Option<String>,
}

/// Result of the verification before the claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// The current checksum of the manifest.
    pub checksum: String,
    /// The parts that changed since the plan, in words; empty if unknown.
    pub differs: Vec<&'static str>,
}

/// The work of an attempt: everything with source, tool and disk.
pub trait Work: Send + Sync + 'static {
    /// Fetches the source, finds the tool, writes the inputs.
    fn setup(
        &self,
        run: Arc<TerraformRun>,
        notices: Notices,
    ) -> impl Future<Output = Result<SetupReport, Failure>> + Send;
    /// Restores source and tool of an earlier process's plan, without planning.
    fn restore(
        &self,
        run: Arc<TerraformRun>,
        notices: Notices,
    ) -> impl Future<Output = Result<SetupReport, Failure>> + Send;
    /// Runs `init`, selects the workspace, and refuses a state that would be lost with the pod.
    fn init(&self, notices: Notices) -> impl Future<Output = Result<InitReport, Failure>> + Send;
    /// Runs `plan`, reads the plan, and computes its checksum.
    fn plan(&self, notices: Notices) -> impl Future<Output = Result<PlanReport, Failure>> + Send;
    /// Computes the checksum again from the bytes on disk, and proves that a claim can be recorded.
    fn verify(&self) -> impl Future<Output = Result<Verified, Failure>> + Send;
    /// Whether hooks run between the claim and the apply.
    fn has_hooks_before(&self) -> bool {
        false
    }
    /// Records the claim where it outlives the pod, and runs the hooks before the apply. They run only once: after a failure
    /// nothing is applied.
    fn hooks_before(
        &self,
        _claim: Claim,
        _notices: Notices,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }
    /// Computes the checksum again after these hooks, when none of their processes runs any more.
    fn verify_again(&self) -> impl Future<Output = Result<Verified, Failure>> + Send {
        self.verify()
    }
    /// Applies the plan file that this process has claimed.
    fn apply(
        &self,
        claim: Claim,
        notices: Notices,
    ) -> impl Future<Output = Result<ApplyReport, Failure>> + Send;
    /// Sends the one SIGINT to running tools. Starts no command any more.
    fn interrupt(&self);
    /// The controller has confirmed that an ended process of Pawl left this lock. Only such a lock may be released.
    fn may_unlock(&self, _id: &str, _holder: &str) {}
    fn kill_providers(&self);
    fn kill_tool(&self);
    /// Kills all other processes. Returns whether none is left.
    fn kill_others(&self) -> impl Future<Output = bool> + Send;
    /// The observed changes of the last apply, for an apply whose end was not seen.
    fn changed(&self) -> crds::Changed;
    /// Stores the result of a claimed run where it outlives the pod, if there is such a place. Returns whether it is stored.
    fn deliver(&self, message: TerminationMessage) -> impl Future<Output = bool> + Send;
    /// Whether hooks run at the end of an attempt with or without an apply.
    fn has_hooks_after(&self, _applied: bool) -> bool {
        false
    }
    /// Runs the hooks at the end of an attempt, even if commands were stopped before. `result` is the run's result, if any.
    /// Failures are reported as notices.
    fn hooks_after(
        &self,
        _applied: bool,
        _result: Option<RunResult>,
        _notices: Notices,
    ) -> impl Future<Output = ()> + Send {
        async {}
    }
    /// Publishes the outputs of a successful run if its spec requests it. Returns their status, or `None` if it does not.
    fn publish(&self, _claimed: bool) -> impl Future<Output = Option<OutputsStatus>> + Send {
        async { None }
    }
    fn redact(&self, text: &str) -> String;
    fn log(&self, line: &str) -> impl Future<Output = ()> + Send;
}

pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
}

/// A pod uses the API server's clock, since other pods and the controller read the times that it writes.
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
