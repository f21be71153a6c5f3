//! Credentials for hosts from Secrets, with the keys that Flux, `kubernetes.io/basic-auth` and `kubernetes.io/ssh-auth` use.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::identity::{Identity, IdentityError};

/// Credentials for HTTP.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// `bearerToken`.
    Bearer(String),
    /// `username`, which may be empty, and `password`.
    Basic(String, String),
}

impl Credentials {
    /// Reads the credentials of a Secret; `key` returns its values. `None` without a token and a password. Removes a newline at
    /// the end of a value.
    pub fn of(key: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let key = |name| key(name).map(|value| value.trim_end_matches(['\n', '\r']).to_owned());
        match (key("bearerToken"), key("username"), key("password")) {
            (Some(token), _, _) => Some(Self::Bearer(token)),
            (None, user, Some(password)) => Some(Self::Basic(user.unwrap_or_default(), password)),
            (None, _, None) => None,
        }
    }

    /// The texts to redact.
    pub fn secrets(&self) -> Vec<String> {
        match self {
            Self::Bearer(token) => vec![token.clone()],
            Self::Basic(user, password) => vec![password.clone(), format!("{user}:{password}")],
        }
    }

    /// The `Authorization` header.
    pub(crate) fn header(&self) -> String {
        match self {
            Self::Bearer(token) => format!("Authorization: Bearer {token}"),
            Self::Basic(user, password) => {
                format!(
                    "Authorization: Basic {}",
                    STANDARD.encode(format!("{user}:{password}"))
                )
            }
        }
    }

    /// Whether a value has a line break, which would add a header or a line to a file.
    pub fn is_broken(&self) -> bool {
        let texts = match self {
            Self::Bearer(token) => vec![token],
            Self::Basic(user, password) => vec![user, password],
        };
        texts.iter().any(|text| text.contains(['\n', '\r', '\0']))
    }
}

/// The credentials for one host.
#[derive(Clone, Default)]
pub struct Login {
    /// `https://HOST:PORT/`, the only destination of the HTTP credentials.
    pub origin: String,
    /// The host of the ssh key, on any port.
    pub host: String,
    /// Credentials for HTTP.
    pub http: Option<Credentials>,
    /// The ssh key.
    pub identity: Option<Identity>,
    /// Host keys besides the built-in ones, in `known_hosts` format.
    pub known_hosts: Option<String>,
    /// `ca.crt`: the certificate authorities for this origin alone, in PEM.
    pub authority: Option<String>,
}

impl Login {
    /// Reads a Secret for the host of an origin; `key` returns its values.
    ///
    /// # Errors
    /// The private key is not usable.
    pub fn of(
        origin: &str,
        host: &str,
        key: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, IdentityError> {
        let identity = key("identity")
            .or_else(|| key("ssh-privatekey"))
            .map(|text| Identity::parse(&text))
            .transpose()?;
        let known_hosts = key("known_hosts");
        let authority = key("ca.crt");
        let http = Credentials::of(key);
        Ok(Self {
            origin: origin.to_owned(),
            host: host.to_owned(),
            http,
            identity,
            known_hosts,
            authority,
        })
    }

    /// Whether it is empty.
    pub const fn is_empty(&self) -> bool {
        self.http.is_none() && self.identity.is_none() && self.authority.is_none()
    }

    /// The texts to redact.
    pub fn secrets(&self) -> Vec<String> {
        let http = self.http.iter().flat_map(Credentials::secrets);
        http.chain(
            self.identity
                .iter()
                .map(|identity| identity.text().to_owned()),
        )
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_selects_the_credentials() {
        let of = |pairs: &[(&str, &str)]| {
            Credentials::of(|name| {
                pairs
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| (*value).to_owned())
            })
        };
        assert!(of(&[("username", "u"), ("ca.crt", "x")]).is_none());
        let basic = of(&[("username", "u\n"), ("password", "p\n")]).unwrap();
        assert_eq!(
            (basic.secrets(), basic.header()),
            (
                vec!["p".into(), "u:p".into()],
                "Authorization: Basic dTpw".into()
            )
        );
        let token = of(&[("bearerToken", "t"), ("password", "p")]).unwrap();
        assert_eq!(token.header(), "Authorization: Bearer t");
        assert!(!basic.is_broken() && of(&[("bearerToken", "t\nX: y")]).unwrap().is_broken());
        assert!(
            of(&[("username", "u\nhost=other"), ("password", "p")])
                .unwrap()
                .is_broken()
        );
    }
}
