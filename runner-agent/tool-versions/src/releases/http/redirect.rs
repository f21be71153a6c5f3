//! Where a redirect may lead.

use reqwest::{StatusCode, Url};

use super::address::shown;
use crate::{Error, Result};

/// The most redirects of one request. GitHub needs one, a mirror behind a login page two.
pub const MOST: usize = 5;

pub fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// The next address, from the first one that was asked, those that were asked since (the last one answered), and `Location`.
///
/// It is `https`, or `http` at the host of the first one when that was `http` on purpose. A name or password in it is left out: an
/// answer does not decide what we log in with.
///
/// # Errors
/// Integrity for an address that cannot be read or is not safe; unavailable for loops and for more than [`MOST`].
pub fn next(asked: &[Url], location: &[u8]) -> Result<Url> {
    let (Some(first), Some(last)) = (asked.first(), asked.last()) else {
        return Err(Error::unavailable("a redirect of nothing"));
    };
    let text = std::str::from_utf8(location).ok().filter(|text| !text.trim().is_empty());
    let mut to = text.and_then(|text| last.join(text.trim()).ok()).ok_or_else(|| {
        Error::integrity(format!("{} redirects to what is no address; a proxy in between may have written it", shown(last)))
    })?;
    to.set_fragment(None);
    let plain = to.scheme() == "http" && first.scheme() == "http" && to.host_str() == first.host_str();
    if !to.has_host() || !(to.scheme() == "https" || plain) {
        return Err(Error::integrity(format!(
            "{} redirects to {}, which is not https: anyone on the way could answer",
            shown(last),
            shown(&to)
        )));
    }
    // They fail for addresses that cannot have them, and those have no host.
    let _ = to.set_username("");
    let _ = to.set_password(None);
    if asked.contains(&to) {
        return Err(Error::unavailable(format!("{} redirects to {}, which led there: a loop", shown(last), shown(&to))));
    }
    if asked.len() > MOST {
        return Err(Error::unavailable(format!("{} redirects more than {MOST} times, at last to {}", shown(first), shown(&to))));
    }
    Ok(to)
}
