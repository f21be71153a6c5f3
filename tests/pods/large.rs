//! Git LFS files of a repository, fetched with the `git-lfs` of the runner's image.

use anyhow::{Context, Result};
use crds::{FailureClass, RunResult, reason};
use harness::guide;
use serde_json::{Value, json};
use servers::{
    auth::Access,
    large::{oid, pointer},
    repo::Change,
};

use crate::suite::{SOON, Scene, Test, holds, with};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new(
        "large::large_files_are_planned_and_pointers_refused",
        contents,
    )]
}

/// A stack that hashes a file.
const MAIN: &str =
    "resource \"terraform_data\" \"a\" {\n  input = filesha256(\"${path.module}/code.zip\")\n}\n";

async fn contents(scene: Scene) -> Result<()> {
    let git = &scene.suite.git;
    let (there, gone) = (
        format!("large of {}", scene.namespace).into_bytes(),
        b"nobody has it".as_slice(),
    );
    git.add_large(&there);
    let name = scene.path("large");
    git.create(&name)?.commit_changes(
        "main",
        &[
            Change::File(
                ".gitattributes",
                b"*.zip filter=lfs diff=lfs merge=lfs -text\n",
            ),
            Change::File("lambda/main.tf", MAIN.as_bytes()),
            Change::File("lambda/code.zip", pointer(&there).as_bytes()),
            Change::File("app/main.tf", MAIN.as_bytes()),
            Change::File("app/code.zip", pointer(gone).as_bytes()),
        ],
    )?;
    git.set_access(&name, Access::basic("me", "s3cret-word"));
    scene.secret("git", &[("username", "me"), ("password", "s3cret-word")])?;
    let run: Value = serde_saphyr::from_str(&guide::block("large.yaml")?)?;
    let spec = |path: &str| -> Value {
        let git = json!({"url": git.url(&name), "path": path});
        let tool = json!({"name": "OpenTofu", "version": "1.10.6"});
        with(
            run["spec"].clone(),
            json!({"source": {"git": git}, "tool": tool}),
        )
    };
    scene.create("lambda", spec("lambda")).await?;
    scene.create("app", spec("app")).await?;
    scene.ends("lambda", RunResult::Planned).await?;
    let log = scene.log("lambda").await?;
    holds(&log, &oid(&there))?;
    holds(
        &log,
        "these files are left out, since they are only pointers of Git LFS",
    )?;
    let status = scene
        .fails(
            "app",
            FailureClass::Configuration,
            reason::SOURCE_INVALID,
            SOON,
        )
        .await?;
    let message = status.failure.context("no failure")?.message;
    holds(&message, "git has only pointers to app/code.zip")?;
    holds(&message, "does not exist")
}
