//! A simulated API server: etcd's versions, patches, deletion with finalizers, and the CEL rules of the CRD and of the chart's admission
//! policies, which are evaluated. The simulator runs on it, and the suite `api` compares it with a real one.
//!
//! | module | holds |
//! |---|---|
//! | [`store`] | objects, versions, and verbs |
//! | [`patch`] | merge patches |
//! | [`cel`] | CEL expressions |
//! | [`schema`] | validation by a run's CRD |
//! | [`admission`] | the chart's admission policies |
//! | [`trace`] | invariants of every run |
//! | `memo` | cached results |

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

/// The user of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct User {
    /// User name.
    pub name: String,
    /// Permissions beyond reading and writing runs and layers: verbs on runs (`create`, `approve`, `autoapprove`, `abandon`, `control`,
    /// which also applies to layers), and `use`, a verb on service accounts.
    pub verbs: BTreeSet<&'static str>,
    /// Name and UID of the pod to which the token is bound.
    pub pod: Option<(String, String)>,
}

impl User {
    /// A person or a controller with these verbs.
    pub fn with(name: &str, verbs: &[&'static str]) -> Self {
        Self {
            name: name.to_owned(),
            verbs: verbs.iter().copied().collect(),
            pod: None,
        }
    }

    /// A pod with the token of a ServiceAccount of its namespace.
    pub fn pod(namespace: &str, pod: &str, uid: &str) -> Self {
        let name = format!("system:serviceaccount:{namespace}:{pod}");
        Self {
            name,
            verbs: BTreeSet::new(),
            pod: Some((pod.to_owned(), uid.to_owned())),
        }
    }

    /// The writer in a trace.
    pub fn writer(&self) -> Writer {
        let (pod, pod_uid) = self.pod.clone().unwrap_or_default();
        Writer {
            user: self.name.clone(),
            pod,
            pod_uid,
        }
    }

    /// Whether it holds a verb.
    pub fn may(&self, verb: &str) -> bool {
        self.verbs.contains(verb)
    }
}

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub code: u16,
    /// The `reason` of a Kubernetes `Status`.
    pub reason: &'static str,
    pub message: String,
}

impl Refusal {
    /// 404.
    pub fn not_found(what: &str) -> Self {
        Self {
            code: 404,
            reason: "NotFound",
            message: format!("{what} not found"),
        }
    }

    /// 409 on a write.
    pub fn conflict(what: &str) -> Self {
        Self {
            code: 409,
            reason: "Conflict",
            message: format!("the object has been modified; {what}"),
        }
    }

    /// 422.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self {
            code: 422,
            reason: "Invalid",
            message: message.into(),
        }
    }
}
