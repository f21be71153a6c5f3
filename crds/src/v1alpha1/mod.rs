//! `pawl.run/v1alpha1`.
//!
//! This version only ever gains fields. A reader that meets an unknown value waits instead of guessing.

mod approval;
mod attempt;
mod credentials;
mod failure;
mod hooks;
mod identity;
mod inputs;
mod layer;
mod layer_status;
mod outputs;
mod phase;
mod plan;
mod repository;
mod run;
mod runner;
mod source;
mod status;
mod template;
mod texts;
mod values;

pub use approval::{Approval, ApprovalMode, AutomaticWhen, Retry, Timeouts};
pub use attempt::{Adopted, Attempt, Claim, FormerAttempt, Settled};
pub use credentials::{CliConfig, Credentials, GitCredential, RegistryCredential};
pub use failure::{Changed, Diagnostic, Failure, FailureClass};
pub use hooks::{FailedHook, Hook, HookWhen, OnFailure};
pub use identity::{AwsIdentity, AzureIdentity, GcpIdentity, IdentityToken, VaultIdentity};
pub use inputs::{Arguments, EnvConfigMap, EnvFrom, FilePlace, InputFile, VariableFile};
pub use layer::{
    DeletionPolicy, DriftDetection, Remediation, RemediationStrategy, RepositoryRef,
    TerraformLayer, TerraformLayerSpec,
};
pub use layer_status::{
    Drift, LayerFailures, LayerRun, LayerSource, LayerState, Pending, TerraformLayerStatus, Trigger,
};
pub use outputs::{OnDestroy, OutputItem, OutputRef, Outputs, OutputsObject, OutputsStatus};
pub use phase::{Phase, RunResult};
pub use plan::{Changes, PlanStatus, changes_digest};
pub use repository::{
    Commit, RefFailure, RefStatus, TerraformRepository, TerraformRepositorySpec,
    TerraformRepositoryStatus, Webhook,
};
pub use run::{Operation, Recover, TerraformRun, TerraformRunSpec, Tool, ToolName};
pub use runner::{Runner, RunnerSecretName};
pub use source::{
    ArtifactSource, GitSource, InlineSource, KeyPath, ObjectSource, RepositorySource, Source,
    SourceKind,
};
pub use status::{
    ApprovalRecord, Journal, LockRelease, Progress, StateLease, StateLock, Step,
    TerraformRunStatus, whole_seconds,
};
pub use template::RunTemplate;
pub use values::{Backend, EnvVar, KeyRef, SecretName, ValueFrom, Variable};
