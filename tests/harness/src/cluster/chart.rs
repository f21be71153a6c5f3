//! Installs Pawl in a cluster: imports its images and installs its chart with Helm.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;

use super::command::run;
use super::datastore;
use super::gobuild::{IN_PODS, Toolset};
use super::images::{self, Builder, Image, Profile};
use super::report;
use super::whole::{Cluster, NAMESPACE};
use crate::wait;

/// Chart values by path, as for `--set`.
pub type Values = BTreeMap<String, String>;

impl Cluster {
    /// Builds Pawl from this checkout, imports its images and installs the chart. Unchanged parts are cached. The runner's image contains
    /// the test tools. Adopts the cluster's own store if a killed test left the cluster with another one's id.
    pub async fn install(&self, values: &Values) -> Result<()> {
        let mut values = values.clone();
        if let Ok(identity) = fs::read(self.datastore().join("identity")) {
            let identity: Value = serde_json::from_slice(&identity)?;
            let id = identity["store"]
                .as_str()
                .context("a store without an id")?;
            if self.expected_store().unwrap_or_default() != id {
                values
                    .entry("datastore.adopt".to_owned())
                    .or_insert_with(|| id.to_owned());
            }
        }
        self.install_images(&PawlImages::build(IN_PODS, Profile::Same)?, &values)
            .await
    }

    /// Imports the given images and installs the chart.
    pub async fn install_images(&self, images: &PawlImages, values: &Values) -> Result<()> {
        self.install_images_of(images::root(), images, values).await
    }

    /// Like [`Self::install_images`], with the chart of another checkout.
    pub async fn install_images_of(
        &self,
        checkout: &Path,
        images: &PawlImages,
        values: &Values,
    ) -> Result<()> {
        self.import(&images.runner)?;
        self.import(&images.controller)?;
        images
            .sources
            .iter()
            .try_for_each(|image| self.import(image))?;
        let mut all = images.values();
        all.extend(values.clone());
        self.install_chart(checkout, &all).await
    }

    /// Makes an image available to pods.
    pub fn import(&self, image: &Image) -> Result<()> {
        let step = report::step("images", format!("{} imported", image.name));
        if images::import(self.state(), image)? {
            step.done();
        }
        Ok(())
    }

    /// Installs or upgrades the chart of a checkout and waits until it is ready.
    async fn install_chart(&self, checkout: &Path, values: &Values) -> Result<()> {
        let step = report::step("pawl", "installing the chart");
        self.make_datastore_volume()?;
        let mut command = self.helm(&["upgrade", "--install", "pawl"])?;
        command.arg(format!(
            "--set=datastore.persistence.existingClaim={}",
            datastore::CLAIM
        ));
        command
            .arg(checkout.join("charts/pawl"))
            .args(["-n", NAMESPACE, "--create-namespace"]);
        for (path, value) in values {
            if value.starts_with(['{', '[']) {
                command.arg(format!("--set-json={path}={value}"));
                continue;
            }
            // The schema requires numbers for these values.
            let flag = if path.ends_with("replicas") {
                "--set"
            } else {
                "--set-string"
            };
            command.arg(format!("{flag}={path}={}", value.replace(',', "\\,")));
        }
        run(&mut command).context("helm cannot install the chart")?;
        self.wait_rolled_out().await?;
        step.done_with("chart installed, all of it ready");
        Ok(())
    }

    /// Helm, run as administrator.
    pub fn helm(&self, args: &[&str]) -> Result<Command> {
        let mut command = Command::new(self.tools().path("helm")?);
        // Helm's cache, config and data stay in the cluster's directory.
        for (variable, directory) in [
            ("HELM_CACHE_HOME", "cache"),
            ("HELM_CONFIG_HOME", "config"),
            ("HELM_DATA_HOME", "data"),
        ] {
            command.env(variable, self.state().join("helm").join(directory));
        }
        command.env("KUBECONFIG", &self.kubeconfig).args(args);
        Ok(command)
    }

    /// Waits until controller and datastore are ready.
    async fn wait_rolled_out(&self) -> Result<()> {
        let deployments: Api<Deployment> = Api::namespaced(self.client().await?, NAMESPACE);
        let look = async || {
            let all = deployments
                .list(&ListParams::default())
                .await
                .context("cannot read Pawl's Deployments")?;
            Ok(!all.items.is_empty() && all.items.iter().all(is_rolled_out))
        };
        wait::until("Pawl is ready", Duration::from_secs(180), look)
            .await
            .with_context(|| {
                let seen = self
                    .kubectl(&["-n", NAMESPACE, "get", "pods,events"])
                    .unwrap_or_default();
                let log = |name: &str| {
                    self.kubectl(&["-n", NAMESPACE, "logs", name, "--tail=10"])
                        .unwrap_or_default()
                };
                [
                    seen,
                    log("deployment/pawl-controller"),
                    log("deployment/pawl-datastore"),
                ]
                .join("\n")
            })
    }
}

/// Whether all replicas are available and of the newest generation.
pub fn is_rolled_out(deployment: &Deployment) -> bool {
    let wanted = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1);
    deployment.status.as_ref().is_some_and(|status| {
        status.observed_generation == deployment.metadata.generation
            && status.updated_replicas.unwrap_or(0) == wanted
            && status.available_replicas.unwrap_or(0) == wanted
            && status.replicas.unwrap_or(0) == wanted
    })
}

/// Pawl's images, built from this checkout.
#[derive(Clone, Debug)]
pub struct PawlImages {
    /// The runner, with test tools.
    pub runner: Image,
    pub controller: Image,
    /// The image that follows repositories. `None` for a release that had none.
    pub sources: Option<Image>,
}

impl PawlImages {
    /// Builds the images. The runner contains these tools and the scripted tool, which always has the profile of the calling program.
    pub fn build(in_pods: &[&str], profile: Profile) -> Result<Self> {
        let scripted = images::programs(&["scripted-tool"], Profile::Same)?.pop();
        Self::holding(in_pods, scripted.as_deref(), profile)
    }

    /// Like [`Self::build`], without the scripted tool, so that it is not compiled.
    pub fn with_real_tools(in_pods: &[&str]) -> Result<Self> {
        Self::holding(in_pods, None, Profile::Same)
    }

    fn holding(in_pods: &[&str], scripted: Option<&Path>, profile: Profile) -> Result<Self> {
        let programs = images::programs(&["runner-agent", "controller"], profile)?;
        let files = images::test_files(&Toolset::ensure(in_pods)?, scripted)?;
        let builder = Builder::new()?;
        Ok(Self {
            runner: builder.runner(&programs[0], &files)?,
            controller: builder.controller(&programs[1])?,
            sources: Some(builder.sources(&programs[1])?),
        })
    }

    /// The chart's values for these images.
    pub fn values(&self) -> Values {
        // Test clusters have no network outside this machine. A test with a mirror overrides this.
        let mut values =
            Values::from([("runner.tools".to_owned(), r#"{"offline":true}"#.to_owned())]);
        // Tests run beside each other, and are not to wait for each other's slots.
        values.insert(
            "controller.maxConcurrentRuns".to_owned(),
            r#"{"total":null}"#.to_owned(),
        );
        // The kubelets of tests do not measure disk usage.
        values.insert("runner.ephemeralStorage".to_owned(), String::new());
        let sources = self.sources.iter().map(|image| ("sources.image", image));
        for (place, image) in [
            ("controller.image", &self.controller),
            ("runner.image", &self.runner),
        ]
        .into_iter()
        .chain(sources)
        {
            let (repository, tag) = image
                .name
                .rsplit_once(':')
                .unwrap_or((&image.name, "latest"));
            for (key, value) in [
                ("repository", repository),
                ("tag", tag),
                ("pullPolicy", "Never"),
            ] {
                values.insert(format!("{place}.{key}"), value.to_owned());
            }
        }
        values
    }
}
