//! Arguments of the tool's commands that a run sets, by dedicated fields or from an allow list by `spec.arguments`.

use crds::{Failure, Operation, Reason, TerraformRunSpec};

/// Additional arguments of each command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) init: Vec<String>,
    pub(super) plan: Vec<String>,
    pub(super) apply: Vec<String>,
}

impl Options {
    /// Whether the plan leaves parts of the code out.
    pub(super) fn is_partial(&self) -> bool {
        let mut names = self.plan.iter().map(|word| word.trim_start_matches('-'));
        names.any(|name| name.starts_with("target") || name.starts_with("exclude"))
    }

    /// The commands with additional arguments, for the manifest.
    pub(super) fn facts(&self) -> Vec<(String, Vec<String>)> {
        let all = [
            ("init", &self.init),
            ("plan", &self.plan),
            ("apply", &self.apply),
        ];
        all.into_iter()
            .filter(|(_, words)| !words.is_empty())
            .map(|(name, words)| (name.to_owned(), words.clone()))
            .collect()
    }
}

/// The value that an option takes.
#[derive(Clone, Copy, Debug)]
enum Takes {
    /// No value, or `=true` or `=false`.
    Flag,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Any text, such as an address.
    Text,
    /// A path below the stack's directory.
    Path,
}

use Takes::{Flag, OneOf, Path, Text};

/// Allowed options: the name, the commands that take it, and its value. The format of warnings and errors does not change a plan
/// or an apply, so those options are allowed.
const ALLOWED: &[(&str, &[&str], Takes)] = &[
    ("upgrade", &["init"], Flag),
    ("lockfile", &["init"], OneOf(&["readonly"])),
    ("exclude", &["plan"], Text),
    ("invoke", &["plan"], Text),
    ("target-file", &["plan"], Path),
    ("exclude-file", &["plan"], Path),
    ("generate-config-out", &["plan"], Path),
    ("compact-warnings", &["init", "plan", "apply"], Flag),
    ("consolidate-warnings", &["init", "plan", "apply"], Flag),
    ("consolidate-errors", &["init", "plan", "apply"], Flag),
    ("concise", &["plan", "apply"], Flag),
    ("deprecation", &["plan", "apply"], Text),
];

/// The commands that take an allowed option, and whether it has a value.
pub(crate) fn commands(option: &str) -> Option<(&'static [&'static str], bool)> {
    let (_, commands, takes) = ALLOWED.iter().find(|(name, ..)| *name == option)?;
    Some((commands, !matches!(takes, Flag)))
}

/// Options of the tools that another field covers, with an explanation.
const INSTEAD: &[(&str, &str)] = &[
    ("target", "it is spec.targets"),
    ("replace", "it is spec.replace"),
    ("refresh", "it is spec.refresh"),
    ("parallelism", "it is spec.parallelism"),
    ("var", "it is spec.variables"),
    ("var-file", "it is spec.variableFiles"),
    ("destroy", "it is spec.operation"),
    ("refresh-only", "it is spec.operation"),
    ("backend-config", "it is spec.backend"),
    ("backend", "a run always has its backend"),
    ("lock", "a state is always locked"),
    ("lock-timeout", "Pawl waits for a lock by itself"),
    ("show-sensitive", "it would print secrets"),
    ("get", "modules are always fetched"),
    (
        "plugin-dir",
        "the tool's configuration selects the providers",
    ),
    ("reconfigure", "each run has its own directory"),
    ("migrate-state", "a run never moves a state"),
    ("force-copy", "a run never moves a state"),
    ("out", "Pawl gives it"),
    ("json", "Pawl gives it"),
    ("input", "Pawl gives it"),
    ("no-color", "Pawl gives it"),
    ("detailed-exitcode", "Pawl gives it"),
    ("auto-approve", "only approved plans are applied"),
    ("state", "the state is where the backend has it"),
    ("state-out", "the state is where the backend has it"),
    ("backup", "the state is where the backend has it"),
];

/// The explanation of an option that another field covers.
pub(crate) fn instead(option: &str) -> Option<&'static str> {
    INSTEAD
        .iter()
        .find(|(name, _)| *name == option)
        .map(|(_, instead)| *instead)
}

/// The arguments of a spec.
///
/// # Errors
/// The first argument that is not allowed, with the list of allowed ones.
pub(super) fn of(spec: &TerraformRunSpec) -> Result<Options, Failure> {
    let mut options = Options::default();
    // The CRD refuses both at creation; a local run is not validated by it.
    if spec.operation == Operation::RefreshOnly && spec.refresh == Some(false) {
        return Err(Reason::InvalidSpec.failure(
            "operation RefreshOnly with refresh: false would refresh nothing; leave refresh out",
        ));
    }
    if matches!(spec.operation, Operation::Destroy | Operation::RefreshOnly)
        && !spec.replace.is_empty()
    {
        let operation = spec.operation.as_str();
        return Err(Reason::InvalidSpec.failure(format!(
            "replace makes objects anew, which operation {operation} does not; leave replace out"
        )));
    }
    for (name, addresses) in [("target", &spec.targets), ("replace", &spec.replace)] {
        for address in addresses {
            if address.trim().is_empty() || address.contains(char::is_control) {
                let field = if name == "target" { "targets" } else { name };
                return Err(Reason::InvalidSpec
                    .failure(format!("spec.{field} has {address:?}, which is no address")));
            }
            options.plan.push(format!("-{name}={address}"));
        }
    }
    if spec.refresh == Some(false) {
        options.plan.push("-refresh=false".to_owned());
    }
    if let Some(count) = spec.parallelism {
        let word = format!("-parallelism={count}");
        options.plan.push(word.clone());
        options.apply.push(word);
    }
    let given = &spec.arguments;
    for (command, words, to) in [
        ("init", &given.init, &mut options.init),
        ("plan", &given.plan, &mut options.plan),
        ("apply", &given.apply, &mut options.apply),
    ] {
        words.iter().try_for_each(|word| check(command, word))?;
        to.extend_from_slice(words);
    }
    Ok(options)
}

fn check(command: &str, word: &str) -> Result<(), Failure> {
    let allowed = || {
        ALLOWED
            .iter()
            .filter(|(_, commands, _)| commands.contains(&command))
    };
    let refused = |why: &str| {
        let all: Vec<_> = allowed()
            .map(|(name, _, takes)| usage(name, *takes))
            .collect();
        let message = format!(
            "spec.arguments.{command} has {word:?}: {why}; allowed are {}",
            all.join(", ")
        );
        Err(Reason::InvalidSpec.failure(message))
    };
    if word.contains(char::is_control) {
        return refused("it holds a line break or the like");
    }
    let Some(option) = word
        .strip_prefix('-')
        .map(|rest| rest.strip_prefix('-').unwrap_or(rest))
    else {
        return refused("an argument is one word that begins with a dash: -name, or -name=value");
    };
    let (name, value) = option
        .split_once('=')
        .map_or((option, None), |(name, value)| (name, Some(value)));
    let Some((_, _, takes)) = allowed().find(|(known, ..)| *known == name) else {
        return refused(instead(name).unwrap_or("it is not known to be safe"));
    };
    let fits = match (takes, value) {
        (Flag, None | Some("true" | "false")) => true,
        (OneOf(words), Some(value)) => words.contains(&value),
        (Text, Some(value)) => !value.is_empty(),
        (Path, Some(value)) => is_inside(value),
        (Flag, Some(_)) | (OneOf(_) | Text | Path, None) => false,
    };
    if fits {
        Ok(())
    } else {
        refused("its value is not one that it takes")
    }
}

fn usage(name: &str, takes: Takes) -> String {
    match takes {
        Flag => format!("-{name}"),
        OneOf(words) => format!("-{name}={}", words.join("|")),
        Text => format!("-{name}=…"),
        Path => format!("-{name}=PATH"),
    }
}

/// Whether a path leads only downwards, and into no directory of the tools or of git.
pub(super) fn is_inside(path: &str) -> bool {
    let own = [".git", ".terraform", ".terragrunt-cache", ".pawl"];
    !path.is_empty()
        && path
            .split('/')
            .all(|part| !part.is_empty() && part != "." && part != ".." && !own.contains(&part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn options(json: &Value) -> Result<Options, String> {
        let mut base = json!({"source": {"inline": {"files": {}}}});
        base.as_object_mut()
            .unwrap()
            .extend(json.as_object().unwrap().clone());
        of(&serde_json::from_value(base).unwrap()).map_err(|failure| failure.message)
    }

    #[test]
    fn refused_argument_is_reported_with_the_allowed_ones() {
        let rows = [
            ("plan", "-target=a", "it is spec.targets"),
            ("plan", "-destroy", "it is spec.operation"),
            ("plan", "-var=a=1", "it is spec.variables"),
            ("plan", "-out=x", "Pawl gives it"),
            ("plan", "-lock=false", "a state is always locked"),
            ("plan", "-anything", "it is not known to be safe"),
            ("plan", "-exclude", "its value is not one that it takes"),
            (
                "plan",
                "-generate-config-out=../x",
                "its value is not one that it takes",
            ),
            (
                "plan",
                "-target-file=/etc/passwd",
                "its value is not one that it takes",
            ),
            ("plan", "exclude", "begins with a dash"),
            ("plan", "-exclude=a\n-destroy", "a line break"),
            (
                "init",
                "-lockfile=update",
                "its value is not one that it takes",
            ),
            ("init", "-backend-config=x", "it is spec.backend"),
            ("init", "-reconfigure", "its own directory"),
            ("apply", "-auto-approve", "approved"),
            ("apply", "-exclude=a", "not known to be safe"),
            (
                "apply",
                "-compact-warnings=maybe",
                "its value is not one that it takes",
            ),
        ];
        for (command, word, why) in rows {
            let message = options(&json!({"arguments": {command: [word]}})).unwrap_err();
            assert!(
                message.starts_with(&format!("spec.arguments.{command} has {word:?}: ")),
                "{message}"
            );
            assert!(
                message.contains(why)
                    && message.contains("; allowed are -")
                    && !message.contains('\n'),
                "{word}: {message}"
            );
        }
        assert!(
            options(&json!({"targets": [" "]}))
                .unwrap_err()
                .contains("no address")
        );
        for (operation, more, said) in [
            (
                "RefreshOnly",
                json!({"refresh": false}),
                "would refresh nothing",
            ),
            (
                "RefreshOnly",
                json!({"replace": ["a.b"]}),
                "operation RefreshOnly does not",
            ),
            (
                "Destroy",
                json!({"replace": ["a.b"]}),
                "operation Destroy does not",
            ),
        ] {
            let mut spec = more.clone();
            spec["operation"] = operation.into();
            assert!(options(&spec).unwrap_err().contains(said), "{spec}");
            assert!(options(&more).is_ok(), "as an Apply: {more}");
        }
        assert!(options(&json!({"operation": "RefreshOnly", "refresh": true})).is_ok());
    }
}
