//! Terragrunt's files: a top-level attribute with a literal string. Includes are not followed.

use std::path::{Path, PathBuf};

use hcl_edit::{Span as _, expr::Expression};
use serde_json::Value;

use crate::request::{
    hcl,
    place::{self, line_of},
};

/// The file that makes a directory a Terragrunt unit or stack.
pub fn terragrunt_file(dir: &Path) -> Option<PathBuf> {
    [
        "terragrunt.hcl",
        "terragrunt.hcl.json",
        "terragrunt.stack.hcl",
    ]
    .iter()
    .map(|name| dir.join(name))
    .find(|path| path.is_file())
}

/// The directory of the module that a unit's own file names by a constant local path within the source.
pub fn source_of(unit: &Path, root: &Path) -> Option<PathBuf> {
    let text = place::read(&unit.join("terragrunt.hcl")).ok()??;
    let body = hcl::blocks(&text, &["terraform"]).ok()?;
    let sources = body.get_blocks("terraform");
    let source = sources
        .filter_map(|block| block.body.get_attribute("source"))
        .last()?;
    let source = source.value.to_string();
    let path = source.trim().strip_prefix('"')?.strip_suffix('"')?;
    let (from, rest) = if let Some(rest) = path.strip_prefix("${get_repo_root()}/") {
        (root, rest)
    } else {
        let rest = path.strip_prefix("${get_terragrunt_dir()}/");
        let is_local = rest.is_some() || path.starts_with("./") || path.starts_with("../");
        (unit, rest.or(is_local.then_some(path))?)
    };
    let module = from.join(rest).canonicalize().ok()?;
    let is_within = module.starts_with(root.canonicalize().ok()?);
    (is_within && module.is_dir()).then_some(module)
}

/// The attribute and its line.
///
/// # Errors
/// The reason why the file has no usable value.
pub(super) fn attribute(text: &str, name: &str) -> Result<Option<(String, usize)>, String> {
    if !text.contains(name) {
        return Ok(None);
    }
    let body = hcl::parse(text).map_err(|why| format!("its {name} is not read: {why}"))?;
    let Some(attribute) = body.get_attribute(name) else {
        return Ok(None);
    };
    let line = attribute.span().map_or(1, |span| line_of(text, span.start));
    match &attribute.value {
        Expression::String(value) if value.trim().is_empty() => Ok(None),
        Expression::String(value) => Ok(Some((value.trim().to_owned(), line))),
        // Only Terragrunt can evaluate its functions and locals.
        _ => Err(format!(
            "line {line}: {name} is no plain text and is not evaluated"
        )),
    }
}

/// The same for the JSON form.
pub(super) fn json_attribute(text: &str, name: &str) -> Result<Option<(String, usize)>, String> {
    let value: Value =
        serde_json::from_str(text).map_err(|error| format!("its {name} is not read: {error}"))?;
    let line = text
        .find(&format!("\"{name}\""))
        .map_or(1, |offset| line_of(text, offset));
    match &value[name] {
        Value::Null => Ok(None),
        Value::String(value) if value.trim().is_empty() => Ok(None),
        Value::String(value) if !value.contains("${") => Ok(Some((value.trim().to_owned(), line))),
        _ => Err(format!(
            "line {line}: {name} is no plain text and is not evaluated"
        )),
    }
}
