//! That each start of the tool runs what was proven at Setup. Code of the stack may write to the pod's own cache of tools.

use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
};

use crds::{Failure, Reason};
use tokio::task::JoinHandle;

use super::guard;
use crate::{
    classify::internal,
    tool::{Found, Stamp, digest, image, path},
};

/// An executable of the tool, as it was at Setup. Of Terragrunt there is that of the tool beneath as well.
#[derive(Clone, Debug)]
pub(super) struct Proven {
    title: String,
    binary: PathBuf,
    file: File,
    /// SHA-256 in hexadecimal digits of what it was at Setup; none until it is computed.
    digest: Arc<OnceLock<String>>,
}

/// What a file is as long as nobody writes to it and no other is put in its place: device, and the stamp, whose change time nobody can
/// set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct File {
    device: u64,
    stamp: Stamp,
}

impl File {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { device: std::fs::metadata(path)?.dev(), stamp: Stamp::of(path)? })
    }
}

impl Proven {
    fn of(found: &Found) -> io::Result<Self> {
        let title = format!("{} {}", found.name.as_str(), found.version);
        let digest = found.digest.clone().map(OnceLock::from).unwrap_or_default();
        Ok(Self { title, file: File::of(&found.binary)?, binary: found.binary.clone(), digest: Arc::new(digest) })
    }

    /// Computes the digest. Of other bytes than were there at Setup it would prove nothing, so it is none then.
    fn compute(&self, read: impl FnOnce(&Path) -> io::Result<(Stamp, String)>) -> io::Result<()> {
        let (stamp, digest) = read(&self.binary)?;
        if stamp == self.file.stamp {
            let _ = self.digest.set(digest);
        }
        Ok(())
    }

    /// That it is what it was. A file with another stamp is read once: who only touched it changed nothing.
    fn check(&mut self) -> Result<(), Failure> {
        let changed = |what: &str| {
            let was = self.digest.get().map_or("not known yet", String::as_str);
            let (title, path) = (&self.title, self.binary.display());
            let message = format!("{title} is not what it was at Setup (sha256: {was}): {path} {what}; it was not started");
            Reason::ToolNotGenuine.failure(message)
        };
        let now = File::of(&self.binary).map_err(|error| changed(&format!("cannot be looked at ({error})")))?;
        if now == self.file {
            return Ok(());
        }
        let found = digest(&self.binary).map_err(|error| changed(&format!("cannot be read ({error})")))?;
        if self.digest.get() != Some(&found) {
            return Err(changed(&format!("is sha256: {found} now")));
        }
        self.file = now;
        Ok(())
    }
}

/// The tool of an attempt, with what its executables were at Setup.
#[derive(Debug)]
pub(super) struct VerifiedTool {
    pub(super) found: Found,
    executables: Mutex<Vec<Proven>>,
    /// Their digests, while they are computed.
    digesting: Mutex<Option<JoinHandle<io::Result<()>>>>,
}

impl VerifiedTool {
    /// Keeps what the tool is now. What is not known of it is computed beside what comes next: tools are large. It may be `remembered`
    /// from a run before.
    pub(super) fn of(found: Found, remembered: bool) -> Result<Self, Failure> {
        let all = found.all().map(Proven::of).collect::<io::Result<Vec<_>>>();
        let proven = all.map_err(|error| internal("the tool cannot be looked at", &error))?;
        let unknown: Vec<_> = proven.iter().filter(|one| one.digest.get().is_none()).cloned().collect();
        let read = move |binary: &Path| {
            if remembered {
                return path::digest(binary);
            }
            // The stamp from before: a file that changes while it is read has another one afterwards.
            let stamp = Stamp::of(binary)?;
            let digest = image::stated(binary).map_or_else(|| digest(binary), Ok)?;
            Ok((stamp, digest))
        };
        let task = tokio::task::spawn_blocking(move || unknown.iter().try_for_each(|one| one.compute(read)));
        Ok(Self { found, executables: Mutex::new(proven), digesting: Mutex::new(Some(task)) })
    }

    /// That what is about to be started is what was proven: a look at each file.
    pub(super) fn check(&self) -> Result<(), Failure> {
        guard(&self.executables).iter_mut().try_for_each(Proven::check)
    }

    /// The digest of the tool's executable, which is what it was at Setup. Of Terragrunt it is both digests, with a `+` between.
    pub(super) async fn digest(&self) -> Result<String, Failure> {
        let failed = |error: &dyn std::fmt::Display| internal("the tool's digest cannot be computed", error);
        let task = guard(&self.digesting).take();
        if let Some(task) = task {
            task.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
        }
        self.check()?;
        let digests: Option<Vec<String>> = guard(&self.executables).iter().map(|one| one.digest.get().cloned()).collect();
        let digests = digests.filter(|digests| !digests.is_empty());
        digests.map(|digests| digests.join("+")).ok_or_else(|| failed(&"it changed while it was read"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::{FailureClass, ToolName, reason};
    use std::fs;

    #[test]
    fn what_changed_since_is_not_started_and_what_was_touched_is() {
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("tofu");
        fs::write(&binary, "real").unwrap();
        let mut proven = Proven::of(&Found::at(ToolName::OpenTofu, "1.10.6".parse().unwrap(), binary.clone())).unwrap();
        proven.check().unwrap();
        let touch = || {
            let before = fs::metadata(&binary).unwrap();
            // Until the clock of the file system has moved on.
            while fs::metadata(&binary).unwrap().ctime_nsec() == before.ctime_nsec() {
                fs::set_permissions(&binary, before.permissions()).unwrap();
            }
        };
        touch();
        let failure = proven.check().unwrap_err();
        assert_eq!((failure.class, failure.reason.as_str()), (FailureClass::Integrity, reason::TOOL_NOT_GENUINE));
        assert!(failure.message.contains("not known yet"), "{}", failure.message);
        // What is read after it changed is not what it was, and what was read before is.
        proven.compute(|path| Ok((Stamp::of(path)?, digest(path)?))).unwrap();
        assert!(proven.check().is_err());
        proven.digest.set(digest(&binary).unwrap()).unwrap();
        proven.check().unwrap();
        assert_eq!(proven.file, File::of(&binary).unwrap(), "and is not read again");
        // Other bytes of the same length with the same time of modification, in place and in its place.
        let meta = fs::metadata(&binary).unwrap();
        for path in [binary.clone(), dir.path().join("other")] {
            fs::write(&path, "evil").unwrap();
            fs::File::options().write(true).open(&path).unwrap().set_modified(meta.modified().unwrap()).unwrap();
            fs::rename(&path, &binary).unwrap();
            let failure = proven.check().unwrap_err();
            assert!(failure.message.contains(&digest(&binary).unwrap()), "{}", failure.message);
        }
        fs::write(&binary, "real").unwrap();
        proven.check().unwrap();
        fs::remove_file(&binary).unwrap();
        assert_eq!(proven.check().unwrap_err().class, FailureClass::Integrity);
    }
}
