//! Parses lists of versions. Pure.
//!
//! Entries that are no version are skipped: lists have names that never were releases (`alpha2025112801`). Text that is no list
//! is an error that shows its beginning.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use crate::{Error, Result, Version, releases::mirror::ListKind};

/// The largest list, in bytes: 16 MiB. Terraform's is a tenth of it.
pub const LARGEST: u64 = 16 << 20;
/// The most entries of a list. The longest, Terragrunt's, has about 1500.
pub const MOST: usize = 50_000;
/// The entries of a full page of GitHub's API.
pub const PAGE: usize = 100;

/// The versions of a list, newest first, each once.
///
/// # Errors
/// Unavailable for an unexpected HTML page; integrity for text that cannot be parsed or has no version. `from` is the origin for
/// messages.
pub fn read(kind: ListKind, from: &str, bytes: &[u8]) -> Result<Vec<Version>> {
    let names = match kind {
        ListKind::HashiCorp => json::<Index>(from, bytes)?.versions.0,
        ListKind::OpenTofu => json::<Api>(from, bytes)?
            .versions
            .0
            .into_iter()
            .filter_map(|entry| entry.id)
            .collect(),
        ListKind::GitHub => return sorted(from, page(from, bytes)?.versions),
        ListKind::Html => return sorted(from, links(from, bytes)?),
        ListKind::Directory => String::from_utf8_lossy(bytes)
            .lines()
            .map(str::to_owned)
            .collect(),
    };
    let strict = kind == ListKind::Directory;
    sorted(
        from,
        names.iter().filter_map(|name| {
            if strict {
                release(name)
            } else {
                name.parse().ok()
            }
        }),
    )
}

/// A page of GitHub's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The versions in the order of the page; a page may have none.
    pub versions: Vec<Version>,
    /// The number of entries. With fewer than [`PAGE`] it is the last page.
    pub entries: usize,
}

/// Parses a page of GitHub's API. Drafts are skipped.
///
/// # Errors
/// As [`read`], but a page may have no version.
pub fn page(from: &str, bytes: &[u8]) -> Result<Page> {
    let releases = json::<Bounded>(from, bytes)?.0;
    let entries = releases.len();
    let published = releases
        .into_iter()
        .filter(|release| release.draft != Some(true))
        .filter_map(|release| release.tag_name);
    let versions = published.filter_map(|tag| tag.parse().ok()).collect();
    Ok(Page { versions, entries })
}

/// Sorts versions, newest first, and removes duplicates.
///
/// # Errors
/// Integrity: there is no version.
pub fn sorted(from: &str, versions: impl IntoIterator<Item = Version>) -> Result<Vec<Version>> {
    let mut versions: Vec<_> = versions.into_iter().collect();
    versions.sort_unstable_by(|one, other| other.cmp(one));
    versions.dedup();
    if versions.is_empty() {
        return Err(Error::integrity(format!(
            "{from} has no version in it: is it the list of another tool, or of another kind?"
        )));
    }
    Ok(versions)
}

/// A directory or link name that is a release of three numbers, with or without `v` or the name of the tool. Names with fewer
/// numbers are dates, those with more are hosts.
fn release(name: &str) -> Option<Version> {
    let name = ["terraform_", "tofu_", "terragrunt_"]
        .iter()
        .find_map(|tool| name.strip_prefix(tool))
        .unwrap_or(name);
    name.parse::<Version>()
        .ok()
        .filter(|version| version.given() == 3)
}

/// The whitespace of HTML.
const SPACES: [char; 6] = [' ', '\t', '\n', '\r', '\x0b', '\x0c'];

/// The versions in the targets of links.
fn links(from: &str, bytes: &[u8]) -> Result<Vec<Version>> {
    let text = text(from, bytes)?;
    let (mut versions, mut count, mut end) = (Vec::new(), 0, 0);
    // Without a regular expression, which takes half a minute for 16 MiB of spaces.
    for (at, href) in text.to_ascii_lowercase().match_indices("href") {
        let (before, after) = text.split_at(at);
        let Some((target, rest)) =
            target(&after[href.len()..]).filter(|_| at >= end && before.ends_with(SPACES))
        else {
            continue;
        };
        end = text.len() - rest;
        if count >= MOST {
            return Err(Error::integrity(format!(
                "{from} has more than {MOST} links; it is no list of versions"
            )));
        }
        count += 1;
        let path = target.split(['?', '#']).next().unwrap_or_default();
        // A host may look like a version.
        let path = path.split_once("//").map_or(path, |(_, rest)| {
            rest.split_once('/').map_or("", |(_, path)| path)
        });
        versions.extend(
            path.rsplit('/')
                .find(|part| !part.is_empty())
                .and_then(release),
        );
    }
    Ok(versions)
}

/// The value of `href`, if it has one, and the length of the text after it.
fn target(after: &str) -> Option<(&str, usize)> {
    let value = after
        .trim_start_matches(SPACES)
        .strip_prefix('=')?
        .trim_start_matches(SPACES);
    let value = value.strip_prefix(['"', '\'']).unwrap_or(value);
    let end = value
        .find(|c| SPACES.contains(&c) || matches!(c, '"' | '\'' | '<' | '>'))
        .unwrap_or(value.len());
    let (target, rest) = value.split_at(end);
    (!target.is_empty()).then_some((target, rest.len()))
}

fn text<'a>(from: &str, bytes: &'a [u8]) -> Result<std::borrow::Cow<'a, str>> {
    if bytes.len() as u64 > LARGEST {
        return Err(Error::integrity(format!(
            "{from} is larger than {LARGEST} bytes; it is no list of versions"
        )));
    }
    Ok(String::from_utf8_lossy(bytes))
}

fn json<'a, T: Deserialize<'a>>(from: &str, bytes: &'a [u8]) -> Result<T> {
    // Checks the length before parsing.
    let begin = begin(&text(from, bytes)?);
    // Some servers write a byte order mark.
    let plain = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if plain.trim_ascii_start().starts_with(b"<") {
        let text = format!(
            "{from} is a page of HTML and no JSON: a login, a proxy's notice or a maintenance page; it begins with `{begin}`"
        );
        return Err(Error::unavailable(text));
    }
    serde_json::from_slice(plain).map_err(|error| {
        // The error may quote a value of any length.
        let why: String = error.to_string().chars().take(100).collect();
        Error::integrity(format!(
            "{from} cannot be read as a list of versions: {why}; it begins with `{begin}`"
        ))
    })
}

/// The first characters, on one line.
fn begin(text: &str) -> String {
    let plain = |c: char| {
        if c.is_control() || c == '\u{feff}' {
            ' '
        } else {
            c
        }
    };
    text.chars()
        .take(200)
        .map(plain)
        .collect::<String>()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .take(60)
        .collect()
}

/// HashiCorp's index: only the keys of its versions count.
#[derive(Deserialize)]
struct Index {
    versions: Keys,
}

/// OpenTofu's `api.json`.
#[derive(Deserialize)]
struct Api {
    versions: Bounded,
}

/// An entry of OpenTofu's `api.json`, or a release in GitHub's API. Other values are not stored: a list of 16 MiB with small values
/// would need twenty times as much memory.
#[derive(Deserialize)]
struct Entry {
    id: Option<String>,
    tag_name: Option<String>,
    draft: Option<bool>,
}

/// A list of at most [`MOST`] entries.
struct Bounded(Vec<Entry>);

impl<'de> Deserialize<'de> for Bounded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Bounded;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of releases")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Bounded, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = from.next_element()? {
                    if entries.len() >= MOST {
                        return Err(serde::de::Error::custom(format!(
                            "more than {MOST} releases"
                        )));
                    }
                    entries.push(entry);
                }
                Ok(Bounded(entries))
            }
        }
        deserializer.deserialize_seq(Entries)
    }
}

/// The keys of an object, at most [`MOST`].
struct Keys(Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Keys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a key for each version")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Keys, A::Error> {
                let mut names = Vec::new();
                while let Some((name, _)) = from.next_entry::<String, IgnoredAny>()? {
                    if names.len() >= MOST {
                        return Err(serde::de::Error::custom(format!(
                            "more than {MOST} versions"
                        )));
                    }
                    names.push(name);
                }
                Ok(Keys(names))
            }
        }
        deserializer.deserialize_map(Names)
    }
}
