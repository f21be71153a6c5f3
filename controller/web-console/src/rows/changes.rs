//! The last changes of rows, numbered, from which streams resume.

use std::{
    collections::VecDeque,
    fmt,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    str::FromStr,
};

use schemars::JsonSchema;
use serde::Serialize;
use watching::Key;

/// Number of changes that are kept.
const KEPT: usize = 16_384;

/// The kind of a row.
#[derive(Serialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    Layer,
    Run,
    Repository,
    /// Of events alone: something in the inbox changed.
    Inbox,
}

/// The number of a change, and the process that counts: another one, or this one after a restart, counts anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    process: u64,
    number: u64,
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{}", self.process, self.number)
    }
}

impl FromStr for Sequence {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (process, number) = text.split_once('-').ok_or(())?;
        Ok(Self {
            process: u64::from_str_radix(process, 16).map_err(|_| ())?,
            number: number.parse().map_err(|_| ())?,
        })
    }
}

/// The last changes.
pub struct Changes {
    last: Sequence,
    /// The newest at the end.
    kept: VecDeque<(Kind, Key)>,
}

impl Default for Changes {
    fn default() -> Self {
        Self {
            last: Sequence {
                process: RandomState::new().build_hasher().finish(),
                number: 0,
            },
            kept: VecDeque::new(),
        }
    }
}

impl Changes {
    pub(super) fn add(&mut self, kind: Kind, key: &Key) {
        self.last.number += 1;
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((kind, key.clone()));
    }

    pub const fn last(&self) -> Sequence {
        self.last
    }

    /// The changes after this one; `None` if some of them are no longer kept, or another process counted.
    pub fn since(&self, seen: Sequence) -> Option<impl Iterator<Item = &(Kind, Key)>> {
        let missed = self.last.number.checked_sub(seen.number)?;
        let missed = usize::try_from(missed).ok()?;
        let first = self.kept.len().checked_sub(missed)?;
        (seen.process == self.last.process).then(|| self.kept.range(first..))
    }
}
