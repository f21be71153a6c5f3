//! Reads requests to the API server from its audit log.

use std::collections::BTreeMap;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::Value;

/// Kind of a request, in the order of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A write of a run, its status or a pod.
    Write,
    /// A get or a list.
    Read,
    /// The begin of a watch.
    Watch,
    /// A dry-run write.
    DryRun,
    /// A write of an Event.
    Event,
    /// A write of an account, role or binding.
    Rights,
    /// A token or access review: nothing is stored.
    Review,
    /// The controller's own requests, independent of runs.
    Own,
}

impl Kind {
    pub(crate) const ALL: [Self; 8] = [
        Self::Write,
        Self::Read,
        Self::Watch,
        Self::DryRun,
        Self::Event,
        Self::Rights,
        Self::Review,
        Self::Own,
    ];
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) at: Timestamp,
    pub(crate) user: String,
    pub(crate) kind: Kind,
    /// `patch terraformruns/status b1/run-0`.
    pub(crate) what: String,
    pub(crate) code: u64,
}

/// The present length of an audit log, as a start for a later read.
pub(crate) fn end(file: &Path) -> Result<u64> {
    Ok(std::fs::metadata(file)
        .with_context(|| format!("cannot look at {}", file.display()))?
        .len())
}

/// All requests since an offset in the log.
pub(crate) fn since(file: &Path, place: u64) -> Result<Vec<Request>> {
    let mut log =
        std::fs::File::open(file).with_context(|| format!("cannot open {}", file.display()))?;
    log.seek(SeekFrom::Start(place))?;
    let mut text = String::new();
    log.read_to_string(&mut text)?;
    // The last line may be incomplete.
    Ok(text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter_map(|event| request(&event))
        .collect())
}

fn request(event: &Value) -> Option<Request> {
    let text = |pointer: &str| {
        event
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (verb, stage, resource) = (text("/verb"), text("/stage"), text("/objectRef/resource"));
    // A watch is logged at its begin and its end, other requests at their end only.
    if (verb == "watch") != (stage == "ResponseStarted") {
        return None;
    }
    let kind = match (verb.as_str(), resource.as_str()) {
        ("watch", _) => Kind::Watch,
        (_, "apiservices") => Kind::Own,
        (_, "tokenreviews") => Kind::Review,
        ("get" | "list", _) => Kind::Read,
        _ if text("/requestURI").contains("dryRun=") => Kind::DryRun,
        (_, "events") => Kind::Event,
        (_, "serviceaccounts" | "roles" | "rolebindings") => Kind::Rights,
        _ => Kind::Write,
    };
    let sub = text("/objectRef/subresource");
    let slash = if sub.is_empty() { "" } else { "/" };
    let place = format!(
        "{}/{}",
        text("/objectRef/namespace"),
        text("/objectRef/name")
    );
    Some(Request {
        at: text("/requestReceivedTimestamp").parse().ok()?,
        user: text("/user/username"),
        kind,
        what: format!("{verb} {resource}{slash}{sub} {place}"),
        code: event
            .pointer("/responseStatus/code")
            .and_then(Value::as_u64)
            .unwrap_or_default(),
    })
}

/// Counts requests: `patch terraformruns/status x5, create pods x1`.
pub(crate) fn counted<'a>(requests: impl IntoIterator<Item = &'a Request>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for request in requests {
        let words: Vec<_> = request.what.split(' ').take(2).collect();
        let refused = if request.code >= 400 {
            format!(" ({})", request.code)
        } else {
            String::new()
        };
        *counts
            .entry(format!("{}{refused}", words.join(" ")))
            .or_default() += 1;
    }
    counts
        .iter()
        .map(|(what, count)| format!("{what} x{count}"))
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(verb: &str, stage: &str, resource: &str, uri: &str) -> Value {
        json!({"verb": verb, "stage": stage, "requestURI": uri, "requestReceivedTimestamp": "2026-11-21T12:00:00.5Z",
            "user": {"username": "u"}, "objectRef": {"resource": resource, "subresource": "status", "namespace": "n", "name": "a"},
            "responseStatus": {"code": 200}})
    }

    #[test]
    fn a_watch_counts_once_and_dry_runs_apart() {
        let kind = |verb, stage, resource, uri| {
            request(&event(verb, stage, resource, uri)).map(|r| r.kind)
        };
        assert_eq!(
            kind("watch", "ResponseStarted", "pods", "/"),
            Some(Kind::Watch)
        );
        assert_eq!(kind("watch", "ResponseComplete", "pods", "/"), None);
        assert_eq!(
            kind(
                "patch",
                "ResponseComplete",
                "terraformruns",
                "/x?dryRun=All"
            ),
            Some(Kind::DryRun)
        );
        assert_eq!(
            kind("create", "ResponseComplete", "events", "/"),
            Some(Kind::Event)
        );
        assert_eq!(
            kind("patch", "ResponseComplete", "terraformruns", "/"),
            Some(Kind::Write)
        );
        assert_eq!(
            kind("create", "ResponseComplete", "tokenreviews", "/"),
            Some(Kind::Review)
        );
        let requests = [1, 2]
            .map(|_| request(&event("patch", "ResponseComplete", "terraformruns", "/")).unwrap());
        assert_eq!(counted(&requests), "patch terraformruns/status x2");
    }
}
