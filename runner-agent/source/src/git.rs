//! Fetches a git repository with the `git` binary. Repository, revision and server are untrusted: only http, https and, with a
//! key, ssh; no hooks, prompts or helpers; credentials only for their host.

use std::{
    error::Error,
    ffi::OsString,
    fs::File,
    path::{Path, PathBuf},
};

use crate::{
    credentials::{Login, longest_first, rewrites},
    git_errors::{Ended, FetchError},
    ssh,
    url::{Transport, Url, is_revision},
};

/// Runs `git`.
pub trait Git {
    /// The error of starting it.
    type Error: Error + Send + Sync + 'static;

    /// Runs `git` in a directory with exactly this environment, and waits for its end.
    fn run_git(
        &self,
        args: &[&str],
        env: &[(OsString, OsString)],
        dir: &Path,
    ) -> impl Future<Output = Result<Ended, Self::Error>> + Send;

    /// Like [`Self::run_git`], with standard output to `read`. Git is ended once `read` has returned. By default nothing runs: a user
    /// that checks nothing out needs no listing.
    fn read_git<T: Send + 'static>(
        &self,
        _args: &[&str],
        _env: &[(OsString, OsString)],
        _dir: &Path,
        _read: fn(File) -> T,
    ) -> impl Future<Output = Result<Option<T>, Self::Error>> + Send {
        async { Ok(None) }
    }
}

/// One revision of a repository, with the credentials for its servers.
#[derive(Clone)]
pub struct Repository {
    url: Url,
    revision: String,
    /// Headers by the URL that they are for, the longest first.
    headers: Vec<(String, String)>,
    /// URLs that are fetched from in place of others.
    rewrites: Vec<(String, String)>,
    /// Files of certificate authorities by origin.
    authorities: Vec<(String, PathBuf)>,
    ssh: Option<PathBuf>,
    /// Directories on this machine that answer for URLs, in place of every server.
    local: Vec<(String, PathBuf)>,
    /// The directory with the contents of large files, in place of every server.
    pub(crate) large: Option<PathBuf>,
}

impl Repository {
    /// A revision without credentials.
    ///
    /// # Errors
    /// The URL or the revision is not safe to pass to git.
    pub fn new<E: Error>(url: &str, revision: &str) -> Result<Self, FetchError<E>> {
        let url = Url::parse(url).ok_or(FetchError::IllegalUrl)?;
        if !is_revision(revision) {
            return Err(FetchError::IllegalRevision(revision.to_owned()));
        }
        Ok(Self {
            url,
            revision: revision.to_owned(),
            headers: Vec::new(),
            rewrites: Vec::new(),
            authorities: Vec::new(),
            ssh: None,
            local: Vec::new(),
            large: None,
        })
    }

    /// The URL.
    pub const fn url(&self) -> &Url {
        &self.url
    }

    /// The requested revision.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Fetches from directories on this machine, each in place of a URL, with the contents of large files in another, and from no server.
    #[must_use]
    pub fn from_local(mut self, remotes: Vec<(String, PathBuf)>, large: PathBuf) -> Self {
        self.local = remotes;
        self.large = Some(large);
        self
    }

    /// Adds the HTTP credentials of logins, each for its part of a host. The first for a part counts.
    ///
    /// # Errors
    /// A credential has a line break.
    pub fn with_logins<E: Error>(mut self, logins: &[Login]) -> Result<Self, FetchError<E>> {
        self.rewrites = rewrites(logins);
        for login in longest_first(logins) {
            let Some(http) = &login.http else { continue };
            if http.is_broken() {
                return Err(FetchError::LineBreak);
            }
            if !self
                .headers
                .iter()
                .any(|(scope, _)| *scope == login.scope())
            {
                self.headers.push((login.scope(), http.header()));
            }
        }
        Ok(self)
    }

    /// Enables ssh, with the files of [`ssh::SshFiles`] in a directory.
    #[must_use]
    pub fn with_ssh(mut self, dir: PathBuf) -> Self {
        self.ssh = Some(dir);
        self
    }

    /// Trusts the authorities of a PEM file for one origin, in place of the common ones. If an origin is given twice, the first file
    /// counts.
    #[must_use]
    pub fn with_authority(mut self, origin: &str, file: PathBuf) -> Self {
        if !self.authorities.iter().any(|(own, _)| own == origin) {
            self.authorities.push((origin.to_owned(), file));
        }
        self
    }

    /// The environment of git: the given one, common settings, and a configuration with precedence over the repository's.
    pub fn env(
        &self,
        given: Vec<(OsString, OsString)>,
        more: &[(&str, String)],
    ) -> Vec<(OsString, OsString)> {
        let is = |yes: bool| if yes { "always" } else { "never" };
        let remote = self.local.is_empty();
        let by_ssh = is(remote && (self.ssh.is_some() || self.url.transport() == Transport::Ssh));
        let mut config: Vec<(String, String)> = [
            ("protocol.allow", "never"),
            ("protocol.http.allow", is(remote)),
            ("protocol.https.allow", is(remote)),
            ("protocol.ssh.allow", by_ssh),
            ("protocol.file.allow", is(!remote)),
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
        for (url, dir) in &self.local {
            config.push((
                format!("url.file://{}.insteadOf", dir.display()),
                url.clone(),
            ));
        }
        for (to, from) in &self.rewrites {
            config.push((format!("url.{to}.insteadOf"), from.clone()));
        }
        for (origin, header) in &self.headers {
            config.push((format!("http.{origin}.extraHeader"), header.clone()));
            // Git would send the header to any redirect target.
            config.push((format!("http.{origin}.followRedirects"), "false".into()));
        }
        config.extend(
            more.iter()
                .map(|(key, value)| ((*key).to_owned(), value.clone())),
        );
        let mut env = given;
        // Git reads this variable before any configuration, so it names the common file, for hosts without a file of their own.
        if !self.authorities.is_empty() {
            let (of_all, others) = env.into_iter().partition(|(name, _)| name == CA_OF_ALL);
            env = others;
            let of_all: Vec<(OsString, OsString)> = of_all;
            config.extend(of_all.into_iter().map(|(_, file)| {
                (
                    "http.sslCAInfo".to_owned(),
                    file.to_string_lossy().into_owned(),
                )
            }));
        }
        for (origin, file) in &self.authorities {
            config.push((
                format!("http.{origin}.sslCAInfo"),
                file.display().to_string(),
            ));
        }
        let fixed = [
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_ASKPASS", ""),
            ("SSH_ASKPASS", ""),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_LFS_SKIP_SMUDGE", "1"),
            ("GIT_SSH_VARIANT", "ssh"),
            ("LC_ALL", "C"),
        ];
        env.extend(fixed.map(|(k, v)| (k.into(), v.into())));
        if by_ssh == "never" {
            // Programs that git starts have no such rule.
            env.push(("GIT_SSH_COMMAND".into(), "false".into()));
        }
        env.extend(
            self.ssh
                .iter()
                .map(|dir| ("GIT_SSH_COMMAND".into(), ssh::command(dir).into())),
        );
        env.push(("GIT_CONFIG_COUNT".into(), config.len().to_string().into()));
        for (i, (key, value)) in config.into_iter().enumerate() {
            env.push((format!("GIT_CONFIG_KEY_{i}").into(), key.into()));
            env.push((format!("GIT_CONFIG_VALUE_{i}").into(), value.into()));
        }
        env
    }
}

/// Sets the file of authorities that git trusts for all hosts.
const CA_OF_ALL: &str = "GIT_SSL_CAINFO";

#[cfg(test)]
mod matching;
#[cfg(test)]
mod tests;
