//! The variables and outputs that the code of a directory declares.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
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
    request::{hcl, json, place::line_of, required},
};

use crate::{files, tool::sources::known};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Declared {
    pub(super) file: String,
    pub(super) line: Option<u32>,
    pub(super) has_default: bool,
    /// Whether the tool reads a text as an expression: its type is neither absent nor primitive.
    pub(super) is_expression: bool,
    pub(super) is_sensitive: bool,
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
    // Override files may contain the default, or the type.
    for path in required::in_merge_order(tool, dir).ok()? {
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
            before.is_sensitive |= one.is_sensitive;
            if has_type {
                before.is_expression = one.is_expression;
            }
        }
    }
    Some(all)
}

/// The outputs that the files of a directory declare; `None` where a file cannot be read.
pub(super) fn outputs(tool: ToolName, dir: &Path) -> Option<BTreeSet<String>> {
    const OUTPUT: &str = "output";
    let tool = known(tool).filter(|tool| *tool != Tool::Terragrunt)?;
    let mut all = BTreeSet::new();
    for path in required::in_merge_order(tool, dir).ok()? {
        let text = files::code(&path).ok()?;
        if path.extension().is_some_and(|ending| ending == "json") {
            let value: Value = serde_json::from_str(&text).ok()?;
            for named in json::blocks(&value[OUTPUT]) {
                all.extend(named.as_object()?.keys().cloned());
            }
        } else if text.contains(OUTPUT) {
            let body = hcl::blocks(&text, &[OUTPUT]).ok()?;
            let labels = body
                .get_blocks(OUTPUT)
                .filter_map(|block| block.labels.first());
            all.extend(labels.map(|label| label.as_str().to_owned()));
        }
    }
    Some(all)
}

/// The variables of a file: name, place, and whether it names a type.
#[derive(Default)]
struct Read {
    variables: Vec<(String, Declared, bool)>,
    elsewhere: bool,
}

fn read(path: &Path) -> Result<Read, String> {
    let text = files::code(path).map_err(|error| error.to_string())?;
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
        let at = block.ident.span().map(|span| span.start);
        let of = block.body.get_attribute("type");
        let declared = Declared {
            file: name_of(path),
            line: at.and_then(|at| u32::try_from(line_of(text, at)).ok()),
            has_default: block.body.has_attribute("default"),
            is_expression: of.is_some_and(|of| !is_primitive(of.value.to_string().trim())),
            is_sensitive: block
                .body
                .get_attribute("sensitive")
                .is_some_and(|of| of.value.to_string().trim() == "true"),
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

fn of_json(path: &Path, text: &str) -> Result<Read, String> {
    let value = json::code(text)?;
    let elsewhere = value.get("terraform").is_some_and(|settings| {
        settings.to_string().contains("\"cloud\"") || settings.to_string().contains("\"remote\"")
    });
    let of = |(name, body): (&String, &Value)| {
        let attribute = |name: &str| json::blocks(body).iter().find_map(|body| body.get(name));
        let at = text.find(&format!("\"{name}\""));
        let of = attribute("type");
        let declared = Declared {
            file: name_of(path),
            line: at.and_then(|at| u32::try_from(line_of(text, at)).ok()),
            has_default: attribute("default").is_some(),
            is_expression: of.is_some_and(|of| !of.as_str().is_some_and(is_primitive)),
            is_sensitive: attribute("sensitive").is_some_and(|of| *of == Value::Bool(true)),
        };
        (name.clone(), declared, of.is_some())
    };
    let named: Option<Vec<_>> = json::blocks(&value["variable"])
        .into_iter()
        .map(Value::as_object)
        .collect();
    let named = named.ok_or("its variables are no objects")?;
    Ok(Read {
        variables: named.into_iter().flatten().map(of).collect(),
        elsewhere,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::directory;

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
            let declared = declared(ToolName::Terraform, directory(&files).path()).unwrap();
            let found = ["a", "b"].map(|name| declared.named[name].is_expression);
            assert_eq!(found, [is; 2], "{of}");
        }
        let files = [
            ("a_override.tf", "variable \"a\" {\n  type = any\n}\n"),
            ("b.tf", "variable \"a\" {\n  type = string\n}\n"),
        ];
        let declared = declared(ToolName::OpenTofu, directory(&files).path()).unwrap();
        assert!(declared.named["a"].is_expression);
    }

    #[test]
    fn outputs_of_every_file_are_named() {
        let named = |files: &[(&str, &str)]| outputs(ToolName::OpenTofu, directory(files).path());
        let all = [
            (
                "a.tf",
                "output \"a\" {\n  value = null\n}\nresource \"x\" \"output\" {}\n",
            ),
            (
                "b.tf.json",
                r#"{"output": [{"b": {"value": null}}, {"c": {}}]}"#,
            ),
            ("d.tofu", "output \"d\" {}\n"),
            ("x.tf", "# no output\n"),
        ];
        let wanted = ["a", "b", "c", "d"].map(str::to_owned);
        assert_eq!(named(&all), Some(wanted.into()));
        assert_eq!(named(&[("a.tf", "output \"a\" {")]), None);
        assert_eq!(named(&[]), Some(BTreeSet::new()));
    }
}
