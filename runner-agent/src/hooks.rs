//! Hooks as fixed in Setup: their scripts, interpreters, and the values that they hand over. Pure: reads and runs nothing.

use std::{fmt, path::Path};

use crds::{HookWhen, OnFailure, datastore::hex_digest};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Maximum size of a script in bytes.
pub const MAX_SCRIPT: usize = 256 << 10;
/// Maximum total size in bytes of a run's scripts, which are in memory and in the bundle.
pub const MAX_SCRIPTS: usize = 1 << 20;
/// Maximum size in bytes of the values that a hook hands over.
pub const MAX_VALUES: usize = 64 << 10;

/// Environment variable with the path of the file for values.
pub const VALUES: &str = "PAWL_HOOK_VALUES";

/// Interpreter of a script without a `#!` line.
const SHELL: &str = "/bin/sh";

/// A hook with its script as fixed in Setup.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    pub name: String,
    pub when: HookWhen,
    /// Whether its phase continues after its failure.
    #[serde(default)]
    pub continues: bool,
    pub script: String,
}

impl fmt::Debug for Hook {
    /// Omits the script, which may be long.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hook({} {})", self.when.as_str(), self.name)
    }
}

impl Hook {
    /// Builds a hook from its spec and script.
    ///
    /// # Errors
    /// The name or the script is invalid.
    pub fn of(spec: &crds::Hook, bytes: Vec<u8>) -> Result<Self, String> {
        let name = &spec.name;
        // The name becomes a file name.
        if !name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            || !(1..=24).contains(&name.len())
        {
            return Err(format!(
                "hook {name:?}: a name has 1 to 24 small letters, digits and `-`"
            ));
        }
        if bytes.len() > MAX_SCRIPT {
            return Err(format!(
                "hook {name} has more than {} KiB",
                MAX_SCRIPT >> 10
            ));
        }
        let script =
            String::from_utf8(bytes).map_err(|_| format!("hook {name} is not UTF-8 text"))?;
        if script.trim().is_empty() {
            return Err(format!("hook {name} is empty"));
        }
        let hook = Self {
            name: name.clone(),
            when: spec.when,
            continues: spec.on_failure == OnFailure::Continue,
            script,
        };
        let (program, _) = hook.interpreter();
        if program.ends_with('\r') {
            return Err(format!(
                "hook {name} has a carriage return at the end of its #! line; its lines have to end as in Unix"
            ));
        }
        if !Path::new(program).is_absolute() {
            return Err(format!(
                "hook {name}: its #! line names {program:?}, which is no absolute path"
            ));
        }
        Ok(hook)
    }

    /// The interpreter and its one argument before the script, parsed as the kernel parses a `#!` line.
    pub fn interpreter(&self) -> (&str, Option<&str>) {
        let Some(line) = self
            .script
            .strip_prefix("#!")
            .and_then(|rest| rest.split('\n').next())
        else {
            return (SHELL, None);
        };
        let line = line.trim_matches([' ', '\t']);
        match line.split_once([' ', '\t']) {
            Some((program, argument)) => (program, Some(argument.trim_matches([' ', '\t']))),
            None => (line, None),
        }
    }

    /// Whether the hook may hand over values: its script must mention the variable, so that a reviewer sees it.
    pub fn hands_over(&self) -> bool {
        self.script.contains(VALUES)
    }

    /// The hook's entry in the manifest.
    pub fn fact(&self) -> String {
        let on_failure = if self.continues { "Continue" } else { "Fail" };
        let digest = hex_digest(&Sha256::digest(self.script.as_bytes()));
        format!("{} {} {on_failure} {digest}", self.when.as_str(), self.name)
    }
}

/// All texts that may be secret in a hook's values, even if they are invalid.
pub fn secrets(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| {
        line.split_once('=')
            .map(|(_, value)| value)
            .into_iter()
            .chain([line])
    })
}

/// Parses a hook's values: lines `KEY=value`; later ones win. `refused` returns why a hook may not set a name.
///
/// # Errors
/// The values are invalid. The error contains no value.
pub fn values(
    text: &str,
    when: HookWhen,
    refused: impl Fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>, String> {
    let mut values = Vec::new();
    for (n, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
    {
        let is_name = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        let (name, value) = line
            .split_once('=')
            .filter(|(name, value)| is_name(name) && !value.contains('\0'))
            .ok_or_else(|| format!("line {} of what it hands over is not NAME=value", n + 1))?;
        if let Some(why) = refused(name) {
            return Err(format!("it hands over {name}, which {why}"));
        }
        if name.starts_with("TF_VAR_") && !when.is_before_plan() {
            return Err(format!(
                "it hands over {name}, but a variable of the stack counts only before the plan"
            ));
        }
        values.push((name.to_owned(), value.to_owned()));
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> crds::Hook {
        serde_json::from_value(serde_json::json!({"name": "check", "when": "BeforePlan"})).unwrap()
    }

    fn hook(script: &str) -> Hook {
        Hook::of(&spec(), script.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn shebang_line_decides_the_interpreter() {
        for (script, program, argument) in [
            ("echo", "/bin/sh", None),
            ("# !/bin/bash\necho", "/bin/sh", None),
            ("#!/bin/bash\necho", "/bin/bash", None),
            ("#! /bin/bash  -e \necho", "/bin/bash", Some("-e")),
            ("#!/usr/bin/env python3", "/usr/bin/env", Some("python3")),
            (
                "#!/usr/bin/awk\t-v a=b -f\n",
                "/usr/bin/awk",
                Some("-v a=b -f"),
            ),
        ] {
            assert_eq!(hook(script).interpreter(), (program, argument), "{script}");
        }
    }

    #[test]
    fn script_that_cannot_run_is_refused_by_name() {
        let of = |bytes: &[u8]| Hook::of(&spec(), bytes.to_vec()).unwrap_err();
        assert_eq!(of(b"echo \xff"), "hook check is not UTF-8 text");
        assert_eq!(of(&vec![b'#'; 5 << 20]), "hook check has more than 256 KiB");
        assert_eq!(of(b" \n"), "hook check is empty");
        assert!(of(b"#!/bin/sh\r\necho\r\n").contains("carriage return"));
        assert_eq!(
            of(b"#!bin/run\n"),
            "hook check: its #! line names \"bin/run\", which is no absolute path"
        );
        assert!(of(b"#!\necho").contains("no absolute path"));
        assert!(Hook::of(&spec(), vec![b'#'; MAX_SCRIPT]).is_ok());
    }

    #[test]
    fn manifest_entry_depends_on_name_moment_failure_and_script() {
        let first = hook("echo a");
        assert_eq!(
            first.fact(),
            "BeforePlan check Fail sha256:ce6da0ed618aea14dd79690cf984f60e5c01e7d44cd7f3fa8c77a39f6818bb43"
        );
        let others = [
            hook("echo b"),
            Hook {
                name: "other".into(),
                ..first.clone()
            },
            Hook {
                when: HookWhen::Always,
                ..first.clone()
            },
            Hook {
                continues: true,
                ..first.clone()
            },
        ];
        assert!(others.iter().all(|other| other.fact() != first.fact()));
    }

    #[test]
    fn hook_hands_over_only_if_its_script_names_the_file() {
        assert!(hook("echo A=b > \"$PAWL_HOOK_VALUES\"").hands_over());
        assert!(hook("#!/usr/bin/env python3\nopen(os.environ['PAWL_HOOK_VALUES'])").hands_over());
        assert!(!hook("./login.sh").hands_over());
        // A multi-line value is invalid, but is masked all the same.
        let all: Vec<_> = secrets("KEY=-----BEGIN\nAb12==\n").collect();
        assert_eq!(all, ["-----BEGIN", "KEY=-----BEGIN", "=", "Ab12=="]);
    }

    #[test]
    fn values_are_lines_and_errors_contain_no_secret() {
        let of = |text: &str, when| {
            values(text, when, |name| {
                (name == "PATH").then(|| "would steer".to_owned())
            })
        };
        let found = of("A=b=c\n\n_D=\nA=e f\n", HookWhen::BeforeApply).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(found, [("A", "b=c"), ("_D", ""), ("A", "e f")]);
        for text in [
            "hunter22",
            "A=b\nhunter22",
            "A-B=hunter22",
            "1A=hunter22",
            "=hunter22",
            "A=hunter22\0",
        ] {
            let error = of(text, HookWhen::BeforePlan).unwrap_err();
            assert!(
                error.contains("is not NAME=value") && !error.contains("hunter22"),
                "{error}"
            );
        }
        assert!(
            of("PATH=/evil", HookWhen::BeforePlan).unwrap_err()
                == "it hands over PATH, which would steer"
        );
        assert!(of("TF_VAR_a=1", HookWhen::BeforePlan).is_ok());
        for when in [
            HookWhen::AfterPlan,
            HookWhen::BeforeApply,
            HookWhen::BeforeDestroy,
            HookWhen::Always,
        ] {
            assert!(
                of("TF_VAR_a=1", when)
                    .unwrap_err()
                    .contains("only before the plan")
            );
        }
    }
}
