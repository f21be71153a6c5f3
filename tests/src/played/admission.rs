//! What the admission policies of the chart refuse, expression by expression (`charts/pawl/templates/policies`).

use crds::names;
use serde_json::Value;

use super::{Refusal, User};

type Verdict = Result<(), Refusal>;

fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}

fn number(value: &Value, pointer: &str) -> Option<i64> {
    value.pointer(pointer).and_then(Value::as_i64)
}

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][key].as_str()
}

fn is_held(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|f| f == names::RUN_FINALIZER))
}

/// The policy whose probe a creation is, which refuses it.
fn probe(old: Option<&Value>, new: &Value) -> Verdict {
    let probed = annotation(new, names::PROBE).filter(|_| old.is_none());
    match names::POLICIES.into_iter().find(|policy| probed == Some(*policy)) {
        Some(policy) => Err(Refusal::policy(policy, "a probe of the controller")),
        None => Ok(()),
    }
}

/// A change of a run itself, or its creation when there is no `old`.
///
/// # Errors
/// The refusal of `pawl-approval`, `pawl-creation` or `pawl-finalizer`, and of `pawl-status` for its probe.
pub fn run(user: &User, old: Option<&Value>, new: &Value) -> Verdict {
    probe(old, new)?;
    approval(user, old, new)?;
    creation(user, old, new)?;
    let removed = old.is_some_and(is_held) && !is_held(new);
    if removed && !user.may(names::VERB_CONTROL) {
        return Err(Refusal::policy(names::POLICY_FINALIZER, "the finalizer pawl.run/run is removed by the controller"));
    }
    Ok(())
}

fn approval(user: &User, old: Option<&Value>, new: &Value) -> Verdict {
    let no = |message: &str| Err(Refusal::policy(names::POLICY_APPROVAL, message));
    let keys = [names::APPROVE, names::APPROVED_BY, names::COMMENT];
    let before = |key| old.and_then(|old| annotation(old, key));
    let changed = keys.iter().any(|key| annotation(new, key) != before(key));
    let withdrawn = old.is_some() && keys.iter().all(|key| annotation(new, key).is_none());
    if old.is_none() && changed {
        return no("a run is created without an approval; nothing was approved");
    }
    if changed && !withdrawn {
        if !user.may(names::VERB_APPROVE) {
            return no("has not the right to approve this run");
        }
        if annotation(new, names::APPROVED_BY) != Some(&user.name) {
            return no("pawl.run/approved-by has to name the one who approves");
        }
        let waits = old.and_then(|old| text(old, "/status/phase")) == Some("AwaitingApproval");
        let checksum = old.and_then(|old| text(old, "/status/plan/checksum")).unwrap_or_default();
        if !waits || checksum.is_empty() {
            return no("no plan waits for approval");
        }
        if annotation(new, names::APPROVE) != Some(checksum) {
            return no("this is not the checksum of the plan that waits");
        }
    }
    let claimed = old.is_some_and(|old| old.pointer("/status/claim").is_some_and(|claim| !claim.is_null()));
    if changed && withdrawn && claimed && !user.may(names::VERB_CONTROL) {
        return no("too late: apply was claimed");
    }
    let named = |(word, by): (&'static str, &'static str)| {
        annotation(new, by) == before(by)
            || annotation(new, word).is_some() && before(word).is_none() && annotation(new, by) == Some(&user.name)
    };
    if ![(names::DENY, names::DENIED_BY), (names::CANCEL, names::CANCELED_BY)].into_iter().all(named) {
        return no("pawl.run/denied-by and pawl.run/canceled-by are set together with");
    }
    if [names::DENY, names::CANCEL].iter().any(|key| before(key).is_some() && annotation(new, key) != before(key)) {
        return no("pawl.run/deny and pawl.run/cancel are never taken back");
    }
    let keys = [names::ABANDON, names::ABANDONED_BY];
    if keys.iter().any(|key| annotation(new, key) != before(key)) {
        abandon(user, old, new)?;
    }
    if annotation(new, names::COMMENT).is_some_and(|comment| comment.chars().count() > 512) {
        return no("pawl.run/comment has at most 512 characters");
    }
    Ok(())
}

fn abandon(user: &User, old: Option<&Value>, new: &Value) -> Verdict {
    let no = |message: &str| Err(Refusal::policy(names::POLICY_APPROVAL, message));
    if [names::ABANDON, names::ABANDONED_BY].iter().any(|key| old.and_then(|old| annotation(old, key)).is_some()) {
        return no("pawl.run/abandon is never changed nor taken back");
    }
    if !user.may(names::VERB_ABANDON) {
        return no("has not the right to give this apply up");
    }
    if annotation(new, names::ABANDONED_BY) != Some(&user.name) {
        return no("pawl.run/abandoned-by has to name the one who gives the apply up");
    }
    if !annotation(new, names::ABANDON).is_some_and(|why| (1..=512).contains(&why.chars().count()) && !why.contains('\n')) {
        return no("pawl.run/abandon gives a reason of at most 512 characters");
    }
    let status = old.and_then(|old| old.get("status")).filter(|status| status.get("claim").is_some());
    let lost = status.is_some_and(|status| {
        let told = |c: &Value| c["type"] == "Stalled" && c["status"] == "True" && c["reason"] == crds::reason::NODE_UNREACHABLE;
        if text(status, "/phase") == Some("Apply") {
            status["conditions"].as_array().is_some_and(|all| all.iter().any(told))
        } else {
            text(status, "/result") == Some("Indeterminate") && status.get("lease").is_some()
        }
    });
    if lost { Ok(()) } else { no("an apply is given up while the node of its pod is lost") }
}

fn creation(user: &User, old: Option<&Value>, new: &Value) -> Verdict {
    let no = |message: &str| Err(Refusal::policy(names::POLICY_CREATION, message));
    let before = |key| old.and_then(|old| annotation(old, key));
    let control = user.may(names::VERB_CONTROL);
    if annotation(new, names::RERUN_OF) != before(names::RERUN_OF) && !control {
        return no("pawl.run/rerun-of is written by the controller");
    }
    let asked = annotation(new, names::RERUN);
    let reruns = old.is_some() && asked.is_some() && asked != before(names::RERUN);
    if reruns && asked != Some("true") {
        return no("pawl.run/rerun is set to true, or not at all");
    }
    if reruns && old.is_some_and(|old| text(old, "/status/result").is_none()) {
        return no("the run has not ended");
    }
    if reruns && old.is_some_and(|old| text(old, "/status/rerun").is_some()) {
        return no("another run answered this already");
    }
    let answers = old.is_none() && annotation(new, names::RERUN_OF).is_some() && control;
    let asks = old.is_none() && !answers || reruns;
    let automatic = text(new, "/spec/approval/mode") == Some("Automatic");
    if asks && automatic && !user.may(names::VERB_AUTOAPPROVE) {
        return no("a run with approval.mode Automatic needs the verb autoapprove on terraformruns");
    }
    Ok(())
}

/// A write of a run's status: the policy `pawl-status`.
///
/// # Errors
/// The refusal.
pub fn status(user: &User, old: &Value, new: &Value) -> Verdict {
    let no = |message: &str| Err(Refusal::policy(names::POLICY_STATUS, message));
    let null = Value::Null;
    let (was, is) = (old.get("status").unwrap_or(&null), new.get("status").unwrap_or(&null));
    let same = |field: &str| was.get(field) == is.get(field);
    let control = user.may(names::VERB_CONTROL);
    let attempt = number(was, "/attempt/number").unwrap_or(-1);
    let open = was["attempt"]["open"] == true;
    let (pod, uid) = user.pod.as_ref().map_or(("", ""), |(pod, uid)| (pod.as_str(), uid.as_str()));
    let writer = !uid.is_empty() && open;
    let adopted = writer
        && same("adopted")
        && number(was, "/adopted/attempt").unwrap_or(0) == attempt
        && text(was, "/adopted/podUID") == Some(uid);
    let here = format!("system:serviceaccount:{}:", text(new, "/metadata/namespace").unwrap_or_default());
    let adopts = writer
        && number(was, "/adopted/attempt").unwrap_or(0) != attempt
        && number(is, "/adopted/attempt").unwrap_or(0) == attempt
        && text(is, "/adopted/podUID") == Some(uid)
        && text(was, "/attempt/podName").unwrap_or_default() == pod
        && user.name.starts_with(&here);
    if !(control || adopted || adopts) {
        return no("only the pod of the open attempt writes the status of a run");
    }
    if !control && !crds::fields::Owner::Controller.fields().all(same) {
        return no("these fields are written by the controller");
    }
    let planner = number(was, "/attempt/restores").unwrap_or(attempt);
    let planned = planner == attempt
        && number(is, "/plan/attempt").unwrap_or(0) == attempt
        && number(was, "/plan/attempt").unwrap_or(0) != attempt;
    if !same("plan") && !planned {
        return no("an attempt writes its plan once, and one that restores a plan writes none");
    }
    if same("claim") {
        return Ok(());
    }
    // Nobody is excepted from here on.
    let by_process = was.get("claim").is_none()
        && adopted
        && text(is, "/claim/podUID") == Some(uid)
        && number(is, "/claim/attempt").unwrap_or(0) == attempt
        && text(is, "/claim/nonce").unwrap_or_default() == text(was, "/adopted/nonce").unwrap_or("?")
        && text(is, "/phase") == Some("Apply");
    if !by_process {
        return no("a claim is written once, by the process that adopted the open attempt, as it enters phase Apply");
    }
    let stopped = [names::CANCEL, names::DENY].iter().any(|key| annotation(new, key).is_some());
    if stopped || !new["metadata"]["deletionTimestamp"].is_null() {
        return no("the run is cancelled, denied or being deleted; nothing is applied");
    }
    let sum = text(is, "/claim/checksum").unwrap_or_default();
    let approved = text(new, "/spec/approval/mode") == Some("Automatic")
        || annotation(new, names::APPROVE).unwrap_or_default() == sum
            && text(was, "/approval/checksum").unwrap_or_default() == sum;
    let of_plan = !sum.is_empty()
        && text(was, "/plan/checksum") == Some(sum)
        && number(was, "/plan/attempt").unwrap_or(0) == planner
        && same("plan")
        && text(new, "/spec/operation") != Some("Plan");
    if !(approved && of_plan) {
        return no("a claim needs a live approval of the plan that this attempt made or restores");
    }
    let key = text(was, "/plan/stateKey");
    if key.is_some() && key != text(was, "/lease/stateKey") {
        return no("a claim needs the lease on the state of its plan");
    }
    Ok(())
}
