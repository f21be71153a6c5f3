//! Version constraints in HashiCorp's grammar (`hashicorp/go-version`), corner cases included.

use std::{cmp::Ordering, fmt, str::FromStr};

use crate::{Error, Version};

/// The most parts of a constraint.
const MOST_PARTS: usize = 64;

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

impl Operator {
    const fn text(self) -> &'static str {
        match self {
            Self::Equal => "",
            Self::NotEqual => "!= ",
            Self::Greater => "> ",
            Self::GreaterEqual => ">= ",
            Self::Less => "< ",
            Self::LessEqual => "<= ",
            Self::Pessimistic => "~> ",
        }
    }
}

/// A conjunction of constraints: `>= 1.8, < 2.0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraints {
    parts: Vec<(Operator, Version)>,
}

impl Constraints {
    /// Whether this version may be chosen: it satisfies all constraints. A prerelease satisfies a constraint only if the constraint
    /// names a prerelease of the same MAJOR.MINOR.PATCH.
    pub fn allow(&self, version: &Version) -> bool {
        self.parts
            .iter()
            .all(|(operator, wanted)| allows(*operator, version, wanted))
    }

    /// Whether a version satisfies all of them as Terraform and OpenTofu check themselves: a prerelease counts as its release
    /// (`CheckCoreVersionRequirements` of both).
    pub fn allow_core(&self, version: &Version) -> bool {
        self.allow(&version.core())
    }

    /// Whether all of these together allow any release from `first` on, by the rule of [`Self::allow_core`].
    pub fn any_from<'a>(all: impl IntoIterator<Item = &'a Self>, first: &Version) -> bool {
        let parts: Vec<_> = all.into_iter().flat_map(|one| &one.parts).collect();
        // Each part of a constraint is a bound, or excludes one version. So if any version is allowed, one of these is: a bound, its
        // successor, `first`, or the successor of `first`.
        let bounds = parts.iter().map(|(_, bound)| bound.core());
        let candidates = bounds
            .flat_map(|bound| [bound.next(), bound])
            .chain([first.clone(), first.next()]);
        candidates.into_iter().any(|v| {
            v >= *first
                && parts
                    .iter()
                    .all(|(operator, wanted)| allows(*operator, &v, wanted))
        })
    }

    /// Whether a part, other than one that excludes a version, names a prerelease of the same numbers. `!= 1.9.0` alone allows each
    /// prerelease in go-version, but means none.
    pub fn names(&self, version: &Version) -> bool {
        self.parts.iter().any(|(operator, wanted)| {
            *operator != Operator::NotEqual
                && !wanted.is_stable()
                && wanted.has_segments_of(version)
        })
    }

    /// Whether a part names a prerelease, which `required_version` must not.
    pub fn names_prerelease(&self) -> bool {
        self.parts.iter().any(|(_, version)| !version.is_stable())
    }
}

fn allows(operator: Operator, v: &Version, c: &Version) -> bool {
    // A constraint without a prerelease never matches one; with one, only one of the same numbers.
    let comparable = v.is_stable() || (!c.is_stable() && v.has_segments_of(c));
    match operator {
        Operator::Equal => v == c,
        Operator::NotEqual => v != c,
        Operator::Greater => comparable && v > c,
        Operator::GreaterEqual => comparable && v >= c,
        Operator::Less => comparable && v < c,
        Operator::LessEqual => comparable && v <= c,
        // All written numbers but the last one must be equal. So `~> 1` has no upper bound.
        Operator::Pessimistic => {
            comparable
                && (c.is_stable() || !v.is_stable())
                && v.cmp(c) != Ordering::Less
                && (0..c.given().saturating_sub(1)).all(|i| v.segment(i) == c.segment(i))
        }
    }
}

impl FromStr for Constraints {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let error = |part: &str| {
            let short: String = text.trim().chars().take(60).collect();
            let why = match part.trim() {
                "" => "a part of it is empty".to_owned(),
                part if part.starts_with("==") => "`==` is written `=`".to_owned(),
                part if part.contains("||") => "there is no `||`".to_owned(),
                part => format!(
                    "`{}` is not understood",
                    part.chars().take(40).collect::<String>()
                ),
            };
            Error::configuration(format!("`{short}` is not a version constraint: {why}"))
        };
        let parts: Vec<_> = text
            .split(',')
            .take(MOST_PARTS + 1)
            .map(|part| {
                let plain = part.trim();
                let digits = plain
                    .find(|c: char| c == 'v' || c.is_ascii_digit())
                    .unwrap_or(plain.len());
                let (operator, version) = plain.split_at(digits);
                let operator = match operator.trim() {
                    "" | "=" => Operator::Equal,
                    "!=" => Operator::NotEqual,
                    ">" => Operator::Greater,
                    ">=" => Operator::GreaterEqual,
                    "<" => Operator::Less,
                    "<=" => Operator::LessEqual,
                    "~>" => Operator::Pessimistic,
                    _ => return Err(error(part)),
                };
                Ok((operator, version.parse().map_err(|_| error(part))?))
            })
            .collect::<Result<_, _>>()?;
        if parts.len() > MOST_PARTS {
            return Err(Error::configuration(format!(
                "a version constraint has more than {MOST_PARTS} parts"
            )));
        }
        Ok(Self { parts })
    }
}

impl fmt::Display for Constraints {
    /// Prints as many numbers as were written, since they are the meaning of `~>`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (operator, version)) in self.parts.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            let text = version.to_string();
            let (numbers, prerelease) = text
                .split_once('-')
                .map_or((text.as_str(), None), |(n, p)| (n, Some(p)));
            let numbers: Vec<_> = numbers.split('.').take(version.given().max(1)).collect();
            write!(f, "{comma}{}{}", operator.text(), numbers.join("."))?;
            if let Some(prerelease) = prerelease {
                write!(f, "-{prerelease}")?;
            }
        }
        Ok(())
    }
}
