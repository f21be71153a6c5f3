//! Failures with the tools' own messages, and Pawl's `Next` step: after following it the run succeeds.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use crds::{
    Changed, Failure,
    FailureClass::{self, Configuration, Integrity, Transient},
    reason,
};

use servers::state::StateServer;

use crate::place::{End as _, Lab, Place, Test, ended, holds, runtime};

type Body = fn(&Lab, &str) -> Result<()>;

pub(crate) fn tests(lab: &Lab) -> Vec<Test> {
    let bodies: [(&str, Body); 11] = [
        ("a_variable_with_unreadable_text", unreadable),
        ("a_backend_beside_a_state", moved),
        ("a_variable_without_a_value", missing),
        ("a_variable_with_a_wrong_value", wrong),
        ("wrong_code", code),
        ("a_backend_that_does_not_answer", backend),
        ("a_damaged_state", damaged),
        ("a_newer_state", newer),
        ("a_registry_that_does_not_answer", registry),
        ("errors_of_instances", instances),
        ("a_failing_provisioner", provisioner),
    ];
    let mut tests = Vec::new();
    for tool in lab.tools() {
        for (name, body) in bodies {
            tests.push(Test::new(
                format!("advice::{name}_with_{tool}"),
                move |lab| body(lab, tool),
            ));
        }
    }
    tests.push(Test::new(
        "advice::versions_that_contradict_each_other",
        contradiction,
    ));
    tests
}

/// Runs a command that must fail in this way; returns its output, its failure, and the next step.
fn fails(
    place: &Place,
    command: &mut Command,
    class: FailureClass,
    reason: &str,
) -> Result<(String, Failure, String)> {
    let (text, failure) = (ended(command)?.with(1)?, place.failure()?);
    ensure!(
        (failure.class, failure.reason.as_str()) == (class, reason),
        "{failure:?}: {text}"
    );
    let next = place.record()?.next_step.context("no next step")?;
    holds(&text, &failure.message)?;
    holds(&text, &format!("Next: {next}"))?;
    Ok((text, failure, next))
}

/// The command that follows the first part of a next step.
fn then(next: &str) -> Result<&str> {
    Ok(next
        .split_once(", then: ")
        .with_context(|| format!("nothing follows in `{next}`"))?
        .1)
}

/// Runs the command after the first part is done; it must succeed.
fn goes_well(place: &Place, line: &str) -> Result<()> {
    place.paste(line)?.with(0).map(drop)
}

fn missing(lab: &Lab, tool: &str) -> Result<()> {
    let place = lab.fixture(tool, "variables")?;
    let (_, failure, next) = fails(
        &place,
        &mut place.agent(&["plan"]),
        Configuration,
        reason::VARIABLE_NOT_SET,
    )?;
    holds(
        &failure.message,
        "a variable has no value: required (main.tf:",
    )?;
    ensure!(next.ends_with(" --var required=…"), "{next}");
    goes_well(&place, &next.replace('…', "here"))
}

fn wrong(lab: &Lab, tool: &str) -> Result<()> {
    let place = lab.fixture(tool, "variables")?;
    let mut command = place.agent(&["plan", "--var", "required=x", "--var", "size=-1"]);
    let (_, failure, next) = fails(
        &place,
        &mut command,
        Configuration,
        reason::VARIABLE_INVALID,
    )?;
    holds(
        &failure.message,
        "var.size is -1. The size must be positive.",
    )?;
    holds(
        &next,
        "correct the value that the message names, where it is given: --var",
    )?;
    let line = then(&next)?.replace("required=…", "required=x");
    goes_well(&place, &line.replace("size=…", "size=1"))
}

fn unreadable(lab: &Lab, tool: &str) -> Result<()> {
    let place = lab.place(
        tool,
        &[("main.tf", "variable \"m\" {\n  type = map(string)\n}\n")],
    )?;
    let mut command = place.agent(&["plan", "--var", "m={a=\"b\""]);
    let (_, failure, _) = fails(
        &place,
        &mut command,
        Configuration,
        reason::VARIABLE_INVALID,
    )?;
    holds(&failure.message, "plan failed: Unterminated ")
}

fn moved(lab: &Lab, tool: &str) -> Result<()> {
    let place = lab.fixture(tool, "hello")?;
    place.ends(0, &["--auto-approve"])?;
    let block = "terraform {\n  backend \"local\" {\n    path = \"there.tfstate\"\n  }\n}\n";
    fs::write(place.stack().join("backend.tf"), block)?;
    let (_, failure, next) = fails(
        &place,
        &mut place.agent(&["plan"]),
        Configuration,
        reason::INIT_FAILED,
    )?;
    holds(
        &failure.message,
        "run `init -migrate-state` of the tool once",
    )?;
    let migrate = ["init", "-migrate-state", "-force-copy", "-no-color"];
    ended(&mut place.program(tool, &migrate))?.with(0)?;
    let text = place.paste(then(&next)?)?.with(0)?;
    holds(&text, "No changes")
}

fn code(lab: &Lab, tool: &str) -> Result<()> {
    let place = lab.fixture(tool, "broken-reference")?;
    let (_, _, next) = fails(
        &place,
        &mut place.agent(&["plan"]),
        Configuration,
        reason::INVALID_CONFIGURATION,
    )?;
    ensure!(next.starts_with("correct main.tf:6, then: "), "{next}");
    place.correct("terraform_data.nowhere.output", "\"here\"")?;
    goes_well(&place, then(&next)?)
}

fn backend(lab: &Lab, tool: &str) -> Result<()> {
    let place = lab.fixture(tool, "state-elsewhere")?;
    let mut command = place.agent(&["plan"]);
    command.env("TF_HTTP_ADDRESS", "http://127.0.0.1:1/state");
    let (_, failure, next) = fails(&place, &mut command, Transient, reason::BACKEND_UNREACHABLE)?;
    holds(&failure.message, "init failed: Error refreshing state: ")?;
    holds(&failure.message, "connection refused")?;
    ensure!(
        next.starts_with(
            "make sure that the state's backend, which the message names, can be reached, then: "
        ),
        "{next}"
    );
    let runtime = runtime()?;
    let server = runtime.block_on(StateServer::start("127.0.0.1:0".parse()?))?;
    // The tool treats another address as another backend; the first has stored nothing.
    fs::remove_dir_all(place.stack().join(".terraform"))?;
    let mut shell = place.program("/bin/sh", &["-c", then(&next)?]);
    ended(shell.env("TF_HTTP_ADDRESS", server.url("here")))?
        .with(0)
        .map(drop)
}

/// A state of this format version, which this tool wrote.
fn state(version: u8, tool: &str) -> String {
    format!(
        r#"{{"version": {version}, "terraform_version": "{tool}", "serial": 1, "lineage": "l", "outputs": {{}}, "resources": []}}"#
    )
}

fn damaged(lab: &Lab, tool: &str) -> Result<()> {
    let place = lab.fixture(tool, "hello")?;
    let file = place.stack().join("terraform.tfstate");
    fs::write(&file, "{\"version\": 4, \"terra")?;
    let (_, failure, next) = fails(
        &place,
        &mut place.agent(&["plan"]),
        Integrity,
        reason::STATE_UNREADABLE,
    )?;
    holds(&failure.message, "could not be parsed as JSON")?;
    holds(&next, "restore an earlier version of the state")?;
    fs::write(&file, state(4, "1.5.0"))?;
    goes_well(&place, then(&next)?)
}

fn newer(lab: &Lab, tool: &str) -> Result<()> {
    let place = lab.fixture(tool, "hello")?;
    fs::write(place.stack().join("terraform.tfstate"), state(5, "9.9.9"))?;
    let (_, failure, next) = fails(
        &place,
        &mut place.agent(&["plan"]),
        Configuration,
        reason::STATE_TOO_NEW,
    )?;
    holds(&failure.message, " 9.9.9.")?;
    holds(
        &next,
        "name a version that is not older than what the message names with --tool",
    )
}

fn registry(lab: &Lab, tool: &str) -> Result<()> {
    let place = lab.fixture(tool, "provider-elsewhere")?;
    let mut command = place.agent(&["plan"]);
    // Without the mirror that all tests use.
    command.env("TF_CLI_CONFIG_FILE", "/dev/null");
    let (_, failure, next) = fails(
        &place,
        &mut command,
        Transient,
        reason::PROVIDER_UNREACHABLE,
    )?;
    holds(&failure.message, "connection refused")?;
    ensure!(
        next.starts_with("make sure that the host that the message names can be reached, then: "),
        "{next}"
    );
    Ok(())
}

fn instances(lab: &Lab, tool: &str) -> Result<()> {
    let place = lab.fixture(tool, "instances")?;
    let (text, failure, _) = fails(
        &place,
        &mut place.agent(&["plan"]),
        Configuration,
        reason::INVALID_CONFIGURATION,
    )?;
    ensure!(failure.diagnostics.len() == 3, "{failure:?}");
    holds(&failure.message, "; 2 more errors: ")?;
    // In the tool's own words.
    for part in [
        "\n  on each/main.tf line 7, in resource \"terraform_data\" \"one_of_two\":\n   7:   input = tolist([\"the only one\"])[count.index]\n    ├──",
        "\n    │ count.index is 1\n\nThe given key does not",
        "\n    │ var.word is \"second\"\n\nIt is not the first.",
    ] {
        holds(&text, part)?;
    }
    let details: Vec<_> = failure
        .diagnostics
        .iter()
        .filter_map(|d| d.detail.as_deref())
        .collect();
    let has = |what: &str| details.iter().any(|detail| detail.starts_with(what));
    ensure!(
        has("count.index is 1. ") && has("var.word is \"second\". It"),
        "{details:?}"
    );
    Ok(())
}

fn provisioner(lab: &Lab, tool: &str) -> Result<()> {
    let place = lab.fixture(tool, "failing-provisioner")?;
    let mut command = place.agent(&["--auto-approve"]);
    let (text, failure, next) = fails(&place, &mut command, Configuration, reason::APPLY_FAILED)?;
    ensure!(failure.changes == Changed::Some, "{failure:?}");
    holds(&failure.message, "(terraform_data.made, main.tf line 2)")?;
    holds(
        &text,
        "\n  with terraform_data.made,\n  on main.tf line 2, in resource \"terraform_data\" \"made\":",
    )?;
    holds(
        &text,
        "; some of the plan was carried out; 0 of 1 operations succeeded, 1 more put their object into the state as tainted; 1 created and recorded; state serial ",
    )?;
    ensure!(next.starts_with("correct main.tf:2, then: "), "{next}");
    place.correct("exit 3", "exit 0")?;
    // The failed resource is tainted, and the plan that replaces it waits for an answer.
    let text = place.paste(then(&next)?)?.with(2)?;
    ensure!(
        place.record()?.plan.unwrap_or_default().counts.replace == 1,
        "{text}"
    );
    Ok(())
}

fn contradiction(lab: &Lab) -> Result<()> {
    let place = lab.fixture("tofu", "hello")?;
    let pin = place.stack().join(".opentofu-version");
    fs::write(&pin, "1.0.0\n")?;
    let (_, failure, next) = fails(
        &place,
        &mut place.agent(&["plan"]),
        Configuration,
        reason::VERSION_CONTRADICTION,
    )?;
    holds(&failure.message, ".opentofu-version:1")?;
    holds(&next, "correct one of the places that the message names")?;
    fs::remove_file(&pin)?;
    goes_well(&place, then(&next)?)?;
    // No version fits, wherever it is from.
    let required = |text: &str| format!("terraform {{\n  required_version = \"{text}\"\n}}\n");
    for (one, other, said) in [
        (
            ">= 1.10.0-rc1",
            ">= 1",
            "names a prerelease, which required_version may not",
        ),
        ("~> 1.10.0-beta2", ">= 1", "no OpenTofu with `"),
        ("1.5.x", ">= 1", "1.5.x"),
        (">= 1.9", "< 1.6", "which no version satisfies"),
    ] {
        fs::write(place.stack().join("one.tf"), required(one))?;
        fs::write(place.stack().join("other.tf"), required(other))?;
        let mut plan = place.agent(&["plan"]);
        let (_, failure, next) = fails(
            &place,
            &mut plan,
            Configuration,
            reason::VERSION_CONTRADICTION,
        )?;
        holds(&failure.message, said)?;
        holds(&next, "correct one of the places that the message names")?;
    }
    Ok(())
}
