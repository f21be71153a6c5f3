//! Debian packages of the node and of the runner's base image.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cache::{self, Cache};
use crate::{command::run, report};

/// Files whose existence shows that a package is installed, and the package.
const NEEDED: &[(&[&str], &str)] = &[
    (
        &["/usr/bin/containerd", "/usr/sbin/containerd"],
        "containerd",
    ),
    (&["/usr/sbin/runc", "/usr/bin/runc"], "runc"),
    (&["/usr/lib/cni/bridge"], "containernetworking-plugins"),
    (&["/usr/bin/buildah"], "buildah"),
    (&["/bin/busybox", "/usr/bin/busybox"], "busybox-static"),
    (&["/usr/sbin/nft", "/sbin/nft"], "nftables"),
    (&["/usr/sbin/iptables", "/sbin/iptables"], "iptables"),
    (&["/usr/sbin/conntrack", "/sbin/conntrack"], "conntrack"),
    (&["/usr/bin/ip", "/bin/ip", "/sbin/ip"], "iproute2"),
    (&["/usr/bin/nsenter"], "util-linux"),
    (&["/usr/bin/mmdebstrap"], "mmdebstrap"),
    (&["/usr/bin/git"], "git"),
    (&["/usr/bin/ssh"], "openssh-client"),
    (&["/etc/ssl/certs/ca-certificates.crt"], "ca-certificates"),
    (&["/usr/bin/chromium"], BROWSER),
];

/// The browser that tests of the web UI drive. No cluster needs it.
const BROWSER: &str = "chromium";

/// The subset for building images.
const FOR_IMAGES: &[&str] = &["buildah", "mmdebstrap", "ca-certificates"];

/// Installs missing packages of a cluster and reports it. Fails where they cannot be installed.
pub fn ensure() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "the test cluster needs root: it starts containerd, network namespaces and cgroups; run it as root"
        );
    }
    install(|package| package != BROWSER)
}

/// Installs the browser of the tests of the web UI, if missing.
pub fn ensure_browser() -> Result<()> {
    install(|package| package == BROWSER)
}

pub fn ensure_for_images() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "images are built with a base of Debian packages, which needs root; nothing was built; run it as root"
        );
    }
    install(|package| FOR_IMAGES.contains(&package))
}

fn install(wanted: impl Fn(&str) -> bool) -> Result<()> {
    let missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(files, package)| {
            wanted(package) && !files.iter().any(|file| Path::new(file).exists())
        })
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!(
            "these are missing, and this is no Debian to install them on: {list}; install what they hold by hand"
        );
    }
    let step = report::step("packages", format!("installing {list}"));
    apt(&["update"]).context("cannot update the list of Debian packages; is the network there?")?;
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(&missing);
    apt(&arguments)
        .with_context(|| format!("cannot install {list}; try `apt-get install {list}` by hand"))?;
    step.done_with(format!("installed {list}"));
    Ok(())
}

fn apt(args: &[&str]) -> Result<()> {
    run(Command::new("apt-get")
        .arg("-q")
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive"))
    .map(drop)
}

/// Packages of the runner's base image.
pub const BASE: &str = "ca-certificates,git,git-lfs,openssh-client";

/// The archive of the base image. Built from packages if not cached.
pub fn base_archive(cache: &Cache) -> Result<PathBuf> {
    let archive = cache.path(format!("images/debian-{}.tar", cache::key([BASE])));
    let _lock = cache::Lock::wait(&cache.path("images/debian.lock"))?;
    if !archive.exists() {
        let step = report::step("images", "Debian base");
        Cache::install(&archive, |temporary| {
            let include = format!("--include={BASE}");
            run(Command::new("mmdebstrap")
                .args(["--variant=minbase", "--format=tar", &include, "bookworm"])
                .arg(temporary))
            .map(drop)
        })
        .context("cannot make the Debian base image from packages; is the network there?")?;
        step.done();
    }
    Ok(archive)
}

/// The files of packages, unpacked into a cache directory instead of installed.
pub fn unpacked(cache: &Cache, name: &str, packages: &[&str]) -> Result<PathBuf> {
    let directory = cache.path(format!("packages/{name}-{}", cache::key(packages)));
    let _lock = cache::Lock::wait(&cache.path("packages/unpack.lock"))?;
    if !directory.exists() {
        let step = report::step("packages", format!("fetching {}", packages.join(" ")));
        Cache::install(&directory, |temporary| {
            let archives = temporary.join("archives");
            cache::create_dir(&archives)?;
            let download = || {
                run(Command::new("apt-get")
                    .args(["-q", "download"])
                    .args(packages)
                    .current_dir(&archives))
                .map(drop)
            };
            // A fresh machine has no package lists.
            download().or_else(|_| apt(&["update"]).and_then(|()| download()))?;
            for entry in std::fs::read_dir(&archives)? {
                run(Command::new("dpkg-deb")
                    .arg("-x")
                    .arg(entry?.path())
                    .arg(temporary))?;
            }
            cache::remove(&archives)
        })
        .with_context(|| {
            format!(
                "cannot fetch the Debian packages {}; is the network there?",
                packages.join(" ")
            )
        })?;
        step.done();
    }
    Ok(directory)
}
