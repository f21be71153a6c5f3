//! The API server accepts the output of `controller convert` for the examples and knows all its fields.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::world::{Test, World};

pub(crate) fn tests() -> Vec<Test> {
    [
        "burrito",
        "tofu-controller",
        "terraform-operator",
        "alustan",
    ]
    .into_iter()
    .map(|peer| {
        Test::new(
            &format!("convert::output_for_{peer}_is_accepted"),
            false,
            move |world| async move { accepted(&world, peer) },
        )
    })
    .collect()
}

fn accepted(world: &World, peer: &'static str) -> Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures/convert")
        .join(peer);
    let mut objects = 0;
    let kubectl = |args: &[&str]| world.access.kubectl_command(args).output();
    let mut namespaces = BTreeSet::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if !path.to_string_lossy().ends_with(".expected.yaml") {
            continue;
        }
        let found: Vec<Value> =
            serde_saphyr::from_multiple(&std::fs::read_to_string(&path)?).context("YAML")?;
        for namespace in found
            .iter()
            .filter_map(|object| object["metadata"]["namespace"].as_str())
        {
            if namespace != "default" && namespaces.insert(namespace.to_owned()) {
                // A parallel test may have created it.
                let made = kubectl(&["create", "namespace", namespace])?;
                let said = String::from_utf8_lossy(&made.stderr).into_owned();
                ensure!(
                    made.status.success() || said.contains("AlreadyExists"),
                    "{said}"
                );
            }
        }
        objects += found.len();
        let file = path.display().to_string();
        let answer = kubectl(&[
            "create",
            "--dry-run=server",
            "--validate=strict",
            "-f",
            &file,
        ])?;
        ensure!(
            answer.status.success(),
            "{file}: {}",
            String::from_utf8_lossy(&answer.stderr)
        );
    }
    ensure!(objects >= 4, "{peer}: {objects} objects");
    Ok(())
}
