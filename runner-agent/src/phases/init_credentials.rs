//! Credentials for `init` from the run's spec, for git servers and registries, each limited to its host. The stack's code can read
//! all of them, so none of the agent's own credentials are among them.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use ::source::{
    Credentials, IdentityError, Login, SshFiles, Transport, Url,
    clone::quoted,
    credentials::{longest_first, of_source, part, rewrites},
};
use crds::{Failure, GitSource, KeyRef, Reason};

use super::{PhaseRunner, inputs, mounted_objects::key_of};
use crate::{classify::OrInternal as _, files, providers::UserConfig};

impl PhaseRunner {
    /// Credentials for the fetch of the source: those of its own Secret first, then the run's for the hosts of submodules.
    pub(super) fn logins_of_source(
        &self,
        git: &GitSource,
        credentials: &crds::Credentials,
        url: &Url,
    ) -> Result<Vec<Login>, Failure> {
        let own = git.secret_ref.as_ref().map(|secret| {
            self.login(&secret.name, Reason::SourceUnauthorized, |key| {
                Login::of(&url.web_origin(), url.host(), key)
            })
        });
        let logins = of_source(own.transpose()?, url, self.logins(credentials)?);
        let serves = |login: &Login| {
            (login.identity.is_some() || login.http.is_some())
                && login.covers(url.host(), url.path())
        };
        if url.transport() == Transport::Ssh && !logins.iter().any(serves) {
            let message = format!(
                "source.git.url is by ssh, and no Secret has a private key or a token for {}: name one with the key `identity` in source.git.secretRef",
                url.host()
            );
            return Err(Reason::SecretNotFound.failure(message));
        }
        Ok(logins)
    }

    /// Reads the run's credentials, so that the first missing one is reported before the fetch.
    pub(super) fn check_credentials(&self, credentials: &crds::Credentials) -> Result<(), Failure> {
        if self.host.cli_config().is_some() {
            self.logins(credentials)?;
        }
        self.user_config(credentials).map(drop)
    }

    /// The run's credentials for git servers.
    fn logins(&self, credentials: &crds::Credentials) -> Result<Vec<Login>, Failure> {
        let (mut scopes, mut logins) = (BTreeSet::new(), Vec::new());
        for git in &credentials.git {
            let scope = git.host.trim_end_matches('/').to_ascii_lowercase();
            let Some(part) = part(&git.host).filter(|_| scopes.insert(scope)) else {
                let message = format!(
                    "credentials.git names {}, which is not a host, or is listed twice",
                    git.host
                );
                return Err(Reason::InvalidSpec.failure(message));
            };
            logins.push(
                self.login(&git.secret_ref.name, Reason::Unauthorized, |key| {
                    Login::of_part(&part, key)
                })?,
            );
        }
        Ok(logins)
    }

    /// Reads a Secret's credentials for a host and registers them with the redactor.
    fn login(
        &self,
        secret: &str,
        reason: Reason,
        of: impl FnOnce(&dyn Fn(&str) -> Option<String>) -> Result<Login, IdentityError>,
    ) -> Result<Login, Failure> {
        let dir = self.settings.secrets.join(secret);
        let login = of(&|name| inputs::mounted(&dir, name)).map_err(|error| {
            reason.failure(format!("the private key of Secret {secret} {error}"))
        })?;
        login
            .secrets()
            .iter()
            .for_each(|text| self.redactor.add(text));
        if login.http.as_ref().is_some_and(Credentials::is_broken) {
            return Err(reason.failure(format!(
                "Secret {secret} holds a line break within a credential"
            )));
        }
        if login.is_empty() {
            let keys = "identity, username and password, bearerToken, ca.crt";
            return Err(Reason::SecretNotFound
                .failure(format!("Secret {secret} has none of the keys {keys}")));
        }
        Ok(login)
    }

    /// The tool's environment, extended by the settings for its git.
    pub(super) fn with_git(
        &self,
        credentials: &crds::Credentials,
        mut env: Vec<(OsString, OsString)>,
    ) -> Result<Vec<(OsString, OsString)>, Failure> {
        let mut own = self.give_git(credentials)?;
        if !own.is_empty() {
            // The written git configuration names this file instead, so that a host's own authority can override it there. A value that the
            // run itself sets remains.
            env.retain(|pair| !(pair.0 == CA_OF_ALL && self.settings.inherited.contains(pair)));
        }
        own.extend(env);
        Ok(own)
    }

    /// Writes the configuration of the tool's git to files that the stack's code cannot change. Returns the environment that names
    /// them.
    fn give_git(
        &self,
        credentials: &crds::Credentials,
    ) -> Result<Vec<(OsString, OsString)>, Failure> {
        // On a person's machine git uses that person's credentials.
        if credentials.git.is_empty() || self.host.cli_config().is_none() {
            return Ok(Vec::new());
        }
        let logins = self.logins(credentials)?;
        let kept = &self.settings.kept;
        let failed = "the credentials of git cannot be written";
        let write = |name: &str, text: &str| -> Result<PathBuf, Failure> {
            let path = kept.join(name);
            files::write(&path, text).or_internal(failed)?;
            Ok(path)
        };
        let mut config = String::new();
        if let Some((_, file)) = self
            .settings
            .inherited
            .iter()
            .find(|(name, _)| name == CA_OF_ALL)
        {
            let _ = write!(
                config,
                "[http]\n\tsslCAInfo = {}\n",
                quoted(&file.to_string_lossy())
            );
        }
        // The run may also put a `.gitconfig` into its home.
        config.push_str("[include]\n\tpath = ~/.gitconfig\n");
        for (to, from) in rewrites(&logins) {
            let (to, from) = (quoted(&to), quoted(&from));
            let _ = write!(config, "[url {to}]\n\tinsteadOf = {from}\n");
        }
        for (n, login) in longest_first(&logins).into_iter().enumerate() {
            let scope = login.scope();
            match &login.http {
                Some(Credentials::Basic(user, password)) => {
                    let file = write(
                        &format!("git-login-{n}"),
                        &format!("username={user}\npassword={password}\n"),
                    )?;
                    config.push_str(&helper(&scope, &file));
                }
                Some(Credentials::Bearer(token)) => config.push_str(&header(&scope, token)),
                None => {}
            }
            if let Some(authority) = &login.authority {
                let file = write(&format!("git-ca-{n}.crt"), authority)?;
                let file = quoted(&file.display().to_string());
                let _ = write!(config, "[http {}]\n\tsslCAInfo = {file}\n", quoted(&scope));
            }
        }
        let mut env = vec![(
            "GIT_CONFIG_GLOBAL".into(),
            write("gitconfig", &config)?.into(),
        )];
        if logins.iter().any(|login| login.identity.is_some()) {
            let dir = kept.join("ssh");
            if dir.exists() {
                fs::remove_dir_all(&dir).or_internal(failed)?;
            }
            let dir = SshFiles::create(&dir, &logins, "")
                .or_internal(failed)?
                .keep();
            env.push((
                "GIT_SSH_COMMAND".into(),
                ::source::ssh::command(&dir).into(),
            ));
            env.push(("GIT_SSH_VARIANT".into(), "ssh".into()));
        }
        Ok(env)
    }

    /// The run's additions to the tool's CLI configuration.
    pub(super) fn user_config(
        &self,
        credentials: &crds::Credentials,
    ) -> Result<UserConfig, Failure> {
        if self.host.cli_config().is_none() {
            return Ok(UserConfig::default());
        }
        let mut tokens = Vec::new();
        for registry in &credentials.registries {
            let wanted = format!("credentials.registries of {}", registry.host);
            let token = self
                .secret(&registry.secret_key_ref, &wanted)?
                .trim_end_matches(['\n', '\r'])
                .to_owned();
            self.redactor.add(&token);
            tokens.push((registry.host.clone(), token));
        }
        let own = credentials
            .cli_config
            .as_ref()
            .map(|config| &config.secret_key_ref);
        let own = own
            .map(|key| self.secret(key, "credentials.cliConfig"))
            .transpose()?;
        let config = UserConfig::of(&tokens, own.as_deref()).map_err(|error| {
            let place = credentials
                .cli_config
                .as_ref()
                .filter(|_| own.is_some())
                .map(|config| &config.secret_key_ref);
            let place = place
                .map(|key| format!(" (Secret {}, key {})", key.name, key.key))
                .unwrap_or_default();
            Reason::InvalidSpec.failure(format!(
                "the CLI configuration of the run{place} cannot be used: {error}"
            ))
        })?;
        config
            .secrets
            .iter()
            .for_each(|text| self.redactor.add(text));
        Ok(config)
    }

    fn secret(&self, key: &KeyRef, wanted: &str) -> Result<String, Failure> {
        let found = key_of((Some(key), None), &self.settings, wanted)?;
        Ok(String::from_utf8_lossy(&found.bytes).into_owned())
    }
}

/// Names git's file of trusted authorities. It overrides git's configuration.
const CA_OF_ALL: &str = "GIT_SSL_CAINFO";

/// A credential helper for one host. Git asks again for each host it is redirected to, and gets no answer there.
fn helper(origin: &str, file: &Path) -> String {
    let place = file.display().to_string().replace('\'', r"'\''");
    let script = format!("!f() {{ test \"$1\" != get || cat '{place}'; }}; f");
    format!(
        "[credential {}]\n\thelper =\n\thelper = {}\n",
        quoted(origin.trim_end_matches('/')),
        quoted(&script)
    )
}

/// A header for one host. Redirects are off, since git would send the header to the target as well.
fn header(origin: &str, token: &str) -> String {
    let mut text = String::new();
    let header = quoted(&format!("Authorization: Bearer {token}"));
    let _ = write!(
        text,
        "[http {}]\n\textraHeader = {header}\n\tfollowRedirects = false\n",
        quoted(origin)
    );
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::phases::tests::{settings, work};

    const KEY: &str = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----";

    fn world(secrets: &[(&str, &str)]) -> (tempfile::TempDir, PhaseRunner) {
        let dir = tempfile::tempdir().unwrap();
        let settings = settings(dir.path());
        fs::create_dir_all(&settings.kept).unwrap();
        for (path, text) in secrets {
            let path = settings.secrets.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        (dir, work(settings))
    }

    fn credentials(json: serde_json::Value) -> crds::Credentials {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn authority_is_trusted_for_its_host_only() {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = settings(dir.path());
        fs::create_dir_all(&settings.kept).unwrap();
        fs::create_dir_all(settings.secrets.join("a")).unwrap();
        fs::write(settings.secrets.join("a/ca.crt"), "pem of a").unwrap();
        let operator: (OsString, OsString) = (CA_OF_ALL.into(), "/kept/ca.crt".into());
        settings.inherited.push(operator.clone());
        let work = work(settings);
        let run: (OsString, OsString) = (CA_OF_ALL.into(), "/own/ca.crt".into());
        let of =
            credentials(json!({"git": [{"host": "a.example.org", "secretRef": {"name": "a"}}]}));
        let env = work
            .with_git(&of, vec![operator.clone(), run.clone()])
            .unwrap();
        assert_eq!(env[1..], [run], "what the run says of it stays");
        let config = fs::read_to_string(&env[0].1).unwrap();
        assert!(
            config.starts_with("[http]\n\tsslCAInfo = \"/kept/ca.crt\"\n[include]"),
            "{config}"
        );
        let file = work.settings.kept.join("git-ca-0.crt");
        let own = format!(
            "[http \"https://a.example.org/\"]\n\tsslCAInfo = \"{}\"\n",
            file.display()
        );
        assert!(
            config.ends_with(&own) && fs::read_to_string(&file).unwrap() == "pem of a",
            "{config}"
        );
        assert_eq!(
            work.with_git(&crds::Credentials::default(), vec![operator.clone()])
                .unwrap(),
            [operator]
        );
    }

    #[test]
    fn missing_or_broken_secret_is_reported_before_the_fetch() {
        let (_dir, work) = world(&[
            (
                "locked/identity",
                "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----",
            ),
            ("broken/username", "u\nhost=evil"),
            ("broken/password", "p"),
        ]);
        let of = |host: &str, secret: &str| {
            work.give_git(&credentials(
                json!({"git": [{"host": host, "secretRef": {"name": secret}}]}),
            ))
            .unwrap_err()
        };
        let rows = [
            (
                "gone",
                Reason::SecretNotFound,
                "has none of the keys identity, username and password, bearerToken, ca.crt",
            ),
            (
                "locked",
                Reason::Unauthorized,
                "the private key of Secret locked is a private key with a passphrase",
            ),
            (
                "broken",
                Reason::Unauthorized,
                "Secret broken holds a line break",
            ),
        ];
        for (secret, reason, text) in rows {
            let failure = of("h", secret);
            assert!(
                failure.reason == reason && failure.message.contains(text),
                "{secret}: {failure:?}"
            );
        }
        assert_eq!(of("h/../x", "gone").reason, Reason::InvalidSpec.as_str());
    }

    #[test]
    fn ssh_source_requires_a_key_for_its_host() {
        let (_dir, work) = world(&[("git/identity", KEY), ("web/password", "pass")]);
        let git = |secret: Option<&str>| GitSource {
            url: "git@git.example.org:team/r.git".into(),
            revision: "main".into(),
            path: ".".into(),
            secret_ref: secret.map(|name| crds::SecretName { name: name.into() }),
        };
        let of = |secret: Option<&str>, more: serde_json::Value| {
            let git = git(secret);
            work.logins_of_source(&git, &credentials(more), &Url::parse(&git.url).unwrap())
        };
        assert_eq!(of(Some("git"), json!({})).unwrap().len(), 1);
        let elsewhere = json!({"git": [{"host": "git.example.org", "secretRef": {"name": "git"}}]});
        assert_eq!(of(None, elsewhere.clone()).unwrap().len(), 1);
        // One more for the source itself.
        assert_eq!(of(Some("web"), elsewhere).unwrap().len(), 3);
        assert_eq!(
            of(Some("web"), json!({})).unwrap().len(),
            1,
            "its token serves"
        );
        let part =
            json!({"git": [{"host": "git.example.org/other", "secretRef": {"name": "git"}}]});
        for failure in [of(None, json!({})), of(None, part)].map(|found| found.err().unwrap()) {
            assert_eq!(failure.reason, Reason::SecretNotFound.as_str());
            assert!(
                failure
                    .message
                    .contains("no Secret has a private key or a token for git.example.org"),
                "{}",
                failure.message
            );
        }
    }
}
