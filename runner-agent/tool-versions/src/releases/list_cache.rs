//! The cache of lists of versions: fresh for an hour, stale after that, and used stale when the server fails.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::{
    Error, Kind, Result, Source, Version,
    cache::shared_dir::write_atomic,
    releases::{lists, mirror::Location, read_mirror::List},
};

/// The time that a list is fresh: 1 h.
const TIME_TO_LIVE: Duration = Duration::from_secs(3600);

#[derive(Deserialize, Serialize)]
struct Cached {
    /// The URL. A list from another URL is not used.
    from: String,
    etag: Option<String>,
    /// The time of the download, in Unix seconds.
    fetched: u64,
    /// The versions, newest first.
    versions: Vec<String>,
}

impl Cached {
    /// Whether the list is fresh at a time in Unix seconds. A list from the future is stale.
    fn is_fresh(&self, now: u64) -> bool {
        now.checked_sub(self.fetched)
            .is_some_and(|age| age < TIME_TO_LIVE.as_secs())
    }
}

/// The versions, with the age of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Newest first.
    pub versions: Vec<Version>,
    /// The time since the server confirmed the list.
    pub age: Duration,
    /// The reason why the list is stale, if it is.
    pub stale: Option<String>,
}

/// The versions of a tool, from the cache in `directory` or from the server.
///
/// # Errors
/// Those of [`Source::list`] when there is no cached list. Configuration errors are always returned, so that a stale list does
/// not hide a wrong URL. A cache that cannot be written is a warning in the log.
pub async fn known(source: &Source, directory: &Path, now: SystemTime) -> Result<Known> {
    let (mirror, from) = (source.mirror(), source.mirror().list.to_string());
    if matches!(mirror.list, Location::File(_)) {
        // A mirror on disk needs no cache.
        return match source.list(None).await? {
            List::New { versions, .. } => Ok(Known {
                versions,
                age: Duration::ZERO,
                stale: None,
            }),
            List::NotModified => Err(Error::integrity(format!("{from} has no list"))),
        };
    }
    let path = directory.join(format!("{}.json", mirror.tool.directory()));
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let known = load(&path).filter(|(cached, _)| cached.from == from);
    let (cached, versions) = known.unzip();
    let age = cached
        .as_ref()
        .map(|cached| Duration::from_secs(now.saturating_sub(cached.fetched)))
        .unwrap_or_default();
    if cached.as_ref().is_some_and(|cached| cached.is_fresh(now)) {
        return Ok(Known {
            versions: versions.unwrap_or_default(),
            age,
            stale: None,
        });
    }
    let etag = cached.as_ref().and_then(|cached| cached.etag.as_deref());
    let fetched = match (source.list(etag).await, &versions) {
        (Ok(List::New { versions, etag }), _) => {
            let names = versions.iter().map(Version::to_string).collect();
            save(
                &path,
                &Cached {
                    from,
                    etag,
                    fetched: now,
                    versions: names,
                },
            );
            versions
        }
        (Ok(List::NotModified), Some(versions)) => {
            if let Some(cached) = cached {
                save(
                    &path,
                    &Cached {
                        fetched: now,
                        ..cached
                    },
                );
            }
            versions.clone()
        }
        (Ok(List::NotModified), None) => {
            return Err(Error::integrity(format!(
                "{from} answered as if it had been asked before"
            )));
        }
        (Err(error), Some(versions))
            if matches!(error.kind, Kind::Unavailable | Kind::Integrity) =>
        {
            tracing::warn!(%error, age_s = age.as_secs(), "an older list of versions is used");
            return Ok(Known {
                versions: versions.clone(),
                age,
                stale: Some(error.text),
            });
        }
        (Err(error), _) => return Err(error),
    };
    Ok(Known {
        versions: fetched,
        age: Duration::ZERO,
        stale: None,
    })
}

/// Reads a cached list; `None` when it is invalid or empty.
fn load(path: &Path) -> Option<(Cached, Vec<Version>)> {
    let meta = fs::symlink_metadata(path).ok()?;
    if !meta.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(path)
        .ok()?
        .take(lists::LARGEST)
        .read_to_end(&mut bytes)
        .ok()?;
    let cached: Cached = serde_json::from_slice(&bytes).ok()?;
    let versions = lists::sorted(
        "",
        cached
            .versions
            .iter()
            .take(lists::MOST)
            .filter_map(|name| name.parse().ok()),
    )
    .ok()?;
    Some((cached, versions))
}

/// Writes a list atomically.
fn save(path: &Path, cached: &Cached) {
    if let Err(error) = write(path, cached) {
        tracing::warn!(%error, path = %path.display(), "a list of versions is not kept and will be asked for again");
    }
}

fn write(path: &Path, cached: &Cached) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    write_atomic(path, &serde_json::to_vec(cached)?)
}
