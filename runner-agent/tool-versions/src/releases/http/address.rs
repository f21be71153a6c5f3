//! URLs: validation, and the form that messages may show.

use reqwest::Url;

use crate::{Error, Result};

/// Parses a configured URL: `https` or `http`, with a host and without credentials. `what` names the setting in errors; they never
/// repeat the URL, which may hold a secret.
///
/// # Errors
/// Configuration for any other text.
pub fn read(what: &str, text: &str) -> Result<Url> {
    let url = Url::parse(text).map_err(|error| {
        Error::configuration(format!("{what} is no address of a web server: {error}"))
    })?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(Error::configuration(format!(
            "{what} is neither https nor http: its scheme is `{}`",
            url.scheme()
        )));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Error::configuration(format!(
            "{what} has a name or a password in it, where logs show them: give them beside the address"
        )));
    }
    Ok(url)
}

/// A URL for messages: without credentials, query and fragment, which may be secrets.
pub fn shown(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url
        .port()
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    let path = if url.path() == "/" { "" } else { url.path() };
    format!("{}://{host}{port}{path}", url.scheme())
}

/// As [`shown`], of unparsed text.
pub fn shown_text(text: &str) -> String {
    Url::parse(text).map_or_else(
        |_| "an address that cannot be read".to_owned(),
        |url| shown(&url),
    )
}

/// Whether credentials for `one` may be sent to `other`: same scheme, host and port.
pub fn is_same_server(one: &Url, other: &Url) -> bool {
    one.host_str().is_some() && one.origin() == other.origin()
}
