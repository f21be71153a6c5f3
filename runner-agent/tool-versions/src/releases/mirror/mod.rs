//! Where the releases of a tool are, and what they are called there. Nothing is read here.
//!
//! | tool | list | releases |
//! |---|---|---|
//! | Terraform | `BASE/terraform/index.json` | `BASE/terraform/V/terraform_V_OS_ARCH.zip`, `terraform_V_SHA256SUMS`, `….72D7468F.sig`, `….sig` |
//! | OpenTofu | `get.opentofu.org/tofu/api.json`, which has no limit of requests | `BASE/opentofu/opentofu/releases/download/vV/tofu_V_OS_ARCH.zip`, `tofu_V_SHA256SUMS`, `….gpgsig` |
//! | Terragrunt | GitHub's API, by pages | `BASE/gruntwork-io/terragrunt/releases/download/vV/terragrunt_OS_ARCH`, `SHA256SUMS`, `….gpgsig` |
//!
//! A mirror has the same below its own base, or on disk below a directory. What an operator writes about it in tenv's names is read in
//! [`environment`].

use std::{fmt, path::PathBuf};

use reqwest::Url;

use crate::{
    Error, Platform, Result, Tool, Version,
    releases::http::{Auth, address},
};

pub mod environment;

/// The last eight digits of HashiCorp's key, by which its newer signatures are named.
const HASHICORP_KEY: &str = "72D7468F";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// On a web server: an address without a `/` at its end, credentials, query and fragment.
    Url(String),
    /// On disk.
    File(PathBuf),
}

impl Location {
    /// Reads what an operator wrote: an address of a web server, `file:///DIRECTORY` or `/DIRECTORY`. `what` says what it is of; the
    /// address is not repeated in errors.
    ///
    /// # Errors
    /// Configuration: any other scheme, credentials in the address, a query or a fragment.
    pub fn read(what: &str, text: &str) -> Result<Self> {
        let text = text.trim();
        if let Some(path) = text.strip_prefix("file://").or_else(|| text.starts_with('/').then_some(text)) {
            if !path.starts_with('/') {
                return Err(Error::configuration(format!("{what} names a file, but not from the root: write file:///DIRECTORY")));
            }
            return Ok(Self::File(PathBuf::from(path)));
        }
        let url = address::read(what, text)?;
        if url.query().is_some() || url.fragment().is_some() {
            return Err(Error::configuration(format!(
                "{what} has a query or a fragment, to which no name of a file can be added"
            )));
        }
        Ok(Self::Url(url.as_str().trim_end_matches('/').to_owned()))
    }

    /// What lies below, by a path with `/`.
    #[must_use]
    pub fn join(&self, path: &str) -> Self {
        match self {
            Self::Url(url) => Self::Url(format!("{url}/{path}")),
            Self::File(directory) => Self::File(directory.join(path.trim_end_matches('/'))),
        }
    }

    fn url(&self) -> Option<Url> {
        match self {
            Self::Url(url) => Url::parse(url).ok(),
            Self::File(_) => None,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => f.write_str(&address::shown_text(url)),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// How files lie below a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `TOOL/V/FILE`, as on `releases.hashicorp.com`.
    HashiCorp,
    /// `OWNER/REPOSITORY/releases/download/vV/FILE`, as on `github.com`.
    GitHub,
}

impl Layout {
    /// The one that a tool is published in.
    pub const fn of(tool: Tool) -> Self {
        match tool {
            Tool::Terraform => Self::HashiCorp,
            Tool::OpenTofu | Tool::Terragrunt => Self::GitHub,
        }
    }

    /// Where the directories of all versions are.
    fn top(self, tool: Tool) -> String {
        match self {
            Self::HashiCorp => tool.directory().to_owned(),
            Self::GitHub => format!("{}/releases/download", repository(tool)),
        }
    }
}

/// How the list of versions is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListKind {
    /// HashiCorp's `index.json`.
    HashiCorp,
    /// Pages of GitHub's API.
    GitHub,
    /// OpenTofu's `api.json`.
    OpenTofu,
    /// A page of HTML with a link to each version.
    Html,
    /// The names of directories on disk.
    Directory,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asset {
    /// Its name, as it stands in the sums.
    pub name: String,
    pub location: Location,
}

/// The files of a release for one platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assets {
    /// What has the binary in it, or is it: its name says how it is packed ([`crate::Packing::of`]).
    pub archive: Asset,
    /// The name of the binary in the archive, and when installed.
    pub entry: String,
    /// The sums of all archives.
    pub sums: Asset,
    /// Signatures over the sums, all of the same meaning, the one to be tried first coming first.
    pub signatures: Vec<Asset>,
}

/// Where the releases of a tool are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    pub tool: Tool,
    /// Its list of versions.
    pub list: Location,
    pub list_kind: ListKind,
    /// Below what its releases are.
    pub base: Location,
    pub layout: Layout,
    /// What to log in with; where, [`Self::auth_for`] says.
    pub auth: Auth,
    /// A token for GitHub's API, where it is asked for the list.
    pub github: Option<Auth>,
    /// Certificate authorities besides those of the system, in PEM.
    pub authority: Option<String>,
}

impl Mirror {
    /// Where the project of a tool publishes.
    pub fn official(tool: Tool) -> Self {
        let (list, list_kind, base) = match tool {
            Tool::OpenTofu => ("https://get.opentofu.org/tofu/api.json".to_owned(), ListKind::OpenTofu, "https://github.com"),
            Tool::Terragrunt => {
                let list = format!("https://api.github.com/repos/{}/releases", repository(tool));
                (list, ListKind::GitHub, "https://github.com")
            }
            Tool::Terraform => {
                let base = "https://releases.hashicorp.com";
                (format!("{base}/terraform/index.json"), ListKind::HashiCorp, base)
            }
        };
        let (list, base) = (Location::Url(list), Location::Url(base.to_owned()));
        Self { tool, list, list_kind, base, layout: Layout::of(tool), auth: Auth::None, github: None, authority: None }
    }

    /// A mirror below a base; its list is what a web server or the disk lists there.
    pub fn below(tool: Tool, base: Location) -> Self {
        let layout = Layout::of(tool);
        let (list, list_kind) = listing(&base, &layout.top(tool));
        Self { tool, list, list_kind, base, layout, auth: Auth::None, github: None, authority: None }
    }

    pub fn assets(&self, version: &Version, platform: &Platform) -> Assets {
        let tool = self.tool;
        let suffix = if platform.os == "windows" { ".exe" } else { "" };
        let entry = format!("{}{suffix}", tool.binary());
        let (archive, sums) = match tool {
            Tool::OpenTofu | Tool::Terraform => {
                let name = format!("{}_{version}", tool.binary());
                (format!("{name}_{platform}.zip"), format!("{name}_SHA256SUMS"))
            }
            Tool::Terragrunt => (format!("terragrunt_{platform}{suffix}"), "SHA256SUMS".to_owned()),
        };
        let signatures = match tool {
            Tool::Terraform => vec![format!("{sums}.{HASHICORP_KEY}.sig"), format!("{sums}.sig")],
            // OpenTofu's `.sig` is of cosign, not of PGP.
            Tool::OpenTofu | Tool::Terragrunt => vec![format!("{sums}.gpgsig")],
        };
        let tag = match self.layout {
            Layout::HashiCorp => version.to_string(),
            Layout::GitHub => format!("v{version}"),
        };
        let directory = self.base.join(&format!("{}/{tag}", self.layout.top(tool)));
        let asset = |name: String| Asset { location: directory.join(&name), name };
        Assets { archive: asset(archive), entry, sums: asset(sums), signatures: signatures.into_iter().map(asset).collect() }
    }

    /// Whether nothing of it needs the network.
    pub const fn is_on_disk(&self) -> bool {
        matches!((&self.base, &self.list), (Location::File(_), Location::File(_)))
    }

    /// What to log in with at an address: the operator's credentials at the servers of the base and of the list, except the projects'
    /// own, to which nobody has any; GitHub's token where GitHub's API is asked for the list, and nowhere else.
    pub fn auth_for(&self, location: &Location) -> &Auth {
        let same = |other: &Location| {
            let (one, other) = (location.url(), other.url());
            one.zip(other).is_some_and(|(one, other)| address::is_same_server(&other, &one))
        };
        if self.auth != Auth::None && (same(&self.base) || same(&self.list)) && !is_official(location) {
            return &self.auth;
        }
        self.github.as_ref().filter(|_| self.list_kind == ListKind::GitHub && same(&self.list)).unwrap_or(&Auth::None)
    }
}

/// Whether a location is on a server of one of the projects.
fn is_official(location: &Location) -> bool {
    let url = location.url();
    let host = url.as_ref().and_then(Url::host_str).unwrap_or_default();
    ["releases.hashicorp.com", "github.com", "api.github.com", "get.opentofu.org"].contains(&host)
}

/// Where what lies below a location is listed.
fn listing(base: &Location, top: &str) -> (Location, ListKind) {
    match base {
        // With the `/`, for servers that answer a directory without one by a redirect, some of them to http.
        Location::Url(_) => (base.join(&format!("{top}/")), ListKind::Html),
        Location::File(_) => (base.join(top), ListKind::Directory),
    }
}

/// Owner and repository on GitHub.
const fn repository(tool: Tool) -> &'static str {
    match tool {
        Tool::OpenTofu => "opentofu/opentofu",
        Tool::Terraform => "hashicorp/terraform",
        Tool::Terragrunt => "gruntwork-io/terragrunt",
    }
}
