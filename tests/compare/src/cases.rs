//! Cases: folders with code, and the surrounding files that they reference.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// Left by a tool or Pawl: not code, and possibly a reference to a state in use.
const LEFT_BEHIND: [&str; 4] = [".git", ".terraform", ".terragrunt-cache", ".pawl"];

/// One configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Name for people: the given folder, and the path from there.
    pub name: String,
    /// The folder that contains the whole case.
    pub top: PathBuf,
    /// Its own folder, at or below `top`.
    pub folder: PathBuf,
    /// Whether it is a Terragrunt unit.
    pub unit: bool,
}

/// All cases at or below a folder, sorted by name.
pub fn find(called: &Path, top: &Path) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    let mut folders = vec![top.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = entries(&folder)?;
        let has = |is: fn(&str) -> bool| {
            entries
                .iter()
                .any(|(path, kind)| !kind.is_dir() && is(name_of(path)))
        };
        let unit = has(|name| name == "terragrunt.hcl");
        if unit || has(is_code) {
            let name = called.join(folder.strip_prefix(top)?).display().to_string();
            cases.push(Case {
                name: name.trim_end_matches('/').to_owned(),
                top: top.to_owned(),
                folder: folder.clone(),
                unit,
            });
        }
        let below = entries
            .into_iter()
            .filter(|(path, kind)| kind.is_dir() && !name_of(path).starts_with('.'));
        folders.extend(below.map(|(path, _)| path));
    }
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(cases)
}

fn is_code(name: &str) -> bool {
    [".tf", ".tofu", ".tf.json", ".tofu.json"]
        .iter()
        .any(|end| name.ends_with(end))
}

fn name_of(path: &Path) -> &str {
    path.file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default()
}

fn entries(folder: &Path) -> Result<Vec<(PathBuf, fs::FileType)>> {
    let listed = fs::read_dir(folder).and_then(|entries| {
        entries
            .map(|entry| entry.and_then(|entry| entry.file_type().map(|kind| (entry.path(), kind))))
            .collect()
    });
    listed.with_context(|| format!("cannot read {}", folder.display()))
}

/// The folder to copy for a case: the nearest parent that contains everything that its code references by `..`.
pub fn extent(case: &Case) -> Result<PathBuf> {
    let mut extent = case.folder.clone();
    loop {
        let levels = reach(&extent)?;
        let above = extent
            .ancestors()
            .nth(levels)
            .filter(|folder| folder.starts_with(&case.top));
        let wider = above.unwrap_or(&case.top).to_owned();
        if wider == extent {
            return Ok(extent);
        }
        extent = wider;
    }
}

/// The highest number of levels above a folder that code and links at or below it reference.
fn reach(folder: &Path) -> Result<usize> {
    let mut most = 0;
    for (path, kind) in entries(folder)? {
        let name = name_of(&path);
        if LEFT_BEHIND.contains(&name) {
            continue;
        }
        let levels = if kind.is_dir() {
            reach(&path)?.saturating_sub(1)
        } else if kind.is_symlink() {
            climbs(&fs::read_link(&path)?.display().to_string())
        } else if is_code(name) || path.extension().is_some_and(|end| end == "hcl") {
            climbs(&String::from_utf8_lossy(&fs::read(&path)?))
        } else {
            0
        };
        most = most.max(levels);
    }
    Ok(most)
}

/// Number of levels that a text climbs: the longest `../..` in it.
fn climbs(text: &str) -> usize {
    if text.contains("find_in_parent_folders") {
        return usize::MAX;
    }
    let words = text.split(|c| !matches!(c, '.' | '/'));
    words
        .map(|word| word.split('/').filter(|part| *part == "..").count())
        .max()
        .unwrap_or_default()
}

/// The units whose outputs a unit reads, by literal paths in its file, and their own dependencies first.
pub fn dependencies(unit: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    depends(unit, &mut vec![unit.to_owned()], &mut all)?;
    Ok(all)
}

fn depends(unit: &Path, seen: &mut Vec<PathBuf>, all: &mut Vec<PathBuf>) -> Result<()> {
    let file = unit.join("terragrunt.hcl");
    let text =
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    for line in text
        .lines()
        .filter(|line| line.trim_start().starts_with("config_path"))
    {
        let named = line.split('"').nth(1).map(|path| unit.join(path));
        // Terragrunt reports a missing one.
        let Some(other) = named
            .and_then(|path| path.canonicalize().ok())
            .filter(|path| path.join("terragrunt.hcl").is_file())
        else {
            continue;
        };
        if !seen.contains(&other) {
            seen.push(other.clone());
            depends(&other, seen, all)?;
            all.push(other);
        }
    }
    Ok(())
}

/// Copies a folder: preserves links and modes, and omits remains of earlier work.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for (path, kind) in entries(from)? {
        let name = name_of(&path);
        let target = to.join(path.file_name().unwrap_or_default());
        if LEFT_BEHIND.contains(&name) {
            continue;
        }
        if kind.is_dir() {
            copy(&path, &target)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&path)?, &target)
                .with_context(|| format!("cannot make {}", target.display()))?;
        } else if kind.is_file() {
            fs::copy(&path, &target).with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    Ok(())
}

/// All files and links below a folder, as relative paths.
pub fn files(folder: &Path) -> Result<Vec<String>> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for (path, kind) in entries(&next)? {
            if kind.is_dir() {
                folders.push(path);
            } else {
                files.push(path.strip_prefix(folder)?.display().to_string());
            }
        }
    }
    files.sort();
    Ok(files)
}
