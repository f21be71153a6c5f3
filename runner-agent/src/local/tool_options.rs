//! Accepts the tools' spelling of options: with one dash, and options that Pawl does not have.

use std::ffi::OsString;

use Word::{Bool, Fixed, Flag, Instead, Value};

use crate::phases::options;

#[derive(Clone, Copy, Debug)]
enum Word {
    /// An option of Pawl with a value.
    Value,
    /// An option of Pawl without a value.
    Flag,
    /// A boolean option of Pawl; true without a value.
    Bool,
    /// Pawl always uses this value; the message refuses any other.
    Fixed(&'static str, &'static str),
    /// Not supported: the text tells the alternative.
    Instead(&'static str),
}

/// How a person completes a partial backend.
pub(super) const BACKEND: &str =
    "the backend is the code's; for what is not in it set TF_CLI_ARGS_init='-backend-config=…'";

/// Options of `local`, and of the tools' `plan`, `apply`, `destroy` and `init`, without dashes. Those that a spec may set too are
/// in [`options`].
const WORDS: &[(&str, Word)] = &[
    ("approve", Value),
    ("argument", Value),
    ("parallelism", Value),
    ("replace", Value),
    ("target", Value),
    ("tool", Value),
    ("var", Value),
    ("var-file", Value),
    ("workspace", Value),
    ("auto-approve", Flag),
    ("help", Flag),
    ("json", Flag),
    ("no-color", Flag),
    ("refresh-only", Flag),
    ("refresh", Bool),
    (
        "input",
        Fixed(
            "false",
            "the tool asks for nothing; give values by --var, --var-file or TF_VAR_NAME",
        ),
    ),
    ("lock", Fixed("true", "a state is always locked")),
    ("backend-config", Instead(BACKEND)),
    (
        "chdir",
        Instead("the directory is the last word: runner-agent local plan DIR"),
    ),
    (
        "destroy",
        Instead(
            "it is a verb: `runner-agent local destroy` plans the removal, asks, and carries it out",
        ),
    ),
    (
        "detailed-exitcode",
        Instead(
            "`apply` without a terminal ends with 2 where a plan with changes waits, and `plan -refresh-only` where objects differ; `plan` ends \
             with 0, and --json prints its counts",
        ),
    ),
    (
        "migrate-state",
        Instead("a run never moves a state; run `init -migrate-state` of the tool once"),
    ),
    (
        "out",
        Instead(
            "a plan is stored in DIR/.pawl; if its question is not answered, the output ends with the command that applies it",
        ),
    ),
    ("reconfigure", Instead("set TF_CLI_ARGS_init=-reconfigure")),
];

/// Commands of the tools that `local` does not have.
const COMMANDS: &str = "console fmt force-unlock get graph import init login logout metadata modules output providers query refresh show stacks \
                        state taint test untaint validate version workspace";

/// Why a word is no verb of `local`, if it is a command of the tools.
pub fn no_verb(word: &str) -> Option<String> {
    let mut all = COMMANDS.split_ascii_whitespace();
    all.any(|command| command == word).then(|| {
        format!("`{word}` is no verb of local: run `tofu {word}` or `terraform {word}` in the stack's folder")
    })
}

/// Converts a command line: options of `local` get two dashes, and each value is joined to its option.
///
/// # Errors
/// An unsupported option: one line that names the alternative.
pub fn read(line: impl IntoIterator<Item = OsString>) -> Result<Vec<OsString>, String> {
    let mut line = line.into_iter();
    let mut read: Vec<OsString> = line.by_ref().take(2).collect();
    if read.get(1).is_none_or(|command| command != "local") {
        read.extend(line);
        return Ok(read);
    }
    while let Some(word) = line.next() {
        if word == "--" {
            read.push(word);
            break;
        }
        // `-h` is Pawl's own short option, and `-` is an operand.
        let option = word
            .to_str()
            .and_then(|text| text.strip_prefix('-'))
            .filter(|text| text.len() > 1);
        let Some(option) = option else {
            read.push(word);
            continue;
        };
        let bare = option.strip_prefix('-').unwrap_or(option);
        let (name, value) = bare
            .split_once('=')
            .map_or((bare, None), |(name, value)| (name, Some(value)));
        let found = WORDS
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, word)| *word);
        match (found, value) {
            (Some(Value), _) => {
                let mut whole = OsString::from(format!("--{name}"));
                if let Some(value) = value.map(OsString::from).or_else(|| line.next()) {
                    whole.push("=");
                    whole.push(value);
                }
                read.push(whole);
            }
            (Some(Bool), value) => {
                read.push(format!("--{name}={}", value.unwrap_or("true")).into());
            }
            (Some(Flag), None | Some("true")) => read.push(format!("--{name}").into()),
            (Some(Flag), Some("false")) => {}
            (Some(Flag), Some(_)) => return Err(format!("-{name} is either true or false")),
            // A flag of the tools without a value is true.
            (Some(Fixed(fixed, why)), value) => {
                if value.unwrap_or("true") != fixed {
                    return Err(format!("-{name} is no option of local: {why}"));
                }
            }
            (Some(Instead(what)), _) => {
                return Err(format!("-{name} is no option of local: {what}"));
            }
            (None, value) => {
                if let Some((commands, takes_value)) = options::commands(name) {
                    let value = match value {
                        None if takes_value => {
                            line.next().map(|word| word.to_string_lossy().into_owned())
                        }
                        value => value.map(str::to_owned),
                    };
                    let word = value
                        .map_or_else(|| format!("-{name}"), |value| format!("-{name}={value}"));
                    read.extend(
                        commands
                            .iter()
                            .map(|command| OsString::from(format!("--argument={command}={word}"))),
                    );
                } else if let Some(why) = options::instead(name) {
                    return Err(format!("-{name} is no option of local: {why}"));
                } else if option == bare {
                    return Err(format!(
                        "-{name} is no option of local; `runner-agent local --help` has those that are"
                    ));
                } else {
                    read.push(word);
                }
            }
        }
    }
    read.extend(line);
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(words: &[&str]) -> Result<String, String> {
        let line = ["runner-agent", "local"]
            .iter()
            .chain(words)
            .map(OsString::from);
        read(line).map(|read| {
            let words: Vec<_> = read[2..]
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect();
            words.join("|")
        })
    }

    #[test]
    fn supported_option_is_read_with_one_dash_as_with_two() {
        let rows: &[(&[&str], &str)] = &[
            (&["plan", "-var", "x=1", "net"], "plan|--var=x=1|net"),
            (
                &["plan", "-var=x=1", "--var", "y=-target", "--var=z=a=b"],
                "plan|--var=x=1|--var=y=-target|--var=z=a=b",
            ),
            (&["-var", "x = 1"], "--var=x = 1"),
            (
                &["apply", "-var-file", "a.tfvars", "-var-file=b.tfvars"],
                "apply|--var-file=a.tfvars|--var-file=b.tfvars",
            ),
            (
                &["apply", "-auto-approve", "-no-color", "-json"],
                "apply|--auto-approve|--no-color|--json",
            ),
            (
                &["apply", "-auto-approve=false", "-auto-approve=true"],
                "apply|--auto-approve",
            ),
            (&["plan", "-input=false", "-lock=true"], "plan"),
            (
                &["plan", "-refresh=false", "-refresh"],
                "plan|--refresh=false|--refresh=true",
            ),
            (&["plan", "-refresh-only"], "plan|--refresh-only"),
            (
                &["plan", "-target", "a.b", "-target=a.c", "-replace=a.d"],
                "plan|--target=a.b|--target=a.c|--replace=a.d",
            ),
            (&["-parallelism=3"], "--parallelism=3"),
            (
                &["plan", "-exclude", "a.b", "-upgrade", "net"],
                "plan|--argument=plan=-exclude=a.b|--argument=init=-upgrade|net",
            ),
            (
                &["-compact-warnings"],
                "--argument=init=-compact-warnings|--argument=plan=-compact-warnings|--argument=apply=-compact-warnings",
            ),
            (
                &["-workspace", "staging", "-tool=terraform"],
                "--workspace=staging|--tool=terraform",
            ),
            (&["-help"], "--help"),
            (&["-h"], "-h"),
            (
                &["plan", "--unknown", "--", "-var"],
                "plan|--unknown|--|-var",
            ),
            // The option parser reports a missing value.
            (&["plan", "-var"], "plan|--var"),
        ];
        for (typed, wanted) in rows {
            assert_eq!(said(typed).as_deref(), Ok(*wanted), "{typed:?}");
        }
    }

    #[test]
    fn unsupported_option_is_refused_with_an_alternative() {
        let rows = [
            (
                "-backend-config=a=b",
                "TF_CLI_ARGS_init='-backend-config=…'",
            ),
            ("-destroy", "`runner-agent local destroy`"),
            ("-out=p", "a plan is stored in DIR/.pawl"),
            ("--out", "a plan is stored in DIR/.pawl"),
            ("-input", "--var"),
            ("-lock=false", "always locked"),
            ("-auto-approve=maybe", "true or false"),
            ("-lock-timeout=5s", "waits for a lock by itself"),
            ("-detailed-exitcode", "`plan` ends with 0"),
            ("-anything", "runner-agent local --help"),
        ];
        for (typed, part) in rows {
            let error = said(&["plan", typed]).unwrap_err();
            assert!(
                error.contains(part) && !error.contains('\n'),
                "{typed}: {error}"
            );
        }
    }

    #[test]
    fn other_commands_are_unchanged() {
        let line = ["runner-agent", "tool", "-target"].map(OsString::from);
        assert_eq!(read(line.clone()).unwrap(), line);
        assert_eq!(read([OsString::from("runner-agent")]).unwrap().len(), 1);
    }
}
