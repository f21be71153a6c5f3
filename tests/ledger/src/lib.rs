//! The append-only ledger that the scripted tool and the servers write and the checks read.
//!
//! One JSON object per line, `{seq, at, who, what, …detail}`. `seq` is given by whoever owns the ledger, in the order in
//! which entries were accepted, so that entries of different pods have one order whatever their clocks say. An entry is
//! written before its effect can be seen by anyone else: what the ledger does not have, did not happen.

mod lock;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use lock::{LockInfo, basic_header};

/// The words of `what`, so that writers and checks cannot drift apart.
pub mod what {
    /// The scripted tool began a command.
    pub const COMMAND_START: &str = "command_start";
    /// The scripted tool ended a command; absent if it was killed.
    pub const COMMAND_END: &str = "command_end";
    /// An `apply` passed its checks and is about to touch its first resource.
    pub const APPLY: &str = "apply";
    /// One resource was really created, updated or deleted, whether or not any state came to know it.
    pub const RESOURCE: &str = "resource";
    /// The scripted tool received a signal.
    pub const SIGNAL: &str = "signal";
    /// The scripted tool received a second signal and exits without writing its state.
    pub const FORCED_EXIT: &str = "forced_exit";
    /// A process left in the background by the script lives.
    pub const BACKGROUND: &str = "background";
    /// A line of a test, or of a tool that asks: whether it has a terminal.
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
    /// Position in the ledger, from 1; given by the ledger, not by the writer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// When the writer wrote it, by the writer's clock (RFC 3339).
    pub at: String,
    /// Host name of the writer, which in a pod is the pod's name; for a state server the holder named in the lock.
    pub who: String,
    /// What happened; see [`what`].
    pub what: String,
    /// Everything else.
    #[serde(flatten)]
    pub detail: Map<String, Value>,
}

impl Entry {
    /// An entry of now.
    pub fn new(who: &str, what: &str, detail: Value) -> Self {
        let detail = match detail {
            Value::Object(map) => map,
            Value::Null => Map::new(),
            other => Map::from_iter([("detail".to_owned(), other)]),
        };
        Self { seq: None, at: jiff::Timestamp::now().to_string(), who: who.to_owned(), what: what.to_owned(), detail }
    }

    /// A detail as text, if it is there and is a string.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.detail.get(key).and_then(Value::as_str)
    }

    /// A detail as a number, if it is there and is one.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.detail.get(key).and_then(Value::as_u64)
    }

    /// The line of this entry, with its newline.
    pub fn line(&self) -> String {
        // Only maps with keys that are not strings could fail, and `detail` has none.
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}

/// A ledger in memory; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    entries: Arc<Mutex<Vec<Entry>>>,
}

impl Ledger {
    /// Appends an entry and returns its number and how many entries of the same kind there are now.
    ///
    /// Kind means `what`, and the details `script` and `command` where it has them: this is how a scripted tool learns that
    /// it is the second attempt.
    pub fn append(&self, mut entry: Entry) -> Ack {
        let mut entries = self.guard();
        let seq = entries.len() as u64 + 1;
        entry.seq = Some(seq);
        let nth = entries.iter().filter(|other| same_kind(other, &entry)).count() as u64 + 1;
        entries.push(entry);
        Ack { seq, nth }
    }

    /// All entries so far, in order.
    pub fn entries(&self) -> Vec<Entry> {
        self.guard().clone()
    }

    fn guard(&self) -> MutexGuard<'_, Vec<Entry>> {
        // Entries are pushed whole, so a panic of another holder leaves nothing half done.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a writer is told once its entry is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// The entry's position in the ledger, from 1.
    pub seq: u64,
    /// How many entries of this kind there are, this one included.
    pub nth: u64,
}

fn same_kind(one: &Entry, other: &Entry) -> bool {
    one.what == other.what && ["script", "command"].iter().all(|key| one.detail.get(*key) == other.detail.get(*key))
}

/// The applies that really began, by SHA-256 of the plan file.
pub fn applies_by_key(entries: &[Entry]) -> BTreeMap<String, Vec<Entry>> {
    let mut applies: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.what == what::APPLY) {
        applies.entry(entry.text("plan_sha256").unwrap_or("none").to_owned()).or_default().push(entry.clone());
    }
    applies
}

/// Entries with this `what` and, where given, of this tool command.
pub fn select<'a>(entries: &'a [Entry], what: &str, command: Option<&str>) -> Vec<&'a Entry> {
    entries
        .iter()
        .filter(|entry| entry.what == what && command.is_none_or(|command| entry.text("command") == Some(command)))
        .collect()
}

/// Everything in a ledger that must never happen, one sentence each; empty is good. Nobody but a test itself removes locks by force.
pub fn violations(entries: &[Entry]) -> Vec<String> {
    violations_where(entries, |unlock| is_gone(entries, unlock))
}

/// The same where others remove locks too: of holders that are `gone`.
pub fn violations_where(entries: &[Entry], gone: impl Fn(&Entry) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (key, applies) in applies_by_key(entries) {
        if applies.len() > 1 {
            let who: Vec<&str> = applies.iter().map(|entry| entry.who.as_str()).collect();
            found.push(format!("plan {key} was applied {} times, by {}", applies.len(), who.join(", ")));
        }
    }
    for entry in entries {
        match entry.what.as_str() {
            what::FORCED_EXIT => found.push(format!("the tool of {} got a second signal", entry.who)),
            what::WRITE_REFUSED => found.push(format!("{} wrote a state without its lock", entry.who)),
            what::UNLOCK_REFUSED => found.push(format!("{} removed a lock of another", entry.who)),
            what::UNLOCK if !by_holder(entry) && !gone(entry) => {
                let holder = entry.text("holder").unwrap_or_default();
                found.push(format!("the lock of {holder} was removed by force, by `{}`", entry.who));
            }
            what::APPLY if entry.text("plan_sha256").is_none() => {
                found.push(format!("{} applied without a plan file", entry.who));
            }
            _ => {}
        }
    }
    found
}

/// Who removes locks when a test does it itself, as a person would.
pub const BY_HAND: &str = "by-hand";

/// The host that held the lock which an entry says was removed.
fn host(unlock: &Entry) -> &str {
    let holder = unlock.text("holder").unwrap_or_default();
    holder.rsplit_once('@').map_or(holder, |(_, host)| host)
}

/// Whether the process whose lock was removed has done nothing since.
pub fn is_silent(entries: &[Entry], unlock: &Entry) -> bool {
    !entries.iter().skip_while(|entry| *entry != unlock).skip(1).any(|entry| entry.who == host(unlock))
}

/// A test saw the end of the pod that held the lock, and says so.
fn is_gone(entries: &[Entry], unlock: &Entry) -> bool {
    let host = host(unlock);
    entries.iter().any(|entry| entry.what == what::MARK && entry.who == BY_HAND && entry.text("gone") == Some(host))
}

fn by_holder(unlock: &Entry) -> bool {
    unlock.who == BY_HAND || host(unlock) == unlock.who
}

/// Resources that were created (or replaced) by the tool and that `state`, a state in format 4, does not know.
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
        let start =
            |script: &str, command: &str| Entry::new("a", what::COMMAND_START, json!({"script": script, "command": command}));
        let nth = [("x", "plan"), ("x", "apply"), ("y", "plan"), ("x", "plan")]
            .map(|(script, command)| ledger.append(start(script, command)).nth);
        assert_eq!(nth, [1, 1, 1, 2]);
    }

    #[test]
    fn two_applies_of_one_plan_and_second_signals_are_found() {
        assert_eq!(violations(&[apply("a", "1"), apply("b", "2")]), Vec::<String>::new());
        assert_eq!(violations(&[apply("a", "1"), apply("b", "1")]), ["plan 1 was applied 2 times, by a, b"]);
        assert_eq!(violations(&[Entry::new("a", what::FORCED_EXIT, Value::Null)]).len(), 1);
        assert_eq!(violations(&[Entry::new("a", what::WRITE_REFUSED, Value::Null)]).len(), 1);
        assert_eq!(violations(&[Entry::new("a", what::UNLOCK_REFUSED, Value::Null)]).len(), 1);
        assert_eq!(violations(&[Entry::new("a", what::APPLY, Value::Null)]).len(), 1);
        let unlock = |who: &str| violations(&[Entry::new(who, what::UNLOCK, json!({"holder": "root@a"}))]).len();
        assert_eq!(["a", BY_HAND, "b", ""].map(unlock), [0, 0, 1, 1]);
        // Where Pawl removes them too, whose owner is never heard of again.
        let of = |who: &str| {
            let all = [apply("a", "1"), Entry::new("b", what::UNLOCK, json!({"holder": "root@a"})), apply(who, "2")];
            violations_where(&all, |unlock| is_silent(&all, unlock)).len()
        };
        assert_eq!((of("b"), of("a")), (0, 1));
    }

    #[test]
    fn a_created_object_that_no_state_knows_is_forgotten() {
        let created =
            |id: &str| Entry::new("a", what::RESOURCE, json!({"address": "terraform_data.r", "action": "create", "id": id}));
        let state = json!({"resources": [{"instances": [{"attributes": {"id": "one"}}]}]});
        assert_eq!(forgotten(&[created("one"), created("two")], &state), ["terraform_data.r [id=two]"]);
        let gone = Entry::new("a", what::RESOURCE, json!({"action": "delete", "id": "two"}));
        assert_eq!(forgotten(&[created("two"), gone], &state), Vec::<String>::new());
    }
}
