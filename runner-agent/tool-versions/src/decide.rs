//! The decision: which tool a stack is for, and what of its versions is asked for. Pure but for reading the stack's files; the
//! order of what counts is in `design/0017-tool-versions.md`.

use std::{
    fmt::{self, Write as _},
    path::Path,
};

use crate::{
    Error, Request, Result, Tool, Version, files,
    place::Place,
    required::{self, Required},
};

/// What somebody asks for before the code is looked at: the run, a command line.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// The tool.
    pub tool: Option<Tool>,
    /// The version, in the words of [`Request`].
    pub version: Option<String>,
    /// Where that stands: `spec.tool.version`.
    pub origin: String,
}

/// What counts when neither the wish nor the code says anything.
#[derive(Clone, Debug)]
pub struct Defaults {
    /// The tool.
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
pub enum Why {
    /// Somebody asked for it before the code was looked at.
    Wish(String),
    /// A version file says so.
    File(Place),
    /// The code's own `required_version` is all there is.
    Required(Place),
    /// The default, and where that stands.
    Default(String),
    /// Nothing says anything.
    Nothing,
}

impl Why {
    /// As it is shown, with the line of the file.
    pub fn exactly(&self) -> String {
        match self {
            Self::File(place) => format!("from {place}"),
            Self::Required(place) => format!("the newest that {place} allows"),
            Self::Wish(_) | Self::Default(_) | Self::Nothing => self.to_string(),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wish(origin) => write!(f, "from {origin}"),
            Self::File(place) => write!(f, "from {}", place.file.display()),
            Self::Required(place) => write!(f, "the newest that {} allows", place.file.display()),
            Self::Default(origin) => write!(f, "the default of {origin}"),
            Self::Nothing => f.write_str("the newest release"),
        }
    }
}

/// What is asked for, and why.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The tool.
    pub tool: Tool,
    /// Why this tool.
    pub tool_why: String,
    /// What of its versions is asked for.
    pub request: Request,
    /// As it was written.
    pub asked: String,
    /// Why.
    pub why: Why,
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
pub fn decide(wish: &Wish, stack: &Path, root: &Path, defaults: &Defaults) -> Result<Decision> {
    let (tool, tool_why) = match wish.tool {
        Some(tool) => (tool, wish.origin.clone()),
        None => tool_of(stack, root)?.unwrap_or_else(|| (defaults.tool, "the default".to_owned())),
    };
    let mut decision =
        version_of(tool, tool_why, wish.version.as_deref().map(|version| (version, &wish.origin)), stack, root, defaults)?;
    if tool == Tool::Terragrunt {
        let (tool, why) = plain_tool_of(stack, root)?.unwrap_or_else(|| {
            (if defaults.tool == Tool::Terragrunt { Tool::OpenTofu } else { defaults.tool }, "the default".to_owned())
        });
        decision.beneath = Some(Box::new(version_of(tool, why, None, stack, root, defaults)?));
    }
    Ok(decision)
}

/// The tool that the code is for, and why.
///
/// # Errors
/// When a file cannot be read.
pub fn tool_of(stack: &Path, root: &Path) -> Result<Option<(Tool, String)>> {
    if files::is_terragrunt(stack) {
        return Ok(Some((Tool::Terragrunt, "the directory has a file of Terragrunt".to_owned())));
    }
    plain_tool_of(stack, root)
}

/// OpenTofu or Terraform, and why. A file that OpenTofu alone reads decides; then the nearest version file, OpenTofu's before Terraform's.
///
/// # Errors
/// When a file cannot be read.
pub fn plain_tool_of(stack: &Path, root: &Path) -> Result<Option<(Tool, String)>> {
    if let Some(path) = required::opentofu_file(stack)? {
        return Ok(Some((
            Tool::OpenTofu,
            format!("{} is a file of OpenTofu", path.strip_prefix(root).unwrap_or(&path).display()),
        )));
    }
    let mut nearest: Option<(usize, Tool, Place)> = None;
    for tool in [Tool::OpenTofu, Tool::Terraform] {
        if let Some((distance, place)) = files::own_file(tool, stack, root)?
            && nearest.as_ref().is_none_or(|(before, ..)| distance < *before)
        {
            nearest = Some((distance, tool, place));
        }
    }
    Ok(nearest.map(|(_, tool, place)| (tool, format!("from {place}"))))
}

fn version_of(
    tool: Tool,
    tool_why: String,
    wish: Option<(&str, &String)>,
    stack: &Path,
    root: &Path,
    defaults: &Defaults,
) -> Result<Decision> {
    let mut notes = Vec::new();
    let required = required::required(tool, stack, root, &mut notes)?;
    let (asked, why) = if let Some((version, origin)) = wish {
        (version.to_owned(), Why::Wish(origin.clone()))
    } else if let Some(said) = files::wish(tool, stack, root, &mut notes)? {
        (said.text, Why::File(said.place))
    } else if let Some(first) = required.first() {
        ("latest-allowed".to_owned(), Why::Required(first.place.clone()))
    } else if let Some((_, version, origin)) = defaults.versions.iter().find(|(of, ..)| *of == tool) {
        (version.clone(), Why::Default(origin.clone()))
    } else {
        ("latest".to_owned(), Why::Nothing)
    };
    let request: Request = asked.parse().map_err(|error| Error::configuration(format!("{tool}, {}: {error}", why.exactly())))?;
    let decision = Decision { tool, tool_why, request, asked, why, required, notes, beneath: None };
    if let Some(version) = decision.request.exact()
        && let Some(other) = decision.required.iter().find(|required| !required.constraints.allow_core(version))
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
    /// Chooses among versions.
    pub fn choose<'a>(&self, versions: impl IntoIterator<Item = &'a Version>) -> Option<&'a Version> {
        self.request.choose(versions, |version| self.required.iter().all(|required| required.constraints.allow_core(version)))
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
