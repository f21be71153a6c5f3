//! Credentials for a repository's server and those of its submodules, from the Secrets that it names. Each applies to its part of a host only.

use std::collections::BTreeMap;

use crds::{GitCredential, Reason, TerraformRepositorySpec};
use source::{IdentityError, Login, Transport, Url, credentials::part};

use crate::{failure::Problem, github_app::App};

/// The data of a Secret, by key.
pub type Data = BTreeMap<String, Vec<u8>>;

/// How to access a server.
#[derive(Clone)]
pub struct Access {
    pub login: Login,
    /// The GitHub App that provides the token.
    pub app: Option<App>,
}

/// The Secrets that a repository names, by name.
pub type Secrets = BTreeMap<String, Data>;

/// The access for a repository's URL, from the Secret of `spec.secretRef`.
///
/// # Errors
/// When something is missing or unusable.
pub fn access(
    url: &Url,
    spec: &TerraformRepositorySpec,
    secrets: &Secrets,
) -> Result<Access, Problem> {
    let own = spec
        .secret_ref
        .as_ref()
        .and_then(|named| secrets.get_key_value(&named.name));
    let access = own
        .map(|(name, data)| {
            of_secret(name, data, |key| {
                Login::of(&url.web_origin(), url.host(), key)
            })
        })
        .transpose()?
        .unwrap_or(Access {
            login: Login {
                origin: url.web_origin(),
                host: url.host().to_owned(),
                ..Login::default()
            },
            app: None,
        });
    let serves = access.login.identity.is_some()
        || access.login.http.is_some()
        || access.app.is_some()
        || spec.credentials.iter().any(|git| {
            let login = part(&git.host).and_then(|part| Login::of_part(&part, |_| None).ok());
            login.is_some_and(|login| login.covers(url.host(), url.path()))
        });
    if url.transport() == Transport::Ssh && !serves {
        let message = format!(
            "spec.url is by ssh, and there is no private key or token for {}: name a Secret with the key `identity` in spec.secretRef",
            url.host()
        );
        return Err(Problem::new(Reason::SecretNotFound, message));
    }
    Ok(access)
}

/// The logins of `spec.credentials`.
///
/// # Errors
/// When one is unusable.
pub fn further(spec: &TerraformRepositorySpec, secrets: &Secrets) -> Result<Vec<Login>, Problem> {
    let login = |git: &GitCredential| {
        let part = part(&git.host).ok_or_else(|| {
            let message = format!("spec.credentials names {}, which is not a host", git.host);
            Problem::new(Reason::InvalidSpec, message)
        })?;
        let name = &git.secret_ref.name;
        let none = Data::new();
        let data = secrets.get(name).unwrap_or(&none);
        let access = of_secret(name, data, |key| Login::of_part(&part, key))?;
        if access.app.is_some() && access.login.http.is_none() && access.login.identity.is_none() {
            let message = format!(
                "Secret {name} of spec.credentials has the keys of a GitHub App, which serve spec.secretRef only"
            );
            return Err(Problem::new(Reason::SourceUnauthorized, message));
        }
        Ok(access.login)
    };
    spec.credentials.iter().map(login).collect()
}

fn of_secret(
    name: &str,
    data: &Data,
    login: impl FnOnce(&dyn Fn(&str) -> Option<String>) -> Result<Login, IdentityError>,
) -> Result<Access, Problem> {
    let broken = std::cell::OnceCell::new();
    let key = |key: &str| {
        let text = String::from_utf8(data.get(key)?.clone())
            .inspect_err(|_| drop(broken.set(key.to_owned())));
        text.ok().filter(|text| !text.trim().is_empty())
    };
    let unfit = |key: &str, why: String| {
        Problem::new(
            Reason::SourceUnauthorized,
            format!("the key {key} of Secret {name} {why}"),
        )
    };
    let login = login(&key).map_err(|error| unfit("identity", error.to_string()))?;
    let app = App::of(key).map_err(|(name, why)| unfit(name, why))?;
    if let Some(key) = broken.get() {
        return Err(unfit(key, "is no text".to_owned()));
    }
    if login.is_empty() && app.is_none() {
        let message = format!(
            "Secret {name} has none of the known keys: username and password, bearerToken, identity, ca.crt, or githubAppID, \
             githubAppInstallationID and githubAppPrivateKey"
        );
        return Err(Problem::new(Reason::SecretNotFound, message));
    }
    Ok(Access { login, app })
}

#[cfg(test)]
mod tests {
    use crate::github_app::tests::rsa_key;
    use crds::SecretName;

    use super::*;

    fn of(url: &str, pairs: &[(&str, &str)]) -> Result<Access, Problem> {
        let data = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()))
            .collect();
        asked(url, data)
    }

    fn asked(url: &str, data: Data) -> Result<Access, Problem> {
        let spec = TerraformRepositorySpec {
            secret_ref: Some(SecretName { name: "git".into() }),
            ..TerraformRepositorySpec::default()
        };
        let secrets = Secrets::from([("git".to_owned(), data)]);
        access(&Url::parse(url).unwrap(), &spec, &secrets)
    }

    #[test]
    fn credentials_apply_to_the_urls_host() {
        let login = of(
            "https://git.example.org:8443/r.git",
            &[("username", "u"), ("password", "p")],
        )
        .unwrap()
        .login;
        assert_eq!(
            (login.origin.as_str(), login.host.as_str()),
            ("https://git.example.org:8443/", "git.example.org")
        );
        assert!(login.http.is_some());
        let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----";
        assert!(
            of(
                "git@h:r.git",
                &[("identity", key), ("known_hosts", "h x y")]
            )
            .unwrap()
            .login
            .identity
            .is_some()
        );
        assert_eq!(
            of("https://h/r", &[("ca.crt", "pem")])
                .unwrap()
                .login
                .authority
                .as_deref(),
            Some("pem")
        );
        let (url, none) = (
            Url::parse("https://h/r").unwrap(),
            TerraformRepositorySpec::default(),
        );
        assert!(
            access(&url, &none, &Secrets::new())
                .unwrap()
                .login
                .is_empty()
        );
        let token = of("git@h:r.git", &[("password", "x")]).unwrap();
        assert!(token.login.http.is_some(), "it serves by https");
    }

    #[test]
    fn missing_or_unusable_credentials_are_named() {
        let said = |url: &str, pairs: &[(&str, &str)]| {
            let problem = of(url, pairs).err().unwrap();
            (problem.reason, problem.message)
        };
        let (reason, message) = said("https://h/r", &[("other", "x"), ("password", "\n")]);
        assert!(
            reason == Reason::SecretNotFound && message.contains("Secret git has none"),
            "{message}"
        );
        let (reason, message) = said("git@h:r.git", &[("ca.crt", "x")]);
        assert!(
            reason == Reason::SecretNotFound && message.contains("private key or token for h"),
            "{message}"
        );
        let (reason, message) = said("git@h:r.git", &[("identity", "x")]);
        assert!(
            reason == Reason::SourceUnauthorized && message.contains("key identity of Secret git"),
            "{message}"
        );
        let (_, message) = said("https://github.com/o/r", &[("githubAppID", "1")]);
        assert!(message.contains("githubAppInstallationID"), "{message}");
        let further = TerraformRepositorySpec {
            credentials: vec![GitCredential {
                host: "github.com".into(),
                secret_ref: SecretName { name: "app".into() },
            }],
            ..TerraformRepositorySpec::default()
        };
        let app = [
            ("githubAppID", "1"),
            ("githubAppInstallationID", "2"),
            ("githubAppPrivateKey", &rsa_key()),
        ];
        let app = app.map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()));
        let secrets = Secrets::from([("app".to_owned(), Data::from(app))]);
        let problem = super::further(&further, &secrets).err().unwrap();
        assert!(
            problem.message.contains("serve spec.secretRef only"),
            "{}",
            problem.message
        );
        let data = BTreeMap::from([("password".to_owned(), vec![0xff])]);
        let problem = asked("https://h/r", data).err().unwrap();
        assert!(
            problem
                .message
                .contains("password of Secret git is no text"),
            "{}",
            problem.message
        );
    }
}
