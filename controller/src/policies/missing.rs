//! Why the policies are not proven.

use crds::reason;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Reason, from [`crds::reason`].
    pub reason: &'static str,
    /// For people.
    pub text: String,
    /// Whether a probe was admitted, which proves that its policy is not enforced. If false, a policy is missing, or another component
    /// refused the probe.
    pub let_through: bool,
}

impl Missing {
    /// A policy or its binding is missing, or something else refuses the probe.
    pub fn policy(text: impl Into<String>) -> Self {
        Self {
            reason: reason::POLICY_MISSING,
            text: text.into(),
            let_through: false,
        }
    }

    /// A namespace that is being deleted accepts no new objects, so the probe reaches no policy.
    pub fn namespace(name: &str) -> Self {
        let text = format!("namespace {name} is being deleted, and nothing can be created in it");
        Self {
            reason: reason::NAMESPACE_TERMINATING,
            text,
            let_through: false,
        }
    }
}
