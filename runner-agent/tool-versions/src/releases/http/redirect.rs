//! The redirects that the client follows: to https, or to the same host over http when the request began with http.

use reqwest::{
    Url,
    redirect::{Attempt, Policy},
};

use super::address::shown;
use crate::{Error, Result};

/// The most redirects of one request. GitHub needs one; a mirror behind a login page needs two.
pub const MOST: usize = 5;

/// Follows what [`check`] allows. `reqwest` drops `Authorization` and `Cookie` at the first hop to another scheme, host or port, and
/// never sends them again.
pub(super) fn policy() -> Policy {
    Policy::custom(
        |attempt: Attempt<'_>| match check(attempt.previous(), attempt.url()) {
            Ok(()) => attempt.follow(),
            Err(error) => attempt.error(error),
        },
    )
}

/// Checks one redirect. `asked` are the addresses requested so far, oldest first; the last one redirects to `to`.
///
/// # Errors
/// Integrity for a target that is not safe; unavailable for loops and for more than [`MOST`] redirects.
pub fn check(asked: &[Url], to: &Url) -> Result<()> {
    let (Some(first), Some(last)) = (asked.first(), asked.last()) else {
        return Err(Error::unavailable("a redirect without a request"));
    };
    let (from, target) = (shown(last), shown(to));
    let plain =
        to.scheme() == "http" && first.scheme() == "http" && to.host_str() == first.host_str();
    if !to.has_host() || !(to.scheme() == "https" || plain) {
        let text = format!(
            "{from} redirects to {target}, which is not https: anyone on the path could answer"
        );
        return Err(Error::integrity(text));
    }
    let mut document = to.clone();
    document.set_fragment(None);
    if asked.contains(&document) {
        return Err(Error::unavailable(format!(
            "{from} redirects to {target}, which led there: a loop"
        )));
    }
    if asked.len() > MOST {
        return Err(Error::unavailable(format!(
            "{} redirects more than {MOST} times, at last to {target}",
            shown(first)
        )));
    }
    Ok(())
}
