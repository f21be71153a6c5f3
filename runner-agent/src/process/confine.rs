//! Commands that cannot open some files of the pod: the agent's tokens, and what it leaves for the kubelet.
//!
//! Code of the stack runs as the agent's own user, so that the mode of a file hides nothing. Landlock does
//! (<https://docs.kernel.org/userspace-api/landlock.html>): a thread of the agent gives up the right to open those files, and all
//! commands are started from it, which passes it on to whatever they start.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use landlock::{
    AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, make_bitflags,
};
use tokio::{
    process::{Child, Command},
    runtime::Handle,
};

type Job = Box<dyn FnOnce() + Send>;

/// A thread that cannot open what is hidden, nor can what it starts. It ends with this value.
#[derive(Debug)]
pub(super) struct Confined {
    jobs: mpsc::Sender<Job>,
}

impl Confined {
    /// Starts the thread. What is hidden are files, or directories with all that is below them; one that is not there is no error.
    ///
    /// # Errors
    /// When the kernel (before 5.19), its configuration or the container's seccomp profile has no Landlock.
    pub(super) fn start(hidden: &[PathBuf]) -> io::Result<Self> {
        let allowed = all_but(hidden)?;
        let (jobs, work) = mpsc::channel::<Job>();
        let (said, told) = mpsc::sync_channel(1);
        thread::Builder::new().name("confined".into()).spawn(move || {
            let restricted = restrict(&allowed);
            let stays = restricted.is_ok();
            let _ = said.send(restricted);
            if stays {
                for job in work {
                    job();
                }
            }
        })?;
        told.recv().map_err(io::Error::other)?.map_err(io::Error::other)?;
        Ok(Self { jobs })
    }

    /// Starts a command, in the caller's runtime.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn spawn(&self, mut command: Command) -> io::Result<Child> {
        let runtime = Handle::current();
        let (said, told) = mpsc::sync_channel(1);
        let job = Box::new(move || {
            let _entered = runtime.enter();
            let _ = said.send(command.spawn());
        });
        self.jobs.send(job).map_err(|_| io::Error::other("the thread that starts commands has ended"))?;
        told.recv().map_err(io::Error::other)?
    }
}

/// Reading and writing need a right from now on; and moving a file to another directory, which Landlock refuses to who has no
/// right to it, whether it is asked for or not.
const RIGHTS: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | WriteFile | Refer});
/// Of these, what a file can have.
const OF_A_FILE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | WriteFile});

fn restrict(allowed: &[PathBuf]) -> Result<(), String> {
    let refused = |error: &dyn std::fmt::Display| error.to_string();
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let mut ruleset = ruleset.handle_access(RIGHTS).and_then(Ruleset::create).map_err(|error| refused(&error))?;
    for path in allowed {
        // What went in the meantime needs no right.
        let (Ok(kind), Ok(fd)) = (fs::metadata(path), PathFd::new(path)) else { continue };
        let rights = if kind.is_dir() { RIGHTS } else { OF_A_FILE };
        ruleset = ruleset.add_rule(PathBeneath::new(fd, rights)).map_err(|error| refused(&error))?;
    }
    ruleset.restrict_self().map(drop).map_err(|error| refused(&error))
}

/// All that is not hidden, by as few paths as will do: Landlock knows no exceptions, so every directory on the way to something
/// hidden is replaced by what is in it.
fn all_but(hidden: &[PathBuf]) -> io::Result<Vec<PathBuf>> {
    // By their real places: `/var/run` is a link in most images.
    let hidden: Vec<PathBuf> = hidden.iter().filter_map(|path| path.canonicalize().ok()).collect();
    let mut allowed = Vec::new();
    below(Path::new("/"), &hidden, &mut allowed)?;
    Ok(allowed)
}

fn below(directory: &Path, hidden: &[PathBuf], allowed: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        // A link leads to something that has its own place.
        if path.is_symlink() || hidden.contains(&path) {
            continue;
        }
        if hidden.iter().any(|one| one.starts_with(&path)) {
            below(&path, hidden, allowed)?;
        } else {
            allowed.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a shell, started confined or not, does with a script.
    async fn sh(confined: Option<&Confined>, script: &str) -> (bool, String) {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let child = match confined {
            Some(confined) => confined.spawn(command),
            None => command.spawn(),
        };
        let output = child.unwrap().wait_with_output().await.unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    #[tokio::test]
    async fn what_is_hidden_is_read_by_nobody_that_is_started() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["token/..data", "beside"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        fs::write(at("token/..data/token"), "secret").unwrap();
        std::os::unix::fs::symlink("..data/token", at("token/token")).unwrap();
        std::os::unix::fs::symlink("token", at("link")).unwrap();
        fs::write(at("message"), "").unwrap();
        fs::write(at("beside/file"), "fine").unwrap();
        let path = dir.path().display();
        let Ok(confined) = Confined::start(&[at("link"), at("message"), at("not-there")]) else {
            assert!(std::env::var_os("CI").is_none(), "this kernel has no Landlock");
            return;
        };
        for script in [
            format!("cat {path}/token/token"),
            format!("cat {path}/link/token"),
            format!("setsid sh -c 'cd {path} && cat token/..data/token'"),
            format!("echo no > {path}/message"),
            format!("ln {path}/token/..data/token {path}/beside/stolen && cat {path}/beside/stolen"),
            format!("mv {path}/token/..data/token {path}/beside/stolen && cat {path}/beside/stolen"),
            format!("cat /proc/{}/root{path}/token/token", std::process::id()),
        ] {
            let (done, said) = sh(Some(&confined), &script).await;
            assert!(!done && !said.contains("secret"), "{script}: {said}");
        }
        assert_eq!(fs::read_to_string(at("message")).unwrap(), "");
        // Everything else goes on as it did, this process as well.
        for script in [
            format!("cat {path}/beside/file && echo more > {path}/beside/other && mv {path}/beside/other {path}/beside/again"),
            format!("mkdir {path}/beside/below && mv {path}/beside/again {path}/beside/below/ && cat {path}/beside/below/again"),
            "echo to-null > /dev/null && cat /proc/self/status > /dev/null && echo out > /dev/stdout".to_owned(),
        ] {
            let (done, said) = sh(Some(&confined), &script).await;
            assert!(done, "{script}: {said}");
        }
        assert_eq!(sh(None, &format!("cat {path}/link/token")).await, (true, "secret".to_owned()));
    }
}
