//! The variables that the code of a directory declares.

use std::{
    collections::BTreeMap, ffi::OsStr, fs, io::Read as _, os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use crds::ToolName;
use hcl_edit::{
    Span as _,
    structure::{BlockLabel, Body},
};
use serde_json::Value;
use tool_versions::{
    Tool,
    request::{hcl, required},
};

use crate::tool::sources::known;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Declared {
    pub(super) file: String,
    pub(super) line: Option<u32>,
    pub(super) has_default: bool,
    /// Whether the tool reads a text as an expression: its type is neither absent nor primitive.
    pub(super) is_expression: bool,
}

#[derive(Debug, Default)]
pub(super) struct Declarations {
    pub(super) named: BTreeMap<String, Declared>,
    /// Files that were not read, with the reason.
    pub(super) unread: Vec<String>,
    /// The state's workspace may have variables of its own.
    elsewhere: bool,
}

impl Declarations {
    pub(super) fn is_whole(&self) -> bool {
        self.unread.is_empty() && !self.elsewhere
    }
}

/// The variables that the files of a directory declare; `None` for an unknown tool.
pub(super) fn declared(tool: ToolName, dir: &Path) -> Option<Declarations> {
    let tool = known(tool).filter(|tool| *tool != Tool::Terragrunt)?;
    let mut all = Declarations::default();
    // The tools read override files after all others; these may contain the default, or the type.
    let (overrides, plain): (Vec<_>, Vec<_>) = required::configuration(tool, dir)
        .ok()?
        .into_iter()
        .partition(|path| required::is_override(&name_of(path)));
    for path in plain.into_iter().chain(overrides) {
        let found = match read(&path) {
            Ok(found) => found,
            Err(why) => {
                all.unread
                    .push(format!("{} is not read: {why}", name_of(&path)));
                continue;
            }
        };
        all.elsewhere |= found.elsewhere;
        for (name, one, has_type) in found.variables {
            let Some(before) = all.named.get_mut(&name) else {
                all.named.insert(name, one);
                continue;
            };
            before.has_default |= one.has_default;
            if has_type {
                before.is_expression = one.is_expression;
            }
        }
    }
    Some(all)
}

/// What a file declares: name, place, and whether it names a type.
#[derive(Default)]
struct Read {
    variables: Vec<(String, Declared, bool)>,
    elsewhere: bool,
}

fn read(path: &Path) -> Result<Read, String> {
    let mut text = String::new();
    // Opening a pipe would block until a writer comes.
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path);
    file.and_then(|file| file.take(hcl::LARGEST as u64 + 1).read_to_string(&mut text))
        .map_err(|error| error.to_string())?;
    if path.extension().is_some_and(|ending| ending == "json") {
        of_json(path, &text)
    } else {
        of_hcl(path, &text)
    }
}

pub(super) fn name_of(path: &Path) -> String {
    path.file_name()
        .map(OsStr::to_string_lossy)
        .unwrap_or_default()
        .into_owned()
}

fn of_hcl(path: &Path, text: &str) -> Result<Read, String> {
    // These keywords have no other spelling, and parsing is expensive.
    if !text.contains("variable") && !text.contains("cloud") && !text.contains("remote") {
        return Ok(Read::default());
    }
    let body = hcl::blocks(text, &["variable", "terraform"])?;
    let blocks = body.get_blocks("variable");
    let declared = blocks.filter_map(|block| {
        let name = block.labels.first()?.as_str().to_owned();
        let before = block.ident.span().and_then(|span| text.get(..span.start));
        let line = before.and_then(|text| u32::try_from(text.matches('\n').count() + 1).ok());
        let of = block.body.get_attribute("type");
        let declared = Declared {
            file: name_of(path),
            line,
            has_default: block.body.has_attribute("default"),
            is_expression: of.is_some_and(|of| !is_primitive(of.value.to_string().trim())),
        };
        Some((name, declared, of.is_some()))
    });
    Ok(Read {
        variables: declared.collect(),
        elsewhere: keeps_variables(&body),
    })
}

/// Whether a type is one of a text, a number or a bool. Older code quotes it.
fn is_primitive(name: &str) -> bool {
    let name = name.trim_start_matches(['(', '"', ' ']);
    matches!(
        name.trim_end_matches([')', '"', ' ']),
        "string" | "number" | "bool"
    )
}

/// Whether the state's workspace can have variables of its own.
fn keeps_variables(body: &Body) -> bool {
    let settings = body
        .blocks()
        .filter(|block| block.ident.as_str() == "terraform");
    settings.flat_map(|block| block.body.blocks()).any(|block| {
        let label = block.labels.first().map(BlockLabel::as_str);
        block.ident.as_str() == "cloud"
            || block.ident.as_str() == "backend" && label == Some("remote")
    })
}

/// A block is an object or a list of objects.
fn of_json(path: &Path, text: &str) -> Result<Read, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let elsewhere = value.get("terraform").is_some_and(|settings| {
        settings.to_string().contains("\"cloud\"") || settings.to_string().contains("\"remote\"")
    });
    let of = |(name, body): (&String, &Value)| {
        let attribute = |name: &str| match body {
            Value::Array(bodies) => bodies.iter().find_map(|body| body.get(name)).cloned(),
            body => body.get(name).cloned(),
        };
        let line = text
            .find(&format!("\"{name}\""))
            .and_then(|at| u32::try_from(text[..at].matches('\n').count() + 1).ok());
        let of = attribute("type");
        let declared = Declared {
            file: name_of(path),
            line,
            has_default: attribute("default").is_some(),
            is_expression: of
                .as_ref()
                .is_some_and(|of| !of.as_str().is_some_and(is_primitive)),
        };
        (name.clone(), declared, of.is_some())
    };
    let none = || "its variables are no objects".to_owned();
    let variables = match &value["variable"] {
        Value::Null => Vec::new(),
        Value::Object(named) => named.iter().map(of).collect(),
        Value::Array(blocks) => {
            let all: Option<Vec<_>> = blocks
                .iter()
                .map(|block| Some(block.as_object()?.iter().map(of)))
                .collect();
            all.ok_or_else(none)?.into_iter().flatten().collect()
        }
        _ => return Err(none()),
    };
    Ok(Read {
        variables,
        elsewhere,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    /// As `decodeVariableType` of the tools.
    #[test]
    fn texts_are_read_by_the_declared_type() {
        for (of, is) in [
            ("", false),
            ("type = string", false),
            ("type = (number)", false),
            ("type = \"bool\"", false),
            ("type = any", true),
            ("type = \"list\"", true),
            ("type = map", true),
            ("type = list(string)", true),
            ("type = object({ a = optional(string) }) # string", true),
        ] {
            let code = format!("variable \"a\" {{\n  {of}\n}}\n");
            let json = of.split_once(" = ").map(|(_, of)| of.trim_matches('"'));
            let json = serde_json::json!({"variable": {"b": json.map(|of| serde_json::json!({"type": of})).unwrap_or_default()}});
            let files = [("a.tf", &*code), ("b.tf.json", &*json.to_string())];
            let declared = declared(ToolName::Terraform, stack(&files).path()).unwrap();
            let found = ["a", "b"].map(|name| declared.named[name].is_expression);
            assert_eq!(found, [is; 2], "{of}");
        }
        let files = [
            ("a_override.tf", "variable \"a\" {\n  type = any\n}\n"),
            ("b.tf", "variable \"a\" {\n  type = string\n}\n"),
        ];
        let declared = declared(ToolName::OpenTofu, stack(&files).path()).unwrap();
        assert!(declared.named["a"].is_expression);
    }
}
