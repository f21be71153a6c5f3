//! Credentials for a repository's server, from its Secret. They apply to the URL's host only.

use std::collections::BTreeMap;

use crds::Reason;
use source::{Login, Transport, Url};

use crate::{failure::Problem, github_app::App};

/// The data of a Secret, by key.
pub type Data = BTreeMap<String, Vec<u8>>;

/// How to access a server.
#[derive(Clone, Default)]
pub struct Access {
    pub login: Login,
    /// The GitHub App that provides the token.
    pub app: Option<App>,
}

/// The access for a URL from a Secret.
///
/// # Errors
/// When something is missing or unusable.
pub fn access(url: &Url, secret: Option<(&str, &Data)>) -> Result<Access, Problem> {
    let access = secret
        .map(|(name, data)| of_secret(url, name, data))
        .transpose()?
        .unwrap_or_default();
    if url.transport() == Transport::Ssh && access.login.identity.is_none() {
        let message = format!(
            "spec.url is by ssh, and there is no private key for {}: name a Secret with the key `identity` in spec.secretRef",
            url.host()
        );
        return Err(Problem::new(Reason::SecretNotFound, message));
    }
    Ok(access)
}

fn of_secret(url: &Url, name: &str, data: &Data) -> Result<Access, Problem> {
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
    let login = Login::of(&url.web_origin(), url.host(), key)
        .map_err(|error| unfit("identity", error.to_string()))?;
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
    use super::*;

    fn of(url: &str, pairs: &[(&str, &str)]) -> Result<Access, Problem> {
        let data = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()))
            .collect();
        access(&Url::parse(url).unwrap(), Some(("git", &data)))
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
        assert!(
            access(&Url::parse("https://h/r").unwrap(), None)
                .unwrap()
                .login
                .is_empty()
        );
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
        let (reason, message) = said("git@h:r.git", &[("password", "x")]);
        assert!(
            reason == Reason::SecretNotFound && message.contains("private key for h"),
            "{message}"
        );
        let (reason, message) = said("git@h:r.git", &[("identity", "x")]);
        assert!(
            reason == Reason::SourceUnauthorized && message.contains("key identity of Secret git"),
            "{message}"
        );
        let (_, message) = said("https://github.com/o/r", &[("githubAppID", "1")]);
        assert!(message.contains("githubAppInstallationID"), "{message}");
        let data = BTreeMap::from([("password".to_owned(), vec![0xff])]);
        let problem = access(&Url::parse("https://h/r").unwrap(), Some(("git", &data)))
            .err()
            .unwrap();
        assert!(
            problem
                .message
                .contains("password of Secret git is no text"),
            "{}",
            problem.message
        );
    }
}
