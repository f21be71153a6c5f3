//! Applies the chart repeatedly to a cluster that has it: the datastore's data in its Secrets stays.

use std::{collections::BTreeMap, process::Command};

use anyhow::{Context, Result, ensure};
use crds::clock::ServerClock;
use datastore::{
    cluster::{Cluster, Kube},
    settings::SecretName,
};
use harness::cluster::gobuild::Toolset;

use crate::world::{World, tests};

tests! {
    Bare: datastore_secrets_survive_another_apply,
}

struct Release {
    world: World,
    namespace: String,
    home: tempfile::TempDir,
}

impl Release {
    fn helm(&self, args: &[&str]) -> Result<Vec<u8>> {
        let mut command = Command::new(Toolset::ensure(&["helm"])?.path("helm")?);
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, self.home.path().join(variable));
        }
        command
            .env("KUBECONFIG", &self.world.access.kubeconfig)
            .args(["-n", &self.namespace])
            .args(args);
        let output = command.output().context("cannot run helm")?;
        ensure!(
            output.status.success(),
            "helm {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(output.stdout)
    }

    /// The chart, without cluster-scoped objects that belong to no release.
    fn chart(&self, verb: &[&str], values: &[&str]) -> Result<Vec<u8>> {
        let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/pawl");
        let mut args = [
            verb,
            &[
                "again",
                chart,
                "--set=crds.install=false,policies.install=false",
            ],
        ]
        .concat();
        args.extend(values);
        self.helm(&args)
    }

    fn kubectl_apply(&self, more: &[&str]) -> Result<()> {
        let file = self.home.path().join("rendered.yaml");
        // Without access to the cluster, as GitOps tools render.
        let rendered = self.chart(&["template", "--kube-version=1.34.4"], &[])?;
        std::fs::write(&file, rendered)?;
        self.world
            .access
            .kubectl(&[&["apply", "-f", &file.display().to_string()], more].concat())
            .map(drop)
    }

    fn secret(&self, word: &str) -> SecretName {
        SecretName {
            namespace: self.namespace.clone(),
            name: format!("again-datastore-{word}"),
        }
    }
}

async fn datastore_secrets_survive_another_apply(world: World) -> Result<()> {
    let namespace = world.namespace().await?;
    let release = Release {
        namespace,
        home: tempfile::tempdir()?,
        world,
    };
    let install = ["upgrade", "--install"];
    release.chart(&install, &[])?;
    // As the datastore's account, with the rights that the chart grants it.
    let user = format!(
        "system:serviceaccount:{}:again-datastore",
        release.namespace
    );
    let datastore = Kube::new(
        release.world.access.impersonate(&user, &[]).await?,
        ServerClock::default(),
    );
    let mut put = Vec::new();
    for (n, word) in ["keyring", "certificate"].into_iter().enumerate() {
        let secret = release.secret(word);
        let read = datastore
            .secret(&secret)
            .await?
            .with_context(|| format!("no Secret {secret}"))?;
        ensure!(read.data.is_empty(), "{secret} is not empty");
        let data = BTreeMap::from([("a".to_owned(), vec![u8::try_from(n)?; 32])]);
        ensure!(datastore.fill(&secret, &read, &data).await?);
        let late = BTreeMap::from([("a".to_owned(), vec![9; 32])]);
        ensure!(
            !datastore.fill(&secret, &read, &late).await?,
            "the second of two concurrent writers was admitted"
        );
        put.push((secret, data));
    }
    ensure!(
        datastore.secret(&release.secret("other")).await.is_err(),
        "it reads Secrets that are not its own"
    );

    let there = async |after: &str| -> Result<()> {
        for (secret, data) in &put {
            let found = datastore
                .secret(secret)
                .await?
                .with_context(|| format!("{secret} is gone after {after}"))?;
            ensure!(
                found.data == *data,
                "{secret} after {after}: {:?}",
                found.data.keys()
            );
        }
        Ok(())
    };
    release.chart(&install, &["--set=controller.replicas=2"])?;
    there("an upgrade").await?;
    for _ in 0..2 {
        release.kubectl_apply(&[])?;
        there("`helm template | kubectl apply`").await?;
    }
    release.kubectl_apply(&["--server-side", "--force-conflicts"])?;
    there("a server-side apply").await?;
    release.helm(&["rollback", "again", "1"])?;
    there("a rollback").await?;
    release.chart(&install, &[])?;
    there("an upgrade after it").await?;
    Ok(())
}
