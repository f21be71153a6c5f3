//! The next step for a person after a failure, from the table of reasons, in a cluster or on a laptop.
//!
//! Agent and controller share it, since both end runs.

use super::Reason;
use crate::Failure;

/// The place of a run, which determines what a person can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a cluster: the spec never changes, and may contain the code.
    Cluster,
    /// On a person's machine.
    Laptop,
}

/// Facts about the failure that complete a step's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The command that runs it again.
    pub again: String,
    /// The command that prints the log.
    pub logs: String,
    /// The spec field that holds the code or its digest. Different code then needs a new run.
    pub fixed: Option<&'static str>,
    /// `FILE:LINE` from the tool's diagnostics.
    pub code: Option<String>,
    /// Names of the stack's variables from the tool's diagnostics.
    pub variables: Vec<String>,
}

impl Facts {
    /// Adds facts from the diagnostics of a failure.
    #[must_use]
    pub fn of(mut self, failure: &Failure) -> Self {
        self.code = failure.diagnostics.iter().find_map(|d| {
            let file = d.file.as_ref()?;
            Some(
                d.line
                    .map_or_else(|| file.clone(), |line| format!("{file}:{line}")),
            )
        });
        let addresses = failure
            .diagnostics
            .iter()
            .filter_map(|d| d.address.as_deref());
        self.variables = addresses
            .filter_map(|address| address.strip_prefix("var."))
            .map(str::to_owned)
            .collect();
        self
    }
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// No run fails with this reason here.
    Never,
    /// Run it again.
    Again,
    /// Do this, then run it again.
    First(&'static str),
    /// Do only this: running it again would fail again.
    Only(&'static str),
    /// Correct the code at the place that the tool reports.
    Code,
    /// Set the variables.
    Variables,
    /// Resolve the conflicting version constraints.
    Versions,
    /// Read the log.
    Log,
}

/// The next step after a failure. A reason that is not in the table (from a newer version) gives: run it again.
pub fn next_step(reason: &str, place: Place, facts: &Facts) -> String {
    let step = step(reason, place).unwrap_or(Step::Again);
    let then = |first: &str| format!("{first}, then: {}", facts.again);
    match step {
        Step::Never | Step::Again => facts.again.clone(),
        Step::First(first) => then(first),
        Step::Only(only) => only.to_owned(),
        Step::Code => {
            if let Some(field) = facts.fixed {
                return format!("create a run with corrected {field} (a spec never changes)");
            }
            then(&facts.code.as_ref().map_or_else(|| "correct what the message names".to_owned(), |at| format!("correct {at}")))
        }
        Step::Variables => variables(place, facts),
        Step::Versions if facts.fixed.is_some() => {
            "create a run whose files and spec.tool.version agree on a version (a spec never changes)".to_owned()
        }
        Step::Versions => then(
            "correct one of the places that the message names, or name a version that they permit in spec.tool.version of a new run",
        ),
        Step::Log => facts.logs.clone(),
    }
}

/// Whether runs fail, or are delayed before they fail, with this reason in this place.
pub fn is_of(reason: &str, place: Place) -> bool {
    step(reason, place).is_some_and(|step| step != Step::Never)
}

/// Whether the next step after this failure in a cluster is to run it again, perhaps after something outside of the run was mended.
pub fn is_rerun(reason: &str) -> bool {
    matches!(
        step(reason, Place::Cluster),
        Some(Step::Again | Step::First(_))
    )
}

fn step(reason: &str, place: Place) -> Option<Step> {
    let (cluster, laptop) = Reason::parse(reason)?.steps();
    Some(if place == Place::Cluster {
        cluster
    } else {
        laptop
    })
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
    use crate::{Diagnostic, Reason, reason};

    fn facts() -> Facts {
        Facts {
            again: "pawl again".into(),
            logs: "pawl logs".into(),
            ..Facts::default()
        }
    }

    #[test]
    fn steps_are_sentences_and_laptop_steps_name_no_spec() {
        for reason in reason::ALL {
            assert!(
                is_of(reason, Place::Cluster) || !is_of(reason, Place::Laptop),
                "{reason} is of a laptop alone"
            );
            for place in [Place::Cluster, Place::Laptop] {
                let text = next_step(reason, place, &facts());
                assert!(
                    text.len() > 8
                        && !text.starts_with(',')
                        && !text.contains(".,")
                        && !text.contains("  "),
                    "{reason}: {text}"
                );
            }
            let text = next_step(reason, Place::Laptop, &facts());
            for word in ["spec", "pod", "image", "datastore", "Secret", "run with"] {
                assert!(!text.contains(word), "{reason}: {text}");
            }
        }
        assert_eq!(
            next_step("OfALaterVersion", Place::Cluster, &facts()),
            "pawl again"
        );
    }

    #[test]
    fn step_for_code_names_the_diagnosed_line() {
        let at = Diagnostic {
            file: Some("main.tf".into()),
            line: Some(7),
            ..Diagnostic::default()
        };
        let diagnostics = vec![Diagnostic::default(), at];
        let failure = Failure {
            diagnostics,
            ..Reason::InvalidConfiguration.failure("")
        };
        let of = |fixed| {
            next_step(
                &failure.reason,
                Place::Cluster,
                &Facts { fixed, ..facts() }.of(&failure),
            )
        };
        assert_eq!(of(None), "correct main.tf:7, then: pawl again");
        let artifact = "create a run with corrected spec.source.artifact (a spec never changes)";
        assert_eq!(of(Some("spec.source.artifact")), artifact);
        let of = |fixed| {
            next_step(
                reason::VERSION_CONTRADICTION,
                Place::Cluster,
                &Facts { fixed, ..facts() },
            )
        };
        assert_eq!(
            of(Some("spec.source.artifact")),
            "create a run whose files and spec.tool.version agree on a version (a spec never changes)"
        );
        assert!(
            of(None).starts_with("correct one of the places")
                && of(None).ends_with(", then: pawl again")
        );
        // An interruption is not an error in the code.
        let text = next_step(
            reason::APPLY_INTERRUPTED,
            Place::Cluster,
            &facts().of(&failure),
        );
        assert_eq!(
            text,
            "see in the message and the log what was applied before it was asked to stop, then: pawl again"
        );
        // An unreachable host is not corrected in the code, even if the code names it.
        let text = next_step(
            reason::PROVIDER_UNREACHABLE,
            Place::Laptop,
            &facts().of(&failure),
        );
        assert_eq!(
            text,
            "make sure that the host that the message names can be reached, then: pawl again"
        );
    }

    #[test]
    fn next_step_names_the_missing_variables() {
        let named = |name: &str| Diagnostic {
            address: Some(name.into()),
            ..Diagnostic::default()
        };
        let diagnostics = vec![named("var.zone"), named("var.size")];
        let failure = Failure {
            diagnostics,
            ..Reason::VariableNotSet.failure("")
        };
        let of = |place| next_step(&failure.reason, place, &facts().of(&failure));
        assert_eq!(of(Place::Laptop), "pawl again --var zone=… --var size=…");
        assert_eq!(
            of(Place::Cluster),
            "create a run with zone and size in spec.variables (a spec never changes)"
        );
    }
}
