//! Compares two outcomes, and explains intended differences.

use std::collections::BTreeSet;

use crds::{reason, text::clip};
use serde_json::Value;

use super::{
    normal::normal,
    outcome::{End, Outcome, Problem, Stage},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The difference, with both sides.
    pub what: String,
    /// The reason, if it is intended.
    pub why: Option<&'static str>,
}

/// The directory of records and logs of local runs, which git ignores (design 0008).
const RECORDS: &str = ".pawl";

/// Maximum number of errors in a status (`crds::Failure`).
const ERRORS: usize = 5;
/// Number of differences of one kind that are listed.
const NAMED: usize = 3;
/// Characters of one difference.
const LENGTH: usize = 300;

/// Differences of Pawl from the bare tool; empty if both did the same.
pub fn compare(bare: &Outcome, pawl: &Outcome) -> Vec<Difference> {
    let mut found = Vec::new();
    if let (Some(bare), Some(pawl)) = (&bare.alone, &pawl.alone) {
        stage("plan alone", bare, pawl, &mut found);
    }
    stage("plan", &bare.plan, &pawl.plan, &mut found);
    // If one side has no rest, its plan stage differs already.
    if let (Some(bare), Some(pawl)) = (&bare.rest, &pawl.rest) {
        stage("apply", &bare.apply, &pawl.apply, &mut found);
        let ours = normal(pawl.state.clone(), pawl.outputs.clone());
        let theirs = normal(bare.state.clone(), bare.outputs.clone());
        values("state", &theirs.0, &ours.0, &mut found);
        values("outputs", &theirs.1, &ours.1, &mut found);
        stage("second plan", &bare.second, &pawl.second, &mut found);
        stage("destroy", &bare.destroy, &pawl.destroy, &mut found);
        let after = |state: &Value| normal(state.clone(), Value::Null).0;
        values(
            "state after destroy",
            &after(&bare.after),
            &after(&pawl.after),
            &mut found,
        );
    }
    if bare.rest.is_some() == pawl.rest.is_some() {
        files(bare, pawl, &mut found);
    }
    found
}

fn stage(name: &str, bare: &Stage, pawl: &Stage, found: &mut Vec<Difference>) {
    let why = meant(bare, pawl);
    let mut differ = |what: String| {
        found.push(Difference {
            what: clip(&what, LENGTH),
            why,
        });
    };
    if bare.end != pawl.end {
        let said = format!("{}{}", bare.words, pawl.words);
        return differ(format!(
            "{name}: bare {:?}, Pawl {:?} {said}",
            bare.end, pawl.end
        ));
    }
    if let (Some(theirs), Some(ours)) = (bare.counts, pawl.counts)
        && theirs != ours
    {
        let counts =
            |counts: super::outcome::Counts| format!("+{} ~{} -{}", counts.0, counts.1, counts.2);
        differ(format!(
            "{name}: bare {}, Pawl {}",
            counts(theirs),
            counts(ours)
        ));
    }
    let added: Vec<_> = pawl
        .problems
        .difference(&bare.problems)
        .map(shown)
        .collect();
    let lost: Vec<_> = bare
        .problems
        .difference(&pawl.problems)
        .map(shown)
        .collect();
    let cut = bare.problems.len() > ERRORS && pawl.problems.len() >= ERRORS;
    if bare.end != End::Failed {
        return;
    }
    let list = |which: &[String]| {
        if which.is_empty() {
            "nothing".to_owned()
        } else {
            which.join(", ")
        }
    };
    if pawl.problems.is_empty() && !pawl.words.contains(&bare.words) && !tells(bare, pawl) {
        differ(format!(
            "{name} errors: bare \"{}\", Pawl \"{}\"",
            bare.words, pawl.words
        ));
    } else if !added.is_empty() || !lost.is_empty() && !cut {
        differ(format!(
            "{name} errors: only bare {}; only Pawl {}",
            list(&lost),
            list(&added)
        ));
    }
}

/// Whether Pawl's message for a failure contains Terragrunt's, without the advice after it.
fn tells(bare: &Stage, pawl: &Stage) -> bool {
    let words = pawl
        .words
        .split_once(" failed: ")
        .map_or(pawl.words.as_str(), |(_, words)| words);
    !bare.said.is_empty()
        && words
            .split("; ")
            .all(|part| bare.said.contains(part.trim_end_matches('…')))
}

fn shown(problem: &Problem) -> String {
    let Problem {
        summary,
        file,
        line,
        address,
    } = problem;
    let place = file
        .as_ref()
        .map(|file| format!(" {file}:{}", line.unwrap_or_default()))
        .unwrap_or_default();
    let address = address
        .as_ref()
        .map(|address| format!(" at {address}"))
        .unwrap_or_default();
    format!("\"{summary}\"{place}{address}")
}

/// The reason for which a stage may differ.
fn meant(bare: &Stage, pawl: &Stage) -> Option<&'static str> {
    let refused = bare
        .problems
        .iter()
        .any(|problem| problem.summary.ends_with("Core version"));
    let forgotten = |problem: &Problem| problem.summary.contains("left behind forgotten instances");
    let reason = pawl.reason.as_deref();
    let rows = [
        // The bare tool fails as well, but later.
        (
            refused
                && matches!(
                    reason,
                    Some(reason::TOOL_NOT_FOUND | reason::VERSION_CONTRADICTION)
                ),
            "Pawl looks for a version that the code permits before it runs one (design 0017)",
        ),
        (
            bare.end == End::Changes
                && pawl.end == End::Failed
                && pawl.words.contains("Failed to execute"),
            "a hook of Terragrunt that fails with 2 is a failure (design 0034)",
        ),
        (
            pawl.end == End::Done
                && !bare.problems.is_empty()
                && bare.problems.iter().all(forgotten),
            "a destroy that keeps objects as the code wants is a success (design 0034)",
        ),
        (
            bare.end == End::Done && reason == Some(reason::INPUTS_CHANGED),
            "a plan with mocks, or with other inputs than Terragrunt gives the apply, is not applied (design 0034)",
        ),
    ];
    rows.into_iter().find_map(|(is, why)| is.then_some(why))
}

/// Compares two values, and names differences by path.
fn values(name: &str, bare: &Value, pawl: &Value, found: &mut Vec<Difference>) {
    let mut paths = Vec::new();
    differing(bare, pawl, name, &mut paths);
    name_some(name, paths, found);
}

/// Lists the first of many.
fn name_some(name: &str, all: Vec<String>, found: &mut Vec<Difference>) {
    let more = all.len().saturating_sub(NAMED);
    let more = (more > 0).then(|| format!("{name}: {more} more"));
    found.extend(
        all.into_iter()
            .take(NAMED)
            .chain(more)
            .map(|what| Difference {
                what: clip(&what, LENGTH),
                why: None,
            }),
    );
}

fn differing(bare: &Value, pawl: &Value, path: &str, found: &mut Vec<String>) {
    match (bare, pawl) {
        (Value::Object(theirs), Value::Object(ours)) => {
            for key in theirs.keys().chain(ours.keys()).collect::<BTreeSet<_>>() {
                differing(&bare[key], &pawl[key], &format!("{path}.{key}"), found);
            }
        }
        (Value::Array(theirs), Value::Array(ours)) if theirs.len() == ours.len() => {
            for (index, (theirs, ours)) in theirs.iter().zip(ours).enumerate() {
                differing(theirs, ours, &format!("{path}[{index}]"), found);
            }
        }
        _ if bare == pawl => {}
        _ => found.push(format!(
            "{path}: bare {}, Pawl {}",
            clip(&bare.to_string(), 80),
            clip(&pawl.to_string(), 80)
        )),
    }
}

fn files(bare: &Outcome, pawl: &Outcome, found: &mut Vec<Difference>) {
    let names = bare
        .left
        .keys()
        .chain(pawl.left.keys())
        .filter(|name| !name.split('/').any(|part| part == RECORDS));
    let mut differ = Vec::new();
    for name in names.collect::<BTreeSet<_>>() {
        match (bare.left.get(name), pawl.left.get(name)) {
            (Some(theirs), Some(ours)) if theirs == ours => {}
            (Some(_), Some(_)) => differ.push(format!("{name} has another content")),
            (Some(_), None) => differ.push(format!("only bare leaves {name}")),
            (None, _) => differ.push(format!("only Pawl leaves {name}")),
        }
    }
    name_some("files", differ, found);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Counts, Rest};
    use serde_json::json;

    fn stage(end: End, problems: &[(&str, u64)]) -> Stage {
        let problem = |(summary, line): &(&str, u64)| Problem {
            summary: (*summary).to_owned(),
            file: Some("main.tf".to_owned()),
            line: Some(*line),
            address: None,
        };
        Stage {
            end,
            counts: Some(Counts(1, 0, 0)),
            problems: problems.iter().map(problem).collect(),
            words: String::new(),
            said: String::new(),
            reason: None,
        }
    }

    fn outcome() -> Outcome {
        let done = stage(End::Done, &[]);
        Outcome {
            alone: None,
            plan: stage(End::Changes, &[]),
            rest: Some(Rest {
                apply: done.clone(),
                state: json!({"serial": 1, "resources": [{"type": "a", "name": "b", "instances": [{"attributes": {"n": 1}}]}]}),
                outputs: json!({"n": {"value": 1}}),
                second: stage(End::NoChanges, &[]),
                destroy: done,
                after: json!({"serial": 2, "resources": []}),
            }),
            left: [("terraform.tfstate".to_owned(), String::new())].into(),
        }
    }

    /// The differences found after Pawl's side is changed.
    fn found(change: impl FnOnce(&mut Outcome, &mut Rest)) -> Vec<String> {
        let mut pawl = outcome();
        let mut rest = pawl.rest.take().unwrap();
        change(&mut pawl, &mut rest);
        pawl.rest = Some(rest);
        compare(&outcome(), &pawl)
            .into_iter()
            .map(|one| one.what)
            .collect()
    }

    #[test]
    fn each_difference_is_reported() {
        assert_eq!(found(|_, _| ()), [""; 0]);
        assert_eq!(found(|_, rest| rest.state["serial"] = json!(9)), [""; 0]);
        let mut late = outcome();
        assert!(!late.is_late());
        late.rest.as_mut().unwrap().second.end = End::TimedOut;
        assert!(late.is_late());
        let all = found(|pawl, rest| {
            pawl.plan.counts = Some(Counts(2, 0, 0));
            rest.apply = Stage {
                words: "no luck, twice".to_owned(),
                ..stage(End::Failed, &[("no luck", 3)])
            };
            rest.state["resources"][0]["instances"][0]["attributes"]["n"] = json!(2);
            rest.outputs = json!({});
            rest.second.end = End::Changes;
            rest.destroy.end = End::Failed;
            rest.after = Value::Null;
            pawl.left = [
                ("litter".to_owned(), String::new()),
                (".pawl/lock".to_owned(), String::new()),
            ]
            .into();
        });
        let expected = [
            "plan: bare +1 ~0 -0, Pawl +2 ~0 -0",
            "apply: bare Done, Pawl Failed no luck, twice",
            "state.resources[0].instances[0].attributes.n: bare 1, Pawl 2",
            "outputs.n: bare {\"value\":1}, Pawl null",
            "second plan: bare NoChanges, Pawl Changes",
            "destroy: bare Done, Pawl Failed",
            "state after destroy: bare {\"resources\":[]}, Pawl null",
            "only Pawl leaves litter",
            "only bare leaves terraform.tfstate",
        ];
        assert_eq!(
            all.iter().map(|line| line.trim_end()).collect::<Vec<_>>(),
            expected
        );
    }

    #[test]
    fn assumptions_about_tools_are_deliberate() {
        let failed = |words: &str, reason: Option<&str>| Stage {
            words: words.to_owned(),
            reason: reason.map(str::to_owned),
            ..stage(End::Failed, &[])
        };
        let kept = "Destroy was successful but left behind forgotten instances";
        for (bare, pawl, is_meant) in [
            (
                stage(End::Changes, &[]),
                failed("plan failed: Failed to execute \"sh\" in .; no", None),
                true,
            ),
            (
                stage(End::Changes, &[]),
                failed("plan failed: no", None),
                false,
            ),
            (
                stage(End::Failed, &[(kept, 1)]),
                stage(End::Done, &[]),
                true,
            ),
            (
                stage(End::Failed, &[(kept, 1), ("other", 2)]),
                stage(End::Done, &[]),
                false,
            ),
            (
                stage(End::Done, &[]),
                failed("", Some(reason::INPUTS_CHANGED)),
                true,
            ),
        ] {
            assert_eq!(meant(&bare, &pawl).is_some(), is_meant, "{bare:?} {pawl:?}");
        }
    }

    #[test]
    fn errors_are_compared_by_text_and_place() {
        let failed =
            |problems: &[(&str, u64)]| Outcome::planned(None, stage(End::Failed, problems));
        let said = |theirs: &[(&str, u64)], ours: &[(&str, u64)]| -> Vec<String> {
            compare(&failed(theirs), &failed(ours))
                .into_iter()
                .map(|one| one.what)
                .collect()
        };
        assert_eq!(said(&[("a", 1), ("b", 2)], &[("b", 2), ("a", 1)]), [""; 0]);
        assert_eq!(
            said(&[("a", 1)], &[("a", 2)]),
            ["plan errors: only bare \"a\" main.tf:1; only Pawl \"a\" main.tf:2"]
        );
        let many: Vec<_> = (1..=9).map(|line| ("a", line)).collect();
        assert_eq!(said(&many, &many[2..7]), [""; 0], "a status has five");
        assert_eq!(said(&many, &many[2..4]).len(), 1);
        let words = |words: &str| Outcome {
            plan: Stage {
                words: words.to_owned(),
                ..stage(End::Failed, &[])
            },
            ..failed(&[])
        };
        assert_eq!(
            compare(&words("refused"), &words("init failed: refused")),
            []
        );
        assert_eq!(
            compare(&words("refused"), &words("init failed"))
                .first()
                .map(|one| one.what.as_str()),
            Some("plan errors: bare \"refused\", Pawl \"init failed\"")
        );
    }
}
