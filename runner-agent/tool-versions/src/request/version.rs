//! Versions in HashiCorp's grammar (`hashicorp/go-version`).

use std::{cmp::Ordering, fmt, str::FromStr};

use crate::Error;

/// The most numbers of a version, and the most bytes of its text.
const MOST_SEGMENTS: usize = 8;
const MOST_CHARACTERS: usize = 128;

/// A version: at least three numbers, and a prerelease. Build metadata (`+…`) is parsed and ignored.
///
/// The order is that of Semantic Versioning 2.0.0 (11), for any number of segments. It differs from go-version in one case: there
/// `1.0.0-alpha` is newer than `1.0.0-alpha.beta`.
#[derive(Clone, Debug)]
pub struct Version {
    segments: Vec<u64>,
    given: usize,
    prerelease: String,
}

impl Version {
    /// Whether this is no prerelease.
    pub fn is_stable(&self) -> bool {
        self.prerelease.is_empty()
    }

    /// Whether this is at least `major.minor`.
    pub fn at_least(&self, major: u64, minor: u64) -> bool {
        (self.segment(0), self.segment(1)) >= (major, minor)
    }

    pub fn release(major: u64, minor: u64, patch: u64) -> Self {
        Self {
            segments: vec![major, minor, patch],
            given: 3,
            prerelease: String::new(),
        }
    }

    /// The release with the third number plus one.
    #[must_use]
    pub(crate) fn next(&self) -> Self {
        Self::release(
            self.segment(0),
            self.segment(1),
            self.segment(2).saturating_add(1),
        )
    }

    /// The same numbers without the prerelease.
    #[must_use]
    pub fn core(&self) -> Self {
        Self {
            prerelease: String::new(),
            ..self.clone()
        }
    }

    /// The number at an index from 0; 0 beyond the last one.
    pub fn segment(&self, i: usize) -> u64 {
        self.segments.get(i).copied().unwrap_or_default()
    }

    /// The count of written numbers.
    pub(crate) fn given(&self) -> usize {
        self.given
    }

    pub(crate) fn has_segments_of(&self, other: &Self) -> bool {
        self.core() == other.core()
    }
}

impl FromStr for Version {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let error = || {
            Error::configuration(format!(
                "`{}` is not a version",
                text.chars().take(60).collect::<String>()
            ))
        };
        let text = text.trim();
        if text.len() > MOST_CHARACTERS {
            return Err(error());
        }
        let plain = text.strip_prefix('v').unwrap_or(text);
        let (plain, metadata) = plain
            .split_once('+')
            .map_or((plain, None), |(version, metadata)| {
                (version, Some(metadata))
            });
        let numbers = plain
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(plain.len());
        let (numbers, rest) = plain.split_at(numbers);
        let prerelease = match rest.strip_prefix('-') {
            Some("") => return Err(error()),
            Some(tail) => tail,
            // A prerelease without a hyphen, as in `1.2.0beta1`, starts with a letter.
            None if rest.is_empty() || rest.starts_with(|c: char| c.is_ascii_alphabetic()) => rest,
            None => return Err(error()),
        };
        let legal = |part: &str| {
            !part.is_empty()
                && part
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '~'))
        };
        let all_legal = |text: &str| text.split('.').all(legal);
        if !(prerelease.is_empty() || all_legal(prerelease)) || !metadata.is_none_or(all_legal) {
            return Err(error());
        }
        let mut segments = numbers
            .split('.')
            .map(str::parse)
            .collect::<Result<Vec<u64>, _>>()
            .map_err(|_| error())?;
        let given = segments.len();
        if given > MOST_SEGMENTS {
            return Err(error());
        }
        segments.resize(given.max(3), 0);
        let version = Self {
            segments,
            given,
            prerelease: prerelease.to_owned(),
        };
        // The canonical text is longer when numbers or a hyphen were left out, and must parse again.
        if version.to_string().len() > MOST_CHARACTERS {
            Err(error())
        } else {
            Ok(version)
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<_> = self.segments.iter().map(u64::to_string).collect();
        f.write_str(&numbers.join("."))?;
        if self.prerelease.is_empty() {
            Ok(())
        } else {
            write!(f, "-{}", self.prerelease)
        }
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Version {}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let count = self.segments.len().max(other.segments.len());
        let numbers = (0..count).map(|i| self.segment(i).cmp(&other.segment(i)));
        numbers.fold(Ordering::Equal, Ordering::then).then_with(|| {
            match (self.is_stable(), other.is_stable()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => prereleases(&self.prerelease, &other.prerelease),
            }
        })
    }
}

fn prereleases(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.split('.'), b.split('.'));
    loop {
        let order = match (a.next(), b.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
            (Some(a), Some(b)) => match (a.parse::<u64>(), b.parse::<u64>()) {
                (Ok(a), Ok(b)) => a.cmp(&b),
                (Ok(_), Err(_)) => Ordering::Less,
                (Err(_), Ok(_)) => Ordering::Greater,
                (Err(_), Err(_)) => a.cmp(b),
            },
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}
