//! The report: kills by phase, results of the runs, and violations.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::ValueEnum as _;

use super::{Options, kinds::Kind, lab::Lab};
use crate::history::{History, Violation};

const PHASES: [&str; 8] = [
    "Pending",
    "Setup",
    "Init",
    "Plan",
    "AwaitingApproval",
    "Apply",
    ENDED,
    "none",
];
/// The run had ended when it was struck, but its pod had not.
const ENDED: &str = "ended";

fn place(strike: &super::kinds::Strike) -> &str {
    match strike.phase.as_deref().unwrap_or("none") {
        "Succeeded" | "Failed" | "Canceled" => ENDED,
        phase => phase,
    }
}

pub(super) fn markdown(
    lab: &Lab,
    history: &History,
    violations: &[Violation],
    options: &Options,
) -> String {
    let strikes = lab.record.all();
    let mut text = String::new();
    let mut line = |words: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{words}");
    };
    line(format!(
        "Seed {}, {} runs at a time, {} kills.\n",
        options.seed,
        options.workers,
        lab.record.kills()
    ));
    line(format!(
        "| what died | {} | in all |",
        PHASES
            .map(|phase| if phase == "none" {
                "of the cluster"
            } else {
                phase
            })
            .join(" | ")
    ));
    line(format!("|---|{}", "---|".repeat(PHASES.len() + 1)));
    for kind in Kind::value_variants() {
        let of: Vec<_> = strikes
            .iter()
            .filter(|strike| strike.kind == *kind)
            .collect();
        let count = |phase: &str| of.iter().filter(|strike| place(strike) == phase).count();
        let name = kind
            .to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default();
        line(format!(
            "| {name} | {} | {} |",
            PHASES.map(|phase| count(phase).to_string()).join(" | "),
            of.len()
        ));
    }
    let mut endings: BTreeMap<String, usize> = BTreeMap::new();
    let (mut attempts, mut claims) = (0, 0);
    for versions in history.runs.values() {
        let Some(status) = versions
            .last()
            .and_then(|version| version.run.status.as_ref())
        else {
            continue;
        };
        let reason = status
            .failure
            .as_ref()
            .map_or_else(String::new, |failure| format!(", {}", failure.reason));
        let ending = status.result.map_or_else(
            || "deleted before it began".to_owned(),
            |result| format!("{result}{reason}"),
        );
        *endings.entry(ending).or_default() += 1;
        attempts += status.attempt.as_ref().map_or(0, |attempt| attempt.number);
        claims += usize::from(status.claim.is_some());
    }
    line(format!(
        "\n{} runs, {attempts} attempts, {claims} claims.\n\n| ending | runs |\n|---|---|",
        history.runs.len()
    ));
    for (ending, count) in endings {
        line(format!("| {ending} | {count} |"));
    }
    let versions: usize = history.runs.values().map(Vec::len).sum();
    line(format!(
        "\nChecked: {versions} versions of runs (in {} places some are missing: the API server stored them and was killed, or \
         gave up, before it wrote them down), {} creations of pods, {} entries of the ledger. Violations: {}.",
        history.holes(),
        history.pods.len(),
        history.ledger.len(),
        violations.len()
    ));
    let (states, shared, applies) = history.competition();
    let (texts, unread) = lab.shelf.counts();
    line(format!(
        "\n{shared} of the runs had planned for one of {states} states that others were after as well, and {applies} of these were \
         applied, one after the other. {texts} plans, logs and journals were read of the datastore, and {unread} times it did not answer."
    ));
    text
}
