//! Compares a journal with a state and sorts its objects: created and recorded, created and not recorded, begun and
//! uncertain, destroyed and still recorded. Objects are equal when address and ID are; an object without a printed ID
//! matches the one in the state.

use std::{collections::BTreeMap, fmt};

use super::{
    Action,
    replay::{Place, Replay},
    state::{Recorded, StateFacts},
};
use crate::{Changed, Journal, PlanStatus, text::clip};

/// Marks the line of each change that creates an object which may exist already.
pub const MAY_EXIST: &str = "may exist already";

/// Maximum lines of each list in a status; the last one counts the omitted lines.
const LINES: usize = 20;

/// An object with a finding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// Its address.
    pub address: String,
    /// Its type.
    pub kind: String,
    /// Its ID, if the tool printed it.
    pub id: Option<String>,
    /// The action of an object that was begun and whose end is not in the journal.
    pub action: Option<Action>,
    /// The state has another object at this address.
    pub occupied: bool,
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)?;
        if let Some(id) = &self.id {
            write!(f, " id={id}")?;
        }
        match self.action {
            Some(action) => write!(f, " ({})", action.as_str()),
            None if self.occupied => f.write_str(" (beside the one that the state has)"),
            None => Ok(()),
        }
    }
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Created and in the state.
    pub recorded: u32,
    /// Created and not in the state.
    pub not_recorded: Vec<Object>,
    /// Begun, without an end in the journal.
    pub uncertain: Vec<Object>,
    /// Destroyed and still in the state.
    pub still_recorded: Vec<Object>,
    /// The state's serial number.
    pub serial: Option<u64>,
    /// Number of missing journal lines.
    pub gaps: u32,
}

impl Comparison {
    /// Compares a journal with a state.
    pub fn of(replay: &Replay, state: &StateFacts) -> Self {
        let mut known: BTreeMap<&str, Vec<&Recorded>> = BTreeMap::new();
        for object in &state.objects {
            known.entry(&object.address).or_default().push(object);
        }
        let mut found = Self {
            serial: state.serial,
            gaps: replay.gaps,
            ..Self::default()
        };
        let judged = replay.is_judged();
        for (address, place) in &replay.places {
            found.place(
                address,
                place,
                known.get(address.as_str()).map_or(&[][..], Vec::as_slice),
                judged,
            );
        }
        found
    }

    fn place(&mut self, address: &str, place: &Place, known: &[&Recorded], judged: bool) {
        let object = |id: &Option<String>, action| Object {
            address: address.to_owned(),
            kind: place.kind.clone(),
            id: id.clone(),
            action,
            occupied: known.iter().any(|recorded| !recorded.deposed),
        };
        // Each object of the state matches at most one object of the journal.
        let mut left: Vec<&Recorded> = known.to_vec();
        let mut take = |id: &Option<String>| {
            let same = |recorded: &&Recorded| id.is_some() && recorded.id == *id;
            let may =
                |recorded: &&Recorded| (id.is_none() || recorded.id.is_none()) && !recorded.deposed;
            let at = left
                .iter()
                .position(same)
                .or_else(|| left.iter().position(may));
            at.map(|at| left.remove(at))
        };
        for id in &place.live {
            if take(id).is_some() {
                self.recorded += 1;
            } else {
                self.not_recorded.push(object(id, None));
            }
        }
        for id in &place.gone {
            if let Some(recorded) = take(id) {
                self.still_recorded.push(Object {
                    occupied: false,
                    ..object(&recorded.id, None)
                });
            }
        }
        for (action, id) in &place.open {
            self.uncertain.push(object(id, Some(*action)));
        }
        // A failed creation may have created the object. If the tool saved its state afterwards, that state decides.
        let there = left.iter().any(|recorded| !recorded.deposed);
        if !judged && !there && place.failed > 0 {
            self.uncertain.push(object(&None, Some(Action::Create)));
        }
        // An object created before its creation failed, for example in a provisioner, is tainted in the state.
        if place.failed > 0
            && left
                .iter()
                .any(|recorded| recorded.tainted && !recorded.deposed)
        {
            self.recorded += 1;
        }
    }

    /// Converts to the form of a run's status.
    pub fn status(&self) -> Journal {
        let count = |list: &[Object], what: &str| {
            (!list.is_empty()).then(|| format!("{} {what}", list.len()))
        };
        let parts = [
            count(&self.not_recorded, "created and not recorded"),
            count(&self.uncertain, "begun and uncertain"),
            count(&self.still_recorded, "destroyed and still recorded"),
            (self.recorded > 0).then(|| format!("{} created and recorded", self.recorded)),
        ];
        let mut parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() {
            parts.push("the state contains every object that the tool reported".to_owned());
        }
        let serial = self.serial.map_or_else(
            || "no state".to_owned(),
            |serial| format!("state serial {serial}"),
        );
        Journal {
            summary: clip(
                &format!("{}; {serial}{}", parts.join(", "), gap(self.gaps)),
                512,
            ),
            compared: true,
            recorded: self.recorded,
            not_recorded: lines(&self.not_recorded),
            uncertain: lines(&self.uncertain),
            still_recorded: lines(&self.still_recorded),
        }
    }
}

/// The journal for the status of a run whose state cannot be read: lists the created objects without telling which are
/// recorded. `why` continues the sentence `not compared with the state: …`.
pub fn uncompared(replay: &Replay, why: &str) -> Journal {
    let comparison = Comparison::of(replay, &StateFacts::default());
    let (created, begun) = (comparison.not_recorded.len(), comparison.uncertain.len());
    let made = comparison.not_recorded.into_iter().map(|made| Object {
        action: None,
        occupied: false,
        ..made
    });
    let made = made.map(|object| format!("{object} (created)"));
    let all = made
        .chain(comparison.uncertain.iter().map(Object::to_string))
        .collect();
    let gap = gap(replay.gaps);
    let summary = format!(
        "{created} created, {begun} begun and uncertain{gap}; not compared with the state: {why}"
    );
    Journal {
        summary: clip(&summary, 512),
        compared: false,
        uncertain: bounded(all),
        ..Journal::default()
    }
}

fn gap(gaps: u32) -> &'static str {
    if gaps == 0 {
        ""
    } else {
        "; lines of the journal are missing"
    }
}

fn lines(objects: &[Object]) -> Vec<String> {
    bounded(objects.iter().map(Object::to_string).collect())
}

fn bounded(mut lines: Vec<String>) -> Vec<String> {
    let all = lines.len();
    lines.truncate(LINES);
    for line in &mut lines {
        *line = clip(line, 256);
    }
    if all > LINES {
        lines.push(format!("and {} more", all - LINES));
    }
    lines
}

impl PlanStatus {
    /// A warning when the plan creates objects that may exist already, or was not read.
    pub fn caution(&self) -> Option<String> {
        let count = self
            .changes
            .iter()
            .filter(|line| line.contains(MAY_EXIST))
            .count();
        let unread = if self.changes.iter().any(|line| line.starts_with("? ")) {
            "it has parts that this release of Pawl does not know, see plan.changes"
        } else {
            "the plan file could not be read, so counts and changes are what the tool printed"
        };
        let exist = format!("{count} of what it creates {MAY_EXIST}, see plan.changes");
        let elsewhere = "its state is not that of the stack's last apply, see the history";
        [
            (self.counts.unread, unread),
            (self.counts.other_state, elsewhere),
            (count > 0, &exist),
        ]
        .into_iter()
        .filter(|(is, _)| *is)
        .map(|(_, text)| text.to_owned())
        .reduce(|all, text| format!("{all}; {text}"))
    }
}

impl Journal {
    /// Refines an unknown result: a failed object that is in the state was created, so something changed.
    pub fn refined(&self, changed: Changed) -> Changed {
        if changed == Changed::Unknown && self.compared && self.recorded > 0 {
            Changed::Some
        } else {
            changed
        }
    }

    /// Whether a recovery run has work: objects were created, or may have been, that are not in the state.
    pub fn wants_recovery(&self) -> bool {
        let begun = |line: &String| !line.ends_with("(update)") && !line.ends_with("(delete)");
        !self.not_recorded.is_empty() || self.uncertain.iter().any(begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply_log::replay::tests::replay;

    fn state(objects: &[&str]) -> StateFacts {
        let recorded = |text: &&str| {
            let words: Vec<_> = text.split(' ').collect();
            Recorded {
                address: words[0].into(),
                id: words.get(1).filter(|w| **w != "-").map(|w| (*w).to_owned()),
                deposed: words.get(2) == Some(&"deposed"),
                tainted: words.get(2) == Some(&"tainted"),
            }
        };
        StateFacts {
            serial: Some(4),
            objects: objects.iter().map(recorded).collect(),
        }
    }

    fn said(lines: &[&str], objects: &[&str]) -> (u32, Vec<String>, Vec<String>, Vec<String>) {
        let c = Comparison::of(&replay(lines), &state(objects));
        let text = |list: &[Object]| list.iter().map(Object::to_string).collect();
        (
            c.recorded,
            text(&c.not_recorded),
            text(&c.uncertain),
            text(&c.still_recorded),
        )
    }

    fn is(found: (u32, Vec<String>, Vec<String>, Vec<String>), recorded: u32, lists: [&[&str]; 3]) {
        assert_eq!(
            (found.0, [found.1, found.2, found.3]),
            (
                recorded,
                lists.map(|list| list.iter().map(|l| (*l).to_owned()).collect())
            )
        );
    }

    const MADE: [&str; 4] = [
        "start create t.a",
        "complete create t.a 1",
        "start create t.b[\"k\"]",
        "complete create t.b[\"k\"] 2",
    ];

    #[test]
    fn created_objects_are_recorded_or_not_recorded() {
        is(said(&MADE, &["t.a 1", "t.b[\"k\"] 2"]), 2, [&[], &[], &[]]);
        is(said(&MADE, &["t.a 1"]), 1, [&["t.b[\"k\"] id=2"], &[], &[]]);
        is(
            said(&MADE, &[]),
            0,
            [&["t.a id=1", "t.b[\"k\"] id=2"], &[], &[]],
        );
        is(
            said(&MADE, &["t.a -", "module.m.t.b[\"k\"] 2"]),
            1,
            [&["t.b[\"k\"] id=2"], &[], &[]],
        );
        is(
            said(&["start create t.a", "complete create t.a"], &[]),
            0,
            [&["t.a"], &[], &[]],
        );
    }

    #[test]
    fn begun_operation_is_uncertain_with_any_state() {
        is(
            said(&["start create t.a"], &[]),
            0,
            [&[], &["t.a (create)"], &[]],
        );
        is(
            said(&["start update t.a 1"], &["t.a 1"]),
            0,
            [&[], &["t.a id=1 (update)"], &[]],
        );
        is(
            said(&["start delete t.a 1"], &["t.a 1"]),
            0,
            [&[], &["t.a id=1 (delete)"], &[]],
        );
        is(
            said(
                &[
                    "start read t.a",
                    "start create t.c",
                    "complete create t.c 3",
                ],
                &["t.c 3"],
            ),
            1,
            [&[], &[], &[]],
        );
    }

    #[test]
    fn failed_creation_is_certain_if_the_state_was_saved() {
        let failed = ["start create t.a", "errored create t.a"];
        is(said(&failed, &[]), 0, [&[], &["t.a (create)"], &[]]);
        is(said(&failed, &["t.a 1"]), 0, [&[], &[], &[]]);
        is(
            said(&[&failed[..], &["end"]].concat(), &[]),
            0,
            [&[], &[], &[]],
        );
        // The object was created, and a later step failed.
        is(
            said(&[&failed[..], &["end"]].concat(), &["t.a 1 tainted"]),
            1,
            [&[], &[], &[]],
        );
    }

    #[test]
    fn replacement_counts_as_two_objects() {
        let destroyed_first = [
            "start delete t.a 1",
            "complete delete t.a",
            "start create t.a",
            "complete create t.a 2",
        ];
        is(said(&destroyed_first, &["t.a 2"]), 1, [&[], &[], &[]]);
        is(
            said(&destroyed_first, &["t.a 1"]),
            0,
            [
                &["t.a id=2 (beside the one that the state has)"],
                &[],
                &["t.a id=1"],
            ],
        );
        is(
            said(&destroyed_first[..2], &["t.a 1"]),
            0,
            [&[], &[], &["t.a id=1"]],
        );
        let created_first = [
            "start create t.a",
            "complete create t.a 2",
            "start delete t.a 1",
            "complete delete t.a",
        ];
        is(said(&created_first, &["t.a 2"]), 1, [&[], &[], &[]]);
        is(
            said(&created_first, &["t.a 2", "t.a 1 deposed"]),
            1,
            [&[], &[], &["t.a id=1"]],
        );
        is(
            said(&created_first[..3], &["t.a 1"]),
            0,
            [
                &["t.a id=2 (beside the one that the state has)"],
                &["t.a id=1 (delete)"],
                &[],
            ],
        );
    }

    #[test]
    fn created_and_destroyed_object_is_dropped() {
        let lines = [
            "start create t.a",
            "complete create t.a 1",
            "start delete t.a 1",
            "complete delete t.a",
        ];
        is(said(&lines, &[]), 0, [&[], &[], &[]]);
        is(said(&lines, &["t.a 1"]), 0, [&[], &[], &["t.a id=1"]]);
    }

    #[test]
    fn imported_object_counts_as_created() {
        is(
            said(&["complete import t.a 1"], &[]),
            0,
            [&["t.a id=1"], &[], &[]],
        );
        is(
            said(&["complete import t.a 1", "start create t.b"], &["t.a 1"]),
            1,
            [&[], &["t.b (create)"], &[]],
        );
    }

    #[test]
    fn journal_status_is_bounded_and_counts_the_rest() {
        let mut lines = Vec::new();
        for n in 0..30 {
            lines.push(format!("start create t.a[{n}]"));
            lines.push(format!("complete create t.a[{n}] {n}"));
        }
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        let journal = Comparison::of(&replay(&lines), &StateFacts::default()).status();
        assert_eq!(
            (
                journal.not_recorded.len(),
                journal.not_recorded[20].as_str()
            ),
            (21, "and 10 more")
        );
        assert_eq!(journal.summary, "30 created and not recorded; no state");
        assert!(journal.compared && journal.wants_recovery());
        let journal = uncompared(
            &replay(&[
                "start create t.a",
                "complete create t.a 1",
                "start create t.b",
            ]),
            "it is elsewhere",
        );
        assert_eq!(
            journal.summary,
            "1 created, 1 begun and uncertain; not compared with the state: it is elsewhere"
        );
        assert_eq!(journal.uncertain, ["t.a id=1 (created)", "t.b (create)"]);
        assert!(!journal.compared && journal.wants_recovery());
        let quiet = Comparison::of(&replay(&["start update t.a 1"]), &state(&["t.a 1"])).status();
        assert!(!quiet.wants_recovery(), "{quiet:?}");
    }
}
