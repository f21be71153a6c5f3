//! The programs a cluster is made of, built from Go modules that `tests/tools` pins.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::cache::{self, Cache};
use super::command::run;
use super::report;

/// One program: what it is called, the directory of `tests/tools` that pins it, and the package to build.
#[derive(Debug)]
struct Tool {
    name: &'static str,
    group: &'static str,
    package: &'static str,
    /// The module whose pinned version the program reports as its own.
    module: &'static str,
    /// Linker flags that stamp that version into the program.
    stamp: fn(&str) -> String,
}

const KUBERNETES: &str = "k8s.io/kubernetes";

const fn kubernetes(name: &'static str, package: &'static str) -> Tool {
    Tool { name, group: "kube", package, module: KUBERNETES, stamp: kubernetes_stamp }
}

/// OpenTofu as the group of that name pins it.
const fn tofu(name: &'static str) -> Tool {
    Tool {
        name,
        group: name,
        package: "github.com/opentofu/opentofu/cmd/tofu",
        module: "github.com/opentofu/opentofu",
        stamp: |_| "-X github.com/opentofu/opentofu/version.dev=no".to_owned(),
    }
}

fn kubernetes_stamp(version: &str) -> String {
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let package = "k8s.io/component-base/version";
    format!("-X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}")
}

/// In the order they are needed: an API server first, what runs in pods last.
const TOOLS: &[Tool] = &[
    Tool {
        name: "etcd",
        group: "kube",
        package: "go.etcd.io/etcd/server/v3",
        module: "go.etcd.io/etcd/server/v3",
        stamp: |_| String::new(),
    },
    kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    kubernetes("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    kubernetes("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    kubernetes("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    kubernetes("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    kubernetes("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
    Tool { name: "coredns", group: "coredns", package: ".", module: "github.com/coredns/coredns", stamp: |_| String::new() },
    Tool {
        name: "helm",
        group: "helm",
        package: "helm.sh/helm/v3/cmd/helm",
        module: "helm.sh/helm/v3",
        stamp: |version| format!("-X helm.sh/helm/v3/internal/version.version={version}"),
    },
    tofu("tofu"),
    Tool {
        name: "terraform-provider-time",
        group: "provider",
        package: "github.com/hashicorp/terraform-provider-time",
        module: "github.com/hashicorp/terraform-provider-time",
        stamp: |version| format!("-X main.version={}", version.trim_start_matches('v')),
    },
    Tool {
        name: "versitygw",
        group: "s3",
        package: "github.com/versity/versitygw/cmd/versitygw",
        module: "github.com/versity/versitygw",
        stamp: |_| String::new(),
    },
    Tool {
        name: "terraform",
        group: "terraform",
        package: "github.com/hashicorp/terraform",
        module: "github.com/hashicorp/terraform",
        stamp: |_| String::new(),
    },
    // Other versions, for a mirror of releases; only who asks for one by its name has it built.
    tofu("tofu-1.9.4"),
    tofu("tofu-1.12.6"),
    Tool {
        name: "terraform-1.8.5",
        group: "terraform-1.8.5",
        package: "github.com/hashicorp/terraform",
        module: "github.com/hashicorp/terraform",
        stamp: |_| "-X github.com/hashicorp/terraform/version.dev=no".to_owned(),
    },
];

/// An S3-compatible server, for the datastore's store.
pub const BUCKETS: &[&str] = &["versitygw"];
/// An API server without nodes.
pub const CONTROL_PLANE: &[&str] = &["etcd", "kube-apiserver", "kubectl"];
/// A whole node, and what installs the chart.
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
/// What the test image of the runner holds besides the agent.
pub const IN_PODS: &[&str] = &["tofu", "terraform-provider-time", "terraform"];

/// Programs that are there, by name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Toolset {
    paths: BTreeMap<String, PathBuf>,
    versions: BTreeMap<String, String>,
}

impl Toolset {
    /// Makes these programs available: from `KUBEBUILDER_ASSETS`, from the cache, or built from source.
    ///
    /// It may be killed at any time and called again; programs that are built stay.
    pub fn ensure(names: &[&str]) -> Result<Self> {
        let cache = Cache::open()?;
        let (set, mut missing) = Self::look(names, &cache)?;
        if !missing.is_empty() {
            let _lock = cache.lock()?;
            missing.retain(|(_, _, path)| !path.exists());
            report::note(
                "tools",
                &format!(
                    "{} to build from source, minutes each the first time; kept in {}, safe to interrupt",
                    missing.len(),
                    cache.path("bin").display()
                ),
            );
            for (tool, pin, path) in missing {
                build(tool, &pin, &path)?;
            }
        }
        Ok(set)
    }

    /// These programs, if all of them are there; nothing is built.
    pub fn at_hand(names: &[&str]) -> Result<Option<Self>> {
        let (set, missing) = Self::look(names, &Cache::open()?)?;
        Ok(missing.is_empty().then_some(set))
    }

    /// Where these programs are or will be, and those that are still to be built.
    fn look(names: &[&str], cache: &Cache) -> Result<(Self, Vec<Missing>)> {
        let mut set = Self::default();
        let mut missing = Vec::new();
        for name in names {
            let tool = TOOLS.iter().find(|tool| tool.name == *name).with_context(|| format!("unknown tool {name}"))?;
            let pin = Pin::read(tool)?;
            set.versions.insert(tool.name.to_owned(), pin.version.trim_start_matches('v').to_owned());
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

    /// The path of a program of this set.
    pub fn path(&self, name: &str) -> Result<&Path> {
        self.paths
            .get(name)
            .map(PathBuf::as_path)
            .with_context(|| format!("{name} was not asked for when the tools were made ready"))
    }

    /// The version of a program of this set, without a leading `v`.
    pub fn version(&self, name: &str) -> Result<&str> {
        self.versions.get(name).map(String::as_str).with_context(|| format!("{name} has no known version"))
    }

    /// Puts links to all programs of this set into `directory`, to be added to `PATH`.
    pub fn link_into(&self, directory: &Path) -> Result<()> {
        cache::create_dir(directory)?;
        for (name, path) in &self.paths {
            let link = directory.join(name);
            cache::remove(&link)?;
            std::os::unix::fs::symlink(path, &link).with_context(|| format!("cannot link {}", link.display()))?;
        }
        Ok(())
    }
}

/// A program that is still to be built.
type Missing = (&'static Tool, Pin, PathBuf);

/// What a tool is built from.
#[derive(Debug)]
struct Pin {
    directory: PathBuf,
    version: String,
    flags: String,
    key: String,
}

impl Pin {
    fn read(tool: &Tool) -> Result<Self> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools").join(tool.group);
        let read = |name: &str| {
            let path = directory.join(name);
            match fs::read_to_string(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
                other => other.with_context(|| format!("cannot read {}", path.display())),
            }
        };
        let go_mod = read("go.mod")?;
        let version = version_of(&go_mod, tool.module)
            .with_context(|| format!("{} does not require {}", directory.join("go.mod").display(), tool.module))?;
        let flags = format!("-s -w {}", (tool.stamp)(&version)).trim_end().to_owned();
        // The flags of the whole group, so that its programs lie in one directory.
        let stamps: Vec<String> = TOOLS
            .iter()
            .filter(|other| other.group == tool.group)
            .map(|other| (other.stamp)(&version_of(&go_mod, other.module).unwrap_or_default()))
            .collect();
        let key = cache::key([go_mod, read("go.sum")?, read("tools.go")?, read("main.go")?, stamps.join(" ")]);
        Ok(Self { directory, version, flags, key })
    }
}

/// The version that a `go.mod` requires of a module.
fn version_of(go_mod: &str, module: &str) -> Option<String> {
    go_mod.lines().find_map(|line| {
        let line = line.trim();
        let mut words = line.strip_prefix("require ").unwrap_or(line).split_whitespace();
        (words.next() == Some(module)).then(|| words.next().map(str::to_owned)).flatten()
    })
}

fn from_assets(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os("KUBEBUILDER_ASSETS")?).join(name);
    (CONTROL_PLANE.contains(&name) && path.exists()).then_some(path)
}

/// Debug data that the linker would leave out is not made. Without it, and with [`GOGC`], a build took 16 % less of the processors
/// (54 s in place of 64 s for the provider, with an empty cache), and a file of the same size came of it.
const NO_DWARF: &str = "-gcflags=all=-dwarf=false";
/// The compiler collects its garbage seldom: a package takes a fifth more memory.
const GOGC: &str = "400";

fn build(tool: &Tool, pin: &Pin, path: &Path) -> Result<()> {
    if Command::new("go").arg("version").output().is_err() {
        bail!("Go is not on PATH; it is needed to build {} and its like from source", tool.name);
    }
    let step = report::step("tools", tool.name);
    Cache::install(path, |temporary| {
        run(Command::new("go")
            .current_dir(&pin.directory)
            .args(["build", "-trimpath", "-buildvcs=false", "-mod=readonly", NO_DWARF, "-ldflags", &pin.flags, "-o"])
            .arg(temporary)
            .arg(tool.package)
            .env("CGO_ENABLED", "0")
            .env("GOGC", GOGC)
            .env("GOWORK", "off"))
        .map(drop)
    })
    .with_context(|| format!("cannot build {} {}; run it again, what is built stays", tool.name, pin.version))?;
    step.done();
    Ok(())
}

/// This machine's architecture in Go's, Debian's and the image formats' words.
pub fn architecture() -> String {
    tool_versions::Platform::here().arch
}

#[cfg(test)]
mod tests {
    use super::{TOOLS, kubernetes_stamp, version_of};

    #[test]
    fn versions_are_read_from_either_form_of_require() {
        let text = "module m\n\nrequire a.b/c v1.2.3\n\nrequire (\n\tk8s.io/kubernetes v1.34.4\n\tx/y v0.1.0 // indirect\n)\n";
        assert_eq!(version_of(text, "a.b/c").as_deref(), Some("v1.2.3"));
        assert_eq!(version_of(text, "k8s.io/kubernetes").as_deref(), Some("v1.34.4"));
        assert_eq!(version_of(text, "k8s.io").as_deref(), None);
    }

    #[test]
    fn every_tool_has_a_pinned_version() {
        for tool in TOOLS {
            assert!(super::Pin::read(tool).is_ok(), "{} is not pinned", tool.name);
        }
    }

    #[test]
    fn kubernetes_reports_the_pinned_version() {
        let stamp = kubernetes_stamp("v1.34.4");
        assert!(stamp.contains("gitVersion=v1.34.4") && stamp.contains("gitMinor=34"), "{stamp}");
    }
}
