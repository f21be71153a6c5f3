//! Reasons: one word for each way a run fails, waits or is held up. Used in `status.failure`, conditions, Events and metrics.
//!
//! One table has of each its word, its class, what it says to people, and what they do next in a cluster and on a laptop.

pub mod next_step;

use std::fmt;

use next_step::Step::{self, Again, Code, First, Log, Never, Only, Variables, Versions};

use crate::{Changed, Failure, FailureClass, text::clip};

/// A row is the name of the word's constant, the reason, and of one that a run fails with its class and its next step in a cluster and
/// on a laptop.
macro_rules! reasons {
    ($(#[doc = $text:literal] $word:ident $reason:ident $(: $class:ident, $cluster:expr, $laptop:expr)?;)*) => {
        /// One way in which a run fails, waits or is held up.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $(#[doc = $text] $reason,)*
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$reason),*];

            /// The word that is written; it never changes.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$reason => stringify!($reason),)*
                }
            }

            /// What it says to people: a sentence.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$reason => $text.trim_ascii_start(),)*
                }
            }

            /// The class of a failure of this reason, where its maker does not know better; `None` for one that no run fails with.
            pub const fn class(self) -> Option<FailureClass> {
                match self {
                    $(Self::$reason => reasons!(@class $($class)?),)*
                }
            }

            /// The next step in a cluster, and on a laptop.
            const fn steps(self) -> (Step, Step) {
                match self {
                    $(Self::$reason => reasons!(@steps $($cluster, $laptop)?),)*
                }
            }
        }

        $(#[doc = $text] pub const $word: &str = Reason::$reason.as_str();)*

        /// The words of all reasons.
        pub const ALL: &[&str] = &[$($word),*];
    };
    (@class $class:ident) => { Some(FailureClass::$class) };
    (@class) => { None };
    (@steps $cluster:expr, $laptop:expr) => { ($cluster, $laptop) };
    (@steps) => { (Never, Never) };
}

impl Reason {
    /// The reason of a word; `None` for one of a newer version.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|reason| reason.as_str() == word).copied()
    }

    /// A failure for this reason that changed nothing, with a message that is cut to its bound.
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
        First("see that the cluster can reach the host that the message names"),
        First("see that the repository can be reached");
    /// The repository, or the server of the artifact, wants other credentials.
    SOURCE_UNAUTHORIZED SourceUnauthorized: Credentials,
        First("correct the Secret that spec.source names"),
        Only("clone the repository with your own credentials and run in the clone");
    /// A host of git by ssh showed a key that is not the one that is known of it, or none is known.
    HOST_KEY_NOT_KNOWN HostKeyNotKnown: Integrity,
        First("compare the key that the message names with the one that the host's owner publishes, and put its line into known_hosts of \
            the Secret that spec.source.git or spec.credentials.git names for that host"),
        First("connect once with your own ssh, and compare the key that it shows with the one that the host's owner publishes");
    /// There is no such repository.
    REPOSITORY_NOT_FOUND RepositoryNotFound: Configuration, SPEC, NAMED;
    /// There is no such branch, tag or commit.
    REVISION_NOT_FOUND RevisionNotFound: Configuration, SPEC, NAMED;
    /// There is no such directory in the source.
    PATH_NOT_FOUND PathNotFound: Configuration, SPEC, NAMED;
    /// The source holds something Pawl refuses, such as a path that leaves it.
    SOURCE_INVALID SourceInvalid: Configuration, Code, Code;
    /// There is no artifact at its URL.
    ARTIFACT_NOT_FOUND ArtifactNotFound: Configuration,
        Only("create a run with the url and the digest that the source has now (Flux keeps its last ones only)"),
        Never;
    /// The artifact has another digest than the run names; nothing of it was unpacked.
    ARTIFACT_MISMATCH ArtifactMismatch: Integrity,
        Only("see who changed what is at the URL; then create a run with the digest of what you mean"),
        Never;
    /// The revision of the `TerraformRepository` is not with the datastore yet.
    SOURCE_NOT_READY SourceNotReady: Transient,
        First("see with `kubectl describe tfrepo.pawl.run/NAME` whether the repository can be fetched, and that spec.source.repository names a commit that it has"),
        Never;
    /// The `TerraformRepository` does not name the namespace of the layer or run in `allowedNamespaces`, or there is none.
    REPOSITORY_NOT_ALLOWED RepositoryNotAllowed: Policy,
        First("have the repository's owner put the run's namespace into its spec.allowedNamespaces, or correct spec.source.repository in a new run"),
        Never;
    /// What the datastore has as a revision of the repository is not that revision; nothing of it was used.
    SOURCE_CORRUPT SourceCorrupt: Integrity,
        Only("have whoever runs Pawl see who can write to the datastore's store; the bundle of that revision has to be deleted there before it is \
            stored again"),
        Never;
    // Inputs.
    /// A Secret or a key of it is missing, or a credential in it is empty.
    SECRET_NOT_FOUND SecretNotFound: Configuration, First("create the Secrets, keys and ConfigMaps that the message names"),
        First(OF_OBJECT);
    /// A Secret may not be read by whoever has to.
    SECRET_FORBIDDEN SecretForbidden: Configuration,
        First("let the account that the message names read the Secret, as the message says"),
        Never;
    /// A ConfigMap or a key of it is missing.
    CONFIG_MAP_NOT_FOUND ConfigMapNotFound: Configuration, First("create the ConfigMap or key that the message names"), First(OF_OBJECT);
    /// The ServiceAccount that the run names for its pods is missing.
    SERVICE_ACCOUNT_NOT_FOUND ServiceAccountNotFound: Configuration,
        First("create the ServiceAccount that the message names"),
        Never;
    /// The other stack of the namespace publishes no such output.
    OUTPUT_NOT_FOUND OutputNotFound: Configuration,
        First("have a run of that stack publish the output: spec.outputs with a ConfigMap or a Secret"),
        Never;
    /// A credential of the run is past the time until which it is good.
    CREDENTIALS_EXPIRED CredentialsExpired: Credentials,
        First("renew the credentials that the message names"),
        First("renew the credentials that the message names");
    /// A field of the spec makes no sense.
    INVALID_SPEC InvalidSpec: Configuration, SPEC, NAMED;
    /// A variable of the stack has no value.
    VARIABLE_NOT_SET VariableNotSet: Configuration, Variables, Variables;
    /// A variable has a value that the stack refuses, or the stack has no such variable.
    VARIABLE_INVALID VariableInvalid: Configuration,
        Only("create a run with spec.variables as the message asks for them (a spec never changes)"),
        First("correct the value that the message names, where it is given: --var, --var-file, a .tfvars file or TF_VAR_…");
    // Hooks.
    /// A hook cannot be run as it is, or hands over what it may not.
    HOOK_INVALID HookInvalid: Configuration,
        First("correct the hook that the message names (an inline one in a new run)"),
        First("correct the hook that the message names");
    /// A hook failed.
    HOOK_FAILED HookFailed: Configuration,
        First("see in the log what the hook printed, and correct what it says"),
        First("see in the log what the hook printed, and correct what it says");
    // Tool.
    /// No version of the tool that satisfies the request is to be had.
    TOOL_NOT_FOUND ToolNotFound: Configuration,
        First("correct what the message names, or ask for a version that is there with spec.tool.version of a new run"),
        First("get it with `runner-agent tool install`, or name one that is there with --tool");
    /// No version satisfies all who ask for one: spec, version files and code.
    VERSION_CONTRADICTION VersionContradiction: Configuration,
        Versions,
        First("correct one of the places that the message names, or name a version that the code permits with --tool");
    /// The mirror of the tool does not answer, or another process takes too long to install it.
    TOOL_UNAVAILABLE ToolUnavailable: Transient, MIRROR, MIRROR;
    /// What the mirror or the cache gave is not what was published, or cannot be shown to be; nothing of it was run or kept.
    TOOL_NOT_GENUINE ToolNotGenuine: Integrity, NOT_GENUINE, NOT_GENUINE;
    /// The configuration is wrong; the diagnostic names file and line.
    INVALID_CONFIGURATION InvalidConfiguration: Configuration, Code, Code;
    /// `init` failed.
    INIT_FAILED InitFailed: Configuration, Code, Code;
    /// `plan` failed.
    PLAN_FAILED PlanFailed: Configuration, Code, Code;
    /// `apply` failed.
    APPLY_FAILED ApplyFailed: Configuration, Code, Code;
    /// The plan cannot be read.
    PLAN_UNREADABLE PlanUnreadable: Internal, Log, Log;
    /// A provider, registry or service could not be reached.
    PROVIDER_UNREACHABLE ProviderUnreachable: Transient,
        First("see that the cluster can reach the host that the message names"),
        First("see that the host that the message names can be reached");
    /// A service asked for fewer requests.
    THROTTLED Throttled: Transient, THROTTLE, THROTTLE;
    /// A provider, backend or registry wants other credentials.
    UNAUTHORIZED Unauthorized: Credentials,
        First("correct the credentials: the Secret that spec.env names, or the rights of the pod's account"),
        First("correct the credentials in the environment");
    /// Something asked a question, and nobody is there to answer it.
    INPUT_REQUIRED InputRequired: Configuration,
        Only("create a run with the answer in spec.variables or spec.env, or put it into the code"),
        First("put the answer into the environment or on the command line");
    /// The backend of the state could not be reached.
    BACKEND_UNREACHABLE BackendUnreachable: Transient,
        First("see that the cluster can reach the state's backend, which the message names"),
        First("see that the state's backend, which the message names, can be reached");
    /// What the backend has is no state that can be read: it is damaged, or encrypted with a key that is not there.
    STATE_UNREADABLE StateUnreadable: Integrity, RESTORE, RESTORE;
    /// The state was written by a newer version of the tool.
    STATE_TOO_NEW StateTooNew: Configuration,
        Only("create a run with a spec.tool.version that is not older than what the message names"),
        First("name a version that is not older than what the message names with --tool");
    /// Somebody holds the state's lock.
    STATE_LOCKED StateLocked: StateLocked, LOCKED, LOCKED;
    /// The state changed since the plan.
    STALE_PLAN StalePlan: StalePlan, Again, Again;
    /// The plan was made before the cluster or its datastore was restored, and may have been applied since.
    PLAN_BEFORE_RESTORE PlanBeforeRestore: StalePlan, Again, Never;
    /// The state would be lost with the pod.
    NO_DURABLE_STATE NoDurableState: Configuration,
        Only("create a run with spec.backend, or correct the code: a backend that outlives the pod or, where there is \
            a datastore, none at all"),
        First("add a backend to the code, or run in a clone of the repository");
    /// The managed state belongs to a namespace of the same name that was deleted.
    STATE_OF_FORMER_NAMESPACE StateOfFormerNamespace: Policy,
        First("have whoever has the role pawl-state-admin hand the state over"),
        Never;
    /// The tool could not save its state.
    STATE_NOT_SAVED StateNotSaved: Transient, COMPARE, COMPARE;
    /// A phase passed its deadline.
    DEADLINE_EXCEEDED DeadlineExceeded: Timeout,
        First("see in the log what took so long; a new run may have longer spec.timeouts"),
        First("see in the log what took so long");
    /// A digest does not match.
    CHECKSUM_MISMATCH ChecksumMismatch: Integrity, MISMATCH, MISMATCH;
    /// The tool was ended by a signal that was not ours, such as the kernel's for want of memory.
    TOOL_KILLED ToolKilled: Interrupted,
        First("see whether its node or its pod had too little memory"),
        First("see whether there was too little memory");
    // Datastore.
    /// The datastore does not answer.
    DATASTORE_UNAVAILABLE DatastoreUnavailable: Transient, First("see that the datastore runs and can be reached"), Never;
    /// The datastore refuses a request of this pod.
    DATASTORE_REFUSED DatastoreRefused: Internal, First("see in the log of the datastore why it refuses"), Never;
    /// What the datastore keeps is not the plan that was left there.
    STORED_PLAN_CORRUPT StoredPlanCorrupt: Integrity, Again, Again;
    /// The datastore does not have the plan.
    STORED_PLAN_MISSING StoredPlanMissing: Integrity, Again, Again;
    /// The key that something was encrypted with is not there.
    KEY_MISSING KeyMissing: Integrity, First("put the key that the message names back into the datastore's Secret"), Never;
    /// Another process has a record of the claim.
    ALREADY_CLAIMED AlreadyClaimed: Integrity, First("see what the other process applied"), Never;
    // Pod.
    /// Code of the stack would not be confined on this node, and the operator wants it to be.
    NO_CONFINEMENT NoConfinement: Policy,
        First("give it nodes with Landlock (Linux 5.19 or later, landlock in /sys/kernel/security/lsm), or set the \
            chart's runner.requireConfinement to false"),
        Never;
    /// The pod was told to end.
    TERMINATED Terminated: Interrupted, Again, Again;
    /// The pod ended without a word.
    POD_LOST PodLost: Interrupted, Again, Never;
    /// The pod was evicted.
    EVICTED Evicted: Interrupted, Again, Never;
    /// The container ran out of memory.
    OUT_OF_MEMORY OutOfMemory: Interrupted, Only("create a run with more memory in spec.runner.resources"), Never;
    /// The image cannot be pulled.
    IMAGE_NOT_AVAILABLE ImageNotAvailable: Configuration,
        First("see that the node can pull the image that the message names"),
        Never;
    /// The agent of the image is of another minor release than the controller; nothing was begun.
    IMAGE_VERSION ImageVersion: Configuration,
        Only("create a run without spec.runner.image, or with an image of the controller's minor release; it plans anew"),
        Never;
    /// No node takes the pod.
    UNSCHEDULABLE Unschedulable: Timeout, First("see why no node takes the pod: the message says it"), Never;
    /// The run's namespace is being deleted, so that nothing can be created in it.
    NAMESPACE_TERMINATING NamespaceTerminating: Configuration,
        Only("create the run in a namespace that is not being deleted"),
        Never;
    /// A quota is exceeded.
    QUOTA_EXCEEDED QuotaExceeded: Timeout, First("make room in the quota that the message names"), Never;
    /// The API server refuses the pod.
    POD_REJECTED PodRejected: Timeout, First("correct what the message names"), Never;
    /// The pod did not start in time, for a reason the kubelet does not name.
    POD_NOT_STARTED PodNotStarted: Timeout, First("see the events of the pod"), Never;
    /// The pod is gone, and nobody confirmed its end.
    POD_GONE PodGone: Interrupted, Again, Never;
    /// The node of the pod is not Ready, and nobody hears of the pod.
    NODE_UNREACHABLE NodeUnreachable: Interrupted, Again, Never;
    /// An apply is not given up while the node of its pod is Ready.
    ABANDON_REFUSED AbandonRefused;
    /// The apply began and nobody can say how it ended.
    APPLY_UNCONFIRMED ApplyUnconfirmed: Interrupted, Again, First("see that the tool no longer runs, and holds no lock");
    /// An apply was told to end.
    APPLY_INTERRUPTED ApplyInterrupted: Interrupted, INTERRUPTED, INTERRUPTED;
    /// A disk that the run needs is full.
    DISK_FULL DiskFull: Transient,
        First("see to the disk that the message names"),
        First("see to the disk that the message names");
    /// A fault of the agent.
    AGENT_FAULT AgentFault: Internal, Log, Log;
    // Conditions and endings.
    /// The admission policies that guard approvals are not in force.
    POLICY_MISSING PolicyMissing;
    /// The run goes on.
    RUNNING Running;
    /// The run waits for a further attempt.
    RETRYING Retrying;
    /// A plan waits for an approval.
    WAITING WaitingForApproval;
    /// The approval names another plan.
    STALE_APPROVAL StaleApproval;
    /// A plan was made.
    PLANNED Planned;
    /// A person approved.
    APPROVED Approved;
    /// The run approves itself.
    AUTOMATIC Automatic;
    /// The approval was withdrawn.
    WITHDRAWN Withdrawn;
    /// The admission policies were not enforced when it was set, so its author is unverified. It was removed, or waits to be confirmed.
    UNVERIFIED Unverified;
    /// Nothing needs an approval.
    NOT_NEEDED NotNeeded;
    /// The run holds the lease on its state.
    LEASED Leased;
    /// Another run applies to the same state; this one waits for its turn.
    QUEUED Queued;
    /// As many attempts are open as may be; the run waits for its turn.
    SLOTS_FULL SlotsFull;
    /// The namespace, or the whole release, is frozen: nothing new begins.
    FROZEN Frozen;
    /// The controller may not take the lease on the state.
    LEASE_REFUSED LeaseRefused;
    /// The run was made again from one of an earlier life; it applies nothing by itself.
    MADE_AGAIN MadeAgain;
    /// What the other run created cannot be found out.
    JOURNAL_MISSING JournalMissing: Configuration,
        Only("import by hand what the other run created, then create a run without spec.recover"),
        Never;
    /// A recovery run would create what may be there already, and nobody is asked.
    RECOVERY_UNCERTAIN RecoveryUncertain: Policy, Only("create the recovery run with approval.mode Manual"), Never;
    /// A Secret, a ConfigMap or an output of another stack changed since the plan.
    INPUTS_CHANGED InputsChanged: StalePlan, Again, Never;
    /// The object that was to be created exists already.
    ALREADY_EXISTS AlreadyExists: Configuration, ADOPT, ADOPT;
    /// Outputs are published as `spec.outputs` says.
    PUBLISHED Published;
    /// Outputs are not published, for a reason that the message names.
    NOT_PUBLISHED NotPublished;
    /// An object that outputs were to be published to is not Pawl's, or holds those of another stack; it was left as it is.
    FOREIGN_OBJECT ForeignObject;
    /// Nothing is held up.
    PROGRESSING Progressing;
    /// Every ref that a layer names is known.
    REFS_KNOWN RefsKnown;
    /// The repository answered.
    ANSWERED Answered;
    // Layers.
    /// The layer's newest relevant commit is applied, as far as anybody looked.
    UP_TO_DATE UpToDate;
    /// A commit, or other settings, are not planned yet.
    PLAN_NEEDED PlanNeeded;
    /// There is no plan yet.
    NO_PLAN NoPlan;
    /// The last plan is younger than the interval at which drift is looked for.
    PLAN_IS_RECENT PlanIsRecent;
    /// It is time to look for drift.
    PLAN_IS_TOO_OLD PlanIsTooOld;
    /// Drift is not looked for, so that no plan is too old.
    DRIFT_SUSPENDED DriftSuspended;
    /// The newest relevant commit, and the settings as they are, are planned.
    COMMIT_PLANNED CommitPlanned;
    /// The last plan has changes that nobody applied.
    NOT_APPLIED NotApplied;
    /// What exists is not what the code says, though the code was applied.
    DRIFT_FOUND DriftFound;
    /// It does nothing: `spec.suspend`, or a layer's annotation `pawl.run/suspend`.
    SUSPENDED Suspended;
    /// The layer's run failed, and none is made by itself.
    RUN_FAILED RunFailed;
    /// The API server refuses the layer's run.
    RUN_REFUSED RunRefused;
    /// Another layer, which is older, has the same state.
    STATE_OWNED StateOwned;
    /// With its path or repository the layer would leave its managed state behind for an empty one.
    STATE_MOVED StateMoved;
    /// The settings of the layer's runs make no sense.
    TEMPLATE_INVALID TemplateInvalid;
    /// The times at which drift is to be looked for cannot be read.
    SCHEDULE_INVALID ScheduleInvalid;
    /// Nobody has looked yet what the repository has for the layer.
    NO_REVISION NoRevision;
    /// The layer is deleted, and what it made is destroyed.
    DESTROYING Destroying;
}

const SPEC: Step = Only("create a run with a corrected spec (a spec never changes)");
const NAMED: Step = First("correct what the message names");
/// A person has a file where a cluster has a key of an object.
const OF_OBJECT: &str = "write the file that the message names";
const MIRROR: Step = First("see that the mirror of the tool answers");
const NOT_GENUINE: Step = First("see who changed the mirror or the cache that the message names");
const THROTTLE: Step = First("wait until the service takes requests again");
const RESTORE: Step = First("restore an earlier version of the state, or give the key that it is encrypted with");
const LOCKED: Step = First("when the lock's owner has ended");
const COMPARE: Step = First("compare the state with what exists");
const MISMATCH: Step = First("see what changed what the message names");
const INTERRUPTED: Step = First("see in the message and the log what was applied before it was told to end");
const ADOPT: Step = First("add the import block of the message to the code, or remove the object");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_one_word_and_stands_once() {
        for (i, reason) in Reason::ALL.iter().enumerate() {
            let word = reason.as_str();
            assert!(
                word.starts_with(|c: char| c.is_ascii_uppercase()) && word.chars().all(|c| c.is_ascii_alphabetic()),
                "{word}"
            );
            assert!(!Reason::ALL[..i].contains(reason), "{word} stands twice");
            assert_eq!((Reason::parse(word), ALL[i]), (Some(*reason), word));
            assert!(reason.text().ends_with('.') && !reason.text().starts_with(' '), "{word}: {}", reason.text());
        }
        assert_eq!(Reason::parse("OfALaterVersion"), None);
    }

    /// A class and a step belong to what a run fails with, and to nothing else.
    #[test]
    fn what_a_run_fails_with_has_a_class_and_a_step() {
        for reason in Reason::ALL {
            assert_eq!(reason.class().is_some(), reason.steps().0 != Never, "{reason}");
        }
    }

    #[test]
    fn words_do_not_change() {
        assert_eq!((WAITING, STATE_LOCKED, Reason::Unverified.as_str()), ("WaitingForApproval", "StateLocked", "Unverified"));
    }
}
