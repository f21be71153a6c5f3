//! Sources that are no repository, and tokens for clouds: as the guide says it, and as it goes wrong.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use crds::{FailureClass, RunResult, reason};
use serde_json::{Value, json};
use tool_versions::Digest;

use crate::{
    guide::Reader,
    suite::{SOON, Scene, Test, holds, stderr},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("archive::an_artifact_is_what_its_digest_says", artifact),
        Test::new("archive::a_config_map_is_a_stack", config_map),
        Test::new("archive::a_token_is_for_the_audience_that_the_run_names", identity),
    ]
}

const MAIN: &str = "resource \"terraform_data\" \"a\" {\n  input = file(\"${path.module}/../words.txt\")\n}\n";

/// Packs a stack as Flux does, and publishes it on the mirror's server; its URL and digest.
pub(crate) fn published(scene: &Scene, name: &str) -> Result<(String, String)> {
    let below = Path::new("artifacts").join(&scene.namespace);
    let dir = scene.suite.releases.tree.root().join(&below);
    let stack = tempfile::tempdir()?;
    std::fs::create_dir_all(stack.path().join("net"))?;
    std::fs::write(stack.path().join("net/main.tf"), MAIN)?;
    std::fs::write(stack.path().join("words.txt"), "from an artifact")?;
    std::fs::create_dir_all(&dir)?;
    let file = dir.join(name);
    let output = Command::new("tar").arg("-czf").arg(&file).arg("-C").arg(stack.path()).args(["net", "words.txt"]).output()?;
    ensure!(output.status.success(), "{}", stderr(&output));
    let digest = format!("sha256:{}", Digest::of(&std::fs::read(&file)?));
    Ok((format!("{}/{}/{name}", scene.suite.releases.open.base(), below.display()), digest))
}

async fn artifact(scene: Scene) -> Result<()> {
    let (url, digest) = published(&scene, "net.tar.gz")?;
    let authority = scene.suite.releases.open.authority().context("the server has no authority")?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), authority)?;
    scene.kubectl(&["create", "secret", "generic", "server", &format!("--from-file=ca.crt={}", file.path().display())])?;
    let spec = |digest: &str| {
        let artifact = json!({"url": url, "digest": digest, "path": "net", "secretRef": {"name": "server"}});
        json!({"stack": "net", "source": {"artifact": artifact}, "approval": {"mode": "Automatic"},
            "tool": {"name": "OpenTofu", "version": "1.10.6"}})
    };
    scene.create("a", spec(&digest)).await?;
    let other = format!("sha256:{}", "0".repeat(64));
    scene.create("b", spec(&other)).await?;
    let status = scene.ends("a", RunResult::Applied).await?;
    ensure!(status.plan.context("no plan")?.revision == Some(digest.clone()));
    let status = scene.fails("b", FailureClass::Integrity, reason::ARTIFACT_MISMATCH, SOON).await?;
    let failure = status.failure.context("no failure")?;
    ensure!(failure.message.contains(&digest) && failure.message.contains(&other), "{failure:?}");
    ensure!(status.plan.is_none() && status.steps.iter().all(|step| step.name == "source"), "{:?}", status.steps);
    Ok(())
}

/// The guide's own blocks, in the namespace of the test.
async fn config_map(scene: Scene) -> Result<()> {
    let reader = Reader::new(&scene)?;
    std::fs::write(reader.dir.path().join("zones.yaml"), reader.here("zones.yaml")?)?;
    reader.paste(&reader.here("stack in a ConfigMap")?)?;
    let status = scene.ends("zones", RunResult::Planned).await?;
    holds(&status.history.join("\n"), "ConfigMap zones, 1 file")?;
    scene.create("gone", json!({"source": {"configMapRef": {"name": "nowhere"}}})).await?;
    scene.fails("gone", FailureClass::Configuration, reason::CONFIG_MAP_NOT_FOUND, SOON).await?;
    Ok(())
}

/// What a stack sees of its token: of the claims those that are no secret.
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
    let spec =
        json!({"credentials": credentials, "runner": {"serviceAccountName": "default"}, "approval": {"mode": "Automatic"}});
    scene.real("a", CLAIMS, spec.clone()).await?;
    // Without an account of its own a run has no identity that anybody could trust: the API server says so.
    let mut alone = spec;
    alone["runner"] = json!({});
    let refused = scene.real("b", "", alone).await.err().context("an identity without an account was accepted")?;
    holds(&format!("{refused:#}"), "need runner.serviceAccountName")?;
    scene.ends("a", RunResult::Applied).await?;
    let log = scene.log("a").await?;
    let subject = format!("system:serviceaccount:{}:default", scene.namespace);
    holds(&log, &format!("aud=https://vault.example.com/team sub={subject}"))?;
    holds(&log, "address=https://vault.example.com")?;
    holds(&log, "session=pawl-a")?;
    Ok(())
}
