//! `required_version` of the stack's own files, and `compatible_with` of OpenTofu's `language` block.
//!
//! OpenTofu before 1.12 reads `required_version` of every file. Since 1.12 it reads that of `.tofu` files only, override files or
//! not; in a `.tf` file it is for Terraform (`checkVersionRequirements`, OpenTofu 1.12.0).
//!
//! Only the stack's directory is read, and a Terragrunt unit's source, which is the stack's code there; the tool checks modules itself. A file that
//! cannot be parsed here is noted and ignored, since the tool reports it.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use hcl_edit::{
    Span as _,
    expr::{Expression, ObjectKey},
    structure::{Block, Body},
};
use serde_json::Value;

use crate::{
    Constraints, Error, Kind, Result, Tool, Version,
    request::{
        files, hcl, json,
        place::{self, Place, line_of},
    },
};

/// The versions of a tool that read a constraint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    All,
    /// OpenTofu before 1.12: `required_version` of a file that Terraform reads too.
    Before,
    /// OpenTofu since 1.12: a constraint that an override file replaced before.
    Since,
    /// OpenTofu since 1.12; older versions refuse the `language` block.
    Language,
}

/// A constraint of the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Required {
    /// The parsed constraint.
    pub constraints: Constraints,
    /// The text.
    pub text: String,
    pub place: Place,
    pub readers: Readers,
    /// Why a version that reads it refuses it, whatever it says.
    pub wrong: Option<String>,
}

impl Required {
    /// Whether a version accepts the code according to this constraint. A version that does not read the constraint accepts it.
    pub fn accepts(&self, version: &Version) -> bool {
        let (is_newer, allowed) = (
            reads_own_files_only(version),
            self.wrong.is_none() && self.constraints.allow_core(version),
        );
        match self.readers {
            Readers::All => allowed,
            Readers::Before => is_newer || allowed,
            Readers::Since => !is_newer || allowed,
            Readers::Language => is_newer && allowed,
        }
    }

    /// Whether a version does not read this constraint and contradicts it. Such a constraint is for Terraform, or for older versions.
    pub fn is_passed_over(&self, version: &Version) -> bool {
        self.readers == Readers::Before
            && reads_own_files_only(version)
            && !self.constraints.allow_core(version)
    }
}

/// Whether this version of OpenTofu reads `required_version` in `.tofu` files only.
fn reads_own_files_only(version: &Version) -> bool {
    version.at_least(1, 12)
}

/// The constraints on a tool of a stack's own files, and of the module that its Terragrunt file names by a local path.
///
/// # Errors
/// Storage when the directory cannot be read, configuration for an invalid constraint.
pub fn required(
    tool: Tool,
    stack: &Path,
    root: &Path,
    notes: &mut Vec<String>,
) -> Result<Vec<Required>> {
    if tool == Tool::Terragrunt {
        return Ok(Vec::new());
    }
    let mut all = of_directory(tool, stack, root, notes)?;
    if let Some(module) = files::source_of(stack, root) {
        all.extend(of_directory(tool, &module, root, notes)?);
    }
    Ok(all)
}

fn of_directory(
    tool: Tool,
    stack: &Path,
    root: &Path,
    notes: &mut Vec<String>,
) -> Result<Vec<Required>> {
    let (mut all, mut overrides): (Vec<Required>, Vec<Required>) = (Vec::new(), Vec::new());
    for path in configuration(tool, stack)? {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let found = match place::read(&path) {
            Ok(None) => continue,
            Ok(Some(text)) => stated(tool, name, &text),
            Err(error) if error.kind == Kind::Configuration => Err(error.text),
            Err(error) => return Err(error),
        };
        let found = match found {
            Ok(found) => found,
            Err(why) => {
                let shown = path.strip_prefix(root).unwrap_or(&path).display();
                notes.push(format!("{shown} is not read for required_version: {why}"));
                continue;
            }
        };
        let mut read = Vec::new();
        for one in found {
            let readers = match (tool, one.in_language) {
                (_, true) => Readers::Language,
                (Tool::OpenTofu, false) if !is_of_opentofu(name) => Readers::Before,
                _ => Readers::All,
            };
            read.push(constraint(
                one.text,
                Place::of(&path, root, one.line),
                readers,
            )?);
        }
        if !is_override(name) {
            all.append(&mut read);
        } else if !read.is_empty() {
            // The last override file with a constraint replaces all others (`mergeFile` of both tools).
            all.append(&mut overrides);
            overrides = read;
        }
    }
    if !overrides.is_empty() {
        all.retain_mut(|replaced| {
            let stays = tool == Tool::OpenTofu && replaced.readers != Readers::Before;
            if replaced.readers == Readers::All {
                replaced.readers = Readers::Since;
            }
            stays
        });
    }
    all.append(&mut overrides);
    Ok(all)
}

/// # Errors
/// Both tools refuse the constraint in every version that may be chosen. OpenTofu 1.12 does not read all of them.
fn constraint(text: String, place: Place, readers: Readers) -> Result<Required> {
    let parsed: Result<Constraints> = text.parse();
    let wrong = match &parsed {
        // Both tools fail with "Prerelease version constraints are not supported".
        Ok(found) if found.names_prerelease() => Some(format!(
            "`{text}` names a prerelease, which required_version may not"
        )),
        Ok(_) => None,
        Err(error) => Some(error.text.clone()),
    };
    if let Some(wrong) = wrong.as_ref().filter(|_| readers != Readers::Before) {
        return Err(Error::contradiction(format!("{place}: {wrong}")));
    }
    let constraints = match parsed {
        Ok(found) => found,
        // It excludes no version that does not read it.
        Err(_) => ">= 0".parse()?,
    };
    Ok(Required {
        constraints,
        text,
        place,
        readers,
        wrong,
    })
}

/// The files of a stack that a tool reads, sorted by name. OpenTofu ignores `NAME.tf` beside `NAME.tofu`, and `NAME.tf.json`
/// beside `NAME.tofu.json`.
///
/// # Errors
/// Storage: the directory cannot be read.
pub fn configuration(tool: Tool, stack: &Path) -> Result<Vec<PathBuf>> {
    let listed: io::Result<Vec<_>> = fs::read_dir(stack).and_then(Iterator::collect);
    let listed = listed.map_err(|error| Error::storage(stack.display(), &error))?;
    let names: BTreeSet<String> = listed
        .iter()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    let is_read = |name: &&String| {
        if name.starts_with('.')
            || name.ends_with('~')
            || (name.starts_with('#') && name.ends_with('#'))
        {
            return false;
        }
        let stem = |ending: &str| name.strip_suffix(ending);
        match (
            tool,
            stem(".tofu").or(stem(".tofu.json")),
            stem(".tf"),
            stem(".tf.json"),
        ) {
            (Tool::OpenTofu, None, Some(stem), _) => !names.contains(&format!("{stem}.tofu")),
            (Tool::OpenTofu, None, None, Some(stem)) => {
                !names.contains(&format!("{stem}.tofu.json"))
            }
            (Tool::OpenTofu, Some(_), _, _)
            | (Tool::Terraform, None, Some(_), _)
            | (Tool::Terraform, None, _, Some(_)) => true,
            _ => false,
        }
    };
    Ok(names
        .iter()
        .filter(is_read)
        .map(|name| stack.join(name))
        .collect())
}

/// The same in the order in which the tools merge them: override files after all others.
///
/// # Errors
/// As [`configuration`].
pub fn in_merge_order(tool: Tool, stack: &Path) -> Result<Vec<PathBuf>> {
    let mut files = configuration(tool, stack)?;
    files.sort_by_key(|path| {
        path.file_name()
            .and_then(OsStr::to_str)
            .is_some_and(is_override)
    });
    Ok(files)
}

/// The first file that only OpenTofu reads.
pub(crate) fn opentofu_file(stack: &Path) -> Result<Option<PathBuf>> {
    let of_tofu = |path: &PathBuf| path.to_str().is_some_and(is_of_opentofu);
    Ok(configuration(Tool::OpenTofu, stack)?
        .into_iter()
        .find(of_tofu))
}

fn is_of_opentofu(name: &str) -> bool {
    has_ending(name, ".tofu") || has_ending(name, ".tofu.json")
}

/// Both tools compare extensions with case.
fn has_ending(name: &str, ending: &str) -> bool {
    name.strip_suffix(ending).is_some()
}

/// Whether a configuration file overrides others: the tools look at its name without its ending.
fn is_override(name: &str) -> bool {
    let endings = [".tf", ".tofu", ".tf.json", ".tofu.json"];
    let stem = endings.iter().find_map(|ending| name.strip_suffix(ending));
    stem.is_some_and(|stem| stem == "override" || stem.ends_with("_override"))
}

/// A constraint as it is written in a file.
struct Stated {
    text: String,
    line: usize,
    in_language: bool,
}

type Found = Result<Vec<Stated>, String>;

/// The constraints on a tool in the text of a file of this name, with their lines.
///
/// # Errors
/// The syntax error.
pub fn said(tool: Tool, name: &str, text: &str) -> Result<Vec<(String, usize)>, String> {
    Ok(stated(tool, name, text)?
        .into_iter()
        .map(|one| (one.text, one.line))
        .collect())
}

fn stated(tool: Tool, name: &str, text: &str) -> Found {
    if has_ending(name, ".json") {
        of_json(text)
    } else {
        of_hcl(text, tool)
    }
}

fn of_hcl(text: &str, tool: Tool) -> Found {
    // Parse only files that contain one of the names, which are few. The names have no other spelling.
    if !["required_version", "compatible_with"]
        .iter()
        .any(|name| text.contains(name))
    {
        return Ok(Vec::new());
    }
    let body = hcl::blocks(text, &["terraform", "language"])?;
    let mut found = Vec::new();
    for block in body.blocks() {
        match block.ident.as_str() {
            "terraform" => {
                found.extend(attribute(&block.body, "required_version", text)?);
            }
            "language" if tool == Tool::OpenTofu => {
                for inner in block
                    .body
                    .blocks()
                    .filter(|inner| inner.ident.as_str() == "compatible_with")
                {
                    found.extend(attribute(&inner.body, "opentofu", text)?);
                }
                found.extend(object(block, text)?);
            }
            _ => {}
        }
    }
    Ok(found)
}

/// `required_version` of a `terraform` block, or `opentofu` of a `compatible_with` block.
fn attribute(body: &Body, name: &str, text: &str) -> Result<Option<Stated>, String> {
    let Some(attribute) = body.get_attribute(name) else {
        return Ok(None);
    };
    let line = attribute.span().map_or(1, |span| line_of(text, span.start));
    let value = attribute
        .value
        .as_str()
        .ok_or_else(|| format!("line {line}: {name} is no plain text"))?;
    Ok(Some(Stated {
        text: value.to_owned(),
        line,
        in_language: name == "opentofu",
    }))
}

/// `compatible_with = { opentofu = "…" }`.
fn object(block: &Block, text: &str) -> Result<Option<Stated>, String> {
    let Some(attribute) = block.body.get_attribute("compatible_with") else {
        return Ok(None);
    };
    let line = attribute.span().map_or(1, |span| line_of(text, span.start));
    let Expression::Object(object) = &attribute.value else {
        return Err(format!("line {line}: compatible_with is no object"));
    };
    for (key, value) in object {
        let name = match key {
            ObjectKey::Ident(ident) => ident.as_str(),
            ObjectKey::Expression(expression) => expression.as_str().unwrap_or_default(),
        };
        if name == "opentofu" {
            let value = value
                .expr()
                .as_str()
                .ok_or_else(|| format!("line {line}: opentofu is no plain text"))?;
            return Ok(Some(Stated {
                text: value.to_owned(),
                line,
                in_language: true,
            }));
        }
    }
    Ok(None)
}

fn of_json(text: &str) -> Found {
    let value = json::code(text)?;
    let line = text
        .find("\"required_version\"")
        .map_or(1, |offset| line_of(text, offset));
    let mut found = Vec::new();
    for block in json::blocks(&value["terraform"]) {
        match &block["required_version"] {
            Value::Null => {}
            Value::String(text) => found.push(Stated {
                text: text.clone(),
                line,
                in_language: false,
            }),
            _ => return Err(format!("line {line}: required_version is no text")),
        }
    }
    Ok(found)
}
