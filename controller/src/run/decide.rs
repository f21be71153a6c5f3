//! The decision: a pure function of what was observed, the settings and the clock. Its rules are those of
//! `design/0001-run-protocol.md`; [`super::close`] holds the table of endings, [`super::start`] attempts that nobody has
//! adopted yet, [`super::approve`] approvals.

pub(super) mod recovery;
pub(super) mod rerun;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crds::{ApprovalMode, Attempt, Phase, RunResult, TerraformRun, conditions, names, reason};

use super::{
    actions::{Action, Decision, Gate, Kind, Observed, PodState, PodView},
    approve, close, journal, keep, lease, locks,
    node::{self, Abandon, Fate},
    proof, start,
    status::{Draft, End, of_tries},
    void,
};
pub(super) use crate::requests::asked;
use crate::{gc::ttl, settings::Settings};

/// How long the agent has to carry out a cancel, deny or deletion before its pod is deleted.
pub const ASK_GRACE: SignedDuration = SignedDuration::from_secs(30);
/// How long that pod then has to end before its attempt is closed without it: before the claim the closing is the fence.
pub(super) const END_GRACE: SignedDuration = SignedDuration::from_secs(20);
/// How long a claimed attempt's pod has to be gone before the run is Indeterminate.
pub const GONE_WAIT: SignedDuration = SignedDuration::from_secs(60);
/// How long after its creation a pod may be missing from the cache before somebody looks for it.
pub const CREATION_LAG: SignedDuration = SignedDuration::from_secs(5);
/// How long a claim has to be there before an Automatic run's conditions say so: short runs save the write.
pub const LATE_CONDITIONS: SignedDuration = SignedDuration::from_secs(2);

/// Says what is to be done now. A run with a word of a newer version is left to the newer version.
pub fn decide(o: &Observed, settings: &Settings, now: Timestamp) -> Decision {
    if o.run.unknown_word().is_some() {
        return Decision::wait();
    }
    let status = o.status();
    let open = status.attempt.as_ref().filter(|attempt| attempt.open);
    match (status.is_terminal(), open) {
        (true, Some(attempt)) => ended_but_open(o, attempt, now),
        (true, None) => ended(o, settings, now),
        (false, Some(attempt)) => working(o, attempt, settings, now),
        (false, None) => idle(o, settings, now),
    }
}

/// `at + wait`, or the end of time.
pub(super) fn after(at: Timestamp, wait: SignedDuration) -> Timestamp {
    at.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// The pod of the attempt, as far as the status knows it: the adopted one, or before that whichever has its name.
pub(super) enum Seen<'a> {
    /// Not looked for, or too early to say.
    Unknown,
    /// Not there: never created, or gone.
    Absent,
    /// There and not ended.
    Running(&'a PodView),
    /// There and ended.
    Ended(&'a PodView),
}

/// Looks at the attempt's pod. Another pod of the same name than the adopted one means that the adopted one is gone.
pub(super) fn seen<'a>(o: &'a Observed, attempt: &Attempt) -> Seen<'a> {
    let adopted = o.status().adopted.as_ref().filter(|adopted| adopted.attempt == attempt.number);
    match &o.pod {
        PodState::Unknown => Seen::Unknown,
        PodState::Absent => Seen::Absent,
        PodState::Present(pod) if pod.attempt != attempt.number => Seen::Absent,
        PodState::Present(pod) if adopted.is_some_and(|adopted| adopted.pod_uid != pod.uid) => Seen::Absent,
        PodState::Present(pod) if pod.ended.is_some() => Seen::Ended(pod),
        PodState::Present(pod) => Seen::Running(pod),
    }
}

/// The agent has ended the run, and its pod is still to end.
fn ended_but_open(o: &Observed, attempt: &Attempt, now: Timestamp) -> Decision {
    let status = o.status();
    match seen(o, attempt) {
        Seen::Unknown => Decision::until(after(now, CREATION_LAG), now),
        Seen::Absent | Seen::Ended(_) => close::close_ended(o, attempt, now),
        Seen::Running(pod) => {
            // A node that is lost may keep its pod for long: people need not wait for it.
            let ended_at = status.completion_time.as_ref().map_or(now, |t| t.0);
            let late = after(ended_at, ASK_GRACE);
            if now < late {
                return Decision::until(late, now);
            }
            if let Fate::Lost(_) | Fate::Over(_) = node::fate(o) {
                return close::close_ended(o, attempt, now);
            }
            let mut actions = Vec::new();
            if conditions::status(&status.conditions, conditions::FINISHED) != Some(true) {
                actions.push(Action::Write(finish_conditions(o, Kind::Conditions, now)));
            }
            if o.run.metadata.deletion_timestamp.is_some() && !pod.deleting {
                actions.push(Action::DeletePod { name: pod.name.clone(), uid: pod.uid.clone() });
            }
            Decision::all(actions)
        }
    }
}

/// Conditions of a run that has ended, from its status.
pub(super) fn finish_conditions(o: &Observed, kind: Kind, now: Timestamp) -> super::actions::Write {
    let status = o.status();
    let result = status.result.unwrap_or(RunResult::Failed);
    let mut draft = Draft::new(&o.run, status, now);
    if kind == Kind::Close {
        draft.close();
    }
    let failure = status.failure.as_ref().map(|f| f.reason.as_str());
    draft.ended_conditions(result, failure, status.message.as_deref().unwrap_or_default());
    if kind == Kind::Close {
        lease::give_back_at_end(&mut draft, result);
    }
    draft.finish(kind)
}

/// The run has ended and no attempt is open: tidy up, answer a rerun, prune.
fn ended(o: &Observed, settings: &Settings, now: Timestamp) -> Decision {
    let run = &o.run;
    // Before its pod is let go: what it says may be the proof that an Indeterminate run waits for.
    if let Some(write) = proof::settles(o, now) {
        return Decision::act(Action::Write(write));
    }
    let lease = lease::confirmed(o, settings, now);
    if let Some(decision) = lease.as_ref().filter(|decision| !decision.actions.is_empty()) {
        return decision.clone();
    }
    let release = release(o);
    if !release.is_empty() {
        return Decision::all(release);
    }
    let lease = lease.or_else(|| lease::unconfirmed(o, settings, now));
    if let Some(decision) = lease.as_ref().filter(|decision| !decision.actions.is_empty()) {
        return decision.clone();
    }
    if run.metadata.deletion_timestamp.is_some() {
        return lease.unwrap_or_else(|| remove(run));
    }
    let mut decision = at_rest(o, settings, now);
    if decision.actions.is_empty() {
        decision.requeue = decision.requeue.into_iter().chain(lease.and_then(|lease| lease.requeue)).min();
    }
    decision
}

/// The run has ended and nothing of it is left: conditions, a rerun that is asked for, late proof, its time.
fn at_rest(o: &Observed, settings: &Settings, now: Timestamp) -> Decision {
    let (run, status) = (&o.run, o.status());
    if conditions::status(&status.conditions, conditions::FINISHED) != Some(true) {
        return Decision::act(Action::Write(finish_conditions(o, Kind::Conditions, now)));
    }
    let reruns = run.annotations().get(names::RERUN).is_some_and(|value| value == "true");
    if reruns && status.rerun.is_some() {
        // So that asking once more is seen, and refused with the name of the run that answered.
        return Decision::act(Action::TakeOff(&[names::RERUN]));
    }
    if reruns || recovery::is_asked(run, status) {
        // Who may ask is the policies' business.
        return unproven(o, now).unwrap_or_else(|| if reruns { rerun::answer(o, now) } else { recovery::answer(o, now) });
    }
    if let Some(write) = journal::adds(o, now) {
        return Decision::act(Action::Write(write));
    }
    if let Some(decision) = proof::ask(o, settings, now).or_else(|| journal::ask(o, settings, now)) {
        return decision;
    }
    match ttl::due(run, status, settings) {
        Some(due) if now >= due => Decision::act(Action::Prune),
        Some(due) => Decision::until(due, now),
        None => Decision::wait(),
    }
}

/// Everything of the run goes, then the run.
fn remove(run: &TerraformRun) -> Decision {
    if run.finalizers().iter().any(|f| f == names::RUN_FINALIZER) {
        Decision::all(vec![Action::Cleanup, Action::RemoveFinalizer])
    } else {
        Decision::wait()
    }
}

/// What is left to do with the pod of an attempt that is closed. Its finalizer goes last: it is the mark that says that this is
/// still to be done.
fn release(o: &Observed) -> Vec<Action> {
    let status = o.status();
    let Some(attempt) = status.attempt.as_ref().filter(|attempt| !attempt.open) else { return Vec::new() };
    match &o.pod {
        PodState::Present(pod) if pod.held && pod.attempt == attempt.number => {
            let mut actions = vec![Action::DeleteAccount { name: attempt.pod_name.clone() }];
            if pod.ended.is_none() && !pod.deleting {
                actions.push(Action::DeletePod { name: pod.name.clone(), uid: pod.uid.clone() });
            }
            actions.push(Action::ReleasePod { name: pod.name.clone(), uid: pod.uid.clone() });
            actions
        }
        PodState::Present(_) | PodState::Absent | PodState::Unknown => Vec::new(),
    }
}

/// Seconds until the next try after so many: 10, 20, 40, … at most 300.
pub(super) fn backoff(tries: u32) -> SignedDuration {
    let seconds = 10_i64.checked_shl(tries.saturating_sub(1)).unwrap_or(300);
    SignedDuration::from_secs(if (10..=300).contains(&seconds) { seconds } else { 300 })
}

/// No attempt is open and the run has not ended: the first attempt, or the next.
fn idle(o: &Observed, settings: &Settings, now: Timestamp) -> Decision {
    let (run, status) = (&o.run, o.status());
    let release = release(o);
    if !release.is_empty() {
        return Decision::all(release);
    }
    if status.claim.is_some() {
        // Closing a claimed attempt ends its run in the same write, so this needs another hand. No further attempt, ever.
        return close::unconfirmed(o, "its attempt was closed", settings, now);
    }
    if let Some((result, message)) = asked(run) {
        if status.phase.is_none() {
            if run.metadata.deletion_timestamp.is_some() {
                return remove(run);
            }
            // The first phase is Pending, so the end takes a second write.
            let mut draft = Draft::new(run, status, now);
            draft.set("phase", Phase::Pending);
            return Decision::act(Action::Write(draft.finish(Kind::Begin)));
        }
        let mut draft = Draft::new(run, status, now);
        draft.end(&End { result, message: format!("{message}; nothing was applied"), failure: None });
        lease::give_back(&mut draft);
        return Decision::act(Action::Write(draft.finish(Kind::End)));
    }
    let automatic = run.spec.approval.mode == ApprovalMode::Automatic;
    if !run.finalizers().iter().any(|f| f == names::RUN_FINALIZER) {
        let prove = unproven(o, now).is_some_and(|decision| !decision.actions.is_empty());
        return Decision::act(Action::AddFinalizer { prove });
    }
    if let Some((plan, attempt)) = keep::kept(o) {
        return keep::wait(o, plan, attempt, settings, now);
    }
    if let Some(attempt) = status.attempt.as_ref().filter(|_| status.failure.is_some()) {
        let closed = attempt.closed_at.as_ref().map_or(now, |t| t.0);
        let due = after(closed, backoff(attempt.tries));
        if now < due {
            return Decision::until(due, now);
        }
    }
    if let Some(decision) = gated(o, now) {
        return decision;
    }
    if automatic
        && let Some(want) = lease::wants(run, false, settings.has_datastore())
        && let Some(decision) = lease::before_opening(o, &want.key, now)
    {
        return decision;
    }
    Decision::act(Action::Write(start::open(o, settings, now)))
}

/// What comes before anything that rests on the admission policies; `None`: they stand, as they were proven.
pub(super) fn unproven(o: &Observed, now: Timestamp) -> Option<Decision> {
    match &o.gate {
        Gate::Proven if o.gate_live => None,
        Gate::Refuted { retry_at, .. } if now < *retry_at => Some(Decision::until(*retry_at, now)),
        Gate::Unknown | Gate::Proven | Gate::Refuted { .. } => Some(Decision::act(Action::ProveGate)),
    }
}

/// The same before an attempt is opened: the run waits without a pod and says so.
pub(super) fn gated(o: &Observed, now: Timestamp) -> Option<Decision> {
    let mut decision = unproven(o, now)?;
    if let (Gate::Refuted { missing, .. }, true) = (&o.gate, decision.actions.is_empty()) {
        decision.actions.extend(policy_missing(o, missing, now));
    }
    Some(decision)
}

/// Says that the policies are missing, once.
fn policy_missing(o: &Observed, missing: &str, now: Timestamp) -> Option<Action> {
    let status = o.status();
    let mut draft = Draft::new(&o.run, status, now);
    draft.condition_if_new(conditions::STALLED, Some(true), reason::POLICY_MISSING, missing);
    if draft.is_empty() {
        return None;
    }
    if status.phase.is_none() {
        draft.set("phase", Phase::Pending);
    }
    draft.condition_if_new(conditions::SUCCEEDED, None, reason::RUNNING, "");
    draft.condition_if_new(conditions::FINISHED, Some(false), reason::RUNNING, "");
    draft.message(&format!("waits for the admission policies of the chart, without which no run starts: {missing}"));
    draft.set("nextStep", approve::POLICY_COMMAND);
    draft.note(reason::POLICY_MISSING, true, missing);
    Some(Action::Write(draft.finish(Kind::Begin)))
}

/// An attempt is open and the run has not ended.
fn working(o: &Observed, attempt: &Attempt, settings: &Settings, now: Timestamp) -> Decision {
    let (run, status) = (&o.run, o.status());
    let adopted = status.adopted.as_ref().is_some_and(|adopted| adopted.attempt == attempt.number);
    let pod = seen(o, attempt);
    if status.claim.is_some() {
        return match pod {
            Seen::Unknown => Decision::until(after(now, CREATION_LAG), now),
            Seen::Running(pod) => applying(o, attempt, pod, settings, now),
            Seen::Ended(pod) => close::close_claimed(o, pod, settings, now),
            Seen::Absent => close::claimed_and_gone(o, attempt, None, settings, now),
        };
    }
    if let Some((result, message)) = asked(run) {
        let early = |result, message: &str| {
            let message = format!("{message}; nothing was applied");
            close::close_early(o, attempt, &End { result, message, failure: None }, now)
        };
        return match pod {
            Seen::Unknown => Decision::until(after(now, CREATION_LAG), now),
            Seen::Running(pod) if adopted => {
                let late = after(o.notes.asked_at.unwrap_or(now), ASK_GRACE);
                let last = after(late, END_GRACE);
                if now < late {
                    Decision::until(late, now)
                } else if !pod.deleting {
                    Decision::act(Action::DeletePod { name: pod.name.clone(), uid: pod.uid.clone() })
                } else if now < last {
                    Decision::until(last, now)
                } else {
                    early(result, &message)
                }
            }
            Seen::Running(_) | Seen::Ended(_) | Seen::Absent => early(result, &message),
        };
    }
    if let Seen::Running(_) | Seen::Absent = &pod
        && let Some(end) = keep::superseded(o).or_else(|| keep::before_restore(o, settings))
    {
        return close::close_early(o, attempt, &end, now);
    }
    if let Seen::Running(pod) = &pod
        && let Some(decision) = off(o, attempt, pod, now)
    {
        return decision;
    }
    if let (false, Some(action)) = (adopted, keep::kept(o).and_then(|(plan, _)| approve::withdrawal(o, plan, now))) {
        return Decision::act(action);
    }
    match pod {
        Seen::Unknown => Decision::until(after(now, CREATION_LAG), now),
        Seen::Ended(pod) => close::close_unclaimed(o, attempt, Some(pod), now),
        Seen::Absent if adopted => close::close_unclaimed(o, attempt, None, now),
        Seen::Running(_) if adopted => progress(o, attempt, now),
        Seen::Absent => start::not_started(o, attempt, None, settings, now),
        Seen::Running(pod) => start::not_started(o, attempt, Some(pod), settings, now),
    }
}

/// The pod of an attempt without a claim is on a node that is lost: the run says so, and after a time another attempt follows.
/// Closing this one is the fence, so that nothing has to be known of its pod.
fn off(o: &Observed, attempt: &Attempt, pod: &PodView, now: Timestamp) -> Option<Decision> {
    match node::fate(o) {
        Fate::Unknown | Fate::Ready => None,
        Fate::Over(why) => Some(close::close_lost(o, attempt, &why, now)),
        Fate::Lost(view) => Some(if let Some(write) = node::says(o, pod, view, now) {
            Decision::act(Action::Write(write))
        } else if now < node::due(o, pod, now) {
            Decision::until(node::due(o, pod, now), now)
        } else {
            close::close_lost(o, attempt, &format!("node {} of pod {} is lost", view.name, pod.name), now)
        }),
    }
}

/// A claim is there, and the pod has not ended as far as anybody knows: its node has to say so.
fn applying(o: &Observed, attempt: &Attempt, pod: &PodView, settings: &Settings, now: Timestamp) -> Decision {
    match node::fate(o) {
        Fate::Unknown | Fate::Ready => progress(o, attempt, now),
        Fate::Over(why) => close::claimed_and_gone(o, attempt, Some(&why), settings, now),
        Fate::Lost(view) => match (node::abandon(o, now), node::says(o, pod, view, now)) {
            (Abandon::Yes(text), _) => close::unconfirmed(o, &text, settings, now),
            (_, Some(write)) => Decision::act(Action::Write(write)),
            (Abandon::Waits(decision), None) => decision,
            (Abandon::No, None) => Decision::wait(),
        },
    }
}

/// The agent works: approvals, and conditions that are worth a write.
fn progress(o: &Observed, attempt: &Attempt, now: Timestamp) -> Decision {
    let (run, status) = (&o.run, o.status());
    let waits = status.phase == Some(Phase::AwaitingApproval) && status.claim.is_none();
    let plan = keep::plan_of(status, attempt);
    if waits
        && run.spec.approval.mode == ApprovalMode::Manual
        && let Some(plan) = plan
    {
        return approve::decide(o, plan, now);
    }
    if let Some(decision) = locks::decide(o, now) {
        return decision;
    }
    if let (None, Some(key)) = (&status.claim, plan.and_then(|plan| plan.state_key.as_deref()))
        && run.spec.approval.mode == ApprovalMode::Automatic
        && let Some(decision) = lease::before_claim(o, key, now)
    {
        return decision;
    }
    let mut draft = Draft::new(run, status, now);
    node::goes_on(&mut draft, o);
    let mut decision = Decision::wait();
    if let (Some(claim), Some(plan)) = (&status.claim, plan) {
        let due = after(claim.at.0, LATE_CONDITIONS);
        if now >= due {
            if conditions::status(&status.conditions, conditions::PLANNED) != Some(true) {
                draft.condition(conditions::PLANNED, Some(true), reason::PLANNED, &plan.summary);
            }
            node::record(&mut draft, o, false);
        } else if conditions::status(&status.conditions, conditions::PLANNED) != Some(true) || attempt.node_name.is_none() {
            decision = Decision::until(due, now);
        }
    }
    if !draft.is_empty() {
        decision.actions.push(Action::Write(draft.finish(Kind::Conditions)));
    }
    if node::refuses(o) {
        decision.actions.push(Action::TakeOff(&void::ABANDONS));
    }
    decision
}

/// The message of a run whose attempt was opened.
pub(super) fn opened_message(run: &TerraformRun, name: &str, tries: u32) -> String {
    format!("{}: waits for pod {name} to start", of_tries(run, tries))
}
