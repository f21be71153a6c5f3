//! Reasons: one name for each way in which a run fails, waits or is delayed. Used in `status.failure`, conditions,
//! Events and metrics.
//!
//! One table holds for each reason its name, its class, its text, and the next step in a cluster and on a laptop.

pub mod next_step;

use std::fmt;

use next_step::Step::{self, Again, Code, First, Log, Never, Only, Variables, Versions};

use crate::{Changed, Failure, FailureClass, text::clip};

/// A row has the name of the constant and the reason. A reason with which runs fail also has a class and the next steps
/// in a cluster and on a laptop.
macro_rules! reasons {
    ($(#[doc = $text:literal] $word:ident $reason:ident $(: $class:ident, $cluster:expr, $laptop:expr)?;)*) => {
        /// One way in which a run fails, waits or is delayed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $(#[doc = $text] $reason,)*
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$reason),*];

            /// The name in the API; it never changes.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$reason => stringify!($reason),)*
                }
            }

            /// The text for people: one sentence.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$reason => $text.trim_ascii_start(),)*
                }
            }

            /// The default class of failures with this reason; `None` when no run fails with it.
            pub const fn class(self) -> Option<FailureClass> {
                match self {
                    $(Self::$reason => reasons!(@class $($class)?),)*
                }
            }

            /// The next step in a cluster, and the one on a laptop.
            const fn steps(self) -> (Step, Step) {
                match self {
                    $(Self::$reason => reasons!(@steps $($cluster, $laptop)?),)*
                }
            }
        }

        $(#[doc = $text] pub const $word: &str = Reason::$reason.as_str();)*

        /// The names of all reasons.
        pub const ALL: &[&str] = &[$($word),*];
    };
    (@class $class:ident) => { Some(FailureClass::$class) };
    (@class) => { None };
    (@steps $cluster:expr, $laptop:expr) => { ($cluster, $laptop) };
    (@steps) => { (Never, Never) };
}

impl Reason {
    /// The reason with this name; `None` for a name from a newer version.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|reason| reason.as_str() == word)
            .copied()
    }

    /// A failure with this reason that changed nothing. The message is clipped to its bound.
    pub fn failure(self, message: impl AsRef<str>) -> Failure {
        Failure {
            class: self.class().unwrap_or(FailureClass::Internal),
            reason: self.as_str().to_owned(),
            message: clip(message.as_ref(), 1024),
            changes: Changed::None,
            diagnostics: vec![],
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq<Reason> for String {
    fn eq(&self, reason: &Reason) -> bool {
        self == reason.as_str()
    }
}

reasons! {
    // Source.
    /// The repository, or the server of the artifact, could not be reached.
    SOURCE_UNREACHABLE SourceUnreachable: Transient,
        First("make sure that the cluster can reach the host that the message names"),
        First("make sure that the repository can be reached");
    /// The repository, or the artifact's server, rejects the credentials.
    SOURCE_UNAUTHORIZED SourceUnauthorized: Credentials,
        First("correct the Secret that spec.source names"),
        Only("clone the repository with your own credentials and run in the clone");
    /// The SSH host key of a git server is unknown, or differs from the known one.
    HOST_KEY_NOT_KNOWN HostKeyNotKnown: Integrity,
        First("compare the key that the message names with the one that the host's owner publishes, and put its line into known_hosts of \
            the Secret that spec.source.git or spec.credentials.git names for that host"),
        First("connect once with your own ssh, and compare the key that it shows with the one that the host's owner publishes");
    /// The repository does not exist.
    REPOSITORY_NOT_FOUND RepositoryNotFound: Configuration, SPEC, NAMED;
    /// The branch, tag or commit does not exist.
    REVISION_NOT_FOUND RevisionNotFound: Configuration, SPEC, NAMED;
    /// The directory does not exist in the source.
    PATH_NOT_FOUND PathNotFound: Configuration, SPEC, NAMED;
    /// The source contains something that Pawl rejects, such as a path that leads outside.
    SOURCE_INVALID SourceInvalid: Configuration, Code, Code;
    /// The artifact's URL does not exist.
    ARTIFACT_NOT_FOUND ArtifactNotFound: Configuration,
        Only("create a run with the url and the digest that the source has now (Flux keeps its last ones only)"),
        Never;
    /// The artifact's digest differs from the one in the run's spec; nothing was unpacked.
    ARTIFACT_MISMATCH ArtifactMismatch: Integrity,
        Only("find out who changed the content at the URL; then create a run with the digest of the intended content"),
        Never;
    /// The datastore does not have the revision of the `TerraformRepository` yet.
    SOURCE_NOT_READY SourceNotReady: Transient,
        First("see with `kubectl describe tfrepo.pawl.run/NAME` whether the repository can be fetched, and that spec.source.repository names a commit that it has"),
        Never;
    /// The `TerraformRepository` does not exist, or its `allowedNamespaces` lacks the namespace of the layer or run.
    REPOSITORY_NOT_ALLOWED RepositoryNotAllowed: Policy,
        First("have the repository's owner put the run's namespace into its spec.allowedNamespaces, or correct spec.source.repository in a new run"),
        Never;
    /// The content stored for the revision is not that revision; it was not used.
    SOURCE_CORRUPT SourceCorrupt: Integrity,
        Only("ask Pawl's operator who can write to the datastore's store; the snapshot of that revision has to be deleted there before it is \
            stored again"),
        Never;
    // Inputs.
    /// A Secret or a key in it is missing, or a credential in it is empty.
    SECRET_NOT_FOUND SecretNotFound: Configuration, First("create the Secrets, keys and ConfigMaps that the message names"),
        First(OF_OBJECT);
    /// An account lacks the permission to read a Secret.
    SECRET_FORBIDDEN SecretForbidden: Configuration,
        First("give the account that the message names the right to read the Secret"),
        Never;
    /// A ConfigMap or a key in it is missing.
    CONFIG_MAP_NOT_FOUND ConfigMapNotFound: Configuration, First("create the ConfigMap or key that the message names"), First(OF_OBJECT);
    /// The ServiceAccount that the run selects for its pods is missing.
    SERVICE_ACCOUNT_NOT_FOUND ServiceAccountNotFound: Configuration,
        First("create the ServiceAccount that the message names"),
        Never;
    /// The other stack in the namespace publishes no such output.
    OUTPUT_NOT_FOUND OutputNotFound: Configuration,
        First("have a run of that stack publish the output: spec.outputs with a ConfigMap or a Secret"),
        Never;
    /// A credential of the run has expired.
    CREDENTIALS_EXPIRED CredentialsExpired: Credentials,
        First("renew the credentials that the message names"),
        First("renew the credentials that the message names");
    /// A field of the spec is invalid.
    INVALID_SPEC InvalidSpec: Configuration, SPEC, NAMED;
    /// A variable of the stack has no value.
    VARIABLE_NOT_SET VariableNotSet: Configuration, Variables, Variables;
    /// The stack rejects the value of a variable, or has no such variable.
    VARIABLE_INVALID VariableInvalid: Configuration,
        Only("create a run with spec.variables as the message asks for them (a spec never changes)"),
        First("correct the value that the message names, where it is given: --var, --var-file, a .tfvars file or TF_VAR_…");
    // Hooks.
    /// A hook cannot be run as specified, or exports something that it must not.
    HOOK_INVALID HookInvalid: Configuration,
        First("correct the hook that the message names (an inline one in a new run)"),
        First("correct the hook that the message names");
    /// A hook failed.
    HOOK_FAILED HookFailed: Configuration,
        First("read the hook's output in the log, and correct its cause"),
        First("read the hook's output in the log, and correct its cause");
    // Tool.
    /// No available version of the tool satisfies the request.
    TOOL_NOT_FOUND ToolNotFound: Configuration,
        First("correct what the message names, or ask for a version that is there with spec.tool.version of a new run"),
        First("get it with `runner-agent tool install`, or name one that is there with --tool");
    /// No version satisfies all constraints of spec, version files and code.
    VERSION_CONTRADICTION VersionContradiction: Configuration,
        Versions,
        First("correct one of the places that the message names, or name a version that the code permits with --tool");
    /// The tool's mirror does not respond, or another process takes too long to install the tool.
    TOOL_UNAVAILABLE ToolUnavailable: Transient, MIRROR, MIRROR;
    /// The content of mirror or cache differs from the published one, or cannot be verified; it was neither run nor cached.
    TOOL_NOT_GENUINE ToolNotGenuine: Integrity, NOT_GENUINE, NOT_GENUINE;
    /// The configuration is invalid; the diagnostic gives file and line.
    INVALID_CONFIGURATION InvalidConfiguration: Configuration, Code, Code;
    /// `init` failed.
    INIT_FAILED InitFailed: Configuration, Code, Code;
    /// `plan` failed.
    PLAN_FAILED PlanFailed: Configuration, Code, Code;
    /// `apply` failed.
    APPLY_FAILED ApplyFailed: Configuration, Code, Code;
    /// The plan cannot be read.
    PLAN_UNREADABLE PlanUnreadable: Internal, Log, Log;
    /// The plan file, which an apply carries out, has another plan than the tool printed, or other code or state than before; nothing was applied.
    PLAN_CONTRADICTED PlanContradicted: Integrity, CONTRADICTED, CONTRADICTED;
    /// A provider, registry or service could not be reached.
    PROVIDER_UNREACHABLE ProviderUnreachable: Transient,
        First("make sure that the cluster can reach the host that the message names"),
        First("make sure that the host that the message names can be reached");
    /// A service asked for fewer requests.
    THROTTLED Throttled: Transient, THROTTLE, THROTTLE;
    /// A provider, backend or registry rejects the credentials.
    UNAUTHORIZED Unauthorized: Credentials,
        First("correct the credentials: the Secret that spec.env names, or the rights of the pod's account"),
        First("correct the credentials in the environment");
    /// A program asked for input. Runs are not interactive.
    INPUT_REQUIRED InputRequired: Configuration,
        Only("create a run with the answer in spec.variables or spec.env, or put it into the code"),
        First("put the answer into the environment or on the command line");
    /// The backend of the state could not be reached.
    BACKEND_UNREACHABLE BackendUnreachable: Transient,
        First("make sure that the cluster can reach the state's backend, which the message names"),
        First("make sure that the state's backend, which the message names, can be reached");
    /// The content of the backend is not a readable state: it is damaged, or encrypted with an unavailable key.
    STATE_UNREADABLE StateUnreadable: Integrity, RESTORE, RESTORE;
    /// The state was written by a newer version of the tool.
    STATE_TOO_NEW StateTooNew: Configuration,
        Only("create a run with a spec.tool.version that is not older than what the message names"),
        First("name a version that is not older than what the message names with --tool");
    /// Another client holds the state's lock.
    STATE_LOCKED StateLocked: StateLocked, LOCKED, LOCKED;
    /// The state lacks objects that the apply made: its place does not keep two clients apart, and another one wrote it meanwhile.
    STATE_OVERWRITTEN StateOverwritten: Integrity, COMPARE, COMPARE;
    /// The tool could not release the state's lock: its backend failed, or the lock was lost meanwhile. The place may not lock at all.
    LOCK_NOT_RELEASED LockNotReleased: Transient, COMPARE, COMPARE;
    /// The state changed since the plan.
    STALE_PLAN StalePlan: StalePlan, Again, Again;
    /// The plan was made before a restore of the cluster or its datastore, and may have been applied since.
    PLAN_BEFORE_RESTORE PlanBeforeRestore: StalePlan, Again, Never;
    /// The state would be lost with the pod.
    NO_DURABLE_STATE NoDurableState: Configuration,
        Only("create a run with spec.backend, or correct the code: a backend that outlives the pod or, where there is \
            a datastore, none at all"),
        First("add a backend to the code, or run in a clone of the repository");
    /// A destroy finds nothing, in another state than that of the stack's last apply or in an empty one. Nothing was destroyed.
    ANOTHER_STATE AnotherState: Configuration,
        First("name the backend and workspace of the last apply; if nothing of the stack is left, nothing has to be destroyed"),
        Never;
    /// The managed state belongs to a namespace of the same name that was deleted.
    STATE_OF_FORMER_NAMESPACE StateOfFormerNamespace: Policy,
        First("ask someone with the role pawl-state-admin to hand the state over"),
        Never;
    /// The tool could not save its state.
    STATE_NOT_SAVED StateNotSaved: Transient,
        First("push the state that the message names with `state push` of the tool"),
        First("push the state that the message names with `state push errored.tfstate` of the tool, and remove the file");
    /// A phase exceeded its deadline.
    DEADLINE_EXCEEDED DeadlineExceeded: Timeout,
        First("see in the log what took so long; a new run may have longer spec.timeouts"),
        First("see in the log what took so long");
    /// A digest does not match.
    CHECKSUM_MISMATCH ChecksumMismatch: Integrity, MISMATCH, MISMATCH;
    /// A signal that Pawl did not send ended the tool, for example the kernel's out-of-memory killer.
    TOOL_KILLED ToolKilled: Interrupted,
        First("see whether its node or its pod had too little memory"),
        First("see whether there was too little memory");
    // Datastore.
    /// The datastore does not respond.
    DATASTORE_UNAVAILABLE DatastoreUnavailable: Transient, First("make sure that the datastore runs and can be reached"), Never;
    /// The datastore rejects a request of this pod.
    DATASTORE_REFUSED DatastoreRefused: Internal, First("see in the log of the datastore why it refuses"), Never;
    /// The stored content is not the plan that the run stored.
    STORED_PLAN_CORRUPT StoredPlanCorrupt: Integrity, Again, Again;
    /// The datastore does not have the plan.
    STORED_PLAN_MISSING StoredPlanMissing: Integrity, Again, Again;
    /// The encryption key of a stored object is not available.
    KEY_MISSING KeyMissing: Integrity, First("put the key that the message names back into the datastore's Secret"), Never;
    /// Another process has recorded a claim.
    ALREADY_CLAIMED AlreadyClaimed: Integrity, First("see what the other process applied"), Never;
    // Pod.
    /// This node cannot confine code of the stack, and the operator requires it.
    NO_CONFINEMENT NoConfinement: Policy,
        First("give it nodes with Landlock (Linux 5.19 or later, landlock in /sys/kernel/security/lsm), or set the \
            chart's runner.requireConfinement to false"),
        Never;
    /// The pod was asked to terminate.
    TERMINATED Terminated: Interrupted, Again, Again;
    /// The pod ended without reporting a result.
    POD_LOST PodLost: Interrupted, Again, Never;
    /// The pod was evicted.
    EVICTED Evicted: Interrupted, Again, Never;
    /// The container ran out of memory.
    OUT_OF_MEMORY OutOfMemory: Interrupted, Only("create a run with more memory in spec.runner.resources"), Never;
    /// The image cannot be pulled.
    IMAGE_NOT_AVAILABLE ImageNotAvailable: Configuration,
        First("make sure that the node can pull the image that the message names"),
        Never;
    /// The agent in the image has another minor release than the controller; nothing was started.
    IMAGE_VERSION ImageVersion: Configuration,
        Only("create a run without spec.runner.image, or with an image of the controller's minor release; it plans anew"),
        Never;
    /// No node accepts the pod.
    UNSCHEDULABLE Unschedulable: Timeout, First("see in the message why no node takes the pod"), Never;
    /// The run's namespace is being deleted, so nothing can be created in it.
    NAMESPACE_TERMINATING NamespaceTerminating: Configuration,
        Only("create the run in a namespace that is not being deleted"),
        Never;
    /// A quota is exceeded.
    QUOTA_EXCEEDED QuotaExceeded: Timeout, First("make room in the quota that the message names"), Never;
    /// The API server rejects the pod.
    POD_REJECTED PodRejected: Timeout, First("correct what the message names"), Never;
    /// The pod did not start in time, and the kubelet reports no reason.
    POD_NOT_STARTED PodNotStarted: Timeout, First("see the events of the pod"), Never;
    /// The pod is gone, and its end was not confirmed.
    POD_GONE PodGone: Interrupted, Again, Never;
    /// The pod's node is not Ready, and the pod does not report.
    NODE_UNREACHABLE NodeUnreachable: Interrupted, Again, Never;
    /// An apply cannot be abandoned while its pod's node is Ready.
    ABANDON_REFUSED AbandonRefused;
    /// The apply started, and its outcome is unknown.
    APPLY_UNCONFIRMED ApplyUnconfirmed: Interrupted, Again, First("make sure that the tool no longer runs and holds no lock");
    /// An apply was asked to terminate.
    APPLY_INTERRUPTED ApplyInterrupted: Interrupted, INTERRUPTED, INTERRUPTED;
    /// A disk that the run needs is full.
    DISK_FULL DiskFull: Transient,
        First("enlarge or empty the disk that the message names"),
        First("enlarge or empty the disk that the message names");
    /// A fault of the agent.
    AGENT_FAULT AgentFault: Internal, Log, Log;
    // Conditions and endings.
    /// The admission policies that guard approvals are not enforced.
    POLICY_MISSING PolicyMissing;
    /// The run is in progress.
    RUNNING Running;
    /// The run waits for another attempt.
    RETRYING Retrying;
    /// A plan waits for an approval.
    WAITING WaitingForApproval;
    /// The approval is for another plan.
    STALE_APPROVAL StaleApproval;
    /// A plan was made.
    PLANNED Planned;
    /// A person approved.
    APPROVED Approved;
    /// The run approves itself.
    AUTOMATIC Automatic;
    /// The approval was withdrawn.
    WITHDRAWN Withdrawn;
    /// The policies were not enforced when the approval was set, so its author is unverified. It was removed, or waits for confirmation.
    UNVERIFIED Unverified;
    /// No approval is needed.
    NOT_NEEDED NotNeeded;
    /// The run holds the lease on its state.
    LEASED Leased;
    /// Another run applies to the same state; this one waits.
    QUEUED Queued;
    /// All slots for attempts are in use; the run waits for one.
    SLOTS_FULL SlotsFull;
    /// The namespace, or the whole release, is frozen: nothing starts.
    FROZEN Frozen;
    /// The controller lacks the permission to take the lease on the state.
    LEASE_REFUSED LeaseRefused;
    /// The run was recreated, for example from a backup; it applies nothing by itself.
    MADE_AGAIN MadeAgain;
    /// The objects that the other run created cannot be determined.
    JOURNAL_MISSING JournalMissing: Configuration,
        Only("import by hand what the other run created, then create a run without spec.recover"),
        Never;
    /// A recovery run would create objects that may exist already, and its approval is automatic.
    RECOVERY_UNCERTAIN RecoveryUncertain: Policy, Only("create the recovery run with approval.mode Manual"), Never;
    /// A Secret, a ConfigMap, an output of another stack or an input by Terragrunt changed since the plan, or the plan has mocks.
    INPUTS_CHANGED InputsChanged: StalePlan, Again, Again;
    /// The object to create exists already.
    ALREADY_EXISTS AlreadyExists: Configuration, ADOPT, ADOPT;
    /// Outputs are published as specified in `spec.outputs`.
    PUBLISHED Published;
    /// Outputs are not published; the message gives the reason.
    NOT_PUBLISHED NotPublished;
    /// An object for outputs does not belong to Pawl, or has another stack's outputs; it was not changed.
    FOREIGN_OBJECT ForeignObject;
    /// Nothing delays the run.
    PROGRESSING Progressing;
    /// Every ref that a layer uses is resolved.
    REFS_KNOWN RefsKnown;
    /// The repository responded.
    ANSWERED Answered;
    // Layers.
    /// The newest relevant commit seen so far is applied.
    UP_TO_DATE UpToDate;
    /// A commit, or changed settings, are not planned yet.
    PLAN_NEEDED PlanNeeded;
    /// There is no plan yet.
    NO_PLAN NoPlan;
    /// The last plan is newer than the drift interval.
    PLAN_IS_RECENT PlanIsRecent;
    /// A plan to detect drift is due.
    PLAN_IS_TOO_OLD PlanIsTooOld;
    /// Drift detection is suspended, so no plan is too old.
    DRIFT_SUSPENDED DriftSuspended;
    /// The newest relevant commit and the current settings are planned.
    COMMIT_PLANNED CommitPlanned;
    /// The last plan has changes that are not applied.
    NOT_APPLIED NotApplied;
    /// The infrastructure differs from the code, although the code was applied.
    DRIFT_FOUND DriftFound;
    /// Suspended by `spec.suspend` or a layer's annotation `pawl.run/suspend`.
    SUSPENDED Suspended;
    /// The layer's run failed, and no further run is created automatically.
    RUN_FAILED RunFailed;
    /// The API server rejects the layer's run.
    RUN_REFUSED RunRefused;
    /// An older layer has the same state.
    STATE_OWNED StateOwned;
    /// The new path or repository would leave the layer's managed state behind and start with an empty one.
    STATE_MOVED StateMoved;
    /// The settings of the layer's runs are invalid.
    TEMPLATE_INVALID TemplateInvalid;
    /// The schedule for drift detection cannot be parsed.
    SCHEDULE_INVALID ScheduleInvalid;
    /// The layer's revision in the repository is not determined yet.
    NO_REVISION NoRevision;
    /// The layer's destroy needs no approval, so the deletion of its owner does not delete it.
    OWNER_MAY_NOT_DELETE OwnerMayNotDelete;
    /// The layer is being deleted, and its resources are being destroyed.
    DESTROYING Destroying;
}

const SPEC: Step = Only("create a run with a corrected spec (a spec never changes)");
const NAMED: Step = First("correct what the message names");
/// On a laptop a file takes the place of an object's key.
const OF_OBJECT: &str = "write the file that the message names";
const MIRROR: Step = First("make sure that the mirror of the tool answers");
const NOT_GENUINE: Step =
    First("find out who changed the mirror or the cache that the message names");
const THROTTLE: Step = First("wait until the service takes requests again");
const RESTORE: Step =
    First("restore an earlier version of the state, or give the key that it is encrypted with");
const LOCKED: Step = First("when the lock's owner has ended");
const COMPARE: Step = First("compare the state with what exists");
const CONTRADICTED: Step = First(
    "find out which provider or program of the code changes the tool's output or its plan file",
);
const MISMATCH: Step = First("find out what changed the files that the message names");
const INTERRUPTED: Step =
    First("see in the message and the log what was applied before it was asked to stop");
const ADOPT: Step = First("add the import block of the message to the code, or remove the object");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_one_word_and_unique() {
        for (i, reason) in Reason::ALL.iter().enumerate() {
            let word = reason.as_str();
            assert!(
                word.starts_with(|c: char| c.is_ascii_uppercase())
                    && word.chars().all(|c| c.is_ascii_alphabetic()),
                "{word}"
            );
            assert!(!Reason::ALL[..i].contains(reason), "{word} stands twice");
            assert_eq!((Reason::parse(word), ALL[i]), (Some(*reason), word));
            assert!(
                reason.text().ends_with('.') && !reason.text().starts_with(' '),
                "{word}: {}",
                reason.text()
            );
        }
        assert_eq!(Reason::parse("OfALaterVersion"), None);
    }

    /// Exactly the reasons with which runs fail have a class and a step.
    #[test]
    fn failure_reasons_have_a_class_and_a_next_step() {
        for reason in Reason::ALL {
            assert_eq!(
                reason.class().is_some(),
                reason.steps().0 != Never,
                "{reason}"
            );
        }
    }

    #[test]
    fn published_reasons_do_not_change() {
        assert_eq!(
            (WAITING, STATE_LOCKED, Reason::Unverified.as_str()),
            ("WaitingForApproval", "StateLocked", "Unverified")
        );
    }
}
