//! A played API server: etcd's versions, patches, deletion with finalizers, and the definition's CEL rules and the chart's
//! admission policies, whose own expressions are evaluated. The simulator runs on it, and the suite `api` holds it against the
//! real one.
//!
//! | module | holds |
//! |---|---|
//! | [`store`] | objects, versions, and the verbs on them |
//! | [`patch`] | merge patches |
//! | [`cel`] | expressions of CEL |
//! | [`schema`] | what the definition of a run refuses |
//! | [`admission`] | what the policies of the chart refuse |
//! | [`trace`] | what must hold of every run |
//! | `memo` | what was answered before |

pub mod admission;
pub mod cel;
mod memo;
pub mod patch;
pub mod schema;
pub mod store;
pub mod trace;

pub const RUNS: &str = "terraformruns";
pub const LAYERS: &str = "terraformlayers";
pub const PODS: &str = "pods";

use std::collections::BTreeSet;

use crate::trace::Writer;

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct User {
    /// Name, as the API server knows it.
    pub name: String,
    /// What it may beyond reading and writing runs and layers: verbs on runs (`create`, `approve`, `autoapprove`, `abandon`, `control`, which is
    /// one on layers as well), and `use`, which is one on accounts.
    pub verbs: BTreeSet<&'static str>,
    /// Name and UID of the pod that the token is bound to.
    pub pod: Option<(String, String)>,
}

impl User {
    /// A person or a controller with these verbs.
    pub fn with(name: &str, verbs: &[&'static str]) -> Self {
        Self { name: name.to_owned(), verbs: verbs.iter().copied().collect(), pod: None }
    }

    /// The token of a pod, which is that of a ServiceAccount of its namespace.
    pub fn pod(namespace: &str, pod: &str, uid: &str) -> Self {
        let name = format!("system:serviceaccount:{namespace}:{pod}");
        Self { name, verbs: BTreeSet::new(), pod: Some((pod.to_owned(), uid.to_owned())) }
    }

    /// As a trace names it.
    pub fn writer(&self) -> Writer {
        let (pod, pod_uid) = self.pod.clone().unwrap_or_default();
        Writer { user: self.name.clone(), pod, pod_uid }
    }

    /// Whether it holds a verb.
    pub fn may(&self, verb: &str) -> bool {
        self.verbs.contains(verb)
    }
}

/// An answer that is no success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub code: u16,
    /// Kubernetes' word for it.
    pub reason: &'static str,
    pub message: String,
}

impl Refusal {
    /// 404.
    pub fn not_found(what: &str) -> Self {
        Self { code: 404, reason: "NotFound", message: format!("{what} not found") }
    }

    /// 409 on a write.
    pub fn conflict(what: &str) -> Self {
        Self { code: 409, reason: "Conflict", message: format!("the object has been modified; {what}") }
    }

    /// 422.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { code: 422, reason: "Invalid", message: message.into() }
    }
}
