//! Deletion of a layer that has the finalizer: a run destroys its resources, then the finalizer is removed.

use jiff::Timestamp;

use kube::ResourceExt as _;

use crds::{
    DeletionPolicy, LayerFailures, LayerRun, Operation, Remediation, RunResult, Trigger, names,
    reason,
};

use super::{
    decision::Action,
    next::{Next, approval_of, plan_command, resumes, supersede},
    run_summary::RunSummary,
    situation::{self, Situation},
    template::Effective,
    triggers::{self, Cause},
};
use crate::events::Note;

pub(super) fn next(s: &Situation<'_>, now: Timestamp) -> Next {
    let last =
        s.o.runs
            .iter()
            .rev()
            .find(|run| run.operation == Operation::Destroy);
    let destroyed = last.is_some_and(|run| {
        matches!(
            run.result,
            Some(RunResult::Destroyed | RunResult::NoChanges)
        )
    });
    let orphaned = s.o.layer.spec.deletion_policy != DeletionPolicy::Destroy;
    // The resources of an older layer are not this one's to destroy.
    let foreign = s.o.owner.is_some();
    if destroyed || orphaned || foreign {
        return Next {
            actions: vec![Action::RemoveFinalizer],
            note: s
                .o
                .owner
                .as_ref()
                .filter(|_| !destroyed && !orphaned)
                .map(left),
            ..Next::default()
        };
    }
    if let Some(run) = s.facts.current {
        return under_way(s, run);
    }
    // Without a plan no object exists, so a layer with a misspelled repository can be deleted.
    let Some(made) = s.facts.last_apply.as_ref().or(s.facts.last_plan.as_ref()) else {
        return Next {
            actions: vec![Action::RemoveFinalizer],
            ..Next::default()
        };
    };
    // The destroy uses the revision that was planned before, so it works without the ref and the path.
    let effective = match situation::effective(s.o) {
        Ok(effective) => effective,
        Err(hold) => {
            let what = format!(
                "{}; until that changes, the layer's objects are not destroyed",
                hold.message
            );
            return Next {
                waits_for: Some(what),
                step: Some(orphan(s)),
                ..Next::default()
            };
        }
    };
    if s.o.is_suspended() {
        return resumes(s);
    }
    if s.o.layer.spec.remediation.on_delete == Remediation::Dry {
        let what = "remediation.onDelete is Dry: nothing is destroyed until it or deletionPolicy is changed";
        return Next {
            waits_for: Some(what.into()),
            step: Some(orphan(s)),
            ..Next::default()
        };
    }
    match cause(s, made, &effective, last, now) {
        Ok(cause) => Next::create(s, &effective, &cause, now),
        Err(next) => *next,
    }
}

fn under_way(s: &Situation<'_>, run: &RunSummary) -> Next {
    if run.operation == Operation::Destroy {
        return match &s.facts.pending {
            Some(pending) => approval_of(s, pending),
            None => Next {
                waits_for: Some(format!(
                    "run {}, which destroys the layer's objects",
                    run.name
                )),
                ..Next::default()
            },
        };
    }
    let mut next = Next {
        waits_for: Some(format!("the end of run {}", run.name)),
        ..Next::default()
    };
    // Its plan is no longer needed in any stage. An approved or claimed run ends by itself.
    if run.may_be_taken_back() {
        next.actions.push(supersede(run, "the layer is deleted"));
    }
    next
}

/// The first destroy run is due at once. A failed one is retried like any run; a denied, canceled or expired one only on request.
fn cause(
    s: &Situation<'_>,
    made: &LayerRun,
    effective: &Effective,
    last: Option<&RunSummary>,
    now: Timestamp,
) -> Result<Cause, Box<Next>> {
    let layer = &s.o.layer;
    let of = |id: String| Cause {
        trigger: Trigger::Deletion,
        id,
        revision: made.revision.clone(),
        content: made.content.clone(),
        operation: Operation::Destroy,
        remediation: layer.spec.remediation.on_delete,
        answers: None,
        applied: None,
    };
    if let Some(asked) = triggers::asked(s) {
        return Ok(Cause {
            answers: Some(asked.to_owned()),
            ..of(format!("deletion asked {asked}"))
        });
    }
    let failures = s.facts.failures.as_ref();
    let (name, result, failures) =
        match last.filter(|run| !run.was_taken_back() && *run.settings == *effective.digest) {
            Some(run) => (
                &*run.name,
                run.result.map_or("ended", RunResult::as_str),
                failures.filter(|failures| run.is_same(&failures.run, failures.uid.as_deref())),
            ),
            // The destroy run was stopped or failed, and a person deleted it, which requests no other.
            None => match failures.filter(|failures| is_gone(s, failures)) {
                Some(failures) => (&*failures.run, "gone", Some(failures)),
                None => return Ok(of(format!("deletion after {}", s.o.newest()))),
            },
        };
    match failures {
        Some(LayerFailures {
            retry_at: Some(at), ..
        }) if at.0 <= now => Ok(of(format!("deletion after {}", s.o.newest()))),
        Some(LayerFailures {
            retry_at: Some(at),
            times,
            reason,
            ..
        }) => {
            let what = format!(
                "the next retry at {}: run {name} failed, failure {times} in a row ({reason})",
                at.0
            );
            Err(Box::new(Next {
                waits_for: Some(what),
                at: Some(at.0),
                ..Next::default()
            }))
        }
        Some(_) | None => {
            let what = format!(
                "a person: run {name}, which was to destroy the layer's objects, is {result}"
            );
            let namespace = layer.namespace().unwrap_or_default();
            let describe = format!(
                "kubectl describe -n {namespace} {}/{name}",
                names::KUBECTL_RUN
            );
            let step = format!("see with `{describe}` why, then: {}", plan_command(layer));
            Err(Box::new(Next {
                waits_for: Some(what),
                step: Some(step),
                ..Next::default()
            }))
        }
    }
}

/// Whether the run failed after the layer's deletion, with the same settings, and was deleted.
fn is_gone(s: &Situation<'_>, failures: &LayerFailures) -> bool {
    let deleted = s.o.layer.metadata.deletion_timestamp.as_ref();
    deleted.is_some_and(|at| at.0 <= failures.at.0)
        && !s
            .o
            .runs
            .iter()
            .any(|run| run.is_same(&failures.run, failures.uid.as_deref()))
}

/// The command that removes the layer and leaves its resources.
fn orphan(s: &Situation<'_>) -> String {
    let (namespace, name) = (
        s.o.layer.namespace().unwrap_or_default(),
        s.o.layer.name_any(),
    );
    format!(
        "to keep its objects: kubectl patch -n {namespace} {}/{name} --type=merge -p '{{\"spec\":{{\"deletionPolicy\":\"Orphan\"}}}}'",
        names::KUBECTL_LAYER
    )
}

/// The layer goes without a destroy, though its policy asks for one.
fn left((namespace, name): &(String, String)) -> Note {
    Note {
        reason: reason::STATE_OWNED,
        warning: true,
        text: format!(
            "nothing was destroyed: the older layer {name} of {namespace} has the same state, and its objects stay"
        ),
    }
}
