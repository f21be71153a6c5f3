//! Builds images without a registry, from a Debian base made of packages and Pawl's Containerfiles, and imports them into a cluster's
//! containerd.

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

/// The base image's name in `images/runner-agent/Containerfile`.
const BASE: &str = "docker.io/library/debian:bookworm-slim";

/// Age after which an archive is deleted. A younger one may still be imported by another program that runs in parallel.
const UNUSED: Duration = Duration::from_secs(3600);

/// An image that is ready to be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The name in pod specs. The tag depends on the content, so that a changed image changes the pod.
    pub name: String,
    pub archive: PathBuf,
}

/// Builds images. Unchanged images are cached.
#[derive(Debug)]
pub struct Builder {
    cache: Cache,
    checkout: PathBuf,
    prefix: &'static str,
}

impl Builder {
    /// A builder whose images are in the cache, separate from the machine's own images.
    pub fn new() -> Result<Self> {
        Self::of(root(), "pawl")
    }

    /// A builder for the Containerfiles of a checkout. A new image replaces older ones of the same name, so each checkout needs its own
    /// prefix.
    pub fn of(checkout: &Path, prefix: &'static str) -> Result<Self> {
        Ok(Self {
            cache: Cache::open()?,
            checkout: checkout.to_owned(),
            prefix,
        })
    }

    /// Builds the runner's image: the agent, and extra files for tests, such as tools, at the given paths.
    ///
    /// The extra files are in a layer below the agent, so that a changed agent rebuilds one layer only.
    pub fn runner(&self, agent: &Path, extra_files: &[(PathBuf, String)]) -> Result<Image> {
        let _lock = self.cache.lock("images")?;
        let file = self.checkout.join("images/runner-agent/Containerfile");
        let mut parts = vec![
            read(&file)?,
            cache::file_key(agent)?,
            packages::BASE.to_owned(),
        ];
        for (from, to) in extra_files {
            parts.extend([cache::file_key(from)?, to.clone()]);
        }
        self.archive(
            &format!("{}-runner", self.prefix),
            &cache::key(&parts),
            |image, archive| {
                let base = self.base_with(extra_files, agent)?;
                let context = BuildContext::new()?;
                context.add_program(agent, "runner-agent")?;
                self.build(&file, context.path(), image, &[("BASE", &base)])?;
                self.push(image, archive)
            },
        )
    }

    pub fn controller(&self, binary: &Path) -> Result<Image> {
        self.with_controller("controller", binary)
    }

    /// Builds the sources image: the controller's binary with git and ssh.
    pub fn sources(&self, binary: &Path) -> Result<Image> {
        self.with_controller("sources", binary)
    }

    fn with_controller(&self, word: &str, binary: &Path) -> Result<Image> {
        let _lock = self.cache.lock("images")?;
        let file = self
            .checkout
            .join("images")
            .join(word)
            .join("Containerfile");
        let parts = [
            read(&file)?,
            cache::file_key(binary)?,
            packages::BASE.to_owned(),
        ];
        self.archive(
            &format!("{}-{word}", self.prefix),
            &cache::key(parts),
            |image, archive| {
                self.base()?;
                let context = BuildContext::new()?;
                context.add_program(binary, "controller")?;
                self.build(&file, context.path(), image, &[])?;
                self.push(image, archive)
            },
        )
    }

    /// Builds the image of the pause container. It contains a shell for test pods too.
    pub fn pause(&self) -> Result<Image> {
        let _lock = self.cache.lock("images")?;
        let busybox = Path::new("/bin/busybox");
        let file = source("pause/Containerfile");
        let key = cache::key([read(&file)?, cache::file_key(busybox)?]);
        let image = self.archive("pawl-pause", &key, |image, archive| {
            let context = BuildContext::new()?;
            context.add(busybox, "bin/busybox")?;
            for name in run(Command::new(busybox).arg("--list"))?
                .lines()
                .filter(|name| *name != "busybox")
            {
                std::os::unix::fs::symlink("busybox", context.path().join("bin").join(name))
                    .context("cannot link a name of busybox")?;
            }
            self.build(&file, context.path(), image, &[])?;
            run(self.buildah(&["tag", image, node::PAUSE]))?;
            self.push(node::PAUSE, archive)
        })?;
        Ok(Image {
            name: node::PAUSE.to_owned(),
            ..image
        })
    }

    /// Builds the Debian base from packages, with the name that the Containerfiles reference.
    fn base(&self) -> Result<()> {
        let mark = self.cache.path("images/base");
        if read(&mark).is_ok_and(|made| made == packages::BASE)
            && run(self.buildah(&["inspect", "--type=image", BASE])).is_ok()
        {
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

    /// Builds the base with extra files and the digests of the tools among them. Returns its name.
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
            step = Some(report::step(
                "images",
                format!("base with {} files for tests", files.len()),
            ));
            let context = BuildContext::new()?;
            for (from, to) in files {
                context.add(from, &format!("root/{}", to.trim_start_matches('/')))?;
            }
            // An agent of an older commit writes no digests and hashes the tools at run time instead.
            let tools = context
                .path()
                .join("root")
                .join(pod_env::TOOLS_DIR.trim_start_matches('/'));
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

    /// The archive of an image with this content. Calls `make` if it does not exist, and deletes unused older ones.
    fn archive(
        &self,
        name: &str,
        key: &str,
        make: impl FnOnce(&str, &Path) -> Result<()>,
    ) -> Result<Image> {
        let image = Image {
            name: format!("localhost/{name}:{key}"),
            archive: self.cache.path(format!("images/{name}-{key}.tar")),
        };
        if let Ok(archive) = File::open(&image.archive) {
            // Mark it as used, so that no other process deletes it.
            archive
                .set_modified(SystemTime::now())
                .with_context(|| format!("cannot touch {}", image.archive.display()))?;
            return Ok(image);
        }
        let step = report::step("images", name);
        Cache::install(&image.archive, |temporary| make(&image.name, temporary))
            .with_context(|| format!("cannot build the image {name}"))?;
        // After the build, because it reuses the unchanged layers of older images.
        let prefix = format!("{name}-");
        for entry in fs::read_dir(self.cache.path("images"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let file = entry.file_name().to_string_lossy().into_owned();
            let older = file
                .strip_prefix(&prefix)
                .and_then(|rest| rest.strip_suffix(".tar"))
                .filter(|older| *older != key);
            let unused = entry
                .metadata()
                .and_then(|archive| archive.modified())
                .map(|used| used.elapsed().unwrap_or_default());
            if let Some(older) = older.filter(|_| unused.is_ok_and(|unused| unused > UNUSED)) {
                cache::remove(&entry.path())?;
                // It may be deleted already. This only bounds the size of Buildah's store.
                let _ = run(self.buildah(&["rmi", &format!("localhost/{name}:{older}")]));
            }
        }
        step.done();
        Ok(image)
    }

    fn build(
        &self,
        file: &Path,
        context: &Path,
        image: &str,
        arguments: &[(&str, &str)],
    ) -> Result<()> {
        let mut command =
            self.buildah(&["build", "-q", "--layers", "--pull-never", "-t", image, "-f"]);
        command
            .arg(file)
            .arg(format!("--build-arg=TARGETARCH={}", architecture()));
        for (name, value) in arguments {
            command.arg(format!("--build-arg={name}={value}"));
        }
        run(command.arg(context)).map(drop)
    }

    /// Pushes an image to a registry and returns the digest of its manifest.
    pub(super) fn publish(
        &self,
        image: &Image,
        to: &str,
        insecure: bool,
        credentials: Option<&Path>,
    ) -> Result<String> {
        let _lock = self.cache.lock("images")?;
        if run(self.buildah(&["inspect", "--type=image", &image.name])).is_err() {
            // Buildah's store was removed, but the archive was not.
            run(self
                .buildah(&["pull", "-q"])
                .arg(format!("docker-archive:{}", image.archive.display())))?;
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
        run(self
            .buildah(&["push", "-q", image])
            .arg(format!("docker-archive:{}:{image}", archive.display())))
        .map(drop)
    }

    /// Buildah with its own store, so that the machine's images are not changed.
    fn buildah(&self, args: &[&str]) -> Command {
        let mut command = Command::new("buildah");
        command
            .arg("--root")
            .arg(self.cache.path("images/store"))
            .arg("--runroot")
            .arg(self.cache.path("images/run"))
            .args(["--storage-driver", "overlay"])
            .args(args)
            // `chroot` needs no container runtime, which is not allowed everywhere.
            .env("BUILDAH_ISOLATION", "chroot");
        command
    }
}

/// A build directory. Drop removes it.
struct BuildContext {
    directory: tempfile::TempDir,
}

impl BuildContext {
    fn new() -> Result<Self> {
        // In the cache, so that files can be hard-linked instead of copied.
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

    /// Adds one of our programs without its line tables, which are three quarters of its size.
    fn add_program(&self, from: &Path, name: &str) -> Result<()> {
        let to = self.path().join("linux").join(architecture()).join(name);
        cache::create_dir(to.parent().context("a program lies in a directory")?)?;
        run(Command::new("strip")
            .args(["--strip-debug", "-o"])
            .arg(&to)
            .arg(from))
        .map(drop)
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

/// Extra files in the runner's image for tests: real tools, providers in a filesystem mirror, and the CLI configuration that references the
/// mirror (`TF_CLI_CONFIG_FILE=/opt/pawl/providers.tfrc`).
pub fn test_files(tools: &Toolset, scripted: Option<&Path>) -> Result<Vec<(PathBuf, String)>> {
    let mut files = Vec::new();
    for (name, directory) in [("tofu", "opentofu"), ("terraform", "terraform")] {
        let Ok(version) = tools.version(name) else {
            continue;
        };
        files.push((
            tools.path(name)?.to_owned(),
            format!("/opt/pawl/tools/{directory}/{version}/{name}"),
        ));
    }
    for (provider, address) in [
        ("terraform-provider-time", "hashicorp/time"),
        (OBJECT_PROVIDER, "pawl/object"),
    ] {
        let version = tools.version(provider)?;
        for host in ["registry.opentofu.org", "registry.terraform.io"] {
            let place = format!(
                "/opt/pawl/providers/{host}/{address}/{version}/linux_{}",
                architecture()
            );
            files.push((
                tools.path(provider)?.to_owned(),
                format!("{place}/{provider}_v{version}"),
            ));
        }
    }
    files.push((
        source("test/providers.tfrc"),
        "/opt/pawl/providers.tfrc".to_owned(),
    ));
    files.extend(scripted.map(|scripted| {
        (
            scripted.to_owned(),
            "/opt/pawl/tools/opentofu/0.0.1/tofu".to_owned(),
        )
    }));
    Ok(files)
}

/// Directory of programs of this workspace that the caller has just built.
pub const PROGRAMS: &str = "PAWL_PROGRAMS";

/// Cargo profile for programs of this workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// The profile of the running program: for suites and the demo.
    Same,
    /// `dist`, optimised: for published images and programs under measurement. Takes minutes to build.
    Dist,
}

/// Builds programs of this workspace and returns their paths in the order of `names`.
pub fn programs(names: &[&str], profile: Profile) -> Result<Vec<PathBuf>> {
    if let Some(directory) = std::env::var_os(PROGRAMS).filter(|_| profile == Profile::Same) {
        return Ok(names
            .iter()
            .map(|name| Path::new(&directory).join(name))
            .collect());
    }
    let step = report::step("build", names.join(", "));
    let mut command = cargo();
    command.current_dir(root()).args([
        "build",
        "--profile",
        &profile.name()?,
        "--message-format=json-render-diagnostics",
    ]);
    for name in names {
        command.args(["--bin", name]);
    }
    let output = run(&mut command).context("cannot build the programs that go into images")?;
    let found = executables(&output);
    step.done();
    names
        .iter()
        .map(|name| {
            let path = found
                .iter()
                .map(|found| &found.path)
                .find(|path| path.file_name().is_some_and(|file| file == *name));
            path.cloned()
                .with_context(|| format!("cargo built no program called {name}"))
        })
        .collect()
}

impl Profile {
    fn name(self) -> Result<String> {
        if self == Self::Dist {
            return Ok("dist".to_owned());
        }
        let program = std::env::current_exe()?;
        let directories = program
            .ancestors()
            .skip(1)
            .filter_map(|directory| directory.file_name()?.to_str());
        // Test programs are one directory deeper.
        let name = directories
            .into_iter()
            .find(|name| *name != "deps")
            .context("a program lies in a directory")?;
        Ok(if name == "debug" { "dev" } else { name }.to_owned())
    }
}

/// Imports an image into the containerd of the cluster in this state directory. Returns false if it was imported before.
pub fn import(state: &Path, image: &Image) -> Result<bool> {
    let mark = state
        .join("images")
        .join(image.name.replace(['/', ':'], "_"));
    let key = cache::file_key(&image.archive)?;
    if read(&mark).is_ok_and(|imported| imported == key) {
        return Ok(false);
    }
    let socket = node::socket(state).display().to_string();
    // The import fails if the archive's image has another name than pods use.
    let output = run(Command::new("ctr")
        .args(["-a", &socket, "-n", "k8s.io", "images", "import"])
        .arg(&image.archive))
    .with_context(|| format!("cannot import the image {}", image.name))?;
    if !output.contains(&image.name) {
        bail!(
            "the archive {} does not hold {}; remove it and try again",
            image.archive.display(),
            image.name
        );
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
