//! Code that reads the name of the workspace. The `http` backend of a managed state has one workspace only, `default`.

use std::{
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
};

use hcl_edit::{
    Decorated, Span as _,
    expr::{Expression, Traversal, TraversalOperator},
    visit::{Visit, visit_body, visit_traversal},
};
use tool_versions::{
    Tool,
    request::{hcl, place::line_of, required},
};

use crate::{files, plan_checksum::modules};

/// File and line where the stack in `root`, or a module that `init` recorded below `data`, reads the name.
///
/// # Errors
/// The stack's directory cannot be read.
pub fn find(tool: Tool, root: &Path, data: &Path) -> io::Result<Option<(PathBuf, usize)>> {
    let all = modules(data).into_iter().map(|(_, dir)| dir);
    for dir in std::iter::once(PathBuf::new()).chain(all) {
        let paths = match required::configuration(tool, &root.join(&dir)) {
            Ok(paths) => paths,
            // A module that the stack no longer has.
            Err(_) if !dir.as_os_str().is_empty() => continue,
            Err(error) => return Err(io::Error::other(error)),
        };
        for path in paths {
            let text = files::code(&path).unwrap_or_default();
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            if let Some(line) = line(name, &text) {
                return Ok(Some((path, line)));
            }
        }
    }
    Ok(None)
}

const NAMES: [&str; 2] = ["terraform", "tofu"];

/// The line of the first read.
fn line(name: &str, text: &str) -> Option<usize> {
    if !text.contains("workspace") {
        return None;
    }
    match hcl::parse(text) {
        Ok(body) if name.strip_suffix(".json").is_none() => {
            let mut found = Reads::default();
            visit_body(&mut found, &body);
            found.0.into_iter().min().map(|at| line_of(text, at))
        }
        _ => in_lines(text),
    }
}

/// The same in JSON, and in a file that the parser does not understand.
fn in_lines(text: &str) -> Option<usize> {
    let reads = |line: &str| {
        !hcl::is_comment(line)
            && NAMES
                .iter()
                .any(|name| line.contains(&format!("{name}.workspace")))
    };
    text.lines().position(reads).map(|line| line + 1)
}

/// Offsets of the reads.
#[derive(Default)]
struct Reads(Vec<usize>);

impl Visit for Reads {
    fn visit_traversal(&mut self, node: &Traversal) {
        let of = matches!(&node.expr, Expression::Variable(name) if NAMES.contains(&name.as_str()));
        let first = node.operators.first().map(Decorated::value);
        if of
            && matches!(first, Some(TraversalOperator::GetAttr(name)) if name.as_str() == "workspace")
        {
            let span = node.span().or_else(|| node.expr.span());
            self.0.push(span.map_or(0, |span| span.start));
        }
        visit_traversal(self, node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn reads_of_the_workspace_are_found_wherever_they_are() {
        for (name, text, at) in [
            ("main.tf", "locals {\n  a = terraform.workspace\n}", Some(2)),
            (
                "main.tf",
                "locals {\n\n  a = \"x-${terraform.workspace}\"\n}",
                Some(3),
            ),
            (
                "main.tf",
                "locals {\n  a = { default = 1 }[terraform.workspace]\n}",
                Some(2),
            ),
            ("main.tofu", "locals {\n  a = tofu.workspace\n}", Some(2)),
            (
                "main.tf",
                "locals {\n  a = <<E\nx ${terraform.workspace}\nE\n}",
                Some(3),
            ),
            (
                "main.tf",
                "locals {\n  a = \"$${terraform.workspace}\"\n}",
                None,
            ),
            (
                "main.tf",
                "# terraform.workspace\nlocals {\n  b = \"terraform.workspace\"\n}",
                None,
            ),
            (
                "main.tf",
                "locals {\n  c = var.terraform.workspace\n}",
                None,
            ),
            (
                "main.tf",
                "locals {\n  t = { A = 1, A = 2 }\n  a = terraform.workspace\n}",
                Some(3),
            ),
            (
                "a.tf.json",
                "{\"locals\":\n {\"a\": \"${terraform.workspace}\"}}",
                Some(2),
            ),
        ] {
            assert_eq!(line(name, text), at, "{text}");
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("stack/.terraform/modules")).unwrap();
        fs::create_dir_all(at("modules/net")).unwrap();
        fs::write(at("stack/main.tf"), "module \"net\" {}").unwrap();
        fs::write(at("modules/net/x.tf"), "locals { a = terraform.workspace }").unwrap();
        let list = r#"{"Modules":[{"Key":"net","Source":"../modules/net","Dir":"../modules/net"},{"Key":"gone","Source":"x","Dir":"gone"}]}"#;
        fs::write(at("stack/.terraform/modules/modules.json"), list).unwrap();
        let (path, line) = find(Tool::OpenTofu, &at("stack"), &at("stack/.terraform"))
            .unwrap()
            .unwrap();
        assert!(path.ends_with("modules/net/x.tf") && line == 1, "{path:?}");
    }
}
