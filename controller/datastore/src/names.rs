//! Names of objects in the store. Only this module turns input of requests into names, and it validates every segment:
//! none contains `/`, is `.` or `..`, or is empty.

use std::fmt;

use object_store::path::Path;

use crds::datastore::{JOURNAL, LOG_PHASES, ObjectKind, Problem, StateId, WantedRevision};
use serving::problem::invalid;

/// A name in the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Path);

impl Name {
    /// The name in the type of the store's library.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The name as text. The encryption binds an object's content to this text.
    pub fn as_str(&self) -> &str {
        self.0.as_ref()
    }

    pub fn last(&self) -> &str {
        self.as_str().rsplit('/').next().unwrap_or_default()
    }

    /// A name from a listing of the store.
    pub(super) fn listed(path: Path) -> Self {
        Self(path)
    }

    fn of(segments: &[&str]) -> Self {
        Self(Path::from(segments.join("/")))
    }

    /// The name one segment below. The segment is a constant or a number of this module.
    fn child(&self, segment: &str) -> Self {
        Self(self.0.clone().join(segment))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn is_word(text: &str, most: usize, more: &[u8]) -> bool {
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || more.contains(&b);
    let (first, last) = (text.bytes().next(), text.bytes().next_back());
    text.len() <= most
        && text.bytes().all(legal)
        && first.is_some_and(|b| b.is_ascii_alphanumeric())
        && last.is_some_and(|b| b.is_ascii_alphanumeric())
        && !text.contains("..")
}

pub fn namespace(text: &str) -> Result<String, Problem> {
    if is_word(text, 63, b"-") {
        Ok(text.to_owned())
    } else {
        Err(invalid("invalid name of a namespace"))
    }
}

/// Validates the name of a run.
pub fn run(text: &str) -> Result<String, Problem> {
    if is_word(text, 253, b"-.") {
        Ok(text.to_owned())
    } else {
        Err(invalid("invalid name of a run"))
    }
}

pub fn uid(text: &str) -> Result<String, Problem> {
    if is_word(text, 64, b"-ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
        Ok(text.to_owned())
    } else {
        Err(invalid("invalid UID"))
    }
}

/// Validates the number of an attempt, from 1.
pub fn attempt(text: &str) -> Result<u32, Problem> {
    let legal = (1..=9).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_digit())
        && !text.starts_with('0');
    text.parse()
        .ok()
        .filter(|_| legal)
        .ok_or_else(|| invalid("invalid number of an attempt"))
}

/// Validates a phase that has a log.
pub fn phase(text: &str) -> Result<&'static str, Problem> {
    LOG_PHASES
        .into_iter()
        .find(|phase| *phase == text)
        .ok_or_else(|| {
            invalid(format!(
                "no phase with a log has that name; they are {}",
                LOG_PHASES.join(", ")
            ))
        })
}

/// Validates the name of an appendable stream: a phase, or the journal.
pub fn stream(text: &str) -> Result<&'static str, Problem> {
    if text == JOURNAL {
        Ok(JOURNAL)
    } else {
        phase(text)
    }
}

/// The key of a run's data, by UID.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunKey {
    namespace: String,
    uid: String,
}

impl RunKey {
    /// Validates both parts.
    ///
    /// # Errors
    /// When one of them is invalid.
    pub fn new(namespace: &str, uid: &str) -> Result<Self, Problem> {
        Ok(Self {
            namespace: self::namespace(namespace)?,
            uid: self::uid(uid)?,
        })
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// All data of the run except its claim.
    pub fn prefix(&self) -> Name {
        Name::of(&["runs", &self.namespace, &self.uid])
    }

    pub fn name_record(&self) -> Name {
        self.prefix().child("run")
    }

    /// The record of an object.
    pub fn object(&self, attempt: u32, kind: ObjectKind) -> Name {
        self.prefix()
            .child(&format!("a{attempt}"))
            .child(kind.as_str())
    }

    /// A blob of such a record. The name contains its owner.
    pub fn blob(&self, attempt: u32, kind: ObjectKind, random: &str) -> Name {
        self.blobs()
            .child(&format!("a{attempt}-{}-{random}", kind.as_str()))
    }

    pub fn blobs(&self) -> Name {
        self.prefix().child("blobs")
    }

    /// The object written to prove that the claim can be written.
    pub fn intent(&self) -> Name {
        self.prefix().child("intent")
    }

    pub fn claim(&self) -> Name {
        Name::of(&["claims", &self.namespace, &self.uid])
    }

    /// The end of the claimed attempt, retained with the claim.
    pub fn end(&self) -> Name {
        Name::of(&["ends", &self.namespace, &self.uid])
    }

    /// The record of when the run was first found gone.
    pub fn mark(&self) -> Name {
        Name::of(&["gone", &self.namespace, &self.uid])
    }
}

/// Validates a full commit id.
pub fn revision(text: &str) -> Result<String, Problem> {
    let legal = matches!(text.len(), 40 | 64)
        && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if legal {
        Ok(text.to_owned())
    } else {
        Err(invalid("not a full commit ID"))
    }
}

/// The key of a repository's data, by UID.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RepositoryKey {
    namespace: String,
    uid: String,
}

impl RepositoryKey {
    /// Validates both parts.
    ///
    /// # Errors
    /// When one of them is invalid.
    pub fn new(namespace: &str, uid: &str) -> Result<Self, Problem> {
        Ok(Self {
            namespace: self::namespace(namespace)?,
            uid: self::uid(uid)?,
        })
    }

    /// One of its revisions, in the form reported to `controller sources`.
    pub fn wanted(&self, revision: &str) -> WantedRevision {
        WantedRevision {
            namespace: self.namespace.clone(),
            uid: self.uid.clone(),
            revision: revision.to_owned(),
        }
    }

    /// All data of the repository.
    pub fn prefix(&self) -> Name {
        Name::of(&["repositories", &self.namespace, &self.uid])
    }

    /// The records of all its snapshots. Those of format 1 were elsewhere, and are stored anew.
    pub fn snapshots(&self) -> Name {
        self.prefix().child("snapshots-2")
    }

    /// The record of a commit's snapshot. The id was validated.
    pub fn snapshot(&self, revision: &str) -> Name {
        self.snapshots().child(revision)
    }

    pub fn blobs(&self) -> Name {
        self.prefix().child("blobs")
    }

    /// A blob of such a record. The name contains its owner.
    pub fn blob(&self, revision: &str, random: &str) -> Name {
        self.blobs().child(&format!("{revision}-{random}"))
    }

    /// The record of when the repository was first found gone.
    pub fn mark(&self) -> Name {
        Name::of(&["gone", &self.namespace, &self.uid])
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogKey {
    pub run: RunKey,
    pub attempt: u32,
    /// One of [`LOG_PHASES`], or [`JOURNAL`].
    pub phase: &'static str,
}

impl LogKey {
    /// All data of the log.
    pub fn prefix(&self) -> Name {
        self.run
            .prefix()
            .child(&format!("a{}", self.attempt))
            .child("log")
            .child(self.phase)
    }

    pub fn segment(&self, start: u64, end: u64) -> Name {
        self.prefix().child(&format!("{start:012}-{end:012}"))
    }

    /// The object that marks the end of the log.
    pub fn end(&self) -> Name {
        self.prefix().child("end")
    }

    /// The bounds in the last part of a segment's name; `None` for other names.
    pub fn bounds(word: &str) -> Option<(u64, u64)> {
        let (start, end) = word.split_once('-')?;
        let number = |text: &str| {
            text.parse::<u64>()
                .ok()
                .filter(|_| text.len() == 12 && text.bytes().all(|b| b.is_ascii_digit()))
        };
        let (start, end) = (number(start)?, number(end)?);
        (start < end).then_some((start, end))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateKey {
    namespace: String,
    id: StateId,
}

impl StateKey {
    /// Validates all parts.
    ///
    /// # Errors
    /// When one of them is invalid.
    pub fn new(namespace: &str, id: StateId) -> Result<Self, Problem> {
        if !is_word(&id.stack, 63, b"-.") {
            return Err(invalid("invalid name of a stack"));
        }
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
        if !(1..=90).contains(&id.workspace.len()) || !id.workspace.bytes().all(legal) {
            return Err(invalid("invalid name of a workspace"));
        }
        Ok(Self {
            namespace: self::namespace(namespace)?,
            id,
        })
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn id(&self) -> &StateId {
        &self.id
    }

    /// All states of a namespace.
    ///
    /// # Errors
    /// When the namespace's name is invalid.
    pub fn all_of(namespace: &str) -> Result<Name, Problem> {
        Ok(Name::of(&["states", &self::namespace(namespace)?]))
    }

    /// The key for a directory name from [`Self::prefix`].
    pub fn listed(namespace: &str, stack: &str, directory: &str) -> Option<Self> {
        let workspace = directory.strip_prefix("w-")?.to_owned();
        Self::new(
            namespace,
            StateId {
                stack: stack.to_owned(),
                workspace,
            },
        )
        .ok()
    }

    /// All data of the state. The prefix `w-` keeps workspaces such as `..` harmless.
    pub fn prefix(&self) -> Name {
        Name::of(&["states", &self.namespace, &self.id.stack])
            .child(&format!("w-{}", self.id.workspace))
    }

    /// The record of its published outputs.
    pub fn outputs(&self) -> Name {
        Name::of(&["outputs", &self.namespace, &self.id.stack])
            .child(&format!("w-{}", self.id.workspace))
    }

    /// The numbered records.
    pub fn journal(&self) -> Name {
        self.prefix().child("journal")
    }

    pub fn entry(&self, number: u64) -> Name {
        self.journal().child(&format!("{number:012}"))
    }

    /// Contents stored outside their record.
    pub fn blobs(&self) -> Name {
        self.prefix().child("blobs")
    }

    pub fn blob(&self, random: &str) -> Name {
        self.blobs().child(random)
    }
}

/// A top-level directory (all runs, claims, marks or states), for the sweep.
pub fn top(word: &'static str) -> Name {
    Name::of(&[word])
}

/// A name below one from a listing of the store.
pub fn below(top: &Name, segment: &str) -> Name {
    top.child(segment)
}

/// 128 random bits in hexadecimal.
pub fn random() -> String {
    format!("{:032x}", rand::random::<u128>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRICKS: [&str; 18] = [
        "", ".", "..", "../x", "a/b", "/", "a/../b", "a\0", "%2e%2e", "a%2fb", "a\\b", "a..b",
        "-a", "a-", ".a", "a\n", "ä", "a b",
    ];

    #[test]
    fn malicious_input_becomes_no_name() {
        for trick in TRICKS {
            assert!(namespace(trick).is_err(), "{trick:?}");
            assert!(run(trick).is_err(), "{trick:?}");
            assert!(uid(trick).is_err(), "{trick:?}");
            assert!(revision(trick).is_err(), "{trick:?}");
            assert!(attempt(trick).is_err(), "{trick:?}");
            assert!(phase(trick).is_err(), "{trick:?}");
            assert!(
                StateKey::new(
                    "team",
                    StateId {
                        stack: trick.into(),
                        workspace: "w".into()
                    }
                )
                .is_err(),
                "{trick:?}"
            );
            assert!(LogKey::bounds(trick).is_none(), "{trick:?}");
        }
        assert!(
            attempt("0").is_err()
                && attempt("01").is_err()
                && attempt("-1").is_err()
                && attempt("4294967296").is_err()
        );
        assert_eq!(attempt("12"), Ok(12));
        assert!(
            LogKey::bounds("000000000005-000000000005").is_none()
                && LogKey::bounds("5-6").is_none()
        );
        assert_eq!(LogKey::bounds("000000000005-000000000006"), Some((5, 6)));
    }

    #[test]
    fn unusual_workspaces_stay_below_their_state() {
        for workspace in [".", "..", "a..b", "-", "_x", "A.b-C"] {
            let key = StateKey::new(
                "team",
                StateId {
                    stack: "net".into(),
                    workspace: workspace.into(),
                },
            )
            .unwrap();
            assert_eq!(
                key.entry(7).as_str(),
                format!("states/team/net/w-{workspace}/journal/000000000007")
            );
            assert_eq!(
                StateKey::listed("team", "net", &format!("w-{workspace}")),
                Some(key)
            );
        }
        for workspace in ["", "a/b", "../../x", "a b", &"x".repeat(91)] {
            assert!(
                StateKey::new(
                    "team",
                    StateId {
                        stack: "net".into(),
                        workspace: workspace.into()
                    }
                )
                .is_err()
            );
        }
    }

    #[test]
    fn names_equal_those_of_the_design() {
        let key = RunKey::new("team", "0b9c1a4e-1f7e-4c07-9d43-2a1f35e3b8aa").unwrap();
        let run = "runs/team/0b9c1a4e-1f7e-4c07-9d43-2a1f35e3b8aa";
        assert_eq!(
            key.object(3, ObjectKind::Bundle).as_str(),
            format!("{run}/a3/bundle")
        );
        let log = LogKey {
            run: key,
            attempt: 3,
            phase: "plan",
        };
        assert_eq!(
            log.segment(0, 10).as_str(),
            format!("{run}/a3/log/plan/000000000000-000000000010")
        );
        assert_eq!(LogKey::bounds(log.segment(0, 10).last()), Some((0, 10)));
    }
}
