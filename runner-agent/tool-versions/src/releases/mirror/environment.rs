//! Mirrors from the environment variables of tenv. `P` is `TFENV`, `TOFUENV` or `TG`.
//!
//! | name | meaning |
//! |---|---|
//! | `P_REMOTE` | the base: a URL, `file:///DIRECTORY` or `/DIRECTORY`. Any of GitHub's own URLs selects GitHub with its API |
//! | `P_LIST_URL` | the list: a file `*.json` or GitHub's `…/releases` as it is, else a base to which the tool's path is added |
//! | `P_LIST_MODE` | `api`, `html`, and for OpenTofu `mirror` (`api.json`). Default: `api` for official servers, `html` for
//! others |
//! | `P_REMOTE_USER`, `P_REMOTE_PASSWORD` | credentials for the servers of the two, both or none |
//! | `TENV_GITHUB_TOKEN`, `TOFUENV_GITHUB_TOKEN` | token for GitHub's API when it serves the list; the second for OpenTofu only |
//! | `TENV_ARCH`, then `TFENV_ARCH` or `TOFUENV_ARCH` | [`platform`] |
//!
//! Not supported:
//!
//! | name | reason |
//! |---|---|
//! | `P_INSTALL_MODE` | file names follow from the version, so no API with a rate limit is needed |
//! | `TOFUENV_URL_TEMPLATE` | a template language for one tool; mirrors have the published layout |
//! | `TENV_REMOTE_CONF` | a file with the same settings, and rules to extract versions from pages, which
//! [`crate::releases::lists`] does not need |
//! | `TENV_GITHUB_APP_*` | a run must not have a key that signs tokens |
//! | `TENV_VALIDATION`, `TENV_SKIP_*` | unverified code is not run |
//! | `TENV_AUTO_INSTALL`, `TENV_FORCE_REMOTE`, `TENV_ROOT`, `TENV_LOCK_PATH` | the agent has its own settings |

use super::{Layout, ListKind, Location, Mirror, is_official, listing, repository};
use crate::{Error, Platform, Result, Tool, releases::http::Auth};

impl Mirror {
    /// The official mirror, or the one that the environment configures. Empty values count as unset.
    ///
    /// # Errors
    /// Configuration: names the variable and never its value.
    pub fn from_environment(
        tool: Tool,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self> {
        let prefix = prefix(tool);
        let name = |suffix: &str| format!("{prefix}_{suffix}");
        let text = |name: &str| {
            environment(name)
                .map(|text| text.trim().to_owned())
                .filter(|text| !text.is_empty())
        };
        let said = |suffix: &str| {
            text(&name(suffix)).map(|text| Named {
                name: name(suffix),
                text,
            })
        };
        let (base, list, mode) = (said("REMOTE"), said("LIST_URL"), said("LIST_MODE"));
        let mut mirror = Self::placed(tool, base.as_ref(), list.as_ref(), mode.as_ref())?;
        mirror.auth = match (text(&name("REMOTE_USER")), text(&name("REMOTE_PASSWORD"))) {
            (Some(user), Some(password)) => Auth::Basic { user, password },
            (None, None) => {
                let own = || text("TOFUENV_GITHUB_TOKEN").filter(|_| tool == Tool::OpenTofu);
                mirror.github = text("TENV_GITHUB_TOKEN").or_else(own).map(Auth::Bearer);
                Auth::None
            }
            (user, _) => {
                let (set, unset) = if user.is_some() {
                    ("USER", "PASSWORD")
                } else {
                    ("PASSWORD", "USER")
                };
                let text = format!(
                    "{prefix}_REMOTE_{set} is set and {prefix}_REMOTE_{unset} is not: set both or none"
                );
                return Err(Error::configuration(text));
            }
        };
        Ok(mirror)
    }

    /// The official mirror, or one at a base, with the list there or at another location.
    ///
    /// # Errors
    /// Configuration: names the setting and never its value.
    pub fn placed(
        tool: Tool,
        base: Option<&Named>,
        list: Option<&Named>,
        mode: Option<&Named>,
    ) -> Result<Self> {
        let location = |said: Option<&Named>| {
            said.map(|said| Location::read(&said.name, &said.text))
                .transpose()
        };
        let mut mirror = Self::official(tool);
        let list = location(list)?;
        if let Some(base) = location(base)? {
            let is_github = is_official(&base) && Layout::of(tool) == Layout::GitHub;
            // GitHub's API serves no files, and its pages no list, so either URL selects both.
            mirror.base = if is_github { mirror.base } else { base };
        }
        let from = list.as_ref().unwrap_or(&mirror.base);
        if list.is_some() || mode.is_some() || !is_official(&mirror.base) {
            (mirror.list, mirror.list_kind) = list_of(tool, from, mode)?;
        }
        Ok(mirror)
    }
}

/// A configured text with the name of its setting.
#[derive(Clone, Debug)]
pub struct Named {
    pub name: String,
    pub text: String,
}

/// The platform to download for: that of this program, or one with another architecture.
///
/// # Errors
/// Configuration: an architecture with characters that Go's names do not have.
pub fn platform(tool: Tool, environment: impl Fn(&str) -> Option<String>) -> Result<Platform> {
    let own = format!("{}_ARCH", prefix(tool));
    let mut platform = Platform::here();
    for name in ["TENV_ARCH", &own] {
        let Some(arch) = environment(name)
            .map(|text| text.trim().to_owned())
            .filter(|text| !text.is_empty())
        else {
            continue;
        };
        // The architecture becomes a part of URLs and paths.
        if arch.len() > 20
            || !arch
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
        {
            return Err(Error::configuration(format!(
                "{name} is no architecture in the words of Go, such as amd64 or arm64"
            )));
        }
        platform.arch = arch;
        break;
    }
    Ok(platform)
}

const fn prefix(tool: Tool) -> &'static str {
    match tool {
        Tool::OpenTofu => "TOFUENV",
        Tool::Terraform => "TFENV",
        Tool::Terragrunt => "TG",
    }
}

/// The list below a location, by mode.
fn list_of(tool: Tool, from: &Location, said: Option<&Named>) -> Result<(Location, ListKind)> {
    let (layout, mode) = (Layout::of(tool), said.map(|said| said.text.as_str()));
    let last = match from {
        Location::Url(url) => url.rsplit('/').next().unwrap_or_default().to_owned(),
        Location::File(path) => path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
    };
    // A URL of a document is used in any mode.
    let ends_in_json = last
        .rsplit_once('.')
        .is_some_and(|(_, end)| end.eq_ignore_ascii_case("json"));
    if ends_in_json {
        let kind = if layout == Layout::HashiCorp {
            ListKind::HashiCorp
        } else {
            ListKind::OpenTofu
        };
        return Ok((from.clone(), kind));
    }
    let is_url = matches!(from, Location::Url(_));
    if last == "releases" && is_url && layout == Layout::GitHub && mode != Some("html") {
        return Ok((from.clone(), ListKind::GitHub));
    }
    let official = Mirror::official(tool);
    Ok(match (mode, layout) {
        (None, _) if is_official(from) => (official.list, official.list_kind),
        (None | Some("html"), _) => listing(from, &layout.top(tool)),
        (Some("api"), Layout::HashiCorp) => {
            (from.join("terraform/index.json"), ListKind::HashiCorp)
        }
        (Some("api"), Layout::GitHub) if is_url => {
            // Only GitHub itself has its API on another host.
            let base = if is_official(from) {
                &Location::Url("https://api.github.com".to_owned())
            } else {
                from
            };
            (
                base.join(&format!("repos/{}/releases", repository(tool))),
                ListKind::GitHub,
            )
        }
        (Some("mirror"), Layout::GitHub) if tool == Tool::OpenTofu => {
            let list = if is_official(from) {
                official.list
            } else {
                from.join("tofu/api.json")
            };
            (list, ListKind::OpenTofu)
        }
        _ => {
            let modes = if tool == Tool::OpenTofu {
                "api, html or mirror"
            } else {
                "api or html"
            };
            let name = said.map_or("the kind of list", |said| &said.name);
            return Err(Error::configuration(format!(
                "{name} has to be {modes} (for a directory on disk html), or not set"
            )));
        }
    })
}
