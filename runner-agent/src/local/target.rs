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
        let (place, revision) = place
            .split_once("?ref=")
            .map_or((place, "HEAD"), |(place, revision)| (place, revision));
        let scheme = place.find("://").map_or(0, |at| at + 3);
        let (url, path) = match place[scheme..].find("//") {
            Some(at) => (&place[..scheme + at], &place[scheme + at + 2..]),
            None => (place, "."),
        };
        Ok(Self::Git {
            url: url.to_owned(),
            revision: revision.to_owned(),
            path: path.to_owned(),
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
        for bad in ["ssh://h/r", "file:///etc", "ext::sh", "not/there"] {
            assert!(Target::read(bad).is_err(), "{bad}");
        }
        assert!(Target::read(".").unwrap().folder().is_some());
    }
}
