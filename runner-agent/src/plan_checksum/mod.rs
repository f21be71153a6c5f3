//! The plan checksum: SHA-256 over a canonical manifest of all inputs of an apply.
//!
//! No secret and no hash of one is part of it. Values of variables and environment are in the plan file, and the files that pass
//! them to the tool are excluded from the digest of the work directory.

mod outside;
mod tree;
mod uncounted;
mod work_dir;

use std::collections::BTreeMap;

use crds::{datastore::hex_digest, state_key::canonical};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub use tree::TreeError;
pub use work_dir::{changed_since, folder_digest, is_data_of_copy, modules, source_digest};

/// The manifest's content besides digests of files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    pub run_uid: String,
    /// The tool's name.
    pub tool: String,
    pub tool_version: String,
    /// Name and version of the tool that Terragrunt runs.
    pub beneath: Option<(String, String)>,
    /// E.g. `linux_amd64`.
    pub platform: String,
    /// Type of the backend.
    pub backend: String,
    /// The arguments that identify the state's place, without credentials.
    pub backend_place: Value,
    pub workspace: String,
    pub operation: String,
    /// Names and origins of variables.
    pub variables: Vec<(String, String)>,
    /// Names and origins of environment variables.
    pub env: Vec<(String, String)>,
    /// The hooks in order: moment, name, behaviour on failure, and the script's digest.
    pub hooks: Vec<String>,
    /// Origins of variable files, in order.
    pub variable_files: Vec<String>,
    /// Origins of `envFrom` entries, in order.
    pub env_from: Vec<String>,
    /// Names and origins of files for the tool.
    pub files: Vec<(String, String)>,
    /// Additional arguments of the tool's commands.
    pub arguments: Vec<(String, Vec<String>)>,
}

/// Current digests of files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// The plan file.
    pub plan: String,
    /// The lock file, if any.
    pub lock: Option<String>,
    /// The work directory.
    pub work: String,
    /// The tool's executable.
    pub tool: String,
}

/// The checksum: `sha256:` and 64 hexadecimal digits.
pub fn checksum(facts: &Facts, digests: &Digests) -> String {
    digest_of(&manifest(facts, digests))
}

/// Digests of a manifest's parts, to name the changed ones. Used for messages only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Parts(BTreeMap<String, String>);

/// The parts for people, in the order of messages.
const PARTS: &[(&str, &str)] = &[
    (
        LOCK,
        "the lock file .terraform.lock.hcl, and perhaps more of the code",
    ),
    (
        WORK,
        "the code (a file of the source, of a module, or one that the plan made)",
    ),
    ("planFile", "the plan file"),
    ("tool", "the tool (its version, or its executable)"),
    ("backend", "the backend of the state"),
    ("workspace", "the workspace"),
    ("operation", "what the run does"),
    ("variables", "which variables are given, or from where"),
    (
        "env",
        "which environment variables are given, or from where",
    ),
    ("hooks", "the hooks (their scripts, or when they run)"),
    (
        "variableFiles",
        "which files with variables are given, or from where",
    ),
    (
        "envFrom",
        "which Secrets and ConfigMaps the environment is from",
    ),
    ("files", "which files are given, or from where"),
    ("arguments", "arguments of the tool, such as targets"),
    ("runUID", "the run"),
];
const LOCK: &str = "lockFile";
const WORK: &str = "workDir";

impl Parts {
    pub fn of(facts: &Facts, digests: &Digests) -> Self {
        let manifest = manifest(facts, digests);
        let parts = manifest.as_object().into_iter().flatten();
        Self(
            parts
                .map(|(part, value)| (part.clone(), digest_of(value)))
                .collect(),
        )
    }

    /// Whether the plan file has this digest.
    pub fn has_plan(&self, digest: &str) -> bool {
        self.0.get("planFile") == Some(&digest_of(&json!(digest)))
    }

    /// The changed parts, in words.
    pub fn changed(&self, now: &Self) -> Vec<&'static str> {
        let differs = |part: &str| self.0.get(part) != now.0.get(part);
        // The lock file is also part of the work directory.
        let is_named = |part: &str| differs(part) && !(part == WORK && differs(LOCK));
        PARTS
            .iter()
            .filter(|(part, _)| is_named(part))
            .map(|(_, words)| *words)
            .collect()
    }
}

fn digest_of(value: &Value) -> String {
    hex_digest(&Sha256::digest(canonical(value).as_bytes()))
}

fn manifest(facts: &Facts, digests: &Digests) -> Value {
    let pairs = |list: &[(String, String)]| {
        Value::Object(list.iter().map(|(k, v)| (k.clone(), json!(v))).collect())
    };
    let mut manifest = json!({
        "version": 1,
        "runUID": facts.run_uid,
        "planFile": digests.plan,
        "lockFile": digests.lock,
        "workDir": digests.work,
        "tool": {
            "name": facts.tool, "version": facts.tool_version, "platform": facts.platform, "sha256": digests.tool,
        },
        "backend": {"type": facts.backend, "place": facts.backend_place},
        "workspace": facts.workspace,
        "operation": facts.operation,
        "variables": pairs(&facts.variables),
        "env": pairs(&facts.env),
    });
    // Omitted if empty, as in manifests of agents without these fields.
    let more = [
        ("variableFiles", json!(facts.variable_files)),
        ("envFrom", json!(facts.env_from)),
        ("files", pairs(&facts.files)),
        (
            "arguments",
            Value::Object(
                facts
                    .arguments
                    .iter()
                    .map(|(k, v)| (k.clone(), json!(v)))
                    .collect(),
            ),
        ),
    ];
    let is_used = |value: &Value| {
        !matches!(value, Value::Array(list) if list.is_empty())
            && !matches!(value, Value::Object(named) if named.is_empty())
    };
    if let Some(parts) = manifest.as_object_mut() {
        parts.extend(
            more.into_iter()
                .filter(|(_, value)| is_used(value))
                .map(|(part, value)| (part.to_owned(), value)),
        );
    }
    if let (Some((name, version)), Some(tool)) = (&facts.beneath, manifest["tool"].as_object_mut())
    {
        tool.insert(
            "beneath".to_owned(),
            json!({"name": name, "version": version}),
        );
    }
    // Omitted if empty: an unused feature has no key.
    if !facts.hooks.is_empty() {
        manifest["hooks"] = json!(facts.hooks);
    }
    manifest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            run_uid: "u".into(),
            variables: vec![
                ("b".into(), "value".into()),
                ("a".into(), "secret x/y".into()),
            ],
            ..Facts::default()
        }
    }

    fn digests() -> Digests {
        Digests {
            plan: "p".into(),
            work: "w".into(),
            tool: "t".into(),
            lock: None,
        }
    }

    /// The expected value was computed by another program. It must never change, since a plan that waits during an upgrade has to keep its
    /// approved checksum.
    #[test]
    fn checksum_is_the_same_in_every_version() {
        let facts = Facts {
            run_uid: "uid-1".into(),
            tool: "OpenTofu".into(),
            tool_version: "1.10.6".into(),
            beneath: Some(("Terraform".into(), "1.5.7".into())),
            platform: "linux_amd64".into(),
            backend: "s3".into(),
            backend_place: json!({"region": "eu", "key": "net/ü", "bucket": "b"}),
            workspace: "default".into(),
            operation: "Apply".into(),
            ..facts()
        };
        assert_eq!(
            checksum(&facts, &digests()),
            "sha256:8628ac0532df800d53bcf24cfda368ae1fac0e9f79c2cea5a3029d7767df6422"
        );
    }

    #[test]
    fn every_part_changes_the_checksum() {
        let (f, d) = (facts(), digests());
        let first = checksum(&f, &d);
        assert_eq!(first.len(), 71);
        let mut others = vec![
            checksum(
                &f,
                &Digests {
                    plan: "x".into(),
                    ..d.clone()
                },
            ),
            checksum(
                &f,
                &Digests {
                    lock: Some("x".into()),
                    ..d.clone()
                },
            ),
            checksum(
                &f,
                &Digests {
                    work: "x".into(),
                    ..d.clone()
                },
            ),
            checksum(
                &f,
                &Digests {
                    tool: "x".into(),
                    ..d.clone()
                },
            ),
        ];
        let changes: [fn(&mut Facts); 18] = [
            |f| f.run_uid.push('x'),
            |f| f.tool.push('x'),
            |f| f.tool_version.push('x'),
            |f| f.platform.push('x'),
            |f| f.backend.push('x'),
            |f| f.backend_place = json!({"bucket": "x"}),
            |f| f.workspace.push('x'),
            |f| f.operation.push('x'),
            |f| f.variables[0].1.push('x'),
            |f| f.env.push(("x".into(), "value".into())),
            |f| f.hooks.push("Always x Fail sha256:1".into()),
            |f| f.variable_files = vec!["path a".into(), "path b".into()],
            |f| f.variable_files = vec!["path b".into(), "path a".into()],
            |f| f.env_from.push("secret a".into()),
            |f| f.files.push(("Home a".into(), "secret a/b".into())),
            |f| f.files.push(("Source a".into(), "secret a/b".into())),
            |f| f.arguments.push(("plan".into(), vec!["-target=a".into()])),
            |f| f.arguments.push(("apply".into(), vec!["-target=a".into()])),
        ];
        for change in changes {
            let mut changed = facts();
            change(&mut changed);
            others.push(checksum(&changed, &d));
        }
        others.push(first);
        let count = others.len();
        others.sort();
        others.dedup();
        assert_eq!(others.len(), count);
    }

    #[test]
    fn changed_parts_are_named() {
        let (f, d) = (
            Facts {
                hooks: vec!["x".into()],
                ..facts()
            },
            digests(),
        );
        let of = |digests: &Digests| Parts::of(&f, &d).changed(&Parts::of(&f, digests));
        assert!(of(&d).is_empty());
        assert!(
            of(&Digests {
                work: "x".into(),
                ..d.clone()
            })[0]
                .starts_with("the code")
        );
        let lock = of(&Digests {
            work: "x".into(),
            lock: Some("l".into()),
            ..d.clone()
        });
        assert_eq!(
            lock,
            ["the lock file .terraform.lock.hcl, and perhaps more of the code"]
        );
        assert_eq!(
            of(&Digests {
                plan: "x".into(),
                tool: "x".into(),
                ..d.clone()
            })
            .len(),
            2
        );
        let other = Facts {
            workspace: "prod".into(),
            ..f.clone()
        };
        assert_eq!(
            Parts::of(&f, &d).changed(&Parts::of(&other, &d)),
            ["the workspace"]
        );
        // Each part has a description, except the manifest's version, which changes only with the agent.
        let all = Facts {
            variable_files: vec!["path a".into()],
            env_from: vec!["secret a".into()],
            files: vec![("Home a".into(), "secret a/b".into())],
            arguments: vec![("plan".into(), vec!["-target=a".into()])],
            ..f
        };
        let parts = Parts::of(&all, &d);
        assert!(
            parts
                .0
                .keys()
                .all(|part| part == "version" || PARTS.iter().any(|(of, _)| of == part)),
            "{parts:?}"
        );
        assert_eq!(parts.0.len(), PARTS.len() + 1);
        let kept: Parts = serde_json::from_str(&serde_json::to_string(&parts).unwrap()).unwrap();
        assert_eq!(kept, parts);
    }

    #[test]
    fn order_of_keys_does_not_change_the_checksum() {
        assert_eq!(
            canonical(&json!({"b": [{"d": 1, "c": null}], "a": "x"})),
            r#"{"a":"x","b":[{"c":null,"d":1}]}"#
        );
        let mut other = facts();
        other.variables.reverse();
        assert_eq!(
            checksum(&facts(), &Digests::default()),
            checksum(&other, &Digests::default())
        );
    }
}
