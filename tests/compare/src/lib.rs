//! Compares the bare tool and Pawl on the same configurations: `cargo compare DIR…`.
//!
//! | module | holds |
//! |---|---|
//! | [`cases`] | folders that are cases, the surrounding files that they need, and copies |
//! | [`lab`] | tools, the provider mirror, and the agent |
//! | [`play`] | runs both sides of a case |
//! | [`outcome`] | the result of a side, from the tool's output and from a run's status; pure |
//! | [`normal`] | normalises states, removing values that differ in every apply; pure |
//! | [`judge`] | compares two outcomes, and explains intended differences; pure |

pub mod cases;
pub mod judge;
pub mod lab;
pub mod normal;
pub mod outcome;
mod play;

use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use cases::Case;
use judge::Difference;
use lab::{Lab, Tool};

#[derive(Clone, Debug)]
pub struct Options {
    /// Folders with configurations.
    pub folders: Vec<PathBuf>,
    /// Tools in the notation of `--tool`; if empty, those that are built.
    pub tools: Vec<String>,
    /// Only cases whose path contains this.
    pub only: Option<String>,
    /// Number of parallel cases; at least one.
    pub jobs: usize,
    /// Time limit per side and case.
    pub limit: Duration,
    /// Leave the folders of all cases.
    pub keep: bool,
    /// The program `runner-agent`.
    pub agent: PathBuf,
}

/// Number of cases by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Both did the same.
    pub same: usize,
    /// With an unintended difference.
    pub differ: usize,
    /// With intended differences only.
    pub deliberate: usize,
    /// Terragrunt units if Terragrunt is not built, and cases in which both sides timed out.
    pub left_out: usize,
}

/// Runs all cases with all tools; passes each line of the result to `print` at once.
///
/// # Errors
/// When there is no case or no tool. A case that cannot be run counts as different.
pub fn run(options: &Options, print: &(dyn Fn(&str) + Sync)) -> Result<Tally> {
    let mut found = Vec::new();
    for folder in &options.folders {
        let top = folder
            .canonicalize()
            .with_context(|| format!("there is no folder {}", folder.display()))?;
        found.extend(cases::find(folder, &top)?);
    }
    found.retain(|case| {
        options
            .only
            .as_ref()
            .is_none_or(|only| case.name.contains(only.as_str()))
    });
    if found.is_empty() {
        bail!("no folder with code is there, or none that --only names");
    }
    let tools = lab::tools(&options.tools)?;
    let lab = Lab::open(&tools, options)?;
    let all: Vec<_> = found
        .iter()
        .flat_map(|case| tools.iter().map(move |tool| (case, tool)))
        .collect();
    let (queue, tally) = (
        Mutex::new(all.iter().enumerate()),
        Mutex::new(Tally::default()),
    );
    let work = || {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((number, (case, tool))) = next else {
                return;
            };
            let text = one(&lab, case, tool, number, &tally);
            print(&format!(
                "{}/{}  {}  {}  {text}",
                number + 1,
                all.len(),
                tool.word,
                case.name
            ));
        }
    };
    thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(work);
        }
    });
    let tally = *tally.lock().unwrap_or_else(PoisonError::into_inner);
    let Tally {
        same,
        differ,
        deliberate,
        left_out,
    } = tally;
    print(&format!(
        "{same} same, {differ} differ, {deliberate} differ deliberately, {left_out} left out"
    ));
    if let Some(kept) = lab.end() {
        print(&format!("all of it is in {}", kept.display()));
    }
    Ok(tally)
}

/// Runs one case; returns the text of its result.
fn one(lab: &Lab, case: &Case, tool: &Tool, number: usize, tally: &Mutex<Tally>) -> String {
    let leave_out = |why: String| {
        tally
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .left_out += 1;
        format!("left out: {why}")
    };
    if case.unit && !lab.has_terragrunt() {
        return leave_out("Terragrunt is not built".to_owned());
    }
    let late = |who: &str| format!("{who} ended within {} s", lab.limit);
    let differences = match play::both(lab, case, tool, number) {
        // After an interruption, later results are random.
        Ok((bare, pawl)) => match (bare.is_late(), pawl.is_late()) {
            (false, false) => judge::compare(&bare, &pawl),
            (true, true) => return leave_out(late("neither side")),
            (bare, _) => vec![Difference {
                what: late(if bare {
                    "only Pawl"
                } else {
                    "only the bare tool"
                }),
                why: None,
            }],
        },
        // A case that cannot be run does not stop the others.
        Err(error) => vec![Difference {
            what: format!("cannot be compared: {error:#}"),
            why: None,
        }],
    };
    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    let unmeant: Vec<_> = differences
        .iter()
        .filter(|one| one.why.is_none())
        .map(|one| one.what.as_str())
        .collect();
    match differences.first() {
        None => {
            tally.same += 1;
            "same".to_owned()
        }
        Some(Difference {
            what,
            why: Some(why),
        }) if unmeant.is_empty() => {
            tally.deliberate += 1;
            format!("deliberate: {what} ({why})")
        }
        Some(_) => {
            tally.differ += 1;
            format!("DIFFERS: {}", unmeant.join("; "))
        }
    }
}
