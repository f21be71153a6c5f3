//! `cargo images`: builds Pawl's images for users' clusters and pushes them to a registry.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{
    images::{self, Builder, Image, Profile, root},
    packages, report,
};

#[derive(Clone, Debug)]
pub struct Options {
    /// Registry and path of the image names. Without it the images are built and not pushed.
    pub push: Option<String>,
    pub tag: String,
    /// Allow HTTP, and do not verify the certificate.
    pub insecure: bool,
    /// A Docker `config.json` with credentials. Without it Buildah uses its defaults.
    pub credentials: Option<PathBuf>,
}

/// A pushed image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Registry, path and name, without a tag.
    pub repository: String,
    pub tag: String,
    /// `sha256:…` of its manifest.
    pub digest: String,
}

/// One value each for controller, runner and sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images<T> {
    /// The controller's, which the datastore uses as well.
    pub controller: T,
    pub runner: T,
    pub sources: T,
}

impl Images<Pushed> {
    /// The chart's values for these images.
    pub fn values(&self) -> String {
        let of = |name,
                  Pushed {
                      repository,
                      tag,
                      digest,
                  }: &Pushed| {
            format!(
                "{name}:\n  image:\n    repository: \"{repository}\"\n    tag: \"{tag}\"\n    digest: \"{digest}\"\n"
            )
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
/// Without root, and when a package, a program or an image cannot be built. Nothing was pushed then.
pub fn build(profile: Profile) -> Result<Images<Image>> {
    packages::ensure_for_images()?;
    let programs = images::programs(&["runner-agent", "controller"], profile)?;
    // Separate from the test images, whose runner contains tools.
    let builder = Builder::of(root(), "pawl-published")?;
    Ok(Images {
        controller: builder.controller(&programs[1])?,
        runner: builder.runner(&programs[0], &[])?,
        sources: builder.sources(&programs[1])?,
    })
}

/// Pushes all images. Existing layers are not sent again, so it can be retried after an error.
///
/// # Errors
/// When the registry is unreachable or refuses an image.
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
        Ok(Pushed {
            repository,
            tag: options.tag.clone(),
            digest,
        })
    };
    // The names in the chart's values.
    Ok(Images {
        controller: one(&built.controller, "controller")?,
        runner: one(&built.runner, "runner-agent")?,
        sources: one(&built.sources, "sources")?,
    })
}

/// The `config.json` in `$DOCKER_CONFIG`, which not every version of Buildah reads.
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
        let images = Images {
            controller: pushed("controller"),
            runner: pushed("runner-agent"),
            sources: pushed("sources"),
        };
        let values: serde_json::Value = serde_saphyr::from_str(&images.values()).unwrap();
        let chart: serde_json::Value = serde_saphyr::from_str(
            &std::fs::read_to_string(root().join("charts/pawl/values.yaml")).unwrap(),
        )
        .unwrap();
        for part in ["controller", "runner", "sources"] {
            for (key, value) in values[part]["image"].as_object().unwrap() {
                assert!(
                    chart[part]["image"][key].is_string() && value.is_string(),
                    "{part}.image.{key}"
                );
            }
        }
        assert_eq!(
            values["runner"]["image"]["repository"],
            "registry.example.com:5000/pawl/runner-agent"
        );
    }
}
