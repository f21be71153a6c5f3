//! Verifies at each start that the tool is the one verified in Setup. The stack's code may write to the pod's own tool cache.

use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
};

use crds::{Failure, Reason};
use tokio::task::JoinHandle;

use crate::{
    classify::OrInternal as _,
    guard,
    tool::{Found, Stamp, digest, image, path},
};

/// An executable of the tool, as it was in Setup. With Terragrunt, the tool beneath has its own entry.
#[derive(Clone, Debug)]
pub(super) struct Proven {
    title: String,
    binary: PathBuf,
    file: File,
    /// SHA-256 in hexadecimal digits of the executable in Setup; empty until computed.
    digest: Arc<OnceLock<String>>,
}

/// Identity of an unchanged file: device and stamp. The stamp contains the change time, which no process can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct File {
    device: u64,
    stamp: Stamp,
}

impl File {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self {
            device: std::fs::metadata(path)?.dev(),
            stamp: Stamp::of(path)?,
        })
    }
}

impl Proven {
    fn of(found: &Found) -> io::Result<Self> {
        let title = format!("{} {}", found.name.as_str(), found.version);
        let digest = found.digest.clone().map(OnceLock::from).unwrap_or_default();
        Ok(Self {
            title,
            file: File::of(&found.binary)?,
            binary: found.binary.clone(),
            digest: Arc::new(digest),
        })
    }

    /// Computes the digest, and discards it if the file has changed since Setup.
    fn compute(&self, read: impl FnOnce(&Path) -> io::Result<(Stamp, String)>) -> io::Result<()> {
        let (stamp, digest) = read(&self.binary)?;
        if stamp == self.file.stamp {
            let _ = self.digest.set(digest);
        }
        Ok(())
    }

    /// Checks that the executable is unchanged. A file with another stamp is hashed once, since a mere touch changes no content.
    fn check(&mut self) -> Result<(), Failure> {
        let changed = |what: &str| {
            let was = self.digest.get().map_or("not known yet", String::as_str);
            let (title, path) = (&self.title, self.binary.display());
            let message = format!(
                "{title} has changed since Setup (sha256: {was}): {path} {what}; it was not started"
            );
            Reason::ToolNotGenuine.failure(message)
        };
        let now = File::of(&self.binary)
            .map_err(|error| changed(&format!("cannot be inspected ({error})")))?;
        if now == self.file {
            return Ok(());
        }
        let found =
            digest(&self.binary).map_err(|error| changed(&format!("cannot be read ({error})")))?;
        if self.digest.get() != Some(&found) {
            return Err(changed(&format!("is sha256: {found} now")));
        }
        self.file = now;
        Ok(())
    }
}

/// An attempt's tool and the state of its executables in Setup.
#[derive(Debug)]
pub(super) struct VerifiedTool {
    pub(super) found: Found,
    executables: Mutex<Vec<Proven>>,
    /// The background task that computes missing digests.
    digesting: Mutex<Option<JoinHandle<io::Result<()>>>>,
}

impl VerifiedTool {
    /// Records the executables' current state. Computes missing digests in the background, since tools are large. With
    /// `remembered`, a digest may come from an earlier run.
    pub(super) fn of(found: Found, remembered: bool) -> Result<Self, Failure> {
        let all = found.all().map(Proven::of).collect::<io::Result<Vec<_>>>();
        let proven = all.or_internal("the tool cannot be inspected")?;
        let unknown: Vec<_> = proven
            .iter()
            .filter(|one| one.digest.get().is_none())
            .cloned()
            .collect();
        let read = move |binary: &Path| {
            if remembered {
                return path::digest(binary);
            }
            // Take the stamp before the read: a file that changes during the read has another stamp afterwards.
            let stamp = Stamp::of(binary)?;
            let digest = image::stated(binary).map_or_else(|| digest(binary), Ok)?;
            Ok((stamp, digest))
        };
        let task = tokio::task::spawn_blocking(move || {
            unknown.iter().try_for_each(|one| one.compute(read))
        });
        Ok(Self {
            found,
            executables: Mutex::new(proven),
            digesting: Mutex::new(Some(task)),
        })
    }

    /// Checks that the executables are those verified in Setup; usually one `stat` per file.
    pub(super) fn check(&self) -> Result<(), Failure> {
        guard(&self.executables)
            .iter_mut()
            .try_for_each(Proven::check)
    }

    /// Checks that the tool's executable is unchanged since Setup, and returns its digest. With Terragrunt, both digests joined by `+`.
    pub(super) async fn digest(&self) -> Result<String, Failure> {
        let failed = "the tool's digest cannot be computed";
        let task = guard(&self.digesting).take();
        if let Some(task) = task {
            task.await.or_internal(failed)?.or_internal(failed)?;
        }
        self.check()?;
        let digests: Option<Vec<String>> = guard(&self.executables)
            .iter()
            .map(|one| one.digest.get().cloned())
            .collect();
        let digests = digests.filter(|digests| !digests.is_empty());
        digests
            .map(|digests| digests.join("+"))
            .ok_or("it changed while it was read")
            .or_internal(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::{FailureClass, ToolName, reason};
    use std::fs;

    #[test]
    fn changed_tool_is_not_started_and_touched_tool_is() {
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("tofu");
        fs::write(&binary, "real").unwrap();
        let mut proven = Proven::of(&Found::at(
            ToolName::OpenTofu,
            "1.10.6".parse().unwrap(),
            binary.clone(),
        ))
        .unwrap();
        proven.check().unwrap();
        let touch = || {
            let before = fs::metadata(&binary).unwrap();
            // Wait until the file system's clock has moved on.
            while fs::metadata(&binary).unwrap().ctime_nsec() == before.ctime_nsec() {
                fs::set_permissions(&binary, before.permissions()).unwrap();
            }
        };
        touch();
        let failure = proven.check().unwrap_err();
        assert_eq!(
            (failure.class, failure.reason.as_str()),
            (FailureClass::Integrity, reason::TOOL_NOT_GENUINE)
        );
        assert!(
            failure.message.contains("not known yet"),
            "{}",
            failure.message
        );
        // A digest computed after the change proves nothing; one computed before the change does.
        proven
            .compute(|path| Ok((Stamp::of(path)?, digest(path)?)))
            .unwrap();
        assert!(proven.check().is_err());
        proven.digest.set(digest(&binary).unwrap()).unwrap();
        proven.check().unwrap();
        assert_eq!(
            proven.file,
            File::of(&binary).unwrap(),
            "and is not read again"
        );
        // Write other bytes with the same length and modification time, once in place and once by replacing the file.
        let meta = fs::metadata(&binary).unwrap();
        for path in [binary.clone(), dir.path().join("other")] {
            fs::write(&path, "evil").unwrap();
            fs::File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_modified(meta.modified().unwrap())
                .unwrap();
            fs::rename(&path, &binary).unwrap();
            let failure = proven.check().unwrap_err();
            assert!(
                failure.message.contains(&digest(&binary).unwrap()),
                "{}",
                failure.message
            );
        }
        fs::write(&binary, "real").unwrap();
        proven.check().unwrap();
        fs::remove_file(&binary).unwrap();
        assert_eq!(proven.check().unwrap_err().class, FailureClass::Integrity);
    }
}
