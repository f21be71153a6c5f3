//! Lists of versions as servers write them. Nothing is got here.
//!
//! A version that cannot be read is left out: lists have names that never were releases (`alpha2025112801`). What is no list at all is
//! an error that shows how it begins.

use std::{fmt, marker::PhantomData};

use regex_lite::Regex;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use crate::{Error, Result, Version, mirror::ListKind};

/// The largest list that is read: 16 MiB. That of Terraform is a tenth of it.
pub const LARGEST: u64 = 16 << 20;
/// The most entries of a list: beyond them it is none. The longest, Terragrunt's, has some 1500.
pub const MOST: usize = 50_000;
/// The entries of a page of GitHub's API, when it is not the last.
pub const PAGE: usize = 100;

/// The versions of a list, newest first, each once.
///
/// # Errors
/// Unavailable for a page of HTML where there should be none; integrity for what cannot be read or has no version. `from` is where it
/// came from, for these.
pub fn read(kind: ListKind, from: &str, bytes: &[u8]) -> Result<Vec<Version>> {
    let names = match kind {
        ListKind::HashiCorp => json::<Index>(from, bytes)?.versions.0,
        ListKind::OpenTofu => json::<Api>(from, bytes)?.versions.0.into_iter().filter_map(|entry| entry.0?.id).collect(),
        ListKind::GitHub => return sorted(from, page(from, bytes)?.versions),
        ListKind::Html => return sorted(from, links(from, bytes)?),
        ListKind::Directory => String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect(),
    };
    let strict = kind == ListKind::Directory;
    sorted(from, names.iter().filter_map(|name| if strict { release(name) } else { name.parse().ok() }))
}

/// A page of GitHub's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its versions, as they stand there; a page may have none.
    pub versions: Vec<Version>,
    /// How many entries it has: with less than [`PAGE`] it is the last one.
    pub entries: usize,
}

/// Reads a page of GitHub's API. Drafts are left out.
///
/// # Errors
/// As [`read`], but a page without a version is none.
pub fn page(from: &str, bytes: &[u8]) -> Result<Page> {
    let releases = json::<Bounded<Release>>(from, bytes)?.0;
    let entries = releases.len();
    let published = releases.into_iter().filter_map(|release| release.0.filter(|release| !release.draft));
    let versions = published.filter_map(|release| release.tag_name?.parse().ok()).collect();
    Ok(Page { versions, entries })
}

/// Versions newest first, each once.
///
/// # Errors
/// Integrity: there is none.
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

/// A name of a directory or link that is a release of three numbers, with `v` or the tool before it or not. Names with fewer numbers
/// are years and days, those with more are hosts.
fn release(name: &str) -> Option<Version> {
    let name = ["terraform_", "tofu_", "terragrunt_"].iter().find_map(|tool| name.strip_prefix(tool)).unwrap_or(name);
    name.parse::<Version>().ok().filter(|version| version.given() == 3)
}

/// Versions that links lead to.
fn links(from: &str, bytes: &[u8]) -> Result<Vec<Version>> {
    let text = text(from, bytes)?;
    let link = Regex::new(r#"(?i)\shref\s*=\s*["']?([^"'\s<>]+)"#).map_err(|error| Error::integrity(error.to_string()))?;
    let mut versions = Vec::new();
    for (count, found) in link.captures_iter(&text).enumerate() {
        if count >= MOST {
            return Err(Error::integrity(format!("{from} has more than {MOST} links; it is no list of versions")));
        }
        let target = found.get(1).map_or("", |target| target.as_str());
        let path = target.split(['?', '#']).next().unwrap_or_default();
        // The host is no version, though it may look like one.
        let path = path.split_once("//").map_or(path, |(_, rest)| rest.split_once('/').map_or("", |(_, path)| path));
        versions.extend(path.rsplit('/').find(|part| !part.is_empty()).and_then(release));
    }
    Ok(versions)
}

fn text<'a>(from: &str, bytes: &'a [u8]) -> Result<std::borrow::Cow<'a, str>> {
    if bytes.len() as u64 > LARGEST {
        return Err(Error::integrity(format!("{from} is larger than {LARGEST} bytes; it is no list of versions")));
    }
    Ok(String::from_utf8_lossy(bytes))
}

fn json<'a, T: Deserialize<'a>>(from: &str, bytes: &'a [u8]) -> Result<T> {
    // Its length is judged before it is read.
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
        Error::integrity(format!("{from} cannot be read as a list of versions: {error}; it begins with `{begin}`"))
    })
}

/// The first characters, on one line.
fn begin(text: &str) -> String {
    let plain = |c: char| if c.is_control() || c == '\u{feff}' { ' ' } else { c };
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

/// HashiCorp's index. Of its versions only the names count.
#[derive(Deserialize)]
struct Index {
    versions: Keys,
}

/// OpenTofu's `api.json`.
#[derive(Deserialize)]
struct Api {
    versions: Bounded<Id>,
}

#[derive(Deserialize)]
struct Id {
    id: Option<String>,
}

/// A release in GitHub's API.
#[derive(Deserialize)]
struct Release {
    tag_name: Option<String>,
    #[serde(default)]
    draft: bool,
}

/// One entry, or nothing when it is of another shape.
struct Lenient<T>(Option<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either<T> {
            Entry(T),
            Other(IgnoredAny),
        }
        Ok(match Either::deserialize(deserializer)? {
            Either::Entry(entry) => Self(Some(entry)),
            Either::Other(_) => Self(None),
        })
    }
}

/// A list of no more than [`MOST`] entries.
struct Bounded<T>(Vec<Lenient<T>>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Bounded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Bounded<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of releases")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = from.next_element()? {
                    if entries.len() >= MOST {
                        return Err(serde::de::Error::custom(format!("more than {MOST} releases")));
                    }
                    entries.push(entry);
                }
                Ok(Bounded(entries))
            }
        }
        deserializer.deserialize_seq(Entries(PhantomData))
    }
}

/// The keys of an object, no more than [`MOST`].
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
                        return Err(serde::de::Error::custom(format!("more than {MOST} versions")));
                    }
                    names.push(name);
                }
                Ok(Keys(names))
            }
        }
        deserializer.deserialize_map(Names)
    }
}
