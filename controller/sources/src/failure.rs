//! Failures of a repository or ref: reason, message, and next step.

use crds::{
    FailureClass, Reason,
    names::reconcile_command,
    reason::next_step::{Facts, Place, next_step},
    text::clip,
};
use source::{Ended, FetchError, Refusal, git_errors::refused};

use crate::git::GitError;

/// Why a check failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub reason: Reason,
    /// The error, for people.
    pub message: String,
}

impl Problem {
    pub fn new(reason: Reason, message: impl AsRef<str>) -> Self {
        Self {
            reason,
            message: clip(message.as_ref(), 1000),
        }
    }

    /// The problem for git's failed request to a URL. What is no repository gets one reason and text, so that no port of the cluster's network
    /// tells itself from another; the cause is logged. Of other servers than the repository's own, which who pushes may name, nothing else is
    /// told.
    pub fn refused(url: &str, own: bool, revision: &str, ended: &Ended) -> Self {
        let error: FetchError<GitError> = refused(url, revision, ended);
        match &error {
            FetchError::Refused { refusal, message } if !is_told(*refusal, own) => {
                Self::no_repository(url, message)
            }
            _ => error.into(),
        }
    }

    /// Nothing that can be used answers.
    pub fn no_repository(what: &str, cause: &str) -> Self {
        tracing::warn!(what, cause, "not fetched");
        Self::new(
            Reason::SourceUnreachable,
            format!(
                "{} is no repository that answers; the log of `controller sources` has the cause",
                clip(what, 300)
            ),
        )
    }

    pub fn class(&self) -> FailureClass {
        self.reason.class().unwrap_or(FailureClass::Internal)
    }

    /// The next step, for people. `named`: the repository names a Secret.
    pub fn next_step(&self, namespace: &str, name: &str, named: bool) -> String {
        let again = reconcile_command(namespace, name);
        let first = match self.reason {
            Reason::SourceUnauthorized if !named => {
                "correct spec.url, or name a Secret with credentials for it in spec.secretRef"
            }
            Reason::SourceUnauthorized => "correct the Secret that spec.secretRef names",
            Reason::HostKeyNotKnown => {
                "compare the key that the message names with the one that the host's owner publishes, and put its line into known_hosts of the \
                 Secret that spec.secretRef names"
            }
            Reason::RevisionNotFound => {
                "push the ref, or correct spec.ref of the layers that name it"
            }
            Reason::InvalidSpec | Reason::SourceInvalid => "correct what the message names",
            Reason::SourceUnreachable => {
                "make sure that a Git repository is at the URL that the message names, that the cluster can reach it, and that its address is not one \
                 of those that `controller sources` denies (loopback, link-local, the API server, the chart's sources.deniedCIDRs)"
            }
            Reason::AgentFault | Reason::ToolKilled => {
                "see in the log of `controller sources` what happened"
            }
            _ => {
                let facts = Facts {
                    logs: again.clone(),
                    again,
                    ..Facts::default()
                };
                return next_step(self.reason.as_str(), Place::Cluster, &facts);
            }
        };
        format!("{first} (it is tried again by itself), then: {again}")
    }
}

/// Whether the kind of a refusal is told.
const fn is_told(refusal: Refusal, own: bool) -> bool {
    match refusal {
        Refusal::NoRepository | Refusal::Unreachable => false,
        Refusal::Unauthorized | Refusal::HostKey | Refusal::Invalid => own,
        Refusal::NoRevision | Refusal::DiskFull => true,
    }
}

impl From<FetchError<GitError>> for Problem {
    fn from(error: FetchError<GitError>) -> Self {
        match error.reason() {
            Ok(Reason::InvalidSpec) => Self::new(
                Reason::InvalidSpec,
                format!("spec.url cannot be used: {error}"),
            ),
            Ok(reason) => Self::new(reason, error.to_string()),
            Err(error) => error.into(),
        }
    }
}

impl From<&GitError> for Problem {
    fn from(error: &GitError) -> Self {
        let reason = match error {
            GitError::NotStarted(_) => Reason::AgentFault,
            GitError::TooLong { .. } => Reason::SourceUnreachable,
            GitError::TooMuch(..) | GitError::NoMemory(_) | GitError::TooLarge(..) => {
                Reason::SourceInvalid
            }
        };
        Self::new(reason, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_next_step() {
        for reason in Reason::ALL.iter().filter(|reason| reason.class().is_some()) {
            let step = Problem::new(*reason, "m").next_step("ns", "repo", true);
            assert!(step.len() > 20 && step.len() < 1000, "{reason}: {step}");
        }
        for (named, first) in [
            (true, "correct the Secret that spec.secretRef names"),
            (false, "correct spec.url, or name a Secret"),
        ] {
            let step = Problem::new(Reason::SourceUnauthorized, "m").next_step("ns", "repo", named);
            assert!(
                step.starts_with(first) && step.ends_with("pawl.run/reconcile=\"$(date +%s)\""),
                "{step}"
            );
        }
    }
}
