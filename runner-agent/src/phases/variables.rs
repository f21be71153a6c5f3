//! Checks the run's variables against the code's declarations. The tools only warn about undeclared ones and plan without them;
//! missing values are reported before the plan.

use std::{collections::BTreeSet, ffi::OsString, fmt::Write as _, path::Path, sync::Arc};

use crds::{Diagnostic, Failure, Reason, TerraformRun};
use serde_json::Value;

use super::{
    declarations::{Declarations, Declared, declared, name_of},
    phase_results::{Prepared, Shell},
    secret_files::{self, Variables},
    variable_files::{self, TEXTS_FILE},
};
use crate::{
    files::{VARIABLES_FILE, given_name},
    report::{redact::Redactor, suggestion},
};

/// Maximum number of variables without a value that are named individually.
const NAMED: usize = 20;

/// Refuses values for undeclared variables, and variables without a value, before the plan. `handed_over` is the environment that
/// hooks have handed over so far. With `may_follow`, hooks before the plan may hand over more, so missing values are not checked.
/// Returns notes for the log.
pub(super) fn check(
    prepared: &Prepared,
    handed_over: &[(String, String)],
    may_follow: bool,
) -> Result<Vec<String>, Failure> {
    let Prepared { run, shell, .. } = prepared;
    // Terragrunt generates code and gives values; the code that it runs is checked before the plan.
    let declared = Some(shell)
        .filter(|shell| !shell.is_terragrunt())
        .and_then(|shell| declared(shell.tool.found.name, &shell.stack));
    let Some(declared) = declared else {
        return Ok(Vec::new());
    };
    check_names(&declared, run, shell)?;
    let by_hooks = handed_over
        .iter()
        .filter_map(|(name, _)| name.strip_prefix("TF_VAR_"));
    if !may_follow
        && declared.is_whole()
        && let Some(mut all) = in_files(&shell.stack, &shell.variable_args, &shell.env)
    {
        all.extend(given(run, shell).chain(by_hooks).map(str::to_owned));
        check_given(&declared, &all)?;
    }
    Ok(passed_over(&declared, shell))
}

/// Checks the names for the code that the plan runs, and writes the values as it declares them: hooks and Terragrunt may have made code
/// since Setup. `dir` is where the tool runs.
pub(super) fn before_plan(
    run: &TerraformRun,
    shell: &mut Shell,
    dir: &Path,
) -> Result<Vec<String>, Failure> {
    let Some(declared) = declared(shell.tool.found.plain().name, dir) else {
        return Ok(Vec::new());
    };
    check_names(&declared, run, shell)?;
    retype(&declared, shell)?;
    // Without Terragrunt, [`check`] has returned them.
    if shell.is_terragrunt() {
        Ok(passed_over(&declared, shell))
    } else {
        Ok(Vec::new())
    }
}

/// Masks the values that a person gave for variables that the code in a directory declares sensitive: on the command line, in the
/// environment, in the run and in files.
pub(super) fn mask_sensitive(run: &TerraformRun, shell: &Shell, dir: &Path, redactor: &Redactor) {
    let Some(declared) = declared(shell.tool.found.plain().name, dir) else {
        return;
    };
    let sensitive = |name: &str| {
        declared
            .named
            .get(name.trim())
            .filter(|one| one.is_sensitive)
    };
    let mask = |name: &str, text: &str| match sensitive(name) {
        Some(one) if one.is_expression => expression(text, redactor),
        Some(_) => redactor.add(text),
        None => {}
    };
    let typed =
        values_of(&shell.variable_args, "-var").filter_map(|word| word.to_str()?.split_once('='));
    typed.for_each(|(name, text)| mask(name, text));
    for (name, value) in &shell.env {
        if let (Some(name), Some(text)) = (name.to_str(), value.to_str())
            && let Some(name) = name.strip_prefix("TF_VAR_")
        {
            mask(name, text);
        }
    }
    let given = run
        .spec
        .variables
        .iter()
        .filter(|one| sensitive(&one.name).is_some());
    given
        .filter_map(|one| one.value.as_ref())
        .for_each(|value| secret_files::json(value, redactor));
    let files = variable_files::found(dir)
        .into_iter()
        .chain(values_of(&shell.variable_args, "-var-file").map(|path| shell.stack.join(path)));
    for file in files {
        match variable_files::read(&file) {
            Some(Variables::Json(Value::Object(all))) => {
                let all = all.iter().filter(|(name, _)| sensitive(name).is_some());
                all.for_each(|(_, value)| secret_files::json(value, redactor));
            }
            Some(Variables::Hcl(body)) => {
                let all = body
                    .attributes()
                    .filter(|one| sensitive(one.key.as_str()).is_some());
                all.for_each(|one| expression(&one.value.to_string(), redactor));
            }
            _ => {}
        }
    }
}

/// Masks the texts and numbers of an expression.
fn expression(text: &str, redactor: &Redactor) {
    let text = format!("x = {}\n", text.trim());
    if let Ok(parsed) = Variables::read("x.tfvars", &text) {
        secret_files::values(&text, &parsed, redactor);
    }
}

/// Writes the values as the code in the stack's directory declares them.
pub(super) fn write_typed(shell: &mut Shell) -> Result<(), Failure> {
    if shell.texts.is_empty() {
        return Ok(());
    }
    match declared(shell.tool.found.plain().name, &shell.stack) {
        Some(declared) => retype(&declared, shell),
        None => Ok(()),
    }
}

fn retype(declared: &Declarations, shell: &mut Shell) -> Result<(), Failure> {
    if shell.texts.is_empty() {
        return Ok(());
    }
    let is_expression = |name: &str| {
        declared
            .named
            .get(name)
            .is_some_and(|declared| declared.is_expression)
    };
    let files = variable_files::retyped(&shell.variables, &shell.texts, is_expression)?;
    match &shell.variables_dir {
        Some(dir) => variable_files::write_apart(&files, dir).map(drop)?,
        None => variable_files::put(&files, &shell.stack)?,
    }
    shell.variables = Arc::new(files);
    Ok(())
}

/// The names that a person wrote one by one.
fn given<'a>(run: &'a TerraformRun, shell: &'a Shell) -> impl Iterator<Item = &'a str> {
    let of_spec = run.spec.variables.iter();
    of_spec
        .map(|variable| variable.name.as_str())
        .chain(named(&shell.variable_args))
}

/// Notes on the keys of files and environments that the code does not declare: one file may serve many stacks.
fn passed_over(declared: &Declarations, shell: &Shell) -> Vec<String> {
    if !declared.is_whole() {
        return Vec::new();
    }
    let own = shell.variables.iter().map(|file| file.name.as_str());
    let own = own.filter(|name| *name != VARIABLES_FILE && *name != TEXTS_FILE);
    let own = own.map(|name| shell.stack.join(name));
    let typed = values_of(&shell.variable_args, "-var-file").map(|path| shell.stack.join(path));
    let of_files = own.chain(typed).filter_map(|path| {
        let name = name_of(&path);
        let known = given_name(&name).unwrap_or(&name).to_owned();
        Some((known, variable_files::names(&path)?))
    });
    let by_env = shell.env.iter().filter_map(|(name, _)| name.to_str());
    let by_env = by_env.filter_map(|name| Some(name.strip_prefix("TF_VAR_")?.to_owned()));
    let all = of_files.chain([("the environment (TF_VAR_…)".to_owned(), by_env.collect())]);
    all.filter_map(|(place, mut names): (String, Vec<String>)| {
        names.retain(|name| !declared.named.contains_key(name));
        names.truncate(NAMED);
        (!names.is_empty()).then(|| {
            format!(
                "{place} gives variables that the code does not declare: {}",
                names.join(", ")
            )
        })
    })
    .collect()
}

/// Refuses names that the code does not declare. The tool refuses those of `-var` itself, but only warns about others. So where a
/// file was not read, a name of the spec that no other file declares is refused too.
fn check_names(declared: &Declarations, run: &TerraformRun, shell: &Shell) -> Result<(), Failure> {
    let all: Vec<&str> = if declared.unread.is_empty() {
        given(run, shell).collect()
    } else {
        let of_spec = run.spec.variables.iter();
        of_spec.map(|variable| variable.name.as_str()).collect()
    };
    check_declared(declared, all.into_iter())
}

fn check_declared<'a>(
    declared: &Declarations,
    given: impl Iterator<Item = &'a str>,
) -> Result<(), Failure> {
    let in_words = |name| {
        format!(
            "variable {name}{}",
            suggestion(name, declared.named.keys().map(String::as_str))
        )
    };
    let unknown: Vec<_> = given
        .filter(|name| !declared.named.contains_key(*name))
        .map(in_words)
        .collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let mut message = format!("the code does not declare {}", unknown.join(", nor "));
    if !declared.unread.is_empty() {
        let unread = declared.unread.join("; ");
        let _ = write!(
            message,
            ", as far as Pawl can read it: {unread}; declare it in another file of the stack"
        );
    }
    Err(Reason::InvalidSpec.failure(message))
}

/// Refuses a stack if a variable has neither a value nor a default. Names all of them.
fn check_given(declared: &Declarations, given: &BTreeSet<String>) -> Result<(), Failure> {
    let missing: Vec<_> = declared
        .named
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::directory;
    use crds::ToolName;

    fn said(tool: ToolName, files: &[(&str, &str)], given: &[&str]) -> Option<String> {
        let declared = declared(tool, directory(files).path())?;
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
        let dir = directory(files);
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let env: Vec<_> = env
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value)))
            .collect();
        let mut given = in_files(dir.path(), &arguments, &env)?;
        given.extend(named(&arguments).map(str::to_owned));
        let declared = declared(tool, dir.path())?;
        let is_whole = declared.is_whole();
        is_whole.then(|| check_given(&declared, &given).err())?
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
    fn name_beside_an_unparsed_block_is_refused() {
        let declares = "variable \"zone\" {}\n";
        let refused = |file: &str, text: &str| {
            let files = [("a.tf", declares), (file, text)];
            assert_eq!(said(ToolName::OpenTofu, &files, &["zone"]), None, "{text}");
            said(ToolName::OpenTofu, &files, &["zonne"]).unwrap()
        };
        // Tools take a doubled key; the block does not matter here.
        let text = "locals {\n  t = { N = 1, N = 2 }\n}\nvariable \"b\" {}\n";
        assert_eq!(
            refused("main.tf", text),
            "the code does not declare variable zonne (did you mean zone?)"
        );
        for (file, text, why) in [
            (
                "main.tf",
                "variable \"a\" {",
                "main.tf is not read: line 1: ",
            ),
            (
                "main.tf",
                "variable \"a\" {\n  default = { N = 1, N = 2 }\n}\n",
                "main.tf is not read: line 2: ",
            ),
            ("main.tf.json", "{", "main.tf.json is not read: EOF"),
            (
                "a.tf.json",
                r#"{"variable": [1]}"#,
                "a.tf.json is not read: its variables",
            ),
        ] {
            assert!(refused(file, text).contains(why), "{}", refused(file, text));
        }
        assert_eq!(said(ToolName::Terragrunt, &[("main.tf", "")], &["b"]), None);
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
