//! Who asks a host, as Secrets have it: by the keys that Flux, `kubernetes.io/basic-auth` and `kubernetes.io/ssh-auth` use.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::identity::{Identity, IdentityError};

/// Who asks a server by HTTP.
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

    /// The header that has them.
    pub(crate) fn header(&self) -> String {
        match self {
            Self::Bearer(token) => format!("Authorization: Bearer {token}"),
            Self::Basic(user, password) => {
                format!("Authorization: Basic {}", STANDARD.encode(format!("{user}:{password}")))
            }
        }
    }

    /// Whether they would be more than they say: another header, or another line of a file.
    pub fn is_broken(&self) -> bool {
        let texts = match self {
            Self::Bearer(token) => vec![token],
            Self::Basic(user, password) => vec![user, password],
        };
        texts.iter().any(|text| text.contains(['\n', '\r', '\0']))
    }
}

/// What one host is asked with.
#[derive(Clone)]
pub struct Login {
    /// `https://HOST:PORT/`: where the credentials of HTTP go, and nowhere else.
    pub origin: String,
    /// The host that the key is for, on any port.
    pub host: String,
    /// Who asks it by HTTP.
    pub http: Option<Credentials>,
    /// Who asks it by ssh.
    pub identity: Option<Identity>,
    /// Keys of the host besides those that are built in, as `known_hosts` has them.
    pub known_hosts: Option<String>,
    /// `ca.crt`: whom its certificate is trusted by, in PEM, on this origin alone.
    pub authority: Option<String>,
}

impl Login {
    /// What a Secret has for the host of an origin; `key` gives its values.
    ///
    /// # Errors
    /// When its private key is none that can be used.
    pub fn of(origin: &str, host: &str, key: impl Fn(&str) -> Option<String>) -> Result<Self, IdentityError> {
        let identity = key("identity").or_else(|| key("ssh-privatekey")).map(|text| Identity::parse(&text)).transpose()?;
        let known_hosts = key("known_hosts");
        let authority = key("ca.crt");
        let http = Credentials::of(key);
        Ok(Self { origin: origin.to_owned(), host: host.to_owned(), http, identity, known_hosts, authority })
    }

    /// Whether it says nothing of how the host is asked.
    pub const fn is_empty(&self) -> bool {
        self.http.is_none() && self.identity.is_none() && self.authority.is_none()
    }

    /// The texts that nobody may see.
    pub fn secrets(&self) -> Vec<String> {
        let http = self.http.iter().flat_map(Credentials::secrets);
        http.chain(self.identity.iter().map(|identity| identity.text().to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_names_who_asks() {
        let of = |pairs: &[(&str, &str)]| {
            Credentials::of(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(of(&[("username", "u"), ("ca.crt", "x")]).is_none());
        let basic = of(&[("username", "u\n"), ("password", "p\n")]).unwrap();
        assert_eq!((basic.secrets(), basic.header()), (vec!["p".into(), "u:p".into()], "Authorization: Basic dTpw".into()));
        let token = of(&[("bearerToken", "t"), ("password", "p")]).unwrap();
        assert_eq!(token.header(), "Authorization: Bearer t");
        assert!(!basic.is_broken() && of(&[("bearerToken", "t\nX: y")]).unwrap().is_broken());
        assert!(of(&[("username", "u\nhost=other"), ("password", "p")]).unwrap().is_broken());
    }
}
