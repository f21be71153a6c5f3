//! Each example: plan, deny, apply, apply again, destroy.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use crds::{Changed, FailureClass, RunResult, reason};

use crate::place::{Lab, Place, Test, holds};

/// Stacks, their command line arguments, and the number of resources in their state.
const EXAMPLES: &[(&str, &[&str], usize)] = &[
    ("hello", &[], 2),
    ("many", &["--var", "count_of_them=7"], 1),
    ("outputs", &[], 1),
    ("module", &[], 1),
    ("replace", &[], 2),
    (
        "variables",
        &["--var", "required=it's here", "--var-file", "more.tfvars"],
        1,
    ),
    ("slow", &["--var", "seconds=1"], 4),
    ("demo", &["--no-color"], 4),
];

pub(crate) fn tests(lab: &Lab) -> Vec<Test> {
    let mut tests = Vec::new();
    for tool in lab.tools() {
        for (stack, arguments, resources) in EXAMPLES {
            let body = move |lab: &Lab| example(&lab.fixture(tool, stack)?, arguments, *resources);
            tests.push(Test::new(format!("examples::{stack}_with_{tool}"), body));
        }
        tests.push(Test::new(
            format!("examples::failing_apply_with_{tool}"),
            move |lab| failing(&lab.fixture(tool, "failing-apply")?),
        ));
        for (stack, place) in [
            ("broken-syntax", "main.tf line 5"),
            ("broken-reference", "main.tf line 6"),
        ] {
            let body = move |lab: &Lab| {
                let folder = lab.fixture(tool, stack)?;
                // Unreadable code does not tell for which tool it is.
                if tool == "tofu" {
                    fs::write(folder.stack().join(".opentofu-version"), lab.version(tool)?)?;
                }
                broken(&folder, place)
            };
            tests.push(Test::new(
                format!("examples::{stack}_with_{tool}").replace('-', "_"),
                body,
            ));
        }
    }
    tests.push(Test::new("examples::replacement_is_a_new_plan", |lab| {
        replaced(&lab.fixture("tofu", "replace")?)
    }));
    tests
}

fn example(place: &Place, arguments: &[&str], resources: usize) -> Result<()> {
    fs::write(place.stack().join("more.tfvars"), "size = 3\n")?;
    let with = |verb: &'static str| [&[verb][..], arguments].concat();

    let text = place.comes_to(RunResult::Planned, &with("plan"))?;
    ensure!(
        place.resources()?.is_none(),
        "a plan changed something: {text}"
    );

    let mut terminal = place.at_terminal(&with("apply"))?;
    terminal.answer("n")?;
    let text = place.came_to(RunResult::Rejected, terminal.end()?)?;
    holds(&text, "nothing was applied")?;
    ensure!(
        place.resources()?.is_none(),
        "denied, and something was changed: {text}"
    );

    let mut terminal = place.at_terminal(&with("apply"))?;
    terminal.answer("y")?;
    let text = place.came_to(RunResult::Applied, terminal.end()?)?;
    let record = place.record()?;
    ensure!(
        place.resources()? == Some(resources),
        "the state has {:?} resources: {text}",
        place.resources()?
    );
    let checksum = record.plan.map(|plan| plan.checksum).unwrap_or_default();
    holds(&text, &format!("Apply {checksum} ("))?;
    ensure!(
        record.claim.map(|claim| claim.checksum).as_deref() == Some(&checksum),
        "another plan was claimed"
    );
    ensure!(
        record.approval.map(|approval| approval.by).as_deref() == Some("alice"),
        "who answered is not in the record"
    );

    let text = place.came_to(
        RunResult::NoChanges,
        place.at_terminal(&with("apply"))?.end()?,
    )?;
    ensure!(!text.contains("[y/N]"), "asked about nothing: {text}");

    let text = place.comes_to(
        RunResult::Destroyed,
        &[&with("destroy")[..], &["--auto-approve"]].concat(),
    )?;
    ensure!(place.resources()? == Some(0), "something is left: {text}");
    Ok(())
}

fn failing(place: &Place) -> Result<()> {
    let mut terminal = place.at_terminal(&[])?;
    terminal.answer("yes")?;
    let text = place.came_to(RunResult::Failed, terminal.end()?)?;
    ensure!(
        place.failure()?.changes == Changed::Some,
        "something was changed: {text}"
    );
    holds(&text, "some of the plan was carried out")?;
    holds(&text, "Next: ")?;
    ensure!(
        place.resources()? == Some(2),
        "what was created is in the state: {text}"
    );
    Ok(())
}

fn broken(place: &Place, line: &str) -> Result<()> {
    let text = place.comes_to(RunResult::Failed, &[])?;
    let failure = place.failure()?;
    let why = (failure.class, failure.reason.as_str(), failure.changes);
    ensure!(
        why == (
            FailureClass::Configuration,
            reason::INVALID_CONFIGURATION,
            Changed::None
        ),
        "{failure:?}"
    );
    let first = failure.diagnostics.first().context("no diagnostic")?;
    let at = first
        .file
        .as_ref()
        .zip(first.line)
        .map(|(file, number)| format!("{file} line {number}"));
    ensure!(at.as_deref() == Some(line), "{failure:?}");
    holds(&text, line)?;
    holds(
        &text,
        &format!("Next: correct {}", line.replace(" line ", ":")),
    )?;
    holds(&text, "nothing was changed")?;
    ensure!(
        !text.contains("[reset]") && !place.log()?.contains("[reset]"),
        "marks of colours: {text}"
    );
    ensure!(place.resources()?.is_none(), "{text}");
    Ok(())
}

fn replaced(place: &Place) -> Result<()> {
    place.ends(0, &["--auto-approve"])?;
    let first = place.record()?.plan.map(|plan| plan.checksum);
    place.ends(2, &["--var", "generation=2"])?;
    let plan = place.record()?.plan.unwrap_or_default();
    ensure!(
        (plan.counts.replace, plan.counts.change) == (1, 1),
        "{plan:?}"
    );
    ensure!(
        Some(&plan.checksum) != first.as_ref(),
        "two plans have one checksum"
    );
    Ok(())
}
