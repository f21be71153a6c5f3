//! The tool of a folder, and the workspace of a command: shown, and limited to that command.

use anyhow::{Context as _, Result, ensure};
use crds::RunResult;

use crate::place::{End as _, Lab, Place, Test, ended, holds};

pub(crate) fn tests(lab: &Lab) -> Vec<Test> {
    let mut all = Vec::new();
    for tool in lab.tools() {
        all.push(Test::new(
            format!("chosen::workspace_applies_to_one_command_with_{tool}"),
            move |lab| workspace(lab, tool),
        ));
    }
    all.push(Test::new(
        "chosen::messages_name_no_image_and_no_spec",
        words,
    ));
    if lab.tools().contains(&"terraform") {
        all.push(Test::new(
            "chosen::code_for_terraform_runs_terraform",
            for_terraform,
        ));
        all.push(Test::new(
            "chosen::tool_on_path_does_not_select_the_tool",
            on_path,
        ));
    }
    all
}

/// Local mode has no image and no spec, so messages about tools must not mention them.
fn words(lab: &Lab) -> Result<()> {
    let place = lab.fixture("tofu", "hello")?;
    let version = lab.version("tofu")?;
    let said = [
        place.ends(1, &["plan", "--tool", "opentofu@0.0.1"])?,
        place.ends(1, &["plan", "--tool", "opentofu@< 1.0"])?,
        place.ends(0, &["plan", "--tool", &format!("opentofu@{version}")])?,
        ended(&mut place.program("runner-agent", &["tool", "resolve", "--offline"]))?.1,
    ];
    holds(&said[0], "--tool")?;
    holds(&said[2], &format!("OpenTofu {version}, from --tool"))?;
    for text in said {
        ensure!(
            !["in the image", "spec.tool", "spec.runner"]
                .iter()
                .any(|word| text.contains(word)),
            "{text}"
        );
    }
    Ok(())
}

fn resources_in(place: &Place, workspace: &str) -> Result<usize> {
    let path = place
        .stack()
        .join("terraform.tfstate.d")
        .join(workspace)
        .join("terraform.tfstate");
    let state: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).with_context(|| path.display().to_string())?)?;
    Ok(state["resources"].as_array().map_or(0, Vec::len))
}

fn workspace(lab: &Lab, tool: &str) -> Result<()> {
    let place = lab.fixture(tool, "workspaces")?;
    for verb in ["plan", "destroy"] {
        let text = place.comes_to(RunResult::Failed, &[verb, "--workspace", "typo"])?;
        holds(
            &text,
            "there is no workspace `typo`, and only an apply makes one; there are: default; nothing was changed",
        )?;
        ensure!(
            !place.stack().join("terraform.tfstate.d").exists(),
            "{verb} made a workspace: {text}"
        );
    }

    let text = place.comes_to(
        RunResult::Applied,
        &["apply", "--workspace", "staging", "--auto-approve"],
    )?;
    holds(&text, "workspace staging (new)")?;
    ensure!(
        resources_in(&place, "staging")? == 1 && place.resources()?.is_none(),
        "{text}"
    );

    // The workspace is not selected for later commands.
    let (_, text) = ended(&mut place.program(tool, &["workspace", "show"]))?;
    ensure!(text.trim() == "default", "it is selected now: {text}");
    let text = place.comes_to(RunResult::NoChanges, &["destroy", "--auto-approve"])?;
    ensure!(
        resources_in(&place, "staging")? == 1,
        "the other workspace was destroyed: {text}"
    );

    // A waiting plan is applied in the workspace where it was made.
    let text =
        place.waits(place.run(&["apply", "--workspace", "staging", "--var", "size=2"])?)?;
    ensure!(!text.contains("(new)"), "{text}");
    let text = place.approve(&text.replace("size=…", "size=2"))?;
    ensure!(
        resources_in(&place, "staging")? == 1 && place.resources()?.unwrap_or_default() == 0,
        "{text}"
    );

    // Without the flag, the workspace that was selected by hand counts.
    ended(&mut place.program(tool, &["workspace", "select", "staging"]))?.with(0)?;
    holds(
        &place.ends(0, &["plan", "--workspace", "default"])?,
        "1 to add",
    )?;
    let text = place.comes_to(RunResult::Destroyed, &["destroy", "--auto-approve"])?;
    ensure!(resources_in(&place, "staging")? == 0, "{text}");
    Ok(())
}

fn for_terraform(lab: &Lab) -> Result<()> {
    let place = lab.fixture("tofu", "for-terraform")?;
    let text = place.ends(1, &["plan"])?;
    let why = "Terraform since `~> 1.5.0` (main.tf:2) allows no OpenTofu";
    holds(
        &text,
        &format!("it is {why}; `--tool opentofu` asks for OpenTofu"),
    )?;
    lab.put_on_path(&place, "terraform")?;
    let text = place.ends(0, &["apply", "--auto-approve"])?;
    ensure!(place.resources()? == Some(1), "{text}");
    holds(
        &text,
        &format!("Terraform 1.5.7, the newest that main.tf allows; {why}"),
    )
}

fn on_path(lab: &Lab) -> Result<()> {
    let place = lab.fixture("terraform", "hello")?;
    std::fs::remove_file(place.stack().join(".terraform-version"))?;
    let both = |more: &[&str], code: i32, part: &str| -> Result<()> {
        holds(&place.ends(code, &[&["plan"], more].concat())?, part)?;
        let mut resolve = place.program(
            "runner-agent",
            &[&["tool", "resolve", "--offline"], more].concat(),
        );
        holds(&ended(&mut resolve)?.with(code)?, part)
    };
    both(
        &[],
        1,
        "so it is OpenTofu by default; `--tool opentofu` or `--tool terraform` selects it",
    )?;
    both(
        &["--tool", "terraform"],
        0,
        "Terraform 1.5.7, the newest that main.tf allows",
    )?;
    lab.put_on_path(&place, "tofu")?;
    both(
        &[],
        0,
        ", the newest that main.tf allows; OpenTofu by default",
    )
}
