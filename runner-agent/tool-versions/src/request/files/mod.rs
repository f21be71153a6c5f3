//! Version files, by directory from the stack up to the root of the source, never above it. A nearer directory precedes a farther
//! one. Within a directory the order is tenv's (`design/0017-tool-versions.md`).

mod flat;
mod terragrunt;

use std::path::Path;

use crate::{
    Error, Kind, Result, Tool,
    request::place::{self, Place, Said},
};

pub use terragrunt::{source_of, terragrunt_file};

/// The format of a version file.
#[derive(Clone, Copy)]
enum Form {
    /// The first non-empty line; `#` starts a comment.
    Line,
    /// `KEY VERSION …` of asdf.
    Asdf(&'static str),
    /// `version = "…"` in TOML.
    Toml,
    /// The same, for a product.
    Tfswitch(&'static str),
    /// An attribute of a Terragrunt file.
    Hcl(&'static str),
    /// The same in JSON.
    HclJson(&'static str),
}

impl Form {
    /// Extracts the version and its line; the error says why the text is invalid.
    fn read(self, text: &str) -> Result<Option<(String, usize)>, String> {
        match self {
            Self::Line => Ok(flat::line(text)),
            Self::Asdf(key) => Ok(flat::asdf(text, key)),
            Self::Toml => Ok(flat::toml(text, "version")),
            Self::Tfswitch(product) => Ok(flat::tfswitch(text, product)),
            Self::Hcl(attribute) => terragrunt::attribute(text, attribute),
            Self::HclJson(attribute) => terragrunt::json_attribute(text, attribute),
        }
    }
}

const TERRAGRUNT_FILES: [(&str, bool); 4] = [
    ("terragrunt.hcl", false),
    ("terragrunt.hcl.json", true),
    ("root.hcl", false),
    ("root.hcl.json", true),
];

/// The files of a tool in a directory, by precedence.
fn files(tool: Tool) -> Vec<(&'static str, Form)> {
    let (plain, attribute): (&[(&str, Form)], _) = match tool {
        Tool::OpenTofu => (
            &[
                (".opentofu-version", Form::Line),
                (".tfswitch.toml", Form::Tfswitch("opentofu")),
                (".tool-versions", Form::Asdf("opentofu")),
            ],
            "terraform_version_constraint",
        ),
        Tool::Terraform => (
            &[
                (".terraform-version", Form::Line),
                (".tfswitchrc", Form::Line),
                (".tfswitch.toml", Form::Tfswitch("terraform")),
                (".tool-versions", Form::Asdf("terraform")),
            ],
            "terraform_version_constraint",
        ),
        Tool::Terragrunt => (
            &[
                (".terragrunt-version", Form::Line),
                (".tgswitchrc", Form::Line),
                (".tgswitch.toml", Form::Toml),
                (".tool-versions", Form::Asdf("terragrunt")),
            ],
            "terragrunt_version_constraint",
        ),
    };
    let hcl = TERRAGRUNT_FILES.map(|(name, json)| {
        (
            name,
            if json {
                Form::HclJson(attribute)
            } else {
                Form::Hcl(attribute)
            },
        )
    });
    plain.iter().copied().chain(hcl).collect()
}

/// The names of the files that are read in each directory, from the stack up to the root.
pub fn names() -> impl Iterator<Item = &'static str> {
    let all = [Tool::OpenTofu, Tool::Terraform, Tool::Terragrunt]
        .into_iter()
        .flat_map(files);
    all.map(|(name, _)| name)
}

/// The version that the files of a stack request for a tool. Adds a note for each file that cannot be parsed.
///
/// # Errors
/// Storage: a file exists and cannot be read.
pub fn requested(
    tool: Tool,
    stack: &Path,
    root: &Path,
    notes: &mut Vec<String>,
) -> Result<Option<Said>> {
    for dir in upward(stack, root) {
        for (name, form) in files(tool) {
            let path = dir.join(name);
            let Some(text) = place::read(&path)? else {
                continue;
            };
            let found = form.read(&text).unwrap_or_else(|why| {
                notes.push(format!(
                    "{}: {why}",
                    path.strip_prefix(root).unwrap_or(&path).display()
                ));
                None
            });
            if let Some((text, line)) = found {
                return Ok(Some(Said {
                    text,
                    place: Place::of(&path, root, line),
                }));
            }
        }
    }
    Ok(None)
}

/// The version and its line in the text of a file of this name.
///
/// # Errors
/// The syntax error.
pub fn said(tool: Tool, name: &str, text: &str) -> Result<Option<(String, usize)>, String> {
    let form = files(tool).into_iter().find(|(other, _)| *other == name);
    form.map_or(Ok(None), |(_, form)| form.read(text))
}

/// The nearest version file that names this tool, with its distance in directories from the stack.
pub fn own_file(tool: Tool, stack: &Path, root: &Path) -> Result<Option<(usize, Place)>> {
    for (distance, dir) in upward(stack, root).enumerate() {
        for (name, form) in files(tool) {
            // The other formats name a version for either tool.
            if !matches!(form, Form::Line | Form::Tfswitch(_) | Form::Asdf(_)) {
                continue;
            }
            let Some(text) = place::read(&dir.join(name))? else {
                continue;
            };
            let found = form.read(&text).ok().flatten();
            if let Some((_, line)) = found {
                return Ok(Some((distance, Place::of(&dir.join(name), root, line))));
            }
        }
    }
    Ok(None)
}

/// The tool that `terraform_binary` of the nearest Terragrunt file names, with the place.
///
/// # Errors
/// Storage: a file exists and cannot be read. Configuration: the value, or its file, is not understood.
pub fn binary(stack: &Path, root: &Path) -> Result<Option<(Tool, Place)>> {
    const NAME: &str = "terraform_binary";
    for path in upward(stack, root).flat_map(|dir| TERRAGRUNT_FILES.map(|(name, _)| dir.join(name)))
    {
        let Some(text) = place::read(&path)?.filter(|text| text.contains(NAME)) else {
            continue;
        };
        let is_json = path.extension().is_some_and(|ending| ending == "json");
        let form = if is_json {
            Form::HclJson(NAME)
        } else {
            Form::Hcl(NAME)
        };
        let shown = path.strip_prefix(root).unwrap_or(&path).display();
        let found = form
            .read(&text)
            .map_err(|why| Error::configuration(format!("{shown}: {why}")))?;
        let Some((binary, line)) = found else {
            continue;
        };
        let program = binary.rsplit('/').next().unwrap_or_default();
        let tool = if program.starts_with("terraform") {
            Tool::Terraform
        } else if program.starts_with("tofu") || program.starts_with("opentofu") {
            Tool::OpenTofu
        } else {
            let why = format!("{shown}: line {line}: `{binary}` is neither OpenTofu nor Terraform");
            return Err(Error::configuration(why));
        };
        return Ok(Some((tool, Place::of(&path, root, line))));
    }
    Ok(None)
}

/// OpenTofu or Terraform, by the registry of the providers in the stack's lock file, with the place. `None` when it has providers
/// of both.
///
/// # Errors
/// Storage: the file exists and cannot be read.
pub fn locked(stack: &Path, root: &Path) -> Result<Option<(Tool, Place)>> {
    const NAME: &str = ".terraform.lock.hcl";
    let path = stack.join(NAME);
    let text = match place::read(&path) {
        Ok(text) => text.unwrap_or_default(),
        Err(error) if error.kind == Kind::Configuration => String::new(),
        Err(error) => return Err(error),
    };
    let line_of = |host: &str| {
        let provider = format!("provider \"{host}/");
        text.lines()
            .position(|line| line.trim_start().starts_with(&provider))
            .map(|at| Place::of(&path, root, at + 1))
    };
    Ok(
        match (
            line_of("registry.opentofu.org"),
            line_of("registry.terraform.io"),
        ) {
            (Some(place), None) => Some((Tool::OpenTofu, place)),
            (None, Some(place)) => Some((Tool::Terraform, place)),
            _ => None,
        },
    )
}

/// The directories from the stack up to the root of the source.
fn upward<'a>(stack: &'a Path, root: &'a Path) -> impl Iterator<Item = &'a Path> {
    stack
        .ancestors()
        .take_while(move |dir| dir.starts_with(root))
}
