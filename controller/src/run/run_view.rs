//! The fields of a run that decisions read. A cached run lacks many fields (`watch::trim`), and a trimmed field looks like an unset one.
//! This type gives no access to trimmed fields.

use std::{borrow::Cow, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{
    NamespaceResourceScope,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time},
};
use kube::Resource;

use crate::{run_requests, runner_pod::status::Trouble};
use crds::{
    Adopted, Approval, ApprovalMode, ApprovalRecord, Attempt, Claim, Failure, Journal, LockRelease,
    Operation, Phase, PlanStatus, Retry, RunResult, Settled, StateLease, StateLock, TerraformRun,
    TerraformRunSpec, TerraformRunStatus, Timeouts, conditions, reason,
};

/// The cached part of a run, and the whole run if it was read from the API server.
#[derive(Clone, Debug)]
pub struct RunView {
    metadata: ObjectMeta,
    /// The cached part of the spec.
    pub spec: Spec,
    /// The cached part of the status; empty if there is none yet.
    pub status: Status,
    /// The field that has a value of a newer version.
    pub unknown_word: Option<&'static str>,
    /// The request of a person or the API to end the run before its claim: result and reason.
    pub asked: Option<(RunResult, String)>,
    whole: Option<Arc<TerraformRun>>,
}

/// The part of the spec that the cache retains.
#[derive(Clone, Debug)]
pub struct Spec {
    pub operation: Operation,
    pub approval: Approval,
    pub timeouts: Timeouts,
    pub retry: Retry,
    pub ttl_seconds_after_finished: Option<u32>,
}

/// The typed view of the cached fields. The two lists together must name all fields of the status, or the code does not compile; a test
/// compares them with [`crds::fields::FIELDS`].
macro_rules! status {
    (kept { $($kept:ident: $type:ty,)* } dropped { $($dropped:ident,)* }) => {
        /// The part of the status that the cache retains. Of a finished run it retains less.
        #[derive(Clone, Debug, Default)]
        pub struct Status {
            $(pub $kept: $type,)*
        }

        #[cfg(test)]
        const READ: &[&str] = &[$(stringify!($kept)),*];

        impl From<TerraformRunStatus> for Status {
            fn from(status: TerraformRunStatus) -> Self {
                let TerraformRunStatus { $($kept,)* $($dropped: _,)* } = status;
                Self { $($kept,)* }
            }
        }
    };
}

status! {
    kept {
        phase: Option<Phase>,
        result: Option<RunResult>,
        completion_time: Option<Time>,
        plan: Option<PlanStatus>,
        approval: Option<ApprovalRecord>,
        attempt: Option<Attempt>,
        adopted: Option<Adopted>,
        claim: Option<Claim>,
        failure: Option<Failure>,
        journal: Option<Journal>,
        state_lock: Option<StateLock>,
        lock_release: Option<LockRelease>,
        lease: Option<StateLease>,
        recovery: Option<String>,
        settled: Option<Settled>,
        rerun: Option<String>,
        conditions: Vec<Condition>,
    }
    dropped { message, next_step, advice, history, start_time, progress, steps, failed_hook, unconfined, outputs, observed_generation, }
}

impl RunView {
    pub fn cached(run: &TerraformRun) -> Self {
        let TerraformRunSpec {
            operation,
            approval,
            timeouts,
            retry,
            ttl_seconds_after_finished,
            ..
        } = run.spec;
        Self {
            metadata: run.metadata.clone(),
            spec: Spec {
                operation,
                approval,
                timeouts,
                retry,
                ttl_seconds_after_finished,
            },
            status: run.status.clone().map(Status::from).unwrap_or_default(),
            unknown_word: run.unknown_word(),
            asked: run_requests::asked(run),
            whole: None,
        }
    }

    pub fn live(run: Arc<TerraformRun>) -> Self {
        let cached = Self::cached(&run);
        Self {
            whole: Some(run),
            ..cached
        }
    }

    /// The whole run; `None` for a cached one.
    pub fn whole(&self) -> Option<&Arc<TerraformRun>> {
        self.whole.as_ref()
    }

    /// Who approves the run's present plan.
    pub fn approval_mode(&self) -> ApprovalMode {
        self.spec.approval.mode_in(self.status.phase)
    }

    pub fn open_attempt(&self) -> Option<&Attempt> {
        self.status.attempt.as_ref().filter(|attempt| attempt.open)
    }
}

impl Status {
    pub fn is_terminal(&self) -> bool {
        self.phase.is_some_and(Phase::is_terminal)
    }

    pub fn condition(&self, type_: &str, reason: &str) -> Option<&Condition> {
        self.conditions
            .iter()
            .find(|c| c.type_ == type_ && c.reason == reason)
    }

    /// Since when the run is Stalled for this reason.
    pub fn stalled_since(&self, reason: &str) -> Option<Timestamp> {
        let condition = self
            .condition(conditions::STALLED, reason)
            .filter(|c| c.status == "True");
        condition.map(|c| c.last_transition_time.0)
    }

    /// Reason and message of the condition Stalled while it is True. The condition outlives a restart of this process.
    pub fn stalled(&self) -> Option<Trouble> {
        let condition = self
            .conditions
            .iter()
            .find(|c| c.type_ == conditions::STALLED && c.status == "True")?;
        let reason = reason::ALL
            .iter()
            .find(|reason| **reason == condition.reason)?;
        Some(Trouble {
            reason,
            text: condition.message.clone(),
        })
    }
}

/// The same API resource as [`TerraformRun`].
impl Resource for RunView {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        TerraformRun::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        TerraformRun::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        TerraformRun::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        TerraformRun::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::fields::{Cached, FIELDS};

    #[test]
    fn decisions_read_cached_fields_only() {
        for read in READ {
            let field = FIELDS.iter().find(|field| snake(field.name) == *read);
            assert!(
                field.is_some_and(|field| field.cached != Cached::Never),
                "{read}"
            );
        }
        for field in FIELDS.iter().filter(|field| field.decides.is_some()) {
            assert!(
                READ.contains(&snake(field.name).as_str()),
                "no decision reads {}",
                field.name
            );
        }
    }

    /// The Rust name of a field.
    fn snake(name: &str) -> String {
        name.chars()
            .flat_map(|c| {
                c.is_uppercase()
                    .then_some('_')
                    .into_iter()
                    .chain(c.to_lowercase())
            })
            .collect()
    }
}
