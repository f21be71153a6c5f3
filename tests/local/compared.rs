//! `cargo compare`: bare tool and Pawl do the same with every stack of the tests, and what differs is said.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, sync::Mutex, time::Duration};

use anyhow::{Result, ensure};
use tests::{
    cluster::gobuild::Toolset,
    compare::{self, Options, Tally},
};

use crate::place::{Lab, Test, fixtures};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("compared::stacks_are_the_same", |lab| {
            let (tally, said) = compared(lab.agent(), None)?;
            // The one for Terraform alone is refused with OpenTofu in Pawl's own words.
            ensure!(tally.same >= 10 && tally == Tally { same: tally.same, deliberate: 1, ..Tally::default() }, "{said}");
            Ok(())
        }),
        Test::new("compared::what_differs_is_said", differs),
    ]
}

/// Runs the comparison with OpenTofu, and says what it printed.
fn compared(agent: &Path, only: Option<&str>) -> Result<(Tally, String)> {
    let version = Toolset::ensure(&["tofu"])?.version("tofu")?.to_owned();
    let options = Options {
        folders: vec![fixtures()],
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

/// An agent that leaves a file behind, and plans for a word that nobody asked for.
fn differs(lab: &Lab) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let agent = dir.path().join("agent");
    let script = format!("#!/bin/sh\n: > litter\nexec '{}' \"$@\" --var word=other\n", lab.agent().display());
    fs::write(&agent, script)?;
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755))?;
    let (tally, said) = compared(&agent, Some("outputs"))?;
    ensure!(tally == Tally { differ: 1, ..Tally::default() }, "{said}");
    for part in ["outputs.text.value: bare \"default\", Pawl \"other\"", "only Pawl leaves litter"] {
        ensure!(said.contains(part), "`{part}` is missing in:\n{said}");
    }
    Ok(())
}
