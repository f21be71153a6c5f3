//! The next step for a person after a failure, from the table of reasons, in a cluster or on a laptop.
//!
//! Agent and controller share it, since both end runs.

use super::Reason;
use crate::{Failure, TerraformRun, names};

/// The place of a run, which determines what a person can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a cluster: the spec never changes, and may contain the code.
    Cluster,
    /// On a person's machine.
    Laptop,
}

/// The origin of a run's code and settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeOrigin {
    /// The spec field that holds the code or its digest. Different code then needs a new run.
    pub fixed: Option<&'static str>,
    /// The layer that creates the runs: a push or its template corrects them.
    pub layer: Option<String>,
}

impl CodeOrigin {
    /// The origin of a run in a cluster.
    pub fn of(run: &TerraformRun) -> Self {
        let labels = run.metadata.labels.as_ref();
        Self {
            fixed: run.spec.source.fixed_by(),
            layer: labels
                .and_then(|labels| labels.get(names::LABEL_LAYER))
                .cloned(),
        }
    }
}

/// Advice and command of a step: what to do before the command, or instead of one, and the one command to paste.
pub fn parts(step: &str) -> (Option<String>, Option<String>) {
    const COMMAND: &str = "kubectl ";
    if step.starts_with(COMMAND) {
        return (None, Some(step.to_owned()));
    }
    match step.split_once(&format!(": {COMMAND}")) {
        Some((advice, rest)) => (
            Some(advice.trim_end_matches(", then").to_owned()),
            Some(format!("{COMMAND}{rest}")),
        ),
        None => (Some(step.to_owned()), None),
    }
}

/// The step of these parts, in one line.
pub fn whole(advice: Option<&str>, command: Option<&str>) -> Option<String> {
    match (advice, command) {
        (Some(advice), Some(command)) => Some(format!("{advice}, then: {command}")),
        (advice, command) => advice.or(command).map(str::to_owned),
    }
}

/// Facts about the failure that complete a step's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The command that runs it again.
    pub again: String,
    /// The command that prints the log.
    pub logs: String,
    /// The origin of the code.
    pub origin: CodeOrigin,
    /// `FILE:LINE` from the tool's diagnostics.
    pub code: Option<String>,
    /// Names of the stack's variables from the tool's diagnostics.
    pub variables: Vec<String>,
}

impl Facts {
    /// The place in the code.
    fn place(&self) -> &str {
        self.code.as_deref().unwrap_or("what the message names")
    }

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
    if let Some(layer) = &facts.origin.layer {
        return of_layer(step, layer, facts);
    }
    let then = |first: &str| format!("{first}, then: {}", facts.again);
    match step {
        Step::Never | Step::Again => facts.again.clone(),
        Step::First(first) => then(first),
        Step::Only(only) => only.to_owned(),
        Step::Code => {
            if let Some(field) = facts.origin.fixed {
                return format!("create a run with corrected {field} (a spec never changes)");
            }
            then(&format!("correct {}", facts.place()))
        }
        Step::Variables => variables(place, facts),
        Step::Versions if facts.origin.fixed.is_some() => {
            "create a run whose files and spec.tool.version agree on a version (a spec never changes)".to_owned()
        }
        Step::Versions => then(
            "correct one of the places that the message names, or name a version that they permit in spec.tool.version of a new run",
        ),
        Step::Log => facts.logs.clone(),
    }
}

/// The step for a run that a layer created, which creates the next one after a push or a change of its settings.
fn of_layer(step: Step, layer: &str, facts: &Facts) -> String {
    let words = |text: &str| {
        [
            // Before those that are a part of it.
            (
                "spec.source.git or spec.credentials.git",
                "spec.template.credentials.git",
            ),
            (" (a spec never changes)", ""),
            (
                "create a run with a corrected spec",
                "correct what the message names with a push, or in spec.template of layer LAYER",
            ),
            (
                "create a run with ",
                "change spec.template of layer LAYER, so that its runs have ",
            ),
            (
                "create a run without ",
                "change spec.template of layer LAYER, so that its runs are without ",
            ),
            (
                "create the recovery run ",
                "create the recovery run by hand, ",
            ),
            (
                " (an inline one in a new run)",
                " (an inline one in spec.template of layer LAYER)",
            ),
            (" of a new run", " of layer LAYER's template"),
            (" in a new run", " of layer LAYER"),
            ("a new run may have", "the template of layer LAYER may have"),
            ("spec.source.repository", "spec.repository"),
            ("spec.source", "spec.secretRef of its repository"),
        ]
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
        .replace("LAYER", layer)
    };
    match step {
        Step::Never | Step::Again => facts.again.clone(),
        Step::First(first) => format!("{}, then: {}", words(first), facts.again),
        Step::Only(only) => words(only),
        Step::Code => format!("push a commit that corrects {}", facts.place()),
        Step::Variables => {
            let names = match facts.variables.as_slice() {
                [] => "what the message names".to_owned(),
                names => names.join(" and "),
            };
            format!("give {names} in spec.template.variables of layer {layer}, or push a default")
        }
        Step::Versions => format!(
            "push a commit that corrects one of the places that the message names, or name a version that they permit in \
             spec.template.tool.version of layer {layer}"
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

    /// Each command goes through a shell's parser, and nothing stands beside it.
    #[test]
    fn step_is_one_command_or_prose_beside_it() {
        let (again, logs) = (
            names::rerun_command("team", "vpc"),
            names::stored_log_command("team", "vpc"),
        );
        let layer = CodeOrigin {
            fixed: Some("spec.source.repository.revision"),
            layer: Some("net".into()),
        };
        let mut commands = vec![
            names::approve_command("team", "vpc", "sha256:1"),
            names::recover_command("team", "vpc"),
            names::replan_command("team", "vpc"),
            names::abandon_command("team", "vpc"),
            names::reconcile_command("team", "infra"),
            names::confirm_command("team", "net"),
            names::resume_command(names::KUBECTL_LAYER, "team", "net"),
        ];
        for reason in reason::ALL {
            for origin in [CodeOrigin::default(), layer.clone()] {
                let facts = Facts {
                    again: again.clone(),
                    logs: logs.clone(),
                    origin: origin.clone(),
                    ..Facts::default()
                };
                let text = next_step(reason, Place::Cluster, &facts);
                let (advice, command) = parts(&text);
                let again = whole(advice.as_deref(), command.as_deref()).unwrap();
                assert_eq!(parts(&again), (advice.clone(), command.clone()), "{reason}");
                for word in ["kubectl annotate", ", then:"] {
                    assert!(
                        !advice.iter().any(|advice| advice.contains(word)),
                        "{reason}: {text}"
                    );
                }
                if origin.layer.is_some() {
                    for word in [
                        "create a run",
                        "new run",
                        "spec never",
                        "inline.files",
                        "repository.git",
                        "spec.credentials",
                        "LAYER",
                    ] {
                        assert!(!text.contains(word), "{reason}: {text}");
                    }
                }
                commands.extend(command);
            }
        }
        commands.sort_unstable();
        commands.dedup();
        let script = format!(
            "set -eu\nkubectl() {{ :; }}\nsleep() {{ :; }}\n{} || exit 1\n",
            commands.join(" || exit 1\n")
        );
        let ran = std::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        assert!(
            ran.status.success() && ran.stderr.is_empty(),
            "{script}{ran:?}"
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
                &Facts {
                    origin: CodeOrigin { fixed, layer: None },
                    ..facts()
                }
                .of(&failure),
            )
        };
        assert_eq!(of(None), "correct main.tf:7, then: pawl again");
        let artifact = "create a run with corrected spec.source.artifact (a spec never changes)";
        assert_eq!(of(Some("spec.source.artifact")), artifact);
        let of = |fixed| {
            next_step(
                reason::VERSION_CONTRADICTION,
                Place::Cluster,
                &Facts {
                    origin: CodeOrigin { fixed, layer: None },
                    ..facts()
                },
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
        let layer = Facts {
            origin: CodeOrigin {
                fixed: None,
                layer: Some("net".into()),
            },
            ..facts()
        };
        assert_eq!(
            next_step(&failure.reason, Place::Cluster, &layer.of(&failure)),
            "give zone and size in spec.template.variables of layer net, or push a default"
        );
        assert_eq!(of(Place::Laptop), "pawl again --var zone=… --var size=…");
        assert_eq!(
            of(Place::Cluster),
            "create a run with zone and size in spec.variables (a spec never changes)"
        );
    }
}
