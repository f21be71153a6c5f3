//! Fetches a git repository with the `git` binary. Repository, revision and answers of the server are hostile input: nothing but
//! http and https, no hooks, no prompts, no helpers, no submodules; credentials in the environment, for one host.

use std::{
    error::Error,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use crds::text::clip;

/// How `git` is run.
pub trait Git {
    /// Why it could not be run at all.
    type Error: Error + Send + Sync + 'static;

    /// Runs `git` in a directory, with exactly this environment, to its end.
    fn run_git(
        &self,
        args: &[&str],
        env: &[(OsString, OsString)],
        dir: &Path,
    ) -> impl Future<Output = Result<Ended, Self::Error>> + Send;
}

/// How a command of git ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Exit code; 128 and the signal's number when a signal ended it.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether whoever ran it told it to end.
    pub told: bool,
    /// The last lines that it printed, without secrets.
    pub output: String,
}

/// Why a revision is not on disk.
#[derive(Debug, thiserror::Error)]
pub enum FetchError<E: Error + 'static> {
    /// No such URL is fetched from.
    #[error("the URL is not an http or https URL without credentials")]
    IllegalUrl,
    /// Git would read it as something else than a revision.
    #[error("{} is not a branch, tag or commit", clip(.0, 100))]
    IllegalRevision(String),
    /// The credentials would be more than one header.
    #[error("a credential holds a line break")]
    LineBreak,
    /// Git could not be run.
    #[error("git was not run")]
    NotRun(#[source] E),
    /// Somebody else ended git.
    #[error("git was ended by signal {0}")]
    Killed(i32),
    /// Git, or the server, did not give the revision.
    #[error("{message}")]
    Refused {
        /// Of which kind.
        refusal: Refusal,
        /// The repository, what is wrong with it, and git's own words.
        message: String,
    },
    /// What was checked out cannot be named.
    #[error("the commit is not known: {}", clip(.0, 80))]
    UnknownCommit(String),
}

/// Why git, or the server, did not give a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It wants other credentials.
    Unauthorized,
    /// There is no repository.
    NoRepository,
    /// The repository has no such revision.
    NoRevision,
    /// The server's certificate is not trusted, it redirects elsewhere, or leads to a transport that is not allowed.
    Invalid,
    /// The disk is full.
    DiskFull,
    /// Anything else, which is most often the network, and worth a bounded number of tries.
    Unreachable,
}

/// Who asks the server, by the keys that Flux and `kubernetes.io/basic-auth` use in a Secret.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// `bearerToken`.
    Bearer(String),
    /// `username`, which may be empty, and `password`.
    Basic(String, String),
}

impl Credentials {
    /// The credentials of a Secret, of which `key` gives the values; none when it has neither token nor password. A line break at
    /// the end of a value is no part of it.
    pub fn of(key: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let key = |name| key(name).map(|value| value.trim_end_matches(['\n', '\r']).to_owned());
        match (key("bearerToken"), key("username"), key("password")) {
            (Some(token), _, _) => Some(Self::Bearer(token)),
            (None, user, Some(password)) => Some(Self::Basic(user.unwrap_or_default(), password)),
            (None, _, None) => None,
        }
    }

    /// The texts that nobody may see.
    pub fn secrets(&self) -> Vec<String> {
        match self {
            Self::Bearer(token) => vec![token.clone()],
            Self::Basic(user, password) => vec![password.clone(), format!("{user}:{password}")],
        }
    }

    fn header(&self) -> String {
        match self {
            Self::Bearer(token) => format!("Authorization: Bearer {token}"),
            Self::Basic(user, password) => {
                format!("Authorization: Basic {}", STANDARD.encode(format!("{user}:{password}")))
            }
        }
    }
}

/// One revision of a repository, and what the server is asked with.
#[derive(Clone)]
pub struct Repository {
    url: String,
    revision: String,
    header: Option<String>,
    authority: Option<PathBuf>,
}

impl Repository {
    /// A revision that anybody may have.
    ///
    /// # Errors
    /// When URL or revision are none that git is given.
    pub fn new<E: Error>(url: &str, revision: &str) -> Result<Self, FetchError<E>> {
        if !is_legal_url(url) {
            return Err(FetchError::IllegalUrl);
        }
        if !is_legal_revision(revision) {
            return Err(FetchError::IllegalRevision(revision.to_owned()));
        }
        Ok(Self { url: url.to_owned(), revision: revision.to_owned(), header: None, authority: None })
    }

    /// Asks with credentials, that host alone.
    ///
    /// # Errors
    /// When a line break stands within them.
    pub fn with_credentials<E: Error>(mut self, credentials: &Credentials) -> Result<Self, FetchError<E>> {
        // A password is encoded, so that only a token can break the header.
        let header = credentials.header();
        if header.contains(['\n', '\r', '\0']) {
            return Err(FetchError::LineBreak);
        }
        self.header = Some(header);
        Ok(self)
    }

    /// Trusts the authorities of a file in PEM, in place of those of the system.
    #[must_use]
    pub fn with_authority(mut self, file: PathBuf) -> Self {
        self.authority = Some(file);
        self
    }

    /// Fetches the revision into an empty directory; the full id of the commit. `env` is what git is given besides what it needs here:
    /// where it lives, and a proxy, if there is one.
    ///
    /// # Errors
    /// When the revision is not there afterwards. The directory may hold a part of it.
    pub async fn fetch<G: Git>(
        &self,
        git: &G,
        mut env: Vec<(OsString, OsString)>,
        root: &Path,
    ) -> Result<String, FetchError<G::Error>> {
        env.extend(self.env());
        let run = async |args: &[&str]| git.run_git(args, &env, root).await.map_err(FetchError::NotRun);
        let fail = |ended: &Ended| self.refused(ended);
        let init = run(&["init", "--quiet", "--template=", "."]).await?;
        if init.code != 0 {
            return Err(fail(&init));
        }
        let (url, revision) = (self.url.as_str(), self.revision.as_str());
        let shallow =
            run(&["fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--", url, revision]).await?;
        let mut target = "FETCH_HEAD";
        if shallow.code != 0 {
            // Some servers give no commit that is not the head of a branch, and some give no shallow ones.
            let said = &shallow.output;
            let worth_it = !shallow.told && (is_commit(revision) && is_refused(said) || said.contains("shallow"));
            if !worth_it {
                return Err(fail(&shallow));
            }
            let refs = ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"];
            let full: Vec<&str> = if is_commit(revision) {
                ["fetch", "--quiet", "--no-recurse-submodules", "--", url].into_iter().chain(refs).collect()
            } else {
                vec!["fetch", "--quiet", "--no-recurse-submodules", "--", url, revision]
            };
            let full = run(&full).await?;
            if full.code != 0 {
                return Err(fail(&full));
            }
            if is_commit(revision) {
                target = revision;
            }
        }
        let checkout = run(&["checkout", "--quiet", "--detach", "--force", target, "--"]).await?;
        if checkout.code != 0 {
            return Err(if is_commit(target) && !checkout.told {
                let message = format!("there is no commit {target} in {url}");
                FetchError::Refused { refusal: Refusal::NoRevision, message }
            } else {
                fail(&checkout)
            });
        }
        // A detached head is the commit itself.
        let head = fs::read_to_string(root.join(".git/HEAD")).unwrap_or_default();
        let commit = head.trim().to_owned();
        if is_commit(&commit) { Ok(commit) } else { Err(FetchError::UnknownCommit(commit)) }
    }

    fn env(&self) -> Vec<(OsString, OsString)> {
        let mut config: Vec<(String, String)> = [
            ("protocol.allow", "never"),
            ("protocol.http.allow", "always"),
            ("protocol.https.allow", "always"),
            ("core.hooksPath", "/dev/null"),
            ("core.fsmonitor", "false"),
            ("credential.helper", ""),
            ("submodule.recurse", "false"),
            ("gc.auto", "0"),
            ("maintenance.auto", "false"),
            ("advice.detachedHead", "false"),
            ("init.defaultBranch", "pawl"),
            ("http.lowSpeedLimit", "1"),
            ("http.lowSpeedTime", "60"),
            ("safe.directory", "*"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
        if let Some(header) = &self.header {
            config.push((format!("http.{}.extraHeader", origin(&self.url)), header.clone()));
            // Git would send the header to wherever the server redirects it.
            config.push(("http.followRedirects".into(), "false".into()));
        }
        let fixed = [
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_ASKPASS", ""),
            ("SSH_ASKPASS", ""),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_LFS_SKIP_SMUDGE", "1"),
            ("LC_ALL", "C"),
        ];
        let mut env: Vec<(OsString, OsString)> = fixed.map(|(k, v)| (k.into(), v.into())).into();
        // By the name that goes before all others: the operator's authorities are inherited by it.
        env.extend(self.authority.iter().map(|file| ("GIT_SSL_CAINFO".into(), file.into())));
        env.push(("GIT_CONFIG_COUNT".into(), config.len().to_string().into()));
        for (i, (key, value)) in config.into_iter().enumerate() {
            env.push((format!("GIT_CONFIG_KEY_{i}").into(), key.into()));
            env.push((format!("GIT_CONFIG_VALUE_{i}").into(), value.into()));
        }
        env
    }

    /// What git's words say. The first row of which a text is found decides.
    fn refused<E: Error>(&self, ended: &Ended) -> FetchError<E> {
        const ROWS: &[(&[&str], Refusal, &str)] = &[
            (
                &[
                    "error: 401",
                    "error: 403",
                    "Authentication failed",
                    "could not read Username",
                    "could not read Password",
                    "Access denied",
                ],
                Refusal::Unauthorized,
                "wants other credentials",
            ),
            (
                &["error: 404", "error: 410", "not found", "does not appear to be a git repository", "/info/refs not valid"],
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
                &["error: 301", "error: 302", "error: 307", "error: 308", "unable to update url base from redirection"],
                Refusal::Invalid,
                "redirects elsewhere; name the final URL",
            ),
            (&["transport 'file' not allowed", "not allowed"], Refusal::Invalid, "leads to a transport that is not allowed"),
            (&["No space left", "Disk quota exceeded"], Refusal::DiskFull, "does not fit on the pod's disk"),
        ];
        if let Ended { signal: Some(signal), told: false, .. } = ended {
            return FetchError::Killed(*signal);
        }
        let text = &ended.output;
        let line = text.lines().map(str::trim).filter(|l| !l.is_empty());
        let line =
            line.clone().find(|l| l.starts_with("fatal:")).or_else(|| line.clone().next_back()).unwrap_or("git said nothing");
        let known = ROWS.iter().find(|row| row.0.iter().any(|needle| text.contains(needle)));
        let (refusal, what) = known.map_or((Refusal::Unreachable, "cannot be reached"), |row| (row.1, row.2));
        let of = if refusal == Refusal::NoRevision { format!(" {}", self.revision) } else { String::new() };
        let message = format!("{} {what}{of}: {}", clip(&self.url, 300), clip(line, 400));
        FetchError::Refused { refusal, message }
    }
}

/// `scheme://host:port/` of a URL.
fn origin(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    format!("{scheme}://{host}/")
}

fn is_legal_url(url: &str) -> bool {
    let legal = |c: char| c.is_ascii_graphic() && !matches!(c, '@' | '\\' | '"' | '\'' | '`' | '<' | '>' | '^' | '{' | '|' | '}');
    let scheme = url.starts_with("https://") || url.starts_with("http://");
    scheme && url.chars().all(legal) && !origin(url).ends_with(":///")
}

/// As `git check-ref-format`, and no refspec.
fn is_legal_revision(revision: &str) -> bool {
    let legal = |c: char| c.is_ascii_graphic() && !matches!(c, ':' | '^' | '~' | '?' | '*' | '[' | '\\');
    !revision.is_empty()
        && revision.chars().all(legal)
        && !revision.starts_with(['-', '+', '/', '.'])
        && !revision.ends_with(['/', '.'])
        && !["..", "@{", "//", "/."].iter().any(|part| revision.contains(part))
        && revision != "@"
        && !format!("{revision}/").contains(".lock/")
}

fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.chars().all(|c| c.is_ascii_hexdigit())
}

fn is_refused(text: &str) -> bool {
    ["not our ref", "unadvertised object", "couldn't find remote ref", "does not allow request", "remote error", "shallow"]
        .iter()
        .any(|part| text.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io, sync::Mutex};

    fn repository(url: &str, revision: &str) -> Repository {
        Repository::new::<io::Error>(url, revision).unwrap()
    }

    #[test]
    fn revisions_that_git_would_read_as_something_else_are_refused() {
        for revision in ["main", "HEAD", "v1.2.3", "feature/a+b", "refs/pull/1/head", &"a".repeat(40)] {
            assert!(is_legal_revision(revision), "{revision}");
        }
        for revision in [
            "",
            "-x",
            "--upload-pack=touch /tmp/x",
            "+main",
            "main:refs/heads/x",
            "a..b",
            "a@{1}",
            "a b",
            "*",
            "a.lock/b",
            "^main",
            "a~1",
            "@",
            ".hidden",
            "a/.b",
            "a\nb",
        ] {
            assert!(!is_legal_revision(revision), "{revision}");
        }
    }

    #[test]
    fn urls_are_http_without_credentials() {
        for url in ["https://example.org/a.git", "http://10.0.0.1:8080/r"] {
            assert!(is_legal_url(url), "{url}");
        }
        for url in ["ssh://h/x", "file:///etc", "https://u:p@h/x", "https://", "ext::sh -c x", "https://h/a b", "--upload-pack=x"]
        {
            assert!(!is_legal_url(url), "{url}");
        }
        assert_eq!(origin("http://h:1/a/b"), "http://h:1/");
    }

    #[test]
    fn words_of_git() {
        let git = repository("http://h/r.git", "main");
        let rows = [
            ("fatal: unable to access 'http://h/r.git/': Could not resolve host: h", Refusal::Unreachable),
            (
                "fatal: unable to access 'http://h/r.git/': Failed to connect to h port 80: Connection refused",
                Refusal::Unreachable,
            ),
            ("fatal: unable to access 'http://h/': The requested URL returned error: 503", Refusal::Unreachable),
            ("fatal: could not read Username for 'http://h': terminal prompts disabled", Refusal::Unauthorized),
            ("fatal: unable to access 'http://h/': The requested URL returned error: 403", Refusal::Unauthorized),
            ("fatal: write error: No space left on device", Refusal::DiskFull),
            ("fatal: repository 'http://h/r.git/' not found", Refusal::NoRepository),
            ("fatal: couldn't find remote ref nope", Refusal::NoRevision),
            (
                "fatal: unable to access 'https://h/': server certificate verification failed. CAfile: none CRLfile: none",
                Refusal::Invalid,
            ),
            ("fatal: unable to access 'https://h/': The requested URL returned error: 301", Refusal::Invalid),
        ];
        for (text, expected) in rows {
            let ended = Ended { code: 128, output: text.to_owned(), ..Ended::default() };
            let FetchError::<io::Error>::Refused { refusal, message } = git.refused(&ended) else { panic!("{text}") };
            assert_eq!(refusal, expected, "{text}");
            assert!(message.contains("http://h/r.git"), "{message}");
        }
        let killed = Ended { code: 137, signal: Some(9), ..Ended::default() };
        assert!(matches!(git.refused::<io::Error>(&killed), FetchError::Killed(9)));
    }

    #[test]
    fn credentials_are_those_of_one_host_and_one_header() {
        let of = |pairs: &[(&str, &str)]| {
            Credentials::of(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(of(&[("username", "u"), ("ca.crt", "x")]).is_none());
        let basic = of(&[("username", "u\n"), ("password", "p\n")]).unwrap();
        assert_eq!(basic.secrets(), ["p", "u:p"]);
        let token = of(&[("bearerToken", "t"), ("password", "p")]).unwrap();
        let git = |credentials| repository("https://h:1/r.git", "main").with_credentials::<io::Error>(credentials);
        for (credentials, header) in [(&basic, "Authorization: Basic dTpw"), (&token, "Authorization: Bearer t")] {
            let env = git(credentials).unwrap().env();
            let value = |name: &str| env.iter().find(|(key, _)| key == name).map(|(_, value)| value.to_str().unwrap());
            assert_eq!(value("GIT_CONFIG_KEY_14"), Some("http.https://h:1/.extraHeader"));
            assert_eq!((value("GIT_CONFIG_VALUE_14"), value("GIT_CONFIG_COUNT")), (Some(header), Some("16")));
            assert_eq!(value("GIT_CONFIG_KEY_15"), Some("http.followRedirects"));
        }
        let broken = of(&[("bearerToken", "t\nX: y")]).unwrap();
        assert!(matches!(git(&broken), Err(FetchError::LineBreak)));
    }

    /// Answers each command with the first row whose word it has, and keeps what it was asked.
    struct Played<'a>(&'a [(&'a str, &'a str)], Mutex<Vec<String>>);

    impl Git for Played<'_> {
        type Error = io::Error;

        async fn run_git(&self, args: &[&str], _env: &[(OsString, OsString)], dir: &Path) -> io::Result<Ended> {
            let line = args.join(" ");
            self.1.lock().unwrap().push(line.clone());
            if args[0] == "checkout" {
                fs::create_dir_all(dir.join(".git")).unwrap();
                fs::write(dir.join(".git/HEAD"), "c".repeat(40)).unwrap();
            }
            let output = self.0.iter().find(|(word, _)| line.contains(word)).map_or("", |(_, said)| said);
            Ok(Ended { code: if output.is_empty() { 0 } else { 128 }, output: output.to_owned(), ..Ended::default() })
        }
    }

    #[tokio::test]
    async fn a_commit_that_a_server_does_not_advertise_is_fetched_with_all_branches() {
        let dir = tempfile::tempdir().unwrap();
        let commit = "c".repeat(40);
        let asked = async |revision: &str, answers: &[(&str, &str)]| {
            let played = Played(answers, Mutex::default());
            let fetched = repository("http://h/r.git", revision).fetch(&played, Vec::new(), dir.path()).await;
            (fetched, played.1.into_inner().unwrap())
        };
        let (fetched, lines) = asked("main", &[]).await;
        assert_eq!((fetched.unwrap(), lines.len()), (commit.clone(), 3));
        assert!(lines[2].contains("FETCH_HEAD"), "{lines:?}");
        let (fetched, lines) = asked(&commit, &[("--depth=1", "fatal: remote error: upload-pack: not our ref c")]).await;
        assert_eq!((fetched.unwrap(), lines.len()), (commit.clone(), 4));
        assert!(lines[2].contains("+refs/heads/*") && lines[3].contains(&commit), "{lines:?}");
        let (fetched, lines) = asked("main", &[("--depth=1", "fatal: couldn't find remote ref main")]).await;
        assert!(matches!(fetched, Err(FetchError::Refused { refusal: Refusal::NoRevision, .. })), "{lines:?}");
        assert_eq!(lines.len(), 2, "nothing else is asked");
    }
}
