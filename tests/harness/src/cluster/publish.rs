//! `cargo images`: the images of Pawl that a cluster of one's own runs, built and pushed to a registry.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{
    images::{self, Builder, Image, Profile, root},
    packages, report,
};

#[derive(Clone, Debug)]
pub struct Options {
    /// Registry and path that the images' names begin with; without it they are built and nothing is pushed.
    pub push: Option<String>,
    pub tag: String,
    /// The registry speaks HTTP, or its certificate is not looked at.
    pub insecure: bool,
    /// A `config.json` of Docker's with credentials; otherwise where Buildah looks for one.
    pub credentials: Option<PathBuf>,
}

/// An image, where it was pushed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Registry, path and name, without a tag.
    pub repository: String,
    pub tag: String,
    /// `sha256:…` of its manifest.
    pub digest: String,
}

/// The images of controller, runner and sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images<T> {
    /// The controller's, which is the datastore's as well.
    pub controller: T,
    /// The runner's.
    pub runner: T,
    /// That of what follows repositories.
    pub sources: T,
}

impl Images<Pushed> {
    /// The chart's values that name them.
    pub fn values(&self) -> String {
        let of = |name, Pushed { repository, tag, digest }: &Pushed| {
            format!("{name}:\n  image:\n    repository: \"{repository}\"\n    tag: \"{tag}\"\n    digest: \"{digest}\"\n")
        };
        format!(
            "# The images of Pawl, for `helm upgrade --install … -f`.\n{}{}{}",
            of("controller", &self.controller),
            of("runner", &self.runner),
            of("sources", &self.sources)
        )
    }
}

/// Builds all images from this checkout for this machine's architecture.
///
/// # Errors
/// Without root, and when a package, a program or an image cannot be made; nothing was pushed then.
pub fn build(profile: Profile) -> Result<Images<Image>> {
    packages::ensure_for_images()?;
    let programs = images::programs(&["runner-agent", "controller"], profile)?;
    // Apart from the images of tests, whose runner holds tools.
    let builder = Builder::of(root(), "pawl-published")?;
    Ok(Images {
        controller: builder.controller(&programs[1])?,
        runner: builder.runner(&programs[0], &[])?,
        sources: builder.sources(&programs[1])?,
    })
}

/// Pushes all images. What is there of them already is not sent again, so that it may be called again after an error.
///
/// # Errors
/// When the registry cannot be reached or refuses them.
pub fn push(built: &Images<Image>, registry: &str, options: &Options) -> Result<Images<Pushed>> {
    let builder = Builder::of(root(), "pawl-published")?;
    let registry = registry.trim_end_matches('/');
    let one = |image: &Image, name: &str| -> Result<Pushed> {
        let repository = format!("{registry}/{name}");
        let step = report::step("images", format!("{repository}:{} pushed", options.tag));
        let to = format!("{repository}:{}", options.tag);
        let digest = builder.publish(image, &to, options.insecure, options.credentials.as_deref()).with_context(|| {
            format!("cannot push {to}; `docker login` or `buildah login` writes the credentials that are looked for; what was pushed stays")
        })?;
        step.done();
        Ok(Pushed { repository, tag: options.tag.clone(), digest })
    };
    // The names that the chart's values have.
    Ok(Images {
        controller: one(&built.controller, "controller")?,
        runner: one(&built.runner, "runner-agent")?,
        sources: one(&built.sources, "sources")?,
    })
}

/// The `config.json` in the directory that Docker's own variable names, which not every Buildah reads.
pub fn credentials() -> Option<PathBuf> {
    let directory = std::env::var_os("DOCKER_CONFIG").filter(|directory| !directory.is_empty())?;
    Some(PathBuf::from(directory).join("config.json")).filter(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_chart() {
        let pushed = |name: &str| Pushed {
            repository: format!("registry.example.com:5000/pawl/{name}"),
            tag: "0.1.0".into(),
            digest: format!("sha256:{}", "a".repeat(64)),
        };
        let images = Images { controller: pushed("controller"), runner: pushed("runner-agent"), sources: pushed("sources") };
        let values: serde_json::Value = serde_saphyr::from_str(&images.values()).unwrap();
        let chart: serde_json::Value =
            serde_saphyr::from_str(&std::fs::read_to_string(root().join("charts/pawl/values.yaml")).unwrap()).unwrap();
        for part in ["controller", "runner", "sources"] {
            for (key, value) in values[part]["image"].as_object().unwrap() {
                assert!(chart[part]["image"][key].is_string() && value.is_string(), "{part}.image.{key}");
            }
        }
        assert_eq!(values["runner"]["image"]["repository"], "registry.example.com:5000/pawl/runner-agent");
    }
}
