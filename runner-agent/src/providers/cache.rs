//! The cache of providers and the mirror of a run: `HOST/NAMESPACE/NAME/VERSION/OS_ARCH/H1/package/…` below one directory, shared
//! by processes, pods and nodes.
//!
//! A package exists once its directory has its name, which it gets when it is complete on disk. The name contains the hash, and a
//! stack gets only packages whose hash its own lock file lists. So a planted package reaches only stacks that requested exactly
//! these bytes.

use std::{
    fmt,
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use tool_versions::{
    Digest, Error, Platform, Result,
    cache::shared_dir::{SharedDir, USED, at, hold, remove, replace},
};

use super::{
    H1, Lock, Locked, Provider,
    package::{Record, in_place},
};

/// Beside a package: its record.
pub(super) const RECORD: &str = "record.json";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest cached package, in bytes; those of large clouds have 700 MB.
    pub package: u64,
    /// The size of the cache above which packages are pruned, in bytes.
    pub cache: u64,
    /// Packages used within this time are not pruned.
    pub spared: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            package: 2 << 30,
            cache: 20 << 30,
            spared: Duration::from_secs(3600),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Cache {
    pub(super) dir: SharedDir,
    pub(super) platform: String,
    pub(super) limits: Limits,
}

/// A package in the mirror of a run. It is not pruned while this lives.
#[derive(Debug)]
pub struct Served {
    pub provider: Provider,
    pub version: String,
    _used: File,
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.provider, self.version)
    }
}

/// The result for a run. Without a mirror it downloads its providers.
#[derive(Debug, Default)]
pub struct Serving {
    /// The packages in its mirror.
    pub served: Vec<Served>,
    /// Warnings.
    pub notes: Vec<String>,
}

impl Cache {
    /// Makes a handle. The directory is created with the first package.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self {
            dir: SharedDir::at(root),
            platform: Platform::here().to_string(),
            limits: Limits::default(),
        }
    }

    #[must_use]
    pub fn with(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Makes a mirror of the packages in the cache that the stack's lock file lists. The lock file must be read before code of
    /// the stack could write to it. Replaces an existing mirror.
    pub fn serve(&self, lock: &Lock, mirror: &Path) -> Serving {
        let mut serving = Serving::default();
        if let Err(error) = remove(mirror) {
            serving.notes.push(error.to_string());
            return serving;
        }
        for locked in &lock.providers {
            for h1 in &locked.packages {
                match self.serve_one(locked, h1, mirror) {
                    Ok(Some(served)) => {
                        serving.served.push(served);
                        break;
                    }
                    Ok(None) => {}
                    Err(error) => serving
                        .notes
                        .push(format!("{} {}: {error}", locked.provider, locked.version)),
                }
            }
        }
        serving
    }

    fn serve_one(&self, locked: &Locked, h1: &H1, mirror: &Path) -> Result<Option<Served>> {
        let place = self.place(locked, h1);
        let Some(used) = self.take(&place, h1)? else {
            return Ok(None);
        };
        let link = mirror
            .join(locked.provider.path())
            .join(&locked.version)
            .join(&self.platform);
        let dir = link.parent().unwrap_or(mirror);
        // The tool resolves it from another directory.
        let package = in_place(&place).canonicalize().map_err(at(&place))?;
        fs::create_dir_all(dir)
            .and_then(|()| symlink(package, &link))
            .map_err(at(&link))?;
        Ok(Some(Served {
            provider: locked.provider.clone(),
            version: locked.version.clone(),
            _used: used,
        }))
    }

    /// Takes a package into use, if it exists and is unchanged. Removes a changed one.
    fn take(&self, place: &Path, h1: &H1) -> Result<Option<File>> {
        // Without a record it is no package.
        if !place.join(USED).is_file() {
            return Ok(None);
        }
        let Some(used) = hold(place)? else {
            return Ok(None);
        };
        let text = fs::read(place.join(RECORD)).unwrap_or_default();
        let broken = |what: String| {
            self.dir.discard(place)?;
            Err(Error::integrity(format!(
                "the cache had {what} for {h1}, which was removed"
            )))
        };
        let Ok(known) = serde_json::from_slice::<Record>(&text) else {
            return broken("no record".to_owned());
        };
        let package = in_place(place);
        if !known.holds(&package) {
            let (found, now) = known.again(&package).map_err(at(&package))?;
            if found != *h1 {
                return broken(found.to_string());
            }
            // A read-only cache is read again the next time.
            let _ = write_record(place, &now);
        }
        let _ = used.set_modified(SystemTime::now());
        Ok(Some(used))
    }

    /// The directory of a package.
    pub(super) fn place(&self, locked: &Locked, h1: &H1) -> PathBuf {
        self.dir
            .root()
            .join(locked.provider.path())
            .join(&locked.version)
            .join(&self.platform)
            .join(h1.hex())
    }

    /// The name of a package's lock and of its staging directory.
    pub(super) fn key(&self, locked: &Locked) -> String {
        Digest::of(format!("{}/{}/{}", locked.provider, locked.version, self.platform).as_bytes())
            .to_string()
    }
}

/// Writes the record of a package atomically.
pub(super) fn write_record(place: &Path, record: &Record) -> Result<()> {
    let path = place.join(RECORD);
    replace(
        &path,
        &serde_json::to_vec(record).map_err(|error| at(&path)(error.into()))?,
    )
}

#[cfg(test)]
impl Served {
    /// Makes a result without a mirror.
    pub(super) fn of_test(provider: &str, version: &str) -> Self {
        let provider = Provider::parse(provider).unwrap();
        Self {
            provider,
            version: version.to_owned(),
            _used: File::open("/dev/null").unwrap(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::populate::tests::{Stack, never};
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn mirror_has_exactly_the_locked_packages() {
        let stack = Stack::new();
        let cache = stack.cache();
        assert!(
            cache
                .serve(&stack.lock(), &stack.mirror())
                .served
                .is_empty()
        );
        assert_eq!(
            cache.keep(&stack.lock(), &stack.data(), &never).kept.len(),
            1
        );
        let serving = cache.serve(&stack.lock(), &stack.mirror());
        assert_eq!(
            (serving.served[0].to_string().as_str(), serving.notes.len()),
            ("registry.opentofu.org/acme/one 1.2.3", 0)
        );
        let link = stack
            .mirror()
            .join("registry.opentofu.org/acme/one/1.2.3")
            .join(Platform::here().to_string());
        assert!(link.is_symlink() && link.join("terraform-provider-one_v1.2.3").is_file());
        // Another hash, version or provider is another package; the mirror has only current ones.
        let lock = stack.lock();
        let changes: [fn(&mut Locked); 3] = [
            |locked| locked.packages = vec![H1::of([])],
            |locked| locked.version = "1.2.4".into(),
            |locked| locked.provider.host = "registry.terraform.io".into(),
        ];
        for change in changes {
            let mut other = lock.clone();
            change(&mut other.providers[0]);
            assert!(cache.serve(&other, &stack.mirror()).served.is_empty());
            assert!(!link.is_symlink());
        }
        // Of several hashes, the one that is cached.
        let mut several = lock.clone();
        several.providers[0].packages.insert(0, H1::of([]));
        assert_eq!(cache.serve(&several, &stack.mirror()).served.len(), 1);
        assert!(
            cache
                .serve(&Lock::default(), &stack.mirror())
                .served
                .is_empty()
        );
    }

    #[test]
    fn changed_package_is_removed() {
        type Change = fn(&Path);
        let changes: [(&str, Change); 4] = [
            ("content", |p| {
                fs::remove_file(p.join("LICENSE.txt")).unwrap();
                fs::write(p.join("LICENSE.txt"), "license").unwrap();
            }),
            ("more", |p| fs::write(p.join("more"), "").unwrap()),
            ("less", |p| fs::remove_file(p.join("LICENSE.txt")).unwrap()),
            ("renamed", |p| {
                fs::rename(p.join("LICENSE.txt"), p.join("LICENSE")).unwrap();
            }),
        ];
        for (name, change) in changes {
            let stack = Stack::new();
            let cache = stack.cache();
            cache.keep(&stack.lock(), &stack.data(), &never);
            let package = stack.package();
            change(&package);
            let serving = cache.serve(&stack.lock(), &stack.mirror());
            assert!(
                serving.served.is_empty() && serving.notes[0].ends_with("which was removed"),
                "{name}: {serving:?}"
            );
            assert!(!package.exists() && !stack.mirror().exists(), "{name}");
            // The next run stores it again.
            assert_eq!(
                cache.keep(&stack.lock(), &stack.data(), &never).kept.len(),
                1,
                "{name}"
            );
        }
    }

    #[test]
    fn changed_modes_are_restored() {
        let stack = Stack::new();
        let cache = stack.cache();
        cache.keep(&stack.lock(), &stack.data(), &never);
        let binary = stack.package().join("terraform-provider-one_v1.2.3");
        let record = stack.package().with_file_name(RECORD);
        let before = fs::read(&record).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o000)).unwrap();
        assert_eq!(cache.serve(&stack.lock(), &stack.mirror()).served.len(), 1);
        assert_eq!(
            fs::metadata(&binary).unwrap().permissions().mode() & 0o777,
            0o555
        );
        let after = fs::read(&record).unwrap();
        assert_ne!(before, after);
        // The new stamp is stored, so the next run does not read it.
        assert_eq!(cache.serve(&stack.lock(), &stack.mirror()).served.len(), 1);
        assert_eq!(fs::read(&record).unwrap(), after);
    }

    #[test]
    fn invalid_cache_serves_nothing_without_error() {
        let stack = Stack::new();
        let cache = stack.cache();
        cache.keep(&stack.lock(), &stack.data(), &never);
        fs::write(stack.package().with_file_name(RECORD), "{").unwrap();
        let serving = cache.serve(&stack.lock(), &stack.mirror());
        assert!(
            serving.served.is_empty() && serving.notes.len() == 1 && !stack.package().exists(),
            "{serving:?}"
        );
        let none = Cache::at("/proc/version").serve(&stack.lock(), &stack.mirror());
        assert!(none.served.is_empty() && none.notes.is_empty(), "{none:?}");
        let kept = Cache::at("/proc/version").keep(&stack.lock(), &stack.data(), &never);
        assert!(kept.kept.is_empty() && kept.notes.len() == 1, "{kept:?}");
    }
}
