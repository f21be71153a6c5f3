//! Chromium beside `kubectl`, on the same objects, in turns.

use anyhow::{Context, Result};
use harness::cluster::command;
use serde::Deserialize;
use std::process::Command;

use super::{Lab, people};
use crate::scale;
use crate::table::{Limit, Table, Unit, median};

/// Output of `controller/ui/e2e/figures.mjs`, in milliseconds.
#[derive(Deserialize)]
struct Figures {
    script: Vec<f64>,
    click: Vec<f64>,
    kubectl: Vec<f64>,
}

pub(super) fn measure(lab: &Lab, table: &mut Table) -> Result<()> {
    let kubeconfig = lab.directory.path().join("person.kubeconfig");
    let token = people::token(&lab.plane, "default", "person")?;
    scale::kubeconfig(&lab.plane, "default", "person", &kubeconfig)?;
    let mut node = Command::new("node");
    node.current_dir(xtask::ui::directory())
        .arg("e2e/figures.mjs")
        .env("PAWL_URL", &lab.url)
        .env("PAWL_TOKEN", token)
        .env("KUBECTL", &lab.plane.kubectl)
        .env("KUBECONFIG", &kubeconfig)
        .env("KUBECACHEDIR", lab.directory.path().join("cache"));
    let text = command::run(&mut node)?;
    let line = text.lines().last().context("node printed nothing")?;
    let found: Figures = serde_json::from_str(line).with_context(|| text.clone())?;
    let ratio = median(&found.kubectl) / median(&found.click);
    for (name, samples, limit) in [
        (
            "script of the first view (min / median / max)",
            found.script,
            Limit::Max(0.2),
        ),
        (
            "click on Layers to its painted rows",
            found.click,
            Limit::None,
        ),
        (
            "`kubectl get layers -A` to its 100th line",
            found.kubectl,
            Limit::None,
        ),
    ] {
        for sample in samples {
            table.sample(name, Unit::Millis, sample / 1000.0);
        }
        table.limit(name, limit);
    }
    table.close();
    table.bound(
        "the click is faster by (medians)",
        format!("{ratio:.0} times"),
        "at least 50 times",
        ratio >= 50.0,
    );
    Ok(())
}
