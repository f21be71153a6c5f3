//! The URL that people use. Origin check, links and the names of cookies follow from it.

use std::{fmt, net::IpAddr, str::FromStr};

use axum::http::{Uri, uri::Authority};

/// Scheme, host, port and base path of the URL that people use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    origin: String,
    host: String,
    base: String,
}

impl Address {
    /// As in the header `Origin`: without the scheme's own port.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The base path without a slash at its end; "" when there is none.
    pub fn base(&self) -> &str {
        &self.base
    }

    pub fn is_https(&self) -> bool {
        self.origin.starts_with("https:")
    }

    pub fn is_loopback(&self) -> bool {
        is_loopback(&self.host)
    }

    /// Whether a page of this origin is one of ours. People forward any local port to the console, so a loopback URL accepts each of them.
    pub fn is_origin(&self, origin: &str) -> bool {
        let loopback = || origin.parse::<Self>().is_ok_and(|it| it.is_loopback());
        origin == self.origin || (self.is_loopback() && loopback())
    }

    /// Whether the header `Host` names this machine.
    pub fn is_local(host: &str) -> bool {
        host.parse::<Authority>()
            .is_ok_and(|authority| is_loopback(authority.host()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin, self.base)
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || address
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a URL like https://pawl.example.com or https://example.com/pawl")]
pub struct NotAnAddress;

impl FromStr for Address {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        let uri: Uri = text.parse().map_err(|_| NotAnAddress)?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(NotAnAddress);
        };
        let port = match scheme {
            "https" => 443,
            "http" => 80,
            _ => return Err(NotAnAddress),
        };
        let base = uri.path().trim_end_matches('/');
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte);
        let is_whole =
            uri.query().is_none() && !text.contains('#') && !authority.as_str().contains('@');
        if !is_whole || !base.bytes().all(is_plain) || base.contains("//") || base.contains("/.") {
            return Err(NotAnAddress);
        }
        let host = authority.host().to_ascii_lowercase();
        let port = match authority.port_u16() {
            Some(given) if given != port => format!(":{given}"),
            None if authority.as_str().len() > host.len() => return Err(NotAnAddress),
            _ => String::new(),
        };
        Ok(Self {
            origin: format!("{scheme}://{host}{port}"),
            host,
            base: base.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_becomes_origin_and_base_path() {
        for (url, origin, base) in [
            ("https://Pawl.example.com", "https://pawl.example.com", ""),
            ("https://example.com:443/", "https://example.com", ""),
            ("https://example.com/pawl/", "https://example.com", "/pawl"),
            ("http://127.0.0.1:8444/a/b", "http://127.0.0.1:8444", "/a/b"),
            ("http://[::1]:80", "http://[::1]", ""),
        ] {
            let address: Address = url.parse().unwrap();
            assert_eq!((address.origin(), address.base()), (origin, base), "{url}");
        }
    }

    #[test]
    fn ambiguous_url_is_refused() {
        for url in [
            "",
            "/pawl",
            "example.com",
            "ftp://example.com",
            "https://example.com/?a",
            "https://example.com/#a",
            "https://ada@example.com",
            "https://example.com:99999",
            "https://example.com//evil",
            "https://example.com/../a",
            "https://example.com/a;b",
        ] {
            assert_eq!(url.parse::<Address>(), Err(NotAnAddress), "{url}");
        }
    }

    #[test]
    fn only_a_loopback_url_accepts_other_ports() {
        let ours = |url: &str, origin| url.parse::<Address>().unwrap().is_origin(origin);
        assert!(ours("https://a.example/pawl", "https://a.example"));
        assert!(ours("http://127.0.0.1:8444", "http://localhost:9000"));
        for (url, origin) in [
            ("https://a.example", "http://a.example"),
            ("https://a.example", "https://a.example:8443"),
            ("https://a.example", "http://localhost:9000"),
            ("https://a.example", "https://a.example.evil.example"),
            ("https://a.example", "null"),
            ("http://127.0.0.1:8444", "http://evil.example:8444"),
            ("http://127.0.0.1:8444", "http://127.0.0.1.evil.example"),
            ("http://127.0.0.1:8444", "null"),
        ] {
            assert!(!ours(url, origin), "{url} {origin}");
        }
    }

    #[test]
    fn host_header_names_this_machine() {
        for host in ["localhost", "localhost:9000", "127.0.0.1:8444", "[::1]:1"] {
            assert!(Address::is_local(host), "{host}");
        }
        for host in [
            "",
            "a.example",
            "localhost.evil.example",
            "10.0.0.1",
            "127.0.0.1.evil:80",
        ] {
            assert!(!Address::is_local(host), "{host}");
        }
    }
}
