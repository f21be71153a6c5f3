//! Images, built with no registry: a Debian base made from packages, our own Containerfiles on top of it, and the way
//! into a cluster's containerd.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use crds::pod_env;

use super::cache::{self, Cache};
use super::command::{cargo, executables, run};
use super::gobuild::{OBJECT_PROVIDER, Toolset, architecture};
use super::{node, packages, report};

/// The name that `images/runner-agent/Containerfile` has for its base.
const BASE: &str = "docker.io/library/debian:bookworm-slim";

/// After which time nobody imports an archive any more that he was given: another program may have been, which runs beside this one.
const UNUSED: Duration = Duration::from_secs(3600);

/// An image that is ready to be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// What pods call it. The tag changes with the content, so that a changed image is a changed pod.
    pub name: String,
    pub archive: PathBuf,
}

/// Builds images; what has not changed is not built again.
#[derive(Debug)]
pub struct Builder {
    cache: Cache,
    checkout: PathBuf,
    prefix: &'static str,
}

impl Builder {
    /// A builder that keeps everything in the cache, apart from the machine's own images.
    pub fn new() -> Result<Self> {
        Self::of(root(), "pawl")
    }

    /// A builder by the Containerfiles of a checkout. An image takes the place of older ones of its name, so those of each checkout
    /// have a prefix of their own.
    pub fn of(checkout: &Path, prefix: &'static str) -> Result<Self> {
        Ok(Self { cache: Cache::open()?, checkout: checkout.to_owned(), prefix })
    }

    /// The image of the runner: the agent, and files for tests at paths of the image, such as tools.
    ///
    /// The files lie below the agent's layer, so that a changed agent is all that is built again.
    pub fn runner(&self, agent: &Path, extra_files: &[(PathBuf, String)]) -> Result<Image> {
        let _lock = self.cache.lock("images")?;
        let file = self.checkout.join("images/runner-agent/Containerfile");
        let mut parts = vec![read(&file)?, cache::file_key(agent)?, packages::BASE.to_owned()];
        for (from, to) in extra_files {
            parts.extend([cache::file_key(from)?, to.clone()]);
        }
        self.archive(&format!("{}-runner", self.prefix), &cache::key(&parts), |image, archive| {
            let base = self.base_with(extra_files, agent)?;
            let context = BuildContext::new()?;
            context.add_program(agent, "runner-agent")?;
            self.build(&file, context.path(), image, &[("BASE", &base)])?;
            self.push(image, archive)
        })
    }

    pub fn controller(&self, binary: &Path) -> Result<Image> {
        self.with_controller("controller", binary)
    }

    /// The image of what follows repositories: the controller's binary beside git and ssh.
    pub fn sources(&self, binary: &Path) -> Result<Image> {
        self.with_controller("sources", binary)
    }

    fn with_controller(&self, word: &str, binary: &Path) -> Result<Image> {
        let _lock = self.cache.lock("images")?;
        let file = self.checkout.join("images").join(word).join("Containerfile");
        let parts = [read(&file)?, cache::file_key(binary)?, packages::BASE.to_owned()];
        self.archive(&format!("{}-{word}", self.prefix), &cache::key(parts), |image, archive| {
            self.base()?;
            let context = BuildContext::new()?;
            context.add_program(binary, "controller")?;
            self.build(&file, context.path(), image, &[])?;
            self.push(image, archive)
        })
    }

    /// The image of the container that holds a pod's namespaces; a shell for pods of tests too.
    pub fn pause(&self) -> Result<Image> {
        let _lock = self.cache.lock("images")?;
        let busybox = Path::new("/bin/busybox");
        let file = source("pause/Containerfile");
        let key = cache::key([read(&file)?, cache::file_key(busybox)?]);
        let image = self.archive("pawl-pause", &key, |image, archive| {
            let context = BuildContext::new()?;
            context.add(busybox, "bin/busybox")?;
            for name in run(Command::new(busybox).arg("--list"))?.lines().filter(|name| *name != "busybox") {
                std::os::unix::fs::symlink("busybox", context.path().join("bin").join(name))
                    .context("cannot link a name of busybox")?;
            }
            self.build(&file, context.path(), image, &[])?;
            run(self.buildah(&["tag", image, node::PAUSE]))?;
            self.push(node::PAUSE, archive)
        })?;
        Ok(Image { name: node::PAUSE.to_owned(), ..image })
    }

    /// The Debian base, from packages, under the name that Containerfiles use.
    fn base(&self) -> Result<()> {
        let mark = self.cache.path("images/base");
        if read(&mark).is_ok_and(|made| made == packages::BASE) && run(self.buildah(&["inspect", "--type=image", BASE])).is_ok() {
            return Ok(());
        }
        let step = report::step("images", "Debian base");
        let tar = packages::base_archive(&self.cache)?;
        let container = run(self.buildah(&["from", "scratch"]))?;
        let container = container.trim();
        run(self.buildah(&["add", "-q", container]).arg(&tar))?;
        run(self.buildah(&["commit", "-q", container, BASE]))?;
        run(self.buildah(&["rm", container]))?;
        cache::write(&mark, packages::BASE)?;
        step.done();
        Ok(())
    }

    /// The base with files on it, and the digests of the tools among them; its name.
    fn base_with(&self, files: &[(PathBuf, String)], agent: &Path) -> Result<String> {
        self.base()?;
        if files.is_empty() {
            return Ok(BASE.to_owned());
        }
        let mut parts = vec!["digests".to_owned()];
        let mut step = None;
        for (from, to) in files {
            parts.extend([cache::file_key(from)?, to.clone()]);
        }
        let name = format!("localhost/pawl-base:{}", cache::key(&parts));
        if run(self.buildah(&["inspect", "--type=image", &name])).is_err() {
            step = Some(report::step("images", format!("base with {} files for tests", files.len())));
            let context = BuildContext::new()?;
            for (from, to) in files {
                context.add(from, &format!("root/{}", to.trim_start_matches('/')))?;
            }
            // An agent of an older commit states none, and reads its tools instead.
            let tools = context.path().join("root").join(pod_env::TOOLS_DIR.trim_start_matches('/'));
            let _ = run(Command::new(agent).args(["tool", "digests"]).arg(tools));
            let file = context.path().join("Containerfile");
            cache::write(&file, format!("FROM {BASE}\nCOPY root /\n"))?;
            self.build(&file, context.path(), &name, &[])?;
        }
        if let Some(step) = step {
            step.done();
        }
        Ok(name)
    }

    /// The archive of an image with this content, made by `make` if there is none; older ones that nobody uses go.
    fn archive(&self, name: &str, key: &str, make: impl FnOnce(&str, &Path) -> Result<()>) -> Result<Image> {
        let image =
            Image { name: format!("localhost/{name}:{key}"), archive: self.cache.path(format!("images/{name}-{key}.tar")) };
        if let Ok(archive) = File::open(&image.archive) {
            // It is in use: whoever clears away older ones is to see that.
            archive.set_modified(SystemTime::now()).with_context(|| format!("cannot touch {}", image.archive.display()))?;
            return Ok(image);
        }
        let step = report::step("images", name);
        Cache::install(&image.archive, |temporary| make(&image.name, temporary))
            .with_context(|| format!("cannot build the image {name}"))?;
        // Only now: the layers below what changed were taken from the older ones.
        let prefix = format!("{name}-");
        for entry in fs::read_dir(self.cache.path("images")).into_iter().flatten().flatten() {
            let file = entry.file_name().to_string_lossy().into_owned();
            let older = file.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".tar")).filter(|older| *older != key);
            let unused = entry.metadata().and_then(|archive| archive.modified()).map(|used| used.elapsed().unwrap_or_default());
            if let Some(older) = older.filter(|_| unused.is_ok_and(|unused| unused > UNUSED)) {
                cache::remove(&entry.path())?;
                // It may be gone already; what matters is that the store does not grow for ever.
                let _ = run(self.buildah(&["rmi", &format!("localhost/{name}:{older}")]));
            }
        }
        step.done();
        Ok(image)
    }

    fn build(&self, file: &Path, context: &Path, image: &str, arguments: &[(&str, &str)]) -> Result<()> {
        let mut command = self.buildah(&["build", "-q", "--layers", "--pull-never", "-t", image, "-f"]);
        command.arg(file).arg(format!("--build-arg=TARGETARCH={}", architecture()));
        for (name, value) in arguments {
            command.arg(format!("--build-arg={name}={value}"));
        }
        run(command.arg(context)).map(drop)
    }

    /// Pushes an image to a registry; the digest of its manifest there.
    pub(super) fn publish(&self, image: &Image, to: &str, insecure: bool, credentials: Option<&Path>) -> Result<String> {
        let _lock = self.cache.lock("images")?;
        if run(self.buildah(&["inspect", "--type=image", &image.name])).is_err() {
            // The archive outlived Buildah's own store.
            run(self.buildah(&["pull", "-q"]).arg(format!("docker-archive:{}", image.archive.display())))?;
        }
        let file = tempfile::NamedTempFile::new().context("no file for the digest of an image")?;
        let mut push = self.buildah(&["push", "-q", "--digestfile"]);
        push.arg(file.path());
        if insecure {
            push.arg("--tls-verify=false");
        }
        if let Some(credentials) = credentials {
            push.arg("--authfile").arg(credentials);
        }
        run(push.arg(&image.name).arg(format!("docker://{to}")))?;
        Ok(read(file.path())?.trim().to_owned())
    }

    fn push(&self, image: &str, archive: &Path) -> Result<()> {
        run(self.buildah(&["push", "-q", image]).arg(format!("docker-archive:{}:{image}", archive.display()))).map(drop)
    }

    /// Buildah with a store of its own: the machine's images are not ours to touch.
    fn buildah(&self, args: &[&str]) -> Command {
        let mut command = Command::new("buildah");
        command
            .arg("--root")
            .arg(self.cache.path("images/store"))
            .arg("--runroot")
            .arg(self.cache.path("images/run"))
            .args(["--storage-driver", "overlay"])
            .args(args)
            // A container runtime proper is neither needed nor allowed everywhere.
            .env("BUILDAH_ISOLATION", "chroot");
        command
    }
}

/// A directory to build from; it goes with this value.
struct BuildContext {
    directory: tempfile::TempDir,
}

impl BuildContext {
    fn new() -> Result<Self> {
        // In the cache, so that files can be linked instead of copied.
        let parent = Cache::open()?.path("images");
        cache::create_dir(&parent)?;
        let directory = tempfile::Builder::new()
            .prefix(".context-")
            .tempdir_in(parent)
            .context("cannot create a directory to build an image from")?;
        Ok(Self { directory })
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// One of our own programs, without its line tables: three quarters of its size, and nobody debugs inside an image.
    fn add_program(&self, from: &Path, name: &str) -> Result<()> {
        let to = self.path().join("linux").join(architecture()).join(name);
        cache::create_dir(to.parent().context("a program lies in a directory")?)?;
        run(Command::new("strip").args(["--strip-debug", "-o"]).arg(&to).arg(from)).map(drop)
    }

    fn add(&self, from: &Path, to: &str) -> Result<()> {
        let target = self.path().join(to);
        if let Some(parent) = target.parent() {
            cache::create_dir(parent)?;
        }
        fs::hard_link(from, &target)
            .or_else(|_| fs::copy(from, &target).map(drop))
            .with_context(|| format!("cannot copy {} into an image", from.display()))
    }
}

/// What the runner of tests holds besides the agent: real tools, providers in a filesystem mirror, and the
/// configuration that names the mirror (`TF_CLI_CONFIG_FILE=/opt/pawl/providers.tfrc`).
pub fn test_files(tools: &Toolset, scripted: Option<&Path>) -> Result<Vec<(PathBuf, String)>> {
    let mut files = Vec::new();
    for (name, directory) in [("tofu", "opentofu"), ("terraform", "terraform")] {
        let Ok(version) = tools.version(name) else { continue };
        files.push((tools.path(name)?.to_owned(), format!("/opt/pawl/tools/{directory}/{version}/{name}")));
    }
    for (provider, address) in [("terraform-provider-time", "hashicorp/time"), (OBJECT_PROVIDER, "pawl/object")] {
        let version = tools.version(provider)?;
        for host in ["registry.opentofu.org", "registry.terraform.io"] {
            let place = format!("/opt/pawl/providers/{host}/{address}/{version}/linux_{}", architecture());
            files.push((tools.path(provider)?.to_owned(), format!("{place}/{provider}_v{version}")));
        }
    }
    files.push((source("test/providers.tfrc"), "/opt/pawl/providers.tfrc".to_owned()));
    files.extend(scripted.map(|scripted| (scripted.to_owned(), "/opt/pawl/tools/opentofu/0.0.1/tofu".to_owned())));
    Ok(files)
}

/// Where programs of this workspace lie that were built just now; whoever sets it built them.
pub const PROGRAMS: &str = "PAWL_PROGRAMS";

/// How programs of this workspace are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Like the program that runs: for suites and the demo.
    Same,
    /// `dist`, for speed: for published images and for programs that are measured. It takes minutes.
    Dist,
}

/// Builds programs of this workspace, and returns their paths in the order of `names`.
pub fn programs(names: &[&str], profile: Profile) -> Result<Vec<PathBuf>> {
    if let Some(directory) = std::env::var_os(PROGRAMS).filter(|_| profile == Profile::Same) {
        return Ok(names.iter().map(|name| Path::new(&directory).join(name)).collect());
    }
    let step = report::step("build", names.join(", "));
    let mut command = cargo();
    command.current_dir(root()).args(["build", "--profile", &profile.name()?, "--message-format=json-render-diagnostics"]);
    for name in names {
        command.args(["--bin", name]);
    }
    let output = run(&mut command).context("cannot build the programs that go into images")?;
    let found = executables(&output);
    step.done();
    names
        .iter()
        .map(|name| {
            let path = found.iter().map(|found| &found.path).find(|path| path.file_name().is_some_and(|file| file == *name));
            path.cloned().with_context(|| format!("cargo built no program called {name}"))
        })
        .collect()
}

impl Profile {
    fn name(self) -> Result<String> {
        if self == Self::Dist {
            return Ok("dist".to_owned());
        }
        let program = std::env::current_exe()?;
        let directories = program.ancestors().skip(1).filter_map(|directory| directory.file_name()?.to_str());
        // Programs of tests lie a directory deeper.
        let name = directories.into_iter().find(|name| *name != "deps").context("a program lies in a directory")?;
        Ok(if name == "debug" { "dev" } else { name }.to_owned())
    }
}

/// Imports an image into the containerd of the cluster in this state directory; false if it is there already.
pub fn import(state: &Path, image: &Image) -> Result<bool> {
    let mark = state.join("images").join(image.name.replace(['/', ':'], "_"));
    let key = cache::file_key(&image.archive)?;
    if read(&mark).is_ok_and(|imported| imported == key) {
        return Ok(false);
    }
    let socket = node::socket(state).display().to_string();
    // The whole import is refused if the archive holds another name than the one that pods will ask for.
    let output = run(Command::new("ctr").args(["-a", &socket, "-n", "k8s.io", "images", "import"]).arg(&image.archive))
        .with_context(|| format!("cannot import the image {}", image.name))?;
    if !output.contains(&image.name) {
        bail!("the archive {} does not hold {}; remove it and try again", image.archive.display(), image.name);
    }
    cache::write(&mark, key)?;
    Ok(true)
}

pub(super) use xtask::root;

fn source(relative: &str) -> PathBuf {
    root().join("images").join(relative)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
