//! Stores packages in the cache: after `init`, copies each from the tool's directory, hashes the copy, and renames it once it is
//! synced. One process at a time; a second one skips the package.

use std::{
    fs::{self, File},
    path::Path,
    time::{Duration, SystemTime},
};

use tool_versions::{
    Error, Result,
    cache::shared_dir::{USED, at, make, remove, sync},
};

use super::{
    Cache, Lock, Locked,
    cache::write_record,
    package::{copy, in_place, runs_here},
};

/// The result for the packages that `init` installed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Newly cached packages, as `HOST/NAMESPACE/NAME VERSION`.
    pub kept: Vec<String>,
    /// Packages that are not cached because the lock file lacks the hash of this platform.
    pub unlisted: Vec<String>,
    /// Warnings.
    pub notes: Vec<String>,
}

/// The result for one package.
enum Became {
    Kept,
    Unlisted,
    /// It is cached, another process stores it, or it is a link.
    Left,
}

impl Cache {
    /// Stores the packages that `init` installed below `data` (`.terraform`) and that the lock file lists. The lock file must be read
    /// before code of the stack could write to it. Whether a package is stored depends on its hash and not on its origin.
    pub fn keep(&self, lock: &Lock, data: &Path, stop: &dyn Fn() -> bool) -> Kept {
        let mut all = Kept::default();
        for locked in &lock.providers {
            let name = format!("{} {}", locked.provider, locked.version);
            match self.keep_one(locked, data, stop) {
                Ok(Became::Kept) => all.kept.push(name),
                Ok(Became::Unlisted) => all.unlisted.push(name),
                Ok(Became::Left) => {}
                Err(_) if stop() => return all,
                Err(error) => all.notes.push(format!("{name}: {error}")),
            }
        }
        if !all.kept.is_empty() {
            let spared = SystemTime::now()
                .checked_sub(self.limits.spared)
                .unwrap_or(SystemTime::UNIX_EPOCH);
            if let Err(error) = self.prune(self.limits.cache, spared) {
                all.notes.push(error.to_string());
            }
        }
        all
    }

    fn keep_one(&self, locked: &Locked, data: &Path, stop: &dyn Fn() -> bool) -> Result<Became> {
        let there = || {
            locked
                .packages
                .iter()
                .any(|h1| self.place(locked, h1).join(USED).is_file())
        };
        let from = data
            .join("providers")
            .join(locked.provider.path())
            .join(&locked.version)
            .join(&self.platform);
        // A link leads to a mirror or a cache.
        if there() || !fs::symlink_metadata(&from).is_ok_and(|meta| meta.is_dir()) {
            return Ok(Became::Left);
        }
        if !listed(locked, data) {
            return Ok(Became::Unlisted);
        }
        let key = self.key(locked);
        let Some(_turn) = self.dir.turn(&key, Duration::ZERO)? else {
            return Ok(Became::Left);
        };
        if there() {
            return Ok(Became::Left);
        }
        let aside = self.dir.begin(&key)?;
        let kept = self.put(locked, &from, &aside, stop);
        if !matches!(kept, Ok(Became::Kept)) {
            let _ = remove(&aside);
        }
        kept
    }

    fn put(
        &self,
        locked: &Locked,
        from: &Path,
        aside: &Path,
        stop: &dyn Fn() -> bool,
    ) -> Result<Became> {
        let package = in_place(aside);
        make(&package)?;
        let (h1, record) = copy(from, &package, self.limits.package, stop).map_err(at(from))?;
        if !locked.packages.contains(&h1) {
            return Err(Error::integrity(format!(
                "the installed provider has the digest {h1}, which the lock file does not list"
            )));
        }
        if !runs_here(&package, &locked.provider.name, &record).map_err(at(&package))? {
            return Err(Error::integrity(
                "the installed provider has no executable for this platform",
            ));
        }
        write_record(aside, &record)?;
        let used = aside.join(USED);
        File::create(&used)
            .and_then(|file| file.sync_all())
            .map_err(at(&used))?;
        sync(aside)?;
        let place = self.place(locked, &h1);
        make(place.parent().unwrap_or(&place))?;
        // A directory of that name that is no package is not in use.
        remove(&place)?;
        fs::rename(aside, &place).map_err(at(&place))?;
        self.dir.sync_above(&place)?;
        Ok(Became::Kept)
    }
}

/// Whether the lock file may have listed the package before `init`. This only avoids needless copies: the hash of each copy is checked.
fn listed(before: &Locked, data: &Path) -> bool {
    let Some(Ok(now)) = data.parent().map(Lock::of) else {
        return true;
    };
    let now = now
        .providers
        .into_iter()
        .find(|now| now.provider == before.provider && now.version == before.version);
    now.is_none_or(|now| now.packages.iter().all(|h1| before.packages.contains(h1)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::providers::{H1, LOCK_FILE, cache::Limits};
    use std::{
        os::unix::fs::{PermissionsExt as _, symlink},
        path::PathBuf,
    };
    use tool_versions::{Digest, Platform};

    pub(crate) fn never() -> bool {
        false
    }

    /// A child of another test holds this process's locks between fork and exec.
    fn soon(mut is: impl FnMut() -> bool) -> bool {
        (0..20_000).any(|_| {
            is() || {
                std::thread::sleep(Duration::from_millis(2));
                false
            }
        })
    }

    /// A stack with one installed and locked provider, and a cache beside it.
    pub(crate) struct Stack {
        dir: tempfile::TempDir,
    }

    impl Stack {
        pub(crate) fn new() -> Self {
            Self::with("one", "")
        }

        /// A provider with its own name and size.
        pub(crate) fn with(name: &str, more: &str) -> Self {
            let stack = Self {
                dir: tempfile::tempdir().unwrap(),
            };
            let package = stack.installed(name);
            fs::create_dir_all(&package).unwrap();
            let mut program = vec![0; 20];
            std::io::Read::read_exact(&mut File::open("/proc/self/exe").unwrap(), &mut program)
                .unwrap();
            program.extend(more.bytes());
            let binary = package.join(format!("terraform-provider-{name}_v1.2.3"));
            fs::write(&binary, program).unwrap();
            fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
            fs::write(package.join("LICENSE.txt"), "licence").unwrap();
            stack.locks(name, &[stack.h1(name)]);
            stack
        }

        pub(crate) fn installed(&self, name: &str) -> PathBuf {
            self.data()
                .join("providers/registry.opentofu.org/acme")
                .join(name)
                .join("1.2.3")
                .join(Platform::here().to_string())
        }

        /// The hash of the installed package.
        pub(crate) fn h1(&self, name: &str) -> H1 {
            let package = self.installed(name);
            let files = crate::providers::package::files(&package).unwrap();
            H1::of(files.iter().map(|name| {
                (
                    name.as_str(),
                    Digest::of(&fs::read(package.join(name)).unwrap()),
                )
            }))
        }

        pub(crate) fn locks(&self, name: &str, packages: &[H1]) {
            let hashes: Vec<_> = packages
                .iter()
                .map(|h1| format!("    \"{h1}\",\n"))
                .collect();
            let hashes = hashes.concat();
            let text = format!(
                "provider \"registry.opentofu.org/acme/{name}\" {{\n  version = \"1.2.3\"\n  hashes = [\n{hashes}  ]\n}}\n"
            );
            fs::write(self.dir.path().join(LOCK_FILE), text).unwrap();
        }

        pub(crate) fn lock(&self) -> Lock {
            Lock::of(self.dir.path()).unwrap()
        }

        pub(crate) fn data(&self) -> PathBuf {
            self.dir.path().join(".terraform")
        }

        pub(crate) fn mirror(&self) -> PathBuf {
            self.dir.path().join("mirror")
        }

        pub(crate) fn root(&self) -> PathBuf {
            self.dir.path().join("cache")
        }

        pub(crate) fn cache(&self) -> Cache {
            Cache::at(self.root())
        }

        /// The package in the cache.
        pub(crate) fn package(&self) -> PathBuf {
            let locked = &self.lock().providers[0];
            in_place(&self.cache().place(locked, &locked.packages[0]))
        }
    }

    #[test]
    fn package_is_stored_once() {
        let stack = Stack::new();
        fs::create_dir(stack.installed("one").join("docs")).unwrap();
        fs::write(stack.installed("one").join("docs/a"), "a").unwrap();
        stack.locks("one", &[stack.h1("one")]);
        let kept = stack.cache().keep(&stack.lock(), &stack.data(), &never);
        let name = "registry.opentofu.org/acme/one 1.2.3".to_owned();
        assert_eq!(
            kept,
            Kept {
                kept: vec![name],
                ..Kept::default()
            }
        );
        let mode = |name: &str| {
            fs::metadata(stack.package().join(name))
                .unwrap()
                .permissions()
                .mode()
                & 0o777
        };
        assert_eq!(
            (
                mode("terraform-provider-one_v1.2.3"),
                mode("LICENSE.txt"),
                mode("docs/a")
            ),
            (0o555, 0o444, 0o444)
        );
        assert_eq!(
            fs::read_dir(stack.cache().dir.aside("")).unwrap().count(),
            0
        );
        assert_eq!(
            stack.cache().keep(&stack.lock(), &stack.data(), &never),
            Kept::default()
        );
    }

    #[test]
    fn unlisted_package_is_not_stored() {
        type Change = fn(&Stack);
        let changes: [(&str, Change, &str); 9] = [
            (
                "forged",
                |s| fs::write(s.installed("one").join("LICENSE.txt"), "other").unwrap(),
                "does not list",
            ),
            (
                "more files",
                |s| fs::write(s.installed("one").join("more"), "").unwrap(),
                "does not list",
            ),
            (
                "a link out",
                |s| symlink("/etc/passwd", s.installed("one").join("link")).unwrap(),
                "link is no file",
            ),
            (
                "a link for a file",
                |s| {
                    let file = s.installed("one").join("LICENSE.txt");
                    fs::rename(&file, s.data().join("beside")).unwrap();
                    symlink(s.data().join("beside"), file).unwrap();
                },
                "LICENSE.txt is no file",
            ),
            (
                "a pipe",
                |s| {
                    let path = s.installed("one").join("pipe");
                    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
                },
                "pipe is no file",
            ),
            (
                "of another platform",
                |s| {
                    let binary = s.installed("one").join("terraform-provider-one_v1.2.3");
                    let mut bytes = fs::read(&binary).unwrap();
                    bytes[18] = 40;
                    fs::write(binary, bytes).unwrap();
                    s.locks("one", &[s.h1("one")]);
                },
                "no executable for this platform",
            ),
            (
                "a link, as from a mirror",
                |s| {
                    fs::rename(s.installed("one"), s.data().join("beside")).unwrap();
                    symlink(s.data().join("beside"), s.installed("one")).unwrap();
                },
                "",
            ),
            (
                "not installed",
                |s| fs::remove_dir_all(s.data()).unwrap(),
                "",
            ),
            (
                "not locked",
                |s| fs::remove_file(s.data().with_file_name(LOCK_FILE)).unwrap(),
                "",
            ),
        ];
        for (name, change, said) in changes {
            let stack = Stack::new();
            change(&stack);
            let kept = stack.cache().keep(&stack.lock(), &stack.data(), &never);
            assert!(
                kept.kept.is_empty() && kept.notes.len() == usize::from(!said.is_empty()),
                "{name}: {kept:?}"
            );
            assert!(
                kept.notes.iter().all(|note| note.ends_with(said)),
                "{name}: {kept:?}"
            );
            let cached = stack.root().join("registry.opentofu.org");
            let aside = fs::read_dir(stack.cache().dir.aside("")).map_or(0, Iterator::count);
            assert!(!cached.exists() && aside == 0, "{name}");
        }
    }

    #[test]
    fn hash_added_by_init_does_not_count() {
        let stack = Stack::new();
        let mine = stack.h1("one");
        stack.locks("one", &[H1::of([])]);
        let before = stack.lock();
        stack.locks("one", &[H1::of([]), mine]);
        let kept = stack.cache().keep(&before, &stack.data(), &never);
        assert_eq!(kept.unlisted, ["registry.opentofu.org/acme/one 1.2.3"]);
        assert!(kept.kept.is_empty() && !stack.root().exists());
    }

    #[test]
    fn limits_cancellation_and_locks_are_respected() {
        let stack = Stack::new();
        let limits = Limits {
            package: 10,
            ..Limits::default()
        };
        let kept = stack
            .cache()
            .with(limits)
            .keep(&stack.lock(), &stack.data(), &never);
        assert!(kept.notes[0].contains("larger than"), "{kept:?}");
        assert_eq!(
            stack.cache().keep(&stack.lock(), &stack.data(), &|| true),
            Kept::default()
        );
        // Another process is storing it.
        let mut turn = None;
        assert!(soon(|| {
            turn = stack
                .cache()
                .dir
                .turn(
                    &stack.cache().key(&stack.lock().providers[0]),
                    Duration::ZERO,
                )
                .unwrap();
            turn.is_some()
        }));
        assert_eq!(
            stack.cache().keep(&stack.lock(), &stack.data(), &never),
            Kept::default()
        );
        drop(turn);
        // A process was killed while storing, and another one created a directory of that name.
        let aside = stack
            .cache()
            .dir
            .aside(&stack.cache().key(&stack.lock().providers[0]));
        fs::create_dir_all(aside.join("package")).unwrap();
        fs::write(aside.join("package/LICENSE.txt"), "half").unwrap();
        fs::create_dir_all(stack.package()).unwrap();
        assert!(soon(|| stack
            .cache()
            .keep(&stack.lock(), &stack.data(), &never)
            .kept
            .len()
            == 1));
        assert!(soon(|| stack
            .cache()
            .serve(&stack.lock(), &stack.mirror())
            .served
            .len()
            == 1));
    }

    #[test]
    fn least_recently_used_is_pruned_unless_in_use() {
        let stacks = ["one", "two", "three"].map(|name| Stack::with(name, &"x".repeat(1000)));
        let root = stacks[0].root();
        let cache = |most| {
            Cache::at(&root).with(Limits {
                cache: most,
                spared: Duration::ZERO,
                ..Limits::default()
            })
        };
        let keep = |index: usize| {
            cache(5000)
                .keep(&stacks[index].lock(), &stacks[index].data(), &never)
                .kept
                .len()
        };
        let there = || {
            stacks
                .each_ref()
                .map(|stack| cache(0).serve(&stack.lock(), &stack.mirror()).served.len())
        };
        assert_eq!((keep(0), keep(1), there()), (1, 1, [1, 1, 0]));
        let in_use = cache(0).serve(&stacks[0].lock(), &stacks[0].mirror());
        assert_eq!(keep(2), 1);
        let later = SystemTime::now() + Duration::from_secs(60);
        // The second one, since the first, which is older, is in use.
        assert!(soon(
            || cache(0).prune(2500, later).unwrap().len() == 1 && there() == [1, 0, 1]
        ));
        drop(in_use);
        // A recently used package is spared; leftovers are removed.
        fs::create_dir_all(Cache::at(&root).dir.aside("gone-1-2-3/package")).unwrap();
        assert_eq!(cache(0).prune(0, SystemTime::UNIX_EPOCH).unwrap().len(), 0);
        assert!(soon(|| {
            cache(0).prune(0, later).unwrap();
            there() == [0, 0, 0]
                && fs::read_dir(Cache::at(&root).dir.aside(""))
                    .unwrap()
                    .count()
                    == 0
        }));
    }

    #[test]
    fn storing_prunes_older_packages() {
        let stacks = ["one", "two"].map(|name| Stack::with(name, &"x".repeat(1000)));
        let limits = Limits {
            cache: 1500,
            spared: Duration::ZERO,
            ..Limits::default()
        };
        let cache = Cache::at(stacks[0].root()).with(limits);
        let there = |stack: &Stack| cache.serve(&stack.lock(), &stack.mirror()).served.len();
        assert_eq!(
            cache
                .keep(&stacks[0].lock(), &stacks[0].data(), &never)
                .kept
                .len(),
            1
        );
        assert!(soon(|| {
            cache.keep(&stacks[1].lock(), &stacks[1].data(), &never);
            (there(&stacks[0]), there(&stacks[1])) == (0, 1)
        }));
    }
}
