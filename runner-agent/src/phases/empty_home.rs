//! Empties the home and temporary directories before the apply, as in a pod that restores the plan before the claim. A file that
//! plan-time code left there, such as `~/.aws/config`, would change the apply of the approved plan.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use crds::{Failure, Reason};

use super::PhaseRunner;
use crate::{
    classify::{OrInternal as _, internal},
    process::kill_others,
};

/// Time limit for killed processes to disappear.
const GONE: Duration = Duration::from_secs(5);

impl PhaseRunner {
    /// Refuses, before the approval, a plan with providers in a directory that is emptied before the apply.
    pub(super) fn keeps_its_providers(&self, stack: &Path) -> Result<(), Failure> {
        let emptied = self.host.emptied().unwrap_or_default();
        let Some(provider) = borrowed(&stack.join(".terraform"), &emptied) else {
            return Ok(());
        };
        let text = format!(
            "{} is a link into a home or temporary directory, which is emptied before the plan is applied; \
             keep providers elsewhere: TF_PLUGIN_CACHE_DIR and what Terragrunt has in its place are not needed, since Pawl caches providers",
            provider.strip_prefix(stack).unwrap_or(&provider).display()
        );
        Err(Reason::InitFailed.failure(text))
    }

    /// Kills the other processes, which could write the files again, then empties `HOME`, `TMPDIR` and every other directory that
    /// the pod's code may write to, except the source, the tool and the providers. Does nothing on a person's own machine.
    pub(crate) async fn empty_home(&self) -> Result<(), Failure> {
        let (settings, Some(dirs)) = (&self.settings, self.host.emptied()) else {
            return Ok(());
        };
        let failed = "what the plan left in the home and temporary directories cannot be removed; nothing was applied";
        if !kill_others(&self.children, GONE).await {
            return Err(internal(failed, &"processes that it left do not end"));
        }
        // Tools also look for their files in the directories above the source.
        let work = settings.work.clone();
        let stay = [
            settings.source_dir(),
            settings.home(),
            settings.tmp(),
            settings.kept.clone(),
            self.own_cache(),
            self.provider_mirror(),
        ];
        let made = tokio::task::spawn_blocking(move || {
            let named = |dir: &Path, error: io::Error| format!("{}: {error}", dir.display());
            remove_but(&work, &stay).map_err(|error| named(&work, error))?;
            dirs.iter()
                .try_for_each(|dir| make_empty(dir).map_err(|error| named(dir, error)))
        });
        made.await.or_internal(failed)?.or_internal(failed)
    }
}

/// Creates or empties a directory. An existing directory keeps its inode, since it may be a mount point or have an access rule.
/// Files of other users remain, since no process of this pod created them.
pub(super) fn make_empty(dir: &Path) -> io::Result<()> {
    if fs::symlink_metadata(dir).is_ok_and(|meta| !meta.is_dir()) {
        fs::remove_file(dir)?;
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)?;
    let own = nix::unistd::geteuid().as_raw();
    if fs::metadata(dir)?.uid() == own {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    }
    remove_but(dir, &[])
}

/// Removes the entries of a directory that belong to this process's user, except those in `stay`.
fn remove_but(dir: &Path, stay: &[PathBuf]) -> io::Result<()> {
    let own = nix::unistd::geteuid().as_raw();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        // A verification of the plan that was interrupted may still be removing files.
        if !stay.contains(&path)
            && let Err(error) = remove(&path, own)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
    }
    Ok(())
}

fn remove(path: &Path, own: u32) -> io::Result<()> {
    let meta = fs::symlink_metadata(path)?;
    if meta.uid() != own {
        return Ok(());
    }
    if !meta.is_dir() {
        return fs::remove_file(path);
    }
    match fs::remove_dir_all(path) {
        // Go creates its module directories without write permission.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            take_rights(path)?;
            fs::remove_dir_all(path)
        }
        removed => removed,
    }
}

/// Finds a provider of the stack that is a link into an emptied directory. The apply would not find it.
fn borrowed(data: &Path, emptied: &[PathBuf]) -> Option<PathBuf> {
    let mut dirs = vec![data.join("providers")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(path),
                Ok(kind) if kind.is_symlink() => {
                    let to = fs::canonicalize(&path).unwrap_or_default();
                    if emptied
                        .iter()
                        .filter_map(|dir| dir.canonicalize().ok())
                        .any(|dir| to.starts_with(dir))
                    {
                        return Some(path);
                    }
                }
                _ => {}
            }
        }
    }
    None
}

/// Gives the owner all permissions on a directory and the directories below it.
fn take_rights(dir: &Path) -> io::Result<()> {
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))?;
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                dirs.push(entry.path());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn make_empty_retains_directory_and_link_targets() {
        let dir = tempfile::tempdir().unwrap();
        let (home, other) = (dir.path().join("home"), dir.path().join("other"));
        fs::create_dir_all(&other).unwrap();
        fs::write(other.join("file"), "stays").unwrap();
        make_empty(&home).unwrap();
        let inode = fs::metadata(&home).unwrap().ino();
        let module = home.join("go/pkg/mod");
        fs::create_dir_all(&module).unwrap();
        fs::write(module.join("file"), "").unwrap();
        fs::write(home.join(".terraformrc"), "").unwrap();
        symlink(&other, home.join("link")).unwrap();
        symlink(&other, module.join("link")).unwrap();
        for dir in [&module, &home.join("go"), &home] {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o500)).unwrap();
        }
        make_empty(&home).unwrap();
        assert_eq!(fs::read_dir(&home).unwrap().count(), 0);
        let meta = fs::metadata(&home).unwrap();
        assert_eq!(
            (meta.ino(), meta.permissions().mode() & 0o777),
            (inode, 0o700)
        );
        // A link in the directory's place.
        fs::remove_dir(&home).unwrap();
        symlink(&other, &home).unwrap();
        make_empty(&home).unwrap();
        assert!(
            fs::symlink_metadata(&home).unwrap().is_dir()
                && fs::read_dir(&home).unwrap().count() == 0
        );
        assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "stays");
    }
}
