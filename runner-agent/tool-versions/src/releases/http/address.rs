//! Addresses: which are taken, and how they are shown.

use reqwest::Url;

use crate::{Error, Result};

/// Reads an address that someone wrote: `https`, or `http` when that is what they wrote, with a host and without a name or password
/// in it. `what` says whose it is, because the address itself is not repeated: it may hold a secret.
///
/// # Errors
/// Configuration, when it is none of these.
pub fn read(what: &str, text: &str) -> Result<Url> {
    let url = Url::parse(text).map_err(|error| Error::configuration(format!("{what} is no address of a web server: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(Error::configuration(format!("{what} is neither https nor http: its scheme is `{}`", url.scheme())));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Error::configuration(format!(
            "{what} has a name or a password in it, where logs show them: give them beside the address"
        )));
    }
    Ok(url)
}

/// An address as messages show it: without a name, a password, a query and a fragment, which may be secrets.
pub fn shown(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let path = if url.path() == "/" { "" } else { url.path() };
    format!("{}://{host}{port}{path}", url.scheme())
}

/// The same, of an address that was not read yet.
pub fn shown_text(text: &str) -> String {
    Url::parse(text).map_or_else(|_| "an address that cannot be read".to_owned(), |url| shown(&url))
}

/// Whether what is meant for the one server may be sent to the other: same host and port and scheme, or the same host on its
/// ordinary ports when the second is encrypted and the first was not.
pub fn is_same_server(one: &Url, other: &Url) -> bool {
    let host = one.host_str().is_some() && one.host_str() == other.host_str();
    let same = one.scheme() == other.scheme() && one.port_or_known_default() == other.port_or_known_default();
    let better = one.scheme() == "http" && other.scheme() == "https" && one.port().is_none() && other.port().is_none();
    host && (same || better)
}
