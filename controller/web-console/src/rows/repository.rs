//! The row of a repository.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use schemars::JsonSchema;
use serde::Serialize;

use crds::{TerraformRepository, TerraformRepositoryStatus, conditions};

use super::run::short;

/// The state of a repository in one word.
#[derive(Serialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepositoryRowState {
    /// It is not checked yet.
    Pending,
    /// Every ref that a layer uses is resolved, and the last check succeeded.
    Ready,
    /// A ref cannot be resolved, or the last check failed.
    Failed,
    /// Its refs are not polled.
    Suspended,
}

impl RepositoryRowState {
    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Ready => "Ready",
            Self::Failed => "Failed",
            Self::Suspended => "Suspended",
        }
    }
}

/// A repository in a list.
#[derive(Serialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RepositoryRow {
    pub namespace: Box<str>,
    pub name: Box<str>,
    pub uid: Box<str>,
    /// Its URL without credentials and parameters.
    pub url: Box<str>,
    pub state: RepositoryRowState,
    /// The reason of the condition that makes it so: one word of the guide's `reasons.md`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Box<str>>,
    /// Number of layers that use it, among those that the person may list.
    pub layers: u32,
    /// The refs that layers use.
    pub refs: u32,
    /// Refs whose last check failed.
    pub failing: u32,
    /// When a ref was last seen at a new commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved_at: Option<Time>,
    /// When one of its conditions changed last.
    pub changed_at: Option<Time>,
}

impl RepositoryRow {
    pub fn of(repository: &TerraformRepository) -> Self {
        let none = TerraformRepositoryStatus::default();
        let status = repository.status.as_ref().unwrap_or(&none);
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let failing = status.refs.iter().filter(|of| of.failure.is_some());
        let find = |type_: &str| {
            let mut all = status.conditions.iter();
            all.find(|condition| condition.type_ == type_)
        };
        let (ready, synced) = (find(conditions::READY), find(conditions::SYNCED));
        let mut both = [ready, synced].into_iter().flatten();
        let trouble = both.find(|condition| condition.status == "False");
        let state = match (ready, trouble) {
            _ if repository.spec.suspend => RepositoryRowState::Suspended,
            (_, Some(_)) => RepositoryRowState::Failed,
            (Some(_), None) => RepositoryRowState::Ready,
            (None, None) => RepositoryRowState::Pending,
        };
        Self {
            namespace: repository.namespace().unwrap_or_default().into(),
            name: repository.name_any().into(),
            uid: repository.uid().unwrap_or_default().into(),
            url: without_credentials(&repository.spec.url).into(),
            state,
            reason: trouble.or(ready).map(|condition| short(&condition.reason)),
            layers: 0,
            refs: count(status.refs.len()),
            failing: count(failing.count()),
            moved_at: status.refs.iter().filter_map(|of| of.since.clone()).max(),
            changed_at: status
                .conditions
                .iter()
                .map(|condition| condition.last_transition_time.clone())
                .max()
                .or_else(|| repository.creation_timestamp()),
        }
    }
}

/// The URL without user, password, query and fragment; the user of an SSH URL remains.
fn without_credentials(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let user = user.split(':').next().unwrap_or_default();
    let user = if scheme == "ssh" && !user.is_empty() {
        format!("{user}@")
    } else {
        String::new()
    };
    let slash = if rest.contains('/') { "/" } else { "" };
    format!("{scheme}://{user}{host}{slash}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_shown_without_credentials() {
        for (url, shown) in [
            ("https://git.example.org/net", "https://git.example.org/net"),
            ("https://git.example.org", "https://git.example.org"),
            (
                "https://me:secret@git.example.org/net",
                "https://git.example.org/net",
            ),
            (
                "https://git.example.org/net?token=secret#a",
                "https://git.example.org/net",
            ),
            (
                "ssh://git@git.example.org/net",
                "ssh://git@git.example.org/net",
            ),
            (
                "ssh://git:secret@git.example.org:22/net",
                "ssh://git@git.example.org:22/net",
            ),
            (
                "git@git.example.org:team/net",
                "git@git.example.org:team/net",
            ),
        ] {
            assert_eq!(without_credentials(url), shown);
        }
    }
}
