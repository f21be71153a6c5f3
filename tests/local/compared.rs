//! `cargo compare`: the bare tool and Pawl give the same results for every stack of the tests, and differences are reported.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

use anyhow::{Result, ensure};
use compare::{Options, Tally};
use harness::cluster::gobuild::Toolset;

use crate::place::{Lab, NEWER, Test, fixtures};

pub(crate) fn tests(lab: &Lab) -> Vec<Test> {
    let mut all = vec![
        Test::new("compared::stacks_are_the_same", |lab| {
            let (tally, said) = compared(lab.agent(), vec![fixtures()], "tofu", None)?;
            // Pawl refuses a version that it must not run with its own message.
            ensure!(
                tally.same >= 10
                    && tally
                        == Tally {
                            same: tally.same,
                            deliberate: 3,
                            ..Tally::default()
                        },
                "{said}"
            );
            Ok(())
        }),
        Test::new("compared::what_differs_is_said", differs),
    ];
    if lab.has_terragrunt() {
        all.push(Test::new("compared::units_are_the_same", |lab| {
            let units = ["hooks", "ignored", "units", "words"];
            let folders = units
                .map(|unit| fixtures().with_file_name("terragrunt").join(unit))
                .to_vec();
            let (tally, said) = compared(lab.agent(), folders, "tofu", None)?;
            ensure!(
                tally
                    == Tally {
                        same: 5,
                        ..Tally::default()
                    },
                "{said}"
            );
            Ok(())
        }));
    }
    if matches!(Toolset::cached(&[NEWER]), Ok(Some(_))) {
        all.push(Test::new("compared::a_newer_opentofu_is_the_same", |lab| {
            let stacks = [
                "both-tools",
                "ephemeral",
                "for-terraform",
                "undeclared",
                "workspaces",
            ];
            let folders = stacks.map(|stack| fixtures().join(stack)).to_vec();
            let (tally, said) = compared(lab.agent(), folders, NEWER, None)?;
            ensure!(
                tally
                    == Tally {
                        same: stacks.len(),
                        ..Tally::default()
                    },
                "{said}"
            );
            Ok(())
        }));
    } else {
        println!("left out: OpenTofu 1.12, which is not built yet");
    }
    all
}

/// Compares with a version of OpenTofu; returns the output.
fn compared(
    agent: &Path,
    folders: Vec<PathBuf>,
    tool: &str,
    only: Option<&str>,
) -> Result<(Tally, String)> {
    let version = Toolset::ensure(&[tool])?.version(tool)?.to_owned();
    let options = Options {
        folders,
        tools: vec![format!("opentofu@{version}")],
        only: only.map(str::to_owned),
        jobs: 2,
        limit: Duration::from_secs(600),
        keep: false,
        agent: agent.to_owned(),
    };
    let said = Mutex::new(String::new());
    let tally = compare::run(&options, &|line| {
        if let Ok(mut said) = said.lock() {
            said.extend([line, "\n"]);
        }
    })?;
    Ok((tally, said.into_inner().unwrap_or_default()))
}

/// An agent that leaves a file behind, and plans with another variable.
fn differs(lab: &Lab) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let agent = dir.path().join("agent");
    let script = format!(
        "#!/bin/sh\n: > litter\nexec '{}' \"$@\" --var word=other\n",
        lab.agent().display()
    );
    fs::write(&agent, script)?;
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755))?;
    let (tally, said) = compared(&agent, vec![fixtures()], "tofu", Some("outputs"))?;
    ensure!(
        tally
            == Tally {
                differ: 1,
                ..Tally::default()
            },
        "{said}"
    );
    for part in [
        "outputs.text.value: bare \"default\", Pawl \"other\"",
        "only Pawl leaves litter",
    ] {
        ensure!(said.contains(part), "`{part}` is missing in:\n{said}");
    }
    Ok(())
}
