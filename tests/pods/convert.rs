//! Documented samples of the peers, converted: the user with the named rights applies the result, and its layers run in pods. The samples
//! are `tests/fixtures/converted`; their code is replaced by code without a provider of a cloud.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use crds::{LayerState, RunResult};

use crate::{
    layers::Layers,
    suite::{Scene, Test, holds},
};

const WHO: &str = "converter";

const CODE: &str = "variable \"word\" {\n  type = string\n}\nresource \"terraform_data\" \"it\" {\n  input = var.word\n}\n\
                    output \"word\" {\n  value = terraform_data.it.output\n}\n";

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("convert::sample_of_burrito_runs", |scene| {
            runs(scene, "burrito", "burrito")
        }),
        Test::new("convert::sample_of_tofu_controller_runs", |scene| {
            runs(scene, "tofu-controller", "tofu")
        }),
        Test::new("convert::sample_of_terraform_operator_runs", |scene| {
            runs(scene, "terraform-operator", "operator")
        }),
        Test::new("convert::sample_of_alustan_runs", |scene| {
            runs(scene, "alustan", "alustan")
        }),
    ]
}

async fn runs(scene: Scene, peer: &'static str, layer: &'static str) -> Result<()> {
    let main = if peer == "alustan" {
        "main.tf"
    } else {
        "stack/main.tf"
    };
    let (url, _) = scene.repository(layer, &[(main, CODE), ("modules/random/main.tf", "")])?;
    let sample = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures/converted")
        .join(format!("{peer}.yaml"));
    let text = std::fs::read_to_string(&sample)?
        .replace("NAMESPACE", &scene.namespace)
        .replace("URL", &url);
    let converted = controller::convert::convert(&text)?;
    // The chart of tofu-controller makes its account; a person made that of terraform-operator.
    if converted.yaml.contains("tf-runner") {
        let account = format!("--serviceaccount={}:tf-runner", scene.namespace);
        scene.kubectl(&["create", "serviceaccount", "tf-runner"])?;
        let role = "--resource=secrets,leases.coordination.k8s.io";
        scene.kubectl(&["create", "role", "states", "--verb=*", role])?;
        scene.kubectl(&["create", "rolebinding", "states", "--role=states", &account])?;
    }
    let commands = converted
        .rights
        .iter()
        .filter(|line| !line.starts_with('#'));
    for command in commands {
        scene.paste(&command.replace("$WHO", WHO))?;
    }
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(&file, &converted.yaml)?;
    scene.paste(&format!(
        "kubectl create --as={WHO} --validate=strict -f {}",
        file.path().display()
    ))?;
    let status = Layers::of(&scene)?
        .until(layer, "applied", |status| {
            status.state == Some(LayerState::Idle) && status.last_apply.is_some()
        })
        .await?;
    let run = status.last_apply.context("no apply")?.run;
    ensure!(
        scene.status(&run).await?.result == Some(RunResult::Applied),
        "{run}"
    );
    let log = scene.log(&run).await?;
    holds(&log, layer)
}
