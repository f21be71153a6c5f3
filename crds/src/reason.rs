//! Reasons: one word for each way a run fails, waits or is held up. Used in `status.failure`, conditions, Events and metrics.

macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $name:ident = $value:literal;)*) => {
        $($(#[doc = $doc])* pub const $name: &str = $value;)*
        /// All reasons.
        pub const ALL: &[&str] = &[$($value),*];
        /// All reasons, and what each means.
        pub const TEXTS: &[(&str, &str)] = &[$(($value, concat!($($doc),*))),*];
    };
}

reasons! {
    // Source.
    /// The repository could not be reached.
    SOURCE_UNREACHABLE = "SourceUnreachable";
    /// The repository wants other credentials.
    SOURCE_UNAUTHORIZED = "SourceUnauthorized";
    /// There is no such repository.
    REPOSITORY_NOT_FOUND = "RepositoryNotFound";
    /// There is no such branch, tag or commit.
    REVISION_NOT_FOUND = "RevisionNotFound";
    /// There is no such directory in the source.
    PATH_NOT_FOUND = "PathNotFound";
    /// The source holds something Pawl refuses, such as a path that leaves it.
    SOURCE_INVALID = "SourceInvalid";
    // Inputs.
    /// A Secret or a key of it is missing.
    SECRET_NOT_FOUND = "SecretNotFound";
    /// A ConfigMap or a key of it is missing.
    CONFIG_MAP_NOT_FOUND = "ConfigMapNotFound";
    /// The ServiceAccount that the run names for its pods is missing.
    SERVICE_ACCOUNT_NOT_FOUND = "ServiceAccountNotFound";
    /// A field of the spec makes no sense.
    INVALID_SPEC = "InvalidSpec";
    /// A variable of the stack has no value.
    VARIABLE_NOT_SET = "VariableNotSet";
    /// A variable has a value that the stack refuses, or the stack has no such variable.
    VARIABLE_INVALID = "VariableInvalid";
    // Tool.
    /// No version of the tool that satisfies the request is to be had.
    TOOL_NOT_FOUND = "ToolNotFound";
    /// No version satisfies all who ask for one: spec, version files and code.
    VERSION_CONTRADICTION = "VersionContradiction";
    /// The mirror of the tool does not answer, or another process takes too long to install it.
    TOOL_UNAVAILABLE = "ToolUnavailable";
    /// What the mirror or the cache gave is not what was published, or cannot be shown to be; nothing of it was run or kept.
    TOOL_NOT_GENUINE = "ToolNotGenuine";
    /// The configuration is wrong; the diagnostic names file and line.
    INVALID_CONFIGURATION = "InvalidConfiguration";
    /// `init` failed.
    INIT_FAILED = "InitFailed";
    /// `plan` failed.
    PLAN_FAILED = "PlanFailed";
    /// `apply` failed.
    APPLY_FAILED = "ApplyFailed";
    /// The plan cannot be read.
    PLAN_UNREADABLE = "PlanUnreadable";
    /// A provider, registry or service could not be reached.
    PROVIDER_UNREACHABLE = "ProviderUnreachable";
    /// A service asked for fewer requests.
    THROTTLED = "Throttled";
    /// A provider, backend or registry wants other credentials.
    UNAUTHORIZED = "Unauthorized";
    /// Something asked a question, and nobody is there to answer it.
    INPUT_REQUIRED = "InputRequired";
    /// The backend of the state could not be reached.
    BACKEND_UNREACHABLE = "BackendUnreachable";
    /// What the backend has is no state that can be read: it is damaged, or encrypted with a key that is not there.
    STATE_UNREADABLE = "StateUnreadable";
    /// The state was written by a newer version of the tool.
    STATE_TOO_NEW = "StateTooNew";
    /// Somebody holds the state's lock.
    STATE_LOCKED = "StateLocked";
    /// The state changed since the plan.
    STALE_PLAN = "StalePlan";
    /// The plan was made before the cluster or its datastore was restored, and may have been applied since.
    PLAN_BEFORE_RESTORE = "PlanBeforeRestore";
    /// The state would be lost with the pod.
    NO_DURABLE_STATE = "NoDurableState";
    /// The managed state belongs to a namespace of the same name that was deleted.
    STATE_OF_FORMER_NAMESPACE = "StateOfFormerNamespace";
    /// The tool could not save its state.
    STATE_NOT_SAVED = "StateNotSaved";
    /// A phase passed its deadline.
    DEADLINE_EXCEEDED = "DeadlineExceeded";
    /// A digest does not match.
    CHECKSUM_MISMATCH = "ChecksumMismatch";
    /// The tool was ended by a signal that was not ours, such as the kernel's for want of memory.
    TOOL_KILLED = "ToolKilled";
    // Datastore.
    /// The datastore does not answer.
    DATASTORE_UNAVAILABLE = "DatastoreUnavailable";
    /// The datastore refuses a request of this pod.
    DATASTORE_REFUSED = "DatastoreRefused";
    /// What the datastore keeps is not the plan that was left there.
    STORED_PLAN_CORRUPT = "StoredPlanCorrupt";
    /// The datastore does not have the plan.
    STORED_PLAN_MISSING = "StoredPlanMissing";
    /// The key that something was encrypted with is not there.
    KEY_MISSING = "KeyMissing";
    /// Another process has a record of the claim.
    ALREADY_CLAIMED = "AlreadyClaimed";
    // Pod.
    /// Code of the stack would not be confined on this node, and the operator wants it to be.
    NO_CONFINEMENT = "NoConfinement";
    /// The pod was told to end.
    TERMINATED = "Terminated";
    /// The pod ended without a word.
    POD_LOST = "PodLost";
    /// The pod was evicted.
    EVICTED = "Evicted";
    /// The container ran out of memory.
    OUT_OF_MEMORY = "OutOfMemory";
    /// The image cannot be pulled.
    IMAGE_NOT_AVAILABLE = "ImageNotAvailable";
    /// No node takes the pod.
    UNSCHEDULABLE = "Unschedulable";
    /// A quota is exceeded.
    QUOTA_EXCEEDED = "QuotaExceeded";
    /// The API server refuses the pod.
    POD_REJECTED = "PodRejected";
    /// The pod did not start in time, for a reason the kubelet does not name.
    POD_NOT_STARTED = "PodNotStarted";
    /// The pod is gone, and nobody confirmed its end.
    POD_GONE = "PodGone";
    /// The node of the pod is not Ready, and nobody hears of the pod.
    NODE_UNREACHABLE = "NodeUnreachable";
    /// An apply is not given up while the node of its pod is Ready.
    ABANDON_REFUSED = "AbandonRefused";
    /// The apply began and nobody can say how it ended.
    APPLY_UNCONFIRMED = "ApplyUnconfirmed";
    /// An apply was told to end.
    APPLY_INTERRUPTED = "ApplyInterrupted";
    /// A disk that the run needs is full.
    DISK_FULL = "DiskFull";
    /// A fault of the agent.
    AGENT_FAULT = "AgentFault";
    // Conditions and endings.
    /// The admission policies that guard approvals are not in force.
    POLICY_MISSING = "PolicyMissing";
    /// The run goes on.
    RUNNING = "Running";
    /// The run waits for a further attempt.
    RETRYING = "Retrying";
    /// A plan waits for an approval.
    WAITING = "WaitingForApproval";
    /// The approval names another plan.
    STALE_APPROVAL = "StaleApproval";
    /// A plan was made.
    PLANNED = "Planned";
    /// A person approved.
    APPROVED = "Approved";
    /// The run approves itself.
    AUTOMATIC = "Automatic";
    /// The approval was withdrawn.
    WITHDRAWN = "Withdrawn";
    /// It was set while the admission policies were not proven, and was taken away.
    VOID = "Void";
    /// Nothing needs an approval.
    NOT_NEEDED = "NotNeeded";
    /// The run holds the lease on its state.
    LEASED = "Leased";
    /// Another run applies to the same state; this one waits for its turn.
    QUEUED = "Queued";
    /// The controller may not take the lease on the state.
    LEASE_REFUSED = "LeaseRefused";
    /// The run was made again from one of an earlier life; it applies nothing by itself.
    MADE_AGAIN = "MadeAgain";
    /// What the other run created cannot be found out.
    JOURNAL_MISSING = "JournalMissing";
    /// A recovery run would create what may be there already, and nobody is asked.
    RECOVERY_UNCERTAIN = "RecoveryUncertain";
    /// A Secret or ConfigMap changed since the plan.
    INPUTS_CHANGED = "InputsChanged";
    /// The object that was to be created exists already.
    ALREADY_EXISTS = "AlreadyExists";
    /// Nothing is held up.
    PROGRESSING = "Progressing";
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_reason_is_one_word_and_stands_once() {
        for (i, reason) in super::ALL.iter().enumerate() {
            assert!(
                reason.starts_with(|c: char| c.is_ascii_uppercase()) && reason.chars().all(|c| c.is_ascii_alphabetic()),
                "{reason}"
            );
            assert!(!super::ALL[..i].contains(reason), "{reason} stands twice");
        }
    }
}
