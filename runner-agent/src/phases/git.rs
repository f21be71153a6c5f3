//! Fetches a git repository with the `git` binary. Repository, revision and answers of the server are hostile input: nothing but
//! http and https, no hooks, no prompts, no helpers, no submodules; credentials in the environment, for one host.

use std::{ffi::OsString, fs, path::Path};

use crds::{Failure, GitSource, Reason, text::clip};

use super::{PodWork, inputs};
use crate::{
    classify::{internal, not_run},
    ports::{Notice, Notices},
    process::{Command, Exit, Role},
    redact::base64,
};

/// A commit that was checked out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Checkout {
    /// The full id.
    pub(super) commit: String,
}

impl PodWork {
    /// Fetches one revision into the source directory.
    pub(super) async fn fetch_git(&self, git: &GitSource, notices: &Notices) -> Result<Checkout, Failure> {
        if !is_legal_url(&git.url) {
            return Err(Reason::InvalidSpec.failure("source.git.url is not an http or https URL without credentials"));
        }
        if !is_legal_revision(&git.revision) {
            return Err(Reason::RevisionNotFound.failure(format!("{} is not a branch, tag or commit", clip(&git.revision, 100))));
        }
        let env = self.git_env(git)?;
        let root = self.settings.source_dir();
        let _ = notices.send(Notice::Started("source"));
        let result = self.fetch(git, &env, &root).await;
        let _ = notices.send(Notice::Ended("source", i32::from(result.is_err())));
        result
    }

    async fn fetch(&self, git: &GitSource, env: &[(OsString, OsString)], root: &Path) -> Result<Checkout, Failure> {
        let run = async |args: &[&str]| -> Result<(Exit, String), Failure> {
            let command = Command {
                program: "git".into(),
                args: args.iter().map(OsString::from).collect(),
                env: env.to_vec(),
                dir: root.to_path_buf(),
                role: Role::Other,
            };
            let (notices, _) = tokio::sync::mpsc::unbounded_channel();
            let mut events = self.events(root, &notices).quiet();
            let exit = self.children.run(&command, &mut events).await.map_err(|e| not_run("git", &e))?;
            Ok((exit, events.said().tail.join("\n")))
        };
        let fail = |(exit, text): (Exit, String)| classify(git, exit, &self.redactor.redact(&text));
        let init = run(&["init", "--quiet", "--template=", "."]).await?;
        if init.0.code != 0 {
            return Err(fail(init));
        }
        let revision = git.revision.as_str();
        let shallow =
            run(&["fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--", &git.url, revision]).await?;
        let mut target = "FETCH_HEAD";
        if shallow.0.code != 0 {
            // Some servers give no commit that is not the head of a branch, and some give no shallow ones.
            let worth_it = !shallow.0.told && (is_commit(revision) && is_refused(&shallow.1) || shallow.1.contains("shallow"));
            if !worth_it {
                return Err(fail(shallow));
            }
            let refs = ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"];
            let full: Vec<&str> = if is_commit(revision) {
                ["fetch", "--quiet", "--no-recurse-submodules", "--", &git.url].into_iter().chain(refs).collect()
            } else {
                vec!["fetch", "--quiet", "--no-recurse-submodules", "--", &git.url, revision]
            };
            let full = run(&full).await?;
            if full.0.code != 0 {
                return Err(fail(full));
            }
            if is_commit(revision) {
                target = revision;
            }
        }
        let checkout = run(&["checkout", "--quiet", "--detach", "--force", target, "--"]).await?;
        if checkout.0.code != 0 {
            return Err(if is_commit(target) && !checkout.0.told {
                Reason::RevisionNotFound.failure(format!("there is no commit {target} in {}", git.url))
            } else {
                fail(checkout)
            });
        }
        // A detached head is the commit itself.
        let head = fs::read_to_string(root.join(".git/HEAD")).unwrap_or_default();
        let commit = head.trim().to_owned();
        if is_commit(&commit) { Ok(Checkout { commit }) } else { Err(internal("the commit is not known", &clip(&commit, 80))) }
    }

    fn git_env(&self, git: &GitSource) -> Result<Vec<(OsString, OsString)>, Failure> {
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
        let mut authority = None;
        if let Some(secret) = &git.secret_ref {
            let dir = self.settings.secrets.join(&secret.name);
            if inputs::is_empty(&dir) {
                return Err(Reason::SecretNotFound
                    .failure(format!("Secret {} does not exist or is empty; source.git.secretRef wants it", secret.name)));
            }
            let key = |name| inputs::mounted(&dir, name).map(|v: String| v.trim_end_matches(['\n', '\r']).to_owned());
            let header = match (key("bearerToken"), key("username"), key("password")) {
                (Some(token), _, _) => {
                    self.redactor.add(&token);
                    Some(format!("Authorization: Bearer {token}"))
                }
                (None, user, Some(password)) => {
                    let pair = format!("{}:{password}", user.unwrap_or_default());
                    self.redactor.add(&password);
                    self.redactor.add(&pair);
                    Some(format!("Authorization: Basic {}", base64(pair.as_bytes())))
                }
                (None, _, None) => None,
            };
            let has_ca = dir.join("ca.crt").is_file();
            if header.is_none() && !has_ca {
                return Err(Reason::SecretNotFound
                    .failure(format!("Secret {} has none of the keys username and password, bearerToken, ca.crt", secret.name)));
            }
            if let Some(header) = header {
                if header.contains(['\n', '\r', '\0']) {
                    return Err(Reason::SourceUnauthorized
                        .failure(format!("Secret {} holds a line break within a credential", secret.name)));
                }
                config.push((format!("http.{}.extraHeader", origin(&git.url)), header));
                // Git would send the header to wherever the server redirects it.
                config.push(("http.followRedirects".into(), "false".into()));
            }
            if has_ca {
                // Git is kept from the Secret as everybody is; an authority is no secret.
                let copy = self.settings.home().join("ca.crt");
                fs::copy(dir.join("ca.crt"), &copy).map_err(|error| internal("ca.crt of the Secret cannot be copied", &error))?;
                authority = Some(copy);
            }
        }
        let mut env: Vec<(OsString, OsString)> = self.settings.inherited.clone();
        let fixed = [
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_ASKPASS", ""),
            ("SSH_ASKPASS", ""),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_LFS_SKIP_SMUDGE", "1"),
            ("LC_ALL", "C"),
        ];
        env.extend(fixed.map(|(k, v)| (k.into(), v.into())));
        env.push(("HOME".into(), self.settings.home().into()));
        // By the name that goes before all others: the operator's authorities are inherited by it.
        env.extend(authority.map(|file| ("GIT_SSL_CAINFO".into(), file.into())));
        env.push(("GIT_CONFIG_COUNT".into(), config.len().to_string().into()));
        for (i, (key, value)) in config.into_iter().enumerate() {
            env.push((format!("GIT_CONFIG_KEY_{i}").into(), key.into()));
            env.push((format!("GIT_CONFIG_VALUE_{i}").into(), value.into()));
        }
        Ok(env)
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

/// What git's words say about the run. The first row of which a text is found decides.
fn classify(git: &GitSource, exit: Exit, text: &str) -> Failure {
    const ROWS: &[(&[&str], Reason, &str)] = &[
        (
            &[
                "error: 401",
                "error: 403",
                "Authentication failed",
                "could not read Username",
                "could not read Password",
                "Access denied",
            ],
            Reason::SourceUnauthorized,
            "wants other credentials",
        ),
        (
            &["error: 404", "error: 410", "not found", "does not appear to be a git repository", "/info/refs not valid"],
            Reason::RepositoryNotFound,
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
            Reason::RevisionNotFound,
            "has no such revision",
        ),
        (
            &["certificate", "SSL peer", "sslCAInfo", "CAfile"],
            Reason::SourceInvalid,
            "has a certificate that is not trusted (put its authority into ca.crt of the Secret)",
        ),
        (
            &["error: 301", "error: 302", "error: 307", "error: 308", "unable to update url base from redirection"],
            Reason::SourceInvalid,
            "redirects elsewhere; name the final URL",
        ),
        (&["transport 'file' not allowed", "not allowed"], Reason::SourceInvalid, "leads to a transport that is not allowed"),
        (&["No space left", "Disk quota exceeded"], Reason::DiskFull, "does not fit on the pod's disk"),
    ];
    if let Exit { signal: Some(signal), told: false, .. } = exit {
        return Reason::ToolKilled.failure(format!("git was ended by signal {signal}"));
    }
    let line = text.lines().map(str::trim).filter(|l| !l.is_empty());
    let line = line.clone().find(|l| l.starts_with("fatal:")).or_else(|| line.clone().next_back()).unwrap_or("git said nothing");
    let known = ROWS.iter().find(|row| row.0.iter().any(|needle| text.contains(needle)));
    // What is not known is most often the network, and is tried again a bounded number of times.
    let (reason, what) = known.map_or((Reason::SourceUnreachable, "cannot be reached"), |row| (row.1, row.2));
    let of = if reason == Reason::RevisionNotFound { format!(" {}", git.revision) } else { String::new() };
    reason.failure(format!("{} {what}{of}: {}", clip(&git.url, 300), clip(line, 400)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::{FailureClass, reason};

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
        let git = GitSource { url: "http://h/r.git".into(), revision: "main".into(), path: ".".into(), secret_ref: None };
        let rows = [
            (
                "fatal: unable to access 'http://h/r.git/': Could not resolve host: h",
                FailureClass::Transient,
                reason::SOURCE_UNREACHABLE,
            ),
            (
                "fatal: unable to access 'http://h/r.git/': Failed to connect to h port 80: Connection refused",
                FailureClass::Transient,
                reason::SOURCE_UNREACHABLE,
            ),
            (
                "fatal: unable to access 'http://h/': The requested URL returned error: 503",
                FailureClass::Transient,
                reason::SOURCE_UNREACHABLE,
            ),
            (
                "fatal: could not read Username for 'http://h': terminal prompts disabled",
                FailureClass::Credentials,
                reason::SOURCE_UNAUTHORIZED,
            ),
            (
                "fatal: unable to access 'http://h/': The requested URL returned error: 403",
                FailureClass::Credentials,
                reason::SOURCE_UNAUTHORIZED,
            ),
            ("fatal: write error: No space left on device", FailureClass::Transient, reason::DISK_FULL),
            ("fatal: repository 'http://h/r.git/' not found", FailureClass::Configuration, reason::REPOSITORY_NOT_FOUND),
            ("fatal: couldn't find remote ref nope", FailureClass::Configuration, reason::REVISION_NOT_FOUND),
            (
                "fatal: unable to access 'https://h/': server certificate verification failed. CAfile: none CRLfile: none",
                FailureClass::Configuration,
                reason::SOURCE_INVALID,
            ),
            (
                "fatal: unable to access 'https://h/': The requested URL returned error: 301",
                FailureClass::Configuration,
                reason::SOURCE_INVALID,
            ),
        ];
        for (text, class, reason) in rows {
            let f = classify(&git, Exit { code: 128, signal: None, told: false }, text);
            assert_eq!((f.class, f.reason.as_str()), (class, reason), "{text}");
            assert!(f.message.contains("http://h/r.git"), "{}", f.message);
        }
    }
}
