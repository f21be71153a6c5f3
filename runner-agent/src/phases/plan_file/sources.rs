//! The configuration that a plan is made from. A plan file has a copy of it, and an apply reads only the copy.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _},
    path::{Component, Path, PathBuf},
};

use serde::Deserialize;

use super::{
    Checked, Unread,
    archive::{Archive, PLAN},
    state::{PRIOR, STATE},
};
use crate::{backend::Backend, files, plan_checksum::modules};

const COPY: &str = "tfconfig/m-";
pub(super) const LIST: &str = "tfconfig/modules.json";
/// The tool compares it with the stack's, which the checksum covers.
const LOCKS: &str = ".terraform.lock.hcl";
/// Suffixes of configuration files: of both tools, and of OpenTofu in their place.
const SUFFIXES: [(&str, &str); 2] = [(".tf", ".tofu"), (".tf.json", ".tofu.json")];

/// The files of the stack and its modules.
#[derive(Debug)]
pub(in crate::phases) struct Sources {
    pub(super) is_tofu: bool,
    /// As `init` recorded it.
    pub(super) backend: Backend,
    /// By the tools' key of a module.
    modules: BTreeMap<String, Module>,
}

#[derive(Debug)]
struct Module {
    /// As the tools write it.
    dir: PathBuf,
    /// Digests by name; without one, the file cannot be read.
    files: BTreeMap<String, Option<String>>,
}

/// A module in the list of the plan file. The tools would also take `dir` for `Dir`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
struct Listed {
    key: String,
    dir: PathBuf,
    #[serde(default, rename = "Source")]
    _source: String,
    #[serde(default, rename = "Version")]
    _version: String,
}

/// Whether the tools read a file of this name.
fn is_configuration(name: &str) -> bool {
    let has = |suffix: &&str| name.ends_with(suffix);
    let ignored = name.starts_with('.')
        || name.ends_with('~')
        || name.starts_with('#') && name.ends_with('#');
    !ignored && SUFFIXES.iter().any(|(one, other)| has(one) || has(other))
}

fn clean(path: &Path) -> PathBuf {
    path.components()
        .filter(|part| *part != Component::CurDir)
        .collect()
}

impl Module {
    fn of(root: &Path, dir: PathBuf) -> io::Result<Self> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(root.join(&dir))? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let path = entry.path();
            if !is_configuration(&name) || path.is_dir() {
                continue;
            }
            let digest = if path.is_file() {
                File::open(&path).and_then(files::digest).ok()
            } else {
                None
            };
            found.insert(name, digest);
        }
        Ok(Self { dir, files: found })
    }
}

impl Sources {
    /// Reads the files in `root`, where the tool runs, and of its modules as `init` recorded them in the directory of the stack.
    ///
    /// # Errors
    /// A directory cannot be read.
    pub(in crate::phases) fn of(root: &Path, stack: &Path, is_tofu: bool) -> io::Result<Self> {
        let mut found = BTreeMap::new();
        let own = (String::new(), PathBuf::from("."));
        let data = stack.join(".terraform");
        for (key, dir) in modules(&data).into_iter().chain([own]) {
            match Module::of(root, dir) {
                // A module that the stack no longer has.
                Err(error) if error.kind() == io::ErrorKind::NotFound && !key.is_empty() => {}
                module => drop(found.insert(key, module?)),
            }
        }
        Ok(Self {
            is_tofu,
            backend: Backend::read(stack)?,
            modules: found,
        })
    }

    /// Reads one file of the stack once more, which the agent has written or removed between two plans.
    pub(in crate::phases) fn reread(&mut self, root: &Path, name: &str) {
        let Some(stack) = self.modules.get_mut("") else {
            return;
        };
        let path = root.join(name);
        if path.is_file() {
            let digest = File::open(&path).and_then(files::digest).ok();
            stack.files.insert(name.to_owned(), digest);
        } else {
            stack.files.remove(name);
        }
    }

    /// Compares a plan file's copy with the files.
    pub(super) fn compare(&self, archive: &Archive<'_>) -> Checked<()> {
        let differs = |what: String| Err(super::Refused::Contradicted(what));
        let mut text = String::new();
        let (list, size) = archive.member(LIST)?;
        list.take(size)
            .read_to_string(&mut text)
            .map_err(Unread::from)?;
        let list: Vec<Listed> = serde_json::from_str(&text)
            .map_err(|error| Unread(format!("its list of modules cannot be read: {error}")))?;
        for Listed { key, dir, .. } in &list {
            let module = self.modules.get(key);
            if module.is_none_or(|module| clean(&module.dir) != clean(dir)) {
                return differs(format!(
                    "the module {key:?} of {}, which is another one in the stack or none",
                    dir.display()
                ));
            }
        }
        for name in archive.names() {
            let Some(copy) = name.strip_prefix(COPY) else {
                if [PLAN, STATE, PRIOR, LIST, LOCKS].contains(&name) {
                    continue;
                }
                return Err(Unread(format!("its {name:?} is not known to this release")).into());
            };
            let file = copy
                .rsplit_once('/')
                .and_then(|(key, file)| self.modules.get(key)?.files.get(file)?.as_ref());
            let digest = files::digest(archive.member(name)?.0).map_err(Unread::from)?;
            if file != Some(&digest) {
                return differs(format!(
                    "{copy:?}, which was not in the stack before the plan"
                ));
            }
        }
        for Listed { key, .. } in &list {
            let Some(module) = self.modules.get(key) else {
                continue;
            };
            let has = |file: &str| {
                let name = format!("{COPY}{key}/{file}");
                archive.names().any(|member| member == name)
            };
            if let Some(file) = module
                .files
                .keys()
                .find(|file| !has(file) && !self.is_unread(file, has))
            {
                return differs(format!(
                    "no {file:?} of the module {key:?}, which the stack has"
                ));
            }
        }
        Ok(())
    }

    /// Whether the tool leaves a file out: Terraform those of OpenTofu, and OpenTofu those with one of its own beside them.
    fn is_unread(&self, file: &str, has: impl Fn(&str) -> bool) -> bool {
        SUFFIXES.iter().any(|(shared, own)| {
            let beside = file.strip_suffix(shared).map(|stem| format!("{stem}{own}"));
            if self.is_tofu {
                beside.is_some_and(|beside| has(&beside))
            } else {
                file.ends_with(own)
            }
        })
    }
}
