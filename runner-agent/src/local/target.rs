//! The target of `runner-agent local`: a folder, or a directory of a git repository.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Result, anyhow, bail};
use serde_json::{Value, json};

use super::tool_options;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A folder, used in place.
    Folder(PathBuf),
    /// A directory of a repository, fetched for the run.
    Git {
        url: String,
        /// Branch, tag or commit.
        revision: String,
        path: String,
    },
}

impl Target {
    pub fn read(place: &str) -> Result<Self> {
        let is_scp = place.split_once(':').is_some_and(|(user, _)| {
            user.contains('@') && !user.contains('/') && !Path::new(place).exists()
        });
        if is_scp || place.trim_start_matches("git::").starts_with("ssh://") {
            bail!(
                "{place} is not an http or https URL of a git repository; clone it with your own ssh and run in the \
                 clone; nothing was changed"
            );
        }
        if !place.contains("://") {
            let folder = Path::new(place)
                .canonicalize()
                .map_err(|error| match error.kind() {
                    ErrorKind::NotFound => {
                        let why = tool_options::no_verb(place)
                            .unwrap_or_else(|| format!("there is no directory {place}"));
                        anyhow!("{why}; nothing was changed")
                    }
                    _ => anyhow!("{place} cannot be reached: {error}; nothing was changed"),
                })?;
            if !folder.is_dir() {
                bail!(
                    "{place} is not a directory, and a plan that waits is applied by --approve; nothing was changed"
                );
            }
            return Ok(Self::Folder(folder));
        }
        let place = place.strip_prefix("git::").unwrap_or(place);
        if !place.starts_with("https://") && !place.starts_with("http://") {
            bail!("{place} is not an http or https URL of a git repository; nothing was changed");
        }
        let authority = place.split('/').nth(2).unwrap_or_default();
        if let Some((user, host)) = authority.rsplit_once('@')
            && user.contains(':')
        {
            // Neither the error nor a record may repeat it.
            bail!(
                "the URL for {host} has a password or token, which would stay in records and shell histories; clone the repository with \
                 your own credentials and run in the clone; nothing was changed"
            );
        }
        let (place, query) = place.split_once('?').unwrap_or((place, ""));
        let mut revision = "HEAD".to_owned();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("ref", name)) => revision = decoded(name)?,
                // Only the revision's own commit is fetched in any case.
                Some(("depth", _)) => {}
                _ => bail!(
                    "the URL has the parameter {parameter}; there is ref=BRANCH, TAG or COMMIT; nothing was changed"
                ),
            }
        }
        let scheme = place.find("://").map_or(0, |at| at + 3);
        let (url, path) = match place[scheme..].find("//") {
            Some(at) => (&place[..scheme + at], &place[scheme + at + 2..]),
            None => (place, "."),
        };
        Ok(Self::Git {
            url: url.to_owned(),
            revision,
            path: decoded(path)?,
        })
    }

    pub fn source(&self) -> Value {
        match self {
            Self::Folder(_) => json!({}),
            Self::Git {
                url,
                revision,
                path,
            } => json!({"git": {"url": url, "revision": revision, "path": path}}),
        }
    }

    pub fn folder(&self) -> Option<&PathBuf> {
        match self {
            Self::Folder(folder) => Some(folder),
            Self::Git { .. } => None,
        }
    }
}

/// A part of a URL without escapes such as `%2F`.
fn decoded(text: &str) -> Result<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let escape = part
            .get(..2)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        let Some(byte) = escape else {
            bail!(
                "{text} has a % that begins no escape; % itself is written %25; nothing was changed"
            );
        };
        bytes.push(byte);
        bytes.extend(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).map_err(|_| anyhow!("{text} is no UTF-8; nothing was changed"))
}

/// The top of the repository that contains a folder, else the folder.
pub fn top_of(folder: &Path) -> PathBuf {
    folder
        .ancestors()
        .find(|dir| dir.join(".git").exists())
        .unwrap_or(folder)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_is_a_folder_or_a_repository() {
        let git = |url: &str, revision: &str, path: &str| Target::Git {
            url: url.into(),
            revision: revision.into(),
            path: path.into(),
        };
        assert_eq!(
            Target::read("https://h/r.git").unwrap(),
            git("https://h/r.git", "HEAD", ".")
        );
        assert_eq!(
            Target::read("git::https://h/a/r.git//net/b?ref=v1").unwrap(),
            git("https://h/a/r.git", "v1", "net/b")
        );
        assert_eq!(
            Target::read("https://h/r.git//a%20b?ref=release%2F2024.1&depth=1").unwrap(),
            git("https://h/r.git", "release/2024.1", "a b")
        );
        for (bad, said) in [
            ("git@h:a/r.git", "clone it with your own ssh"),
            ("git::ssh://git@h/r.git", "clone it with your own ssh"),
            ("https://h/r.git?rev=x", "parameter rev=x"),
            ("https://h/r.git//a%zz", "%25"),
            (
                "https://me:s3cret-word@h/r.git",
                "the URL for h has a password",
            ),
        ] {
            let error = Target::read(bad).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains("s3cret"), "{error}");
        }
        for bad in ["ssh://h/r", "file:///etc", "ext::sh", "not/there"] {
            assert!(Target::read(bad).is_err(), "{bad}");
        }
        assert!(Target::read(".").unwrap().folder().is_some());
    }
}
