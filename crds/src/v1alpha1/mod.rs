//! `pawl.run/v1alpha1`.
//!
//! Fields are only ever added to this version; a reader that meets an unknown value waits, it does not guess.

mod inputs;
mod phase;
mod policy;
mod run;
mod runner;
mod source;
mod status;
mod values;

pub use inputs::{Arguments, EnvConfigMap, EnvFrom, FilePlace, InputFile, VariableFile};
pub use phase::{Phase, RunResult};
pub use policy::{Approval, ApprovalMode, Retry, Timeouts};
pub use run::{Operation, Recover, TerraformRun, TerraformRunSpec, Tool, ToolName};
pub use runner::{Runner, RunnerSecretName};
pub use source::{GitSource, InlineSource, Source};
pub use status::{
    Adopted, ApprovalRecord, Attempt, Changed, Changes, Claim, Diagnostic, Failure, FailureClass, Journal, LockRelease,
    PlanStatus, Progress, Settled, StateLease, StateLock, Step, TerraformRunStatus, whole_seconds,
};
pub use values::{Backend, EnvVar, KeyRef, SecretName, ValueFrom, Variable};
