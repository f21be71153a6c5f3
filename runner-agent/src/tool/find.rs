//! Finds the tool in the directories of the image and of a shared cache.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crds::{Failure, FailureClass, Tool, ToolName, reason};
use sha2::{Digest, Sha256};

use tool_versions::{Decision, Defaults, Kind, Version, Why, Wish, decide};

use crate::classify::simple;

/// A tool that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The tool.
    pub name: ToolName,
    /// Its version.
    pub version: Version,
    /// The executable.
    pub binary: PathBuf,
    /// Why this version: `from .opentofu-version`.
    pub why: String,
    /// What was seen and does not count, for people.
    pub notes: Vec<String>,
}

impl Found {
    /// `OpenTofu 1.10.6`.
    pub fn title(&self) -> String {
        format!("{} {}", self.name.as_str(), self.version)
    }

    /// Whether a plan reads `import` blocks.
    pub fn has_import_blocks(&self) -> bool {
        match self.name {
            ToolName::OpenTofu => true,
            ToolName::Terraform => self.version.at_least(1, 5),
            ToolName::Unknown => false,
        }
    }

    /// Whether `init` speaks JSON.
    pub fn has_init_json(&self) -> bool {
        match self.name {
            ToolName::OpenTofu => self.version.at_least(1, 7),
            ToolName::Terraform => self.version.at_least(1, 9),
            ToolName::Unknown => false,
        }
    }
}

/// A version that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtHand {
    /// The tool.
    pub name: ToolName,
    /// Its version.
    pub version: Version,
    /// The executable.
    pub binary: PathBuf,
}

/// A tool that was found, with what was asked for.
#[derive(Clone, Debug)]
pub(super) struct Resolved {
    /// The tool.
    pub found: Found,
    /// What was asked for, and why.
    pub decision: Decision,
}

/// Finds the tool for a stack in directories of tools. `root` is the top of the source, above which nothing is looked for.
pub fn find(tool: &Tool, stack: &Path, root: &Path, dirs: &[PathBuf]) -> Result<Found, Failure> {
    let at_hand: Vec<_> = [ToolName::OpenTofu, ToolName::Terraform].into_iter().flat_map(|name| at_hand(name, dirs)).collect();
    resolve(tool, "spec.tool.version", stack, root, &at_hand).map(|resolved| resolved.found)
}

/// Chooses the tool for a stack: what the run (`origin` says where), the version files and the code ask for, of what is at hand.
pub(super) fn resolve(tool: &Tool, origin: &str, stack: &Path, root: &Path, at_hand: &[AtHand]) -> Result<Resolved, Failure> {
    let decision = decided(tool, origin, stack, root).map_err(failed)?;
    let name = match decision.tool {
        tool_versions::Tool::Terraform => ToolName::Terraform,
        tool_versions::Tool::OpenTofu | tool_versions::Tool::Terragrunt => ToolName::OpenTofu,
    };
    let of_tool: Vec<_> = at_hand.iter().filter(|one| one.name == name).collect();
    let versions = || of_tool.iter().map(|one| &one.version);
    let chosen = decision.choose(versions()).cloned();
    let Some(one) = chosen.and_then(|chosen| of_tool.iter().find(|one| one.version == chosen)) else {
        return Err(failed(decision.unmet(versions(), "versions at hand")));
    };
    let why = if decision.why == Why::Nothing { "the newest at hand".to_owned() } else { decision.why.to_string() };
    let found = Found { name, version: one.version.clone(), binary: one.binary.clone(), why, notes: decision.notes.clone() };
    Ok(Resolved { found, decision })
}

fn failed(error: tool_versions::Error) -> Failure {
    let class = match error.kind {
        Kind::Configuration => FailureClass::Configuration,
        Kind::Unavailable => FailureClass::Transient,
        Kind::Integrity => FailureClass::Integrity,
        Kind::Storage => FailureClass::Internal,
    };
    simple(class, reason::TOOL_NOT_FOUND, error.text)
}

/// What is asked for. Terragrunt is not run yet: its directories are those of the tool beneath it.
fn decided(tool: &Tool, origin: &str, stack: &Path, root: &Path) -> Result<Decision, tool_versions::Error> {
    let name = tool.name.and_then(known).or_else(|| evidence(stack, root).and_then(known));
    let wish =
        Wish { tool: Some(name.unwrap_or(Defaults::default().tool)), version: tool.version.clone(), origin: origin.to_owned() };
    decide(&wish, stack, root, &Defaults::default())
}

fn known(name: ToolName) -> Option<tool_versions::Tool> {
    match name {
        ToolName::OpenTofu => Some(tool_versions::Tool::OpenTofu),
        ToolName::Terraform => Some(tool_versions::Tool::Terraform),
        // An attempt of such a run is not adopted; in a folder of one's own nobody can ask for such a tool.
        ToolName::Unknown => None,
    }
}

/// What the code says about which tool it is for, if it says anything that can be read.
pub fn evidence(stack: &Path, root: &Path) -> Option<ToolName> {
    match tool_versions::decide::plain_tool_of(stack, root).ok()?? {
        (tool_versions::Tool::OpenTofu, _) => Some(ToolName::OpenTofu),
        (tool_versions::Tool::Terraform, _) => Some(ToolName::Terraform),
        (tool_versions::Tool::Terragrunt, _) => None,
    }
}

/// The versions of a tool in directories of tools, `DIRECTORY/VERSION/BINARY`.
pub(super) fn at_hand(name: ToolName, dirs: &[PathBuf]) -> Vec<AtHand> {
    let mut found = Vec::new();
    for dir in dirs {
        for entry in fs::read_dir(dir.join(name.directory())).into_iter().flatten().flatten() {
            let Some(version) = entry.file_name().to_str().and_then(|text| text.parse().ok()) else { continue };
            let binary = entry.path().join(name.binary());
            if binary.is_file() {
                found.push(AtHand { name, version, binary });
            }
        }
    }
    found
}

/// What a file is as long as nobody writes to it: its content cannot change without its change time, which nobody can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
    modified: (i64, i64),
}

impl Stamp {
    /// The stamp of a file.
    pub fn of(path: &Path) -> io::Result<Self> {
        let meta = fs::metadata(path)?;
        Ok(Self {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            changed: (meta.ctime(), meta.ctime_nsec()),
            modified: (meta.mtime(), meta.mtime_nsec()),
        })
    }
}

/// SHA-256 of a file, read as a stream.
pub fn digest(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 128 * 1024];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(crate::hex(&hasher.finalize()));
        }
        hasher.update(&buffer[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_code_says_which_tool() {
        let dir = tempfile::tempdir().unwrap();
        let (root, tools) = (dir.path().join("src"), dir.path().join("tools"));
        for version in ["1.9.1", "1.10.6", "1.11.0-rc1"] {
            put(tools.join("opentofu").join(version).join("tofu"), "");
        }
        put(tools.join("opentofu/1.12.0/README"), "no binary");
        put(tools.join("terraform/1.11.4/terraform"), "");
        let stack = root.join("a/b");
        put(stack.join("main.tf"), "");
        let at_hand = [dir.path().join("missing"), tools];
        let found = |tool: &Tool| find(tool, &stack, &root, &at_hand);

        let plain = found(&Tool::default()).unwrap();
        assert_eq!((plain.title().as_str(), plain.why.as_str()), ("OpenTofu 1.10.6", "the newest at hand"));
        put(root.join(".opentofu-version"), "# pinned\n\n ~> 1.9.0 # until June\n");
        let pinned = found(&Tool::default()).unwrap();
        assert_eq!((pinned.title().as_str(), pinned.why.as_str()), ("OpenTofu 1.9.1", "from .opentofu-version"));
        put(root.join("a/.terraform-version"), "1.11.4\n");
        let nearer = found(&Tool::default()).unwrap();
        assert_eq!((nearer.title().as_str(), nearer.why.as_str()), ("Terraform 1.11.4", "from a/.terraform-version"));
        let named = found(&Tool { name: Some(ToolName::OpenTofu), version: Some("1.11.0-rc1".into()) }).unwrap();
        assert_eq!(named.title(), "OpenTofu 1.11.0-rc1");

        let none = found(&Tool { name: Some(ToolName::OpenTofu), version: Some("~> 3.0".into()) }).unwrap_err();
        assert_eq!(none.reason, reason::TOOL_NOT_FOUND);
        assert_eq!(none.message, "no OpenTofu `~> 3.0` (from spec.tool.version); versions at hand: 1.11.0-rc1, 1.10.6, 1.9.1");
        put(dir.path().join(".opentofu-version"), "9.9.9");
        fs::remove_file(root.join(".opentofu-version")).unwrap();
        fs::remove_file(root.join("a/.terraform-version")).unwrap();
        assert_eq!(found(&Tool::default()).unwrap().why, "the newest at hand", "nothing above the source is read");
    }
}
