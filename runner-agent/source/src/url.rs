//! URLs and revisions for git. Both are untrusted.

/// The transport of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// `http://` or `https://`.
    Http,
    /// `ssh://`, or scp's `user@host:path`.
    Ssh,
}

/// A URL for git.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    text: String,
    transport: Transport,
    host: String,
}

impl Url {
    /// Parses a URL: `http` or `https` without a password, or ssh. `None` for any other that git would accept.
    pub fn parse(text: &str) -> Option<Self> {
        let legal = |c: char| {
            c.is_ascii_graphic()
                && !matches!(
                    c,
                    '\\' | '"' | '\'' | '`' | '<' | '>' | '^' | '{' | '|' | '}'
                )
        };
        if !text.chars().all(legal) {
            return None;
        }
        let (transport, authority) = if let Some(rest) = text
            .strip_prefix("https://")
            .or_else(|| text.strip_prefix("http://"))
        {
            let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
            // A password would appear in statuses and logs.
            (Transport::Http, without_user(authority)?)
        } else if let Some(rest) = text.strip_prefix("ssh://") {
            let (authority, path) = rest.split_once('/')?;
            if path.is_empty() {
                return None;
            }
            (Transport::Ssh, without_user(authority)?)
        } else {
            let (place, path) = text.split_once(':')?;
            // Without a user it could name a remote helper: `ext::…`.
            if !place.contains('@')
                || path.is_empty()
                || path.starts_with([':', '-'])
                || place.contains('/')
            {
                return None;
            }
            (Transport::Ssh, without_user(place)?)
        };
        let host = host(authority)?;
        Some(Self {
            text: text.to_owned(),
            transport,
            host: host.to_owned(),
        })
    }

    /// The text as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The transport.
    pub const fn transport(&self) -> Transport {
        self.transport
    }

    /// The host as written, without a port.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The user of a URL with a scheme; empty without one, and for scp's form.
    pub fn user(&self) -> &str {
        let rest = self.text.split_once("://").map_or("", |(_, rest)| rest);
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        authority.split_once('@').map_or("", |(user, _)| user)
    }

    /// The path, without slashes at its ends.
    pub fn path(&self) -> &str {
        let path = match self.text.split_once("://") {
            Some((_, rest)) => rest.split_once('/'),
            None => self.text.split_once(':'),
        };
        path.map_or("", |(_, path)| path).trim_matches('/')
    }

    /// The name of the directory that `git clone` creates.
    pub fn clone_dir(&self) -> &str {
        let path = self.text.trim_end_matches('/');
        let path = path.strip_suffix("/.git").unwrap_or(path);
        let name = path.rsplit(['/', ':']).next().unwrap_or_default();
        let name = name.strip_suffix(".git").unwrap_or(name);
        if matches!(name, "" | "." | "..") {
            "repository"
        } else {
            name
        }
    }

    /// `scheme://host:port/`; for an ssh URL the https origin of its host.
    pub fn web_origin(&self) -> String {
        match self.transport {
            Transport::Http => self.origin(),
            Transport::Ssh => format!("https://{}/", self.host.to_lowercase()),
        }
    }

    /// `scheme://host:port/` of an HTTP URL, as git compares it: in lower case, without the default port.
    pub fn origin(&self) -> String {
        let (scheme, rest) = self.text.split_once("://").unwrap_or(("https", &self.text));
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let place = authority.rsplit('@').next().unwrap_or_default();
        let default = if scheme == "https" { ":443" } else { ":80" };
        let place = place.strip_suffix(default).unwrap_or(place);
        format!("{scheme}://{}/", place.to_lowercase())
    }
}

/// The part after `user@`, which must not look like an option.
fn without_user(authority: &str) -> Option<&str> {
    let Some((user, rest)) = authority.split_once('@') else {
        return Some(authority);
    };
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '+' | '~');
    (!user.is_empty() && !user.starts_with('-') && user.chars().all(legal)).then_some(rest)
}

/// The host of `host`, `host:port`, `[address]` or `[address]:port`.
fn host(authority: &str) -> Option<&str> {
    let (host, port, legal): (_, _, fn(char) -> bool) =
        if let Some(rest) = authority.strip_prefix('[') {
            let (host, after) = rest.split_once(']')?;
            let port = if after.is_empty() {
                None
            } else {
                Some(after.strip_prefix(':')?)
            };
            (host, port, |c| {
                c.is_ascii_hexdigit() || matches!(c, ':' | '.')
            })
        } else {
            let (host, port) = authority
                .split_once(':')
                .map_or((authority, None), |(host, port)| (host, Some(port)));
            (host, port, |c| {
                c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')
            })
        };
    if host.is_empty() || host.starts_with('-') || !host.chars().all(legal) {
        return None;
    }
    port.is_none_or(|port| {
        !port.is_empty() && port.len() <= 5 && port.chars().all(|c| c.is_ascii_digit())
    })
    .then_some(host)
}

/// Whether git accepts it as a revision, by the rules of `git check-ref-format`, and it is no refspec.
pub fn is_revision(revision: &str) -> bool {
    let legal =
        |c: char| c.is_ascii_graphic() && !matches!(c, ':' | '^' | '~' | '?' | '*' | '[' | '\\');
    !revision.is_empty()
        && revision.chars().all(legal)
        && !revision.starts_with(['-', '+', '/', '.'])
        && !revision.ends_with(['/', '.'])
        && !["..", "@{", "//", "/."]
            .iter()
            .any(|part| revision.contains(part))
        && revision != "@"
        && !format!("{revision}/").contains(".lock/")
}

/// Whether it is a full commit id.
pub fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.chars().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_revisions_are_refused() {
        for revision in [
            "main",
            "HEAD",
            "v1.2.3",
            "feature/a+b",
            "refs/pull/1/head",
            &"a".repeat(40),
        ] {
            assert!(is_revision(revision), "{revision}");
        }
        let refused = "|-x|--upload-pack=touch /tmp/x|+main|main:refs/heads/x|a..b|a@{1}|a b|*|a.lock/b|^main|a~1|@|\
             .hidden|a/.b|a\nb";
        for revision in refused.split('|') {
            assert!(!is_revision(revision), "{revision}");
        }
    }

    #[test]
    fn clone_directory_is_named_as_by_git() {
        for (url, name) in [
            ("https://h/team/infra-live.git", "infra-live"),
            ("https://h/team/infra-live/", "infra-live"),
            (
                "https://org@dev.azure.com/org/p/_git/net%20live",
                "net%20live",
            ),
            ("git@h:team/a.b.git", "a.b"),
            ("git@h:a.git", "a"),
            ("ssh://git@h:22/~/r/.git", "r"),
            ("https://h/..", "repository"),
        ] {
            assert_eq!(Url::parse(url).unwrap().clone_dir(), name, "{url}");
        }
    }

    #[test]
    fn urls_are_http_without_password_or_ssh() {
        let rows = [
            ("https://example.org/a.git", Transport::Http, "example.org"),
            (
                "https://org@dev.azure.com/org/p/_git/r",
                Transport::Http,
                "dev.azure.com",
            ),
            ("http://10.0.0.1:8080/r", Transport::Http, "10.0.0.1"),
            (
                "ssh://git@Git.Example.org/team/r.git",
                Transport::Ssh,
                "Git.Example.org",
            ),
            (
                "ssh://git.example.org:2222/~/r",
                Transport::Ssh,
                "git.example.org",
            ),
            ("ssh://git@[fd00::1]:22/r", Transport::Ssh, "fd00::1"),
            ("git@github.com:org/r.git", Transport::Ssh, "github.com"),
            (
                "org-1@ssh.dev.azure.com:v3/org/project/r",
                Transport::Ssh,
                "ssh.dev.azure.com",
            ),
        ];
        for (text, transport, host) in rows {
            let url = Url::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(
                (url.transport(), url.host(), url.as_str()),
                (transport, host, text)
            );
        }
        assert_eq!(
            Url::parse("http://h:1/a/b").unwrap().origin(),
            "http://h:1/"
        );
        let azure = Url::parse("https://org@dev.azure.com/org/p/_git/r").unwrap();
        assert_eq!(azure.web_origin(), "https://dev.azure.com/");
        let refused = "file:///etc|/etc|h:path|https://u:p@h/x|https://|https://h:x/r|ext::sh -c x|git@ext::sh|\
             https://h/a b|--upload-pack=x|ssh://h|ssh://h/|ssh:///path|ssh://-oProxyCommand=x/r|\
             ssh://git@-oProxyCommand=x/r|ssh://-x@h/r|ssh://git:password@h/r|-oProxyCommand=x@h:r|\
             git@-oProxyCommand=x:r|git@h:-x|git@h:|git@h/a:b|git@$(x):r|git@h:a'b";
        for text in refused.split('|') {
            assert!(Url::parse(text).is_none(), "{text}");
        }
    }
}
