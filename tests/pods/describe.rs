//! The output of `kubectl describe terraformrun` for a waiting, an applied and a failed run. The guide contains these texts, taken from
//! these runs; `UPDATE=1` rewrites them.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use crds::{Phase, RunResult};
use serde_json::json;

use crate::suite::{SOON, Scene, TIMEOUT, Test, holds};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new(
        "describe::guide_shows_the_output_of_real_runs",
        texts,
    )]
}

const MAIN: &str = r#"variable "zone" { type = string }

resource "terraform_data" "vpc" {
  input = "10.0.0.0/16 in ${var.zone}"
}

resource "terraform_data" "subnet" {
  count = 2
  input = "10.0.${count.index}.0/24 of ${terraform_data.vpc.id}"
}

output "vpc_id" {
  value = terraform_data.vpc.id
}
"#;

async fn texts(scene: Scene) -> Result<()> {
    let (url, sha) = scene.repository(
        "stacks",
        &[
            ("network/main.tf", MAIN),
            ("network/.opentofu-version", "1.10.6\n"),
        ],
    )?;
    let broken = MAIN.replace("var.zone}", "var.zones}");
    let repo = scene.suite.git.create(&scene.path("broken"))?;
    let broken_sha = repo.commit(
        "main",
        &[
            ("network/main.tf", &broken),
            ("network/.opentofu-version", "1.10.6\n"),
        ],
    )?;
    let spec = |url: &str| json!({"source": {"git": {"url": url, "revision": "main", "path": "network"}}, "variables": [{"name": "zone", "value": "north"}]});
    scene.create("network", spec(&url)).await?;
    scene.phase("network", Phase::AwaitingApproval).await?;
    scene.kubectl(&["wait", "--for=condition=Planned", TIMEOUT, "tfrun/network"])?;
    let waiting = scene.kubectl(&["describe", "terraformrun", "network"])?;
    for part in [
        "+3 ~0 -0, 1 output",
        "+ terraform_data.vpc",
        "+ output.vpc_id",
        "Next Step:",
        "kubectl annotate -n",
        "pawl.run/approve=sha256:",
        "OpenTofu 1.10.6",
    ] {
        holds(&waiting, part)?;
    }
    scene.approved("network").await?;
    scene.kubectl(&["wait", "--for=condition=Finished", TIMEOUT, "tfrun/network"])?;
    let applied = scene.kubectl(&["describe", "terraformrun", "network"])?;
    for part in ["Result:", "Applied", "By:", "admin"] {
        holds(&applied, part)?;
    }
    scene
        .create(
            "network-2",
            spec(&scene.suite.git.url(&scene.path("broken"))),
        )
        .await?;
    scene
        .ends_within("network-2", RunResult::Failed, SOON)
        .await?;
    scene.kubectl(&[
        "wait",
        "--for=condition=Finished",
        TIMEOUT,
        "tfrun/network-2",
    ])?;
    let failed = scene.kubectl(&["describe", "terraformrun", "network-2"])?;
    for part in ["network/main.tf", "Nothing was changed", "Next Step:"] {
        holds(&failed.to_lowercase(), &part.to_lowercase())?;
    }
    for text in [&waiting, &applied, &failed] {
        let wrapped: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with(|c: char| !c.is_whitespace()) && !line.contains(':'))
            .collect();
        ensure!(
            wrapped.is_empty(),
            "lines that fell out of their column: {wrapped:?}"
        );
        says_something(text)?;
    }
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../design/guide/reading-a-run.md");
    let mut page = std::fs::read_to_string(&path)?;
    for (name, text) in [
        ("awaiting", &waiting),
        ("applied", &applied),
        ("failed", &failed),
    ] {
        let clean = neutral(text, &scene, &[&sha, &broken_sha]);
        let head = format!("<!-- snapshot: describe_{name} -->\n```text\n");
        let (before, rest) = page
            .split_once(&head)
            .with_context(|| format!("the page has no place for describe_{name}"))?;
        let (kept, after) = rest
            .split_once("```\n<!-- end -->")
            .context("a snapshot in the page has no end")?;
        if std::env::var_os("UPDATE").is_some() {
            page = format!("{before}{head}{clean}```\n<!-- end -->{after}");
            std::fs::write(&path, &page)?;
        } else {
            ensure!(
                shape(kept) == shape(&clean),
                "the guide shows another {name} run than runs are now; UPDATE=1 writes it anew:\n{clean}"
            );
        }
    }
    Ok(())
}

/// Fails if a message is empty.
fn says_something(text: &str) -> Result<()> {
    ensure!(
        !text.lines().any(|line| line.trim() == "Message:"),
        "an empty message in:\n{text}"
    );
    Ok(())
}

/// Replaces names of this machine and this run by neutral ones.
fn neutral(text: &str, scene: &Scene, shas: &[&str]) -> String {
    let mut text = text
        .replace(
            scene.suite.git.url("").trim_end_matches(".git"),
            "https://git.example.com/",
        )
        .replace(&format!("{}/", scene.namespace), "platform/");
    text = text
        .replace(&scene.suite.state.url(""), "https://state.example.com/")
        .replace(&scene.namespace, "prod");
    for sha in shas {
        text = text
            .replace(sha, "4c1d2e3f5a6b7c8d9e0f1a2b3c4d5e6f7a8b9c0d")
            .replace(&sha[..7], "4c1d2e3");
    }
    text
}

/// The parts that are the same in every run: keys, words and their order, without digits, ids and times.
fn shape(text: &str) -> Vec<String> {
    text.lines()
        .map(|line| {
            let words: Vec<String> = line
                .split_whitespace()
                .map(|w| {
                    if w.chars().any(|c| c.is_ascii_digit()) {
                        "#".into()
                    } else {
                        w.into()
                    }
                })
                .collect();
            words.join(" ")
        })
        .take_while(|line| !line.starts_with("Events:"))
        // The node appears only if the apply takes more than a moment.
        .filter(|line| {
            !line.is_empty() && !line.starts_with("Node Name:") && !line.starts_with("Boot ID:")
        })
        .collect()
}
