//! Caches compiled third-party crates: a fresh clone links them instead of compiling three hundred crates again.
//!
//! The cache holds one snapshot per key, of one target folder: the units of registry crates in Cargo's messages, at their paths below the
//! target folder. Cargo takes a copied unit as fresh: sources in its registry count as immutable, fingerprints contain no absolute path,
//! and `build/*/root-output` lets it relocate the output of build scripts. Modification times are preserved, because Cargo recompiles a
//! crate whose dependency is newer; so a snapshot comes from one target folder and is never mixed with another.
//!
//! A target folder is never shared between checkouts: the hash of a member does not contain the path of its workspace, so two checkouts
//! would overwrite each other's members.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs::{self, FileTimes},
    io,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{
    cache::{self, Cache, Lock},
    command::{self, run},
    report, root,
};

/// Number of snapshots to retain. Older ones are removed when one is added.
const KEPT: usize = 2;

/// Paths of files and folders below a target folder.
type Paths = BTreeSet<PathBuf>;

/// Links a snapshot into the target folder of this checkout, unless members are compiled there already. Without a snapshot, or after an
/// error, Cargo compiles the crates.
pub(crate) fn seed() {
    if let Err(error) = Cache::open().and_then(|cache| seed_from(&cache)) {
        report::note("crates", &format!("not taken from the cache: {error:#}"));
    }
}

/// Stores the third-party crates in these messages of Cargo, unless the snapshot has them already. An error is only printed, because this
/// is only a cache.
pub(crate) fn store(messages: &str) {
    if let Err(error) = Cache::open().and_then(|cache| store_in(&cache, messages)) {
        report::note("crates", &format!("not stored in the cache: {error:#}"));
    }
}

fn seed_from(cache: &Cache) -> Result<()> {
    let Some(target) = target() else {
        return Ok(());
    };
    let _lock = cache.lock("crates")?;
    let snapshot = cache.path("crates").join(key()?);
    if !snapshot.exists() || has_members(&target)? {
        return Ok(());
    }
    let step = report::step("crates", "from the cache");
    // Cargo's own locks: another Cargo may work in the same folder.
    let profiles = profiles(&target)?;
    let locks = profiles
        .iter()
        .map(|profile| Lock::wait(&profile.join(".cargo-lock")));
    let _locks = locks.collect::<Result<Vec<_>>>()?;
    // The hash of a crate that includes a file of `OUT_DIR` contains that path, so crates that were compiled here do not match the
    // snapshot. Remove their fingerprints; Cargo then compiles again the few crates of this program.
    for profile in &profiles {
        cache::remove(&profile.join(".fingerprint"))?;
    }
    place_all(&below_all(&snapshot, Path::new(""))?, &snapshot, &target)?;
    // Mark it as used: pruning goes by this time.
    fs::File::open(&snapshot)?.set_modified(std::time::SystemTime::now())?;
    step.done();
    Ok(())
}

fn store_in(cache: &Cache, messages: &str) -> Result<()> {
    let Some(target) = target() else {
        return Ok(());
    };
    let _lock = cache.lock("crates")?;
    let units = units(messages, &target)?;
    let (all, snapshot) = (cache.path("crates"), cache.path("crates").join(key()?));
    if units.iter().all(|path| snapshot.join(path).exists()) {
        return Ok(());
    }
    let fresh = all.join(".fresh");
    cache::remove(&fresh)?;
    Cache::install(&fresh, |to| place_all(&units, &target, to))?;
    // A kill between the two leaves no snapshot, which costs one compilation.
    cache::remove(&snapshot)?;
    fs::rename(&fresh, &snapshot)
        .with_context(|| format!("cannot move crates to {}", snapshot.display()))?;
    prune(&all)
}

/// Removes all but the newest snapshots.
fn prune(all: &Path) -> Result<()> {
    let mut snapshots = Vec::new();
    for name in entries(all)?.iter().filter(|name| !name.starts_with('.')) {
        let snapshot = all.join(name);
        snapshots.push((fs::metadata(&snapshot)?.modified()?, snapshot));
    }
    snapshots.sort();
    let mut old = snapshots.iter().rev().skip(KEPT);
    old.try_for_each(|(_, snapshot)| cache::remove(snapshot))
}

/// The target folder of this program. `None` if it is not in one.
fn target() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let profile = program
        .parent()
        .filter(|profile| profile.ends_with("release"))?;
    profile.ancestors().nth(2).map(Path::to_owned)
}

/// `release` of the host and of each target.
fn profiles(target: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![target.join("release")];
    let targets = entries(target)?;
    found.extend(targets.iter().map(|name| target.join(name).join("release")));
    found.retain(|profile| profile.join(".fingerprint").is_dir());
    Ok(found)
}

/// Whether members are compiled here, which may be linked against the present third-party crates.
fn has_members(target: &Path) -> Result<bool> {
    let mut units = Vec::new();
    for profile in profiles(target)? {
        units.extend(entries(&profile.join(".fingerprint"))?);
    }
    Ok(units.iter().any(|name| name.starts_with("crds-")))
}

/// A hash of everything that affects the compilation of third-party crates. Superfluous units do no harm, since Cargo finds each unit by
/// its own hash.
fn key() -> Result<String> {
    let read = |name: &str| cache::read(&root().join(name));
    let lock = read("Cargo.lock")?;
    let packages = lock.split("[[package]]");
    let third_party: String = packages
        .filter(|package| package.contains("\nsource = "))
        .collect();
    let manifest = read("Cargo.toml")?;
    let profiles = manifest.find("[profile.").map_or("", |at| &manifest[at..]);
    let rustc = run(Command::new("rustc").arg("-vV").current_dir(root()))?;
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let config = read(".cargo/config.toml")?;
    Ok(cache::key([
        &third_party,
        profiles,
        &config,
        &rustc,
        &flags,
    ]))
}

/// The units of registry crates in Cargo's messages: compiled files, output of build scripts, and the fingerprints of both.
fn units(messages: &str, target: &Path) -> Result<Paths> {
    let mut found = Paths::new();
    // Fingerprints by profile and by the hash at the end of their names.
    let mut fingerprints = BTreeMap::<PathBuf, BTreeMap<String, PathBuf>>::new();
    for message in command::messages(messages).filter(is_third_party) {
        let files = message["filenames"]
            .as_array()
            .into_iter()
            .flatten()
            .chain([&message["out_dir"]]);
        for file in files.filter_map(Value::as_str) {
            let Ok(file) = Path::new(file).strip_prefix(target) else {
                continue;
            };
            let Some(profile) = file.ancestors().find(|folder| folder.ends_with("release")) else {
                continue;
            };
            let mut below = file.strip_prefix(profile)?.iter();
            let (Some(folder), Some(name)) = (below.next(), below.next()) else {
                continue;
            };
            // `deps/libserde-HASH.rlib`, or `build/serde-HASH/…`, of which the whole folder is taken.
            let unit = profile.join(folder).join(name);
            let Some((_, hash)) = unit
                .file_stem()
                .and_then(|stem| stem.to_str()?.rsplit_once('-'))
            else {
                continue;
            };
            if !fingerprints.contains_key(profile) {
                fingerprints.insert(profile.to_owned(), by_hash(target, profile)?);
            }
            let Some(fingerprint) = fingerprints[profile].get(hash) else {
                continue;
            };
            found.extend(below_all(target, &unit)?);
            found.extend(below_all(target, fingerprint)?);
        }
    }
    Ok(found)
}

fn is_third_party(message: &Value) -> bool {
    message["package_id"]
        .as_str()
        .is_some_and(|id| id.starts_with("registry+"))
}

fn by_hash(target: &Path, profile: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let folder = profile.join(".fingerprint");
    let names = entries(&target.join(&folder))?;
    Ok(names
        .into_iter()
        .filter_map(|name| Some((name.rsplit_once('-')?.1.to_owned(), folder.join(&name))))
        .collect())
}

/// The files below `path`, or `path` itself if it is a file, relative to `base`.
fn below_all(base: &Path, path: &Path) -> Result<Paths> {
    if !base.join(path).is_dir() {
        return Ok(Paths::from([path.to_owned()]));
    }
    let mut found = Paths::new();
    for name in entries(&base.join(path))? {
        found.extend(below_all(base, &path.join(name))?);
    }
    Ok(found)
}

/// Places these files, fingerprints last: Cargo compiles a unit without one again.
fn place_all(files: &Paths, from: &Path, to: &Path) -> Result<()> {
    let mut files: Vec<_> = files.iter().collect();
    files.sort_by_key(|path| path.iter().any(|part| part == ".fingerprint"));
    files
        .into_iter()
        .try_for_each(|path| place(&from.join(path), &to.join(path)))
}

/// Places a file with its modification time, atomically. Immutable files are linked, others copied.
fn place(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().context("a file lies in a folder")?;
    cache::create_dir(parent)?;
    let temporary = parent.join(".partial");
    cache::remove(&temporary)?;
    let linked = is_immutable(from) && fs::hard_link(from, &temporary).is_ok();
    let placed = if linked {
        Ok(())
    } else {
        copy(from, &temporary)
    };
    placed
        .and_then(|()| fs::rename(&temporary, to))
        .with_context(|| format!("cannot place {}", to.display()))?;
    // Renaming one hard link of a file to another does nothing.
    cache::remove(&temporary)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to)?;
    let times = FileTimes::new().set_modified(fs::metadata(from)?.modified()?);
    fs::File::options().append(true).open(to)?.set_times(times)
}

/// Libraries and build scripts, which Cargo, rustc and the linker replace and never write into.
fn is_immutable(file: &Path) -> bool {
    let text = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let (end, name) = (text(file.extension()), text(file.file_name()));
    let in_deps = file.parent().is_some_and(|folder| folder.ends_with("deps"));
    let is_script = name.starts_with("build-script-") || name.starts_with("build_script_");
    end.is_empty() && is_script || in_deps && ["rlib", "rmeta", "so"].contains(&end.as_str())
}

/// The names in a folder. Empty if it does not exist.
fn entries(folder: &Path) -> Result<Vec<String>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let found =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let names = found
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.collect())
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::MetadataExt as _, time::Duration};

    use serde_json::json;

    use super::*;

    fn write(folder: &Path, path: &str) -> PathBuf {
        let path = folder.join(path);
        cache::write(&path, path.display().to_string()).unwrap();
        path
    }

    /// A folder that drop removes.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("crates-{name}-{}", std::process::id()));
            cache::remove(&folder).unwrap();
            cache::create_dir(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = cache::remove(&self.0);
        }
    }

    #[test]
    fn snapshot_holds_registry_units_with_times_and_no_members() {
        let (target, snapshot, other) = (
            Folder::new("target"),
            Folder::new("snapshot"),
            Folder::new("other"),
        );
        let host = "x/release";
        for path in [
            "deps/libserde-01.rlib",
            "deps/libcrds-02.rlib",
            "deps/serde-01.d",
            "build/ring-03/out/a.o",
            "build/ring-03/output",
        ] {
            write(&target.0.join(host), path);
        }
        for unit in [
            "serde-01/lib-serde",
            "crds-02/lib-crds",
            "ring-03/run-build-script",
        ] {
            write(&target.0.join(host), &format!(".fingerprint/{unit}"));
        }
        let at = |path: &str| target.0.join(host).join(path).display().to_string();
        let messages = [
            json!({"package_id": "registry+x#serde@1.0.0", "filenames": [at("deps/libserde-01.rlib")]}),
            json!({"package_id": "path+file:///x#crds@0.1.0", "filenames": [at("deps/libcrds-02.rlib")]}),
            json!({"package_id": "registry+x#ring@0.17.0", "out_dir": at("build/ring-03/out")}),
        ];
        let text = messages.map(|message| message.to_string()).join("\n");
        let found = units(&text, &target.0).unwrap();
        let expected = [
            ".fingerprint/ring-03/run-build-script",
            ".fingerprint/serde-01/lib-serde",
            "build/ring-03/out/a.o",
            "build/ring-03/output",
            "deps/libserde-01.rlib",
        ];
        assert_eq!(
            found,
            expected.map(|path| Path::new(host).join(path)).into()
        );

        let old = std::time::SystemTime::now() - Duration::from_secs(1000);
        for path in &found {
            let file = fs::File::options()
                .append(true)
                .open(target.0.join(path))
                .unwrap();
            file.set_modified(old).unwrap();
        }
        place_all(&found, &target.0, &snapshot.0).unwrap();
        // A recompiled one is replaced: its dependents in the snapshot are older.
        write(&other.0.join(host), "deps/libserde-01.rlib");
        place_all(&found, &snapshot.0, &other.0).unwrap();
        assert_eq!(below_all(&other.0, Path::new("")).unwrap(), found);
        let meta =
            |folder: &Folder, path: &str| fs::metadata(folder.0.join(host).join(path)).unwrap();
        for path in expected {
            assert_eq!(
                meta(&other, path).mtime(),
                meta(&target, path).mtime(),
                "{path}"
            );
        }
        let inode = |folder, path| meta(folder, path).ino();
        assert_eq!(
            inode(&other, "deps/libserde-01.rlib"),
            inode(&target, "deps/libserde-01.rlib")
        );
        assert_ne!(
            inode(&other, "build/ring-03/out/a.o"),
            inode(&target, "build/ring-03/out/a.o"),
            "a build script may write into it"
        );
        assert!(has_members(&target.0).unwrap() && !has_members(&other.0).unwrap());
    }

    #[test]
    fn only_the_newest_snapshots_stay() {
        let all = Folder::new("all");
        for (name, age) in [("a", 30), ("b", 10), ("c", 20), (".fresh", 40)] {
            cache::create_dir(&all.0.join(name)).unwrap();
            let at = std::time::SystemTime::now() - Duration::from_secs(age);
            fs::File::open(all.0.join(name))
                .unwrap()
                .set_modified(at)
                .unwrap();
        }
        prune(&all.0).unwrap();
        let mut left = entries(&all.0).unwrap();
        left.sort();
        assert_eq!(left, [".fresh", "b", "c"]);
    }
}
