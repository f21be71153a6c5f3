//! Variables that the code declares: what a run gives besides would be planned without, with a warning that nobody reads.

use std::{collections::BTreeSet, ffi::OsString, fs, io::Read as _, os::unix::fs::OpenOptionsExt as _, path::Path};

use crds::{Failure, Reason, ToolName};
use serde_json::Value;
use tool_versions::{
    Tool,
    request::{hcl, required},
};

use super::{PhaseRunner, stage::Prepared};
use crate::tool::sources::known;

/// How alike two names have to be to be taken for one another: Jaro and Winkler, from 0 to 1.
const ALIKE: f64 = 0.8;

impl PhaseRunner {
    /// Refuses values for variables that the stack's own files do not declare, before anything is planned with them.
    pub(super) fn check_variables(&self, prepared: &Prepared) -> Result<(), Failure> {
        let Prepared { run, shell, .. } = prepared;
        let given = run.spec.variables.iter().map(|variable| variable.name.as_str()).chain(named(self.host.plan_args()));
        check(shell.tool.found.name, &shell.stack, given)
    }
}

/// Where a file is not understood, the tool is the judge, and under Terragrunt, which makes the files itself.
fn check<'a>(tool: ToolName, stack: &Path, given: impl IntoIterator<Item = &'a str>) -> Result<(), Failure> {
    let mut given = given.into_iter().peekable();
    let Some(tool) = known(tool).filter(|tool| *tool != Tool::Terragrunt) else { return Ok(()) };
    if given.peek().is_none() {
        return Ok(());
    }
    let Some(declared) = declared(tool, stack) else { return Ok(()) };
    let unknown: Vec<_> = given.filter(|name| !declared.contains(*name)).map(|name| in_words(name, &declared)).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let message = format!("the code does not declare {}", unknown.join(", nor "));
    Err(Reason::InvalidSpec.failure(message))
}

/// The names that a person gave by `-var NAME=VALUE`.
fn named(arguments: &[OsString]) -> impl Iterator<Item = &str> {
    let values = arguments.iter().zip(arguments.iter().skip(1)).filter(|(option, _)| *option == "-var").map(|(_, value)| value);
    values.filter_map(|value| value.to_str()?.split_once('=').map(|(name, _)| name.trim()))
}

fn in_words(name: &str, declared: &BTreeSet<String>) -> String {
    let nearest = declared.iter().map(|other| (strsim::jaro_winkler(name, other), other));
    match nearest.filter(|(alike, _)| *alike >= ALIKE).max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((_, other)) => format!("variable {name} (did you mean {other}?)"),
        None => format!("variable {name}"),
    }
}

fn declared(tool: Tool, stack: &Path) -> Option<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for path in required::configuration(tool, stack).ok()? {
        let mut text = String::new();
        // A pipe would wait for a writer.
        let file = fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&path).ok()?;
        file.take(hcl::LARGEST as u64 + 1).read_to_string(&mut text).ok()?;
        all.extend(if path.extension()? == "json" { of_json(&text)? } else { of_hcl(&text)? });
    }
    Some(all)
}

fn of_hcl(text: &str) -> Option<Vec<String>> {
    // Names of blocks have no other spelling, and to parse is dear.
    if !text.contains("variable") {
        return Some(Vec::new());
    }
    let body = hcl::parse(text).ok()?;
    let blocks = body.blocks().filter(|block| block.ident.as_str() == "variable");
    blocks.map(|block| block.labels.first().map(|label| label.as_str().to_owned())).collect()
}

/// A block is an object, or a list of them.
fn of_json(text: &str) -> Option<Vec<String>> {
    let value: Value = serde_json::from_str(text).ok()?;
    match &value["variable"] {
        Value::Null => Some(Vec::new()),
        Value::Object(named) => Some(named.keys().cloned().collect()),
        Value::Array(blocks) => {
            let names: Option<Vec<_>> = blocks.iter().map(|block| Some(block.as_object()?.keys().cloned())).collect();
            Some(names?.into_iter().flatten().collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(tool: ToolName, files: &[(&str, &str)], given: &[&str]) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        check(tool, dir.path(), given.iter().copied()).err().map(|failure| failure.message)
    }

    #[test]
    fn what_is_declared_nowhere_is_refused_with_the_name_that_was_meant() {
        let files = [
            ("main.tf", "variable \"zones\" {}\nvariable \"region\" {\n  default = 1\n}\n"),
            ("more.tf.json", r#"{"variable": [{"size": {}}, {"count_of_all": {"default": 1}}]}"#),
            ("only.tofu", "variable \"of_tofu\" {}\n"),
        ];
        let of = |given: &[&str]| said(ToolName::OpenTofu, &files, given);
        assert_eq!(of(&["zones", "region", "size", "count_of_all", "of_tofu"]), None);
        let message = of(&["zone", "size", "x"]).unwrap();
        assert_eq!(message, "the code does not declare variable zone (did you mean zones?), nor variable x");
        assert!(said(ToolName::Terraform, &files, &["of_tofu"]).is_some(), "Terraform does not read that file");
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn where_a_file_is_not_understood_the_tool_is_the_judge() {
        for files in [&[("main.tf", "variable \"a\" {")][..], &[("main.tf.json", "{")], &[("a.tf.json", r#"{"variable": [1]}"#)]]
        {
            assert_eq!(said(ToolName::OpenTofu, files, &["b"]), None);
        }
        assert_eq!(said(ToolName::Terragrunt, &[("main.tf", "")], &["b"]), None);
        assert!(said(ToolName::OpenTofu, &[("main.tf", "# no variable here\n")], &["b"]).is_some());
    }

    #[test]
    fn names_are_read_of_a_persons_arguments() {
        let arguments: Vec<OsString> = ["-var", "a=b=c", "-var-file", "x=y", "-var", "none"].map(Into::into).into();
        assert_eq!(named(&arguments).collect::<Vec<_>>(), ["a"]);
    }
}
