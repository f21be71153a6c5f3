//! Terragrunt's files: a top-level attribute with a literal string. Includes are not followed.

use std::path::{Path, PathBuf};

use hcl_edit::{Span as _, expr::Expression};
use serde_json::Value;

use crate::request::{hcl, place::line_of};

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
