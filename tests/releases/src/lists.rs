//! Lists of versions in the projects' formats, derived from the files in a directory.

use std::path::Path;

use anyhow::Result;
use serde_json::{Map, Value, json};
use tool_versions::{Tool, Version};

use super::names;

/// The path of a tool's list below the top of a mirror.
pub(super) const fn path(tool: Tool) -> &'static str {
    match tool {
        Tool::OpenTofu => "tofu/api.json",
        Tool::Terraform => "terraform/index.json",
        Tool::Terragrunt => "repos/gruntwork-io/terragrunt/releases",
    }
}

/// HashiCorp's `terraform/index.json`.
pub(super) fn hashicorp(root: &Path) -> Result<Value> {
    let top = root.join("terraform");
    let versions = names(&top)?
        .into_iter()
        .filter(|name| top.join(name).is_dir());
    let versions: Map<_, _> = versions
        .map(|version| (version.clone(), json!({"version": version})))
        .collect();
    Ok(json!({"name": "terraform", "versions": versions}))
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

/// GitHub's API: the releases of a repository, newest first, all on one page.
pub(super) fn github(root: &Path, repository: &str) -> Result<Value> {
    let top = root.join(repository).join("releases/download");
    let entry = |(version, tag): (Version, String)| json!({"tag_name": tag, "draft": false, "prerelease": version.to_string().contains('-')});
    Ok(tags(&top)?.into_iter().map(entry).collect())
}

/// The versions below a directory and the names of their directories, newest first.
fn tags(top: &Path) -> Result<Vec<(Version, String)>> {
    let version = |tag: String| Some((tag.strip_prefix('v')?.parse::<Version>().ok()?, tag));
    let mut tags: Vec<_> = names(top)?.into_iter().filter_map(version).collect();
    tags.sort_by(|one, other| other.0.cmp(&one.0));
    Ok(tags)
}
