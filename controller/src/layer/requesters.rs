//! The users whose requests a layer's run answers. None of them may approve it where another person has to (`design/0004`, four eyes).

use crds::names::REQUESTED_BY;

use super::situation::Situation;
use crate::run_requests::requesters;

/// All named since the wanted content was applied last. The admission policy admits another name only when the one before is recorded, so
/// no request is missed.
pub(super) fn open(s: &Situation<'_>) -> Vec<String> {
    let status = s.o.status();
    let asks = status.observed_generation != s.o.layer.metadata.generation || s.o.asked().is_some();
    if s.wanted.is_ok() && s.is_settled() && !asks {
        return Vec::new();
    }
    with_last(s, &status.requested_by)
}

/// The same and the last one named, one a line; empty if no one ever was.
pub(super) fn of_run(s: &Situation<'_>) -> String {
    with_last(s, &open(s)).join("\n")
}

fn with_last(s: &Situation<'_>, all: &[String]) -> Vec<String> {
    let last = s.o.annotation(REQUESTED_BY);
    requesters(all.iter().map(String::as_str).chain(last))
}
