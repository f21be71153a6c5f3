//! Version requests: the text of a version file, a run or a default.
//!
//! | module | holds |
//! |---|---|
//! | [`version`], [`constraint`] | the grammar |
//! | [`files`] | version files, nearest directory first |
//! | [`required`] | `required_version` of the code |
//! | [`hcl`], [`json`] | the bounded HCL parser; blocks in JSON |
//! | [`mod@decide`] | the decision for a tool and a version request |
//! | [`place`] | file and line, for messages |

pub mod constraint;
pub mod decide;
pub mod files;
pub mod hcl;
pub mod json;
pub mod place;
pub mod required;
pub mod version;

use std::{fmt, str::FromStr};

use regex_lite::{Regex, RegexBuilder};

use crate::{Constraints, Error, Version};

/// The longest pattern of `latest:` and `min:`, in bytes.
const LONGEST_PATTERN: usize = 200;

/// The most memory of a compiled pattern, in bytes: `((.?){100}){100}` is short, and takes seconds for a whole list.
const LARGEST_PATTERN: usize = 32 << 10;

#[derive(Clone, Debug)]
pub enum Request {
    /// One version: `1.10.6`, `v1.10.6`; `1.5` is 1.5.0.
    Exact(Version),
    /// `latest` or `latest-stable`: the newest release.
    Latest,
    /// `latest-pre`: the newest, prereleases included.
    LatestPrerelease,
    /// `latest:PATTERN`: the newest that matches; a prerelease only if the pattern names one.
    LatestMatching(Pattern),
    /// `min:PATTERN`: the oldest that matches; a prerelease only if the pattern names one.
    OldestMatching(Pattern),
    /// `latest-allowed`: the newest that `required_version` allows; without one the newest release.
    LatestAllowed,
    /// `min-required`: the oldest that `required_version` allows; without one the newest release.
    OldestAllowed,
    /// The newest that satisfies constraints: `~> 1.9`.
    Within(Constraints),
}

/// A pattern that matches anywhere in a version's text.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

impl Pattern {
    fn new(text: &str) -> Result<Self, Error> {
        let wrong = |why: String| {
            Error::configuration(format!("`{text}` is not a pattern of versions: {why}"))
        };
        if text.is_empty() || text.len() > LONGEST_PATTERN {
            return Err(wrong(format!(
                "it has to have 1 to {LONGEST_PATTERN} characters"
            )));
        }
        RegexBuilder::new(text)
            .size_limit(LARGEST_PATTERN)
            .build()
            .map(Self)
            .map_err(|error| wrong(error.to_string()))
    }

    /// Whether a version matches: a release, or a prerelease that the pattern names. Such a pattern has letters or a hyphen besides classes
    /// and escapes, and does not match the numbers alone. tenv takes any prerelease that matches.
    fn is_in(&self, version: &Version) -> bool {
        let matches = |version: &Version| self.0.is_match(&version.to_string());
        matches(version)
            && (version.is_stable() || (self.names_letters() && !matches(&version.core())))
    }

    fn names_letters(&self) -> bool {
        let (mut class, mut escaped) = (false, false);
        self.0.as_str().chars().any(|c| {
            if std::mem::take(&mut escaped) {
                return false;
            }
            match c {
                '\\' => escaped = true,
                '[' => class = true,
                ']' => class = false,
                c => return !class && (c.is_ascii_alphabetic() || c == '-'),
            }
            false
        })
    }
}

impl Request {
    /// The version, when the request is for exactly one and needs no list.
    pub fn exact(&self) -> Option<&Version> {
        match self {
            Self::Exact(version) => Some(version),
            _ => None,
        }
    }

    /// Chooses among the versions for which `allowed` is true.
    pub fn choose<'a>(
        &self,
        versions: impl IntoIterator<Item = &'a Version>,
        allowed: impl Fn(&Version) -> bool,
    ) -> Option<&'a Version> {
        let mut fit = versions.into_iter().filter(|version| allowed(version));
        match self {
            Self::Exact(wanted) => fit.find(|version| *version == wanted),
            Self::Latest | Self::LatestAllowed => fit.filter(|version| version.is_stable()).max(),
            Self::LatestPrerelease => fit.max(),
            Self::LatestMatching(pattern) => fit.filter(|version| pattern.is_in(version)).max(),
            Self::OldestMatching(pattern) => fit.filter(|version| pattern.is_in(version)).min(),
            Self::OldestAllowed => fit.filter(|version| version.is_stable()).min(),
            Self::Within(constraints) => fit
                .filter(|version| version.is_stable() || constraints.names(version))
                .filter(|version| constraints.allow(version))
                .max(),
        }
    }
}

impl FromStr for Request {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        match text {
            "" => return Err(Error::configuration("no version is named")),
            "latest" | "latest-stable" => return Ok(Self::Latest),
            "latest-pre" => return Ok(Self::LatestPrerelease),
            "latest-allowed" => return Ok(Self::LatestAllowed),
            "min-required" => return Ok(Self::OldestAllowed),
            _ => {}
        }
        if let Some(pattern) = text.strip_prefix("latest:") {
            return Pattern::new(pattern.trim()).map(Self::LatestMatching);
        }
        if let Some(pattern) = text.strip_prefix("min:") {
            return Pattern::new(pattern.trim()).map(Self::OldestMatching);
        }
        if let Ok(version) = text.parse() {
            return Ok(Self::Exact(version));
        }
        // Report an unknown word as such, not as an invalid constraint.
        if text.starts_with(|c: char| c.is_ascii_alphabetic() && c != 'v') {
            let short: String = text.chars().take(60).collect();
            return Err(Error::configuration(format!(
                "`{short}` is no version; a version, a constraint, latest, latest-pre, latest:PATTERN, min:PATTERN, latest-allowed \
                 or min-required is"
            )));
        }
        text.parse().map(Self::Within)
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(version) => version.fmt(f),
            Self::Latest => f.write_str("latest"),
            Self::LatestPrerelease => f.write_str("latest-pre"),
            Self::LatestMatching(pattern) => write!(f, "latest:{}", pattern.0),
            Self::OldestMatching(pattern) => write!(f, "min:{}", pattern.0),
            Self::LatestAllowed => f.write_str("latest-allowed"),
            Self::OldestAllowed => f.write_str("min-required"),
            Self::Within(constraints) => constraints.fmt(f),
        }
    }
}
