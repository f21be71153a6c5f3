//! The locations and file names of releases. Pure.
//!
//! | tool | list | releases |
//! |---|---|---|
//! | Terraform | `BASE/terraform/index.json` | `BASE/terraform/V/terraform_V_OS_ARCH.zip`, `terraform_V_SHA256SUMS`, `….72D7468F.sig`, `….sig` |
//! | OpenTofu | `get.opentofu.org/tofu/api.json`, which has no limit of requests | `BASE/opentofu/opentofu/releases/download/vV/tofu_V_OS_ARCH.zip`, `tofu_V_SHA256SUMS`, `….gpgsig` |
//! | Terragrunt | GitHub's API, by pages | `BASE/gruntwork-io/terragrunt/releases/download/vV/terragrunt_OS_ARCH`, `SHA256SUMS`, `….gpgsig` |
//!
//! A mirror has the same layout below its base, or below a directory on disk. [`environment`] parses the variables of tenv.

use std::{fmt, path::PathBuf};

use reqwest::Url;

use crate::{
    Error, Platform, Result, Tool, Version,
    releases::http::{Auth, address},
};

pub mod environment;

/// The last eight digits of HashiCorp's key, in the names of its newer signatures.
const HASHICORP_KEY: &str = "72D7468F";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A URL without a trailing `/`, credentials, query and fragment.
    Url(String),
    /// A path on disk.
    File(PathBuf),
}

impl Location {
    /// Parses a configured location: a URL, `file:///DIRECTORY` or `/DIRECTORY`. `what` names the setting in errors, which never
    /// repeat the URL.
    ///
    /// # Errors
    /// Configuration: another scheme, credentials, a query or a fragment.
    pub fn read(what: &str, text: &str) -> Result<Self> {
        let text = text.trim();
        if let Some(path) = text
            .strip_prefix("file://")
            .or_else(|| text.starts_with('/').then_some(text))
        {
            if !path.starts_with('/') {
                return Err(Error::configuration(format!(
                    "{what} names a file, but not from the root: write file:///DIRECTORY"
                )));
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

    /// Appends a path with `/`.
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

/// The layout of files below a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `TOOL/V/FILE`, as on `releases.hashicorp.com`.
    HashiCorp,
    /// `OWNER/REPOSITORY/releases/download/vV/FILE`, as on `github.com`.
    GitHub,
}

impl Layout {
    /// The layout in which the project publishes.
    pub const fn of(tool: Tool) -> Self {
        match tool {
            Tool::Terraform => Self::HashiCorp,
            Tool::OpenTofu | Tool::Terragrunt => Self::GitHub,
        }
    }

    /// The parent of the directories of all versions.
    fn top(self, tool: Tool) -> String {
        match self {
            Self::HashiCorp => tool.directory().to_owned(),
            Self::GitHub => format!("{}/releases/download", repository(tool)),
        }
    }
}

/// The format of a list of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListKind {
    /// HashiCorp's `index.json`.
    HashiCorp,
    /// Pages of GitHub's API.
    GitHub,
    /// OpenTofu's `api.json`.
    OpenTofu,
    /// An HTML page with a link to each version.
    Html,
    /// The names of directories on disk.
    Directory,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asset {
    /// The file name, as in the sums.
    pub name: String,
    pub location: Location,
}

/// The files of a release for one platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assets {
    /// The archive, a `.zip`, or the executable itself.
    pub archive: Asset,
    /// The name of the executable in the archive and in the cache.
    pub entry: String,
    /// The sums of all archives.
    pub sums: Asset,
    /// Equivalent signatures over the sums, by preference.
    pub signatures: Vec<Asset>,
}

/// The locations of a tool's releases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    pub tool: Tool,
    /// The list of versions.
    pub list: Location,
    pub list_kind: ListKind,
    /// The base of the releases.
    pub base: Location,
    pub layout: Layout,
    /// Credentials; [`Self::auth_for`] selects their servers.
    pub auth: Auth,
    /// A token for GitHub's API, used when it serves the list.
    pub github: Option<Auth>,
    /// Additional certificate authorities, in PEM.
    pub authority: Option<String>,
}

impl Mirror {
    /// The location where the project publishes.
    pub fn official(tool: Tool) -> Self {
        let (list, list_kind, base) = match tool {
            Tool::OpenTofu => (
                "https://get.opentofu.org/tofu/api.json".to_owned(),
                ListKind::OpenTofu,
                "https://github.com",
            ),
            Tool::Terragrunt => {
                let list = format!("https://api.github.com/repos/{}/releases", repository(tool));
                (list, ListKind::GitHub, "https://github.com")
            }
            Tool::Terraform => {
                let base = "https://releases.hashicorp.com";
                (
                    format!("{base}/terraform/index.json"),
                    ListKind::HashiCorp,
                    base,
                )
            }
        };
        let (list, base) = (Location::Url(list), Location::Url(base.to_owned()));
        Self {
            tool,
            list,
            list_kind,
            base,
            layout: Layout::of(tool),
            auth: Auth::None,
            github: None,
            authority: None,
        }
    }

    /// A mirror below a base, whose list is the index of a web server or a directory on disk.
    pub fn below(tool: Tool, base: Location) -> Self {
        let layout = Layout::of(tool);
        let (list, list_kind) = listing(&base, &layout.top(tool));
        Self {
            tool,
            list,
            list_kind,
            base,
            layout,
            auth: Auth::None,
            github: None,
            authority: None,
        }
    }

    pub fn assets(&self, version: &Version, platform: &Platform) -> Assets {
        let tool = self.tool;
        let entry = tool.binary().to_owned();
        let (archive, sums) = match tool {
            Tool::OpenTofu | Tool::Terraform => {
                let name = format!("{}_{version}", tool.binary());
                (
                    format!("{name}_{platform}.zip"),
                    format!("{name}_SHA256SUMS"),
                )
            }
            Tool::Terragrunt => (format!("terragrunt_{platform}"), "SHA256SUMS".to_owned()),
        };
        let signatures = match tool {
            Tool::Terraform => vec![format!("{sums}.{HASHICORP_KEY}.sig"), format!("{sums}.sig")],
            // OpenTofu's `.sig` is a cosign signature, not OpenPGP.
            Tool::OpenTofu | Tool::Terragrunt => vec![format!("{sums}.gpgsig")],
        };
        let tag = match self.layout {
            Layout::HashiCorp => version.to_string(),
            Layout::GitHub => format!("v{version}"),
        };
        let directory = self.base.join(&format!("{}/{tag}", self.layout.top(tool)));
        let asset = |name: String| Asset {
            location: directory.join(&name),
            name,
        };
        Assets {
            archive: asset(archive),
            entry,
            sums: asset(sums),
            signatures: signatures.into_iter().map(asset).collect(),
        }
    }

    /// Whether the mirror needs no network.
    pub const fn is_on_disk(&self) -> bool {
        matches!(
            (&self.base, &self.list),
            (Location::File(_), Location::File(_))
        )
    }

    /// The credentials for a location. The operator's credentials are for the servers of base and list, but never for the projects' own
    /// servers. GitHub's token is for the server of the list, if that is GitHub's API.
    pub fn auth_for(&self, location: &Location) -> &Auth {
        let same = |other: &Location| {
            let (one, other) = (location.url(), other.url());
            one.zip(other)
                .is_some_and(|(one, other)| address::is_same_server(&other, &one))
        };
        if self.auth != Auth::None
            && (same(&self.base) || same(&self.list))
            && !is_official(location)
        {
            return &self.auth;
        }
        self.github
            .as_ref()
            .filter(|_| self.list_kind == ListKind::GitHub && same(&self.list))
            .unwrap_or(&Auth::None)
    }
}

/// Whether a location is on a server of a project.
fn is_official(location: &Location) -> bool {
    let url = location.url();
    let host = url.as_ref().and_then(Url::host_str).unwrap_or_default();
    [
        "releases.hashicorp.com",
        "github.com",
        "api.github.com",
        "get.opentofu.org",
    ]
    .contains(&host)
}

/// The list of what is below a location.
fn listing(base: &Location, top: &str) -> (Location, ListKind) {
    match base {
        // With the `/`: some servers redirect a directory without it, some of them to http.
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
