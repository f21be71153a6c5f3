//! The summary of a plan beyond `+0 ~0 -0`: outputs, moves, and changes outside of the code.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use crds::RunResult;

use crate::place::{Lab, Place, Test, holds};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("reviewed::only_outputs_change", outputs),
        Test::new("reviewed::only_an_address_changes", moved),
        Test::new("reviewed::drift_is_summarised", drifted),
    ]
}

const BEFORE: &str = r#"
resource "terraform_data" "a" {
  input = "same"
}

output "said" {
  value = "before"
}

output "secret" {
  value     = "never-to-be-shown"
  sensitive = true
}
"#;

/// An applied stack.
fn applied(lab: &Lab, tool: &str, main: &str) -> Result<Place> {
    let place = lab.place(tool, &[("main.tf", main)])?;
    place.ends(0, &["--auto-approve"])?;
    Ok(place)
}

/// Plans other code, checks summary and changes, and applies it.
fn waits(place: &Place, main: &str, summary: &str, changes: &[&str]) -> Result<()> {
    fs::write(place.stack().join("main.tf"), main)?;
    let text = place.ends(2, &["apply"])?;
    holds(&text, summary)?;
    let record = place.record()?;
    ensure!(
        !serde_json::to_string(&record)?.contains("-shown"),
        "the value of a sensitive output: {record:?}"
    );
    let plan = record.plan.context("no plan")?;
    ensure!(
        plan.summary == summary && plan.changes == changes,
        "{plan:?}"
    );
    place.approve(&text)?;
    place.comes_to(RunResult::NoChanges, &["apply"]).map(drop)
}

fn outputs(lab: &Lab) -> Result<()> {
    for tool in lab.tools() {
        let place = applied(lab, tool, BEFORE)?;
        let after = BEFORE
            .replace("before", "after")
            .replace("never-to-be-shown", "nor-is-this-shown");
        let after = format!("{after}\noutput \"fresh\" {{\n  value = 1\n}}\n");
        waits(
            &place,
            &after,
            "+0 ~0 -0, 3 outputs",
            &["+ output.fresh", "~ output.said", "~ output.secret"],
        )?;
    }
    Ok(())
}

fn moved(lab: &Lab) -> Result<()> {
    for tool in lab.tools() {
        let place = applied(lab, tool, BEFORE)?;
        let moved = "\nmoved {\n  from = terraform_data.a\n  to   = terraform_data.b\n}\n";
        let after = format!("{}{moved}", BEFORE.replace("\"a\"", "\"b\""));
        waits(
            &place,
            &after,
            "+0 ~0 -0, 1 moved",
            &["> terraform_data.b (moved from terraform_data.a)"],
        )?;
    }
    Ok(())
}

fn drifted(lab: &Lab) -> Result<()> {
    let main = "terraform {\n  required_providers {\n    time = {\n      source = \"hashicorp/time\"\n    }\n  }\n}\n\
                resource \"time_rotating\" \"key\" {\n  rotation_years = 100\n}\n";
    for tool in lab.tools() {
        let place = applied(lab, tool, main)?;
        // The provider treats an expired rotation as deleted.
        let file = place.stack().join("terraform.tfstate");
        let mut state: serde_json::Value = serde_json::from_slice(&fs::read(&file)?)?;
        state["resources"][0]["instances"][0]["attributes"]["rotation_rfc3339"] =
            "2021-01-01T00:00:00Z".into();
        fs::write(&file, state.to_string())?;
        let before = fs::read(&file)?;
        let text = place.ends(2, &["plan", "-refresh-only"])?;
        ensure!(fs::read(&file)? == before, "{text}");
        holds(
            &text,
            "Objects differ from the state: +0 ~0 -0, 1 drifted; neither they nor the state were changed.",
        )?;
        let (code, text) = place.run(&["apply", "-refresh-only"])?;
        ensure!(code == 64 || code == 1, "{code}: {text}");
        holds(&text, "--refresh-only goes with plan")?;
        let changes = [
            "+ time_rotating.key",
            "! time_rotating.key (deleted outside of the code)",
        ];
        waits(&place, main, "+1 ~0 -0, 1 drifted", &changes)?;
    }
    Ok(())
}
