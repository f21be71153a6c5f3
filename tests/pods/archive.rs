//! Archives as sources, and tokens for clouds: the examples of the guide.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use crds::RunResult;
use harness::guide;
use serde_json::{Value, json};
use tool_versions::Digest;

use crate::{
    guide::Reader,
    suite::{Scene, Test, automatic, holds, stderr, with},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("archive::artifact_of_the_guide_is_applied", artifact),
        Test::new("archive::config_map_and_secret_hold_stacks", objects),
        Test::new("archive::token_has_the_audience_of_the_run", identity),
    ]
}

const MAIN: &str =
    "resource \"terraform_data\" \"a\" {\n  input = file(\"${path.module}/../words.txt\")\n}\n";

/// Packs a stack as Flux does, and publishes it on the mirror's server. Returns URL and digest.
pub(crate) fn published(scene: &Scene, name: &str) -> Result<(String, String)> {
    let below = Path::new("artifacts").join(&scene.namespace);
    let dir = scene.suite.releases.tree.root().join(&below);
    let stack = tempfile::tempdir()?;
    std::fs::create_dir_all(stack.path().join("net"))?;
    std::fs::write(stack.path().join("net/main.tf"), MAIN)?;
    std::fs::write(stack.path().join("words.txt"), "from an artifact")?;
    std::fs::create_dir_all(&dir)?;
    let file = dir.join(name);
    let output = Command::new("tar")
        .arg("-czf")
        .arg(&file)
        .arg("-C")
        .arg(stack.path())
        .args(["net", "words.txt"])
        .output()?;
    ensure!(output.status.success(), "{}", stderr(&output));
    let digest = format!("sha256:{}", Digest::of(&std::fs::read(&file)?));
    Ok((
        format!(
            "{}/{}/{name}",
            scene.suite.releases.open.base(),
            below.display()
        ),
        digest,
    ))
}

/// The guide's run of an artifact, from a server whose authority is in the Secret.
async fn artifact(scene: Scene) -> Result<()> {
    let (url, digest) = published(&scene, "net.tar.gz")?;
    let authority = scene
        .suite
        .releases
        .open
        .authority()
        .context("the server has no authority")?;
    scene.secret("server", &[("ca.crt", authority)])?;
    let run: Value = serde_saphyr::from_str(&guide::block("artifact.yaml")?)?;
    let artifact = json!({"url": url, "digest": digest, "secretRef": {"name": "server"}});
    let tool = json!({"name": "OpenTofu", "version": "1.10.6"});
    let more = with(
        automatic(),
        json!({"source": {"artifact": artifact}, "tool": tool}),
    );
    scene.create("a", with(run["spec"].clone(), more)).await?;
    let plan = scene
        .ends("a", RunResult::Applied)
        .await?
        .plan
        .context("no plan")?;
    ensure!(
        plan.revision.as_ref() == Some(&digest) && plan.counts.add == 1,
        "{plan:?}"
    );
    Ok(())
}

/// Runs the guide's blocks in the test's namespace.
async fn objects(scene: Scene) -> Result<()> {
    let reader = Reader::new(&scene)?;
    std::fs::write(
        reader.dir.path().join("zones.yaml"),
        reader.here("zones.yaml")?,
    )?;
    reader.paste(&reader.here("stack in a ConfigMap")?)?;
    let status = scene.ends("zones", RunResult::Planned).await?;
    holds(&status.history.join("\n"), "ConfigMap zones, 1 file")?;
    std::fs::write(
        reader.dir.path().join("sealed.yaml"),
        reader.here("sealed.yaml")?,
    )?;
    reader.paste(&reader.here("stack in a Secret")?)?;
    let status = scene.ends("sealed", RunResult::Planned).await?;
    holds(&status.history.join("\n"), "Secret sealed, 2 files")
}

/// A stack that prints the non-secret claims of its token.
const CLAIMS: &str = r#"
locals {
  payload = split(".", file("/pawl/identity/vault/token"))[1]
  padded  = format("%s%s", replace(replace(local.payload, "-", "+"), "_", "/"), substr("====", 0, (4 - length(local.payload) % 4) % 4))
  claims  = jsondecode(base64decode(local.padded))
}
resource "terraform_data" "a" {
  input = "aud=${join(",", local.claims.aud)} sub=${local.claims.sub}"
  provisioner "local-exec" {
    command = "echo \"${self.input}\"; echo \"address=$VAULT_ADDR\"; test -r \"$AWS_WEB_IDENTITY_TOKEN_FILE\" && echo \"session=$AWS_ROLE_SESSION_NAME\""
  }
}
"#;

async fn identity(scene: Scene) -> Result<()> {
    let credentials: Value = json!({
        "vault": {"address": "https://vault.example.com", "audience": "https://vault.example.com/team"},
        "aws": {"roleArn": "arn:aws:iam::111122223333:role/terraform", "region": "eu-central-1"},
    });
    let spec = json!({"credentials": credentials, "runner": {"serviceAccountName": "default"}, "approval": {"mode": "Automatic"}});
    scene.real("a", CLAIMS, spec.clone()).await?;
    // A run without its own account has no identity to trust, so the API server refuses it.
    let mut alone = spec;
    alone["runner"] = json!({});
    let refused = scene
        .real("b", "", alone)
        .await
        .err()
        .context("an identity without an account was accepted")?;
    holds(&format!("{refused:#}"), "need runner.serviceAccountName")?;
    scene.ends("a", RunResult::Applied).await?;
    let log = scene.log("a").await?;
    let subject = format!("system:serviceaccount:{}:default", scene.namespace);
    holds(
        &log,
        &format!("aud=https://vault.example.com/team sub={subject}"),
    )?;
    holds(&log, "address=https://vault.example.com")?;
    holds(&log, "session=pawl-a")?;
    Ok(())
}
