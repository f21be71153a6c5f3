//! Lists of versions as the projects write them, made from what there is in a directory.

use std::path::Path;

use anyhow::Result;
use serde_json::{Map, Value, json};
use tool_versions::Version;

use super::names;

/// HashiCorp's `terraform/index.json`.
pub(super) fn hashicorp(root: &Path) -> Result<Value> {
    let top = root.join("terraform");
    let mut versions = Map::new();
    for version in names(&top)?.into_iter().filter(|name| top.join(name).is_dir()) {
        let sums = format!("terraform_{version}_SHA256SUMS");
        let files = names(&top.join(&version))?;
        let builds: Vec<_> = files.iter().filter_map(|file| build(&version, file)).collect();
        let entry = json!({
            "builds": builds, "name": "terraform", "shasums": sums, "shasums_signature": format!("{sums}.sig"),
            "shasums_signatures": [format!("{sums}.72D7468F.sig"), format!("{sums}.sig")], "version": version,
        });
        versions.insert(version, entry);
    }
    Ok(json!({"name": "terraform", "versions": versions}))
}

fn build(version: &str, file: &str) -> Option<Value> {
    let (os, arch) = file.strip_prefix(&format!("terraform_{version}_"))?.strip_suffix(".zip")?.split_once('_')?;
    // The project's own address, as in a copy of its files.
    let url = format!("https://releases.hashicorp.com/terraform/{version}/{file}");
    Some(json!({"arch": arch, "filename": file, "name": "terraform", "os": os, "url": url, "version": version}))
}

/// OpenTofu's `tofu/api.json`.
pub(super) fn opentofu(root: &Path) -> Result<Value> {
    let top = root.join("opentofu/opentofu/releases/download");
    let mut versions = Vec::new();
    for (version, tag) in tags(&top)? {
        versions.push(json!({"id": version.to_string(), "files": names(&top.join(tag))?}));
    }
    Ok(json!({"versions": versions}))
}

/// A page of GitHub's API: the releases of a repository, newest first. Beyond the last page there is an empty one.
pub(super) fn github(root: &Path, repository: &str, page: usize, per_page: usize) -> Result<Value> {
    let top = root.join(repository).join("releases/download");
    let mut releases = Vec::new();
    for (number, (version, tag)) in (1_u32..).zip(tags(&top)?).skip(page.saturating_sub(1) * per_page).take(per_page) {
        let asset = |name: &String| json!({"name": name, "state": "uploaded", "browser_download_url": format!("https://github.com/{repository}/releases/download/{tag}/{name}")});
        let assets: Vec<_> = names(&top.join(&tag))?.iter().map(asset).collect();
        releases.push(json!({
            "id": number, "url": format!("https://api.github.com/repos/{repository}/releases/{number}"), "tag_name": tag,
            "name": tag, "draft": false, "prerelease": version.to_string().contains('-'), "assets": assets,
        }));
    }
    Ok(Value::Array(releases))
}

/// The versions below a directory and the names of their directories, newest first.
fn tags(top: &Path) -> Result<Vec<(Version, String)>> {
    let version = |tag: String| Some((tag.strip_prefix('v')?.parse::<Version>().ok()?, tag));
    let mut tags: Vec<_> = names(top)?.into_iter().filter_map(version).collect();
    tags.sort_by(|one, other| other.0.cmp(&one.0));
    Ok(tags)
}
