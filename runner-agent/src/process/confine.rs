//! Confines commands with Landlock: they cannot open some files of the pod (the agent's tokens, the termination message), cannot
//! change others (what pods share, and memory and settings of processes in `/proc`), and cannot signal the agent. A
//! [filter](super::filter) refuses the system calls that reach into another process.
//!
//! The stack's code runs as the agent's own user, so file modes do not protect against it. Landlock does
//! (<https://docs.kernel.org/userspace-api/landlock.html>): a thread of the agent restricts itself and starts all commands, which
//! inherit the restriction.
//!
//! Landlock grants rights to a directory with everything below it, without exceptions. So a directory above a protected path is not
//! granted itself; its entries are, as they are at the start. The cost:
//!
//! - above a hidden path, entries created later can be neither read nor written;
//! - above a read-only path, nothing can be created, removed or renamed, and entries created later cannot be written. Existing
//!   files and directories can be written, and everything is allowed in those directories. So put read-only directories where
//!   nothing else works: in `/pawl/cache`, not in `/tmp` or the work directory.
//!
//! No version of Landlock covers mode, owner, times and extended attributes of a file, or locks on a readable file.

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use landlock::{
    AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope, make_bitflags,
};
use tokio::{
    process::{Child, Command},
    runtime::Handle,
};

use super::filter;

type Job = Box<dyn FnOnce() + Send>;

/// Read-only for commands: `/proc/PID/mem` of a process under the same rules can be written otherwise.
const PROC: &str = "/proc";

/// A confined thread that starts commands. It ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Confined {
    jobs: mpsc::Sender<Job>,
    pub(super) by_landlock: bool,
}

/// Paths protected from commands: files, or directories with everything below. Links are followed.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// Paths that commands cannot open. A missing path is no error.
    pub hidden: Vec<PathBuf>,
    /// Directories that commands can read and execute, but not change: nothing in them is written, created, renamed or removed.
    /// They must exist, since a rule needs the inode.
    pub read_only: Vec<PathBuf>,
}

impl Confined {
    /// Starts the thread.
    ///
    /// # Errors
    /// The kernel (before 5.19), its configuration or the container's seccomp profile lacks Landlock, or a read-only directory does
    /// not exist. Nothing is confined then.
    pub(super) fn start(bounds: &Bounds) -> io::Result<Self> {
        // Real paths: `/var/run` is a link in most images.
        let hidden: Vec<PathBuf> = bounds
            .hidden
            .iter()
            .filter_map(|path| path.canonicalize().ok())
            .collect();
        let real = |path: &PathBuf| {
            path.canonicalize().map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            })
        };
        let read_only = bounds
            .read_only
            .iter()
            .map(real)
            .chain([Ok(PROC.into())])
            .collect::<io::Result<Vec<_>>>()?;
        Self::restricted(vec![
            (HIDING, all_but(&hidden)?),
            (KEEPING, all_but(&read_only)?),
        ])
    }

    /// Starts the thread without Landlock, with the filter of system calls only.
    ///
    /// # Errors
    /// The kernel has no filters of system calls.
    pub(super) fn filtered() -> io::Result<Self> {
        Self::restricted(Vec::new())
    }

    fn restricted(layers: Vec<(Layer, Vec<PathBuf>)>) -> io::Result<Self> {
        let by_landlock = !layers.is_empty();
        let (jobs, work) = mpsc::channel::<Job>();
        let (said, told) = mpsc::sync_channel(1);
        thread::Builder::new()
            .name("confined".into())
            .spawn(move || {
                let restricted = layers
                    .iter()
                    .try_for_each(|(layer, allowed)| layer.restrict(allowed))
                    .and_then(|()| filter::install());
                let stays = restricted.is_ok();
                let _ = said.send(restricted);
                if stays {
                    for job in work {
                        job();
                    }
                }
            })?;
        told.recv().map_err(io::Error::other)??;
        Ok(Self { jobs, by_landlock })
    }

    /// Starts a command in the caller's runtime.
    ///
    /// # Errors
    /// The command cannot be started.
    pub(super) fn spawn(&self, mut command: Command) -> io::Result<Child> {
        let runtime = Handle::current();
        let (said, told) = mpsc::sync_channel(1);
        let job = Box::new(move || {
            let _entered = runtime.enter();
            let _ = said.send(command.spawn());
        });
        self.jobs
            .send(job)
            .map_err(|_| io::Error::other("the thread that starts commands has ended"))?;
        told.recv().map_err(io::Error::other)?
    }
}

/// A set of rights that is denied except where granted. If there are several layers, each must allow an access.
struct Layer {
    /// Rights that the kernel must support.
    needed: BitFlags<AccessFs>,
    /// Rights that an older kernel may lack.
    wished: BitFlags<AccessFs>,
}

/// Requires a right for reads and writes, and for moves to another directory: Landlock denies these without the right in any case.
const HIDING: Layer = Layer {
    needed: make_bitflags!(AccessFs::{ReadFile | WriteFile | Refer}),
    wished: BitFlags::EMPTY,
};

/// Requires a right for every change. For `truncate(2)`, which opens nothing, only since kernel 6.2.
const KEEPING: Layer = Layer {
    needed: make_bitflags!(AccessFs::{
        WriteFile | MakeReg | MakeDir | MakeSym | MakeSock | MakeFifo | MakeChar | MakeBlock | RemoveFile | RemoveDir | Refer
    }),
    wished: make_bitflags!(AccessFs::{Truncate}),
};

/// The rights that apply to a file.
const OF_A_FILE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | WriteFile | Truncate});

impl Layer {
    fn restrict(&self, allowed: &[PathBuf]) -> io::Result<()> {
        let refused = |error: RulesetError| io::Error::other(error);
        let rights = self.needed | self.wished;
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(self.needed)
            .map_err(refused)?
            // Before kernel 6.12 there are no scopes.
            .set_compatibility(CompatLevel::BestEffort)
            .scope(Scope::Signal)
            .map_err(refused)?;
        if !self.wished.is_empty() {
            ruleset = ruleset.handle_access(self.wished).map_err(refused)?;
        }
        let mut ruleset = ruleset.create().map_err(refused)?;
        for path in allowed {
            // A path that was removed meanwhile needs no right.
            let (Ok(kind), Ok(fd)) = (fs::metadata(path), PathFd::new(path)) else {
                continue;
            };
            let rights = if kind.is_dir() {
                rights
            } else {
                rights & OF_A_FILE
            };
            ruleset = ruleset
                .add_rule(PathBeneath::new(fd, rights))
                .map_err(refused)?;
        }
        ruleset.restrict_self().map(drop).map_err(refused)
    }
}

/// The identity by which Landlock matches a rule.
type Inode = (u64, u64);

fn inode(meta: &fs::Metadata) -> Inode {
    (meta.dev(), meta.ino())
}

/// All paths except the given real ones, as few as possible: each directory above one is replaced by its entries. Compares inodes,
/// since a second mount of a directory would otherwise be granted and open the first.
fn all_but(kept: &[PathBuf]) -> io::Result<Vec<PathBuf>> {
    let of = |path: &Path| fs::metadata(path).ok().map(|meta| inode(&meta));
    let ends: HashSet<Inode> = kept.iter().filter_map(|path| of(path)).collect();
    let way: HashSet<Inode> = kept
        .iter()
        .flat_map(|path| path.ancestors().skip(1))
        .filter_map(of)
        .collect();
    let mut allowed = Vec::new();
    below(Path::new("/"), &ends, &way, &mut allowed)?;
    Ok(allowed)
}

fn below(
    directory: &Path,
    ends: &HashSet<Inode>,
    way: &HashSet<Inode>,
    allowed: &mut Vec<PathBuf>,
) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        // A path removed meanwhile needs no right. A link's target is granted by itself.
        let Some(meta) = fs::symlink_metadata(&path)
            .ok()
            .filter(|meta| !meta.is_symlink())
        else {
            continue;
        };
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
        assert!(
            confined.is_ok() || std::env::var_os("CI").is_none(),
            "this kernel has no Landlock"
        );
        confined.ok()
    }

    /// Runs a shell script, confined or not. Returns its success and output.
    async fn sh(confined: Option<&Confined>, script: &str) -> (bool, String) {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", script])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        let child = match confined {
            Some(confined) => confined.spawn(command),
            None => command.spawn(),
        };
        let output = child.unwrap().wait_with_output().await.unwrap();
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    }

    /// Asserts that each confined script succeeds, or that each fails and prints no secret.
    async fn assert_each<const N: usize>(confined: &Confined, succeed: bool, scripts: [String; N]) {
        for script in scripts {
            let (done, said) = sh(Some(confined), &script).await;
            assert!(
                done == succeed && (done || !said.contains("secret")),
                "{script}: {said}"
            );
        }
    }

    #[tokio::test]
    async fn hidden_files_cannot_be_read_by_commands() {
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
        let Some(confined) = confined(&Bounds {
            hidden,
            ..Bounds::default()
        }) else {
            return;
        };
        let scripts = [
            format!("cat {path}/token/token"),
            format!("cat {path}/link/token"),
            format!("setsid sh -c 'cd {path} && cat token/..data/token'"),
            format!("echo no > {path}/message"),
            format!(
                "ln {path}/token/..data/token {path}/beside/stolen && cat {path}/beside/stolen"
            ),
            format!(
                "mv {path}/token/..data/token {path}/beside/stolen && cat {path}/beside/stolen"
            ),
            format!("cat /proc/{}/root{path}/token/token", std::process::id()),
        ];
        assert_each(&confined, false, scripts).await;
        assert_eq!(fs::read_to_string(at("message")).unwrap(), "");
        // Other files remain accessible, and this process is not restricted.
        let scripts = [
            format!("cat {path}/beside/file && echo more > {path}/beside/other && mv {path}/beside/other {path}/beside/again"),
            format!("mkdir {path}/beside/below && mv {path}/beside/again {path}/beside/below/ && cat {path}/beside/below/again"),
            "echo to-null > /dev/null && cat /proc/self/status > /dev/null && echo out > /dev/stdout".to_owned(),
        ];
        assert_each(&confined, true, scripts).await;
        assert_eq!(
            sh(None, &format!("cat {path}/link/token")).await,
            (true, "secret".to_owned())
        );
    }

    /// A protected directory `shared`, with an unprotected one beside it.
    fn shared() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "way/shared/dir/deep",
            "way/shared/empty",
            "way/beside",
            "elsewhere/dir",
        ] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let script = "#!/bin/sh\necho ran\n";
        for name in [
            "way/shared/file",
            "way/shared/dir/deep/file",
            "way/file",
            "way/beside/file",
            "elsewhere/file",
        ] {
            fs::write(dir.path().join(name), script).unwrap();
            fs::set_permissions(
                dir.path().join(name),
                std::os::unix::fs::PermissionsExt::from_mode(0o755),
            )
            .unwrap();
        }
        dir
    }

    /// Everything below a directory: names, and contents of files.
    fn listed(dir: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
        let mut found = Vec::new();
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            found.push((
                path.clone(),
                path.is_file().then(|| fs::read(&path).unwrap()),
            ));
            if path.is_dir() && !path.is_symlink() {
                found.extend(listed(&path));
            }
        }
        found.sort();
        found
    }

    #[tokio::test]
    async fn read_only_directories_cannot_be_changed_by_commands() {
        let dir = shared();
        let at = |name: &str| dir.path().join(name);
        std::os::unix::fs::symlink("way/shared", at("link")).unwrap();
        let Some(confined) = confined(&Bounds {
            read_only: vec![at("link")],
            ..Bounds::default()
        }) else {
            return;
        };
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
            // Without confinement the script succeeds.
            let again = shared();
            std::os::unix::fs::symlink("way/shared", again.path().join("link")).unwrap();
            let script = script.replace(&top.to_string(), &again.path().display().to_string());
            let (done, said) = sh(None, &script).await;
            assert!(done, "{script}: {said}");
        }
        // No shell command truncates a file without opening it first.
        let (file, (said, told)) = (at("way/shared/file"), mpsc::sync_channel(1));
        let cut = move || said.send(nix::unistd::truncate(&file, 1)).unwrap();
        confined.jobs.send(Box::new(cut)).unwrap();
        let cut = told.recv().unwrap().is_ok();
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        let old = ruleset.handle_access(AccessFs::Truncate).is_err();
        assert_eq!(cut, old);
        let mounted =
            format!("unshare -rm sh -c 'mount --bind {s} {e}/dir && echo more > {e}/dir/file'");
        assert!(!sh(Some(&confined), &mounted).await.0);
        let scripts = [
            format!("cat {s}/file && {s}/dir/deep/file && ls -R {s} && cd {s}/dir && test -r deep/file"),
            format!("cp {s}/file {e}/copy && echo more >> {e}/copy && ln -s {s}/file {e}/link && {e}/link"),
            format!(
                "mkdir {e}/new && mv {e}/copy {e}/new/ && mkfifo {e}/pipe && rm -r {e}/new {e}/pipe && truncate -s 1 {e}/file"
            ),
            // Existing entries above a protected path remain usable.
            format!(
                "echo more >> {top}/way/file && : > {top}/way/file && mv {top}/way/beside/file {e}/other && touch {top}/way/beside/x"
            ),
            "echo to-null > /dev/null && cat /proc/self/status > /dev/null && echo out > /dev/stdout && rm $(mktemp -p /dev/shm)"
                .to_owned(),
        ];
        assert_each(&confined, true, scripts).await;
        // The documented cost.
        let scripts = [
            format!("touch {top}/way/new"),
            format!("rm {top}/way/file"),
            format!("mkdir {top}/new"),
        ];
        assert_each(&confined, false, scripts).await;
        // This process and unconfined commands are not restricted.
        fs::write(at("way/shared/new"), "").unwrap();
        assert!(sh(None, &format!("rm {s}/new && mkdir {top}/new")).await.0);
    }

    #[tokio::test]
    async fn hidden_and_read_only_paths_may_be_nested() {
        let dir = shared();
        let at = |name: &str| dir.path().join(name);
        let missing = Bounds {
            read_only: vec![at("not-there")],
            ..Bounds::default()
        };
        assert_eq!(
            Confined::start(&missing).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        let bounds = Bounds {
            hidden: vec![at("way/shared/dir"), at("elsewhere")],
            read_only: vec![
                at("way/shared"),
                at("way/shared/empty"),
                at("elsewhere/dir"),
            ],
        };
        let Some(confined) = confined(&bounds) else {
            return;
        };
        let (s, e) = (
            at("way/shared").display().to_string(),
            at("elsewhere").display().to_string(),
        );
        let scripts = [
            format!("cat {s}/dir/deep/file"),
            format!("touch {s}/dir/deep/new"),
            format!("rm -f {s}/dir/deep/file"),
            format!("touch {s}/empty/new"),
            format!("touch {s}/new"),
            format!("cat {e}/file"),
            format!("mkdir {e}/dir/new"),
        ];
        assert_each(&confined, false, scripts).await;
        assert_each(
            &confined,
            true,
            [format!("{s}/file && echo more > {s}/../beside/file")],
        )
        .await;
    }
}
