//! Versions and constraints in HashiCorp's grammar (`hashicorp/go-version`), its corners included.

use std::{cmp::Ordering, fmt, str::FromStr};

/// A version: numbers, and a prerelease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    segments: Vec<u64>,
    given: usize,
    prerelease: String,
}

/// A text that is no version or no constraint.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{text}` is not a {what}")]
pub struct VersionError {
    text: String,
    what: &'static str,
}

fn wrong(text: &str, what: &'static str) -> VersionError {
    VersionError { text: text.chars().take(60).collect(), what }
}

impl Version {
    /// Whether this is a release, and no prerelease.
    pub fn is_stable(&self) -> bool {
        self.prerelease.is_empty()
    }

    /// Whether this is at least `major.minor`.
    pub fn at_least(&self, major: u64, minor: u64) -> bool {
        (self.segment(0), self.segment(1)) >= (major, minor)
    }

    fn segment(&self, i: usize) -> u64 {
        self.segments.get(i).copied().unwrap_or_default()
    }

    fn same_segments(&self, other: &Self) -> bool {
        (0..self.segments.len().max(other.segments.len())).all(|i| self.segment(i) == other.segment(i))
    }
}

impl FromStr for Version {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || wrong(text, "version");
        let plain = text.trim().strip_prefix('v').unwrap_or(text.trim());
        let plain = plain.split_once('+').map_or(plain, |(version, _metadata)| version);
        let numbers = plain.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(plain.len());
        let (numbers, rest) = plain.split_at(numbers);
        let prerelease = match rest.strip_prefix('-') {
            Some("") => return Err(error()),
            Some(tail) => tail,
            // Glued on, as in `1.2.0beta1`, when it begins with a letter.
            None if rest.is_empty() || rest.starts_with(|c: char| c.is_ascii_alphabetic()) => rest,
            None => return Err(error()),
        };
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '~');
        if !prerelease.chars().all(legal) || prerelease.split('.').any(|p| p.is_empty() && !prerelease.is_empty()) {
            return Err(error());
        }
        let mut segments = numbers.split('.').map(str::parse).collect::<Result<Vec<u64>, _>>().map_err(|_| error())?;
        let given = segments.len();
        segments.resize(given.max(3), 0);
        Ok(Self { segments, given, prerelease: prerelease.to_owned() })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<_> = self.segments.iter().map(u64::to_string).collect();
        f.write_str(&numbers.join("."))?;
        if self.prerelease.is_empty() { Ok(()) } else { write!(f, "-{}", self.prerelease) }
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let numbers = (0..self.segments.len().max(other.segments.len())).map(|i| self.segment(i).cmp(&other.segment(i)));
        numbers.fold(Ordering::Equal, Ordering::then).then_with(|| match (self.is_stable(), other.is_stable()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => prereleases(&self.prerelease, &other.prerelease),
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    Pessimistic,
}

/// Constraints, all of which a version has to satisfy. `latest` is the one that every release satisfies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraints {
    parts: Vec<(Operator, Version)>,
}

impl Constraints {
    /// Whether a version satisfies all of them.
    pub fn allow(&self, version: &Version) -> bool {
        if self.parts.is_empty() {
            return version.is_stable();
        }
        self.parts.iter().all(|(operator, wanted)| allows(*operator, version, wanted))
    }

    /// The newest of the versions that satisfies all of them.
    pub fn newest<'a>(&self, versions: impl IntoIterator<Item = &'a Version>) -> Option<&'a Version> {
        versions.into_iter().filter(|version| self.allow(version)).max()
    }
}

fn allows(operator: Operator, v: &Version, c: &Version) -> bool {
    // A constraint without a prerelease never matches one; with one, only those of the same numbers.
    let comparable = v.is_stable() || (!c.is_stable() && v.same_segments(c));
    match operator {
        Operator::Equal => v.cmp(c) == Ordering::Equal,
        Operator::NotEqual => v.cmp(c) != Ordering::Equal,
        Operator::Greater => comparable && v > c,
        Operator::GreaterEqual => comparable && v >= c,
        Operator::Less => comparable && v < c,
        Operator::LessEqual => comparable && v <= c,
        Operator::Pessimistic => {
            comparable
                && (c.is_stable() || !v.is_stable())
                && v >= c
                && c.segments.len() <= v.segments.len()
                && (0..c.given.saturating_sub(1)).all(|i| v.segment(i) == c.segment(i))
        }
    }
}

impl FromStr for Constraints {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if matches!(text, "latest" | "latest-stable") {
            return Ok(Self { parts: Vec::new() });
        }
        let parts = text
            .split(',')
            .map(|part| {
                let part = part.trim();
                let digits = part.find(|c: char| c == 'v' || c.is_ascii_digit()).unwrap_or(part.len());
                let (operator, version) = part.split_at(digits);
                let operator = match operator.trim() {
                    "" | "=" => Operator::Equal,
                    "!=" => Operator::NotEqual,
                    ">" => Operator::Greater,
                    ">=" => Operator::GreaterEqual,
                    "<" => Operator::Less,
                    "<=" => Operator::LessEqual,
                    "~>" => Operator::Pessimistic,
                    _ => return Err(wrong(text, "version constraint")),
                };
                let version = version.parse().map_err(|_| wrong(text, "version constraint"))?;
                Ok((operator, version))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraints_of_go_version() {
        // Rows of hashicorp/go-version's own tests, and the corners of the field notes.
        let rows = [
            (">= 1.0", "1.2", true),
            (">= 1.0", "0.9", false),
            (">= 1.0, < 1.2", "1.1.5", true),
            ("< 1.0, < 1.2", "1.1.5", false),
            ("= 1.0", "1.1.5", false),
            ("= 1.0", "1.0.0", true),
            ("1.0", "1.0.0", true),
            ("1.0", "1.0.1", false),
            ("~> 1.0", "2.0", false),
            ("~> 1.0", "1.1", true),
            ("~> 1.0", "1.2.3", true),
            ("~> 1.0.0", "1.2.3", false),
            ("~> 1.0.0", "1.0.7", true),
            ("~> 1.0.7", "1.0.4", false),
            ("~> 1.0.7", "1.0.7", true),
            ("~> 1.0.7", "1.0.8", true),
            ("~> 1.0.4", "1.0.5-beta", false),
            ("~> 2.1.0-a", "2.1.0-beta", true),
            ("~> 2.1.0-a", "2.1.0", false),
            ("~> 2.1.0-a", "2.1.1-beta", false),
            ("~> 1", "2.5.0", true),
            ("~> 1", "0.9.0", false),
            ("= 2.0", "2.1.0-beta1", false),
            ("> 2.0", "2.1.0-beta1", false),
            (">= 2.1.0-a", "2.1.0-beta", true),
            (">= 2.1.0-a", "2.1.1-beta", false),
            (">= 2.0.0", "2.1.0-beta", false),
            (">= 2.1.0-a", "2.1.1", true),
            ("<= 2.1.0-a", "2.0.0", true),
            ("< 2.1.0", "2.1.0-beta", false),
            ("!= 1.0", "1.0", false),
            ("!= 1.0", "1.0.1", true),
            ("!= 1.0", "1.1.0-rc1", true),
            ("= v1.2.3", "1.2.3", true),
            ("1.11.0-beta1", "1.11.0-beta1", true),
            (">=1.8,<2", "1.10.6", true),
            ("> 1.9", "1.10.0", true),
            ("latest", "1.10.6", true),
            ("latest", "1.11.0-rc1", false),
        ];
        for (constraint, version, allowed) in rows {
            let constraints: Constraints = constraint.parse().unwrap();
            assert_eq!(constraints.allow(&version.parse().unwrap()), allowed, "{version} for {constraint}");
        }
    }

    #[test]
    fn versions_are_ordered() {
        let order = [
            "0.9",
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc1",
            "1.0",
            "1.0.0.1",
            "1.2.0beta1",
            "1.2",
            "1.10.6",
        ];
        for pair in order.windows(2) {
            assert!(pair[0].parse::<Version>().unwrap() < pair[1].parse().unwrap(), "{pair:?}");
        }
        assert_eq!("v1.2+build".parse::<Version>().unwrap().to_string(), "1.2.0");
    }

    #[test]
    fn what_is_no_constraint_is_refused() {
        for text in ["", "1.5.x", "== 1.0", ">= 1.0 || < 2", ">= 1.0,", "~ 1.0", "1.0 2.0", "latest:1", "../../etc", "1.0-"] {
            assert!(text.parse::<Constraints>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_newest_release_is_taken() {
        let versions: Vec<Version> = ["1.9.0", "1.10.6", "1.10.7-rc1", "2.0.0"].iter().map(|v| v.parse().unwrap()).collect();
        let newest = |text: &str| text.parse::<Constraints>().unwrap().newest(&versions).map(Version::to_string);
        assert_eq!(newest("~> 1.9").as_deref(), Some("1.10.6"));
        assert_eq!(newest("latest").as_deref(), Some("2.0.0"));
        assert_eq!(newest("~> 3.0"), None);
    }
}
