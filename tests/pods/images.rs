//! Builds Pawl's images and pushes them with one command to a password-protected registry.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use harness::cluster::{
    gobuild::{IMAGES, Toolset},
    images::Profile,
    publish::{self, Images, Options, Pushed},
};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::suite::{Scene, Test, holds};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new(
        "images::one_command_builds_and_pushes_all",
        apart,
    )]
}

/// In parallel with the other tests: it works for a while and depends on none.
async fn apart(_: Scene) -> Result<()> {
    tokio::task::spawn_blocking(pushed).await?
}

const USER: &str = "pusher";
const PASSWORD: &str = "open-sesame";

/// An in-memory registry. Drop ends it.
struct Registry {
    process: Child,
    address: String,
    http: reqwest::Client,
}

impl Registry {
    fn start() -> Result<Self> {
        let tools = Toolset::ensure(IMAGES)?;
        let mut process = Command::new(tools.path(IMAGES[0])?)
            .env("REGISTRY_USER", USER)
            .env("REGISTRY_PASSWORD", PASSWORD)
            .stdout(Stdio::piped())
            .spawn()
            .context("the registry does not start")?;
        let mut address = String::new();
        BufReader::new(process.stdout.take().context("no output")?).read_line(&mut address)?;
        let http = reqwest::Client::builder().no_proxy().build()?;
        Ok(Self {
            process,
            address: address.trim().to_owned(),
            http,
        })
    }

    /// An authenticated request. Returns the digest header and the body.
    fn get(&self, path: &str) -> Result<(String, Value)> {
        let kinds = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json";
        let url = format!("http://{}/v2/{path}", self.address);
        let asked = self
            .http
            .get(url)
            .basic_auth(USER, Some(PASSWORD))
            .header("accept", kinds);
        let answer = async {
            let answer = asked.send().await?.error_for_status()?;
            let digest = answer
                .headers()
                .get("docker-content-digest")
                .and_then(|digest| digest.to_str().ok());
            Ok::<_, reqwest::Error>((digest.unwrap_or_default().to_owned(), answer.bytes().await?))
        };
        let (digest, body) = Handle::current()
            .block_on(answer)
            .with_context(|| format!("the registry does not have {path}"))?;
        Ok((digest, serde_json::from_slice(&body)?))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn pushed() -> Result<()> {
    let registry = Registry::start()?;
    let built = publish::build(Profile::Same)?;
    let to = format!("{}/acme/pawl", registry.address);
    let home = tempfile::tempdir()?;
    let credentials = home.path().join("config.json");
    let options = Options {
        push: Some(to.clone()),
        tag: "9.9.9".to_owned(),
        insecure: true,
        credentials: Some(credentials.clone()),
    };

    std::fs::write(&credentials, "{}")?;
    let refused = publish::push(&built, &to, &options)
        .err()
        .context("it was pushed without a password")?;
    holds(&format!("{refused:#}"), "cannot push")?;
    holds(&format!("{refused:#}"), "docker login")?;

    // In the format of `docker login`.
    let word = base64(&format!("{USER}:{PASSWORD}"))?;
    std::fs::write(
        &credentials,
        json!({"auths": {registry.address.as_str(): {"auth": word}}}).to_string(),
    )?;
    let Images {
        controller,
        runner,
        sources,
    } = publish::push(&built, &to, &options)?;
    for (
        Pushed {
            repository,
            tag,
            digest,
        },
        name,
        entrypoint,
    ) in [
        (&controller, "controller", "/controller"),
        (&runner, "runner-agent", "/usr/local/bin/runner-agent"),
        (&sources, "sources", "/controller"),
    ] {
        ensure!(
            *repository == format!("{to}/{name}") && tag == "9.9.9",
            "{repository}:{tag}"
        );
        let (by_tag, manifest) = registry.get(&format!("acme/pawl/{name}/manifests/{tag}"))?;
        ensure!(
            by_tag == *digest,
            "{name}:{tag} is {by_tag}, and the values say {digest}"
        );
        let config = manifest["config"]["digest"].as_str().context("no config")?;
        let (_, config) = registry.get(&format!("acme/pawl/{name}/blobs/{config}"))?;
        ensure!(
            config["config"]["Entrypoint"] == json!([entrypoint]),
            "{config}"
        );
        ensure!(config["config"]["User"] == "65532:65532", "{config}");
    }
    // A second push sends nothing and returns the same names.
    ensure!(
        publish::push(&built, &to, &options)?
            == Images {
                controller,
                runner,
                sources
            }
    );
    Ok(())
}

fn base64(text: &str) -> Result<String> {
    let output = Command::new("sh")
        .args(["-c", "printf %s \"$0\" | base64 -w0", text])
        .output()?;
    Ok(String::from_utf8(output.stdout)?)
}
