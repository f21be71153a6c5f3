//! The append-only ledger that the scripted tool and the servers write, and the checks read.
//!
//! One JSON object per line, `{seq, at, who, what, …detail}`. The owner of the ledger assigns `seq` in the order in which it accepts
//! entries, so entries of different pods have one order, independent of their clocks. An entry is written before its effect is visible to
//! others, so without an entry there was no effect.

mod lock;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use lock::{LockInfo, basic_header};

/// The values of `what`, shared by writers and checks.
pub mod what {
    /// The scripted tool began a command.
    pub const COMMAND_START: &str = "command_start";
    /// The scripted tool ended a command; absent if it was killed.
    pub const COMMAND_END: &str = "command_end";
    /// An `apply` passed its checks and is about to touch its first resource.
    pub const APPLY: &str = "apply";
    /// One resource was really created, updated or deleted, whether or not a state has it.
    pub const RESOURCE: &str = "resource";
    /// The scripted tool received a signal.
    pub const SIGNAL: &str = "signal";
    /// The scripted tool received a second signal and exits without writing its state.
    pub const FORCED_EXIT: &str = "forced_exit";
    /// A process that the script left in the background is alive.
    pub const BACKGROUND: &str = "background";
    /// A mark of a test, or of a tool that asks: whether it has a terminal.
    pub const MARK: &str = "mark";
    /// A state was locked.
    pub const LOCK: &str = "lock";
    /// A lock was refused because another holds it.
    pub const LOCK_REFUSED: &str = "lock_refused";
    /// A state was unlocked.
    pub const UNLOCK: &str = "unlock";
    /// An unlock by someone who does not hold the lock.
    pub const UNLOCK_REFUSED: &str = "unlock_refused";
    /// A version of a state was written.
    pub const WRITE: &str = "write";
    /// A write without the lock, or with the wrong one.
    pub const WRITE_REFUSED: &str = "write_refused";
}

/// One line of a ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Position in the ledger, from 1; assigned by the ledger, not by the writer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Time of the write, by the writer's clock (RFC 3339).
    pub at: String,
    /// Host name of the writer, which in a pod is the pod's name; for a state server the holder in the lock.
    pub who: String,
    /// The kind of the entry; see [`what`].
    pub what: String,
    /// All other fields.
    #[serde(flatten)]
    pub detail: Map<String, Value>,
}

impl Entry {
    /// A new entry with the present time.
    pub fn new(who: &str, what: &str, detail: Value) -> Self {
        let detail = match detail {
            Value::Object(map) => map,
            Value::Null => Map::new(),
            other => Map::from_iter([("detail".to_owned(), other)]),
        };
        Self {
            seq: None,
            at: jiff::Timestamp::now().to_string(),
            who: who.to_owned(),
            what: what.to_owned(),
            detail,
        }
    }

    /// A detail, if it is a string.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.detail.get(key).and_then(Value::as_str)
    }

    /// A detail, if it is a number.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.detail.get(key).and_then(Value::as_u64)
    }

    /// This entry as a line, with newline.
    pub fn line(&self) -> String {
        // Only maps with non-string keys could fail, and `detail` has none.
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}

/// An in-memory ledger; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    entries: Arc<Mutex<Vec<Entry>>>,
}

impl Ledger {
    /// Appends an entry; returns its number, and the number of entries of the same kind.
    ///
    /// The kind is `what`, and the details `script` and `command` if present: so a scripted tool knows how often it has run.
    pub fn append(&self, mut entry: Entry) -> Ack {
        let mut entries = self.guard();
        let seq = entries.len() as u64 + 1;
        entry.seq = Some(seq);
        let nth = entries
            .iter()
            .filter(|other| same_kind(other, &entry))
            .count() as u64
            + 1;
        entries.push(entry);
        Ack { seq, nth }
    }

    /// All entries so far, in order.
    pub fn entries(&self) -> Vec<Entry> {
        self.guard().clone()
    }

    fn guard(&self) -> MutexGuard<'_, Vec<Entry>> {
        // A push cannot leave the list half-changed, so a poisoned lock is safe to use.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The acknowledgement of a stored entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// The entry's position in the ledger, from 1.
    pub seq: u64,
    /// Number of entries of this kind, including this one.
    pub nth: u64,
}

fn same_kind(one: &Entry, other: &Entry) -> bool {
    one.what == other.what
        && ["script", "command"]
            .iter()
            .all(|key| one.detail.get(*key) == other.detail.get(*key))
}

/// The applies that really began, by SHA-256 of the plan file.
pub fn applies_by_key(entries: &[Entry]) -> BTreeMap<String, Vec<Entry>> {
    let mut applies: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.what == what::APPLY) {
        applies
            .entry(entry.text("plan_sha256").unwrap_or("none").to_owned())
            .or_default()
            .push(entry.clone());
    }
    applies
}

/// Entries with this `what` and, if given, of this tool command.
pub fn select<'a>(entries: &'a [Entry], what: &str, command: Option<&str>) -> Vec<&'a Entry> {
    entries
        .iter()
        .filter(|entry| {
            entry.what == what
                && command.is_none_or(|command| entry.text("command") == Some(command))
        })
        .collect()
}

/// All violations in a ledger, one sentence each; empty is good. Only a test itself may force-unlock.
pub fn violations(entries: &[Entry]) -> Vec<String> {
    violations_where(entries, |unlock| is_gone(entries, unlock))
}

/// Like [`violations`], where others may remove the locks of holders that are `gone`.
pub fn violations_where(entries: &[Entry], gone: impl Fn(&Entry) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (key, applies) in applies_by_key(entries) {
        if applies.len() > 1 {
            let who: Vec<&str> = applies.iter().map(|entry| entry.who.as_str()).collect();
            found.push(format!(
                "plan {key} was applied {} times, by {}",
                applies.len(),
                who.join(", ")
            ));
        }
    }
    for entry in entries {
        match entry.what.as_str() {
            what::FORCED_EXIT => {
                found.push(format!("the tool of {} got a second signal", entry.who));
            }
            what::WRITE_REFUSED => {
                found.push(format!("{} wrote a state without its lock", entry.who));
            }
            what::UNLOCK_REFUSED => found.push(format!("{} removed a lock of another", entry.who)),
            what::UNLOCK if !by_holder(entry) && !gone(entry) => {
                let holder = entry.text("holder").unwrap_or_default();
                found.push(format!(
                    "the lock of {holder} was removed by force, by `{}`",
                    entry.who
                ));
            }
            what::APPLY if entry.text("plan_sha256").is_none() => {
                found.push(format!("{} applied without a plan file", entry.who));
            }
            _ => {}
        }
    }
    found
}

/// `who` of an unlock by the test itself, as by a person.
pub const BY_HAND: &str = "by-hand";

/// The host of the holder whose lock an entry removed.
fn host(unlock: &Entry) -> &str {
    let holder = unlock.text("holder").unwrap_or_default();
    holder.rsplit_once('@').map_or(holder, |(_, host)| host)
}

/// Whether the process whose lock was removed has done nothing since.
pub fn is_silent(entries: &[Entry], unlock: &Entry) -> bool {
    !entries
        .iter()
        .skip_while(|entry| *entry != unlock)
        .skip(1)
        .any(|entry| entry.who == host(unlock))
}

/// Whether a test recorded the end of the lock holder's pod.
fn is_gone(entries: &[Entry], unlock: &Entry) -> bool {
    let host = host(unlock);
    entries.iter().any(|entry| {
        entry.what == what::MARK && entry.who == BY_HAND && entry.text("gone") == Some(host)
    })
}

fn by_holder(unlock: &Entry) -> bool {
    unlock.who == BY_HAND || host(unlock) == unlock.who
}

/// Resources that the tool created (or replaced) and that are not in `state`, a state in format 4.
pub fn forgotten(entries: &[Entry], state: &Value) -> Vec<String> {
    let known = state.to_string();
    let deleted: Vec<&str> = select(entries, what::RESOURCE, None)
        .iter()
        .filter(|entry| entry.text("action") == Some("delete"))
        .filter_map(|entry| entry.text("id"))
        .collect();
    select(entries, what::RESOURCE, None)
        .iter()
        .filter(|entry| entry.text("action") != Some("delete"))
        .filter_map(|entry| Some((entry.text("address")?, entry.text("id")?)))
        .filter(|(_, id)| !known.contains(id) && !deleted.contains(id))
        .map(|(address, id)| format!("{address} [id={id}]"))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn apply(who: &str, plan: &str) -> Entry {
        Entry::new(who, what::APPLY, json!({"plan_sha256": plan}))
    }

    #[test]
    fn kinds_are_counted_by_script_and_command() {
        let ledger = Ledger::default();
        let start = |script: &str, command: &str| {
            Entry::new(
                "a",
                what::COMMAND_START,
                json!({"script": script, "command": command}),
            )
        };
        let nth = [("x", "plan"), ("x", "apply"), ("y", "plan"), ("x", "plan")]
            .map(|(script, command)| ledger.append(start(script, command)).nth);
        assert_eq!(nth, [1, 1, 1, 2]);
    }

    #[test]
    fn two_applies_of_one_plan_and_second_signals_are_found() {
        assert_eq!(
            violations(&[apply("a", "1"), apply("b", "2")]),
            Vec::<String>::new()
        );
        assert_eq!(
            violations(&[apply("a", "1"), apply("b", "1")]),
            ["plan 1 was applied 2 times, by a, b"]
        );
        assert_eq!(
            violations(&[Entry::new("a", what::FORCED_EXIT, Value::Null)]).len(),
            1
        );
        assert_eq!(
            violations(&[Entry::new("a", what::WRITE_REFUSED, Value::Null)]).len(),
            1
        );
        assert_eq!(
            violations(&[Entry::new("a", what::UNLOCK_REFUSED, Value::Null)]).len(),
            1
        );
        assert_eq!(
            violations(&[Entry::new("a", what::APPLY, Value::Null)]).len(),
            1
        );
        let unlock = |who: &str| {
            violations(&[Entry::new(who, what::UNLOCK, json!({"holder": "root@a"}))]).len()
        };
        assert_eq!(["a", BY_HAND, "b", ""].map(unlock), [0, 0, 1, 1]);
        // Where Pawl removes them too: locks of owners that never appear again.
        let of = |who: &str| {
            let all = [
                apply("a", "1"),
                Entry::new("b", what::UNLOCK, json!({"holder": "root@a"})),
                apply(who, "2"),
            ];
            violations_where(&all, |unlock| is_silent(&all, unlock)).len()
        };
        assert_eq!((of("b"), of("a")), (0, 1));
    }

    #[test]
    fn a_created_object_that_no_state_knows_is_forgotten() {
        let created = |id: &str| {
            Entry::new(
                "a",
                what::RESOURCE,
                json!({"address": "terraform_data.r", "action": "create", "id": id}),
            )
        };
        let state = json!({"resources": [{"instances": [{"attributes": {"id": "one"}}]}]});
        assert_eq!(
            forgotten(&[created("one"), created("two")], &state),
            ["terraform_data.r [id=two]"]
        );
        let gone = Entry::new(
            "a",
            what::RESOURCE,
            json!({"action": "delete", "id": "two"}),
        );
        assert_eq!(
            forgotten(&[created("two"), gone], &state),
            Vec::<String>::new()
        );
    }
}
