//! The decision: which tool a stack is for, and what of its versions is asked for. Pure but for reading the stack's files; the
//! order of what counts is in `design/0017-tool-versions.md`.

use std::{
    fmt::{self, Write as _},
    path::{Path, PathBuf},
};

use crate::{
    Constraints, Error, Request, Result, Tool, Version,
    request::{
        files,
        place::Place,
        required::{self, Readers, Required},
    },
};

/// What somebody asks for before the code is looked at: the run, a command line.
#[derive(Clone, Debug, Default)]
pub struct Requested {
    pub tool: Option<Tool>,
    /// The version, in the words of [`Request`].
    pub version: Option<String>,
    /// Where that stands: `spec.tool.version`.
    pub origin: String,
}

/// What counts when neither the request nor the code says anything.
#[derive(Clone, Debug)]
pub struct Defaults {
    pub tool: Tool,
    /// The version of each tool that has one, in the words of [`Request`], and where that stands.
    pub versions: Vec<(Tool, String, String)>,
}

impl Default for Defaults {
    fn default() -> Self {
        Self { tool: Tool::OpenTofu, versions: Vec::new() }
    }
}

/// Why a version is asked for. Shown, it names the file: `from .opentofu-version`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionReason {
    /// Somebody asked for it before the code was looked at.
    Requested(String),
    /// A version file says so.
    File(Place),
    /// The code's own `required_version` is all there is.
    Required(Place),
    /// The default, and where that stands.
    Default(String),
    Nothing,
}

impl VersionReason {
    /// As it is shown, with the line of the file.
    pub fn exactly(&self) -> String {
        match self {
            Self::File(place) => format!("from {place}"),
            Self::Required(place) => format!("the newest that {place} allows"),
            Self::Requested(_) | Self::Default(_) | Self::Nothing => self.to_string(),
        }
    }
}

impl fmt::Display for VersionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested(origin) => write!(f, "from {origin}"),
            Self::File(place) => write!(f, "from {}", place.file.display()),
            Self::Required(place) => write!(f, "the newest that {} allows", place.file.display()),
            Self::Default(origin) => write!(f, "the default of {origin}"),
            Self::Nothing => f.write_str("the newest release"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolReason {
    /// Somebody asked for it before the code was looked at.
    Requested(String),
    /// A file that it alone reads, or that says its version; relative to the top of the source.
    File(PathBuf),
    /// The lock file has providers of its registry.
    Locked(Place),
    /// The code's `required_version` allows no OpenTofu.
    Required {
        /// The constraint.
        text: String,
        place: Place,
    },
    /// Nothing in the code says which tool it is for.
    Default,
}

impl ToolReason {
    /// Whether it need not be said: who asked knows, and a file with its name in it is named as the reason of the version, or says it.
    pub const fn is_plain(&self) -> bool {
        matches!(self, Self::Requested(_) | Self::File(_))
    }
}

impl fmt::Display for ToolReason {
    /// After the name of the tool: `OpenTofu by default`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested(origin) => write!(f, "from {origin}"),
            Self::File(file) => write!(f, "by {}", file.display()),
            Self::Locked(place) => write!(f, "since {place} has providers of its registry"),
            Self::Required { text, place } => write!(f, "since `{text}` ({place}) allows no OpenTofu"),
            Self::Default => f.write_str("by default"),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Decision {
    pub tool: Tool,
    pub tool_why: ToolReason,
    /// What of its versions is asked for.
    pub request: Request,
    /// As it was written.
    pub asked: String,
    pub why: VersionReason,
    /// What the code requires besides.
    pub required: Vec<Required>,
    /// What was seen and does not count, in words for people.
    pub notes: Vec<String>,
    /// The tool that Terragrunt runs.
    pub beneath: Option<Box<Decision>>,
}

/// Decides for a stack. `root` is the top of its source, above which nothing is looked at.
///
/// # Errors
/// When a file cannot be read, a version or constraint is none, or two of them contradict each other: both are named.
pub fn decide(requested: &Requested, stack: &Path, root: &Path, defaults: &Defaults) -> Result<Decision> {
    let (tool, tool_why) = match requested.tool {
        Some(tool) => (tool, ToolReason::Requested(requested.origin.clone())),
        None => tool_of(stack, root)?.unwrap_or((defaults.tool, ToolReason::Default)),
    };
    let mut decision = version_of(
        tool,
        tool_why,
        requested.version.as_deref().map(|version| (version, &requested.origin)),
        stack,
        root,
        defaults,
    )?;
    if tool == Tool::Terragrunt {
        let default = if defaults.tool == Tool::Terragrunt { Tool::OpenTofu } else { defaults.tool };
        let (tool, why) = plain_tool_of(stack, root)?.unwrap_or((default, ToolReason::Default));
        decision.beneath = Some(Box::new(version_of(tool, why, None, stack, root, defaults)?));
    }
    Ok(decision)
}

/// The tool that the code is for, and why; nothing where it does not say.
///
/// # Errors
/// When a file cannot be read, or a constraint is none.
pub fn tool_of(stack: &Path, root: &Path) -> Result<Option<(Tool, ToolReason)>> {
    if let Some(file) = files::terragrunt_file(stack) {
        return Ok(Some((Tool::Terragrunt, ToolReason::File(below(&file, root)))));
    }
    plain_tool_of(stack, root)
}

/// OpenTofu or Terraform, and why: a file that OpenTofu alone reads; the nearest version file, OpenTofu's before Terraform's; providers in
/// the lock file; a `required_version` that no OpenTofu can satisfy.
///
/// # Errors
/// When a file cannot be read, or a constraint is none.
pub fn plain_tool_of(stack: &Path, root: &Path) -> Result<Option<(Tool, ToolReason)>> {
    if let Some(path) = required::opentofu_file(stack)? {
        return Ok(Some((Tool::OpenTofu, ToolReason::File(below(&path, root)))));
    }
    let mut nearest: Option<(usize, Tool, Place)> = None;
    for tool in [Tool::OpenTofu, Tool::Terraform] {
        if let Some((distance, place)) = files::own_file(tool, stack, root)?
            && nearest.as_ref().is_none_or(|(before, ..)| distance < *before)
        {
            nearest = Some((distance, tool, place));
        }
    }
    if let Some((_, tool, place)) = nearest {
        return Ok(Some((tool, ToolReason::File(place.file))));
    }
    // What no file can be read for is noted when the version is decided.
    let required = required::required(Tool::OpenTofu, stack, root, &mut Vec::new())?;
    if let Some(own) = required.iter().find(|required| required.readers == Readers::Language) {
        return Ok(Some((Tool::OpenTofu, ToolReason::File(own.place.file.clone()))));
    }
    if let Some((tool, place)) = files::locked(stack, root)? {
        return Ok(Some((tool, ToolReason::Locked(place))));
    }
    // OpenTofu began with 1.6.0.
    let first = Version::release(1, 6, 0);
    let allow_it = |all: &[Required]| Constraints::any_from(all.iter().map(|one| &one.constraints), &first);
    if allow_it(&required) {
        return Ok(None);
    }
    let alone = required.iter().find(|one| !allow_it(std::slice::from_ref(one)));
    Ok(alone
        .or(required.first())
        .map(|one| (Tool::Terraform, ToolReason::Required { text: one.text.clone(), place: one.place.clone() })))
}

/// A file as it is named to people.
fn below(file: &Path, root: &Path) -> PathBuf {
    file.strip_prefix(root).unwrap_or(file).to_owned()
}

fn version_of(
    tool: Tool,
    tool_why: ToolReason,
    requested: Option<(&str, &String)>,
    stack: &Path,
    root: &Path,
    defaults: &Defaults,
) -> Result<Decision> {
    let mut notes = Vec::new();
    let required = required::required(tool, stack, root, &mut notes)?;
    let (asked, why) = if let Some((version, origin)) = requested {
        (version.to_owned(), VersionReason::Requested(origin.clone()))
    } else if let Some(said) = files::requested(tool, stack, root, &mut notes)? {
        (said.text, VersionReason::File(said.place))
    } else if let Some(first) = required.first() {
        ("latest-allowed".to_owned(), VersionReason::Required(first.place.clone()))
    } else if let Some((_, version, origin)) = defaults.versions.iter().find(|(of, ..)| *of == tool) {
        (version.clone(), VersionReason::Default(origin.clone()))
    } else {
        ("latest".to_owned(), VersionReason::Nothing)
    };
    let request: Request = asked.parse().map_err(|error| Error::configuration(format!("{tool}, {}: {error}", why.exactly())))?;
    let decision = Decision { tool, tool_why, request, asked, why, required, notes, beneath: None };
    if let Some(version) = decision.request.exact()
        && let Some(other) = decision.required.iter().find(|required| !required.accepts(version))
    {
        return Err(Error::contradiction(format!(
            "{tool} {version} ({}) is not what the code requires: `{}` ({})",
            decision.why.exactly(),
            other.text,
            other.place
        )));
    }
    Ok(decision)
}

impl Decision {
    /// Chooses among versions, of which only those count that take the code.
    ///
    /// One that satisfies what it does not read as well goes before a newer one that does not: whoever wrote `~> 1.10.0` in a `.tf` file for
    /// OpenTofu keeps what he has. One that does not is taken only where the tool was not by default.
    pub fn choose<'a>(&self, versions: impl IntoIterator<Item = &'a Version>) -> Option<&'a Version> {
        let takers = versions.into_iter().filter(|version| self.required.iter().all(|required| required.accepts(version)));
        let takers: Vec<_> = takers.collect();
        let chosen = self.request.choose(takers.iter().copied(), |version| self.passed_over(version).is_none());
        let is_said = self.tool_why != ToolReason::Default;
        chosen.or_else(|| is_said.then(|| self.request.choose(takers.iter().copied(), |_| true)).flatten())
    }

    /// The first constraint that a version contradicts and does not read.
    fn passed_over(&self, version: &Version) -> Option<&Required> {
        self.required.iter().find(|required| required.is_passed_over(version))
    }

    /// Why it is this version, with what it does not read.
    pub fn why_of(&self, version: &Version) -> String {
        let Some(other) = self.passed_over(version) else { return self.why.to_string() };
        let why = match &self.why {
            // It is not what allows this one.
            VersionReason::Required(place) if *place == other.place => "the newest".to_owned(),
            why => why.to_string(),
        };
        let (text, place) = (&other.text, &other.place);
        format!("{why}; `{text}` ({place}) is for Terraform: since 1.12 OpenTofu reads required_version in .tofu files only")
    }

    /// Says that none of these versions is what is asked for.
    pub fn unmet<'a>(&self, versions: impl IntoIterator<Item = &'a Version>, where_: &str) -> Error {
        let mut list: Vec<_> = versions.into_iter().collect();
        list.sort();
        list.dedup();
        let newest: Vec<_> = list.iter().rev().take(12).map(ToString::to_string).collect();
        let list = if newest.is_empty() { "none".to_owned() } else { newest.join(", ") };
        let mut text = format!("no {} `{}` ({})", self.tool, self.asked, self.why.exactly());
        for required in &self.required {
            let _ = write!(text, " with `{}` ({})", required.text, required.place);
        }
        let _ = write!(text, "; {where_}: {list}");
        Error::configuration(text)
    }
}
