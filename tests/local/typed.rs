//! Habits of the tools' users: options with one dash, outputs, and the order of lines.

use anyhow::{Context as _, Result, ensure};
use crds::RunResult;

use crate::place::{End as _, Lab, Place, Test, ended, holds};

pub(crate) fn tests(lab: &Lab) -> Vec<Test> {
    let mut tests = vec![
        Test::new("typed::options_of_the_tools", options),
        Test::new("typed::missing_directory_is_named", nowhere),
    ];
    for tool in lab.tools() {
        tests.push(Test::new(
            format!("typed::outputs_are_those_of_{tool}"),
            move |lab| outputs(lab, tool),
        ));
        tests.push(Test::new(
            format!("typed::summaries_follow_their_phases_with_{tool}"),
            move |lab| ordered(&lab.fixture(tool, "hello")?),
        ));
    }
    tests
}

fn options(lab: &Lab) -> Result<()> {
    let place = lab.fixture("tofu", "outputs")?;
    let line = [
        "apply",
        "-var",
        "word=typed",
        "-auto-approve",
        "-input=false",
        "-no-color",
    ];
    let text = place.comes_to(RunResult::Applied, &line)?;
    holds(&text, "\ntext = \"typed\"\n")?;
    holds(&text, "s  by --auto-approve\n")?;
    let text = place.ends(1, &["plan", "-var", "wrod=typed"])?;
    holds(
        &text,
        "the code does not declare variable wrod (did you mean word?)",
    )?;
    let runs = place.records()?.len();
    for (typed, named) in [
        ("-out=plan", "a plan is stored in DIR/.pawl"),
        ("-destroy", "runner-agent local destroy"),
    ] {
        let (code, text) = place.run(&["plan", typed])?;
        ensure!(
            code == 64 && text.lines().count() == 1,
            "{typed}: {code}: {text}"
        );
        holds(&text, named)?;
    }
    ensure!(place.records()?.len() == runs, "a run was begun");
    let text = place.ends(
        0,
        &[
            "plan",
            "-var=word=other",
            "-target=terraform_data.nothing",
            "-refresh=false",
        ],
    )?;
    let counts = place.record()?.plan.context("no plan")?.counts;
    ensure!(
        (counts.add, counts.change, counts.destroy) == (0, 0, 0),
        "{counts:?}: {text}"
    );
    Ok(())
}

fn nowhere(lab: &Lab) -> Result<()> {
    let place = lab.fixture("tofu", "hello")?;
    let (code, text) = place.run(&["plan", "no/such"])?;
    ensure!(
        code == 1 && text == "error: there is no directory no/such; nothing was changed\n",
        "{code}: {text}"
    );
    let text = place.ends(1, &["apply", "main.tf"])?;
    holds(&text, "--approve")?;
    let no_verb = "`output` is no verb of local: run `tofu output`";
    holds(&place.ends(1, &["output"])?, no_verb)?;
    holds(&place.ends(64, &["output", "."])?, no_verb)?;
    let text = place.ends(1, &["plan", "-var-file", "no.tfvars"])?;
    let path = place.stack().canonicalize()?.join("no.tfvars");
    holds(&text, &format!("there is no file {}", path.display()))
}

/// Values with special notations.
const VALUES: &str = r#"
output "lines" {
  value = "a\nb\"q"
}
output "nested" {
  value = { "a b" = [], c = {}, "1x" = [1.5, [true, null], "x\ny"], big = 12345678901234567890 }
}
output "converted" {
  value = [toset(["x", "y"]), tomap({ k = "v" }), tolist([1, 2])]
}
output "quoted" {
  value = "$${x} tab\there é \\ \u0007"
}
"#;

fn outputs(lab: &Lab, tool: &str) -> Result<()> {
    let place = lab.fixture(tool, "outputs")?;
    std::fs::write(place.stack().join("values.tf"), VALUES)?;
    let text = place.ends(0, &["--auto-approve"])?;
    let bare = ended(&mut place.program(
        tool,
        &["apply", "-auto-approve", "-no-color", "-input=false"],
    ))?
    .with(0)?;
    let wanted = bare
        .find("\nOutputs:\n")
        .map(|at| bare[at..].trim_end())
        .with_context(|| format!("no outputs: {bare}"))?;
    holds(wanted, "secret = <sensitive>")?;
    holds(&text, wanted)
}

/// The summary of a phase is between its tool's output and that of the next phase.
fn ordered(place: &Place) -> Result<()> {
    let text = place.ends(0, &["--auto-approve"])?;
    let mut rest = text.as_str();
    for part in [
        "\nSetup  ",
        "Initializing the backend",
        "\nInit  ",
        "\nPlan: 2 to add",
        "\nPlan  ",
        "\nApproved  ",
        "terraform_data.greeting: Creating...",
        "\nOutputs:\n",
        "\nApply  ",
        "\nApplied ",
    ] {
        rest = rest
            .split_once(part)
            .with_context(|| format!("`{part}` is not in its place:\n{text}"))?
            .1;
    }
    Ok(())
}
