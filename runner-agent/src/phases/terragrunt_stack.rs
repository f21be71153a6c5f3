//! A directory that is only a Terragrunt stack: it names units, and a run takes one unit.

use std::path::Path;

use crds::{Failure, Reason};
use hcl_edit::structure::Block;
use tool_versions::{
    Tool,
    request::{files::terragrunt_file, hcl, required},
};

use crate::files::code;

const STACK: &str = "terragrunt.stack.hcl";
/// Maximum number of units that a message names.
const MOST: usize = 10;

/// Refuses such a directory, and names its units. `shown` is the directory for people.
pub(super) fn refuse(stack: &Path, shown: &Path) -> Result<(), Failure> {
    let has_code = [Tool::OpenTofu, Tool::Terraform]
        .into_iter()
        .any(|tool| required::configuration(tool, stack).is_ok_and(|files| !files.is_empty()));
    let Some(file) = terragrunt_file(stack).filter(|file| !has_code && file.ends_with(STACK))
    else {
        return Ok(());
    };
    let text = code(&file).unwrap_or_default();
    let units = units(&text);
    let dir = |below: &str| shown.join(below).display().to_string();
    let (named, example) = match units.as_slice() {
        [] => (String::new(), dir(".terragrunt-stack/UNIT")),
        [first, ..] => {
            let names = units.iter().take(MOST).map(|unit| unit.0.as_str());
            let rest = units.len().saturating_sub(MOST);
            let more = if rest > 0 {
                format!(" and {rest} more")
            } else {
                String::new()
            };
            let names = names.collect::<Vec<_>>().join(", ");
            (format!(" of {names}{more}"), dir(&first.1))
        }
    };
    Err(Reason::SourceInvalid.failure(format!(
        "{} is only a Terragrunt stack ({STACK}){named}, and a run takes one unit; have `terragrunt stack generate` write the units, keep \
         them in the source, and name the directory of one: {example}",
        Some(shown)
            .filter(|shown| !shown.as_os_str().is_empty())
            .unwrap_or(Path::new("the source"))
            .display(),
    )))
}

/// Names of units and of stacks within, and the directories that they are generated to.
fn units(text: &str) -> Vec<(String, String)> {
    let Ok(body) = hcl::parse(text) else {
        return Vec::new();
    };
    let value =
        |block: &Block, name: &str| block.body.get_attribute(name).map(|one| one.value.clone());
    let named = body
        .blocks()
        .filter(|block| ["unit", "stack"].contains(&block.ident.as_str()));
    named
        .filter_map(|block| {
            let name = block.labels.first()?.as_str().to_owned();
            let path = value(block, "path").and_then(|path| path.as_str().map(str::to_owned));
            let path = path.unwrap_or_else(|| name.clone());
            let plain = value(block, "no_dot_terragrunt_stack").and_then(|flag| flag.as_bool());
            let dir = if plain == Some(true) {
                path
            } else {
                format!(".terragrunt-stack/{path}")
            };
            Some((format!("{} {name}", block.ident.as_str()), dir))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn stack_without_a_unit_is_refused_with_its_units() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let refused = || refuse(dir.path(), Path::new("live/app"));
        assert_eq!(refused(), Ok(()));
        put(
            STACK,
            "unit \"vpc\" {\n  source = \"../units/vpc\"\n  path   = \"net/vpc\"\n}\nstack \"apps\" {\n  source = \"../apps\"\n  path = \"apps\"\n}\n",
        );
        let failure = refused().unwrap_err();
        assert_eq!(
            failure.message,
            "live/app is only a Terragrunt stack (terragrunt.stack.hcl) of unit vpc, stack apps, and a run takes one unit; have `terragrunt \
             stack generate` write the units, keep them in the source, and name the directory of one: live/app/.terragrunt-stack/net/vpc"
        );
        put(
            STACK,
            "unit \"x\" {\n  path = \"x\"\n  no_dot_terragrunt_stack = true\n}\n",
        );
        assert!(refused().unwrap_err().message.ends_with(": live/app/x"));
        put(STACK, "unit {");
        assert!(
            refused()
                .unwrap_err()
                .message
                .ends_with("/.terragrunt-stack/UNIT")
        );
        for name in ["terragrunt.hcl", "main.tf"] {
            put(name, "");
            assert_eq!(refused(), Ok(()), "{name}");
            fs::remove_file(dir.path().join(name)).unwrap();
        }
    }
}
