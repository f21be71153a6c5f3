//! Finds the tool in the directories of the image and of a shared cache.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crds::{Failure, FailureClass, Tool, ToolName, reason};
use sha2::{Digest, Sha256};

use super::version::{Constraints, Version};
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

/// Finds the tool for a stack. `root` is the top of the source, above which nothing is looked for.
pub fn find(tool: &Tool, stack: &Path, root: &Path, dirs: &[PathBuf]) -> Result<Found, Failure> {
    let name = tool.name.unwrap_or_else(|| detect(stack, root));
    let file = match name {
        ToolName::OpenTofu => ".opentofu-version",
        ToolName::Terraform => ".terraform-version",
        // An attempt of such a run is not adopted; in a folder of one's own nobody can ask for such a tool.
        ToolName::Unknown => "",
    };
    let (asked, why) = match (&tool.version, version_file(stack, root, file)) {
        (Some(version), _) => (version.clone(), "from spec.tool.version".to_owned()),
        (None, Some((version, path))) => (version, format!("from {}", path.strip_prefix(root).unwrap_or(&path).display())),
        (None, None) => ("latest".to_owned(), "the newest at hand".to_owned()),
    };
    let constraints: Constraints = asked
        .parse()
        .map_err(|e| simple(FailureClass::Configuration, reason::TOOL_NOT_FOUND, format!("{} {why}: {e}", name.as_str())))?;
    let at_hand = versions(name, dirs);
    let newest = constraints.newest(at_hand.iter().map(|(version, _)| version)).cloned();
    if let Some((version, binary)) = newest.and_then(|version| at_hand.iter().find(|(v, _)| *v == version)) {
        return Ok(Found { name, version: version.clone(), binary: binary.clone(), why });
    }
    let mut list: Vec<_> = at_hand.iter().map(|(version, _)| version).collect();
    list.sort();
    list.dedup();
    let list: Vec<_> = list.iter().rev().take(12).map(ToString::to_string).collect();
    let list = if list.is_empty() { "none".to_owned() } else { list.join(", ") };
    Err(simple(
        FailureClass::Configuration,
        reason::TOOL_NOT_FOUND,
        format!("no {} `{asked}` ({why}); versions at hand: {list}", name.as_str()),
    ))
}

/// Directories from the stack up to the top of the source.
fn upward<'a>(stack: &'a Path, root: &'a Path) -> impl Iterator<Item = &'a Path> {
    stack.ancestors().take_while(move |dir| dir.starts_with(root))
}

fn detect(stack: &Path, root: &Path) -> ToolName {
    evidence(stack, root).unwrap_or(ToolName::OpenTofu)
}

/// What the code says about which tool it is for, if it says anything.
pub fn evidence(stack: &Path, root: &Path) -> Option<ToolName> {
    let tofu_code = fs::read_dir(stack).into_iter().flatten().flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.ends_with(".tofu") || name.ends_with(".tofu.json")
    });
    if tofu_code {
        return Some(ToolName::OpenTofu);
    }
    for dir in upward(stack, root) {
        if dir.join(".opentofu-version").is_file() {
            return Some(ToolName::OpenTofu);
        }
        if dir.join(".terraform-version").is_file() {
            return Some(ToolName::Terraform);
        }
    }
    None
}

fn version_file(stack: &Path, root: &Path, name: &str) -> Option<(String, PathBuf)> {
    upward(stack, root).map(|dir| dir.join(name)).find_map(|path| {
        let mut text = String::new();
        File::open(&path).ok()?.take(4096).read_to_string(&mut text).ok()?;
        let line = text.lines().map(|l| l.split('#').next().unwrap_or_default().trim()).find(|l| !l.is_empty())?;
        Some((line.to_owned(), path))
    })
}

fn versions(name: ToolName, dirs: &[PathBuf]) -> Vec<(Version, PathBuf)> {
    let mut found = Vec::new();
    for dir in dirs {
        for entry in fs::read_dir(dir.join(name.directory())).into_iter().flatten().flatten() {
            let Some(version) = entry.file_name().to_str().and_then(|text| text.parse().ok()) else { continue };
            let binary = entry.path().join(name.binary());
            if binary.is_file() {
                found.push((version, binary));
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
