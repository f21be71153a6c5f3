//! Commands that cannot open some files of the pod, and cannot change others: the agent's tokens and what it leaves for the kubelet
//! are the ones, what pods share is the other.
//!
//! Code of the stack runs as the agent's own user, so that the mode of a file keeps nothing from it. Landlock does
//! (<https://docs.kernel.org/userspace-api/landlock.html>): a thread of the agent gives up the right to that, and all
//! commands are started from it, which passes it on to whatever they start.
//!
//! Landlock grants rights to a directory with all that is below it, and knows no exceptions. So every directory on the way to
//! something that is to be kept is not granted itself, but entry by entry, as they are at the start. What this costs:
//!
//! - on the way to something hidden, what is made later can be neither read nor written;
//! - on the way to something read-only, nothing can be made, removed or renamed, and what is made later cannot be written. Files and
//!   directories that are there can be written, and all can be done in those directories. So what is read-only is best put where
//!   nobody works: in `/pawl/cache`, and not in `/tmp` or the work directory.
//!
//! What no version of Landlock covers: mode, owner, times and extended attributes of a file, and locks on one that may be read.

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use landlock::{
    AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    make_bitflags,
};
use tokio::{
    process::{Child, Command},
    runtime::Handle,
};

type Job = Box<dyn FnOnce() + Send>;

/// A thread that is kept within bounds, as is what it starts. It ends with this value.
#[derive(Debug)]
pub(super) struct Confined {
    jobs: mpsc::Sender<Job>,
}

/// What is kept from commands. Files, or directories with all that is below them; links are followed.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// What they cannot open. One that is not there is no error.
    pub hidden: Vec<PathBuf>,
    /// What they can read and execute, and not change: in these directories nothing is written, made, renamed or removed. They have
    /// to be there: what is made later could not be told from anything else.
    pub read_only: Vec<PathBuf>,
}

impl Confined {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the kernel (before 5.19), its configuration or the container's seccomp profile has no Landlock, or a directory that is to
    /// be read-only is not there. Nothing is kept from anybody then.
    pub(super) fn start(bounds: &Bounds) -> io::Result<Self> {
        // By their real places: `/var/run` is a link in most images.
        let hidden: Vec<PathBuf> = bounds.hidden.iter().filter_map(|path| path.canonicalize().ok()).collect();
        let real = |path: &PathBuf| {
            path.canonicalize().map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
        };
        let read_only = bounds.read_only.iter().map(real).collect::<io::Result<Vec<_>>>()?;
        let mut layers = vec![(HIDING, all_but(&hidden)?)];
        if !read_only.is_empty() {
            layers.push((KEEPING, all_but(&read_only)?));
        }
        let (jobs, work) = mpsc::channel::<Job>();
        let (said, told) = mpsc::sync_channel(1);
        thread::Builder::new().name("confined".into()).spawn(move || {
            let restricted = layers.iter().try_for_each(|(layer, allowed)| layer.restrict(allowed));
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

/// One set of rights that is given up everywhere but where it is granted. Of several, each one has to allow.
struct Layer {
    /// What the kernel has to know.
    needed: BitFlags<AccessFs>,
    /// What it may be too old for.
    wished: BitFlags<AccessFs>,
}

/// Reading and writing need a right from now on; and moving a file to another directory, which Landlock refuses to who has no
/// right to it, whether it is asked for or not.
const HIDING: Layer = Layer { needed: make_bitflags!(AccessFs::{ReadFile | WriteFile | Refer}), wished: BitFlags::EMPTY };

/// Every change does. `truncate(2)` of a file, which opens nothing, only from kernel 6.2 on.
const KEEPING: Layer = Layer {
    needed: make_bitflags!(AccessFs::{
        WriteFile | MakeReg | MakeDir | MakeSym | MakeSock | MakeFifo | MakeChar | MakeBlock | RemoveFile | RemoveDir | Refer
    }),
    wished: make_bitflags!(AccessFs::{Truncate}),
};

/// Of all rights, what a file can have.
const OF_A_FILE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | WriteFile | Truncate});

impl Layer {
    fn restrict(&self, allowed: &[PathBuf]) -> Result<(), String> {
        let refused = |error: RulesetError| error.to_string();
        let rights = self.needed | self.wished;
        let mut ruleset =
            Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(self.needed).map_err(refused)?;
        if !self.wished.is_empty() {
            ruleset = ruleset.set_compatibility(CompatLevel::BestEffort).handle_access(self.wished).map_err(refused)?;
        }
        let mut ruleset = ruleset.create().map_err(refused)?;
        for path in allowed {
            // What went in the meantime needs no right.
            let (Ok(kind), Ok(fd)) = (fs::metadata(path), PathFd::new(path)) else { continue };
            let rights = if kind.is_dir() { rights } else { rights & OF_A_FILE };
            ruleset = ruleset.add_rule(PathBeneath::new(fd, rights)).map_err(refused)?;
        }
        ruleset.restrict_self().map(drop).map_err(refused)
    }
}

/// What a rule of Landlock stands on.
type Inode = (u64, u64);

fn inode(meta: &fs::Metadata) -> Inode {
    (meta.dev(), meta.ino())
}

/// All but these real places, by as few paths as will do: every directory on the way to one is replaced by what is in it. Told by
/// their inodes, since a directory that is mounted a second time, where all is granted, would open the first.
fn all_but(kept: &[PathBuf]) -> io::Result<Vec<PathBuf>> {
    let of = |path: &Path| fs::metadata(path).ok().map(|meta| inode(&meta));
    let ends: HashSet<Inode> = kept.iter().filter_map(|path| of(path)).collect();
    let way: HashSet<Inode> = kept.iter().flat_map(|path| path.ancestors().skip(1)).filter_map(of).collect();
    let mut allowed = Vec::new();
    below(Path::new("/"), &ends, &way, &mut allowed)?;
    Ok(allowed)
}

fn below(directory: &Path, ends: &HashSet<Inode>, way: &HashSet<Inode>, allowed: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        // What went in the meantime needs no right, and a link leads to something that has its own place.
        let Some(meta) = fs::symlink_metadata(&path).ok().filter(|meta| !meta.is_symlink()) else { continue };
        let inode = inode(&meta);
        if ends.contains(&inode) {
            continue;
        }
        if way.contains(&inode) {
            below(&path, ends, way, allowed)?;
        } else {
            allowed.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confined(bounds: &Bounds) -> Option<Confined> {
        let confined = Confined::start(bounds);
        assert!(confined.is_ok() || std::env::var_os("CI").is_none(), "this kernel has no Landlock");
        confined.ok()
    }

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
        let hidden = vec![at("link"), at("message"), at("not-there")];
        let Some(confined) = confined(&Bounds { hidden, ..Bounds::default() }) else { return };
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

    /// A directory to be kept, `shared`, with one beside it that is not, and what the latter has to be like afterwards.
    fn shared() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in ["way/shared/dir/deep", "way/shared/empty", "way/beside", "elsewhere/dir"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let script = "#!/bin/sh\necho ran\n";
        for name in ["way/shared/file", "way/shared/dir/deep/file", "way/file", "way/beside/file", "elsewhere/file"] {
            fs::write(dir.path().join(name), script).unwrap();
            fs::set_permissions(dir.path().join(name), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        dir
    }

    /// All that is below a directory: names, and what files hold.
    fn listed(dir: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
        let mut found = Vec::new();
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            found.push((path.clone(), path.is_file().then(|| fs::read(&path).unwrap())));
            if path.is_dir() && !path.is_symlink() {
                found.extend(listed(&path));
            }
        }
        found.sort();
        found
    }

    #[tokio::test]
    async fn what_is_read_only_is_changed_by_nobody_that_is_started() {
        let dir = shared();
        let at = |name: &str| dir.path().join(name);
        std::os::unix::fs::symlink("way/shared", at("link")).unwrap();
        let Some(confined) = confined(&Bounds { read_only: vec![at("link")], ..Bounds::default() }) else { return };
        let before = listed(&at("way/shared"));
        let (top, agent) = (dir.path().display(), std::process::id());
        let (s, e) = (format!("{top}/way/shared"), format!("{top}/elsewhere"));
        for script in [
            format!("echo more > {s}/new"),
            format!("echo more >> {s}/file"),
            format!("echo more 1<> {s}/dir/deep/file"),
            format!(": > {s}/file"),
            format!("truncate -s 1 {s}/file"),
            format!("echo more > {top}/link/new"),
            format!("cd {s}/dir && echo more > deep/file"),
            format!("setsid sh -c 'echo more > {s}/file'"),
            format!("touch {s}/empty/new"),
            format!("mv {e}/file {s}/new"),
            format!("mv {e}/file {s}/file"),
            format!("mv {e}/dir {s}/new"),
            format!("mv {s}/file {e}/stolen"),
            format!("mv {s}/dir {e}/stolen"),
            format!("mv {s}/file {s}/renamed"),
            format!("mv {s}/dir/deep {s}/deep"),
            format!("mv -f {s}/dir/deep/file {s}/file"),
            format!("mv {s} {top}/way/moved"),
            format!("mv {top}/way {top}/moved"),
            format!("rm -f {s}/file"),
            format!("rm -rf {s}/dir"),
            format!("rmdir {s}/empty"),
            format!("mkdir {s}/new"),
            format!("ln {s}/file {s}/new"),
            format!("ln {e}/file {s}/new"),
            format!("ln {s}/file {e}/linked && echo more > {e}/linked"),
            format!("ln -s {e}/file {s}/new"),
            format!("ln -sfn {e} {s}/empty/new"),
            format!("mkfifo {s}/new"),
            format!("mknod {s}/new p"),
            format!("chmod 777 {s}/file {s} && echo more > {s}/file"),
            format!("chmod 777 {s} && rm {s}/file"),
            format!("echo more > /proc/self/root{s}/file"),
            format!("echo more > /proc/{agent}/root{s}/file"),
            format!("exec 3< {s}/file && echo more > /proc/self/fd/3"),
            format!("cd {s} && echo more > /proc/self/cwd/file"),
            format!("cp {e}/file {s}/file"),
        ] {
            let (done, said) = sh(Some(&confined), &script).await;
            assert!(!done, "{script}: {said}");
            assert_eq!(listed(&at("way/shared")), before, "{script}");
            // It is not for another reason.
            let again = shared();
            std::os::unix::fs::symlink("way/shared", again.path().join("link")).unwrap();
            let script = script.replace(&top.to_string(), &again.path().display().to_string());
            let (done, said) = sh(None, &script).await;
            assert!(done, "{script}: {said}");
        }
        // No program of a shell calls it without opening the file first.
        let (file, (said, told)) = (at("way/shared/file"), mpsc::sync_channel(1));
        let cut = move || said.send(nix::unistd::truncate(&file, 1)).unwrap();
        confined.jobs.send(Box::new(cut)).unwrap();
        let cut = told.recv().unwrap().is_ok();
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        let old = ruleset.handle_access(AccessFs::Truncate).is_err();
        assert_eq!(cut, old);
        let mounted = format!("unshare -rm sh -c 'mount --bind {s} {e}/dir && echo more > {e}/dir/file'");
        assert!(!sh(Some(&confined), &mounted).await.0);
        for script in [
            format!("cat {s}/file && {s}/dir/deep/file && ls -R {s} && cd {s}/dir && test -r deep/file"),
            format!("cp {s}/file {e}/copy && echo more >> {e}/copy && ln -s {s}/file {e}/link && {e}/link"),
            format!(
                "mkdir {e}/new && mv {e}/copy {e}/new/ && mkfifo {e}/pipe && rm -r {e}/new {e}/pipe && truncate -s 1 {e}/file"
            ),
            // On the way, what is there stays of use.
            format!(
                "echo more >> {top}/way/file && : > {top}/way/file && mv {top}/way/beside/file {e}/other && touch {top}/way/beside/x"
            ),
            "echo to-null > /dev/null && cat /proc/self/status > /dev/null && echo out > /dev/stdout && rm $(mktemp -p /dev/shm)"
                .to_owned(),
        ] {
            let (done, said) = sh(Some(&confined), &script).await;
            assert!(done, "{script}: {said}");
        }
        // What it costs.
        for script in [format!("touch {top}/way/new"), format!("rm {top}/way/file"), format!("mkdir {top}/new")] {
            assert!(!sh(Some(&confined), &script).await.0, "{script}");
        }
        // This process, and who is started without, go on as before.
        fs::write(at("way/shared/new"), "").unwrap();
        assert!(sh(None, &format!("rm {s}/new && mkdir {top}/new")).await.0);
    }

    #[tokio::test]
    async fn what_is_hidden_and_what_is_read_only_may_lie_in_each_other() {
        let dir = shared();
        let at = |name: &str| dir.path().join(name);
        let missing = Bounds { read_only: vec![at("not-there")], ..Bounds::default() };
        assert_eq!(Confined::start(&missing).unwrap_err().kind(), io::ErrorKind::NotFound);
        let bounds = Bounds {
            hidden: vec![at("way/shared/dir"), at("elsewhere")],
            read_only: vec![at("way/shared"), at("way/shared/empty"), at("elsewhere/dir")],
        };
        let Some(confined) = confined(&bounds) else { return };
        let (s, e) = (at("way/shared").display().to_string(), at("elsewhere").display().to_string());
        for script in [
            format!("cat {s}/dir/deep/file"),
            format!("touch {s}/dir/deep/new"),
            format!("rm -f {s}/dir/deep/file"),
            format!("touch {s}/empty/new"),
            format!("touch {s}/new"),
            format!("cat {e}/file"),
            format!("mkdir {e}/dir/new"),
        ] {
            let (done, said) = sh(Some(&confined), &script).await;
            assert!(!done, "{script}: {said}");
        }
        let (done, said) = sh(Some(&confined), &format!("{s}/file && echo more > {s}/../beside/file")).await;
        assert!(done, "{said}");
    }
}
