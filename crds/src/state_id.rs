//! The identity of a managed state: stack and workspace.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{SourceKind, TerraformRunSpec, names::short_hash};

/// The identity of a managed state within a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StateId {
    /// The stack: `spec.stack`, or derived from the source.
    pub stack: String,
    /// The workspace.
    pub workspace: String,
}

impl StateId {
    /// The state of a run. The stack of a git source is derived from repository and path; scheme, user and `.git` in
    /// the URL make no difference. A ConfigMap or Secret source gives the object's name. An inline source, or an
    /// artifact without a name, gives the run's name.
    pub fn of(name: &str, spec: &TerraformRunSpec) -> Self {
        let stack = spec
            .stack
            .clone()
            .unwrap_or_else(|| match spec.source.kind() {
                Some(SourceKind::Git(git)) => git_stack(&git.url, &git.path),
                Some(SourceKind::ConfigMap(object)) => {
                    stack_name(&format!("configMap\n{}", object.name), &object.name)
                }
                Some(SourceKind::Secret(object)) => {
                    stack_name(&format!("secret\n{}", object.name), &object.name)
                }
                Some(
                    SourceKind::Inline(_) | SourceKind::Artifact(_) | SourceKind::Repository(_),
                )
                | None => name.to_owned(),
            });
        Self {
            stack,
            workspace: spec.workspace.clone(),
        }
    }
}

/// `NAME-HASH`: the last word of path or repository, and a hash of both.
fn git_stack(url: &str, path: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, repository) = match rest.find(['/', ':']) {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (rest, ""),
    };
    // `user@host:path` is ssh, `host:port/path` the other schemes. The port belongs to the location, the user does not.
    let (host, repository) = match rest.split_once('@') {
        Some((_, after)) if after.find(['/', ':']).is_some() => {
            let at = after.find(['/', ':']).unwrap_or_default();
            (&after[..at], &after[at + 1..])
        }
        Some(_) | None => (host, repository),
    };
    let repository = repository.trim_matches('/').trim_end_matches(".git");
    let path: Vec<&str> = path
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    let path = path.join("/");
    let whole = format!("{}\n{repository}\n{path}", host.to_ascii_lowercase());
    let last = if path.is_empty() { repository } else { &path };
    stack_name(&whole, last.rsplit('/').next().unwrap_or_default())
}

/// Builds a name from a readable word of `last` and a hash of `whole`.
fn stack_name(whole: &str, last: &str) -> String {
    let mut word: String = last
        .to_ascii_lowercase()
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .take(40)
        .collect();
    word = word.trim_matches('-').to_owned();
    if word.is_empty() {
        "stack".clone_into(&mut word);
    }
    let digest = Sha256::digest(whole.as_bytes());
    let hash = digest
        .iter()
        .take(16)
        .fold(0_u128, |hash, byte| (hash << 8) | u128::from(*byte));
    let hash = format!("{hash:032x}");
    format!(
        "{word}-{}{}",
        short_hash(&hash),
        short_hash(&format!("{hash} again"))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_forms_of_a_repository_give_one_stack() {
        let one = git_stack("https://git.example.com/team/infra.git", "live/net");
        for url in [
            "ssh://git@git.example.com/team/infra",
            "git@git.example.com:team/infra.git",
            "https://u:p@GIT.example.com/team/infra/",
        ] {
            assert_eq!(git_stack(url, "./live/net/"), one, "{url}");
        }
        assert!(one.starts_with("net-") && one.len() == 14, "{one}");
        assert_ne!(
            git_stack("https://git.example.com/team/infra", "live/app"),
            one
        );
        assert_ne!(
            git_stack("https://other.example.com/team/infra", "live/net"),
            one
        );
        assert!(git_stack("http://127.0.0.1:3000/infra", ".").starts_with("infra-"));
    }

    #[test]
    fn sources_that_are_not_git_have_their_own_stacks() {
        let of = |source: serde_json::Value| {
            let spec = serde_json::from_value(serde_json::json!({"source": source})).unwrap();
            StateId::of("run-1", &spec).stack
        };
        let object = serde_json::json!({"name": "net.app"});
        let config_map = of(serde_json::json!({"configMapRef": object}));
        let secret = of(serde_json::json!({"secretRef": object}));
        assert!(
            config_map.starts_with("netapp-")
                && secret.starts_with("netapp-")
                && config_map != secret,
            "{config_map} {secret}"
        );
        assert_eq!(of(serde_json::json!({"inline": {"files": {}}})), "run-1");
        let artifact = serde_json::json!({"url": "https://h/a", "digest": "sha256:x"});
        assert_eq!(
            of(serde_json::json!({"artifact": artifact})),
            "run-1",
            "only a schema of before admits that"
        );
    }
}
