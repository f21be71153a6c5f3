//! What a person does next after a failure: one table of reasons, with a step for a run in a cluster and one for a run on a laptop.
//!
//! Agent and controller both end runs, and say the same.

use crate::{Failure, reason};

/// Where a run is, and so what a person can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a cluster: its spec never changes, and code of the stack may be in it.
    Cluster,
    /// On a person's machine.
    Laptop,
}

/// What a next step is made of besides its reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The line that asks for the same once more.
    pub again: String,
    /// The line that shows the log.
    pub logs: String,
    /// The code is in the spec, so that only another run has other code.
    pub inline: bool,
    /// `FILE:LINE` in the code that the tool speaks of.
    pub code: Option<String>,
    /// Names of the variables of the stack that the tool speaks of.
    pub variables: Vec<String>,
}

impl Facts {
    /// What the diagnostics of a failure add.
    #[must_use]
    pub fn of(mut self, failure: &Failure) -> Self {
        self.code = failure.diagnostics.iter().find_map(|d| {
            let file = d.file.as_ref()?;
            Some(d.line.map_or_else(|| file.clone(), |line| format!("{file}:{line}")))
        });
        let addresses = failure.diagnostics.iter().filter_map(|d| d.address.as_deref());
        self.variables = addresses.filter_map(|address| address.strip_prefix("var.")).map(str::to_owned).collect();
        self
    }
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// No run fails for this reason here.
    Never,
    /// The same once more.
    Again,
    /// This, and then the same once more.
    First(&'static str),
    /// This, and not the same once more: it would end as it did.
    Only(&'static str),
    /// What the tool speaks of in the code is corrected.
    Code,
    /// Variables get values.
    Variables,
    /// The log says more.
    Log,
}

use Step::{Again, Code, First, Log, Never, Only, Variables};

/// Reason, step in a cluster, step on a laptop.
const TABLE: &[(&str, Step, Step)] = &[
    // Source.
    (
        reason::SOURCE_UNREACHABLE,
        First("see that the cluster can reach the repository"),
        First("see that the repository can be reached"),
    ),
    (
        reason::SOURCE_UNAUTHORIZED,
        First("correct the Secret of spec.source.git.secretRef"),
        Only("clone the repository with your own credentials and run in the clone"),
    ),
    (reason::REPOSITORY_NOT_FOUND, SPEC, NAMED),
    (reason::REVISION_NOT_FOUND, SPEC, NAMED),
    (reason::PATH_NOT_FOUND, SPEC, NAMED),
    (reason::SOURCE_INVALID, Code, Code),
    // Inputs.
    (reason::SECRET_NOT_FOUND, First("create the Secret or key that the message names"), Never),
    (reason::CONFIG_MAP_NOT_FOUND, First("create the ConfigMap or key that the message names"), Never),
    (reason::INVALID_SPEC, SPEC, NAMED),
    (reason::VARIABLE_NOT_SET, Variables, Variables),
    (
        reason::VARIABLE_INVALID,
        Only("create a run with spec.variables as the message asks for them (a spec never changes)"),
        First("correct the value that the message names, where it is given: --var, --var-file, a .tfvars file or TF_VAR_…"),
    ),
    // Tool.
    (
        reason::TOOL_NOT_FOUND,
        First("correct what the message names, or ask for a version that is there with spec.tool.version of a new run"),
        First("get it with `runner-agent tool install`, or name one that is there with --tool"),
    ),
    (
        reason::VERSION_CONTRADICTION,
        First(
            "correct one of the places that the message names, or name a version that they permit in spec.tool.version of a new run",
        ),
        First("correct one of the places that the message names, or name a version that the code permits with --tool"),
    ),
    (reason::TOOL_UNAVAILABLE, MIRROR, MIRROR),
    (reason::TOOL_NOT_GENUINE, NOT_GENUINE, NOT_GENUINE),
    (reason::INVALID_CONFIGURATION, Code, Code),
    (reason::INIT_FAILED, Code, Code),
    (reason::PLAN_FAILED, Code, Code),
    (reason::APPLY_FAILED, Code, Code),
    (reason::PLAN_UNREADABLE, Log, Log),
    (
        reason::PROVIDER_UNREACHABLE,
        First("see that the cluster can reach the host that the message names"),
        First("see that the host that the message names can be reached"),
    ),
    (reason::THROTTLED, THROTTLED, THROTTLED),
    (
        reason::UNAUTHORIZED,
        First("correct the credentials: the Secret that spec.env names, or the rights of the pod's account"),
        First("correct the credentials in the environment"),
    ),
    (
        reason::INPUT_REQUIRED,
        Only("create a run with the answer in spec.variables or spec.env, or put it into the code"),
        First("put the answer into the environment or on the command line"),
    ),
    // State.
    (
        reason::BACKEND_UNREACHABLE,
        First("see that the cluster can reach the state's backend, which the message names"),
        First("see that the state's backend, which the message names, can be reached"),
    ),
    (reason::STATE_UNREADABLE, RESTORE, RESTORE),
    (
        reason::STATE_TOO_NEW,
        Only("create a run with a spec.tool.version that is not older than what the message names"),
        First("name a version that is not older than what the message names with --tool"),
    ),
    (reason::STATE_LOCKED, LOCKED, LOCKED),
    (reason::STALE_PLAN, Again, Again),
    (
        reason::NO_DURABLE_STATE,
        Only(
            "create a run with spec.backend, or correct the code: a backend that outlives the pod or, where there is a datastore, none at all",
        ),
        First("add a backend to the code, or run in a clone of the repository"),
    ),
    (reason::STATE_OF_FORMER_NAMESPACE, First("have whoever has the role pawl-state-admin hand the state over"), Never),
    (reason::STATE_NOT_SAVED, COMPARE, COMPARE),
    // Ends.
    (
        reason::DEADLINE_EXCEEDED,
        First("see in the log what took so long; a new run may have longer spec.timeouts"),
        First("see in the log what took so long"),
    ),
    (reason::CHECKSUM_MISMATCH, MISMATCH, MISMATCH),
    (
        reason::TOOL_KILLED,
        First("see whether its node or its pod had too little memory"),
        First("see whether there was too little memory"),
    ),
    (reason::TERMINATED, Again, Again),
    (reason::POD_LOST, Again, Never),
    (reason::EVICTED, Again, Never),
    (reason::OUT_OF_MEMORY, Only("create a run with more memory in spec.runner.resources"), Never),
    (reason::DISK_FULL, First("see to the disk that the message names"), First("see to the disk that the message names")),
    (reason::APPLY_UNCONFIRMED, Again, First("see that the tool no longer runs, and holds no lock")),
    (reason::APPLY_INTERRUPTED, INTERRUPTED, INTERRUPTED),
    (reason::ALREADY_EXISTS, ADOPT, ADOPT),
    (reason::AGENT_FAULT, Log, Log),
    // Datastore.
    (reason::DATASTORE_UNAVAILABLE, First("see that the datastore runs and can be reached"), Never),
    (reason::DATASTORE_REFUSED, First("see in the log of the datastore why it refuses"), Never),
    (reason::STORED_PLAN_CORRUPT, Again, Again),
    (reason::STORED_PLAN_MISSING, Again, Again),
    (reason::KEY_MISSING, First("put the key that the message names back into the datastore's Secret"), Never),
    (reason::ALREADY_CLAIMED, First("see what the other process applied"), Never),
    (reason::JOURNAL_MISSING, Only("import by hand what the other run created, then create a run without spec.recover"), Never),
    (reason::RECOVERY_UNCERTAIN, Only("create the recovery run with approval.mode Manual"), Never),
    (reason::INPUTS_CHANGED, Again, Never),
    (reason::PLAN_BEFORE_RESTORE, Again, Never),
    // Pod.
    (
        reason::NO_CONFINEMENT,
        First(
            "give it nodes with Landlock (Linux 5.19 or later, landlock in /sys/kernel/security/lsm), or set the chart's \
             runner.requireConfinement to false",
        ),
        Never,
    ),
    (reason::IMAGE_NOT_AVAILABLE, First("see that the node can pull the image that the message names"), Never),
    (reason::UNSCHEDULABLE, First("see why no node takes the pod: the message says it"), Never),
    (reason::SERVICE_ACCOUNT_NOT_FOUND, First("create the ServiceAccount that the message names"), Never),
    (reason::QUOTA_EXCEEDED, First("make room in the quota that the message names"), Never),
    (reason::POD_REJECTED, First("correct what the message names"), Never),
    (reason::POD_NOT_STARTED, First("see the events of the pod"), Never),
    (reason::POD_GONE, Again, Never),
    (reason::NODE_UNREACHABLE, Again, Never),
    // Conditions, which no run fails with.
    (reason::ABANDON_REFUSED, Never, Never),
    (reason::POLICY_MISSING, Never, Never),
    (reason::RUNNING, Never, Never),
    (reason::RETRYING, Never, Never),
    (reason::WAITING, Never, Never),
    (reason::STALE_APPROVAL, Never, Never),
    (reason::PLANNED, Never, Never),
    (reason::APPROVED, Never, Never),
    (reason::AUTOMATIC, Never, Never),
    (reason::WITHDRAWN, Never, Never),
    (reason::VOID, Never, Never),
    (reason::NOT_NEEDED, Never, Never),
    (reason::LEASED, Never, Never),
    (reason::QUEUED, Never, Never),
    (reason::LEASE_REFUSED, Never, Never),
    (reason::MADE_AGAIN, Never, Never),
    (reason::PROGRESSING, Never, Never),
];

const SPEC: Step = Only("create a run with a corrected spec (a spec never changes)");
const NAMED: Step = First("correct what the message names");
const MIRROR: Step = First("see that the mirror of the tool answers");
const NOT_GENUINE: Step = First("see who changed the mirror or the cache that the message names");
const THROTTLED: Step = First("wait until the service takes requests again");
const RESTORE: Step = First("restore an earlier version of the state, or give the key that it is encrypted with");
const LOCKED: Step = First("when the lock's owner has ended");
const COMPARE: Step = First("compare the state with what exists");
const MISMATCH: Step = First("see what changed what the message names");
const INTERRUPTED: Step = First("see in the message and the log what was applied before it was told to end");
const ADOPT: Step = First("add the import block of the message to the code, or remove the object");

/// What to do next after a failure of this reason. A reason that is not in the table, of a newer version for one, has the same once more.
pub fn next_step(reason: &str, place: Place, facts: &Facts) -> String {
    let row = TABLE.iter().find(|(of, ..)| *of == reason);
    let step = row.map_or(Again, |(_, cluster, laptop)| if place == Place::Cluster { *cluster } else { *laptop });
    let then = |first: &str| format!("{first}, then: {}", facts.again);
    match step {
        Never | Again => facts.again.clone(),
        First(first) => then(first),
        Only(only) => only.to_owned(),
        Code if facts.inline => "create a run with corrected spec.source.inline.files (a spec never changes)".to_owned(),
        Code => {
            then(&facts.code.as_ref().map_or_else(|| "correct what the message names".to_owned(), |at| format!("correct {at}")))
        }
        Variables => variables(place, facts),
        Log => facts.logs.clone(),
    }
}

/// Whether runs fail for this reason in this place, or are held up there before they do.
pub fn is_of(reason: &str, place: Place) -> bool {
    let row = TABLE.iter().find(|(of, ..)| *of == reason);
    row.is_some_and(|(_, cluster, laptop)| (if place == Place::Cluster { cluster } else { laptop }) != &Never)
}

fn variables(place: Place, facts: &Facts) -> String {
    match (place, facts.variables.as_slice()) {
        (Place::Cluster, []) => {
            "create a run with spec.variables that give what the message names (a spec never changes)".to_owned()
        }
        (Place::Cluster, names) => format!("create a run with {} in spec.variables (a spec never changes)", names.join(" and ")),
        (Place::Laptop, []) => format!("give what the message names with --var, then: {}", facts.again),
        (Place::Laptop, names) => names.iter().fold(facts.again.clone(), |line, name| format!("{line} --var {name}=…")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Changed, Diagnostic, FailureClass};

    fn facts() -> Facts {
        Facts { again: "pawl again".into(), logs: "pawl logs".into(), ..Facts::default() }
    }

    #[test]
    fn every_reason_has_one_row() {
        for reason in reason::ALL {
            assert_eq!(TABLE.iter().filter(|(of, ..)| of == reason).count(), 1, "{reason}");
        }
        assert_eq!(TABLE.len(), reason::ALL.len());
    }

    #[test]
    fn a_step_is_a_sentence_that_leads_on_and_a_laptop_has_no_spec() {
        for (reason, cluster, laptop) in TABLE {
            assert!(*cluster != Never || *laptop == Never, "{reason} is of a laptop alone");
            for place in [Place::Cluster, Place::Laptop] {
                let text = next_step(reason, place, &facts());
                assert!(
                    text.len() > 8 && !text.starts_with(',') && !text.contains(".,") && !text.contains("  "),
                    "{reason}: {text}"
                );
            }
            let text = next_step(reason, Place::Laptop, &facts());
            for word in ["spec", "pod", "image", "datastore", "Secret", "run with"] {
                assert!(!text.contains(word), "{reason}: {text}");
            }
        }
        assert_eq!(next_step("OfALaterVersion", Place::Cluster, &facts()), "pawl again");
    }

    #[test]
    fn code_is_corrected_where_the_tool_says_and_not_in_a_spec_that_never_changes() {
        let at = Diagnostic { file: Some("main.tf".into()), line: Some(7), ..Diagnostic::default() };
        let failure = Failure {
            class: FailureClass::Configuration,
            reason: reason::INVALID_CONFIGURATION.into(),
            message: String::new(),
            changes: Changed::None,
            diagnostics: vec![Diagnostic::default(), at],
        };
        let of = |inline| next_step(&failure.reason, Place::Cluster, &Facts { inline, ..facts() }.of(&failure));
        assert_eq!(of(false), "correct main.tf:7, then: pawl again");
        assert_eq!(of(true), "create a run with corrected spec.source.inline.files (a spec never changes)");
        // What was interrupted is no error in the code, wherever it was interrupted.
        let text = next_step(reason::APPLY_INTERRUPTED, Place::Cluster, &facts().of(&failure));
        assert_eq!(text, "see in the message and the log what was applied before it was told to end, then: pawl again");
        // A host that does not answer is not corrected in the code, wherever it is named.
        let text = next_step(reason::PROVIDER_UNREACHABLE, Place::Laptop, &facts().of(&failure));
        assert_eq!(text, "see that the host that the message names can be reached, then: pawl again");
    }

    #[test]
    fn variables_are_named() {
        let named = |name: &str| Diagnostic { address: Some(name.into()), ..Diagnostic::default() };
        let failure = Failure {
            class: FailureClass::Configuration,
            reason: reason::VARIABLE_NOT_SET.into(),
            message: String::new(),
            changes: Changed::None,
            diagnostics: vec![named("var.zone"), named("var.size")],
        };
        let of = |place| next_step(&failure.reason, place, &facts().of(&failure));
        assert_eq!(of(Place::Laptop), "pawl again --var zone=… --var size=…");
        assert_eq!(of(Place::Cluster), "create a run with zone and size in spec.variables (a spec never changes)");
    }
}
