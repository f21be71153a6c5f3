//! Why the policies are not proven.

use crds::reason;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Reason, from [`crds::reason`].
    pub reason: &'static str,
    /// For people.
    pub text: String,
    /// A probe was let through: its policy is not in force. Otherwise something else refused before it was asked.
    pub let_through: bool,
}

impl Missing {
    /// A policy or its binding is not there, or something else refuses what it has to refuse.
    pub fn policy(text: impl Into<String>) -> Self {
        Self { reason: reason::POLICY_MISSING, text: text.into(), let_through: false }
    }

    /// Nothing is created in that namespace any more, probes included.
    pub fn namespace(name: &str) -> Self {
        let text = format!("namespace {name} is being deleted, and nothing can be created in it");
        Self { reason: reason::NAMESPACE_TERMINATING, text, let_through: false }
    }
}
