//! Checks the run's variables against the code's declarations. The tools only warn about undeclared ones and plan without them;
//! missing values are reported before the plan.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs,
    io::Read as _,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use crds::{Diagnostic, Failure, Reason, ToolName};
use hcl_edit::{
    Span as _,
    structure::{BlockLabel, Body},
};
use serde_json::Value;
use tool_versions::{
    Tool,
    request::{hcl, required},
};

use super::{phase_results::Prepared, variable_files};
use crate::{report::suggestion, tool::sources::known};

/// Maximum number of variables without a value that are named individually.
const NAMED: usize = 20;

/// Refuses values for undeclared variables, and variables without a value, before the plan. `handed_over` is the environment that
/// hooks have handed over so far. With `may_follow`, hooks before the plan may hand over more, so missing values are not checked.
pub(super) fn check(
    prepared: &Prepared,
    handed_over: &[(String, String)],
    may_follow: bool,
) -> Result<(), Failure> {
    let Prepared { run, shell, .. } = prepared;
    let (stack, args) = (&shell.stack, shell.variable_args.as_slice());
    let Some(declared) = declared(shell.tool.found.name, stack) else {
        return Ok(());
    };
    let given = || {
        run.spec
            .variables
            .iter()
            .map(|variable| variable.name.as_str())
            .chain(named(args))
    };
    check_declared(&declared, given())?;
    if may_follow {
        return Ok(());
    }
    let Some(mut all) = in_files(stack, args, &shell.env) else {
        return Ok(());
    };
    let by_hooks = handed_over
        .iter()
        .filter_map(|(name, _)| name.strip_prefix("TF_VAR_"));
    all.extend(given().chain(by_hooks).map(str::to_owned));
    check_given(&declared, &all)
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Declared {
    file: String,
    line: Option<u32>,
    has_default: bool,
}

type Declarations = BTreeMap<String, Declared>;

fn check_declared<'a>(
    declared: &Declarations,
    given: impl Iterator<Item = &'a str>,
) -> Result<(), Failure> {
    let in_words = |name| {
        format!(
            "variable {name}{}",
            suggestion(name, declared.keys().map(String::as_str))
        )
    };
    let unknown: Vec<_> = given
        .filter(|name| !declared.contains_key(*name))
        .map(in_words)
        .collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let message = format!("the code does not declare {}", unknown.join(", nor "));
    Err(Reason::InvalidSpec.failure(message))
}

/// Refuses a stack if a variable has neither a value nor a default. Names all of them.
fn check_given(declared: &Declarations, given: &BTreeSet<String>) -> Result<(), Failure> {
    let missing: Vec<_> = declared
        .iter()
        .filter(|(name, at)| !at.has_default && !given.contains(*name))
        .collect();
    let place = |at: &Declared| {
        at.line
            .map_or_else(|| at.file.clone(), |line| format!("{}:{line}", at.file))
    };
    let mut words: Vec<_> = missing
        .iter()
        .take(NAMED)
        .map(|(name, at)| format!("{name} ({})", place(at)))
        .collect();
    match missing.len() {
        0 => return Ok(()),
        count if count > NAMED => words.push(format!("and {} more", count - NAMED)),
        _ => {}
    }
    let what = if missing.len() == 1 {
        "a variable has no value".to_owned()
    } else {
        format!("{} variables have no value", missing.len())
    };
    let diagnostics = missing.iter().take(NAMED).map(|(name, at)| Diagnostic {
        severity: "error".to_owned(),
        // The tools' own wording.
        summary: "No value for required variable".to_owned(),
        detail: Some(format!(
            "The variable {name} has no default, and no value is given."
        )),
        address: Some(format!("var.{name}")),
        file: Some(at.file.clone()),
        line: at.line,
    });
    let diagnostics = diagnostics.collect();
    Err(Failure {
        diagnostics,
        ..Reason::VariableNotSet.failure(format!("{what}: {}", words.join(", ")))
    })
}

/// The names in a person's `-var NAME=VALUE` arguments.
fn named(arguments: &[OsString]) -> impl Iterator<Item = &str> {
    values_of(arguments, "-var")
        .filter_map(|value| value.to_str()?.split_once('=').map(|(name, _)| name.trim()))
}

fn values_of<'a>(
    arguments: &'a [OsString],
    option: &'static str,
) -> impl Iterator<Item = &'a OsString> {
    arguments
        .iter()
        .zip(arguments.iter().skip(1))
        .filter(move |(word, _)| *word == option)
        .map(|(_, value)| value)
}

/// Names with a value in a file or in the environment; `None` if there may be values that this function cannot see.
fn in_files(
    stack: &Path,
    arguments: &[OsString],
    env: &[(OsString, OsString)],
) -> Option<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for (name, value) in env {
        let name = name.to_string_lossy();
        if let Some(variable) = name.strip_prefix("TF_VAR_") {
            all.insert(variable.to_owned());
        } else if matches!(&*name, "TF_CLI_ARGS" | "TF_CLI_ARGS_plan")
            && value.to_string_lossy().contains("-var")
        {
            return None;
        }
    }
    let files = variable_files::found(stack)
        .into_iter()
        .chain(values_of(arguments, "-var-file").map(|path| stack.join(path)));
    for file in files {
        all.extend(variable_files::names(&file)?);
    }
    Some(all)
}

/// The variables that a stack's files declare; `None` leaves the decision to the tool: if a file cannot be parsed, under Terragrunt, which
/// generates files, and where a workspace stores variables with its state.
fn declared(tool: ToolName, stack: &Path) -> Option<Declarations> {
    let tool = known(tool).filter(|tool| *tool != Tool::Terragrunt)?;
    let mut all = Declarations::new();
    for path in required::configuration(tool, stack).ok()? {
        let mut text = String::new();
        // Opening a pipe would block until a writer comes.
        let file = fs::OpenOptions::new()
            .read(true)
            .custom_flags(nix::libc::O_NONBLOCK)
            .open(&path)
            .ok()?;
        file.take(hcl::LARGEST as u64 + 1)
            .read_to_string(&mut text)
            .ok()?;
        for (name, found) in if path.extension()? == "json" {
            of_json(&path, &text)?
        } else {
            of_hcl(&path, &text)?
        } {
            // A file that overrides another one may contain the default.
            let has_default = found.has_default;
            all.entry(name).or_insert(found).has_default |= has_default;
        }
    }
    Some(all)
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .map(OsStr::to_string_lossy)
        .unwrap_or_default()
        .into_owned()
}

fn of_hcl(path: &Path, text: &str) -> Option<Vec<(String, Declared)>> {
    // These keywords have no other spelling, and parsing is expensive.
    if !text.contains("variable") && !text.contains("cloud") && !text.contains("remote") {
        return Some(Vec::new());
    }
    let body = hcl::parse(text).ok()?;
    if keeps_variables(&body) {
        return None;
    }
    let blocks = body
        .blocks()
        .filter(|block| block.ident.as_str() == "variable");
    let declared = blocks.map(|block| {
        let name = block.labels.first()?.as_str().to_owned();
        let before = block.ident.span().and_then(|span| text.get(..span.start));
        let line = before.and_then(|text| u32::try_from(text.matches('\n').count() + 1).ok());
        Some((
            name,
            Declared {
                file: name_of(path),
                line,
                has_default: block.body.has_attribute("default"),
            },
        ))
    });
    declared.collect()
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
fn of_json(path: &Path, text: &str) -> Option<Vec<(String, Declared)>> {
    let value: Value = serde_json::from_str(text).ok()?;
    if value.get("terraform").is_some_and(|settings| {
        settings.to_string().contains("\"cloud\"") || settings.to_string().contains("\"remote\"")
    }) {
        return None;
    }
    let of = |(name, body): (&String, &Value)| {
        let has_default = match body {
            Value::Array(bodies) => bodies.iter().any(|body| body.get("default").is_some()),
            body => body.get("default").is_some(),
        };
        let line = text
            .find(&format!("\"{name}\""))
            .and_then(|at| u32::try_from(text[..at].matches('\n').count() + 1).ok());
        (
            name.clone(),
            Declared {
                file: name_of(path),
                line,
                has_default,
            },
        )
    };
    match &value["variable"] {
        Value::Null => Some(Vec::new()),
        Value::Object(named) => Some(named.iter().map(of).collect()),
        Value::Array(blocks) => {
            let all: Option<Vec<_>> = blocks
                .iter()
                .map(|block| Some(block.as_object()?.iter().map(of)))
                .collect();
            Some(all?.into_iter().flatten().collect())
        }
        _ => None,
    }
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

    fn said(tool: ToolName, files: &[(&str, &str)], given: &[&str]) -> Option<String> {
        let declared = declared(tool, stack(files).path())?;
        check_declared(&declared, given.iter().copied())
            .err()
            .map(|failure| failure.message)
    }

    fn missing(
        tool: ToolName,
        files: &[(&str, &str)],
        arguments: &[&str],
        env: &[(&str, &str)],
    ) -> Option<Failure> {
        let dir = stack(files);
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let env: Vec<_> = env
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value)))
            .collect();
        let mut given = in_files(dir.path(), &arguments, &env)?;
        given.extend(named(&arguments).map(str::to_owned));
        check_given(&declared(tool, dir.path())?, &given).err()
    }

    #[test]
    fn undeclared_variable_is_refused_with_a_suggestion() {
        let files = [
            (
                "main.tf",
                "variable \"zones\" {}\nvariable \"region\" {\n  default = 1\n}\n",
            ),
            (
                "more.tf.json",
                r#"{"variable": [{"size": {}}, {"count_of_all": {"default": 1}}]}"#,
            ),
            ("only.tofu", "variable \"of_tofu\" {}\n"),
        ];
        let of = |given: &[&str]| said(ToolName::OpenTofu, &files, given);
        assert_eq!(
            of(&["zones", "region", "size", "count_of_all", "of_tofu"]),
            None
        );
        let message = of(&["zone", "size", "x"]).unwrap();
        assert_eq!(
            message,
            "the code does not declare variable zone (did you mean zones?), nor variable x"
        );
        assert!(
            said(ToolName::Terraform, &files, &["of_tofu"]).is_some(),
            "Terraform does not read that file"
        );
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn unparsed_file_leaves_the_decision_to_the_tool() {
        for files in [
            &[("main.tf", "variable \"a\" {")][..],
            &[("main.tf.json", "{")],
            &[("a.tf.json", r#"{"variable": [1]}"#)],
        ] {
            assert_eq!(said(ToolName::OpenTofu, files, &["b"]), None);
        }
        assert_eq!(said(ToolName::Terragrunt, &[("main.tf", "")], &["b"]), None);
        assert!(
            said(
                ToolName::OpenTofu,
                &[("main.tf", "# no variable here\n")],
                &["b"]
            )
            .is_some()
        );
    }

    #[test]
    fn variable_names_are_read_from_arguments() {
        let arguments: Vec<OsString> = ["-var", "a=b=c", "-var-file", "x=y", "-var", "none"]
            .map(Into::into)
            .into();
        assert_eq!(named(&arguments).collect::<Vec<_>>(), ["a"]);
    }

    const CODE: &[(&str, &str)] = &[
        (
            "main.tf",
            "variable \"region\" {}\nvariable \"size\" {\n  default = 1\n}\n\n  variable \"zone\" { type = string }\n",
        ),
        ("more.tf.json", "{\"variable\": {\n  \"count_of_all\": {}}}"),
        (
            "more_override.tf",
            "variable \"by_override\" { default = 1 }\n",
        ),
        ("most.tf", "variable \"by_override\" {}\n"),
    ];

    #[test]
    fn variables_without_value_are_named_with_their_place() {
        let failure = missing(ToolName::OpenTofu, CODE, &[], &[]).unwrap();
        let wanted = "3 variables have no value: count_of_all (more.tf.json:2), region (main.tf:1), zone (main.tf:6)";
        assert_eq!(
            (failure.reason.as_str(), failure.message.as_str()),
            (crds::reason::VARIABLE_NOT_SET, wanted)
        );
        let at: Vec<_> = failure
            .diagnostics
            .iter()
            .map(|d| (d.address.as_deref().unwrap(), d.line))
            .collect();
        assert_eq!(
            at,
            [
                ("var.count_of_all", Some(2)),
                ("var.region", Some(1)),
                ("var.zone", Some(6))
            ]
        );
        let one = missing(
            ToolName::OpenTofu,
            CODE,
            &["-var", "zone=a", "-var", "count_of_all=1"],
            &[],
        )
        .unwrap();
        assert_eq!(one.message, "a variable has no value: region (main.tf:1)");
        let many: Vec<_> = (0..30)
            .map(|n| format!("variable \"v{n}\" {{}}\n"))
            .collect();
        let failure =
            missing(ToolName::OpenTofu, &[("main.tf", &many.concat())], &[], &[]).unwrap();
        assert!(
            failure.message.ends_with("and 10 more") && failure.diagnostics.len() == NAMED,
            "{}",
            failure.message
        );
    }

    #[test]
    fn value_from_any_place_of_the_tool_counts() {
        let found = [
            CODE,
            &[
                ("terraform.tfvars", "region = 1\n"),
                ("a.auto.tfvars.json", "{\"zone\": 1}"),
                ("given.tfvars", "count_of_all = 2"),
            ],
        ]
        .concat();
        assert_eq!(
            missing(
                ToolName::OpenTofu,
                &found,
                &["-var-file", "given.tfvars"],
                &[]
            ),
            None
        );
        assert!(
            missing(ToolName::OpenTofu, &found, &[], &[]).is_some(),
            "no tool reads that file by itself"
        );
        let env = [
            ("TF_VAR_region", ""),
            ("TF_VAR_zone", "a"),
            ("TF_VAR_count_of_all", "1"),
        ];
        assert_eq!(missing(ToolName::OpenTofu, CODE, &[], &env), None);
    }

    #[test]
    fn possible_unseen_values_leave_the_decision_to_the_tool() {
        for (file, text) in [
            ("terraform.tfvars", "region = ["),
            ("cloud.tf", "terraform {\n  cloud {}\n}\n"),
            ("cloud.tf", "terraform {\n  backend \"remote\" {}\n}\n"),
            ("cloud.tf.json", r#"{"terraform": {"cloud": {}}}"#),
            ("broken.tf", "variable \"a\" {"),
        ] {
            assert_eq!(
                missing(
                    ToolName::OpenTofu,
                    &[CODE, &[(file, text)]].concat(),
                    &[],
                    &[]
                ),
                None,
                "{file}"
            );
        }
        assert_eq!(
            missing(ToolName::OpenTofu, CODE, &["-var-file", "gone.tfvars"], &[]),
            None
        );
        assert_eq!(
            missing(
                ToolName::OpenTofu,
                CODE,
                &[],
                &[("TF_CLI_ARGS_plan", "-var-file=x")]
            ),
            None
        );
        assert_eq!(missing(ToolName::Terragrunt, CODE, &[], &[]), None);
    }
}
