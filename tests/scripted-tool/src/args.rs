//! The command line, read with the rules of Go's `flag` package.

/// Flags that take a value, and so may have it in the next word.
const WITH_VALUE: &[&str] = &[
    "backend-config",
    "chdir",
    "from-module",
    "lock-timeout",
    "lockfile",
    "out",
    "parallelism",
    "plugin-dir",
    "replace",
    "state",
    "state-out",
    "backup",
    "target",
    "exclude",
    "var",
    "var-file",
    "generate-config-out",
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Args {
    /// The command, for example `plan`; empty if there is none.
    pub(super) command: String,
    /// Flags in order, without dashes; those without a value have `true`.
    pub(super) flags: Vec<(String, String)>,
    /// Words after the command that are no flags.
    pub(super) words: Vec<String>,
}

impl Args {
    /// Reads what follows the program's name.
    pub(super) fn parse(arguments: impl IntoIterator<Item = String>) -> Self {
        let mut args = Self::default();
        let mut rest = arguments.into_iter();
        while let Some(word) = rest.next() {
            let Some(flag) = word.strip_prefix('-').filter(|flag| !flag.is_empty()) else {
                if args.command.is_empty() {
                    args.command = word;
                } else {
                    args.words.push(word);
                }
                continue;
            };
            let flag = flag.strip_prefix('-').unwrap_or(flag);
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None if WITH_VALUE.contains(&flag) => (flag, rest.next().unwrap_or_default()),
                None => (flag, "true".to_owned()),
            };
            args.flags.push((name.to_owned(), value));
        }
        args
    }

    /// The value of a flag; the last one counts.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.flags.iter().rev().find(|(flag, _)| flag == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn values(&self, name: &str) -> Vec<&str> {
        self.flags.iter().filter(|(flag, _)| flag == name).map(|(_, value)| value.as_str()).collect()
    }

    /// Whether a flag is given and not `false`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| value != "false")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_in_every_form() {
        let line = "-chdir=/w plan -json --out=p -var a=b -var c=d -input=false -lock-timeout 5s x";
        let args = Args::parse(line.split(' ').map(str::to_owned));
        assert_eq!(args.command, "plan");
        assert_eq!((args.value("chdir"), args.value("out"), args.value("lock-timeout")), (Some("/w"), Some("p"), Some("5s")));
        assert_eq!(args.values("var"), ["a=b", "c=d"]);
        assert!(args.has("json") && !args.has("input") && !args.has("destroy"));
        assert_eq!(args.words, ["x"]);
    }
}
