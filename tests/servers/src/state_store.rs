//! What the state server keeps: every version of every state, its lock, and how many writes are to fail.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use ledger::{Entry, Ledger, LockInfo, what};

#[derive(Clone, Debug, PartialEq)]
pub struct Version {
    /// The state, or none for a deletion.
    pub body: Option<Vec<u8>>,
}

impl Version {
    /// The state as JSON; null for a deletion or what is no JSON.
    pub fn json(&self) -> Value {
        self.body.as_deref().and_then(|body| serde_json::from_slice(body).ok()).unwrap_or_default()
    }
}

/// What happened to a request; the server turns it into a status.
#[derive(Debug, PartialEq)]
pub(super) enum Outcome {
    Done,
    State(Vec<u8>),
    NoState,
    HeldBy(Box<LockInfo>),
    WrongLock(Box<Option<LockInfo>>),
    Fault,
}

#[derive(Debug, Default)]
pub(super) struct Stored {
    pub(super) versions: Vec<Version>,
    pub(super) lock: Option<LockInfo>,
    /// How many writes are still to be answered with 500, without writing.
    pub(super) failing_writes: usize,
}

/// All states by path.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) states: BTreeMap<String, Stored>,
    pub(super) ledger: Ledger,
}

impl Store {
    pub(super) fn of(&mut self, path: &str) -> &mut Stored {
        self.states.entry(path.to_owned()).or_default()
    }

    pub(super) fn read(&mut self, path: &str) -> Outcome {
        let newest = self.of(path).versions.last().and_then(|version| version.body.clone());
        newest.map_or(Outcome::NoState, Outcome::State)
    }

    pub(super) fn write(&mut self, path: &str, lock_id: Option<&str>, body: Option<Vec<u8>>) -> Outcome {
        let failing = &mut self.of(path).failing_writes;
        if *failing > 0 {
            *failing -= 1;
            self.note("", what::FAULT, json!({"path": path}));
            return Outcome::Fault;
        }
        let held = self.of(path).lock.clone();
        // A deletion names no lock in this protocol, so only writes can be judged by it.
        if body.is_some() && held.as_ref().map(|lock| lock.id.as_str()) != lock_id {
            let who = held.as_ref().map(|lock| lock.who.clone()).unwrap_or_default();
            self.note(&who, what::WRITE_REFUSED, json!({"path": path, "sent_id": lock_id, "held": held}));
            return Outcome::WrongLock(Box::new(held));
        }
        let state: Value = body.as_deref().and_then(|body| serde_json::from_slice(body).ok()).unwrap_or_default();
        let who = held.as_ref().map(|lock| lock.who.clone()).unwrap_or_default();
        let event = if body.is_some() { what::WRITE } else { what::DELETE };
        let detail = json!({
            "path": path, "id": lock_id, "serial": state["serial"], "lineage": state["lineage"],
            "operation": held.as_ref().map(|lock| lock.operation.as_str()),
        });
        self.note(&who, event, detail);
        self.of(path).versions.push(Version { body });
        Outcome::Done
    }

    pub(super) fn take_lock(&mut self, path: &str, info: LockInfo) -> Outcome {
        match self.of(path).lock.clone() {
            // A client that did not get the answer asks again with the same id.
            Some(held) if held.id == info.id => Outcome::Done,
            Some(held) => {
                let mut detail = info.detail(path);
                detail["held_by"] = json!(held.who);
                self.note(&info.who, what::LOCK_REFUSED, detail);
                Outcome::HeldBy(Box::new(held))
            }
            None => {
                self.note(&info.who, what::LOCK, info.detail(path));
                self.of(path).lock = Some(info);
                Outcome::Done
            }
        }
    }

    /// Releases the lock for whoever names its id; no id at all is Terraform's `force-unlock`, OpenTofu's sends nothing else.
    pub(super) fn release(&mut self, path: &str, info: &LockInfo) -> Outcome {
        match self.of(path).lock.clone() {
            Some(held) if held.id == info.id || info.id.is_empty() => {
                self.note(&info.who, what::UNLOCK, held.detail(path));
                self.of(path).lock = None;
                Outcome::Done
            }
            held => {
                let mut detail = info.detail(path);
                detail["held_by"] = json!(held.as_ref().map(|held| held.who.as_str()));
                self.note(&info.who, what::UNLOCK_REFUSED, detail);
                Outcome::WrongLock(Box::new(held))
            }
        }
    }

    fn note(&mut self, who: &str, event: &str, detail: Value) {
        // `who` is the host alone, so that entries of a pod's lock and of its tool carry the same name.
        let host = who.rsplit_once('@').map_or(who, |(_, host)| host);
        self.ledger.append(Entry::new(host, event, detail));
    }
}
