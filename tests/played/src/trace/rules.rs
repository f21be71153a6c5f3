//! The rules, one function each. A rule returns a sentence about the violation.

use std::{collections::HashSet, sync::LazyLock};

use crds::{
    ApprovalMode, Changed, Claim, Phase, RunResult, TerraformRun, TerraformRunStatus,
    fields::{self, FIELDS, Owner},
    names,
    status_limit::MAX_STATUS_BYTES,
};
use kube::ResourceExt as _;

use super::{Deeds, Writer};

static NONE: LazyLock<TerraformRunStatus> = LazyLock::new(TerraformRunStatus::default);

fn status(run: &TerraformRun) -> &TerraformRunStatus {
    run.status.as_ref().unwrap_or(&NONE)
}

fn number(run: &TerraformRun) -> u32 {
    status(run)
        .attempt
        .as_ref()
        .map_or(0, |attempt| attempt.number)
}

/// Whether a phase can follow another, directly or through unobserved phases.
fn reaches(from: Phase, to: Phase) -> bool {
    let mut seen = HashSet::from([from]);
    let mut next = vec![from];
    while let Some(phase) = next.pop() {
        if phase == to {
            return true;
        }
        next.extend(
            phase
                .successors()
                .iter()
                .copied()
                .filter(|after| seen.insert(*after)),
        );
    }
    false
}

/// Phases follow their transition table.
pub(super) fn phase(before: &TerraformRun, after: &TerraformRun, whole: bool) -> Option<String> {
    let (Some(from), Some(to)) = (status(before).phase, status(after).phase) else {
        let lost = status(before).phase.is_some() && status(after).phase.is_none();
        return lost.then(|| "the phase was taken away".to_owned());
    };
    let legal = from == to
        || if whole {
            from.successors().contains(&to)
        } else {
            reaches(from, to)
        };
    (!legal).then(|| format!("phase {from} was followed by {to}"))
}

/// The result of an ended run and a claim never change.
pub(super) fn frozen(before: &TerraformRun, after: &TerraformRun) -> Option<String> {
    let (old, new) = (status(before), status(after));
    if before.spec != after.spec {
        return Some("the spec changed".into());
    }
    if old.result.is_some() && old.result != new.result {
        return Some(format!(
            "the result {:?} became {:?}",
            old.result, new.result
        ));
    }
    if old.is_terminal() && old.phase != new.phase {
        return Some(format!(
            "the phase {:?} of a run that had ended became {:?}",
            old.phase, new.phase
        ));
    }
    (old.claim.is_some() && old.claim != new.claim).then(|| "the claim changed".to_owned())
}

/// Attempts increase by one, and the previous one is closed. A missing version may be the one that closed it.
pub(super) fn attempts(before: &TerraformRun, after: &TerraformRun, whole: bool) -> Option<String> {
    let (old, new) = (number(before), number(after));
    if new < old || (whole && new > old + 1) {
        return Some(format!("attempt {old} was followed by {new}"));
    }
    let open = status(before)
        .attempt
        .as_ref()
        .is_some_and(|attempt| attempt.open);
    (whole && new > old && open).then(|| format!("attempt {new} was opened while {old} was open"))
}

/// A claimed run gets no further attempt.
pub(super) fn claimed_is_last(before: &TerraformRun, after: &TerraformRun) -> Option<String> {
    (status(before).claim.is_some() && number(after) > number(before))
        .then(|| "a claimed run got a further attempt".to_owned())
}

/// The pod of an attempt writes the status only while that attempt is open, and no other pod writes the agent's fields. The attempt is
/// derived from the pod's name, independently of adoption and later writes.
pub(super) fn writer(
    before: &TerraformRun,
    after: &TerraformRun,
    by: &Writer,
    whole: bool,
) -> Option<String> {
    if by.pod_uid.is_empty() {
        return None;
    }
    let (old, new, newest) = (status(before), status(after), number(before));
    let (name, uid) = (before.name_any(), before.uid().unwrap_or_default());
    let own = (1..=newest).find(|number| names::attempt_name(&name, &uid, *number) == by.pod);
    let wrong = match own {
        // The controller, or an unrelated pod.
        None => whole && (new.adopted != old.adopted || new.claim != old.claim),
        // No missing version explains it, because attempts only increase.
        Some(own) if own < newest => true,
        Some(_) => {
            let open = old.attempt.as_ref().is_some_and(|attempt| attempt.open);
            let another = old
                .attempt
                .as_ref()
                .and_then(|attempt| attempt.pod(old.adopted.as_ref()))
                .is_some_and(|uid| uid != by.pod_uid);
            whole && (!open || another)
        }
    };
    wrong.then(|| {
        format!(
            "the pod {} ({}) wrote while the attempt was {:?}",
            by.pod, by.pod_uid, old.attempt
        )
    })
}

/// Every field is written by its owner: the agent's fields by a pod of the run, the controller's fields by no pod. Fields of the attempt
/// are written by its pod from the adoption to the write that closes it, otherwise by no pod.
pub(super) fn fields(before: &TerraformRun, after: &TerraformRun, by: &Writer) -> Option<String> {
    let (old, new, uid) = (
        status(before),
        status(after),
        before.uid().unwrap_or_default(),
    );
    let agent = (1..=number(before))
        .any(|number| names::attempt_name(&before.name_any(), &uid, number) == by.pod);
    let has = |status: &TerraformRunStatus| {
        let open = status.attempt.as_ref().filter(|attempt| attempt.open);
        open.zip(status.adopted.as_ref())
            .is_some_and(|(attempt, adopted)| adopted.attempt == attempt.number)
    };
    let is_legal = |owner: Owner| match owner {
        Owner::Controller => !agent,
        Owner::Adoption | Owner::Plan | Owner::Claim | Owner::Agent => agent,
        Owner::Attempt if agent => has(new),
        Owner::Attempt => !has(old) || !has(new),
    };
    let changed = fields::changes(old, new);
    let wrong = FIELDS.iter().find(|field| {
        !is_legal(field.owner) && changed.iter().any(|(name, _)| *name == field.name)
    })?;
    Some(format!(
        "`{}` was written by {}",
        wrong.name,
        if agent { &by.pod } else { &by.user }
    ))
}

/// A status stays within its size limit.
pub(super) fn size(bytes: usize) -> Option<String> {
    (bytes > MAX_STATUS_BYTES).then(|| format!("its status had {bytes} bytes"))
}

/// An ended run has a result, and a failed one a reason and a next step.
pub(super) fn named(run: &TerraformRun) -> Option<String> {
    let status = status(run);
    if !status.is_terminal() {
        return None;
    }
    if status.message.as_deref().unwrap_or_default().is_empty() {
        return Some("it ended without a message".into());
    }
    let needs = matches!(
        status.result,
        Some(RunResult::Failed | RunResult::Indeterminate)
    );
    if needs
        && status
            .failure
            .as_ref()
            .is_none_or(|failure| failure.reason.is_empty() || failure.message.is_empty())
    {
        return Some("it failed without a reason".into());
    }
    (needs && status.step().unwrap_or_default().is_empty())
        .then(|| "it failed and says not what to do next".to_owned())
}

/// A claim requires a valid approval of the plan, and the pod that adopted the open attempt. `whole`: the write is the claim itself, so
/// more can be checked.
pub(super) fn claim(
    claim: &Claim,
    run: &TerraformRun,
    by: Option<&Writer>,
    whole: bool,
) -> Vec<(&'static str, String)> {
    let (new, annotations) = (status(run), run.annotations());
    let record = new.approval.as_ref();
    let harmless = new
        .plan
        .as_ref()
        .is_some_and(|plan| run.spec.approval.is_automatic_for(&plan.counts));
    let approved = match run.spec.approval.mode {
        ApprovalMode::Manual => {
            record.is_some_and(|record| record.checksum.as_ref() == Some(&claim.checksum))
        }
        ApprovalMode::Automatic if !harmless => {
            record.is_some_and(|record| record.checksum.as_ref() == Some(&claim.checksum))
        }
        // If a plan may need a person, `automatic` is recorded at its end.
        ApprovalMode::Automatic => {
            run.spec.approval.automatic_when.is_some()
                || record.is_some_and(|record| record.by == "automatic")
        }
        ApprovalMode::Unknown => false,
    };
    let annotated = harmless || annotations.get(names::APPROVE) == Some(&claim.checksum);
    let adopted = new.adopted.as_ref().is_some_and(|a| {
        a.pod_uid == claim.pod_uid && a.nonce == claim.nonce && a.attempt == claim.attempt
    });
    let key = new.plan.as_ref().and_then(|plan| plan.state_key.as_ref());
    let open = new
        .attempt
        .as_ref()
        .is_some_and(|attempt| attempt.open && attempt.number == claim.attempt);
    let stopped = annotations.contains_key(names::CANCEL) || annotations.contains_key(names::DENY);
    let other = by.filter(|by| !by.pod_uid.is_empty() && by.pod_uid != claim.pod_uid);
    let always = [
        (
            "S2",
            new.plan
                .as_ref()
                .is_none_or(|plan| plan.checksum != claim.checksum),
            "the claim names another plan than the status",
        ),
        ("S2", !annotated, "the claim stands on no approval"),
        (
            "S2",
            !approved,
            "the claim stands on no record of an approval",
        ),
        (
            "S2",
            !run.spec.operation.applies(),
            "a run was claimed that only plans",
        ),
        (
            "S6",
            !adopted,
            "the claim is of a process that did not adopt the attempt",
        ),
    ];
    // Check these on the claiming write only: a later version has another writer, and may have later requests or a returned lease.
    let at_once = [
        ("S6", !open, "the claim is of an attempt that is not open"),
        (
            "S6",
            other.is_some(),
            "the claim was written by another pod",
        ),
        (
            "S10",
            stopped,
            "a run was claimed that had been cancelled or denied",
        ),
        (
            "S10",
            run.metadata.deletion_timestamp.is_some(),
            "a run was claimed that was being deleted",
        ),
        (
            "S29",
            key.is_some() && new.lease.as_ref().map(|lease| &lease.state_key) != key,
            "the claim stands on no lease of its state",
        ),
    ];
    let found = always
        .into_iter()
        .chain(at_once.into_iter().filter(|_| whole));
    found
        .filter(|(_, wrong, _)| *wrong)
        .map(|(invariant, _, text)| (invariant, text.to_owned()))
        .collect()
}

/// The result of a run matches its tool's actions.
pub(super) fn truth(
    result: RunResult,
    changes: Changed,
    claimed: bool,
    deeds: &Deeds,
) -> Option<(&'static str, String)> {
    let touched = deeds.changed > 0;
    let (invariant, lie) = match result {
        RunResult::Applied | RunResult::Destroyed => ("S28", deeds.ended != Some(true)),
        RunResult::NoChanges | RunResult::Planned | RunResult::Drifted => {
            ("S28", touched || deeds.applies > 0)
        }
        RunResult::Canceled | RunResult::Rejected | RunResult::Expired | RunResult::Superseded => {
            ("S11", deeds.applies > 0)
        }
        RunResult::Failed => ("S28", changes == Changed::None && touched),
        RunResult::Indeterminate => ("S28", !claimed),
        RunResult::Unknown => ("S28", true),
    };
    lie.then(|| {
        (
            invariant,
            format!("it says {result} with changes {changes:?}, and the tool did: {deeds:?}"),
        )
    })
}
