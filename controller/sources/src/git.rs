//! Runs git with a timeout, bounded memory and output, redacted secrets, and in a process group that is killed with it.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use source::{Ended, Git, Repository, authorities};
use std::os::unix::process::ExitStatusExt as _;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::{ChildStdin, Command},
};

use crate::proxy::Outbound;

/// Environment variables passed to git and ssh.
const INHERITED: [&str; 3] = ["PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"];
/// Those of the operator's proxies, for servers that one serves, by the name that git and git-lfs both read. Without the exceptions: a redirect to one would be
/// a direct connection.
const PROXY: [(&str, [&str; 4]); 2] = [
    (
        "http_proxy",
        ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"],
    ),
    (
        "https_proxy",
        ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"],
    ),
];
/// Additional environment of local commands. It disables configuration files and git's check of the directory's owner.
const LOCAL: [(&str, &str); 5] = [
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("LC_ALL", "C"),
];
/// Settings of all commands, with which honest repositories stay far below the limit of memory: git streams large files, caches less, and starts
/// no thread for each processor of the node.
const FRUGAL: [(&str, &str); 4] = [
    ("core.bigFileThreshold", "16m"),
    ("core.deltaBaseCacheLimit", "32m"),
    ("pack.threads", "2"),
    ("grep.threads", "2"),
];
/// Starts git with at most 512 MiB of private memory for each process (`RLIMIT_DATA`). Mapped packs do not count. A pack of some hundred bytes may ask for any
/// amount, by deltas of deltas.
const BOUNDED: &str = r#"ulimit -d 524288 && exec git "$@""#;
/// Messages of git, libcurl, ssh and git-lfs at that limit.
const NO_MEMORY: [&str; 3] = [
    "out of memory",
    "cannot allocate memory",
    "unable to create thread",
];
/// Maximum size of stored standard error, in bytes.
const SAID: usize = 64 << 10;
/// Maximum size of standard error, in bytes: a server may print on it for as long as git runs.
const MAX_SAID: usize = 16 << 20;
/// Maximum size of standard output when it is not needed, in bytes.
const LITTLE: usize = 64 << 10;

/// A bound of the output of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Limit {
    #[error("{0} bytes")]
    Bytes(usize),
    #[error("{0} files and directories")]
    Records(usize),
    #[error("{0} bytes of messages")]
    Messages(usize),
}

#[derive(Debug, thiserror::Error)]
pub enum GitError {
    #[error("git cannot be started: {0}")]
    NotStarted(#[source] io::Error),
    #[error("`git {command}` was ended: it took longer than {} s", deadline.as_secs())]
    TooLong { command: String, deadline: Duration },
    #[error("`git {0}` was ended: it printed more than {1}")]
    TooMuch(String, Limit),
    #[error(
        "`git {0}` was ended: it needs more than 512 MiB of memory, which is all that a process of git may take; keep large files in Git LFS, or out \
         of the repository"
    )]
    NoMemory(String),
    #[error(
        "it was not fetched: its mirror would be larger than {0} MiB, which is all that mirrors may take (--mirrors-mib)"
    )]
    TooLarge(u64),
}

/// How much a command may print before it is ended.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    pub bytes: usize,
    /// Records that end with NUL.
    pub records: usize,
}

impl From<usize> for Most {
    fn from(bytes: usize) -> Self {
        Self {
            bytes,
            records: usize::MAX,
        }
    }
}

/// How to run git.
#[derive(Clone, Debug)]
pub struct Commands {
    inherited: Vec<(OsString, OsString)>,
    /// The way to servers; direct when `None`.
    pub outbound: Option<Outbound>,
    deadline: Duration,
    secrets: Vec<String>,
}

/// The output and the exit of a command.
#[derive(Debug)]
pub struct Output {
    /// The exit, with the standard error.
    pub ended: Ended,
    pub stdout: Vec<u8>,
}

impl Commands {
    /// Runs git with this private home directory and this timeout per command.
    pub fn new(home: &Path, deadline: Duration) -> Self {
        let mut inherited = from_env(&INHERITED);
        inherited.push(("HOME".into(), home.into()));
        Self {
            inherited,
            outbound: None,
            deadline,
            secrets: Vec::new(),
        }
    }

    /// Looks for git, ssh and git-lfs in these directories instead.
    #[must_use]
    pub fn with_path(mut self, path: &str) -> Self {
        self.inherited.retain(|(name, _)| name != "PATH");
        self.inherited.push(("PATH".into(), path.into()));
        self
    }

    /// Trusts exactly the certificate authorities in a file.
    #[must_use]
    pub fn trusting(mut self, file: &Path) -> Self {
        authorities::trust(&mut self.inherited, file);
        self
    }

    /// Redacts these texts from all output.
    #[must_use]
    pub fn without(&self, secrets: impl IntoIterator<Item = String>) -> Self {
        let secrets = secrets
            .into_iter()
            .filter(|secret| secret.len() > 2)
            .collect();
        Self {
            secrets,
            ..self.clone()
        }
    }

    /// The environment of git for requests of a repository to a URL.
    pub fn towards(&self, url: &str, repository: &Repository) -> Vec<(OsString, OsString)> {
        let mut env = self.inherited.clone();
        let proxy = self.outbound.as_ref().and_then(|way| way.proxy(url));
        if proxy.is_none() {
            let own = self.outbound.as_ref().map(Outbound::url);
            env.extend(proxies(own.as_deref(), |name| std::env::var_os(name)));
        }
        let frugal = FRUGAL.map(|(key, value)| (key, value.to_owned()));
        let more = frugal
            .into_iter()
            .chain(proxy.map(|proxy| ("http.proxy", proxy)));
        repository.env(env, &more.collect::<Vec<_>>())
    }

    /// The environment of local commands, which contact no server.
    pub fn local(&self) -> Vec<(OsString, OsString)> {
        let local = LOCAL.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let config = [("safe.directory", "*")].into_iter().chain(FRUGAL);
        let config = config.enumerate().flat_map(|(i, (key, value))| {
            [
                (format!("GIT_CONFIG_KEY_{i}").into(), key.into()),
                (format!("GIT_CONFIG_VALUE_{i}").into(), value.into()),
            ]
        });
        let count = (FRUGAL.len() + 1).to_string();
        let mut env = self.inherited.clone();
        env.extend(local.into_iter().chain(config));
        env.push(("GIT_CONFIG_COUNT".into(), count.into()));
        env
    }

    /// A local git command without arguments, for callers that run it themselves.
    pub fn command(&self) -> std::process::Command {
        let mut command = bounded();
        command.env_clear().envs(self.local());
        command
    }

    /// Runs git in a directory, with exactly this environment and input, to its end, or until it prints more than `most`.
    ///
    /// # Errors
    /// When it did not finish.
    pub async fn output(
        &self,
        args: &[&str],
        env: &[(OsString, OsString)],
        dir: &Path,
        input: Vec<u8>,
        most: impl Into<Most>,
    ) -> Result<Output, GitError> {
        let most = most.into();
        let name = || {
            let mut words = args.iter().copied();
            let first = words.find(|word| !word.starts_with('-') && !word.contains('='));
            first.unwrap_or_default().to_owned()
        };
        let mut command = Command::from(bounded());
        command
            .args(args)
            .env_clear()
            .envs(env.iter().map(|(name, value)| (name, value)))
            .current_dir(dir)
            .process_group(0);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(GitError::NotStarted)?;
        // Dropping this value kills git's children: ssh and helpers.
        let _group = Group(child.id());
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // The first error ends git. A command that exits early does not read its input; its own error is more useful than that of `give`.
        let whole = async {
            tokio::try_join!(
                async {
                    let _ = give(stdin, &input).await;
                    Ok(())
                },
                up_to(stdout, most),
                tail(stderr),
                async { child.wait().await.map_err(Stop::Io) }
            )
        };
        let ended = tokio::time::timeout(self.deadline, whole).await;
        let ended = ended.map_err(|_| GitError::TooLong {
            command: name(),
            deadline: self.deadline,
        })?;
        let ((), stdout, said, status) = ended.map_err(|stop| match stop {
            Stop::Io(error) => GitError::NotStarted(error),
            Stop::TooMuch(limit) => GitError::TooMuch(name(), limit),
        })?;
        let ended = self.ended(status, &said);
        if ended.code != 0 && lacks_memory(&ended.output) {
            return Err(GitError::NoMemory(name()));
        }
        Ok(Output { ended, stdout })
    }

    fn ended(&self, status: ExitStatus, said: &[u8]) -> Ended {
        let signal = status.signal();
        let code = status
            .code()
            .unwrap_or_else(|| 128 + signal.unwrap_or_default());
        let said = String::from_utf8_lossy(said);
        let output = self.secrets.iter().fold(said.into_owned(), |text, secret| {
            text.replace(secret.as_str(), "(sensitive value)")
        });
        Ended {
            code,
            signal,
            told: false,
            output,
        }
    }
}

impl Git for Commands {
    type Error = GitError;

    async fn run_git(
        &self,
        args: &[&str],
        env: &[(OsString, OsString)],
        dir: &Path,
    ) -> Result<Ended, GitError> {
        Ok(self.output(args, env, dir, Vec::new(), LITTLE).await?.ended)
    }
}

/// Git, whose arguments follow.
fn bounded() -> std::process::Command {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", BOUNDED, "git"]);
    command
}

/// Whether a process here, not the server, lacks memory.
fn lacks_memory(said: &str) -> bool {
    let own = said
        .lines()
        .filter(|line| !line.starts_with("remote:") && !line.contains("remote error:"));
    own.map(str::to_lowercase)
        .any(|line| NO_MEMORY.iter().any(|text| line.contains(text)))
}

/// The set ones of these environment variables.
fn from_env(names: &[&str]) -> Vec<(OsString, OsString)> {
    names
        .iter()
        .filter_map(|name| Some((name.into(), std::env::var_os(name)?)))
        .collect()
}

/// The proxy of each scheme: the operator's, else Pawl's own, since a server behind the one may lead to a URL of the other scheme.
fn proxies(
    own: Option<&str>,
    set: impl Fn(&str) -> Option<OsString>,
) -> impl Iterator<Item = (OsString, OsString)> {
    PROXY.into_iter().filter_map(move |(name, names)| {
        let operators = names
            .iter()
            .find_map(|name| set(name).filter(|it| !it.is_empty()));
        Some((name.into(), operators.or_else(|| own.map(Into::into))?))
    })
}

/// A process group that is killed on drop.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(id) = self.0.and_then(|id| i32::try_from(id).ok()) {
            // Normally the group is already empty.
            let _ = killpg(Pid::from_raw(id), Signal::SIGKILL);
        }
    }
}

async fn give(stdin: Option<ChildStdin>, input: &[u8]) -> io::Result<()> {
    match stdin {
        Some(mut stdin) => stdin.write_all(input).await,
        None => Ok(()),
    }
}

/// Why a stream is not read to its end.
enum Stop {
    Io(io::Error),
    TooMuch(Limit),
}

/// The whole stream.
async fn up_to(stream: Option<impl AsyncRead + Unpin>, most: Most) -> Result<Vec<u8>, Stop> {
    let (mut all, mut piece, mut records) = (Vec::new(), vec![0; 64 << 10], 0);
    let Some(mut stream) = stream else {
        return Ok(all);
    };
    loop {
        let count = stream.read(&mut piece).await.map_err(Stop::Io)?;
        let new = piece.get(..count).unwrap_or_default();
        if new.is_empty() {
            return Ok(all);
        }
        all.extend_from_slice(new);
        records += new.split(|byte| *byte == 0).count() - 1;
        if all.len() > most.bytes {
            return Err(Stop::TooMuch(Limit::Bytes(most.bytes)));
        }
        if records > most.records {
            return Err(Stop::TooMuch(Limit::Records(most.records)));
        }
    }
}

/// The end of the stream.
async fn tail(stream: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, Stop> {
    let (mut kept, mut piece, mut all) = (Vec::new(), vec![0; 4 << 10], 0);
    let Some(mut stream) = stream else {
        return Ok(kept);
    };
    while let Ok(count @ 1..) = stream.read(&mut piece).await {
        all += count;
        if all > MAX_SAID {
            return Err(Stop::TooMuch(Limit::Messages(MAX_SAID)));
        }
        kept.extend_from_slice(piece.get(..count).unwrap_or_default());
        if kept.len() > 2 * SAID {
            kept.drain(..kept.len() - SAID);
        }
    }
    Ok(kept)
}

/// Size of all files below a directory, in bytes. Unreadable files count as 0.
pub fn size(dir: &Path) -> u64 {
    let (mut all, mut dirs) = (0, vec![PathBuf::from(dir)]);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => dirs.push(entry.path()),
                Ok(meta) => all += meta.len(),
                Err(_) => {}
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use crds::Reason;

    use super::*;
    use crate::failure::Problem;

    /// A pack of 175 bytes: a file of 64 KiB, one of 250 of these, and one of 40 of the latter, 655 MB.
    const DELTAS: &[u8] = include_bytes!("../tests/followed/deltas.pack");

    fn commands() -> (tempfile::TempDir, Commands) {
        let dir = tempfile::tempdir().unwrap();
        let commands = Commands::new(dir.path(), Duration::from_secs(60));
        (dir, commands)
    }

    #[tokio::test]
    async fn output_is_bounded_and_secrets_are_redacted() {
        let (dir, commands) = commands();
        let env = commands.local();
        let hashed = commands
            .output(
                &["hash-object", "--stdin"],
                &env,
                dir.path(),
                b"hello\n".to_vec(),
                100,
            )
            .await
            .unwrap();
        assert_eq!(hashed.stdout, b"ce013625030ba8dba906f756967f9e9ca394464a\n");
        let error = commands
            .output(&["version"], &env, dir.path(), Vec::new(), 5)
            .await
            .unwrap_err();
        assert!(matches!(error, GitError::TooMuch(..)), "{error}");
        let commands = commands.without(["t0ken".to_owned()]);
        let refused = commands
            .run_git(&["t0ken-is-no-command"], &env, dir.path())
            .await
            .unwrap();
        assert!(
            refused.code != 0 && !refused.output.contains("t0ken"),
            "{refused:?}"
        );
    }

    #[test]
    fn scheme_without_operators_proxy_has_ours() {
        let rows = [
            ("HTTPS_PROXY=o", "http_proxy=socks https_proxy=o"),
            (
                "http_proxy=o https_proxy=",
                "http_proxy=o https_proxy=socks",
            ),
            ("ALL_PROXY=o https_proxy=s", "http_proxy=o https_proxy=s"),
        ];
        for (set, expected) in rows {
            let value = |name: &str| {
                let pairs = set.split(' ').filter_map(|pair| pair.split_once('='));
                let mut found = pairs.filter(|(own, _)| *own == name);
                found.next().map(|(_, value)| value.into())
            };
            let told = proxies(Some("socks"), value)
                .map(|(name, value)| format!("{}={}", name.display(), value.display()));
            assert_eq!(told.collect::<Vec<_>>().join(" "), expected, "{set}");
        }
    }

    #[tokio::test]
    async fn pack_of_nested_deltas_ends_at_the_limit_of_memory() {
        let (dir, commands) = commands();
        let env = commands.local();
        let run = |args: &'static [&'static str], input: &[u8]| {
            commands.output(args, &env, dir.path(), input.to_vec(), 4096)
        };
        run(&["init", "--quiet", "--bare"], &[]).await.unwrap();
        let error = run(&["-c", "pack.threads=1", "index-pack", "--stdin"], DELTAS)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, GitError::NoMemory(name) if name == "index-pack"),
            "{error}"
        );
        let problem = Problem::from(&error);
        assert_eq!(problem.reason, Reason::SourceInvalid);
        assert!(problem.message.contains("512 MiB of memory"));
        let server =
            "remote: fatal: Out of memory, malloc failed\nfatal: remote error: out of memory";
        assert!(!lacks_memory(server), "the server may have more next time");
        assert!(lacks_memory(&format!(
            "{server}\nfatal error: runtime: cannot allocate memory"
        )));
    }

    /// A command that would print for ever is ended at once, whichever stream and limit it is.
    #[tokio::test]
    async fn endless_output_ends_git_at_once() {
        let (dir, commands) = commands();
        let rows = [
            ("exec yes", Most::from(1 << 20), Limit::Bytes(1 << 20)),
            (
                "while :; do printf x\\\\0; done",
                Most {
                    bytes: 1 << 20,
                    records: 1000,
                },
                Limit::Records(1000),
            ),
            ("exec yes >&2", Most::from(100), Limit::Messages(MAX_SAID)),
        ];
        for (script, most, limit) in rows {
            let mut env = commands.local();
            let alias = format!("'alias.endless=!{script}'");
            env.push(("GIT_CONFIG_PARAMETERS".into(), alias.into()));
            let begun = Instant::now();
            let error = commands
                .output(&["endless"], &env, dir.path(), Vec::new(), most)
                .await
                .unwrap_err();
            assert!(begun.elapsed().as_secs() < 30, "{error}");
            assert!(
                matches!(error, GitError::TooMuch(_, of) if of == limit),
                "{error}"
            );
        }
    }

    #[tokio::test]
    async fn timeout_kills_git_and_its_children() {
        let (dir, mut commands) = commands();
        commands.deadline = Duration::from_millis(300);
        let mut env = commands.local();
        env.push((
            "GIT_CONFIG_PARAMETERS".into(),
            "'alias.stuck=!echo $$ > pid; exec sleep 600'".into(),
        ));
        let begun = Instant::now();
        let error = commands
            .output(&["stuck"], &env, dir.path(), Vec::new(), 100)
            .await
            .unwrap_err();
        assert!(
            matches!(error, GitError::TooLong { .. }) && begun.elapsed() < Duration::from_secs(60),
            "{error}"
        );
        let Ok(pid) = std::fs::read_to_string(dir.path().join("pid")) else {
            return;
        };
        let stat = PathBuf::from(format!("/proc/{}/stat", pid.trim()));
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(begun.elapsed() < Duration::from_secs(60), "it goes on");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
