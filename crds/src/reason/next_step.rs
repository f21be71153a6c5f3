//! What a person does next after a failure: the step that the table has for its reason, in a cluster or on a laptop.
//!
//! Agent and controller both end runs, and say the same.

use super::Reason;
use crate::Failure;

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
    /// The field of the spec that has the code, or its digest, so that only another run has other code.
    pub fixed: Option<&'static str>,
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
pub(super) enum Step {
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
    /// Those who ask for a version come to agree.
    Versions,
    /// The log says more.
    Log,
}

/// What to do next after a failure of this reason. A reason that is not in the table, of a newer version for one, has the same once more.
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

/// Whether runs fail for this reason in this place, or are held up there before they do.
pub fn is_of(reason: &str, place: Place) -> bool {
    step(reason, place).is_some_and(|step| step != Step::Never)
}

fn step(reason: &str, place: Place) -> Option<Step> {
    let (cluster, laptop) = Reason::parse(reason)?.steps();
    Some(if place == Place::Cluster { cluster } else { laptop })
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
    use crate::{Changed, Diagnostic, FailureClass, reason};

    fn facts() -> Facts {
        Facts { again: "pawl again".into(), logs: "pawl logs".into(), ..Facts::default() }
    }

    #[test]
    fn a_step_is_a_sentence_that_leads_on_and_a_laptop_has_no_spec() {
        for reason in reason::ALL {
            assert!(is_of(reason, Place::Cluster) || !is_of(reason, Place::Laptop), "{reason} is of a laptop alone");
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
        let of = |fixed| next_step(&failure.reason, Place::Cluster, &Facts { fixed, ..facts() }.of(&failure));
        assert_eq!(of(None), "correct main.tf:7, then: pawl again");
        let artifact = "create a run with corrected spec.source.artifact (a spec never changes)";
        assert_eq!(of(Some("spec.source.artifact")), artifact);
        let of = |fixed| next_step(reason::VERSION_CONTRADICTION, Place::Cluster, &Facts { fixed, ..facts() });
        assert_eq!(
            of(Some("spec.source.artifact")),
            "create a run whose files and spec.tool.version agree on a version (a spec never changes)"
        );
        assert!(of(None).starts_with("correct one of the places") && of(None).ends_with(", then: pawl again"));
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
