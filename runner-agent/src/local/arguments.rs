//! The command line of `runner-agent local`.

use std::{
    borrow::Cow,
    ffi::{OsStr, OsString},
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::Context as _;
use clap::{
    Args, ValueEnum, ValueHint,
    builder::{PossibleValue, StringValueParser, TypedValueParser},
};
use crds::{Operation, TerraformRunSpec, ToolName};
use serde_json::{Map, Value, json};

use super::tool_options;

/// The operation on a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Verb {
    /// Plan, and change nothing.
    Plan,
    /// Plan, ask, and apply exactly that plan.
    #[default]
    Apply,
    /// Plan the removal of everything, ask, and apply it.
    Destroy,
}

/// The name of a variable, and `=`, whose value a printed line hides.
fn hidden<'a>(option: &str, word: &'a str) -> Option<&'a str> {
    word.strip_suffix(HIDDEN).filter(|_| option == "var")
}

/// An option of a variable for the tool, with its value.
fn argument_of(option: &str, word: &str) -> anyhow::Result<[OsString; 2]> {
    let word = if option == "var-file" {
        // Absolute, since the tool runs in the stack's directory.
        let file = Path::new(word).canonicalize();
        let shown = std::path::absolute(word).unwrap_or_else(|_| word.into());
        file.with_context(|| {
            format!(
                "there is no file {} (a path is seen from the directory of the command, not from the stack); nothing was changed",
                shown.display()
            )
        })?
        .into()
    } else {
        OsString::from(word)
    };
    Ok([format!("-{option}").into(), word])
}

impl Verb {
    pub const fn operation(self) -> Operation {
        match self {
            Self::Plan => Operation::Plan,
            Self::Apply => Operation::Apply,
            Self::Destroy => Operation::Destroy,
        }
    }

    /// The word on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Apply => "apply",
            Self::Destroy => "destroy",
        }
    }
}

/// The text below the options, for short and long help.
macro_rules! after_help {
    () => {
        "\
Exit codes:
  0   applied, destroyed, planned, or nothing to do
  1   failed
  2   a plan waits for an answer, or --refresh-only found what differs from the state
  3   denied or cancelled; nothing was applied
  4   it is not known what was applied
  64  the command line is invalid

Ctrl-C once cancels: the running command is asked to stop, and Pawl waits for it. A running apply finishes what it has begun
and saves its state, so a second Ctrl-C changes nothing."
    };
}

const AFTER_HELP: &str = after_help!();

const AFTER_LONG_HELP: &str = concat!(
    "\
Examples:
  runner-agent local                                    plan this directory, ask, apply
  runner-agent local plan stacks/network                plan, and change nothing
  runner-agent local apply stacks/network < /dev/null   no terminal: the plan waits, exit code 2
  runner-agent local apply stacks/network --approve sha256:…
                                                        apply the plan that waits, and no other
  runner-agent local -var-file=prod.tfvars -target=module.network
  runner-agent local 'https://git.example.com/stacks.git//network?ref=main'

",
    after_help!()
);

/// Run a stack on this machine, without a cluster
///
/// Plans a stack, shows the plan, asks, and applies exactly that plan, with the state machine of a pod,
/// the same plan checksum and the same results.
///
/// The tool is OpenTofu or Terraform on PATH, if it satisfies the version that the code requires.
/// Settings in DIR/pawl.yaml, in the form of a TerraformRun without its source, apply unless the
/// command line overrides them.
///
/// Records and logs of every run are in DIR/.pawl/runs, which git ignores. A plan without an answer
/// waits there: the next step of a CI job, or a person, applies it with --approve.
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment, after_help = AFTER_HELP, after_long_help = AFTER_LONG_HELP)]
pub struct Arguments {
    /// plan, apply or destroy; the default is apply
    #[arg(value_name = "VERB|DIR", value_parser = VerbOrPlace, hide_possible_values = true, value_hint = ValueHint::DirPath)]
    pub first: Option<String>,
    /// The stack's directory, or a git URL; the default is this directory
    ///
    /// A git URL is written https://HOST/REPO.git//DIR?ref=BRANCH. The stack needs a backend then, and the records are in .pawl of
    /// this directory.
    #[arg(value_name = "DIR|GIT_URL", value_hint = ValueHint::DirPath)]
    pub second: Option<String>,
    /// Apply without asking
    #[arg(long, conflicts_with = "approve")]
    pub auto_approve: bool,
    /// Apply the waiting plan with this checksum, and no other
    #[arg(long, value_name = "CHECKSUM", value_parser = checksum)]
    pub approve: Option<String>,
    /// A variable; may be repeated
    #[arg(long = "var", value_name = "NAME=VALUE", value_parser = variable)]
    pub variables: Vec<Typed>,
    /// A file with variables; may be repeated. The last of all files and variables wins
    #[arg(long = "var-file", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub variable_files: Vec<Typed>,
    /// Plan only this address and its dependencies; may be repeated
    #[arg(long = "target", value_name = "ADDRESS")]
    pub targets: Vec<String>,
    /// Replace this object; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    pub replace: Vec<String>,
    /// Whether the plan refreshes the state first; the default is true
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub refresh: Option<bool>,
    /// With plan: only compare the existing objects with the state; exit code 2 if they differ. Changes nothing, not even the state
    #[arg(long)]
    pub refresh_only: bool,
    /// Number of concurrent operations of the tool; the default is 10
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub parallelism: Option<u16>,
    /// An argument of a command of the tool: init=-upgrade, plan=-exclude=ADDRESS; may be repeated
    #[arg(long = "argument", value_name = "COMMAND=ARGUMENT", value_parser = argument)]
    pub arguments: Vec<(String, String)>,
    /// The workspace of this run alone, as with TF_WORKSPACE; the default is the folder's selected one
    ///
    /// Does not select it in the folder. Only apply creates a missing workspace.
    #[arg(long, value_name = "NAME")]
    pub workspace: Option<String>,
    /// The tool, and a version or constraint: terraform@1.5.7, "opentofu@~> 1.10"
    #[arg(long, value_name = "TOOL[@VERSION]", value_parser = tool)]
    pub tool: Option<(ToolName, Option<String>)>,
    /// Print the run's status as a line of JSON at each change, and nothing else
    #[arg(long)]
    pub json: bool,
    /// No colour; the same as NO_COLOR in the environment
    #[arg(long)]
    pub no_color: bool,
}

impl Arguments {
    /// The verb and the stack's place.
    ///
    /// # Errors
    /// The first word is no verb although a second one follows.
    pub fn verb_and_place(&self) -> Result<(Verb, String), String> {
        let verb = |word: &String| Verb::from_str(word, true).ok();
        match (&self.first, &self.second) {
            (None, _) => Ok((Verb::default(), ".".to_owned())),
            (Some(word), None) => Ok(verb(word).map_or_else(
                || (Verb::default(), word.clone()),
                |verb| (verb, ".".to_owned()),
            )),
            (Some(word), Some(place)) => {
                verb(word).map(|verb| (verb, place.clone())).ok_or_else(|| {
                    tool_options::no_verb(word).unwrap_or_else(|| {
                        format!(
                            "`{word}` is neither plan, apply nor destroy; the directory comes last"
                        )
                    })
                })
            }
        }
    }

    /// The run's operation.
    ///
    /// # Errors
    /// `--refresh-only` with another verb than plan.
    pub fn operation(&self, verb: Verb) -> anyhow::Result<Operation> {
        match (self.refresh_only, verb) {
            (false, verb) => Ok(verb.operation()),
            (true, Verb::Plan) => Ok(Operation::RefreshOnly),
            (true, Verb::Apply | Verb::Destroy) => anyhow::bail!(
                "--refresh-only goes with plan: `runner-agent local plan --refresh-only` says what differs from the state; to take it \
                 into the state run `apply -refresh-only` of the tool"
            ),
        }
    }

    /// Variables as arguments of the tool's command line.
    ///
    /// # Errors
    /// A variable file does not exist, or a pasted line lacks a variable's value.
    pub fn plan_args(&self) -> anyhow::Result<Vec<OsString>> {
        let mut args: Vec<OsString> = Vec::new();
        for (option, word) in self.typed() {
            if let Some(name) = hidden(option, word) {
                anyhow::bail!(
                    "write the value in place of {HIDDEN}: --var {name}VALUE; nothing was changed"
                );
            }
            args.extend(argument_of(option, word)?);
        }
        Ok(args)
    }

    /// The variables with which a waiting plan was `made`: a pasted line has none of their values.
    ///
    /// # Errors
    /// The line has another variable, or a variable file does not exist.
    pub fn made_args(&self, made: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
        for (option, word) in self.typed() {
            if hidden(option, word).is_some() {
                continue;
            }
            let pair = argument_of(option, word)?;
            anyhow::ensure!(
                made.chunks(2).any(|one| *one == pair),
                "the plan was not made with --{option} {word}, and is applied as it was made: leave it out, or make a new plan; nothing was applied"
            );
        }
        Ok(made)
    }

    /// Variables and variable files in the order on the command line.
    fn typed(&self) -> Vec<(&'static str, &str)> {
        let variables = self
            .variables
            .iter()
            .map(|typed| (typed.at, "var", typed.word.as_str()));
        let mut all: Vec<_> = variables
            .chain(
                self.variable_files
                    .iter()
                    .map(|t| (t.at, "var-file", t.word.as_str())),
            )
            .collect();
        all.sort_by_key(|(at, ..)| *at);
        all.into_iter()
            .map(|(_, option, word)| (option, word))
            .collect()
    }

    /// Sets the spec's fields from the command line, which overrides the folder's.
    pub fn put_into(&self, spec: &mut Map<String, Value>) {
        for (field, list) in [("targets", &self.targets), ("replace", &self.replace)] {
            if !list.is_empty() {
                spec.insert(field.to_owned(), json!(list));
            }
        }
        if let Some(refresh) = self.refresh {
            spec.insert("refresh".to_owned(), json!(refresh));
        }
        if let Some(count) = self.parallelism {
            spec.insert("parallelism".to_owned(), json!(count));
        }
        for command in COMMANDS {
            let words: Vec<_> = self
                .arguments
                .iter()
                .filter(|(of, _)| of == command)
                .map(|(_, word)| word)
                .collect();
            if words.is_empty() {
                continue;
            }
            if let Value::Object(all) = spec.entry("arguments").or_insert_with(|| json!({})) {
                all.insert(command.to_owned(), json!(words));
            }
        }
    }

    /// The first option that says otherwise than the run whose plan waits. Values of variables are not in the run's record: [`super`]
    /// compares them.
    ///
    /// # Errors
    /// As [`Self::operation`].
    pub fn contradicts(
        &self,
        verb: Verb,
        planned: &TerraformRunSpec,
    ) -> anyhow::Result<Option<&'static str>> {
        let given = self
            .first
            .as_deref()
            .and_then(|word| Verb::from_str(word, true).ok());
        let other_verb = given.is_some() && self.operation(verb)? != planned.operation;
        let list = |command: &str| -> Vec<&String> {
            let all = self.arguments.iter().filter(|(of, _)| of == command);
            all.map(|(_, word)| word).collect()
        };
        let of_commands = [
            ("init", &planned.arguments.init),
            ("plan", &planned.arguments.plan),
            ("apply", &planned.arguments.apply),
        ];
        let other_arguments = of_commands.iter().any(|(command, planned)| {
            let given = list(command);
            !given.is_empty() && !given.into_iter().eq(planned.iter())
        });
        let other = |given: &[String], planned: &[String]| !given.is_empty() && given != planned;
        let other_tool = self.tool.as_ref().is_some_and(|(name, version)| {
            Some(*name) != planned.tool.name || *version != planned.tool.version
        });
        let rows = [
            (verb.as_str(), other_verb),
            ("--target", other(&self.targets, &planned.targets)),
            ("--replace", other(&self.replace, &planned.replace)),
            (
                "--refresh",
                self.refresh
                    .is_some_and(|refresh| Some(refresh) != planned.refresh),
            ),
            (
                "--parallelism",
                self.parallelism
                    .is_some_and(|count| Some(count) != planned.parallelism),
            ),
            ("--argument", other_arguments),
            (
                "--workspace",
                self.workspace
                    .as_ref()
                    .is_some_and(|name| name.trim() != planned.workspace),
            ),
            ("--tool", other_tool),
        ];
        Ok(rows
            .into_iter()
            .find(|(_, is)| *is)
            .map(|(option, _)| option))
    }

    /// The command line to paste again, without the options for this call only and without values of variables.
    pub fn command(&self, verb: Verb, place: &str) -> String {
        let mut words = vec![
            "runner-agent".to_owned(),
            "local".to_owned(),
            verb.as_str().to_owned(),
            quoted(place),
        ];
        for (option, word) in self.typed() {
            // The line may end in the log of a CI job.
            let shown = match word.split_once('=').filter(|_| option == "var") {
                Some((name, _)) => Cow::Owned(format!("{name}={HIDDEN}")),
                None => Cow::Borrowed(word),
            };
            words.extend([format!("--{option}"), quoted(&shown)]);
        }
        let lists = [("--target", &self.targets), ("--replace", &self.replace)];
        words.extend(lists.iter().flat_map(|(option, list)| {
            list.iter()
                .flat_map(|word| [(*option).to_owned(), quoted(word)])
        }));
        words.extend(self.refresh.map(|refresh| format!("--refresh={refresh}")));
        words.extend(self.refresh_only.then(|| "--refresh-only".to_owned()));
        words.extend(
            self.parallelism
                .map(|count| format!("--parallelism={count}")),
        );
        words.extend(
            self.arguments
                .iter()
                .map(|(command, word)| quoted(&format!("--argument={command}={word}"))),
        );
        if let Some(workspace) = &self.workspace {
            words.extend(["--workspace".to_owned(), quoted(workspace)]);
        }
        if let Some((name, version)) = &self.tool {
            let version = version
                .as_ref()
                .map(|version| format!("@{version}"))
                .unwrap_or_default();
            words.extend([
                "--tool".to_owned(),
                quoted(&format!("{}{version}", name.directory())),
            ]);
        }
        words.join(" ")
    }
}

/// Accepts any word; completion offers the verbs.
#[derive(Clone, Copy, Debug)]
struct VerbOrPlace;

impl TypedValueParser for VerbOrPlace {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(
            Verb::value_variants()
                .iter()
                .filter_map(Verb::to_possible_value),
        ))
    }
}

fn checksum(text: &str) -> Result<String, String> {
    let digits = text.strip_prefix("sha256:").unwrap_or_default();
    let whole = digits.len() == 64 && digits.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'));
    if whole {
        Ok(text.to_owned())
    } else {
        Err("a checksum is `sha256:` and 64 hexadecimal digits, whole".to_owned())
    }
}

/// A word of the command line with its position, relative to other such words.
#[derive(Clone, Debug)]
pub struct Typed {
    at: usize,
    word: String,
}

impl From<String> for Typed {
    fn from(word: String) -> Self {
        static WORDS: AtomicUsize = AtomicUsize::new(0);
        Self {
            at: WORDS.fetch_add(1, Ordering::Relaxed),
            word,
        }
    }
}

fn variable(text: &str) -> Result<Typed, String> {
    match text.split_once('=') {
        Some((name, _)) if !name.trim().is_empty() => Ok(text.to_owned().into()),
        _ => Err("a variable is written NAME=VALUE".to_owned()),
    }
}

/// Commands of the tool that take additional arguments.
const COMMANDS: [&str; 3] = ["init", "plan", "apply"];

fn argument(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some(("init", word)) if word.trim_start_matches('-').starts_with("backend-config") => {
            Err(super::tool_options::BACKEND.to_owned())
        }
        Some((command, word)) if COMMANDS.contains(&command) && !word.is_empty() => {
            Ok((command.to_owned(), word.to_owned()))
        }
        _ => {
            Err("an argument is written init=ARGUMENT, plan=ARGUMENT or apply=ARGUMENT".to_owned())
        }
    }
}

/// Parses `TOOL[@VERSION]`.
pub fn tool(text: &str) -> Result<(ToolName, Option<String>), String> {
    let (name, version) = text
        .split_once('@')
        .map_or((text, None), |(name, version)| {
            (name, Some(version.to_owned()))
        });
    let name = match name.to_ascii_lowercase().as_str() {
        "opentofu" | "tofu" => ToolName::OpenTofu,
        "terraform" => ToolName::Terraform,
        "terragrunt" => ToolName::Terragrunt,
        _ => {
            return Err(format!(
                "`{name}` is no tool; there are opentofu, terraform and terragrunt"
            ));
        }
    };
    Ok((name, version))
}

/// In place of a variable's value in a printed line.
const HIDDEN: char = '…';

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,+%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests;
