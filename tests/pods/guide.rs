//! The commands of README and the guide, pasted into a shell with the files from the pages, as a reader does. `restored` covers backup,
//! restore and uninstalling, the suite `local` the local mode.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

use anyhow::{Context, Result, ensure};
use crds::RunResult;
use harness::{
    guide::{self, Mark},
    wait,
};
use tempfile::TempDir;
use xtask::root;

use crate::suite::{LATER, SOON, Scene, Test, holds, stderr};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("guide::first_runs_end_as_described", first_runs),
        Test::new("guide::manifests_are_accepted", |scene| async move {
            manifests(&scene)
        }),
        Test::new("guide::chart_renders_with_its_values", |scene| async move {
            values(&scene)
        }),
    ]
}

/// The namespace of the guide's runs.
const NAMESPACE: &str = "prod";
/// The repository in its manifests.
const REPOSITORY: &str = "https://git.example.com/platform/stacks.git";
const MAIN: &str = "variable \"zone\" { type = string }\nresource \"terraform_data\" \"vpc\" {\n  input = var.zone\n}\n";

/// A reader with an empty directory and the cluster's `kubectl`.
pub(crate) struct Reader<'a> {
    scene: &'a Scene,
    pub(crate) dir: TempDir,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(scene: &'a Scene) -> Result<Self> {
        Ok(Self {
            scene,
            dir: tempfile::tempdir()?,
        })
    }

    /// A named block, with the test's namespace.
    pub(crate) fn here(&self, name: &str) -> Result<String> {
        let namespace = &self.scene.namespace;
        let text = guide::block(name)?.replace(
            &format!("namespace: {NAMESPACE}"),
            &format!("namespace: {namespace}"),
        );
        Ok(text.replace(&format!("-n {NAMESPACE}"), &format!("-n {namespace}")))
    }

    /// Writes a manifest of a page to the file of its name.
    fn write(&self, file: &str, repository: &str) -> Result<()> {
        Ok(std::fs::write(
            self.dir.path().join(file),
            guide::block(file)?.replace(REPOSITORY, repository),
        )?)
    }

    /// Runs text in a shell; returns its output.
    pub(crate) fn paste(&self, text: &str) -> Result<String> {
        self.scene.paste(&format!(
            "set -e; cd '{}'\n{text}",
            self.dir.path().display()
        ))
    }

    /// Runs the named block unchanged.
    fn does(&self, name: &str) -> Result<String> {
        self.paste(&guide::block(name)?)
    }
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        stderr(output)
    )
}

async fn first_runs(scene: Scene) -> Result<()> {
    let reader = Reader::new(&scene)?;
    // A cluster from an earlier run still has both.
    reader.paste("kubectl delete tfrun hello --ignore-not-found --timeout=120s")?;
    reader.paste(&format!(
        "kubectl delete namespace {NAMESPACE} --ignore-not-found --timeout=170s"
    ))?;
    served(&scene).await?;
    readme(&reader)?;
    reader.does("check installation")?;
    reader.does("save keys")?;

    reader.does("make namespace")?;
    let (url, _) = scene.repository("stacks", &[("network/main.tf", MAIN)])?;
    for file in ["run.yaml", "plan.yaml"] {
        reader.write(file, &url)?;
    }
    for name in ["git secret", "cloud secret", "bind roles"] {
        reader.does(name)?;
    }
    let may = reader.does("ask rights")?;
    ensure!(may.lines().eq(["yes", "yes"]), "{may}");
    let prod = Scene {
        suite: scene.suite.clone(),
        namespace: NAMESPACE.to_owned(),
    };
    let first = created(&reader.does("create run")?)?;
    reader.does("wait for run")?;
    holds(&reader.does("list runs")?, "AwaitingApproval")?;
    holds(&reader.does("read run")?, "terraform_data.vpc")?;
    holds(&reader.does("read failure")?, "waits for approval")?;
    reader.does("cancel")?;
    let last = created(&reader.does("create run")?)?;
    prod.approve(&last).await?;
    prod.ends_within(&last, RunResult::Applied, LATER).await?;
    // Its plan superseded the first one's.
    prod.ends(&first, RunResult::Superseded).await?;
    reader.does("states")?;
    holds(
        &std::fs::read_to_string(reader.dir.path().join("old.tfstate"))?,
        "\"version\"",
    )?;
    holds(&reader.does("ci")?, "No changes.")?;
    reader.does("schedule")?;
    holds(&reader.does("metrics")?, "pawl_runs_finished")?;
    Ok(())
}

/// README's first run, with the command of its next step.
fn readme(reader: &Reader<'_>) -> Result<()> {
    reader.write("hello.yaml", REPOSITORY)?;
    holds(
        &reader.does("hello plan")?,
        "terraform_data.hello will be created",
    )?;
    let step = reader.does("hello next step")?;
    let (message, line) = step.trim_end().split_once('\n').context("no next step")?;
    holds(message, "plan +1 ~0 -0, 1 output waits for approval until")?;
    reader.paste(line)?;
    let end = reader.does("hello end")?;
    let row: Vec<&str> = end
        .lines()
        .last()
        .unwrap_or_default()
        .split_whitespace()
        .take(8)
        .collect();
    ensure!(
        row.join(" ") == "hello Apply Succeeded Applied +1 ~0 -0, 1",
        "{end}"
    );
    reader.does("hello again").map(drop)
}

/// Waits until the read API works: the API server discovers the datastore a moment after it is ready.
pub(crate) async fn served(scene: &Scene) -> Result<()> {
    let look = async || {
        Ok(scene
            .suite
            .cluster
            .kubectl(&["get", "--raw", "/apis/read.pawl.run/v1alpha1"]))
    };
    wait::until("the read API is served", SOON, look)
        .await
        .map(drop)
}

/// The name in the output of `kubectl create`.
fn created(text: &str) -> Result<String> {
    let line = text
        .lines()
        .find(|line| line.ends_with(" created"))
        .with_context(|| format!("nothing was created: {text}"))?;
    let name = line
        .split_once('/')
        .and_then(|(_, rest)| rest.split(' ').next());
    name.map(str::to_owned).context("it has no name")
}

fn manifests(scene: &Scene) -> Result<()> {
    let mut seen = 0;
    for block in guide::all()?
        .into_iter()
        .filter(|block| block.mark == Some(Mark::Accepted))
    {
        // The guide's namespace only needs to exist.
        let manifest = block.text.replace(
            &format!("namespace: {NAMESPACE}"),
            &format!("namespace: {}", scene.namespace),
        );
        let mut kubectl =
            scene
                .suite
                .cluster
                .kubectl_command(&["create", "--dry-run=server", "-f", "-"]);
        let output = fed(
            kubectl.stdout(Stdio::piped()).stderr(Stdio::piped()),
            &manifest,
        )?;
        ensure!(
            output.status.success(),
            "{}: {}",
            block.place,
            said(&output)
        );
        // kubectl warns about unknown fields.
        ensure!(
            !stderr(&output).contains("unknown field"),
            "{}: {}",
            block.place,
            stderr(&output)
        );
        seen += 1;
    }
    ensure!(seen > 0, "the guide has no manifests");
    Ok(())
}

fn fed(command: &mut Command, text: &str) -> Result<Output> {
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    std::io::Write::write_all(
        &mut child.stdin.take().context("no stdin")?,
        text.as_bytes(),
    )?;
    Ok(child.wait_with_output()?)
}

fn values(scene: &Scene) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut seen = 0;
    for block in guide::all()? {
        let Some(Mark::Values(name)) = &block.mark else {
            continue;
        };
        let file = dir.path().join("values.yaml");
        std::fs::write(&file, &block.text)?;
        let output = rendered(scene, &file)?;
        ensure!(
            output.status.success(),
            "{name} at {}: {}",
            block.place,
            said(&output)
        );
        seen += 1;
    }
    ensure!(seen > 0, "the guide has no values");
    Ok(())
}

fn rendered(scene: &Scene, values: &Path) -> Result<Output> {
    let mut helm = scene.suite.cluster.helm(&["template", "pawl"])?;
    Ok(helm
        .arg(root().join("charts/pawl"))
        .args(["-n", "pawl-system", "--kube-version", "1.34.4", "-f"])
        .arg(values)
        .output()?)
}
