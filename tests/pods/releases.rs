//! A mirror of releases for pods, an image without tools, and a directory of the node as their cache.

use std::{
    net::{IpAddr, SocketAddr},
    os::unix::fs::chown,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use harness::cluster::{
    Cluster,
    chart::Values,
    gobuild::{TERRAGRUNT, Toolset},
    images,
};
use releases::{Key, Mirror, Release, Tree, mirror_settings, versions};
use serde_json::{Value, json};
use servers::auth::Access;
use tool_versions::Tool;

/// UID of the runner's image.
const RUNNER: u32 = 65532;
/// Credentials of the Terraform mirror, and the name of their Secret.
pub(crate) const CREDENTIALS: (&str, &str) = ("reader", "open-sesame");
pub(crate) const SECRET: &str = "releases";

pub(crate) struct Releases {
    /// OpenTofu and Terragrunt, by HTTPS with its own authority.
    pub(crate) open: Mirror,
    /// Terraform, by HTTP with a password.
    pub(crate) guarded: Mirror,
    pub(crate) tree: Tree,
    /// An image with the agent and no tool.
    pub(crate) image: String,
    /// The cache directory of the node.
    pub(crate) cache: PathBuf,
}

impl Releases {
    /// Serves the versions that tests use: two are real and the others scripted.
    pub(crate) async fn start(cluster: &Cluster, files: &Path) -> Result<Self> {
        let tree = Tree::create(&files.join("releases"), Key::test()?)?;
        for release in versions::all(versions::Programs::Some)? {
            tree.add(&release)?;
        }
        let terragrunt = Toolset::ensure(TERRAGRUNT)?;
        tree.add(&Release::new(
            Tool::Terragrunt,
            terragrunt.version("terragrunt")?,
            terragrunt.path("terragrunt")?,
        )?)?;
        tree.add(&Release::new(Tool::Terragrunt, "0.93.0", &stand_in())?)?;
        let host = SocketAddr::new(IpAddr::V4(cluster.host()), 0);
        let open = Mirror::start_tls(host, tree.root()).await?;
        let guarded = Mirror::start(host, tree.root()).await?;
        guarded.set_access(Access::basic(CREDENTIALS.0, CREDENTIALS.1));
        let agent = images::programs(&["runner-agent"], images::Profile::Same)?;
        let image = images::Builder::new()?.runner(&agent[0], &[])?;
        cluster.import(&image)?;
        let cache = files.join("cache");
        std::fs::create_dir(&cache).context("no directory for the cache")?;
        chown(&cache, Some(RUNNER), Some(RUNNER))
            .context("the cache cannot be given to the runner's user")?;
        Ok(Self {
            open,
            guarded,
            tree,
            image: image.name,
            cache,
        })
    }

    /// The chart's values for these. Runs without a version get those of the test image.
    pub(crate) fn values(&self) -> Values {
        let said = |tool, mirror| mirror_settings(tool, mirror, self.tree.key());
        let mut terraform = said(Tool::Terraform, &self.guarded);
        terraform["secretName"] = SECRET.into();
        let tools: Value = json!({
            "offline": false,
            "default": {"versions": {"OpenTofu": "1.10.6", "Terraform": "1.5.7"}},
            "mirrors": [said(Tool::OpenTofu, &self.open), terraform, said(Tool::Terragrunt, &self.open)],
            "cache": {"hostPath": self.cache},
        });
        Values::from([("runner.tools".to_owned(), tools.to_string())])
    }

    /// Publishes the scripted tool as a version, or as another binary of a published version.
    pub(crate) fn publish(&self, version: &str) -> Result<Release> {
        let release = Release::scripted(Tool::OpenTofu, version, &versions::scripted_tool()?)?;
        self.tree.add(&release)?;
        Ok(release)
    }
}

/// A stand-in for Terragrunt before 1.0, which is not available as a module.
pub(crate) fn stand_in() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/terragrunt/stand-in.sh")
}
