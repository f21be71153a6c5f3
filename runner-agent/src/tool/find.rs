//! Finds the tool for a stack: reads the request, chooses among the available versions, and installs the version if it is missing.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use crds::{Failure, Reason, Tool, ToolName};
use tool_versions::{
    Decision, Error, Kind, Requested, ToolReason, Version, VersionReason,
    cache::store::verify::InUse,
    decide,
    install::{Chosen, Got, Origin},
};

use super::sources::{LocalTool, ToolSources, known, name_of};
use crate::{classify::is_disk_full, process::Role};

#[derive(Clone, Debug)]
pub struct Found {
    pub name: ToolName,
    pub version: Version,
    pub binary: PathBuf,
    /// SHA-256 of the executable in hexadecimal digits; known for tools in the cache.
    pub digest: Option<String>,
    /// Reason for this version, e.g. `from .opentofu-version`.
    pub why: String,
    /// Reason for this tool if it is not obvious, e.g. `by default`.
    pub tool_why: Option<String>,
    /// Notes for people: ignored requests, and the source of the installation.
    pub notes: Vec<String>,
    /// The tool that Terragrunt runs.
    pub beneath: Option<Box<Found>>,
    /// Protects the tool from pruning while this value exists.
    held: Option<Arc<InUse>>,
}

impl Found {
    /// A tool that is installed.
    pub fn at(name: ToolName, version: Version, binary: PathBuf) -> Self {
        Self {
            name,
            version,
            binary,
            digest: None,
            why: String::new(),
            tool_why: None,
            notes: Vec::new(),
            beneath: None,
            held: None,
        }
    }

    /// E.g. `OpenTofu 1.10.6`, or `Terragrunt 0.93.0 with OpenTofu 1.10.6`.
    pub fn title(&self) -> String {
        let mut title = format!("{} {}", self.name.as_str(), self.version);
        if let Some(beneath) = &self.beneath {
            let _ = write!(title, " with {}", beneath.title());
        }
        title
    }

    /// Reasons for the version and the tool, and with Terragrunt for the tool beneath.
    pub fn reason(&self) -> String {
        let tool = self
            .tool_why
            .as_ref()
            .map(|why| format!("; {} {why}", self.name.as_str()));
        let beneath = self
            .beneath
            .as_ref()
            .map(|beneath| format!("; {}, {}", beneath.title(), beneath.reason()));
        format!(
            "{}{}{}",
            self.why,
            tool.unwrap_or_default(),
            beneath.unwrap_or_default()
        )
    }

    /// OpenTofu or Terraform: the tool itself, or the one that Terragrunt runs.
    pub fn plain(&self) -> &Self {
        self.beneath.as_deref().unwrap_or(self)
    }

    /// The tool, and with Terragrunt the one beneath as well.
    pub fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.beneath.as_deref())
    }

    /// The process of its commands that reads and writes the state.
    pub fn role(&self) -> Role {
        // Before 1.1 Terraform ran itself as a child, to catch its panics (<https://github.com/hashicorp/terraform/pull/29825>).
        let wraps_itself = self.name == ToolName::Terraform && !self.version.at_least(1, 1);
        if self.beneath.is_some() || wraps_itself {
            Role::Above(self.plain().binary.clone())
        } else {
            Role::Tool
        }
    }

    /// Whether OpenTofu, or Terraform, is at least of these minor versions of 1.
    fn since(&self, opentofu: u64, terraform: u64) -> bool {
        let Self { name, version, .. } = self.plain();
        match name {
            ToolName::OpenTofu => version.at_least(1, opentofu),
            ToolName::Terraform => version.at_least(1, terraform),
            ToolName::Terragrunt | ToolName::Unknown => false,
        }
    }

    /// Whether a plan supports `import` blocks.
    pub fn has_import_blocks(&self) -> bool {
        self.since(0, 5)
    }

    /// Whether a command evaluates variables and takes them as arguments. OpenTofu evaluates backends, sources of modules and
    /// encryption in each command; Terraform sources of modules in `init`.
    pub fn takes_variables(&self, command: &str) -> bool {
        match command {
            "plan" => true,
            // Ephemeral ones are not in the plan file and must be given again. The tool compares all others with the plan, and OpenTofu also
            // those from files that it loads itself, so each is given as for the plan.
            "apply" => self.since(11, 10),
            // Terragrunt's own.
            "render" => false,
            "init" => self.since(8, 15),
            _ => self.plain().name == ToolName::OpenTofu && self.since(10, 0),
        }
    }

    /// Whether `init` supports JSON output.
    pub fn has_init_json(&self) -> bool {
        self.since(7, 9)
    }
}

/// A progress report of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// A line for people.
    Line(String),
    /// Data arrives. Sent at most once a second.
    Alive,
}

/// Minimum interval of [`Told::Alive`].
const ALIVE: Duration = Duration::from_secs(1);

/// A found tool and the decision behind it.
#[derive(Clone, Debug)]
pub struct Resolved {
    pub found: Found,
    pub decision: Decision,
}

/// Parameters of a search. Files above `root` are never read.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// The run's request.
    pub tool: &'a Tool,
    /// The request's field: `spec.tool.version`.
    pub origin: &'a str,
    pub stack: &'a Path,
    /// The source's top directory.
    pub root: &'a Path,
}

impl Search<'_> {
    /// The decision on tool and version.
    ///
    /// # Errors
    /// The requests contradict each other or are invalid.
    pub fn decided(&self, sources: &ToolSources) -> Result<Decision, Error> {
        let tool = self.tool.name.and_then(known);
        let requested = Requested {
            tool,
            version: self.tool.version.clone(),
            origin: self.origin.to_owned(),
        };
        decide(&requested, self.stack, self.root, &sources.defaults)
    }

    /// If the run did not name a tool and the chosen one is unavailable, adds why it was chosen and how to choose the other.
    fn with_why(&self, error: Error, sources: &ToolSources) -> Error {
        if self.tool.name.is_some()
            || !matches!(error.kind, Kind::Configuration | Kind::Unavailable)
        {
            return error;
        }
        // Unreadable code has an error of its own, which says how to name the tool.
        let Ok(said) = tool_versions::tool_of(self.stack, self.root) else {
            return error;
        };
        let (tool, why) = said.unwrap_or((sources.defaults.tool, ToolReason::Default));
        let asks = |tool: tool_versions::Tool| match self.origin {
            "--tool" => format!("`--tool {}`", tool.directory()),
            _ => format!("`spec.tool.name: {tool}`"),
        };
        let hint = match (&why, tool) {
            (ToolReason::Default, _) => {
                let [tofu, terraform] = [
                    tool_versions::Tool::OpenTofu,
                    tool_versions::Tool::Terraform,
                ]
                .map(asks);
                format!(
                    "no file selects the tool, so it is {tool} by default; {tofu} or {terraform} selects it"
                )
            }
            (
                ToolReason::Locked(_) | ToolReason::Required { .. },
                tool_versions::Tool::Terraform,
            ) => {
                format!(
                    "it is {tool} {why}; {} asks for OpenTofu",
                    asks(tool_versions::Tool::OpenTofu)
                )
            }
            (ToolReason::Locked(_), tool_versions::Tool::OpenTofu) => {
                format!(
                    "it is {tool} {why}; {} asks for Terraform",
                    asks(tool_versions::Tool::Terraform)
                )
            }
            _ => return error,
        };
        Error {
            text: format!("{}; {hint}", error.text),
            ..error
        }
    }
}

impl ToolSources {
    /// Chooses the tool for a stack and installs it if it is missing. Reports progress to `told`.
    pub async fn find(
        &self,
        search: Search<'_>,
        told: &(impl Fn(Told) + Sync),
    ) -> Result<Found, Failure> {
        self.resolve(search, true, told)
            .await
            .map(|resolved| resolved.found)
            .map_err(failed)
    }

    /// Finds or installs the exact version that a plan was made with.
    pub async fn pinned(
        &self,
        search: Search<'_>,
        told: &(impl Fn(Told) + Sync),
    ) -> Result<Found, Failure> {
        let tool = search
            .tool
            .name
            .and_then(known)
            .unwrap_or(self.defaults.tool);
        let version = search.tool.version.clone().unwrap_or_default();
        let why = VersionReason::Requested(search.origin.to_owned());
        let request = version.parse().map_err(failed)?;
        let decision = Decision {
            tool,
            tool_why: ToolReason::Requested(search.origin.to_owned()),
            request,
            asked: version,
            why,
            required: Vec::new(),
            notes: Vec::new(),
            beneath: None,
        };
        self.one(&decision, true, told).await.map_err(failed)
    }

    /// Like [`Self::find`]. Without `gets` nothing is installed, and a missing executable has an empty path.
    ///
    /// # Errors
    /// Those of the decision, of [`tool_versions::Installer::choose`] and of [`tool_versions::Installer::get`].
    pub async fn resolve(
        &self,
        search: Search<'_>,
        gets: bool,
        told: &(impl Fn(Told) + Sync),
    ) -> Result<Resolved, Error> {
        let decision = search
            .decided(self)
            .map_err(|error| search.with_why(error, self))?;
        let mut found = self
            .one(&decision, gets, told)
            .await
            .map_err(|error| search.with_why(error, self))?;
        if let Some(beneath) = &decision.beneath {
            found.beneath = Some(Box::new(self.one(beneath, gets, told).await?));
        }
        Ok(Resolved { found, decision })
    }

    /// The versions of a tool that are available outside the cache.
    pub fn local(&self, name: ToolName) -> Vec<LocalTool> {
        let mut all: Vec<_> = self
            .others
            .iter()
            .filter(|one| one.name == name)
            .cloned()
            .collect();
        all.extend(in_dirs(name, &self.dirs));
        all
    }

    async fn one(
        &self,
        decision: &Decision,
        gets: bool,
        told: &(impl Fn(Told) + Sync),
    ) -> Result<Found, Error> {
        let name = name_of(decision.tool);
        let of_image = self.local(name);
        let versions: Vec<Version> = of_image.iter().map(|one| one.version.clone()).collect();
        let Chosen {
            version,
            local,
            remark,
        } = self.installer.choose(decision, &versions).await?;
        let why = match (&decision.why, remark) {
            (VersionReason::Nothing, Some(remark)) => remark,
            (VersionReason::Nothing, None) if local => "the newest at hand".to_owned(),
            (_, Some(remark)) => format!("{}, {remark}", decision.why_of(&version)),
            (_, None) => decision.why_of(&version),
        };
        let notes = decision.notes.clone();
        let tool_why = Some(&decision.tool_why)
            .filter(|why| !why.is_plain())
            .map(ToString::to_string);
        if let Some(one) = of_image.into_iter().find(|one| one.version == version) {
            return Ok(Found {
                why,
                tool_why,
                notes,
                ..Found::at(name, version, one.binary)
            });
        }
        if !gets {
            let binary = self
                .installer
                .store
                .find(decision.tool, &version)?
                .map(|installed| installed.binary)
                .unwrap_or_default();
            return Ok(Found {
                why,
                tool_why,
                notes,
                ..Found::at(name, version, binary)
            });
        }
        let got = self.got(decision, &version, told).await;
        let Got {
            in_use,
            origin,
            remark,
        } = got.map_err(|error| match error.kind {
            // If the requested version does not exist, name the available ones.
            Kind::Configuration if !versions.is_empty() => {
                let local: Vec<_> = versions.iter().map(ToString::to_string).collect();
                Error {
                    text: format!("{}; at hand: {}", error.text, local.join(", ")),
                    ..error
                }
            }
            _ => error,
        })?;
        let mut found = Found {
            why,
            tool_why,
            notes,
            ..Found::at(name, version, in_use.installed.binary.clone())
        };
        if let Origin::Installed {
            from,
            signer,
            bytes,
            took,
        } = origin
        {
            let by = signer
                .map(|key| format!(", signed by {key}"))
                .unwrap_or_default();
            let (mib, seconds) = (bytes >> 20, took.as_secs_f64());
            told(Told::Line(format!(
                "{} {} is installed: {mib} MiB from {from}{by}, {seconds:.1} s",
                decision.tool, found.version
            )));
            self.prune(told).await;
        }
        if let Some(remark) = remark {
            let _ = write!(found.why, " ({remark})");
        }
        found.digest = Some(in_use.installed.digest.clone());
        found.held = Some(Arc::new(in_use));
        Ok(found)
    }

    async fn got(
        &self,
        decision: &Decision,
        version: &Version,
        told: &(impl Fn(Told) + Sync),
    ) -> Result<Got, Error> {
        let tool = decision.tool;
        let (mut quarter, mut alive) = (0, None);
        let mut progress = |so_far: u64, all: Option<u64>| {
            if alive.is_none_or(|at: Instant| at.elapsed() >= ALIVE) {
                alive = Some(Instant::now());
                told(Told::Alive);
            }
            let Some(all) = all.filter(|all| *all > 0) else {
                return;
            };
            let now = (so_far.saturating_mul(4) / all).min(4);
            if so_far == 0 || now > quarter && now < 4 {
                told(Told::Line(format!(
                    "{tool} {version}: {} of {} MiB",
                    so_far >> 20,
                    all >> 20
                )));
            }
            quarter = now;
        };
        self.installer
            .get(tool, version, &mut progress)
            .await
            .map_err(|error| {
                // Name the place of the request, where people can correct it.
                Error {
                    text: format!(
                        "{} ({tool} {version}, {})",
                        error.text,
                        decision.why.exactly()
                    ),
                    ..error
                }
            })
    }

    /// Prunes the cache. Errors are only reported, since the needed tool is installed.
    async fn prune(&self, told: &impl Fn(Told)) {
        let (store, most) = (self.installer.store.clone(), self.most);
        let pruned =
            tokio::task::spawn_blocking(move || store.prune(most, SystemTime::now())).await;
        match pruned.unwrap_or_else(|error| {
            Err(Error::storage(
                "the cache of tools",
                &io::Error::other(error),
            ))
        }) {
            Ok(gone) => {
                for one in &gone {
                    told(Told::Line(format!(
                        "{} {} is pruned from the cache",
                        one.tool, one.version
                    )));
                }
            }
            Err(error) => told(Told::Line(format!(
                "the cache of tools is not pruned: {error}"
            ))),
        }
    }
}

/// Maps an error of the crate to a failure of a run.
pub fn failed(error: Error) -> Failure {
    let reason = match error.kind {
        Kind::Configuration => Reason::ToolNotFound,
        Kind::Contradiction => Reason::VersionContradiction,
        Kind::Unavailable => Reason::ToolUnavailable,
        Kind::Integrity => Reason::ToolNotGenuine,
        Kind::Storage if is_disk_full(&error.text) => Reason::DiskFull,
        Kind::Storage => Reason::AgentFault,
    };
    reason.failure(error.text)
}

/// The tool that the code is written for, if a readable file shows it.
pub fn evidence(stack: &Path, root: &Path) -> Option<ToolName> {
    tool_versions::tool_of(stack, root)
        .ok()?
        .map(|(tool, _)| name_of(tool))
}

/// The versions of a tool in directories with the layout `DIRECTORY/VERSION/BINARY`.
pub(super) fn in_dirs(name: ToolName, dirs: &[PathBuf]) -> Vec<LocalTool> {
    let mut found = Vec::new();
    for dir in dirs {
        for entry in fs::read_dir(dir.join(name.directory()))
            .into_iter()
            .flatten()
            .flatten()
        {
            let Some(version) = entry
                .file_name()
                .to_str()
                .and_then(|text| text.parse().ok())
            else {
                continue;
            };
            let binary = entry.path().join(name.binary());
            if binary.is_file() {
                found.push(LocalTool {
                    name,
                    version,
                    binary,
                });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests;
