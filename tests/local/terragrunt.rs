//! Real Terragrunt around OpenTofu: units that read outputs of others, and effects of its configuration on a run.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use crds::{Changed, RunResult, TerraformRun, TerraformRunStatus, reason};
use serde_json::Value;

use crate::{
    place::{Lab, Place, Test, ended, holds},
    terminal::{CTRL_C, Terminal},
};

pub(crate) fn tests(lab: &Lab) -> Vec<Test> {
    if !lab.has_terragrunt() {
        println!("left out: Terragrunt, which is not built yet");
        return Vec::new();
    }
    vec![
        Test::new("terragrunt::units_that_take_outputs_of_others", units),
        Test::new("terragrunt::a_unit_that_is_initialised_for_its_outputs", initialised),
        Test::new("terragrunt::what_is_excluded_has_nothing_to_apply", excluded),
        Test::new("terragrunt::an_error_that_is_ignored", ignored),
        Test::new("terragrunt::what_fails_at_first_is_tried_again", retried),
        Test::new("terragrunt::the_error_is_told_and_not_its_last_line", words),
        Test::new("terragrunt::hooks_run_once_a_command", hooks),
        Test::new("terragrunt::its_tool_has_one_interrupt", interrupted),
        Test::new("terragrunt::killed_with_its_tool", killed),
    ]
}

/// The agent in the folder of a unit.
fn agent(place: &Place, unit: &str, arguments: &[&str]) -> Command {
    let mut command = place.agent(arguments);
    command.current_dir(place.stack().join(unit));
    command
}

/// The newest record of a unit.
fn record(place: &Place, unit: &str) -> Result<TerraformRunStatus> {
    let runs = fs::read_dir(place.stack().join(unit).join(".pawl/runs"))?.flatten().map(|entry| entry.path());
    let run: TerraformRun = serde_json::from_slice(&fs::read(runs.max().context("no run")?.join("run.json"))?)?;
    Ok(run.status.unwrap_or_default())
}

/// Runs the agent in a unit; it must end with this result.
fn runs(place: &Place, unit: &str, arguments: &[&str], result: RunResult) -> Result<String> {
    let (_, text) = ended(&mut agent(place, unit, arguments))?;
    let status = record(place, unit)?;
    ensure!(status.result == Some(result), "{unit}: {:?} {:?}\n{text}", status.result, status.message);
    Ok(text)
}

fn units(lab: &Lab) -> Result<()> {
    let place = lab.units("units")?;
    // Compares with bare Terragrunt at each step, which stores its data elsewhere.
    let bare = |unit: &str| -> Result<i32> {
        let mut command = place.program("terragrunt", &["run", "--non-interactive", "--", "plan", "-detailed-exitcode"]);
        command.current_dir(place.stack().join(unit));
        Ok(ended(&mut command)?.0)
    };
    let text = runs(&place, "service", &["plan"], RunResult::Planned)?;
    holds(&text, "a mock {this stands")?;
    runs(&place, "network", &["apply", "--auto-approve"], RunResult::Applied)?;
    runs(&place, "service", &["apply", "--auto-approve"], RunResult::Applied)?;
    let state: Value = serde_json::from_slice(&fs::read(place.stack().join("states/service.tfstate"))?)?;
    ensure!(state["outputs"]["range"]["value"] == "10.0.0.0/16", "{state}");
    for unit in ["network", "service"] {
        runs(&place, unit, &["plan"], RunResult::NoChanges)?;
        ensure!(bare(unit)? == 0, "Terragrunt alone sees changes in {unit}");
    }
    // With the files that it left in its own copies.
    runs(&place, "service", &["destroy", "--auto-approve"], RunResult::Destroyed)?;
    ensure!(bare("service")? == 2, "Terragrunt alone sees nothing to create");
    Ok(())
}

fn excluded(lab: &Lab) -> Result<()> {
    let place = lab.units("excluded")?;
    let text = runs(&place, "", &["apply", "--auto-approve"], RunResult::NoChanges)?;
    holds(&text, "Terragrunt ran nothing in this unit")
}

fn ignored(lab: &Lab) -> Result<()> {
    let place = lab.units("ignored")?;
    let text = runs(&place, "", &["apply", "--auto-approve"], RunResult::NoChanges)?;
    holds(&text, "Ignoring error, reason: it is known")?;
    holds(&place.log()?, "it was told to ignore the error above; there is nothing to apply")?;
    runs(&place, "", &["apply", "--auto-approve", "--var", "allowed=true"], RunResult::Applied)?;
    // The same with the folder's settings.
    std::fs::write(place.stack().join("given.tfvars"), "allowed = true\n")?;
    let says = "apiVersion: pawl.run/v1alpha1\nkind: TerraformRun\nspec:\n  variableFiles: [{path: given.tfvars}]\n";
    std::fs::write(place.stack().join("pawl.yaml"), says)?;
    let text = runs(&place, "", &["apply", "--auto-approve"], RunResult::NoChanges)?;
    ensure!(!text.contains("Ignoring error"), "{text}");
    Ok(())
}

fn retried(lab: &Lab) -> Result<()> {
    let place = lab.units("retried")?;
    let text = runs(&place, "", &["apply", "--auto-approve"], RunResult::Applied)?;
    holds(&text, "flaky")
}

fn words(lab: &Lab) -> Result<()> {
    let place = lab.units("words")?;
    runs(&place, "", &["plan"], RunResult::Failed)?;
    let message = record(&place, "")?.failure.context("no failure")?.message;
    holds(&message, "init failed: downloading source url git::file:///nonexistent/repository.git?ref=v1; ")?;
    holds(&message, "'/nonexistent/repository.git' does not appear to be a git repository")?;
    ensure!(!message.contains("and the repository exists"), "{message}");
    Ok(())
}

fn hooks(lab: &Lab) -> Result<()> {
    let place = lab.units("hooks")?;
    runs(&place, "", &["apply", "--auto-approve"], RunResult::Applied)?;
    let ran = fs::read_to_string(place.stack().join("hooks.txt"))?;
    // Terragrunt decides whether `init` runs again.
    let ran: Vec<&str> = ran.lines().skip_while(|line| line.ends_with(" init")).filter(|line| !line.ends_with(" init")).collect();
    ensure!(ran == ["before plan", "after plan", "before apply", "after apply"], "{ran:?}");
    Ok(())
}

/// A unit with its backend in the code: Terragrunt must initialise it to read its outputs.
fn initialised(lab: &Lab) -> Result<()> {
    let place = lab.units("coded")?;
    runs(&place, "network", &["apply", "--auto-approve"], RunResult::Applied)?;
    for left in [".terragrunt-cache", ".terraform"] {
        fs::remove_dir_all(place.stack().join("network").join(left))?;
    }
    let text = runs(&place, "service", &["apply", "--auto-approve"], RunResult::Applied)?;
    holds(&text, "10.0.0.0/16")
}

/// A terminal with an apply in progress that lasts longer than any key takes.
fn applying(lab: &Lab) -> Result<(Place, Terminal)> {
    let place = lab.units("slow")?;
    let mut terminal = place.at_terminal(&[])?;
    terminal.answer("y")?;
    terminal.until("time_sleep.second: Creating...")?;
    Ok((place, terminal))
}

/// The state, in the copy that Terragrunt made.
fn state(place: &Place) -> Result<Value> {
    let below = |dir: &std::path::Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let copies = below(&place.stack().join(".terragrunt-cache")).flat_map(|dir| below(&dir).collect::<Vec<_>>());
    let file = copies.map(|copy| copy.join("terraform.tfstate")).find(|file| file.is_file()).context("no state")?;
    Ok(serde_json::from_slice(&fs::read(file)?)?)
}

fn interrupted(lab: &Lab) -> Result<()> {
    let (place, mut terminal) = applying(lab)?;
    for _ in 0..3 {
        terminal.press(CTRL_C)?;
    }
    let (code, text) = terminal.end()?;
    ensure!(text.matches("Interrupt received").count() == 1 && !text.contains("Two interrupts"), "{text}");
    let failure = record(&place, "")?.failure.context("no failure")?;
    ensure!(code == 1 && failure.reason == reason::APPLY_INTERRUPTED && failure.changes == Changed::Some, "{failure:?}: {text}");
    let left = state(&place)?["resources"].as_array().map_or(0, Vec::len);
    ensure!((1..3).contains(&left), "the state has {left} resources: {text}");
    Ok(())
}

fn killed(lab: &Lab) -> Result<()> {
    let (place, terminal) = applying(lab)?;
    terminal.signal(nix::sys::signal::Signal::SIGKILL)?;
    drop(terminal);
    // The tool's behaviour then is its own; the next run reports that the result is unknown.
    let (_, text) = ended(&mut agent(&place, "", &["plan"]))?;
    holds(&text, "it is not known what was applied")
}
