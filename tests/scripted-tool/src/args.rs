//! The command line. Supported flags have their value in the same word (`-out=FILE`). The value of another flag (`-var-file FILE`) is
//! parsed as a word, so only the last word is a command's argument.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Args {
    /// The command, for example `plan`; empty if there is none.
    pub(super) command: String,
    /// Flags in order, without dashes; `true` for those without a value.
    flags: Vec<(String, String)>,
    /// Words after the command that are not flags.
    pub(super) words: Vec<String>,
}

impl Args {
    /// Parses the arguments after the program's name.
    pub(super) fn parse(arguments: impl IntoIterator<Item = String>) -> Self {
        let mut args = Self::default();
        for word in arguments {
            match word
                .strip_prefix('-')
                .map(|flag| flag.trim_start_matches('-'))
            {
                Some(flag) => {
                    let (name, value) = flag.split_once('=').unwrap_or((flag, "true"));
                    args.flags.push((name.to_owned(), value.to_owned()));
                }
                None if args.command.is_empty() => args.command = word,
                None => args.words.push(word),
            }
        }
        args
    }

    /// The value of a flag; the last one applies.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.flags
            .iter()
            .rev()
            .find(|(flag, _)| flag == name)
            .map(|(_, value)| value.as_str())
    }

    /// Whether a flag is set and not `false`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| value != "false")
    }
}
