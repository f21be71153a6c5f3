//! The agent reads the plan file itself: with every kind of change, of every tool and version that is built, its list is that of `show
//! -json`, since the run would fail otherwise; and a provider that forges what the tool prints changes nothing of it.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use anyhow::{Context as _, Result, ensure};
use crds::FailureClass;
use harness::cluster::{cache, gobuild::Toolset};
use serde_json::{Value, json};

use crate::place::{Lab, NEWER, Place, Test, ended, fixtures, holds};

/// Built only on request.
const OTHERS: [(&str, &str); 4] = [
    ("tofu", "tofu-1.9.4"),
    ("tofu", NEWER),
    ("terraform", "terraform-1.8.5"),
    ("terraform", "terraform-1.13.3"),
];

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("plans::each_version_agrees_with_its_file", each_version),
        Test::new("plans::forged_output_is_refused", refused),
        Test::new("plans::forged_output_changes_no_list", forged),
    ]
}

fn fixture(name: &str) -> Result<String> {
    let path = fixtures().with_file_name("plans").join(name);
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

fn each_version(lab: &Lab) -> Result<()> {
    for tool in lab.tools() {
        every_kind(lab, tool, None)?;
    }
    for (tool, name) in OTHERS {
        match Toolset::cached(&[name]) {
            Ok(Some(other)) => every_kind(lab, tool, Some((name, &other)))?,
            _ => println!("left out: {name}, which is not built yet"),
        }
    }
    Ok(())
}

fn every_kind(lab: &Lab, tool: &str, other: Option<(&str, &Toolset)>) -> Result<()> {
    let state = r#"{"version":4,"terraform_version":"1.5.7","serial":1,"lineage":"x","outputs":{},"resources":[]}"#;
    let files = [
        ("main.tf", fixture("before.tf")?),
        ("mod/main.tf", fixture("mod/main.tf")?),
        ("mod/deep/main.tf", fixture("mod/deep/main.tf")?),
        ("other.tfstate", state.to_owned()),
    ];
    let place = lab.place(
        tool,
        &files.each_ref().map(|(name, text)| (*name, text.as_str())),
    )?;
    let binary = place.home().with_file_name("bin").join(tool);
    let mut forgets = tool == "tofu";
    if let Some((name, other)) = other {
        place.replace(tool, other.path(name)?)?;
        if tool == "terraform" {
            fs::write(
                place.stack().join(".terraform-version"),
                other.version(name)?,
            )?;
            forgets = true;
        }
    }
    place.ends(0, &["apply", "--auto-approve"])?;
    let tainted = place.program(
        &binary.display().to_string(),
        &["taint", "terraform_data.tainted"],
    );
    let (code, text) = ended(&mut { tainted })?;
    ensure!(code == 0, "{text}");
    change_state(&place)?;
    fs::write(place.stack().join("main.tf"), fixture("after.tf")?)?;
    if forgets {
        fs::write(place.stack().join("forget.tf"), fixture("forget.tf")?)?;
    }
    let text = place.ends(2, &["apply"])?;
    let plan = place.record()?.plan.context("no plan")?;
    let forgotten = if forgets {
        ". terraform_data.forgotten (forgotten)"
    } else {
        "- terraform_data.forgotten"
    };
    let mut wanted = vec![
        "- terraform_data.counted[1]",
        "- terraform_data.deleted",
        r#"- terraform_data.keyed["q\"uote"]"#,
        "- terraform_data.same (deposed)",
        r#"- module.m["data.gone"].terraform_data.inner"#,
        r#"- module.m["data.gone"].module.deep[0].terraform_data.deep"#,
        "-/+ terraform_data.replaced",
        "-/+ terraform_data.swapped",
        "-/+ terraform_data.tainted",
        "~ terraform_data.newer (moved from terraform_data.older)",
        "~ terraform_data.updated",
        r#"~ module.m["x.y"].terraform_data.inner"#,
        "+ terraform_data.created",
        r#"+ terraform_data.keyed["new \"q\""]"#,
        "+ time_rotating.drifted",
        "= terraform_data.imported (imported)",
        "> terraform_data.new (moved from terraform_data.old)",
        "! time_rotating.drifted (deleted outside of the code)",
        "~ output.changed",
        "- output.gone",
        "~ output.secret",
        "+ output.unknown",
    ];
    wanted.insert(if forgets { 9 } else { 2 }, forgotten);
    ensure!(
        plan.changes == wanted && !plan.counts.unread,
        "{tool} {other:?}: {plan:#?}"
    );
    place.approve(&text)?;
    place.ends(0, &["destroy", "--auto-approve"]).map(drop)
}

/// Adds a deposed object to the state.
fn change_state(place: &Place) -> Result<()> {
    let file = place.stack().join("terraform.tfstate");
    let mut state: Value = serde_json::from_slice(&fs::read(&file)?)?;
    let resources = state["resources"].as_array_mut().context("no resources")?;
    let same = resources
        .iter_mut()
        .find(|one| one["name"] == "same")
        .context("no resource")?;
    let instances = same["instances"].as_array_mut().context("no instances")?;
    let mut deposed = instances.first().context("no instance")?.clone();
    deposed["deposed"] = json!("abcd1234");
    instances.push(deposed);
    Ok(fs::write(&file, state.to_string())?)
}

/// Code that has its way with the tool's process, as with `ptrace`: the tool plans and applies, and prints something else.
fn refused(lab: &Lab) -> Result<()> {
    let main = |name: &str| format!("resource \"terraform_data\" \"{name}\" {{}}\n");
    let place = lab.place("tofu", &[("main.tf", &main("precious"))])?;
    place.ends(0, &["apply", "--auto-approve"])?;
    fs::write(place.stack().join("main.tf"), main("other"))?;
    let binary = place.home().with_file_name("bin").join("tofu");
    let real = fs::canonicalize(&binary)?;
    let forged = r#"{"errored":false,"resource_changes":[{"address":"terraform_data.harmless","change":{"actions":["create"]}}]}"#;
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in\n*'show -json'*) echo '{forged}' ;;\n*show*) echo 'No changes.' ;;\n*) exec '{}' \"$@\" ;;\nesac\n",
        real.display()
    );
    fs::remove_file(&binary)?;
    cache::write(&binary, script)?;
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755))?;
    let text = place.ends(1, &["apply", "--auto-approve"])?;
    holds(
        &text,
        "the plan file has +1 ~0 -1 (- terraform_data.precious), the tool printed +1 ~0 -0 (+ terraform_data.harmless)",
    )?;
    holds(
        &text,
        "Note: the words of OpenTofu have no count, and the plan file has +1 ~0 -1",
    )?;
    let record = place.record()?;
    let state = fs::read_to_string(place.stack().join("terraform.tfstate"))?;
    ensure!(
        record.claim.is_none() && state.contains("precious"),
        "{text}"
    );
    ensure!(place.failure()?.class == FailureClass::Integrity, "{text}");
    Ok(())
}

/// The same without `ptrace`: what the tool prints is taken from the pipe, and something else written to it.
fn forged(lab: &Lab) -> Result<()> {
    let code = "resource \"time_static\" \"a\" {}\n";
    let place = lab.place(
        "tofu",
        &[(
            "main.tf",
            &format!("{code}resource \"terraform_data\" \"precious\" {{}}\n"),
        )],
    )?;
    place.ends(0, &["apply", "--auto-approve"])?;
    fs::write(place.stack().join("main.tf"), code)?;
    let (config, hostile) = hostile_provider(lab, &place, "forge.sh")?;
    fs::write(
        hostile.join("forged.json"),
        r#"{"errored":false,"resource_changes":[]}"#,
    )?;
    fs::write(
        hostile.join("forged.txt"),
        "No changes. Your infrastructure matches the configuration.\n",
    )?;
    for _ in 0..3 {
        let mut command = place.agent(&["apply"]);
        let (code, text) = ended(command.env("TF_CLI_CONFIG_FILE", &config))?;
        let record = place.record()?;
        ensure!(
            record.claim.is_none() && place.resources()? == Some(2),
            "{code}: {text}"
        );
        match (record.plan, record.failure) {
            (Some(plan), None) => {
                ensure!(plan.changes == ["- terraform_data.precious"], "{plan:?}");
            }
            (None, Some(failure)) => ensure!(
                ["PlanContradicted", "PlanUnreadable"].contains(&failure.reason.as_str()),
                "{failure:?}"
            ),
            other => anyhow::bail!("{other:?}: {text}"),
        }
    }
    Ok(())
}

/// Puts a script of the hostile fixtures in the provider's place. Returns the configuration for the tool, and the script's directory.
pub(crate) fn hostile_provider(
    lab: &Lab,
    place: &Place,
    script: &str,
) -> Result<(PathBuf, PathBuf)> {
    let (version, provider) = lab.provider()?;
    let mirror = place.home().join("mirror");
    let hostile = mirror
        .join("registry.opentofu.org/hashicorp/time")
        .join(version)
        .join("linux_amd64");
    fs::create_dir_all(&hostile)?;
    fs::copy(provider, hostile.join("real-provider"))?;
    fs::copy(
        fixtures().with_file_name("hostile").join(script),
        hostile.join(format!("terraform-provider-time_v{version}")),
    )?;
    let config = place.home().join("hostile.tfrc");
    let text = format!(
        "provider_installation {{\n  filesystem_mirror {{\n    path = \"{}\"\n  }}\n}}\n",
        mirror.display()
    );
    fs::write(&config, text)?;
    fs::remove_file(place.stack().join(".terraform.lock.hcl"))?;
    Ok((config, hostile))
}
