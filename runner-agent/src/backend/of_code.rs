//! The backend that the code configures, and the run's own beside it. Files that hooks and generators write before `init` count as code.
//!
//! A run's backend of the same type is merged over the block, as `-backend-config` merges. A block of another type is replaced.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
};

use hcl_edit::structure::{Block as Structure, Body};
use serde_json::Value;
use tool_versions::{
    Tool,
    request::{hcl, json, required},
};

use crate::files::{self, BACKEND_FILE};

/// A `backend` or `cloud` block of the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeBlock {
    /// The type; `cloud` for a `cloud` block.
    pub kind: String,
    /// The names of its arguments.
    pub keys: Vec<String>,
    /// The file's name.
    pub file: String,
}

/// The block in force in a directory: that of the last override file, or of another file. Pawl's own file does not count.
///
/// # Errors
/// The directory cannot be read.
pub fn of_code(tool: Tool, dir: &Path) -> io::Result<Option<CodeBlock>> {
    let mut found = None;
    for path in required::in_merge_order(tool, dir).map_err(io::Error::other)? {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if name == BACKEND_FILE {
            continue;
        }
        // `init` reports unreadable files.
        let text = files::code(&path).unwrap_or_default();
        if let Some((kind, keys)) = in_text(name, &text) {
            let file = name.to_owned();
            found = Some(CodeBlock { kind, keys, file });
        }
    }
    Ok(found)
}

type Found = (String, Vec<String>);

fn in_text(name: &str, text: &str) -> Option<Found> {
    if !["backend", "cloud"].iter().any(|word| text.contains(word)) {
        return None;
    }
    if name.strip_suffix(".json").is_some() {
        return in_json(&json::code(text).ok()?);
    }
    match hcl::parse(text) {
        Ok(body) => in_body(&body),
        // The tool understands more than this parser.
        Err(_) => in_lines(text),
    }
}

fn in_body(body: &Body) -> Option<Found> {
    let inner = body
        .blocks()
        .filter(|block| block.ident.as_str() == "terraform")
        .flat_map(|block| block.body.blocks());
    let of = |block: &Structure| {
        let kind = match block.ident.as_str() {
            "backend" => block.labels.first()?.as_str().to_owned(),
            "cloud" => "cloud".to_owned(),
            _ => return None,
        };
        let attributes = block.body.attributes().map(|one| one.key.as_str());
        let blocks = block.body.blocks().map(|one| one.ident.as_str());
        Some((kind, attributes.chain(blocks).map(str::to_owned).collect()))
    };
    inner.filter_map(of).last()
}

fn in_json(code: &Value) -> Option<Found> {
    let keys = |block: &Value| {
        let named = json::blocks(block).into_iter().filter_map(Value::as_object);
        named.flat_map(|block| block.keys().cloned()).collect()
    };
    let mut found = None;
    for block in json::blocks(&code["terraform"]) {
        for types in json::blocks(&block["backend"]) {
            for (kind, block) in types.as_object().into_iter().flatten() {
                found = Some((kind.clone(), keys(block)));
            }
        }
        if block.get("cloud").is_some() {
            found = Some(("cloud".to_owned(), keys(&block["cloud"])));
        }
    }
    found
}

/// The first words of a block, in a file that the parser does not understand.
fn in_lines(text: &str) -> Option<Found> {
    let code = text.lines().filter(|line| !hcl::is_comment(line));
    let words = |line: &str| -> Option<String> {
        let at = line.find("backend")?;
        let is_word = !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '"');
        let rest = line[at + "backend".len()..]
            .trim_start()
            .strip_prefix('"')?;
        let (kind, rest) = rest.split_once('"')?;
        (is_word && rest.trim_start().starts_with('{')).then(|| kind.to_owned())
    };
    code.rev().find_map(words).map(|kind| (kind, Vec::new()))
}

/// The file with a run's own backend, named by its type.
pub fn given(dir: &Path, kind: &str) -> PathBuf {
    dir.join("backend").join(format!("{kind}.json"))
}

/// The result for the directory in which `init` runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// One more argument of `init`.
    pub arg: Option<OsString>,
    /// The effect on the code's block, in words.
    pub note: Option<String>,
}

/// Brings the run's backend in the file `given` into force for an `init` in `here`.
///
/// # Errors
/// A file cannot be read or written.
pub fn place(tool: Tool, here: &Path, given: &Path) -> io::Result<Placed> {
    let kind = given
        .file_stem()
        .and_then(OsStr::to_str)
        .unwrap_or_default();
    let block = of_code(tool, here)?;
    if block.as_ref().is_some_and(|block| block.kind == kind) {
        let mut arg = OsString::from("-backend-config=");
        arg.push(given);
        let note = Some("spec.backend over the code's block".to_owned());
        return Ok(Placed {
            arg: Some(arg),
            note,
        });
    }
    let config: Value = serde_json::from_slice(&fs::read(given)?)?;
    let text = serde_json::json!({"terraform": {"backend": {kind: config}}}).to_string();
    files::write(&here.join(BACKEND_FILE), text)?;
    let note = block.map(|CodeBlock { kind, keys, file }| {
        let keys = match keys.as_slice() {
            [] => String::new(),
            keys => format!(", without its {}", keys.join(", ")),
        };
        format!("in place of the code's {kind} in {file}{keys}")
    });
    Ok(Placed { arg: None, note })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::directory;

    #[test]
    fn block_in_force_is_that_of_the_tool() {
        let s3 =
            "terraform {\n  backend \"s3\" {\n    bucket = \"b\"\n    assume_role {}\n  }\n}\n";
        let http = "terraform { backend \"http\" {} }";
        // `for` with a condition over two lines is not understood by the parser.
        let odd = "terraform {\n  backend \"gcs\" {\n    prefix = \"p\"\n  }\n}\n# backend \"no\" {\nlocals {\n  t = { N = 1, N = 2 }\n}\n";
        for (files, kind, keys) in [
            (&[("main.tf", s3)][..], "s3", &["bucket", "assume_role"][..]),
            (&[("main.tf", s3), ("override.tf", http)], "http", &[]),
            (&[("a_override.tf", http), ("main.tf", s3)], "http", &[]),
            (
                &[("override.x.tf", http), ("x.tf", s3)],
                "s3",
                &["bucket", "assume_role"],
            ),
            (
                &[("main.tf", &format!("\u{feff}{s3}"))],
                "s3",
                &["bucket", "assume_role"],
            ),
            (&[("main.tf", odd)], "gcs", &[]),
            (
                &[(
                    "b.tf.json",
                    r#"{"terraform": [{"backend": {"s3": [{"key": 1}]}}]}"#,
                )],
                "s3",
                &["key"],
            ),
            (
                &[(
                    "c.tf",
                    "terraform {\n  cloud {\n    organization = \"o\"\n  }\n}",
                )],
                "cloud",
                &["organization"],
            ),
            (
                &[("main.tf", "# backend \"s3\" {}"), (BACKEND_FILE, "{}")],
                "",
                &[],
            ),
        ] {
            let dir = directory(files);
            let found = of_code(Tool::OpenTofu, dir.path()).unwrap();
            let found = found
                .map(|found| (found.kind, found.keys))
                .unwrap_or_default();
            let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
            assert_eq!(found, (kind.to_owned(), keys), "{files:?}");
        }
    }

    #[test]
    fn other_type_is_replaced_and_its_keys_are_named() {
        let dir = directory(&[(
            "main.tf",
            "terraform {\n  backend \"s3\" {\n    bucket = \"b\"\n  }\n}\n",
        )]);
        let own = |kind| {
            let path = given(dir.path(), kind);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, r#"{"address": "a"}"#).unwrap();
            (place(Tool::OpenTofu, dir.path(), &path).unwrap(), path)
        };
        let (placed, path) = own("s3");
        let arg = format!("-backend-config={}", path.display());
        assert_eq!(placed.arg, Some(OsString::from(arg)));
        assert!(!dir.path().join(BACKEND_FILE).exists());
        for _ in 0..2 {
            let (placed, _) = own("http");
            assert_eq!(
                (placed.arg, placed.note.as_deref()),
                (
                    None,
                    Some("in place of the code's s3 in main.tf, without its bucket")
                )
            );
            let text = fs::read_to_string(dir.path().join(BACKEND_FILE)).unwrap();
            assert_eq!(
                text,
                r#"{"terraform":{"backend":{"http":{"address":"a"}}}}"#
            );
        }
    }
}
