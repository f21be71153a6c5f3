//! Distinguishes a disk that the run itself filled, where a retry cannot help, from a disk that other pods filled.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use crds::{Failure, FailureClass, reason};
use nix::sys::statvfs::statvfs;

use super::PhaseRunner;

/// Suffix of the message if the run filled the disk.
const OWN: &str = "most of its content is this run's own; the run needs a larger disk or less data";

impl PhaseRunner {
    /// Classifies a full disk: if the run's own files filled it, the failure is one of configuration and is not retried.
    pub(super) async fn whose_disk<T>(&self, ended: Result<T, Failure>) -> Result<T, Failure> {
        match ended {
            Err(failure) if failure.reason == reason::DISK_FULL => {
                let dir = self.settings.work.clone();
                let own = tokio::task::spawn_blocking(move || is_own(&dir))
                    .await
                    .unwrap_or(false);
                Err(judged(failure, own))
            }
            ended => ended.map_err(|failure| self.for_want_of_identity(failure)),
        }
    }
}

fn judged(failure: Failure, own: bool) -> Failure {
    if !own {
        return failure;
    }
    let message = crds::text::clip(&format!("{}; {OWN}", failure.message), 1024);
    Failure {
        class: FailureClass::Configuration,
        message,
        ..failure
    }
}

/// Whether the files below a directory use more than half of the used space on their disk.
fn is_own(dir: &Path) -> bool {
    let Ok(disk) = statvfs(dir) else { return false };
    let used = disk.blocks().saturating_sub(disk.blocks_free()) * disk.fragment_size();
    below(dir) > used / 2
}

/// Disk usage in bytes of the files below a directory. Does not follow links.
fn below(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match fs::symlink_metadata(entry.path()) {
            Ok(found) if found.is_dir() => below(&entry.path()),
            Ok(found) => found.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::Reason;

    #[test]
    fn disk_full_by_own_files_is_not_retried() {
        let full = || Reason::DiskFull.failure("plan failed: no space left on device");
        assert_eq!(judged(full(), false), full());
        let own = judged(full(), true);
        assert_eq!(
            (own.class, own.reason.as_str()),
            (FailureClass::Configuration, reason::DISK_FULL)
        );
        assert!(own.message.ends_with(OWN), "{}", own.message);
    }

    #[test]
    fn disk_usage_counts_files_once_and_follows_no_links() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, vec![1_u8; 300_000]).unwrap();
            fs::File::open(&path).unwrap().sync_all().unwrap();
        };
        file("a");
        file("b/c");
        std::os::unix::fs::symlink("/", dir.path().join("b/all")).unwrap();
        let bytes = below(dir.path());
        assert!((600_000..2_000_000).contains(&bytes), "{bytes}");
        assert!(!is_own(dir.path()), "a few files are not half of a disk");
    }
}
