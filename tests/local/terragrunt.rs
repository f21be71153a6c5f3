//! Real Terragrunt around OpenTofu: units that read outputs of others, and effects of its configuration on a run.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use crds::{
    Changed,
    RunResult::{Applied, Destroyed, Failed, NoChanges, Planned},
    reason,
};
use serde_json::Value;

use crate::{
    interrupts::applying,
    place::{End as _, HEAD, Lab, Place, Test, approval, ended, holds},
    terminal::CTRL_C,
};

pub(crate) fn tests(lab: &Lab) -> Vec<Test> {
    if !lab.has_terragrunt() {
        println!("left out: Terragrunt, which is not built yet");
        return Vec::new();
    }
    vec![
        Test::new("terragrunt::units_read_outputs_of_others", units),
        Test::new(
            "terragrunt::unit_is_initialised_for_its_outputs",
            initialised,
        ),
        Test::new("terragrunt::stack_alone_is_refused_with_its_units", stack),
        Test::new("terragrunt::excluded_unit_has_nothing_to_apply", excluded),
        Test::new("terragrunt::values_of_the_run_win", given),
        Test::new("terragrunt::ignored_error_leaves_nothing_to_apply", ignored),
        Test::new("terragrunt::flaky_command_is_retried", retried),
        Test::new("terragrunt::hook_that_fails_with_2_fails_the_plan", policy),
        Test::new("terragrunt::plan_with_mocks_is_not_applied", mocked),
        Test::new(
            "terragrunt::mocks_without_a_warning_are_not_applied",
            silent,
        ),
        Test::new("terragrunt::apply_with_other_inputs_is_not_begun", begun),
        Test::new("terragrunt::failed_download_is_reported", words),
        Test::new("terragrunt::hooks_run_once_a_command", hooks),
        Test::new("terragrunt::ctrl_c_interrupts_the_tool_once", interrupted),
        Test::new("terragrunt::killed_apply_is_indeterminate", killed),
    ]
}

fn stack(lab: &Lab) -> Result<()> {
    let place = lab.units("units")?;
    let text = "unit \"net\" {\n  source = \"../network\"\n  path = \"net\"\n}\n";
    place.write("all/terragrunt.stack.hcl", text)?;
    let said = place.unit("all").comes_to(Failed, &["plan"])?;
    holds(
        &said,
        "is only a Terragrunt stack (terragrunt.stack.hcl) of unit net",
    )?;
    holds(&said, ".terragrunt-stack/net")
}

fn units(lab: &Lab) -> Result<()> {
    let place = lab.units("units")?;
    let (network, service) = (place.unit("network"), place.unit("service"));
    // Compares with bare Terragrunt at each step, which stores its data elsewhere.
    let bare = [
        "run",
        "--non-interactive",
        "--",
        "plan",
        "-detailed-exitcode",
    ];
    holds(
        &service.comes_to(Planned, &["plan"])?,
        "a mock {this stands",
    )?;
    for unit in [&network, &service] {
        unit.comes_to(Applied, &["apply", "--auto-approve"])?;
    }
    let state: Value =
        serde_json::from_slice(&fs::read(place.stack().join("states/service.tfstate"))?)?;
    ensure!(
        state["outputs"]["range"]["value"] == "10.0.0.0/16",
        "{state}"
    );
    for unit in [&network, &service] {
        unit.comes_to(NoChanges, &["plan"])?;
        ended(&mut unit.program("terragrunt", &bare))?.with(0)?;
    }
    // With the files that it left in its own copies.
    service.comes_to(Destroyed, &["destroy", "--auto-approve"])?;
    ended(&mut service.program("terragrunt", &bare))?
        .with(2)
        .map(drop)
}

fn excluded(lab: &Lab) -> Result<()> {
    let text = lab
        .units("excluded")?
        .comes_to(NoChanges, &["apply", "--auto-approve"])?;
    holds(&text, "Terragrunt ran nothing in this unit")
}

/// The unit has a source, inputs, and arguments with other values.
fn given(lab: &Lab) -> Result<()> {
    let unit = lab.units("given")?.unit("unit");
    let text = unit.comes_to(Applied, &["apply", "--auto-approve"])?;
    holds(
        &text,
        "of the module, of arguments, of-environment, of a file",
    )?;
    let settings = |variables: &str| {
        let files = "  variableFiles: [{path: own.tfvars}]\n";
        unit.write("own.tfvars", "b = \"own b\"\nother = 1\n")?;
        unit.write(
            "pawl.yaml",
            &format!("{HEAD}{files}  variables: [{variables}]\n"),
        )
    };
    settings("{name: a, value: own a}, {name: d, value: [own d]}")?;
    let line = ["apply", "--auto-approve", "--var", "c=own c"];
    holds(
        &unit.comes_to(Applied, &line)?,
        "own a, own b, own c, own d",
    )?;
    holds(
        &unit.log()?,
        "own.tfvars gives variables that the code does not declare: other",
    )?;
    settings("{name: aa, value: 1}")?;
    unit.comes_to(Failed, &["plan"])?;
    let failure = unit.failure()?;
    ensure!(failure.reason == reason::INVALID_SPEC, "{failure:?}");
    holds(
        &failure.message,
        "the code does not declare variable aa (did you mean a?)",
    )
}

fn ignored(lab: &Lab) -> Result<()> {
    let place = lab.units("ignored")?;
    let text = place.comes_to(NoChanges, &["apply", "--auto-approve"])?;
    holds(&text, "Ignoring error, reason: it is known")?;
    holds(
        &place.log()?,
        "it was told to ignore the error above; there is nothing to apply",
    )?;
    place.comes_to(
        Applied,
        &["apply", "--auto-approve", "--var", "allowed=true"],
    )?;
    // The same with the folder's settings.
    place.write("given.tfvars", "allowed = true\n")?;
    place.write(
        "pawl.yaml",
        &format!("{HEAD}  variableFiles: [{{path: given.tfvars}}]\n"),
    )?;
    let text = place.comes_to(NoChanges, &["apply", "--auto-approve"])?;
    ensure!(!text.contains("Ignoring error"), "{text}");
    Ok(())
}

fn retried(lab: &Lab) -> Result<()> {
    holds(
        &lab.units("retried")?
            .comes_to(Applied, &["apply", "--auto-approve"])?,
        "flaky",
    )
}

fn words(lab: &Lab) -> Result<()> {
    let place = lab.units("words")?;
    place.comes_to(Failed, &["plan"])?;
    let message = place.failure()?.message;
    holds(
        &message,
        "init failed: downloading source url git::file:///nonexistent/repository.git?ref=v1; ",
    )?;
    holds(
        &message,
        "'/nonexistent/repository.git' does not appear to be a git repository",
    )?;
    ensure!(!message.contains("and the repository exists"), "{message}");
    Ok(())
}

fn hooks(lab: &Lab) -> Result<()> {
    let place = lab.units("hooks")?;
    place.comes_to(Applied, &["apply", "--auto-approve"])?;
    let ran = fs::read_to_string(place.stack().join("hooks.txt"))?;
    // Terragrunt decides whether `init` runs again.
    let ran: Vec<&str> = ran
        .lines()
        .skip_while(|line| line.ends_with(" init"))
        .filter(|line| !line.ends_with(" init"))
        .collect();
    ensure!(
        ran == ["before plan", "after plan", "before apply", "after apply"],
        "{ran:?}"
    );
    Ok(())
}

/// Mocks in a plan, and outputs that changed since it.
fn mocked(lab: &Lab) -> Result<()> {
    lab.tools()
        .into_iter()
        .try_for_each(|tool| mocks(lab, tool))
}

fn mocks(lab: &Lab, tool: &str) -> Result<()> {
    let place = lab.units("units")?;
    let (network, service) = (place.unit("network"), place.unit("service"));
    if tool == "terraform" {
        lab.put_on_path(&place, tool)?;
        for unit in [&network, &service] {
            unit.write(".terraform-version", &lab.version(tool)?)?;
        }
    }
    let refused = |printed: &str, said: &str| {
        let (_, text) = service.paste(&approval(printed)?)?;
        let failure = service.failure()?;
        ensure!(
            failure.reason == reason::INPUTS_CHANGED
                && failure.changes == Changed::None
                && failure.message.contains(said),
            "{failure:?}: {text}"
        );
        ensure!(!place.stack().join("states/service.tfstate").is_file());
        Ok(())
    };
    let text = service.ends(2, &["apply"])?;
    network.comes_to(Applied, &["apply", "--auto-approve"])?;
    refused(&text, "the plan has mocks")?;
    // Without mocks, and with another value at the approval.
    let text = service.ends(2, &["apply"])?;
    network.correct("10.0.0.0", "10.1.0.0")?;
    network.comes_to(Applied, &["apply", "--auto-approve"])?;
    refused(&text, "TF_VAR_range")?;
    let text = service.ends(2, &["apply"])?;
    service.approve(&text)?;
    service.comes_to(NoChanges, &["plan"]).map(drop)
}

/// Mocks of which Terragrunt prints no warning: merged ones, those of a disabled dependency, and any below a log that is silent.
fn silent(lab: &Lab) -> Result<()> {
    for (is_applied, line, level, said) in [
        (
            false,
            "",
            "error",
            "; apply the unit that has the outputs, and plan again",
        ),
        (
            false,
            "enabled = get_platform() == \"\"",
            "info",
            "dependency network is disabled and has mock_outputs",
        ),
        (
            true,
            "mock_outputs_merge_strategy_with_state = \"deep_map_only\"",
            "info",
            "dependency network merges mock_outputs",
        ),
        (
            true,
            "mock_outputs_merge_with_state = true",
            "info",
            "dependency network merges mock_outputs",
        ),
    ] {
        let place = lab.units("units")?;
        let (network, service) = (place.unit("network"), place.unit("service"));
        if is_applied {
            network.comes_to(Applied, &["apply", "--auto-approve"])?;
        }
        // In another file, whose path only Terragrunt knows.
        let dependency = format!(
            "dependency \"network\" {{\n  config_path = \"../network\"\n  mock_outputs = {{ range = \"a mock\", more = 1 }}\n  {line}\n}}\n"
        );
        fs::write(place.stack().join("dependency.hcl"), dependency)?;
        let file = service.stack().join("terragrunt.hcl");
        let text = fs::read_to_string(&file)?;
        let (head, rest) = text
            .split_once("dependency \"network\"")
            .context("no block")?;
        let (_, rest) = rest.split_once("}\n\n").context("no end")?;
        let include =
            "include \"dependency\" {\n  path = \"../${basename(\"/dependency\")}.hcl\"\n}\n";
        fs::write(&file, [head, include, rest].concat())?;
        let mut run = service.agent(&["apply", "--auto-approve"]);
        run.env("TG_LOG_LEVEL", level);
        let text = service.came_to(Failed, ended(&mut run)?)?;
        let failure = service.failure()?;
        ensure!(
            failure.reason == reason::INPUTS_CHANGED
                && failure.changes == Changed::None
                && failure.message.contains(said),
            "{line}: {failure:?}: {text}"
        );
        ensure!(!place.stack().join("states/service.tfstate").is_file());
    }
    Ok(())
}

/// Inputs that only the apply itself gets show behind the claim, where the stand-in does not start the tool.
fn begun(lab: &Lab) -> Result<()> {
    let files = [
        (
            "terragrunt.hcl",
            "inputs = {\n  a = get_terraform_command() == \"apply\" ? \"other\" : \"planned\"\n}\n",
        ),
        (
            "main.tf",
            "variable \"a\" {}\nresource \"terraform_data\" \"a\" {\n  input = var.a\n}\n",
        ),
    ];
    let place = lab.with_terragrunt(&files)?;
    place.comes_to(Failed, &["apply", "--auto-approve"])?;
    let failure = place.failure()?;
    ensure!(
        failure.reason == reason::INPUTS_CHANGED
            && failure.changes == Changed::None
            && failure.message.contains("TF_VAR_a"),
        "{failure:?}"
    );
    ensure!(state(&place).is_err(), "it has a state");
    Ok(())
}

/// Terragrunt ends with a hook's exit code, and 2 is the tool's for a plan with changes.
fn policy(lab: &Lab) -> Result<()> {
    let place = lab.with_terragrunt(&[("main.tf", "resource \"terraform_data\" \"a\" {}\n")])?;
    let unit =
        |block: &str| place.write("terragrunt.hcl", &format!("terraform {{\n  {block}\n}}\n"));
    unit(
        "after_hook \"policy\" {\n commands = [\"plan\"]\n execute = [\"sh\", \"-c\", \"echo not allowed >&2; exit 2\"]\n }",
    )?;
    place.comes_to(Failed, &["apply", "--auto-approve"])?;
    let failure = place.failure()?;
    ensure!(
        failure.reason == reason::PLAN_FAILED && failure.message.contains("not allowed"),
        "{failure:?}"
    );
    // With the tool's own exit code for changes, by the code's arguments.
    unit(
        "extra_arguments \"codes\" {\n commands = [\"plan\"]\n arguments = [\"-detailed-exitcode\"]\n }",
    )?;
    place.comes_to(Applied, &["apply", "--auto-approve"])?;
    place.comes_to(NoChanges, &["apply", "--auto-approve"])?;
    Ok(())
}

/// A unit with its backend in the code: Terragrunt must initialise it to read its outputs.
fn initialised(lab: &Lab) -> Result<()> {
    let place = lab.units("coded")?;
    let network = place.unit("network");
    network.comes_to(Applied, &["apply", "--auto-approve"])?;
    for left in [".terragrunt-cache", ".terraform"] {
        fs::remove_dir_all(network.stack().join(left))?;
    }
    holds(
        &place
            .unit("service")
            .comes_to(Applied, &["apply", "--auto-approve"])?,
        "10.0.0.0/16",
    )
}

/// The state, in the copy that Terragrunt made.
fn state(place: &Place) -> Result<Value> {
    let below = |dir: &std::path::Path| {
        fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
    };
    let copies = below(&place.stack().join(".terragrunt-cache"))
        .flat_map(|dir| below(&dir).collect::<Vec<_>>());
    let file = copies
        .map(|copy| copy.join("terraform.tfstate"))
        .find(|file| file.is_file())
        .context("no state")?;
    Ok(serde_json::from_slice(&fs::read(file)?)?)
}

fn interrupted(lab: &Lab) -> Result<()> {
    let (place, mut terminal) = applying(lab.units("slow")?)?;
    for _ in 0..3 {
        terminal.press(CTRL_C)?;
    }
    let (code, text) = terminal.end()?;
    ensure!(
        text.matches("Interrupt received").count() == 1 && !text.contains("Two interrupts"),
        "{text}"
    );
    let failure = place.failure()?;
    ensure!(
        code == 1
            && failure.reason == reason::APPLY_INTERRUPTED
            && failure.changes == Changed::Some,
        "{failure:?}: {text}"
    );
    let left = state(&place)?["resources"].as_array().map_or(0, Vec::len);
    ensure!(
        (1..3).contains(&left),
        "the state has {left} resources: {text}"
    );
    Ok(())
}

fn killed(lab: &Lab) -> Result<()> {
    let (place, terminal) = applying(lab.units("slow")?)?;
    terminal.signal(nix::sys::signal::Signal::SIGKILL)?;
    drop(terminal);
    // The tool's behaviour then is its own; the next run reports that the result is unknown.
    holds(&place.run(&["plan"])?.1, "it is not known what was applied")
}
