//! The error texts of git and ssh: classifies why a revision is missing.

use std::{error::Error, io};

use crds::{reason::Reason, text::clip};

use crate::ssh::{CHANGED, HostKey, REFUSED};

/// The end of a git command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// The exit code; 128 plus the signal's number when a signal ended it.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether its user ended it.
    pub told: bool,
    /// The last lines of output, redacted.
    pub output: String,
}

/// The reason why a revision is missing.
#[derive(Debug, thiserror::Error)]
pub enum FetchError<E: Error + 'static> {
    /// The URL is not supported.
    #[error(
        "the URL is neither http or https without a password, nor ssh (ssh://user@host/path or user@host:path)"
    )]
    IllegalUrl,
    /// Git would not read it as a revision.
    #[error("{} is not a branch, tag or commit", clip(.0, 100))]
    IllegalRevision(String),
    /// The credentials have a line break.
    #[error("a credential holds a line break")]
    LineBreak,
    /// Git could not be run.
    #[error("git was not run")]
    NotRun(#[source] E),
    /// A file of the clone cannot be written.
    #[error("a file of the clone cannot be written")]
    Files(#[source] io::Error),
    /// Another process ended git.
    #[error("git was ended by signal {0}")]
    Killed(i32),
    /// Git or the server did not return the revision.
    #[error("{message}")]
    Refused {
        /// The kind of failure.
        refusal: Refusal,
        /// The repository, the problem, and git's message.
        message: String,
    },
    /// The commit id cannot be read.
    #[error("the commit is not known: {}", clip(.0, 80))]
    UnknownCommit(String),
}

impl<E: Error + 'static> FetchError<E> {
    /// The reason with which a run, a layer or a repository fails.
    ///
    /// # Errors
    /// The error of running git, which the caller must interpret.
    pub fn reason(&self) -> Result<Reason, &E> {
        Ok(match self {
            Self::NotRun(error) => return Err(error),
            Self::IllegalUrl => Reason::InvalidSpec,
            Self::IllegalRevision(_) => Reason::RevisionNotFound,
            Self::LineBreak => Reason::SourceUnauthorized,
            Self::Killed(_) => Reason::ToolKilled,
            Self::Files(error) if error.kind() == io::ErrorKind::StorageFull => Reason::DiskFull,
            Self::Files(error) if error.kind() == io::ErrorKind::NotADirectory => {
                Reason::SourceInvalid
            }
            Self::UnknownCommit(_) | Self::Files(_) => Reason::AgentFault,
            Self::Refused { refusal, .. } => match refusal {
                Refusal::Unauthorized => Reason::SourceUnauthorized,
                Refusal::HostKey => Reason::HostKeyNotKnown,
                Refusal::NoRepository => Reason::RepositoryNotFound,
                Refusal::NoRevision => Reason::RevisionNotFound,
                Refusal::Invalid => Reason::SourceInvalid,
                Refusal::DiskFull => Reason::DiskFull,
                Refusal::Unreachable => Reason::SourceUnreachable,
            },
        })
    }
}

/// The kind of a failed fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The server requires other credentials.
    Unauthorized,
    /// The host key differs from the known one, or none is known.
    HostKey,
    /// The repository does not exist.
    NoRepository,
    /// The revision does not exist.
    NoRevision,
    /// The certificate is not trusted, or the server redirects to another host or a forbidden transport.
    Invalid,
    /// The disk is full.
    DiskFull,
    /// Any other failure, mostly of the network: a bounded number of retries.
    Unreachable,
}

/// Texts in the output of git, their kind, and the message.
type Row = (&'static [&'static str], Refusal, &'static str);

/// The first row with a matching text counts.
const ROWS: &[Row] = &[
    (
        &["No user exists for uid"],
        Refusal::Invalid,
        "cannot be fetched by ssh: it runs as no user without a name in /etc/passwd, and the image has one for 65532",
    ),
    (
        &["Unable to negotiate", "Load key "],
        Refusal::Unauthorized,
        "cannot be asked with this key: ssh and the server have no algorithm in common that is still thought safe, or the key is damaged",
    ),
    (
        &[
            "error: 401",
            "error: 403",
            "Authentication failed",
            "could not read Username",
            "could not read Password",
            "Access denied",
            "Permission denied (",
            "Too many authentication failures",
        ],
        Refusal::Unauthorized,
        "wants other credentials",
    ),
    (
        &[
            "error: 404",
            "error: 410",
            "not found",
            "could not be found",
            "does not appear to be a git repository",
            "/info/refs not valid",
        ],
        Refusal::NoRepository,
        "is not a repository",
    ),
    (
        &[
            "couldn't find remote ref",
            "not our ref",
            "Remote branch",
            "reference is not a tree",
            "invalid refspec",
            "unadvertised object",
            "did not contain",
        ],
        Refusal::NoRevision,
        "has no such revision",
    ),
    (
        &["certificate", "SSL peer", "sslCAInfo", "CAfile"],
        Refusal::Invalid,
        "has a certificate that is not trusted (put its authority into ca.crt of the Secret)",
    ),
    (
        &[
            "error: 301",
            "error: 302",
            "error: 307",
            "error: 308",
            "unable to update url base from redirection",
        ],
        Refusal::Invalid,
        "redirects elsewhere; name the final URL",
    ),
    (
        &["mismatched algorithms"],
        Refusal::Invalid,
        "is a SHA-256 repository, which is not supported",
    ),
    (
        &["transport 'file' not allowed", "not allowed"],
        Refusal::Invalid,
        "leads to a transport that is not allowed",
    ),
    (
        &["No space left", "Disk quota exceeded"],
        Refusal::DiskFull,
        "does not fit on the pod's disk",
    ),
];

/// The same for `git lfs`.
const CONTENTS: &[Row] = &[
    (
        &["missing protocol", "unsupported protocol"],
        Refusal::Invalid,
        "is named by .lfsconfig with a URL that nothing is fetched from",
    ),
    (
        &[
            "uthentication required",
            "uthorization error",
            "redentials for",
            "error: 401",
            "error: 403",
            "could not read",
            "[403]",
            "[401]",
        ],
        Refusal::Unauthorized,
        "wants other credentials",
    ),
    (
        &["certificate", "x509"],
        Refusal::Invalid,
        "has a certificate that is not trusted (put its authority into ca.crt of the Secret)",
    ),
    (
        &["exit status", "Permission denied ("],
        Refusal::Unauthorized,
        "cannot be asked by ssh for large files",
    ),
    (
        &["No space left", "no space left", "quota exceeded"],
        Refusal::DiskFull,
        "gave more than fits on the pod's disk",
    ),
    (
        &[
            "[404]",
            "[410]",
            "does not exist",
            "not found",
            "Repository or object",
        ],
        Refusal::Invalid,
        "does not have them",
    ),
];

/// Prefixes of `git lfs` lines without a cause.
const IDLE: [&str; 3] = ["error: failed to fetch some objects", "fetch: ", "hint: "];

/// Git's last line when ssh has printed the cause before.
const AFTER_SSH: &str = "fatal: Could not read from remote repository";

/// Classifies git's output for a repository or another object; `revision` is the requested one.
pub fn refused<E: Error>(of: &str, revision: &str, ended: &Ended) -> FetchError<E> {
    if let Ended {
        signal: Some(signal),
        told: false,
        ..
    } = ended
    {
        return FetchError::Killed(*signal);
    }
    let (text, of) = (&ended.output, clip(of, 300));
    if text.contains(REFUSED) {
        return FetchError::Refused {
            refusal: Refusal::HostKey,
            message: host_key(text, &of),
        };
    }
    let known = ROWS
        .iter()
        .find(|row| row.0.iter().any(|needle| text.contains(needle)));
    let (refusal, what) = known.map_or((Refusal::Unreachable, "cannot be reached"), |row| {
        (row.1, row.2)
    });
    let revision = if refusal == Refusal::NoRevision {
        // A server finds a commit by its whole id only.
        let is_short =
            (4..40).contains(&revision.len()) && revision.bytes().all(|c| c.is_ascii_hexdigit());
        let short = if is_short {
            " (a commit needs its whole id)"
        } else {
            ""
        };
        format!(" {revision}{short}")
    } else {
        String::new()
    };
    let message = format!("{of} {what}{revision}: {}", clip(telling(text), 400));
    FetchError::Refused { refusal, message }
}

/// Classifies the output of `git lfs` for missing contents.
pub fn contents_refused<E: Error>(of: &str, ended: &Ended) -> FetchError<E> {
    if let Ended {
        signal: Some(signal),
        told: false,
        ..
    } = ended
    {
        return FetchError::Killed(*signal);
    }
    let text = &ended.output;
    let known = CONTENTS
        .iter()
        .find(|row| row.0.iter().any(|needle| text.contains(needle)));
    let (refusal, what) = known.map_or((Refusal::Unreachable, "cannot be reached"), |row| {
        (row.1, row.2)
    });
    // Skip lines that follow from the cause or have none.
    let idle = |line: &&str| line.is_empty() || IDLE.iter().any(|begin| line.starts_with(begin));
    let line = text
        .lines()
        .map(str::trim)
        .rfind(|line| !idle(line))
        .unwrap_or("git-lfs said nothing");
    FetchError::Refused {
        refusal,
        message: format!(
            "the server of {} {what}: {}",
            clip(of, 300),
            clip(line, 400)
        ),
    }
}

/// The most specific line: git's first fatal one, or ssh's last one when git adds nothing.
fn telling(text: &str) -> &str {
    let told = |line: &&str| !line.is_empty() && !line.starts_with("pawl: host key ");
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(told)
        .take_while(|line| !line.starts_with(AFTER_SSH))
        .collect();
    let fatal = lines.iter().find(|line| line.starts_with("fatal:"));
    let nothing = if text.contains(AFTER_SSH) {
        AFTER_SSH
    } else {
        "git said nothing"
    };
    fatal.or(lines.last()).copied().unwrap_or(nothing)
}

fn host_key(text: &str, of: &str) -> String {
    let changed = text.contains(CHANGED);
    let Some(HostKey {
        host,
        fingerprint,
        line,
    }) = HostKey::refused(text)
    else {
        return format!(
            "{of} cannot be asked: its host has a key that known_hosts refuses; nothing was sent to it"
        );
    };
    let (is, then) = if changed {
        (
            format!("{host} presented the key {fingerprint}, and known_hosts has another one"),
            "in place of the present one (the connection may be intercepted)",
        )
    } else {
        (
            format!("known_hosts has no key of {host}, which presented {fingerprint}"),
            "",
        )
    };
    let then = if then.is_empty() {
        String::new()
    } else {
        format!(" {then}")
    };
    format!(
        "{of} cannot be asked: {is}; nothing was sent to it. If the operator of that host confirms this fingerprint, put this line into \
         known_hosts of the Secret{then}: {line}"
    )
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn of(text: &str) -> (Refusal, String) {
        let ended = Ended {
            code: 128,
            output: text.to_owned(),
            ..Ended::default()
        };
        match refused::<io::Error>("http://h/r.git", "main", &ended) {
            FetchError::Refused { refusal, message } => (refusal, message),
            other => panic!("{text}: {other}"),
        }
    }

    #[test]
    fn short_id_of_a_commit_is_told_as_such() {
        let ended = Ended {
            code: 128,
            output: "fatal: couldn't find remote ref x".to_owned(),
            ..Ended::default()
        };
        let whole = "a".repeat(40);
        for (revision, is_short) in [("1a2b3c4", true), (&*whole, false), ("main", false)] {
            let error = refused::<io::Error>("http://h/r.git", revision, &ended).to_string();
            assert_eq!(error.contains("needs its whole id"), is_short, "{error}");
        }
    }

    #[test]
    fn git_errors_are_classified() {
        let rows = [
            (
                "fatal: unable to access 'http://h/r.git/': Could not resolve host: h",
                Refusal::Unreachable,
            ),
            (
                "fatal: unable to access 'http://h/r.git/': Failed to connect to h port 80: Connection refused",
                Refusal::Unreachable,
            ),
            (
                "fatal: unable to access 'http://h/': The requested URL returned error: 503",
                Refusal::Unreachable,
            ),
            (
                "fatal: could not read Username for 'http://h': terminal prompts disabled",
                Refusal::Unauthorized,
            ),
            (
                "fatal: unable to access 'http://h/': The requested URL returned error: 403",
                Refusal::Unauthorized,
            ),
            (
                "fatal: write error: No space left on device",
                Refusal::DiskFull,
            ),
            (
                "fatal: repository 'http://h/r.git/' not found",
                Refusal::NoRepository,
            ),
            ("fatal: couldn't find remote ref nope", Refusal::NoRevision),
            (
                "fatal: unable to access 'https://h/': server certificate verification failed. CAfile: none CRLfile: none",
                Refusal::Invalid,
            ),
            (
                "fatal: unable to access 'https://h/': The requested URL returned error: 301",
                Refusal::Invalid,
            ),
        ];
        for (text, expected) in rows {
            let (refusal, message) = of(text);
            assert_eq!(refusal, expected, "{text}");
            assert!(
                message.contains("http://h/r.git") && message.contains(text),
                "{message}"
            );
        }
        let killed = Ended {
            code: 137,
            signal: Some(9),
            ..Ended::default()
        };
        assert!(matches!(
            refused::<io::Error>("u", "main", &killed),
            FetchError::Killed(9)
        ));
    }

    #[test]
    fn lfs_errors_are_classified() {
        let end = "error: failed to fetch some objects from 'https://h/r.git/info/lfs'";
        let rows = [
            (
                "batch response: Post \"https://h/r.git/info/lfs/objects/batch\": dial tcp: connection refused",
                Refusal::Unreachable,
            ),
            (
                "batch response: Fatal error: Server error: https://h/r.git/info/lfs/objects/batch",
                Refusal::Unreachable,
            ),
            (
                "batch response: Git credentials for https://h/r.git not found.",
                Refusal::Unauthorized,
            ),
            (
                "batch request: missing protocol: \"file:///srv\"",
                Refusal::Invalid,
            ),
            ("batch request: exit status 1", Refusal::Unauthorized),
            (
                "[4d7a] Object does not exist on the server: [404] Object does not exist on the server",
                Refusal::Invalid,
            ),
        ];
        for (text, expected) in rows {
            let ended = Ended {
                code: 2,
                output: format!("fetch: Fetching reference HEAD\n{text}\n{end}\n"),
                ..Ended::default()
            };
            let FetchError::<io::Error>::Refused { refusal, message } =
                contents_refused("https://h/r.git", &ended)
            else {
                panic!("{text}")
            };
            assert_eq!(refusal, expected, "{text}");
            assert!(
                message.starts_with("the server of https://h/r.git ") && message.ends_with(text),
                "{message}"
            );
        }
        let killed = Ended {
            code: 137,
            signal: Some(9),
            ..Ended::default()
        };
        assert!(matches!(
            contents_refused::<io::Error>("u", &killed),
            FetchError::Killed(9)
        ));
    }

    #[test]
    fn ssh_errors_are_classified() {
        let end = "fatal: Could not read from remote repository.\n\nPlease make sure you have the correct access rights\n\
            and the repository exists.";
        let rows = [
            (
                "git@h: Permission denied (publickey).",
                Refusal::Unauthorized,
            ),
            ("No user exists for uid 4242", Refusal::Invalid),
            ("ERROR: Repository not found.", Refusal::NoRepository),
            (
                "fatal: '~/none.git' does not appear to be a git repository",
                Refusal::NoRepository,
            ),
            (
                "ssh: connect to host h port 22: Connection timed out",
                Refusal::Unreachable,
            ),
            (
                "ssh: Could not resolve hostname h: Name or service not known",
                Refusal::Unreachable,
            ),
        ];
        for (text, expected) in rows {
            let (refusal, message) = of(&format!(
                "pawl: host key h ssh-ed25519 SHA256:x AAAA\n{text}\n{end}"
            ));
            assert_eq!(refusal, expected, "{text}");
            assert!(message.ends_with(text), "{message}");
        }
    }

    #[test]
    fn changed_host_key_is_reported_with_its_line() {
        let shown =
            "pawl: host key h NONE NONE NONE\npawl: host key h ssh-ed25519 SHA256:abc AAAA\n";
        let (refusal, message) = of(&format!(
            "{shown}No ED25519 host key is known for h\n{REFUSED}.\n"
        ));
        assert_eq!(refusal, Refusal::HostKey);
        assert!(
            message.contains(
                "known_hosts has no key of h, which presented SHA256:abc; nothing was sent"
            ),
            "{message}"
        );
        assert!(
            message.ends_with("known_hosts of the Secret: h ssh-ed25519 AAAA"),
            "{message}"
        );
        let (_, message) = of(&format!("{shown}@ WARNING: {CHANGED}! @\n{REFUSED}.\n"));
        assert!(
            message.contains("h presented the key SHA256:abc, and known_hosts has another one"),
            "{message}"
        );
        assert!(message.contains("in place of the present one"), "{message}");
        assert!(
            of(&format!("{REFUSED}.\n"))
                .1
                .contains("a key that known_hosts refuses")
        );
    }
}
