//! Builds the programs of a cluster from Go modules that `tests/tools` pins.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::cache::{self, Cache};
use crate::command::run;
use crate::report;

/// One program, which `tests/tools` pins.
#[derive(Debug)]
struct Tool {
    name: &'static str,
    /// The directory of `tests/tools`.
    group: &'static str,
    /// Its Go package.
    package: String,
    /// The module whose pinned version the program reports as its own.
    module: &'static str,
}

const KUBERNETES: &str = "k8s.io/kubernetes";
const TOFU: &str = "github.com/opentofu/opentofu";
const TERRAFORM: &str = "github.com/hashicorp/terraform";
const TIME_PROVIDER: &str = "github.com/hashicorp/terraform-provider-time";
const PROVIDER_FRAMEWORK: &str = "github.com/hashicorp/terraform-plugin-framework";
const TERRAGRUNT_MODULE: &str = "github.com/gruntwork-io/terragrunt";
const REGISTRY: &str = "github.com/google/go-containerregistry";
const GITEA: &str = "code.gitea.io/gitea";
/// Build tags of the only program that needs cgo.
const GITEA_TAGS: &str = "sqlite,sqlite_unlock_notify";
/// Folders of its module that Gitea reads at run time. They are copied beside it.
const GITEA_DATA: [&str; 2] = ["options", "templates"];

/// In the order of use: API server first, programs for pods last.
static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| {
    let of = |group, name, package: &str, module| Tool {
        name,
        group,
        package: package.to_owned(),
        module,
    };
    let whole = |group, name, module| of(group, name, module, module);
    let kubernetes = |name| {
        of(
            "kube",
            name,
            &format!("{KUBERNETES}/cmd/{name}"),
            KUBERNETES,
        )
    };
    let tofu = |group| of(group, group, &format!("{TOFU}/cmd/tofu"), TOFU);
    let terraform = |group| whole(group, group, TERRAFORM);
    vec![
        whole("kube", "etcd", "go.etcd.io/etcd/server/v3"),
        kubernetes("kube-apiserver"),
        kubernetes("kubectl"),
        kubernetes("kube-controller-manager"),
        kubernetes("kube-scheduler"),
        kubernetes("kubelet"),
        kubernetes("kube-proxy"),
        of("kube", "coredns", "./coredns", "github.com/coredns/coredns"),
        of(
            "kube",
            "helm",
            "helm.sh/helm/v3/cmd/helm",
            "helm.sh/helm/v3",
        ),
        tofu("tofu"),
        whole("provider", "terraform-provider-time", TIME_PROVIDER),
        // Our own provider, whose objects can be changed by hand.
        of("provider", OBJECT_PROVIDER, "./object", PROVIDER_FRAMEWORK),
        of(
            "s3",
            "versitygw",
            "github.com/versity/versitygw/cmd/versitygw",
            "github.com/versity/versitygw",
        ),
        terraform("terraform"),
        whole("terragrunt", "terragrunt", TERRAGRUNT_MODULE),
        of("registry", "image-registry", "./server", REGISTRY),
        whole("gitea", "gitea", GITEA),
        of(
            "health",
            "glua",
            "github.com/yuin/gopher-lua/cmd/glua",
            "github.com/yuin/gopher-lua",
        ),
        // Other versions, for a mirror of releases and for comparisons. Built only when requested by name.
        tofu("tofu-1.9.4"),
        tofu("tofu-1.12.6"),
        terraform("terraform-1.8.5"),
        terraform("terraform-1.13.3"),
    ]
});

impl Tool {
    /// Linker flags that set the version in the program.
    fn stamp(&self, version: &str) -> String {
        let number = version.trim_start_matches('v');
        match self.module {
            KUBERNETES => kubernetes_stamp(version),
            "helm.sh/helm/v3" => format!("-X helm.sh/helm/v3/internal/version.version={version}"),
            TERRAGRUNT_MODULE => {
                format!("-X {TERRAGRUNT_MODULE}/internal/version.Version={version}")
            }
            TIME_PROVIDER => format!("-X main.version={number}"),
            GITEA => format!("-X main.Version={number}"),
            TOFU => format!("-X {TOFU}/version.dev=no"),
            TERRAFORM if self.group != "terraform" => format!("-X {TERRAFORM}/version.dev=no"),
            _ => String::new(),
        }
    }

    fn needs_c(&self) -> bool {
        self.module == GITEA
    }
}

fn kubernetes_stamp(version: &str) -> String {
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (
        numbers.next().unwrap_or_default(),
        numbers.next().unwrap_or_default(),
    );
    let package = "k8s.io/component-base/version";
    format!(
        "-X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    )
}

/// The provider of texts at URLs.
pub const OBJECT_PROVIDER: &str = "terraform-provider-object";
/// An S3-compatible server for the datastore's bucket.
pub const BUCKETS: &[&str] = &["versitygw"];
/// A container registry for pushed images.
pub const IMAGES: &[&str] = &["image-registry"];
/// A forge that sends webhooks.
pub const FORGE: &[&str] = &["gitea"];
/// The Lua runtime of Argo CD's health checks.
pub const HEALTH: &[&str] = &["glua"];
/// An API server without nodes.
pub const CONTROL_PLANE: &[&str] = &["etcd", "kube-apiserver", "kubectl"];
/// Programs of a whole node, and Helm.
pub const NODE: &[&str] = &[
    "etcd",
    "kube-apiserver",
    "kubectl",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "coredns",
    "helm",
];
/// Tools in the demo's runner image.
pub const DEMO_IN_PODS: &[&str] = &["tofu", "terraform-provider-time", OBJECT_PROVIDER];
/// In no image. Tests run it on this machine, and in pods that get it from a mirror.
pub const TERRAGRUNT: &[&str] = &["terragrunt"];
/// Tools in the tests' runner image.
pub const IN_PODS: &[&str] = &[
    "tofu",
    "terraform-provider-time",
    OBJECT_PROVIDER,
    "terraform",
];

/// Paths and versions of available programs, by name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Toolset {
    paths: BTreeMap<String, PathBuf>,
    versions: BTreeMap<String, String>,
}

/// Whether all suites must run, even if their tools have to be built first.
pub fn all_suites() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
        || std::env::var_os("PAWL_SUITES").is_some()
}

impl Toolset {
    /// Makes these programs available: from `KUBEBUILDER_ASSETS`, from the cache, or built from source.
    ///
    /// Safe to kill and to call again: finished programs stay in the cache.
    pub fn ensure(names: &[&str]) -> Result<Self> {
        let cache = Cache::open()?;
        let (set, mut missing) = Self::look(names, &cache)?;
        if !missing.is_empty() {
            let _lock = cache.lock("tools")?;
            missing.retain(|(_, _, path)| !path.exists());
            report::note(
                "tools",
                &format!(
                    "{} to build from source, minutes each the first time; kept in {}, safe to interrupt",
                    missing.len(),
                    cache.path("bin").display()
                ),
            );
            build_all(missing)?;
        }
        Ok(set)
    }

    /// These programs: built if all suites must run, else `None` unless all are cached.
    pub fn of_suite(names: &[&str]) -> Result<Option<Self>> {
        if all_suites() {
            Self::ensure(names).map(Some)
        } else {
            Self::cached(names)
        }
    }

    /// These programs if all are cached. Builds nothing.
    pub fn cached(names: &[&str]) -> Result<Option<Self>> {
        let (set, missing) = Self::look(names, &Cache::open()?)?;
        Ok(missing.is_empty().then_some(set))
    }

    /// The present or future paths of these programs, and those that must be built.
    fn look(names: &[&str], cache: &Cache) -> Result<(Self, Vec<Missing>)> {
        let mut set = Self::default();
        let mut missing = Vec::new();
        for name in names {
            let tool = TOOLS
                .iter()
                .find(|tool| tool.name == *name)
                .with_context(|| format!("unknown tool {name}"))?;
            let pin = Pin::read(tool)?;
            set.versions.insert(
                tool.name.to_owned(),
                pin.version.trim_start_matches('v').to_owned(),
            );
            let path = match from_assets(tool.name) {
                Some(path) => path,
                None => cache.path(format!("bin/{}-{}/{}", tool.group, pin.key, tool.name)),
            };
            if !path.exists() {
                missing.push((tool, pin, path.clone()));
            }
            set.paths.insert(tool.name.to_owned(), path);
        }
        Ok((set, missing))
    }

    pub fn path(&self, name: &str) -> Result<&Path> {
        self.paths
            .get(name)
            .map(PathBuf::as_path)
            .with_context(|| format!("{name} was not asked for when the tools were made ready"))
    }

    /// The version of a program of this set, without a leading `v`.
    pub fn version(&self, name: &str) -> Result<&str> {
        self.versions
            .get(name)
            .map(String::as_str)
            .with_context(|| format!("{name} has no known version"))
    }

    /// Creates links to all programs of this set in `directory`, for `PATH`.
    pub fn link_into(&self, directory: &Path) -> Result<()> {
        cache::create_dir(directory)?;
        for (name, path) in &self.paths {
            let link = directory.join(name);
            cache::remove(&link)?;
            std::os::unix::fs::symlink(path, &link)
                .with_context(|| format!("cannot link {}", link.display()))?;
        }
        Ok(())
    }
}

/// A program that must be built.
type Missing = (&'static Tool, Pin, PathBuf);

/// The pinned source of a tool.
#[derive(Debug)]
struct Pin {
    directory: PathBuf,
    version: String,
    flags: String,
    key: String,
}

impl Pin {
    fn read(tool: &Tool) -> Result<Self> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tools")
            .join(tool.group);
        let read = |name: &str| {
            let path = directory.join(name);
            match fs::read_to_string(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
                other => other.with_context(|| format!("cannot read {}", path.display())),
            }
        };
        let go_mod = read("go.mod")?;
        let version = version_of(&go_mod, tool.module).with_context(|| {
            format!(
                "{} does not require {}",
                directory.join("go.mod").display(),
                tool.module
            )
        })?;
        // The flags of the whole group, because its programs are built by one command into one directory. The linker ignores variables that
        // a program does not have.
        let stamps: Vec<String> = TOOLS
            .iter()
            .filter(|other| other.group == tool.group)
            .map(|other| other.stamp(&version_of(&go_mod, other.module).unwrap_or_default()))
            .collect();
        let mut flags = vec!["-s", "-w"];
        flags.extend(
            stamps
                .iter()
                .map(String::as_str)
                .filter(|stamp| !stamp.is_empty()),
        );
        flags.dedup();
        let flags = flags.join(" ");
        let mut parts = vec![
            go_mod,
            read("go.sum")?,
            read("tools.go")?,
            read("coredns/main.go")?,
            stamps.join(" "),
        ];
        parts.extend(
            [
                read("server/main.go")?,
                read("backends/none/backends.go")?,
                read("object/main.go")?,
            ]
            .into_iter()
            .filter(|code| !code.is_empty()),
        );
        parts.extend(tool.needs_c().then(|| GITEA_TAGS.to_owned()));
        let key = cache::key(parts);
        Ok(Self {
            directory,
            version,
            flags,
            key,
        })
    }
}

/// The version of a module that a `go.mod` requires.
fn version_of(go_mod: &str, module: &str) -> Option<String> {
    go_mod.lines().find_map(|line| {
        let line = line.trim();
        let mut words = line
            .strip_prefix("require ")
            .unwrap_or(line)
            .split_whitespace();
        (words.next() == Some(module))
            .then(|| words.next().map(str::to_owned))
            .flatten()
    })
}

fn from_assets(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os("KUBEBUILDER_ASSETS")?).join(name);
    (CONTROL_PLANE.contains(&name) && path.exists()).then_some(path)
}

/// Generates no debug data, which the linker would drop. With this and [`GOGC`], a build took 16 % less processor time (54 s instead of 64
/// s for the provider, with an empty cache), and the file had the same size.
const NO_DWARF: &str = "-gcflags=all=-dwarf=false";
/// Makes the compiler's garbage collection rare: a package takes a fifth more memory.
const GOGC: &str = "400";
/// Lower priority than rustc, which runs in parallel: Rust has long chains of crates, and Go packages use the idle time.
const NICE: &str = "5";

/// Builds missing programs. One command builds a group, so that shared packages are checked once and linking overlaps with compilation. Two
/// groups run in parallel, because the link of a large program uses one core.
fn build_all(missing: Vec<Missing>) -> Result<()> {
    if Command::new("go").arg("version").output().is_err() {
        bail!(
            "Go is not on PATH; it is needed to build {} and its like from source",
            missing[0].0.name
        );
    }
    let mut groups: Vec<Vec<Missing>> = Vec::new();
    for one in missing {
        match groups
            .iter_mut()
            .find(|group| group[0].0.group == one.0.group)
        {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    let queue = Mutex::new(groups.into_iter());
    let work = || -> Result<()> {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(group) = next else { return Ok(()) };
            build(&group)?;
        }
    };
    thread::scope(|scope| {
        let other = scope.spawn(work);
        work().and(
            other
                .join()
                .unwrap_or_else(|_| bail!("building tools has a fault of its own")),
        )
    })
}

fn build(group: &[Missing]) -> Result<()> {
    let (first, pin, path) = &group[0];
    let names = group
        .iter()
        .map(|(tool, ..)| tool.name)
        .collect::<Vec<_>>()
        .join(", ");
    let step = report::step("tools", names.as_str());
    let directory = path.parent().context("a program lies in a directory")?;
    let staging = directory.join(".partial");
    cache::remove(&staging)?;
    cache::create_dir(&staging)?;
    run(Command::new("nice")
        .current_dir(&pin.directory)
        .args([
            "-n",
            NICE,
            "go",
            "build",
            "-trimpath",
            "-buildvcs=false",
            "-mod=readonly",
            NO_DWARF,
            "-tags",
            if first.needs_c() { GITEA_TAGS } else { "" },
            "-ldflags",
            &pin.flags,
            "-o",
        ])
        .arg(&staging)
        .args(group.iter().map(|(tool, ..)| &tool.package))
        .env("CGO_ENABLED", if first.needs_c() { "1" } else { "0" })
        .env("GOGC", GOGC)
        .env("GOWORK", "off"))
    .with_context(|| {
        format!(
            "cannot build {names} {}; run it again, what is built stays",
            pin.version
        )
    })?;
    for folder in GITEA_DATA.iter().filter(|_| first.needs_c()) {
        copy_data(pin, first.module, folder, directory)?;
    }
    let mut built: Vec<_> = fs::read_dir(&staging)?.collect::<std::io::Result<_>>()?;
    for (tool, _, path) in group {
        let name = executable(tool);
        let index = built.iter().position(|entry| entry.file_name() == name);
        let index = index.with_context(|| format!("go built no {name}"))?;
        fs::rename(built.swap_remove(index).path(), path)
            .with_context(|| format!("cannot move {name} to {}", path.display()))?;
    }
    cache::remove(&staging)?;
    step.done();
    Ok(())
}

/// Copies a folder of a module beside the program, where it can be deleted: Go's module cache is read-only.
fn copy_data(pin: &Pin, module: &str, folder: &str, to: &Path) -> Result<()> {
    let mut list = Command::new("go");
    list.current_dir(&pin.directory)
        .args(["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module])
        .env("GOWORK", "off");
    let output = list.output().context("cannot run go")?;
    let from = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()).join(folder);
    cache::remove(&to.join(folder))?;
    run(Command::new("cp").arg("-r").arg(&from).arg(to))
        .with_context(|| format!("cannot copy {}", from.display()))?;
    run(Command::new("chmod")
        .args(["-R", "u+w"])
        .arg(to.join(folder)))
    .map(drop)
}

/// Go's name for the executable: the last part of the package path that is no version.
fn executable(tool: &Tool) -> &str {
    let is_version = |part: &str| {
        part.strip_prefix('v')
            .is_some_and(|rest| rest.parse::<u32>().is_ok())
    };
    tool.package
        .rsplit('/')
        .find(|part| !is_version(part))
        .unwrap_or(tool.name)
}

/// This machine's architecture in the notation of Go, Debian and image formats.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::{TOOLS, kubernetes_stamp, version_of};

    #[test]
    fn versions_are_read_from_either_form_of_require() {
        let text = "module m\n\nrequire a.b/c v1.2.3\n\nrequire (\n\tk8s.io/kubernetes v1.34.4\n\tx/y v0.1.0 // indirect\n)\n";
        assert_eq!(version_of(text, "a.b/c").as_deref(), Some("v1.2.3"));
        assert_eq!(
            version_of(text, "k8s.io/kubernetes").as_deref(),
            Some("v1.34.4")
        );
        assert_eq!(version_of(text, "k8s.io").as_deref(), None);
    }

    #[test]
    fn programs_are_found_by_the_names_that_go_gives_them() {
        let name =
            |name: &str| super::executable(TOOLS.iter().find(|tool| tool.name == name).unwrap());
        let names = [
            name("etcd"),
            name("kubelet"),
            name("terraform"),
            name("gitea"),
        ];
        assert_eq!(names, ["server", "kubelet", "terraform", "gitea"]);
    }

    #[test]
    fn every_tool_has_a_pinned_version() {
        for tool in TOOLS.iter() {
            assert!(
                super::Pin::read(tool).is_ok(),
                "{} is not pinned",
                tool.name
            );
        }
    }

    #[test]
    fn kubernetes_reports_the_pinned_version() {
        let stamp = kubernetes_stamp("v1.34.4");
        assert!(
            stamp.contains("gitVersion=v1.34.4") && stamp.contains("gitMinor=34"),
            "{stamp}"
        );
    }
}
