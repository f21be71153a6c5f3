//! Checks dependencies: licences, sources and banned crates. Advisories need an online database and are checked elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use spdx::{Expression, LicenseItem, ParseMode};

use crate::command::{cargo, run};

/// Licences that require attribution only.
const LICENCES: &[&str] = &[
    "Apache-2.0",
    "MIT",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Unicode-3.0",
    "Zlib",
    "CDLA-Permissive-2.0",
];
/// Licence exceptions that only grant additional rights.
const ADDITIONS: &[&str] = &["LLVM-exception"];
/// Allow one TLS implementation (rustls with ring) and one maintained YAML parser.
const BANNED: &[&str] = &[
    "openssl",
    "openssl-sys",
    "native-tls",
    "aws-lc-rs",
    "aws-lc-sys",
    "serde_yaml",
];
/// Crates that only these crates may depend on. Times are jiff's; `object_store` and the client of OIDC need chrono.
const ONLY_BY: &[(&str, &[&str])] = &[(
    "chrono",
    &["object_store", "oauth2", "openidconnect", "serde_with"],
)];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    path: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    dependencies: Vec<String>,
}

/// Checks all dependencies, for all platforms.
///
/// # Errors
/// All violations, one per line.
pub fn check() -> Result<()> {
    let text = run(cargo().current_dir(crate::root()).args([
        "metadata",
        "--locked",
        "--format-version",
        "1",
    ]))?;
    let metadata: Metadata =
        serde_json::from_str(&text).context("cargo metadata is not what it used to be")?;
    let wrong = problems(&metadata);
    if wrong.is_empty() {
        println!(
            "dependencies of {} packages: licences, sources and bans are well",
            metadata.packages.len()
        );
        return Ok(());
    }
    bail!("{}", wrong.join("\n"))
}

fn problems(metadata: &Metadata) -> Vec<String> {
    let mut wrong = Vec::new();
    let names: BTreeMap<&str, &str> = metadata
        .packages
        .iter()
        .map(|p| (p.id.as_str(), p.name.as_str()))
        .collect();
    let registries: BTreeSet<&str> = metadata
        .packages
        .iter()
        .filter_map(|p| p.source.as_deref())
        .collect();
    if registries.len() > 1 {
        wrong.push(format!(
            "packages come from {} sources: one registry is enough",
            registries.len()
        ));
    }
    for package in &metadata.packages {
        let what = format!("{} {}", package.name, package.version);
        let is_ours = metadata.workspace_members.contains(&package.id);
        match &package.source {
            None if is_ours => {}
            Some(source)
                if source.starts_with("registry+") && source.ends_with("/crates.io-index") => {}
            _ => wrong.push(format!("{what} is not of the public registry of crates")),
        }
        if let Some(problem) = licence(package.license.as_deref()) {
            wrong.push(format!("{what}: {problem}"));
        }
        if BANNED.contains(&package.name.as_str()) {
            wrong.push(format!("{what} is banned"));
        }
        let any = |dependency: &&Dependency| dependency.req == "*" && dependency.path.is_none();
        for dependency in package.dependencies.iter().filter(any).filter(|_| is_ours) {
            wrong.push(format!("{what} takes any version of {}", dependency.name));
        }
    }
    for node in &metadata.resolve.nodes {
        let by = names.get(node.id.as_str()).copied().unwrap_or_default();
        for dependency in node
            .dependencies
            .iter()
            .filter_map(|id| names.get(id.as_str()))
        {
            if ONLY_BY
                .iter()
                .any(|(name, allowed)| name == dependency && !allowed.contains(&by))
            {
                wrong.push(format!(
                    "{by} depends on {dependency}, which it has no business with"
                ));
            }
        }
    }
    wrong
}

fn licence(text: Option<&str>) -> Option<String> {
    let Some(text) = text else {
        return Some("it names no licence".to_owned());
    };
    // Older crates write MIT/Apache-2.0.
    let expression = match Expression::parse_mode(text, ParseMode::LAX) {
        Ok(expression) => expression,
        Err(error) => {
            return Some(format!(
                "the licence `{text}` cannot be read: {}",
                error.reason
            ));
        }
    };
    let allowed = expression.evaluate(|requirement| {
        let known = match &requirement.license {
            LicenseItem::Spdx { id, .. } => LICENCES.contains(&id.name),
            LicenseItem::Other { .. } => false,
        };
        let addition = requirement.addition.as_ref().map(ToString::to_string);
        known && addition.is_none_or(|addition| ADDITIONS.contains(&addition.as_str()))
    });
    (!allowed).then(|| format!("the licence `{text}` is not among {}", LICENCES.join(", ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn licences_are_read_as_expressions() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception",
            "GPL-3.0 OR MIT",
        ] {
            assert_eq!(licence(Some(good)), None, "{good}");
        }
        for bad in [
            None,
            Some("GPL-3.0"),
            Some("MIT AND GPL-3.0"),
            Some("ours"),
            Some("GPL-2.0 WITH Classpath-exception-2.0"),
        ] {
            assert!(licence(bad).is_some(), "{bad:?}");
        }
    }

    /// One member with one dependency, which the test changes.
    fn found(change: impl Fn(&mut serde_json::Value)) -> Vec<String> {
        let mut metadata = json!({
            "packages": [
                {"id": "ours", "name": "ours", "version": "1.0.0", "license": "MIT", "source": null,
                 "dependencies": [{"name": "theirs", "req": "^1", "path": null}]},
                {"id": "theirs", "name": "theirs", "version": "1.0.0", "license": "MIT",
                 "source": "registry+https://example.com/crates.io-index", "dependencies": []},
            ],
            "workspace_members": ["ours"],
            "resolve": {"nodes": [{"id": "ours", "dependencies": ["theirs"]}, {"id": "theirs", "dependencies": []}]},
        });
        change(&mut metadata);
        problems(&serde_json::from_value(metadata).unwrap())
    }

    #[test]
    fn each_rule_is_told() {
        assert_eq!(found(|_| {}), Vec::<String>::new());
        let cases: [(&str, serde_json::Value, &str); 6] = [
            (
                "/packages/1/license",
                json!("GPL-3.0"),
                "theirs 1.0.0: the licence `GPL-3.0` is not among",
            ),
            (
                "/packages/1/source",
                json!("git+https://example.com/x"),
                "theirs 1.0.0 is not of the public registry",
            ),
            (
                "/packages/1/source",
                json!(null),
                "theirs 1.0.0 is not of the public registry",
            ),
            (
                "/packages/1/name",
                json!("openssl"),
                "openssl 1.0.0 is banned",
            ),
            (
                "/packages/1/name",
                json!("chrono"),
                "ours depends on chrono, which it has no business with",
            ),
            (
                "/packages/0/dependencies/0/req",
                json!("*"),
                "ours 1.0.0 takes any version of theirs",
            ),
        ];
        for (path, value, says) in cases {
            let said = found(|metadata| *metadata.pointer_mut(path).unwrap() = value.clone());
            assert!(
                said.len() == 1 && said[0].starts_with(says),
                "{path}: {said:?}"
            );
        }
    }
}
