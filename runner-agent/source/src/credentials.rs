//! Credentials for hosts from Secrets, with the keys that Flux, `kubernetes.io/basic-auth` and `kubernetes.io/ssh-auth` use.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::{
    identity::{Identity, IdentityError},
    url::Url,
};

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

/// The credentials for one host, or a part of it.
#[derive(Clone, Default)]
pub struct Login {
    /// `https://HOST:PORT/`, the only destination of the HTTP credentials.
    pub origin: String,
    /// The host of the ssh key, on any port.
    pub host: String,
    /// The only user of URLs for HTTP; empty for all.
    pub user: String,
    /// The beginning of the paths, in whole names and without slashes at its ends; empty for all.
    pub path: String,
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
    /// Reads a Secret for a part of a host; `key` returns its values.
    ///
    /// # Errors
    /// The private key is not usable.
    pub fn of_part(
        part: &Url,
        key: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, IdentityError> {
        Ok(Self {
            user: part.user().to_owned(),
            path: part.path().to_owned(),
            ..Self::of(&part.web_origin(), part.host(), key)?
        })
    }

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
            user: String::new(),
            path: String::new(),
            http,
            identity,
            known_hosts,
            authority,
        })
    }

    /// The URL that these credentials are for, as in git's `http.<url>.*`.
    pub fn scope(&self) -> String {
        let at = if self.user.is_empty() { "" } else { "@" };
        let host = self.origin.split_once("://");
        let (scheme, host) = host.unwrap_or(("https", &self.origin));
        format!("{scheme}://{}{at}{host}{}", self.user, self.path)
    }

    /// Whether they are for a URL on their host with a path.
    pub fn covers(&self, host: &str, path: &str) -> bool {
        let rest = path.strip_prefix(&*self.path);
        self.host.eq_ignore_ascii_case(host)
            && rest.is_some_and(|rest| {
                self.path.is_empty() || rest.is_empty() || rest.starts_with('/')
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

/// A part of a host: `[USER@]HOST[:PORT][/PATH]`.
pub fn part(text: &str) -> Option<Url> {
    let url = Url::parse(&format!("https://{}", text.trim_end_matches('/')))?;
    let is_name = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['?', '#', '*']);
    (url.path().is_empty() || url.path().split('/').all(is_name)).then_some(url)
}

/// The logins of a source: its own, which is the only one for the source itself, and further ones, which come first for its submodules.
pub fn of_source(own: Option<Login>, url: &Url, further: Vec<Login>) -> Vec<Login> {
    let mut all = further;
    if let Some(own) = own {
        let is_covered = all.iter().any(|login| login.covers(url.host(), url.path()));
        let of_url = is_covered.then(|| Login {
            path: url.path().to_owned(),
            ..own.clone()
        });
        all.splice(0..0, of_url);
        all.push(own);
    }
    all
}

/// The logins in the order that git needs: what it finds for a longer URL, it never replaces by what is for a shorter one.
pub fn longest_first(logins: &[Login]) -> Vec<&Login> {
    let mut all: Vec<&Login> = logins.iter().collect();
    all.sort_by_key(|login| std::cmp::Reverse((login.path.len(), !login.user.is_empty())));
    all
}

/// URLs that git fetches from in place of others: credentials for one protocol serve URLs that are written for the other one, if none are for
/// that. A key without a path does so for no URL of https, which may be public. Git compares texts and takes the longest, so one name ends with
/// a slash; several may be a repository, and include others that begin with the same text.
pub fn rewrites(logins: &[Login]) -> Vec<(String, String)> {
    let (mut all, mut own) = (Vec::new(), Vec::new());
    let has = |of: &Login, is: fn(&Login) -> bool| {
        let mut others = logins.iter().filter(|login| is(login));
        others.any(|login| login.covers(&of.host, &of.path))
    };
    for login in logins {
        let Login { host, path, .. } = login;
        let is_open = path.is_empty() || path.contains('/') || path.strip_suffix(".git").is_some();
        let end = if is_open { "" } else { "/" };
        let web = login.scope() + end;
        let ssh = format!("ssh://git@{host}/{path}{end}");
        let scp = format!("git@{host}:{path}{end}");
        if login.http.is_some() {
            if !has(login, |other| other.identity.is_some()) {
                all.extend([(web.clone(), ssh.clone()), (web.clone(), scp.clone())]);
            }
            own.push(web.clone());
        }
        if login.identity.is_some() {
            if !path.is_empty() && !has(login, |other| other.http.is_some()) {
                all.push((ssh.clone(), web));
            }
            own.extend([ssh, scp]);
        }
    }
    // A part of a host that is led elsewhere may have parts that are not.
    own.retain(|url| all.iter().any(|(_, from)| url.starts_with(from)));
    all.extend(own.into_iter().map(|url| (url.clone(), url)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(part: &str, http: bool, key: bool) -> Login {
        let url = super::part(part).unwrap();
        let pem = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----";
        let value = |name: &str| match name {
            "bearerToken" if http => Some("t".to_owned()),
            "identity" if key => Some(pem.to_owned()),
            _ => None,
        };
        Login::of_part(&url, value).unwrap()
    }

    #[test]
    fn part_of_a_host_is_matched_in_whole_names() {
        let org = login("org@dev.azure.com/org/", true, false);
        assert_eq!(org.scope(), "https://org@dev.azure.com/org");
        assert!(org.covers("Dev.azure.com", "org/p/_git/r") && org.covers("dev.azure.com", "org"));
        assert!(!org.covers("dev.azure.com", "organ/p") && !org.covers("other", "org"));
        assert_eq!(login("h:8443", true, false).scope(), "https://h:8443/");
        for broken in ["h/a b", "u:p@h", "h/../x", "h/a//x", "h/a?b", "h/'$(x)'"] {
            assert!(part(broken).is_none(), "{broken}");
        }
        let logins = [
            login("h", true, false),
            login("h/a", true, false),
            login("h/a/b", true, false),
            login("u@h/a", true, false),
        ];
        let order: Vec<_> = longest_first(&logins)
            .iter()
            .map(|own| own.scope())
            .collect();
        let wanted = [
            "https://h/a/b",
            "https://u@h/a",
            "https://h/a",
            "https://h/",
        ];
        assert_eq!(order, wanted);
    }

    #[test]
    fn credentials_serve_urls_of_the_other_protocol() {
        let pair = |(to, from): (&str, &str)| (to.to_owned(), from.to_owned());
        let token = [login("h", true, false)];
        let wanted = [("https://h/", "ssh://git@h/"), ("https://h/", "git@h:")];
        assert_eq!(rewrites(&token), wanted.map(pair));
        let both = [login("h", true, false), login("h", false, true)];
        assert!(rewrites(&both).is_empty(), "each has its own");
        let key = [login("h/org", false, true), login("h", false, true)];
        assert_eq!(
            rewrites(&key),
            [("ssh://git@h/org/", "https://h/org/")].map(pair)
        );
    }

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
