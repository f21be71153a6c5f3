//! The row of a run.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt as _;
use schemars::JsonSchema;
use serde::Serialize;

use crds::{
    Changes, Operation, Phase, RunResult, TerraformRun, TerraformRunStatus, Trigger, conditions,
    names, reason, text::clip,
};

/// Reasons of conditions with which a run waits for others.
const WAITS: [&str; 4] = [
    reason::QUEUED,
    reason::SLOTS_FULL,
    reason::FROZEN,
    reason::LEASE_REFUSED,
];

/// A run in a list.
#[derive(Serialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RunRow {
    pub namespace: Box<str>,
    pub name: Box<str>,
    pub uid: Box<str>,
    /// Name of its layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer: Option<Box<str>>,
    /// The operation.
    pub action: Operation,
    /// The trigger of a layer's run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Trigger>,
    pub phase: Phase,
    /// The result once it has ended; what is known later replaces `Indeterminate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<RunResult>,
    /// Why it failed, waits or is stuck: one word of the guide's `reasons.md`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Box<str>>,
    /// Its wait for a slot, for the state, or for the end of a freeze.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
    /// Whether an obstacle holds it up.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stalled: bool,
    /// The changes of its plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<Changes>,
    /// The plan's checksum while it may be approved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum: Option<Box<str>>,
    /// The commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<Box<str>>,
    /// The tool's progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Done>,
    /// Seconds that its finished commands took, in all attempts: without waiting for a slot or a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worked: Option<i64>,
    pub created_at: Option<Time>,
    /// When its phase began, as far as known.
    pub phase_since: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    /// When its waiting plan expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requested_by: Vec<Box<str>>,
    /// The approver, or `automatic`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<Box<str>>,
    /// The run that recovers or repeats this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub followed_by: Option<Box<str>>,
}

/// Why a run waits, in the controller's words.
#[derive(Serialize, JsonSchema, Clone, Debug, PartialEq)]
pub struct Wait {
    pub why: Box<str>,
    /// Its place in the queue for its state, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<u32>,
}

/// Finished resources.
#[derive(Serialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub done: u32,
    /// 0 when unknown.
    pub total: u32,
}

impl RunRow {
    pub fn of(run: &TerraformRun) -> Self {
        let none = TerraformRunStatus::default();
        let status = run.status.as_ref().unwrap_or(&none);
        let phase = status.phase.unwrap_or(Phase::Pending);
        let has_ended = phase.is_terminal();
        let wait = waits(status).filter(|_| !has_ended);
        let stalled = stalled(status).filter(|_| !has_ended);
        let result = status.settled.as_ref().map(|settled| settled.result);
        let plan = status.plan.as_ref();
        let waits_for_approval = phase == Phase::AwaitingApproval;
        let annotation = |name: &str| run.annotations().get(name);
        let requesters = annotation(names::REQUESTED_BY).map_or("", String::as_str);
        Self {
            namespace: run.namespace().unwrap_or_default().into(),
            name: run.name_any().into(),
            uid: run.uid().unwrap_or_default().into(),
            layer: run.labels().get(names::LABEL_LAYER).map(|name| short(name)),
            action: run.spec.operation,
            trigger: annotation(names::TRIGGER).map(|word| Trigger::of(word)),
            phase,
            result: result.or(status.result),
            reason: reason(status, stalled.or(wait)),
            wait: wait.map(|condition| Wait {
                why: short(&condition.message),
                place: place(&condition.message),
            }),
            stalled: stalled.is_some(),
            changes: plan.map(|plan| plan.counts),
            checksum: plan
                .filter(|_| waits_for_approval)
                .map(|plan| plan.checksum.as_str().into()),
            revision: revision(run),
            progress: status
                .progress
                .as_ref()
                .filter(|_| !has_ended)
                .map(|progress| Done {
                    done: progress.done,
                    total: progress.total,
                }),
            worked: worked(status),
            created_at: run.creation_timestamp(),
            phase_since: phase_since(run, status, phase),
            ended_at: status.completion_time.clone(),
            expires_at: plan.filter(|_| waits_for_approval).and_then(|plan| {
                let after = i64::try_from(run.spec.approval.expires_after.0.as_secs()).ok()?;
                let at = plan.created_at.as_ref()?.0.as_second();
                Timestamp::from_second(at.saturating_add(after))
                    .ok()
                    .map(Time)
            }),
            requested_by: requesters
                .lines()
                .take(names::MAX_REQUESTERS)
                .map(short)
                .collect(),
            approved_by: status.approval.as_ref().map(|approval| short(&approval.by)),
            followed_by: status
                .recovery
                .as_ref()
                .or(status.rerun.as_ref())
                .map(|name| name.as_str().into()),
        }
    }
}

/// At most 256 characters of a text.
pub(super) fn short(text: &str) -> Box<str> {
    clip(text, 256).into()
}

fn worked(status: &TerraformRunStatus) -> Option<i64> {
    let took = status.steps.iter().filter_map(|step| {
        let ended = step.finished_at.as_ref()?.0.as_second();
        Some(ended - step.started_at.0.as_second())
    });
    (!status.steps.is_empty()).then(|| took.sum())
}

fn waits(status: &TerraformRunStatus) -> Option<&Condition> {
    status.conditions.iter().find(|condition| {
        matches!(
            (condition.type_.as_str(), condition.status.as_str()),
            (conditions::STATE_LEASED, "False") | (conditions::SUCCEEDED, "Unknown")
        ) && WAITS.contains(&condition.reason.as_str())
    })
}

fn stalled(status: &TerraformRunStatus) -> Option<&Condition> {
    let mut all = status.conditions.iter();
    all.find(|condition| condition.type_ == conditions::STALLED && condition.status == "True")
}

fn reason(status: &TerraformRunStatus, held: Option<&Condition>) -> Option<Box<str>> {
    let failure = status
        .failure
        .as_ref()
        .map(|failure| failure.reason.as_str());
    let approval = || {
        let is_open = status.phase == Some(Phase::AwaitingApproval);
        let mut all = status.conditions.iter().filter(|_| is_open);
        all.find(|condition| condition.type_ == conditions::APPROVED)
            .map(|condition| condition.reason.as_str())
    };
    let held = held.map(|condition| condition.reason.as_str());
    held.or(failure).or_else(approval).map(short)
}

/// The place in a text of the controller: `…, in place 3`.
fn place(text: &str) -> Option<u32> {
    let (_, rest) = text.rsplit_once(", in place ")?;
    let end = rest.find(|c: char| !c.is_ascii_digit());
    rest.get(..end.unwrap_or(rest.len()))?.parse().ok()
}

fn revision(run: &TerraformRun) -> Option<Box<str>> {
    let planned = run.plan().and_then(|plan| plan.revision.as_deref());
    let source = run.spec.source.repository.as_ref();
    planned
        .or(source.map(|source| source.revision.as_str()))
        .map(short)
}

fn phase_since(run: &TerraformRun, status: &TerraformRunStatus, phase: Phase) -> Option<Time> {
    let attempt = status.attempt.as_ref();
    let step = |name: &str| {
        let number = attempt.map_or(0, |attempt| attempt.number);
        let mut steps = status.steps.iter().rev();
        steps
            .find(|step| step.name == name && step.attempt == number)
            .map(|step| step.started_at.clone())
    };
    let opened = || attempt.and_then(|attempt| attempt.opened_at.clone());
    match phase {
        Phase::Pending | Phase::Unknown => attempt.and_then(|attempt| attempt.closed_at.clone()),
        Phase::Setup => opened(),
        Phase::Init => step("init").or_else(opened),
        Phase::Plan => step("plan").or_else(opened),
        Phase::AwaitingApproval => run.plan().and_then(|plan| plan.created_at.clone()),
        Phase::Apply => status.claim.as_ref().map(|claim| claim.at.clone()),
        Phase::Succeeded | Phase::Failed | Phase::Canceled => status.completion_time.clone(),
    }
    .or_else(|| run.creation_timestamp())
}
