//! The decision for a tool and a version request. Pure except for reading the stack's files. `design/0017-tool-versions.md` has
//! the order of precedence.

use std::{
    fmt::{self, Write as _},
    path::{Path, PathBuf},
};

use crate::{
    Constraints, Error, Kind, Request, Result, Tool, Version,
    request::{
        files,
        place::Place,
        required::{self, Readers, Required},
    },
};

/// The request of a run or a command line, which precedes the code.
#[derive(Clone, Debug, Default)]
pub struct Requested {
    pub tool: Option<Tool>,
    /// The version, in the grammar of [`Request`].
    pub version: Option<String>,
    /// The origin for messages: `spec.tool.version`.
    pub origin: String,
}

/// The defaults when neither the request nor the code names a tool or version.
#[derive(Clone, Debug)]
pub struct Defaults {
    pub tool: Tool,
    /// Versions by tool, in the grammar of [`Request`], with their origin.
    pub versions: Vec<(Tool, String, String)>,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            tool: Tool::OpenTofu,
            versions: Vec::new(),
        }
    }
}

/// The reason for a version. The printed form names the file: `from .opentofu-version`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionReason {
    /// The request, with its origin.
    Requested(String),
    /// A version file.
    File(Place),
    /// The code's own `required_version`, when there is nothing else.
    Required(Place),
    /// The default, with its origin.
    Default(String),
    Nothing,
}

impl VersionReason {
    /// The printed form with the line of the file.
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
    /// The request, with its origin.
    Requested(String),
    /// A file that only this tool reads, or that names its version. Relative to the root of the source.
    File(PathBuf),
    /// The lock file has providers of the tool's registry.
    Locked(Place),
    /// The code's `required_version` allows no OpenTofu.
    Required {
        /// The constraint.
        text: String,
        place: Place,
    },
    /// The code does not name a tool.
    Default,
}

impl ToolReason {
    /// Whether the reason can be omitted from texts: the author of the request knows it, or the reason of the version shows the same file.
    pub const fn is_plain(&self) -> bool {
        matches!(self, Self::Requested(_) | Self::File(_))
    }
}

impl fmt::Display for ToolReason {
    /// Follows the name of the tool: `OpenTofu by default`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested(origin) => write!(f, "from {origin}"),
            Self::File(file) => write!(f, "by {}", file.display()),
            Self::Locked(place) => write!(f, "since {place} has providers of its registry"),
            Self::Required { text, place } => {
                write!(f, "since `{text}` ({place}) allows no OpenTofu")
            }
            Self::Default => f.write_str("by default"),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Decision {
    pub tool: Tool,
    pub tool_why: ToolReason,
    /// The version request.
    pub request: Request,
    /// The request as it was written.
    pub asked: String,
    pub why: VersionReason,
    /// The requirements of the code.
    pub required: Vec<Required>,
    /// Warnings about ignored files, for people.
    pub notes: Vec<String>,
    /// The tool that Terragrunt runs.
    pub beneath: Option<Box<Decision>>,
}

/// Decides for a stack. Nothing above `root`, the root of the source, is read.
///
/// # Errors
/// Storage for an unreadable file; configuration for an invalid version or constraint; contradiction, with both places, when two
/// of them contradict each other.
pub fn decide(
    requested: &Requested,
    stack: &Path,
    root: &Path,
    defaults: &Defaults,
) -> Result<Decision> {
    let (tool, tool_why) = match requested.tool {
        Some(tool) => (tool, ToolReason::Requested(requested.origin.clone())),
        None => tool_of(stack, root)?.unwrap_or((defaults.tool, ToolReason::Default)),
    };
    let mut decision = version_of(
        tool,
        tool_why,
        requested
            .version
            .as_deref()
            .map(|version| (version, &requested.origin)),
        stack,
        root,
        defaults,
    )?;
    if tool == Tool::Terragrunt {
        let default = if defaults.tool == Tool::Terragrunt {
            Tool::OpenTofu
        } else {
            defaults.tool
        };
        let (tool, why) = beneath(stack, root)?.unwrap_or((default, ToolReason::Default));
        decision.beneath = Some(Box::new(version_of(
            tool, why, None, stack, root, defaults,
        )?));
    }
    Ok(decision)
}

/// The tool that the code is for, with the reason; `None` when the code does not name one.
///
/// # Errors
/// Storage for an unreadable file, configuration for an invalid constraint.
pub fn tool_of(stack: &Path, root: &Path) -> Result<Option<(Tool, ToolReason)>> {
    if let Some(file) = files::terragrunt_file(stack) {
        return Ok(Some((
            Tool::Terragrunt,
            ToolReason::File(below(&file, root)),
        )));
    }
    plain_tool_of(stack, root)
}

/// OpenTofu or Terraform, by: a file that only OpenTofu reads; the nearest version file, OpenTofu's first; the providers of the
/// lock file; a `required_version` that no OpenTofu satisfies.
///
/// # Errors
/// Storage for an unreadable file, configuration for an invalid constraint.
pub fn plain_tool_of(stack: &Path, root: &Path) -> Result<Option<(Tool, ToolReason)>> {
    let module = files::source_of(stack, root);
    for dir in [stack].into_iter().chain(module.as_deref()) {
        if let Some(path) = required::opentofu_file(dir)? {
            return Ok(Some((Tool::OpenTofu, ToolReason::File(below(&path, root)))));
        }
    }
    let mut nearest: Option<(usize, Tool, Place)> = None;
    for tool in [Tool::OpenTofu, Tool::Terraform] {
        if let Some((distance, place)) = files::own_file(tool, stack, root)?
            && nearest
                .as_ref()
                .is_none_or(|(before, ..)| distance < *before)
        {
            nearest = Some((distance, tool, place));
        }
    }
    if let Some((_, tool, place)) = nearest {
        return Ok(Some((tool, ToolReason::File(place.file))));
    }
    let mut unread = Vec::new();
    let required = required::required(Tool::OpenTofu, stack, root, &mut unread)?;
    if let Some(own) = required
        .iter()
        .find(|required| required.readers == Readers::Language)
    {
        return Ok(Some((
            Tool::OpenTofu,
            ToolReason::File(own.place.file.clone()),
        )));
    }
    if let Some((tool, place)) = files::locked(stack, root)? {
        return Ok(Some((tool, ToolReason::Locked(place))));
    }
    // The first release of OpenTofu is 1.6.0.
    let first = Version::release(1, 6, 0);
    // A constraint that no version accepts names no tool.
    let allow_it = |all: &[Required]| {
        let sound = all.iter().filter(|one| one.wrong.is_none());
        Constraints::any_from(sound.map(|one| &one.constraints), &first)
    };
    if allow_it(&required) {
        // A constraint that is not read may be the one that names the tool. Where another place names it, the tool checks the constraint.
        let Some(why) = unread.first() else {
            return Ok(None);
        };
        return Err(Error::configuration(format!(
            "{why}; so it is not known for which tool the code is: name the tool, or its version in a file such as .opentofu-version"
        )));
    }
    let alone = required
        .iter()
        .find(|one| !allow_it(std::slice::from_ref(one)));
    Ok(alone.or(required.first()).map(|one| {
        (
            Tool::Terraform,
            ToolReason::Required {
                text: one.text.clone(),
                place: one.place.clone(),
            },
        )
    }))
}

/// The tool that Terragrunt runs: that of `terraform_binary`. Where that is not understood, another place has to name the tool.
fn beneath(stack: &Path, root: &Path) -> Result<Option<(Tool, ToolReason)>> {
    match files::binary(stack, root) {
        Ok(Some((tool, place))) => Ok(Some((tool, ToolReason::File(place.file)))),
        Ok(None) => plain_tool_of(stack, root),
        Err(error) if error.kind == Kind::Configuration => match plain_tool_of(stack, root)? {
            Some(found) => Ok(Some(found)),
            None => Err(Error::configuration(format!(
                "{}; name the tool by a file such as .opentofu-version",
                error.text
            ))),
        },
        Err(error) => Err(error),
    }
}

/// The path for messages.
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
        (
            "latest-allowed".to_owned(),
            VersionReason::Required(first.place.clone()),
        )
    } else if let Some((_, version, origin)) = defaults.versions.iter().find(|(of, ..)| *of == tool)
    {
        (version.clone(), VersionReason::Default(origin.clone()))
    } else {
        ("latest".to_owned(), VersionReason::Nothing)
    };
    let request: Request = asked
        .parse()
        .map_err(|error| Error::configuration(format!("{tool}, {}: {error}", why.exactly())))?;
    let decision = Decision {
        tool,
        tool_why,
        request,
        asked,
        why,
        required,
        notes,
        beneath: None,
    };
    if let Some(version) = decision.request.exact()
        && let Some(other) = decision
            .required
            .iter()
            .find(|required| !required.accepts(version))
    {
        let wrong = other.wrong.as_ref().map(|wrong| format!(": {wrong}"));
        return Err(Error::contradiction(format!(
            "{tool} {version} ({}) is not what the code requires: `{}` ({}){}",
            decision.why.exactly(),
            other.text,
            other.place,
            wrong.unwrap_or_default()
        )));
    }
    Ok(decision)
}

impl Decision {
    /// Chooses among versions that the code accepts. A version that also satisfies constraints that it does not read precedes a newer one:
    /// code for OpenTofu with `~> 1.10.0` in a `.tf` file keeps 1.10. A version that does not satisfy them is chosen only if the tool was
    /// requested, not if it is the default.
    pub fn choose<'a>(
        &self,
        versions: impl IntoIterator<Item = &'a Version>,
    ) -> Option<&'a Version> {
        let takers = versions.into_iter().filter(|version| {
            self.required
                .iter()
                .all(|required| required.accepts(version))
        });
        let takers: Vec<_> = takers.collect();
        let chosen = self.request.choose(takers.iter().copied(), |version| {
            self.passed_over(version).is_none()
        });
        let is_said = self.tool_why != ToolReason::Default;
        chosen.or_else(|| {
            is_said
                .then(|| self.request.choose(takers.iter().copied(), |_| true))
                .flatten()
        })
    }

    /// The first constraint that a version does not read and does not satisfy.
    fn passed_over(&self, version: &Version) -> Option<&Required> {
        self.required
            .iter()
            .find(|required| required.is_passed_over(version))
    }

    /// The reason for a version, with the constraint it does not read.
    pub fn why_of(&self, version: &Version) -> String {
        let Some(other) = self.passed_over(version) else {
            return self.why.to_string();
        };
        let why = match &self.why {
            // The constraint does not allow this version, so it is not the reason.
            VersionReason::Required(place) if *place == other.place => "the newest".to_owned(),
            why => why.to_string(),
        };
        let (text, place) = (&other.text, &other.place);
        format!(
            "{why}; `{text}` ({place}) is for Terraform: since 1.12 OpenTofu reads required_version in .tofu files only"
        )
    }

    /// The error when none of these versions fits.
    pub fn unmet<'a>(
        &self,
        versions: impl IntoIterator<Item = &'a Version>,
        where_: &str,
    ) -> Error {
        let mut list: Vec<_> = versions.into_iter().collect();
        list.sort();
        list.dedup();
        let newest: Vec<_> = list
            .iter()
            .rev()
            .take(12)
            .map(ToString::to_string)
            .collect();
        let list = if newest.is_empty() {
            "none".to_owned()
        } else {
            newest.join(", ")
        };
        let is_of_code = matches!(self.why, VersionReason::Required(_));
        let mut text = if is_of_code {
            format!("no {}", self.tool)
        } else {
            format!("no {} `{}` ({})", self.tool, self.asked, self.why.exactly())
        };
        for (at, required) in self.required.iter().enumerate() {
            let with = if at > 0 && is_of_code { "and" } else { "with" };
            let _ = write!(text, " {with} `{}` ({})", required.text, required.place);
            if let Some(wrong) = &required.wrong {
                let _ = write!(text, ": {wrong}");
            }
        }
        let is_wrong = self.required.iter().any(|one| one.wrong.is_some());
        let all = self
            .required
            .iter()
            .filter(|one| one.readers == Readers::All);
        let first = Version::release(0, 0, 0);
        if !is_wrong && !Constraints::any_from(all.map(|one| &one.constraints), &first) {
            let _ = write!(text, ", which no version satisfies");
            return Error::contradiction(text);
        }
        let _ = write!(text, "; {where_}: {list}");
        if is_wrong {
            Error::contradiction(text)
        } else {
            Error::configuration(text)
        }
    }
}
