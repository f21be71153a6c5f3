//! Fetches a git repository with the `git` binary. Repository, revision and server are untrusted: only http, https and, with a
//! key, ssh; no hooks, prompts or helpers; credentials only for their host.

use std::{
    error::Error,
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
};

use crate::{
    credentials::Login,
    git_errors::{Ended, FetchError, Refusal, refused},
    listing::{LIMITS, LIST, within},
    ssh,
    url::{Transport, Url, is_commit, is_revision},
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
    /// Headers by origin.
    headers: Vec<(String, String)>,
    /// Files of certificate authorities by origin.
    authorities: Vec<(String, PathBuf)>,
    ssh: Option<PathBuf>,
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
            authorities: Vec::new(),
            ssh: None,
        })
    }

    /// The URL.
    pub const fn url(&self) -> &Url {
        &self.url
    }

    /// Adds the HTTP credentials of logins, each for its own host. The first for a host counts.
    ///
    /// # Errors
    /// A credential has a line break.
    pub fn with_logins<E: Error>(mut self, logins: &[Login]) -> Result<Self, FetchError<E>> {
        for login in logins {
            let Some(http) = &login.http else { continue };
            if http.is_broken() {
                return Err(FetchError::LineBreak);
            }
            if !self
                .headers
                .iter()
                .any(|(origin, _)| *origin == login.origin)
            {
                self.headers.push((login.origin.clone(), http.header()));
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

    /// Fetches the revision and its submodules into an empty directory; returns the full commit id. `env` is the additional
    /// environment: home and proxy.
    ///
    /// # Errors
    /// The revision is not there. The directory may have a part of it.
    pub async fn fetch<G: Git>(
        &self,
        git: &G,
        env: Vec<(OsString, OsString)>,
        root: &Path,
    ) -> Result<String, FetchError<G::Error>> {
        let env = self.env(env, &[]);
        let run = async |args: &[&str]| {
            git.run_git(args, &env, root)
                .await
                .map_err(FetchError::NotRun)
        };
        let fail = |ended: &Ended| refused(self.url.as_str(), &self.revision, ended);
        let init = run(&["init", "--quiet", "--template=", "."]).await?;
        if init.code != 0 {
            return Err(fail(&init));
        }
        let (url, revision) = (self.url.as_str(), self.revision.as_str());
        let shallow = run(&[
            "fetch",
            "--quiet",
            "--depth=1",
            "--no-tags",
            "--no-recurse-submodules",
            "--",
            url,
            revision,
        ])
        .await?;
        let mut target = "FETCH_HEAD";
        if shallow.code != 0 {
            // Some servers serve only commits at the head of a branch, and some no shallow clones.
            let said = &shallow.output;
            let worth_it = !shallow.told
                && (is_commit(revision) && is_refused(said) || said.contains("shallow"));
            if !worth_it {
                return Err(fail(&shallow));
            }
            let refs = [
                "+refs/heads/*:refs/remotes/origin/*",
                "+refs/tags/*:refs/tags/*",
            ];
            let full: Vec<&str> = if is_commit(revision) {
                ["fetch", "--quiet", "--no-recurse-submodules", "--", url]
                    .into_iter()
                    .chain(refs)
                    .collect()
            } else {
                vec![
                    "fetch",
                    "--quiet",
                    "--no-recurse-submodules",
                    "--",
                    url,
                    revision,
                ]
            };
            let full = run(&full).await?;
            if full.code != 0 {
                return Err(fail(&full));
            }
            if is_commit(revision) {
                target = revision;
            }
        }
        let list: Vec<&str> = LIST.into_iter().chain([target]).collect();
        let listed = git
            .read_git(&list, &env, root, |listing| within(listing, &LIMITS))
            .await
            .map_err(FetchError::NotRun)?;
        if let Some(Err(limit)) = listed {
            return Err(FetchError::Refused {
                refusal: Refusal::Invalid,
                message: format!(
                    "{revision} of {url} was not checked out: it has more than {limit}"
                ),
            });
        }
        let checkout = run(&["checkout", "--quiet", "--detach", "--force", target, "--"]).await?;
        if checkout.code != 0 {
            return Err(if is_commit(target) && !checkout.told {
                let message = format!("there is no commit {target} in {url}");
                FetchError::Refused {
                    refusal: Refusal::NoRevision,
                    message,
                }
            } else {
                fail(&checkout)
            });
        }
        // Without submodules no request is needed.
        if fs::symlink_metadata(root.join(".gitmodules")).is_ok_and(|meta| meta.is_file()) {
            let told = run(&["config", "remote.origin.url", url]).await?;
            let shallow = [
                "submodule",
                "--quiet",
                "update",
                "--init",
                "--recursive",
                "--depth=1",
            ];
            let mut ended = if told.code == 0 {
                run(&shallow).await?
            } else {
                told
            };
            if ended.code != 0 && !ended.told && is_refused(&ended.output) {
                // A server with an old protocol serves only heads of branches to a shallow fetch. Clone anew without a depth, since a
                // shallow clone would stay shallow.
                run(&["submodule", "--quiet", "deinit", "--force", "--all"]).await?;
                let _ = fs::remove_dir_all(root.join(".git/modules"));
                ended = run(&shallow[..5]).await?;
            }
            if ended.code != 0 {
                return Err(refused(
                    &format!("a submodule of {url}"),
                    "as it names",
                    &ended,
                ));
            }
        }
        // A detached head is the commit itself.
        let head = fs::read_to_string(root.join(".git/HEAD")).unwrap_or_default();
        let commit = head.trim().to_owned();
        if is_commit(&commit) {
            Ok(commit)
        } else {
            Err(FetchError::UnknownCommit(commit))
        }
    }

    /// The environment of git: the given one, common settings, and a configuration with precedence over the repository's.
    pub fn env(
        &self,
        given: Vec<(OsString, OsString)>,
        more: &[(&str, String)],
    ) -> Vec<(OsString, OsString)> {
        let by_ssh = if self.ssh.is_some() || self.url.transport() == Transport::Ssh {
            "always"
        } else {
            "never"
        };
        let mut config: Vec<(String, String)> = [
            ("protocol.allow", "never"),
            ("protocol.http.allow", "always"),
            ("protocol.https.allow", "always"),
            ("protocol.ssh.allow", by_ssh),
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

/// Whether the server serves only commits that a ref points to, or only with history.
pub fn is_refused(text: &str) -> bool {
    [
        "not our ref",
        "unadvertised object",
        "couldn't find remote ref",
        "does not allow request",
        "remote error",
        "shallow",
    ]
    .iter()
    .any(|part| text.contains(part))
}

#[cfg(test)]
mod tests;
