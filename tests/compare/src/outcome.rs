//! The result of a side, from the tool's output and from a run's status.

use std::collections::{BTreeMap, BTreeSet};

use crds::{RunResult, TerraformRunStatus, text::clip};
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A plan without changes.
    NoChanges,
    /// A plan with changes.
    Changes,
    /// A complete apply or destroy, or one without changes.
    Done,
    Failed,
    /// It exceeded the time limit.
    TimedOut,
}

/// The comparable parts of a tool's error.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Summary, on one line.
    pub summary: String,
    /// The file, relative to the stack.
    pub file: Option<String>,
    /// The line in it, from 1.
    pub line: Option<u64>,
    /// The resource.
    pub address: Option<String>,
}

/// Created, updated and destroyed, as the tools count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts(pub u64, pub u64, pub u64);

/// A plan, an apply or a destroy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    pub end: End,
    /// The planned changes, if reported.
    pub counts: Option<Counts>,
    pub problems: BTreeSet<Problem>,
    /// The end of a failure's message, on one line; some failures have no other text.
    pub words: String,
    /// The whole output of bare Terragrunt, on one line; empty without it.
    pub said: String,
    /// Pawl's reason of a failure.
    pub reason: Option<String>,
}

/// The stages after a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Rest {
    pub apply: Stage,
    /// The state after the apply.
    pub state: Value,
    /// The outputs after the apply.
    pub outputs: Value,
    /// The plan after the apply.
    pub second: Stage,
    pub destroy: Stage,
    /// The state after the destroy.
    pub after: Value,
}

/// All results of one side for a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The plan of a unit before its dependencies were applied.
    pub alone: Option<Stage>,
    /// The first plan, including the steps before it.
    pub plan: Stage,
    /// The later stages, if the plan did not fail.
    pub rest: Option<Rest>,
    /// New files; a lock file with its content, others without.
    pub left: BTreeMap<String, String>,
}

impl Outcome {
    /// An outcome that ended with its plan, and left nothing.
    pub const fn planned(alone: Option<Stage>, plan: Stage) -> Self {
        Self {
            alone,
            plan,
            rest: None,
            left: BTreeMap::new(),
        }
    }

    /// Whether any stage timed out.
    pub fn is_late(&self) -> bool {
        let rest = self
            .rest
            .as_ref()
            .map(|rest| [&rest.apply, &rest.second, &rest.destroy]);
        std::iter::once(&self.plan)
            .chain(&self.alone)
            .chain(rest.into_iter().flatten())
            .any(|stage| stage.end == End::TimedOut)
    }
}

/// A header above errors in the code, which some versions print as an error of its own.
const HEADER: &str = "encountered problems during initiali";

impl Stage {
    /// Parses the output of a command of the bare tool: JSON events, or text.
    pub fn of_tool(end: End, said: &str) -> Self {
        let events: Vec<Value> = said
            .lines()
            .filter_map(|line| serde_json::from_str(line.trim()).ok())
            .collect();
        let mut problems: BTreeSet<Problem> = events
            .iter()
            .filter_map(|event| of_event(&event["diagnostic"]))
            .collect();
        if problems.is_empty() && end == End::Failed {
            problems = of_text(said);
        }
        let planned = events
            .iter()
            .map(|event| &event["changes"])
            .find(|changes| changes["operation"] == "plan");
        let count = |changes: &Value, name: &str| changes[name].as_u64().unwrap_or_default();
        let counts = planned.map(|changes| {
            Counts(
                count(changes, "add"),
                count(changes, "change"),
                count(changes, "remove"),
            )
        });
        let last = said
            .lines()
            .map(str::trim)
            .rfind(|line| !line.is_empty() && !line.starts_with('{'));
        let words = last.filter(|_| end == End::Failed).unwrap_or_default();
        Self {
            end,
            counts,
            problems: listed(problems),
            words: clip(words, 240),
            said: String::new(),
            reason: None,
        }
    }

    /// Converts the final status of a run of Pawl; `plans` for a plan-only run.
    pub fn of_run(status: &TerraformRunStatus, plans: bool) -> Self {
        let end = match status.result {
            Some(RunResult::NoChanges) if plans => End::NoChanges,
            Some(RunResult::Planned) => End::Changes,
            Some(RunResult::NoChanges | RunResult::Applied | RunResult::Destroyed) => End::Done,
            _ => End::Failed,
        };
        let counts = status.plan.as_ref().map(|plan| &plan.counts);
        let counts = counts.map(|counts| {
            Counts(
                counts.add.into(),
                counts.change.into(),
                counts.destroy.into(),
            )
        });
        let problem = |told: &crds::Diagnostic| Problem {
            summary: told.summary.clone(),
            file: told.file.clone(),
            line: told.line.map(u64::from),
            address: told.address.clone(),
        };
        let failure = status.failure.as_ref();
        let told = failure
            .map(|failure| failure.diagnostics.as_slice())
            .unwrap_or_default();
        let problems = told
            .iter()
            .filter(|told| told.severity == "error")
            .map(problem)
            .collect();
        let words = failure
            .map(|failure| clip(&failure.message, 1024))
            .unwrap_or_default();
        Self {
            end,
            counts,
            problems: listed(problems),
            words,
            said: String::new(),
            reason: failure.map(|failure| failure.reason.clone()),
        }
    }
}

/// Brings errors into one notation.
fn listed(problems: BTreeSet<Problem>) -> BTreeSet<Problem> {
    let is_header = |problem: &Problem| problem.file.is_none() && problem.summary.contains(HEADER);
    let known = problems.into_iter().filter(|problem| !is_header(problem));
    known
        .map(|problem| Problem {
            // The length in a status.
            summary: clip(&problem.summary, 240),
            file: problem
                .file
                .map(|file| file.trim_start_matches("./").to_owned()),
            // The tools give a variable no address; Pawl does so for its next step.
            address: problem
                .address
                .filter(|address| !address.starts_with("var.")),
            ..problem
        })
        .collect()
}

fn of_event(told: &Value) -> Option<Problem> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    (told["severity"] == "error").then(|| Problem {
        summary: text(&told["summary"]).unwrap_or_default(),
        file: text(&told["range"]["filename"]),
        line: told["range"]["start"]["line"].as_u64(),
        address: text(&told["address"]),
    })
}

/// Parses `Error: …`, with or without the tools' frame; `with ADDRESS,` and `on FILE line N` below it.
fn of_text(said: &str) -> BTreeSet<Problem> {
    let mut found: Vec<Problem> = Vec::new();
    for line in said.lines() {
        let line = line.trim_start_matches(['│', '╷', '╵', ' ']).trim_end();
        if let Some(summary) = line.strip_prefix("Error: ") {
            found.push(Problem {
                summary: summary.to_owned(),
                ..Problem::default()
            });
        } else if let Some(current) = found.last_mut().filter(|current| current.file.is_none()) {
            let place = line
                .strip_prefix("on ")
                .and_then(|rest| rest.split_once(" line "));
            let number = |text: &str| {
                text.split(|c: char| !c.is_ascii_digit())
                    .next()
                    .and_then(|digits| digits.parse().ok())
            };
            if let Some((file, Some(number))) = place.map(|(file, rest)| (file, number(rest))) {
                (current.file, current.line) = (Some(file.to_owned()), Some(number));
            } else if let Some(address) = line
                .strip_prefix("with ")
                .and_then(|rest| rest.strip_suffix(','))
            {
                current.address = Some(address.to_owned());
            }
        }
    }
    found.into_iter().collect()
}
