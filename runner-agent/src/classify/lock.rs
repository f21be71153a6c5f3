//! Reads the lock of a state from an error of the tool.

use crds::{Diagnostic, Failure, StateLock, reason, text::clip};

use super::rows::is_of_lock;

/// `by WHO since CREATED`, from the lock info of a diagnostic.
pub(super) fn lock_owner(detail: &str) -> Option<String> {
    let field = |name: &str| {
        let line = detail
            .lines()
            .map(str::trim)
            .find(|line| line.starts_with(name))?;
        Some(clip(line.get(name.len()..)?.trim(), 120)).filter(|v| !v.is_empty())
    };
    let who = field("Who:")?;
    Some(match field("Created:") {
        Some(created) => format!("by {who} since {created}"),
        None => format!("by {who}"),
    })
}

/// The directory of a file that the tool could not create for its lock. The tools report it like a held lock:
/// `Error message: open DIR/.terraform.tfstate.lock.info: permission denied`.
pub(super) fn unwritable(error: &Diagnostic) -> Option<&str> {
    if error.file.is_some() || error.address.is_some() || !is_of_lock(&error.summary) {
        return None;
    }
    let line = error
        .detail
        .as_deref()?
        .lines()
        .next()?
        .strip_prefix("Error message: ")?;
    let (call, _cause) = line.rsplit_once(": ")?;
    let file = call
        .strip_prefix("open ")
        .or_else(|| call.strip_prefix("mkdir "))?;
    Some(
        file.rsplit_once('/')
            .map_or(".", |(directory, _)| directory),
    )
}

/// Used if the backend does not name the holder.
pub const UNKNOWN: &str = "unknown";

/// The lock that blocked a step, as described by its holder. `own` is the name of this pod. If an `http` backend reports the lock of
/// another client, Terraform prints that lock's ID with its own lock info.
pub fn lock(failure: &Failure, own: &str) -> Option<StateLock> {
    if failure.reason != reason::STATE_LOCKED {
        return None;
    }
    let first = failure.diagnostics.first()?;
    // `init` prints errors of backends in the summary alone.
    let told = [Some(first.summary.as_str()), first.detail.as_deref()];
    let told = || told.into_iter().flatten();
    let field = |name: &str| {
        let lines = told().flat_map(str::lines).map(str::trim);
        lines
            .filter_map(|line| line.strip_prefix(name))
            .map(|value| value.trim().to_owned())
            .find(|value| !value.is_empty())
    };
    let who = field("Who:").unwrap_or_default();
    let named = told().find_map(|text| {
        let rest = text.split_once("already locked: ID=")?.1;
        rest.split_whitespace().next().map(str::to_owned)
    });
    let mine = who.rsplit_once('@').is_some_and(|(_, host)| host == own);
    let id = named
        .or_else(|| field("ID:"))
        .unwrap_or_else(|| UNKNOWN.to_owned());
    if mine {
        return Some(StateLock {
            id: clip(&id, 128),
            who: UNKNOWN.to_owned(),
            operation: None,
            created: None,
        });
    }
    let (operation, created) = (field("Operation:"), field("Created:"));
    Some(StateLock {
        id: clip(&id, 128),
        who: clip(&who, 256),
        operation: operation.map(|text| clip(&text, 64)),
        created: created.map(|text| clip(&text, 64)),
    })
}

/// The holder of a lock, for people.
pub fn held_by(lock: &StateLock) -> String {
    match (lock.who.as_str(), &lock.created) {
        (UNKNOWN | "", _) if lock.id == UNKNOWN => {
            "the state is locked; its backend does not say by whom".to_owned()
        }
        (UNKNOWN, _) => format!(
            "the state is locked (lock {}); its backend does not say by whom",
            lock.id
        ),
        (who, Some(created)) => format!("the state is locked by {who} since {created}"),
        (who, None) => format!("the state is locked by {who}"),
    }
}
