//! The decision: a pure function of what was observed and the clock (`design/0030-layers.md`).

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::json;

use crds::{DeletionPolicy, Remediation, RunResult, TerraformLayerStatus, names};

use super::{
    conditions::failed_text,
    decision::{Action, Decision},
    deletion,
    next::{Next, approval_of, held_up, plan_command, resumes, supersede},
    observed::{Namespace, Observed},
    requesters, retention,
    run_summary::{RunSummary, Stage},
    situation::{Hold, Situation, Wanted, has_newer_word},
    status, triggers,
};

/// Decides what to do now. A layer with an enum value of a newer version is left to the newer version, unless its namespace is being
/// deleted: a layer retains no namespace.
pub fn decide(o: &Observed, now: Timestamp) -> Decision {
    let untouched = || Decision {
        status: o.status(),
        ..Decision::default()
    };
    // First, so that nothing else retains the namespace: no hold of the layer, no read, no value of a newer version.
    if o.namespace == Namespace::Goes && o.is_held() {
        return Decision {
            actions: vec![Action::RemoveFinalizer],
            ..untouched()
        };
    }
    if has_newer_word(&o.layer) || o.is_deleted() && !o.is_held() {
        return untouched();
    }
    let s = Situation::of(o, now);
    if let Some(run) = s.facts.unread(o) {
        return Decision {
            actions: vec![Action::Read { run }],
            ..untouched()
        };
    }
    if o.annotation(names::PLAN) == Some("now") {
        // Distinct requests get distinct tokens: any write in between changes the resourceVersion.
        let version = names::short_hash(&o.layer.resource_version().unwrap_or_default());
        let token = format!("{}-{version}", now.strftime("%Y%m%dT%H%M%SZ"));
        return Decision {
            status: TerraformLayerStatus {
                requested_by: requesters::open(&s),
                ..o.status()
            },
            actions: vec![Action::TakeAsk { token }],
            ..Decision::default()
        };
    }
    let mut next = if o.is_deleted() {
        deletion::next(&s, now)
    } else {
        living(&s, now)
    };
    let (status, mut notes) = status::of(&s, &next, now);
    notes.extend(next.note.take());
    let mut expires = None;
    if !o.is_deleted() {
        let (over, at) = retention::over(&o.runs, &status, &o.layer.spec, now);
        expires = at;
        next.actions
            .extend(over.into_iter().map(|run| Action::Delete {
                run: run.name.to_string(),
                uid: run.uid.to_string(),
            }));
    }
    let check = s
        .check
        .as_ref()
        .ok()
        .copied()
        .flatten()
        .filter(|_| s.facts.current.is_none());
    let retry = s
        .failed()
        .and_then(|failures| failures.retry_at.as_ref())
        .map(|at| at.0);
    let requeue = [next.at, check, retry, expires, s.fault_at]
        .into_iter()
        .flatten()
        .filter(|at| *at > now)
        .min()
        .map(|at| wait(at, now));
    Decision {
        status,
        actions: next.actions,
        notes,
        requeue,
    }
}

fn wait(at: Timestamp, now: Timestamp) -> Duration {
    let millis = at
        .as_millisecond()
        .saturating_sub(now.as_millisecond())
        .max(0);
    // 20 ms late rather than early, when nothing could be done yet.
    Duration::from_millis(millis.unsigned_abs() + 20)
}

/// A layer that is not deleted.
fn living(s: &Situation<'_>, now: Timestamp) -> Next {
    let o = s.o;
    let destroys = o.layer.spec.deletion_policy == DeletionPolicy::Destroy;
    let mut next = work(s, now);
    if destroys && !o.is_held() && o.namespace != Namespace::Goes {
        // Before anything is created that would have to be destroyed.
        next.actions.insert(0, Action::AddFinalizer);
    } else if !destroys && o.is_held() {
        next.actions.push(Action::RemoveFinalizer);
    }
    next
}

fn work(s: &Situation<'_>, now: Timestamp) -> Next {
    let current = s.facts.current;
    match &s.wanted {
        Err(hold) => held(s, hold),
        Ok(_) if s.o.is_suspended() => current.map_or_else(|| resumes(s), |run| at_work(s, run)),
        Ok(_) if s.o.namespace != Namespace::Stays => {
            current.map_or_else(|| held_up(s).unwrap_or_default(), |run| at_work(s, run))
        }
        Ok(wanted) => match current {
            Some(run) => under_way(s, run, wanted),
            None => due(s, wanted, now),
        },
    }
}

/// Nothing can be planned. A pending run on a state that an older layer owns is withdrawn.
fn held(s: &Situation<'_>, hold: &Hold) -> Next {
    let mut next = Next {
        waits_for: Some(hold.message.clone()),
        step: hold.next_step.clone(),
        ..Next::default()
    };
    let foreign = s
        .facts
        .current
        .filter(|run| s.o.owner.is_some() && run.may_be_superseded());
    next.actions
        .extend(foreign.map(|run| supersede(run, &hold.message)));
    next
}

/// A run is in progress. A newer commit or other settings replace it if it has not begun or waits for approval. Other settings replace
/// it until it plans; a commit does not, or frequent commits would leave no time for a plan.
fn under_way(s: &Situation<'_>, run: &RunSummary, wanted: &Wanted) -> Next {
    let digest = &wanted.effective.digest;
    let same = *run.content == *wanted.content;
    let too_late = !run.may_be_superseded() || run.stage == Stage::Preparing && !same;
    if too_late || run.is_of(&wanted.content, digest) {
        return at_work(s, run);
    }
    let short: String = wanted.revision.chars().take(12).collect();
    let why = if same {
        "other settings".to_owned()
    } else {
        format!("commit {short}")
    };
    Next {
        actions: vec![supersede(run, &format!("superseded for {why}"))],
        waits_for: Some(format!(
            "the end of run {}: it is superseded for {why}",
            run.name
        )),
        ..Next::default()
    }
}

fn at_work(s: &Situation<'_>, run: &RunSummary) -> Next {
    let mut next = unhindered(s, run);
    if let Namespace::Frozen(why) = &s.o.namespace
        && matches!(
            run.stage,
            Stage::NotBegun | Stage::Waiting | Stage::Approved
        )
    {
        next.step = Some(why.next_step());
    }
    next
}

fn unhindered(s: &Situation<'_>, run: &RunSummary) -> Next {
    match (&s.facts.pending, &run.obstacle) {
        (Some(pending), _) => approval_of(s, pending),
        (None, Some(obstacle)) => Next {
            waits_for: Some(format!("run {}: {}", run.name, obstacle.message)),
            step: obstacle.step.as_deref().map(Into::into),
            ..Next::default()
        },
        (None, None) if run.stage == Stage::Approved => Next {
            waits_for: Some(format!("run {}, which is approved", run.name)),
            ..Next::default()
        },
        (None, None) => Next {
            waits_for: Some(format!("run {}", run.name)),
            ..Next::default()
        },
    }
}

fn due(s: &Situation<'_>, wanted: &Wanted, now: Timestamp) -> Next {
    let Some(cause) = triggers::due(s, now) else {
        return waits(s);
    };
    Next::create(s, &wanted.effective, &cause, now)
}

/// No run is in progress, and none is due.
fn waits(s: &Situation<'_>) -> Next {
    let layer = &s.o.layer;
    if let Some(fault) = &s.fault {
        return Next {
            waits_for: Some(fault.message.clone()),
            step: fault.next_step.clone(),
            ..Next::default()
        };
    }
    if let Some(failures) = s.failed() {
        let namespace = layer.namespace().unwrap_or_default();
        let describe = format!(
            "kubectl describe -n {namespace} {}/{}",
            names::KUBECTL_RUN,
            failures.run
        );
        let run = s.o.named(&failures.run, failures.uid.as_deref());
        let failed = failed_text(&run, failures);
        return match &failures.retry_at {
            Some(at) => Next {
                waits_for: Some(format!("the next retry at {}: {failed}", at.0)),
                step: Some(describe),
                ..Next::default()
            },
            None => Next {
                waits_for: Some(format!("a commit, other settings or a person: {failed}")),
                step: Some(format!(
                    "push a correction, or change spec.template, and it is planned again; without a change: {}",
                    plan_command(layer)
                )),
                ..Next::default()
            },
        };
    }
    let plan = s
        .facts
        .last_plan
        .as_ref()
        .filter(|_| !s.is_settled() || s.facts.drift.is_some());
    let Some(plan) = plan else {
        return Next::default();
    };
    let run = s.o.named(&plan.run, plan.uid.as_deref());
    let (what, step) = match plan.result {
        Some(RunResult::Planned) => (
            format!("nothing: remediation is Dry, and the changes of {run} are not applied"),
            undried(s).unwrap_or_else(|| plan_command(layer)),
        ),
        result => {
            let ended = result.map_or("gone", RunResult::as_str);
            (
                format!(
                    "a commit, a person or the next drift check: {run} is {ended}, and nothing was applied"
                ),
                plan_command(layer),
            )
        }
    };
    Next {
        waits_for: Some(what),
        step: Some(step),
        ..Next::default()
    }
}

/// The command after which a Dry layer plans again, and its plan waits for an approval; `None` for one that is not Dry any more.
fn undried(s: &Situation<'_>) -> Option<String> {
    let (layer, remediation) = (&s.o.layer, s.o.layer.spec.remediation);
    let (field, now) = if s.facts.drift.is_some() {
        ("onDrift", remediation.on_drift)
    } else {
        ("onCommit", remediation.on_commit)
    };
    let patch = json!({"spec": {"remediation": {field: "Manual"}}});
    (now == Remediation::Dry).then(|| {
        format!(
            "kubectl patch -n {} {}/{} --type=merge -p '{patch}'",
            layer.namespace().unwrap_or_default(),
            names::KUBECTL_LAYER,
            layer.name_any()
        )
    })
}
