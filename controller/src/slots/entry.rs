//! The part of a run that slots depend on: the class of its attempt, the scopes in which it counts, and its place in the queue.

use crds::{ApprovalMode, Phase, TerraformRun, Trigger, approval, conditions, names, reason};
use jiff::Timestamp;
use kube::ResourceExt;

use super::admission::{Class, Place, Rank, Scope};
use crate::run_requests;

/// A run as a watch showed it last.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    /// The scopes that its attempts count in.
    pub(super) scopes: Box<[Scope]>,
    /// Number of its open attempt.
    pub(super) attempt: Option<u32>,
    /// Who created it.
    pub(super) rank: Rank,
    /// The class that its open attempt counts in.
    pub(super) open: Option<Class>,
    /// Its pod only waits and may end, since its plan is in the datastore.
    pub(super) held: bool,
    /// The scope in which its pod finds no room on a node, or in the quota.
    pub(super) stuck: Option<Scope>,
    /// The run's place in the queue, if its condition has the reason `SlotsFull`.
    pub(super) waits: Option<Place>,
    pub(super) kept: Option<Kept>,
}

/// A slot reserved for a run whose attempt the watches do not show yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) class: Class,
    pub(super) until: Until,
}

/// How long a slot is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// Until the end of the reconcile that asked for it.
    Look,
    /// The write was sent at that time and got no answer; it may still be carried out.
    Heard(Timestamp),
    /// Until the watch shows that version.
    Seen(u64),
}

impl Entry {
    /// `None` for an ended run without an open attempt.
    pub(super) fn of(run: &TerraformRun) -> Option<Self> {
        let status = run.status.as_ref();
        let attempt = status
            .and_then(|status| status.attempt.as_ref())
            .filter(|attempt| attempt.open);
        let (attempt, open) = (attempt.map(|attempt| attempt.number), attempt.is_some());
        if status.is_some_and(crds::TerraformRunStatus::is_terminal) && !open {
            return None;
        }
        let says_so = status.is_some_and(|status| {
            status
                .conditions
                .iter()
                .any(|c| c.reason == reason::SLOTS_FULL)
        });
        let place = place(run);
        let waits = place.filter(|place| says_so && (!open || place.class == Class::Apply));
        let held = open && is_held(run);
        let open = if open { class(run) } else { None };
        Some(Self {
            scopes: scopes(run),
            attempt,
            rank: rank(run),
            open,
            held,
            stuck: stuck(run),
            waits,
            kept: None,
        })
    }

    /// Keeps the class of the previous entry of the same attempt. An attempt that counts as an apply, or has returned its slot, is not
    /// counted as a plan again when its approval is removed: another run may have taken that slot.
    pub(super) fn follows(&mut self, before: &Self) {
        if self.attempt.is_some()
            && self.attempt == before.attempt
            && self.open == Some(Class::Plan)
        {
            self.open = before.open;
        }
    }

    /// The classes that the attempt counts in. During its change from one class to the other it counts in both.
    pub(super) fn counts(&self) -> impl Iterator<Item = Class> {
        let kept = self
            .kept
            .map(|kept| kept.class)
            .filter(|class| self.open != Some(*class));
        self.open.into_iter().chain(kept)
    }
}

/// The scopes that the attempts of a run count in. Needs the whole run: a cached one lacks its repository.
fn scopes(run: &TerraformRun) -> Box<[Scope]> {
    let namespace = run.namespace().unwrap_or_default();
    let repository = run.spec.source.repository.as_ref().map(|repository| {
        let of = repository
            .namespace
            .clone()
            .unwrap_or_else(|| namespace.clone());
        Scope::Repository(of.into(), repository.name.as_str().into())
    });
    [Scope::Whole, Scope::Namespace(namespace.into())]
        .into_iter()
        .chain(repository)
        .collect()
}

/// The class of an open attempt. It is `Apply` once it restores a plan, or has a person's approval and the lease. An approved attempt
/// without the lease whose plan would be lost with its pod has returned its slot: the holder of the lease may wait for that slot.
fn class(run: &TerraformRun) -> Option<Class> {
    let Some(status) = &run.status else {
        return Some(Class::Plan);
    };
    let approved = status
        .approval
        .as_ref()
        .is_some_and(|record| record.checksum.is_some());
    let kept = status
        .plan
        .as_ref()
        .is_some_and(|plan| plan.bundle.is_some());
    if status
        .attempt
        .as_ref()
        .is_some_and(|attempt| attempt.restores.is_some())
    {
        return Some(Class::Apply);
    }
    match (approved, status.lease.is_some()) {
        (true, true) => Some(Class::Apply),
        (true, false) if !kept && status.claim.is_none() && !status.is_terminal() => None,
        (true | false, _) => Some(Class::Plan),
    }
}

/// Whether the run's pod waits for a person or for the lease on its state, and may end without losing the plan.
pub(super) fn is_held(run: &TerraformRun) -> bool {
    let Some(status) = &run.status else {
        return false;
    };
    let waits = status.phase == Some(Phase::AwaitingApproval)
        && status.claim.is_none()
        && run.approval_mode() == ApprovalMode::Manual;
    let kept = status
        .plan
        .as_ref()
        .is_some_and(|plan| plan.bundle.is_some());
    waits && kept && !(status.approval.is_some() && status.lease.is_some())
}

/// The place in which a run waits for its next slot; `None` if it needs none.
pub(super) fn place(run: &TerraformRun) -> Option<Place> {
    let status = run.status.as_ref();
    let ends = status.is_some_and(|status| status.is_terminal() || status.claim.is_some());
    if ends || run_requests::asked(run).is_some() || run.unknown_word().is_some() {
        return None;
    }
    let plan = status
        .filter(|status| status.phase == Some(Phase::AwaitingApproval))
        .and_then(|status| status.plan.as_ref());
    let waits = plan.filter(|_| run.approval_mode() == ApprovalMode::Manual);
    let created = run
        .creation_timestamp()
        .map_or(Timestamp::UNIX_EPOCH, |at| at.0);
    let (class, since) = match waits {
        Some(plan) if approval::is_annotated(run.annotations(), &plan.checksum) => {
            let recorded = status
                .and_then(|status| status.approval.as_ref())
                .map(|record| record.at.0);
            (Class::Apply, recorded.unwrap_or(created))
        }
        Some(_) => return None,
        None => (Class::Plan, created),
    };
    let (namespace, name) = (
        run.namespace().unwrap_or_default().into(),
        run.name_any().into(),
    );
    Some(Place {
        class,
        rank: rank(run),
        since,
        namespace,
        name,
    })
}

/// The scope in which the open attempt's pod finds no room, which other pods of Pawl may make.
fn stuck(run: &TerraformRun) -> Option<Scope> {
    let status = run.status.as_ref()?;
    status.attempt.as_ref().filter(|attempt| attempt.open)?;
    let trouble = status
        .conditions
        .iter()
        .find(|c| c.type_ == conditions::STALLED && c.status == "True")?;
    match trouble.reason.as_str() {
        // Not of a selector or a taint.
        reason::UNSCHEDULABLE
            if ["Insufficient", "Too many pods"]
                .iter()
                .any(|said| trouble.message.contains(said)) =>
        {
            Some(Scope::Whole)
        }
        reason::QUOTA_EXCEEDED => {
            Some(Scope::Namespace(run.namespace().unwrap_or_default().into()))
        }
        _ => None,
    }
}

/// Who created a run, as far as it names a user: the API server does not tell.
fn rank(run: &TerraformRun) -> Rank {
    let machine = |name: &str| name.starts_with("system:serviceaccount:");
    let asker = match run.annotations().get(names::REQUESTED_BY) {
        None => Rank::Unnamed,
        Some(named) if named.lines().all(machine) => Rank::Commit,
        Some(_) => Rank::Person,
    };
    match run
        .annotations()
        .get(names::TRIGGER)
        .map_or(Trigger::Person, |word| Trigger::of(word))
    {
        Trigger::Person => asker,
        Trigger::Deletion => Rank::Person,
        Trigger::Commit => Rank::Commit,
        Trigger::Retry | Trigger::Drift | Trigger::Unknown => Rank::Schedule,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use serde_json::json;

    fn run(status: &serde_json::Value) -> TerraformRun {
        let mut run = testing::run();
        run.status = serde_json::from_value(status.clone()).unwrap();
        run
    }

    fn plan() -> serde_json::Value {
        let plan = crds::PlanStatus {
            checksum: "sha256:1".into(),
            attempt: 1,
            ..crds::PlanStatus::default()
        };
        serde_json::to_value(plan).unwrap()
    }

    fn approved(mut run: TerraformRun) -> TerraformRun {
        run.metadata.annotations =
            Some([(names::APPROVE.to_owned(), "sha256:1".to_owned())].into());
        run
    }

    #[test]
    fn attempt_counts_as_plan_or_apply() {
        let attempt = json!({"number": 1, "podName": "p", "open": true});
        let at = "2026-01-01T00:00:00Z";
        let mut plan = plan();
        plan["bundle"] = "sha256:2".into();
        let approval = json!({"checksum": "sha256:1", "by": "alice", "at": at});
        let lease = json!({"stateKey": "k", "name": "n", "at": at});
        let waits = json!({"phase": "AwaitingApproval", "attempt": attempt, "plan": plan});
        let with = |more: serde_json::Value| {
            let mut status = waits.clone();
            testing::merge(&mut status, &more);
            Entry::of(&run(&status)).unwrap()
        };
        let said = |entry: &Entry| (entry.open, entry.held);
        assert_eq!(
            said(&Entry::of(&run(&json!({"phase": "Plan", "attempt": attempt}))).unwrap()),
            (Some(Class::Plan), false)
        );
        assert_eq!(
            said(&with(json!({}))),
            (Some(Class::Plan), true),
            "it waits for a person"
        );
        assert_eq!(
            said(&with(json!({"plan": {"bundle": null}}))),
            (Some(Class::Plan), false),
            "its plan would be lost"
        );
        assert_eq!(
            said(&with(json!({"approval": approval}))),
            (Some(Class::Plan), true),
            "it waits for the lease"
        );
        let lost = with(json!({"approval": approval, "plan": {"bundle": null}}));
        assert_eq!(
            said(&lost),
            (None, false),
            "it waits for the lease and cannot end"
        );
        assert_eq!(
            said(&with(json!({"approval": approval, "lease": lease}))),
            (Some(Class::Apply), false)
        );
        assert_eq!(
            said(&with(json!({"attempt": {"restores": 1}, "lease": lease}))).0,
            Some(Class::Apply)
        );
        assert_eq!(
            said(&with(
                json!({"approval": {"by": "automatic", "at": at}, "lease": lease})
            ))
            .0,
            Some(Class::Plan)
        );
        assert_eq!(said(&with(json!({"attempt": {"open": false}}))).0, None);
        let ended = json!({"phase": "Succeeded", "result": "Planned", "attempt": attempt});
        assert_eq!(
            said(&Entry::of(&run(&ended)).unwrap()).0,
            Some(Class::Plan),
            "until it is closed"
        );
        assert!(Entry::of(&run(&json!({"phase": "Succeeded", "result": "Planned"}))).is_none());
    }

    #[test]
    fn place_has_class_and_rank_of_the_run() {
        let mut fresh = testing::run();
        assert_eq!(
            place(&fresh).map(|place| (place.class, place.rank)),
            Some((Class::Plan, Rank::Unnamed))
        );
        for (word, rank) in [
            ("Commit", Rank::Commit),
            ("Drift", Rank::Schedule),
            ("Retry", Rank::Schedule),
            ("Person", Rank::Unnamed),
            ("Deletion", Rank::Person),
        ] {
            fresh.metadata.annotations =
                Some([(names::TRIGGER.to_owned(), word.to_owned())].into());
            assert_eq!(place(&fresh).unwrap().rank, rank, "{word}");
        }
        for (named, rank) in [
            ("system:serviceaccount:ci:runner", Rank::Commit),
            ("alice", Rank::Person),
            ("system:serviceaccount:ci:runner\nalice", Rank::Person),
        ] {
            fresh.metadata.annotations =
                Some([(names::REQUESTED_BY.to_owned(), named.to_owned())].into());
            assert_eq!(place(&fresh).unwrap().rank, rank, "{named}");
        }
        fresh.metadata.annotations = Some([(names::CANCEL.to_owned(), "x".to_owned())].into());
        assert_eq!(place(&fresh), None);
        let waits = run(&json!({"phase": "AwaitingApproval", "plan": plan()}));
        assert_eq!(place(&waits), None, "for a person, and for nothing else");
        assert_eq!(place(&approved(waits)).unwrap().class, Class::Apply);
    }

    #[test]
    fn repository_scope_follows_the_source() {
        let mut run = testing::run();
        let source =
            json!({"repository": {"name": "infra", "revision": "a".repeat(40), "path": "."}});
        run.spec.source = serde_json::from_value(source).unwrap();
        assert!(scopes(&run).contains(&Scope::Repository("team".into(), "infra".into())));
        run.spec.source.repository.as_mut().unwrap().namespace = Some("git".into());
        assert!(scopes(&run).contains(&Scope::Repository("git".into(), "infra".into())));
    }
}
