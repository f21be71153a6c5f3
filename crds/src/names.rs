//! Names on objects: annotations, labels, finalizers, policies, and the names of pods and their accounts.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sha2::{Digest, Sha256};

use crate::digest::hex_digest;

/// The API group.
pub const GROUP: &str = "pawl.run";
/// kubectl's name of runs in commands for people. It includes the group because Burrito's CRDs have the same short
/// names and plurals, and kubectl prefers the alphabetically first group (`design/0014-upgrades.md`).
pub const KUBECTL_RUN: &str = "tfrun.pawl.run";
/// The same for a layer.
pub const KUBECTL_LAYER: &str = "tfl.pawl.run";
/// The same for a repository.
pub const KUBECTL_REPOSITORY: &str = "tfrepo.pawl.run";

/// Annotation: the whole checksum of the plan that its setter approves.
pub const APPROVE: &str = "pawl.run/approve";
/// Annotation: the API user name of the approver.
pub const APPROVED_BY: &str = "pawl.run/approved-by";
/// Annotation: the approver's comment.
pub const COMMENT: &str = "pawl.run/comment";
/// Annotation: why the plan is denied; cannot be undone.
pub const DENY: &str = "pawl.run/deny";
/// Annotation: why the run is cancelled; cannot be undone.
pub const CANCEL: &str = "pawl.run/cancel";
/// Annotation, set together with [`DENY`] and never later: the API user name of the person who denies.
pub const DENIED_BY: &str = "pawl.run/denied-by";
/// Annotation, set together with [`CANCEL`] and never later: the API user name of the person who cancels.
pub const CANCELED_BY: &str = "pawl.run/canceled-by";
/// Annotation: why an apply on a lost node is abandoned; cannot be undone.
pub const ABANDON: &str = "pawl.run/abandon";
/// Annotation: the API user name of the person who abandons it.
pub const ABANDONED_BY: &str = "pawl.run/abandoned-by";
/// Annotation of runs and layers: the API user name of the person who requests; of a run that the controller creates, all
/// whose requests it answers, one a line. Required in a namespace with four eyes, where none of them may approve.
pub const REQUESTED_BY: &str = "pawl.run/requested-by";
/// Annotation of a run, set together with [`RERUN`] or [`RECOVER`]: the API user name of the person who asks.
pub const ASKED_BY: &str = "pawl.run/asked-by";
/// The most names in [`REQUESTED_BY`] of a run that may be approved with four eyes. Of more, one more is kept, so that they stay too many.
pub const MAX_REQUESTERS: usize = 16;
/// Annotation: `true` requests a new run of the same spec.
pub const RERUN: &str = "pawl.run/rerun";
/// Annotation of a run created for `pawl.run/rerun`: name of the run that requested it.
pub const RERUN_OF: &str = "pawl.run/rerun-of";

/// Annotation, set together with the finalizer: the UID of the run. If it differs from the run's own UID, the run was created from a backup
/// or a copy.
pub const LIFE: &str = "pawl.run/life";

/// Annotation of dry runs: name of the admission policy that must reject them.
pub const PROBE: &str = "pawl.run/probe";

/// Annotation: `true` requests a run that imports into the state the objects that this run created and did not record.
pub const RECOVER: &str = "pawl.run/recover";
/// Annotation of a run created for `pawl.run/recover`: name of the run that requested it.
pub const RECOVERY_OF: &str = "pawl.run/recovery-of";

/// Annotation of a repository: a change of its value triggers an immediate check of the refs.
pub const RECONCILE: &str = "pawl.run/reconcile";
/// Annotation of a layer: `now` requests a plan. The controller replaces the value with a unique one that identifies the request.
pub const PLAN: &str = "pawl.run/plan";
/// Annotation of a layer: `true` suspends it like `spec.suspend`, without a change of the spec.
pub const SUSPEND: &str = "pawl.run/suspend";
/// Annotation of a layer, set by the controller: the layer requests rights, and its author is unverified because the
/// admission policies were not enforced for a while. The layer creates no run until a person with these rights removes
/// the annotation.
pub const UNVERIFIED: &str = "pawl.run/unverified";
/// Annotation of a namespace: `true` prevents runs from starting in it.
pub const FREEZE: &str = "pawl.run/freeze";
/// Label of a namespace: `true` requires that another person than the requesters approves a run.
pub const FOUR_EYES: &str = "pawl.run/four-eyes";
/// Annotation of a layer's run: the cause, as a [`crate::Trigger`]. Only the controller writes this and the next five.
pub const TRIGGER: &str = "pawl.run/trigger";
/// Annotation of a layer's run: the layer's `status.source.content` at creation.
pub const CONTENT: &str = "pawl.run/content";
/// Annotation of a layer's run: digest of the settings at creation.
pub const SETTINGS: &str = "pawl.run/settings";
/// Annotation of a layer's run of content that was applied before, so that its changes are drift: the digest of the changes that were
/// applied last, or `none`.
pub const APPLIED: &str = "pawl.run/applied";
/// Annotation of a layer's run with requesters: digest of the layer's fields that determine what its runs do, at creation.
pub const LAYER_SPEC: &str = "pawl.run/layer-spec";
/// Label of a layer's run: name of the layer.
pub const LABEL_LAYER: &str = "pawl.run/layer";
/// Label of a layer's run: UID of the layer.
pub const LABEL_LAYER_UID: &str = "pawl.run/layer-uid";
/// Finalizer of a layer that destroys its resources on deletion.
pub const LAYER_FINALIZER: &str = "pawl.run/layer";

/// Finalizer of a run: set before its first pod, removable only with the verb `control`.
pub const RUN_FINALIZER: &str = "pawl.run/run";
/// Finalizer of an attempt's pod until the controller has read its result.
pub const POD_FINALIZER: &str = "pawl.run/attempt";

/// Label: name of the run.
pub const LABEL_RUN: &str = "pawl.run/run";
/// Label: UID of the run.
pub const LABEL_RUN_UID: &str = "pawl.run/run-uid";
/// Label: number of the attempt.
pub const LABEL_ATTEMPT: &str = "pawl.run/attempt";
/// Label of the pod of a closed attempt: the Unix time in seconds at which the controller released it. The controller
/// stops watching it.
pub const LABEL_RELEASED: &str = "pawl.run/released";
/// Label: `pawl` on all objects that the controller creates.
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`LABEL_MANAGED_BY`].
pub const MANAGED_BY: &str = "pawl";

/// RBAC verb: approve a plan.
pub const VERB_APPROVE: &str = "approve";
/// RBAC verb: abandon an apply on a lost node.
pub const VERB_ABANDON: &str = "abandon";
/// RBAC verb: create runs that approve themselves.
pub const VERB_AUTOAPPROVE: &str = "autoapprove";
/// RBAC verb of the controller: write a run's status, create a layer's run and the objects of attempts, and remove finalizers.
pub const VERB_CONTROL: &str = "control";

/// Admission policy on the approval annotations.
pub const POLICY_APPROVAL: &str = "pawl-approval";
/// Admission policy on writes of a run's status.
pub const POLICY_STATUS: &str = "pawl-status";
/// Admission policy on runs that approve themselves or reference a ServiceAccount, at creation and at `rerun`.
pub const POLICY_CREATION: &str = "pawl-creation";
/// Admission policy on a run's finalizer.
pub const POLICY_FINALIZER: &str = "pawl-finalizer";
/// Admission policy on the rights that a layer requests. The controller creates the layer's runs, and
/// [`POLICY_CREATION`] exempts the controller.
pub const POLICY_LAYER: &str = "pawl-layer";
/// Admission policy on the objects of attempts, on tokens of their accounts, and on processes in their pods.
pub const POLICY_ATTEMPT: &str = "pawl-attempt";
/// Admission policy on the objects that a repository names.
pub const POLICY_REPOSITORY: &str = "pawl-repository";
/// All admission policies.
pub const POLICIES: [&str; 7] = [
    POLICY_APPROVAL,
    POLICY_STATUS,
    POLICY_CREATION,
    POLICY_FINALIZER,
    POLICY_LAYER,
    POLICY_ATTEMPT,
    POLICY_REPOSITORY,
];

/// The field manager of the agent.
pub const AGENT_MANAGER: &str = "pawl-runner-agent";
/// The field manager of the controller.
pub const CONTROLLER_MANAGER: &str = "pawl-controller";

/// The field manager of `controller sources`.
pub const SOURCES_MANAGER: &str = "pawl-sources";
/// The field manager of `controller server`.
pub const SERVER_MANAGER: &str = "pawl-server";

/// Maximum length of a layer's name: the bound of a label value. Names of its runs begin with it.
pub const MAX_LAYER_NAME: usize = 63;
/// Maximum length of a run's name.
pub const MAX_RUN_NAME: usize = 52;

/// Letters and digits that form no words and are not confused with one another (the alphabet of Kubernetes' own
/// suffixes). The policy `pawl-attempt` knows an attempt's pod by a name with them.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// A hash of a UID, five characters.
pub fn short_hash(uid: &str) -> String {
    hashed(uid, 5)
}

/// A hash with this many characters; at most 32.
fn hashed(text: &str, characters: usize) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest
        .iter()
        .take(characters)
        .map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]))
        .collect()
}

/// The name of an attempt's pod, ServiceAccount, Role and RoleBinding: `NAME-HASH-a1`. At most 63 characters, because
/// it is also a label value, a hostname and the holder of a state lock.
pub fn attempt_name(run: &str, uid: &str, attempt: u32) -> String {
    format!("{run}-{}-a{attempt}", short_hash(uid))
}

/// The name of the run created for `pawl.run/rerun=true`. It is deterministic, so a repeated request creates no second
/// run.
pub fn rerun_name(run: &str, uid: &str) -> String {
    derived_name(run, &short_hash(&format!("rerun of {uid}")))
}

/// The name of a layer's run. It is derived from the layer's UID and the cause, so a crash cannot create two runs. `of`
/// contains commit, settings and trigger.
pub fn layer_run_name(layer: &str, uid: &str, of: &str) -> String {
    // A layer has thousands of runs, so the hash is long enough to avoid collisions.
    derived_name(layer, &hashed(&format!("layer {uid}: {of}"), 10))
}

fn derived_name(run: &str, hash: &str) -> String {
    let room = MAX_RUN_NAME - hash.len() - 1;
    let stem: String = run.chars().take(room).collect();
    format!("{}-{hash}", stem.trim_end_matches(['-', '.']))
}

/// The name of the run created for `pawl.run/recover=true`. It is deterministic, so a repeated request creates no
/// second run.
pub fn recovery_name(run: &str, uid: &str) -> String {
    derived_name(run, &short_hash(&format!("recovery of {uid}")))
}

/// The name of a state's Lease, for the namespaces that share the state: `pawl-state-` and half of the hexadecimal
/// digest of scope and key. Scopes contain no `/`, so different pairs never give the same text.
pub fn lease_name(scope: &str, state_key: &str) -> String {
    let digest = hex_digest(&Sha256::digest(format!("{scope}/{state_key}").as_bytes()));
    let digits = digest.strip_prefix("sha256:").unwrap_or(&digest);
    format!("pawl-state-{}", digits.get(..32).unwrap_or(digits))
}

/// In a shell: the user's own name.
pub const WHOAMI: &str = "\"$(kubectl auth whoami -o jsonpath='{.status.userInfo.username}')\"";

/// The command that approves a plan. It fills in the user's own name.
pub fn approve_command(namespace: &str, run: &str, checksum: &str) -> String {
    format!(
        "kubectl annotate -n {namespace} --overwrite {KUBECTL_RUN}/{run} {APPROVE}={checksum} \
         {APPROVED_BY}={WHOAMI}"
    )
}

/// The JSON Pointer of an annotation in a JSON Patch (RFC 6901).
pub fn annotation_pointer(name: &str) -> String {
    format!(
        "/metadata/annotations/{}",
        name.replace('~', "~0").replace('/', "~1")
    )
}

/// The command that requests a new run of the same spec.
pub fn rerun_command(namespace: &str, run: &str) -> String {
    format!("kubectl annotate -n {namespace} {KUBECTL_RUN}/{run} {RERUN}=true")
}

/// The command that discards a waiting plan and requests a new one. A waiting run accepts a rerun only after it has
/// ended.
pub fn replan_command(namespace: &str, run: &str) -> String {
    let rerun = rerun_command(namespace, run);
    format!(
        "kubectl annotate -n {namespace} {KUBECTL_RUN}/{run} {CANCEL}=\"its plan is stale\" && \
         kubectl wait -n {namespace} {KUBECTL_RUN}/{run} --for=condition=Finished --timeout=2m && {rerun}"
    )
}

/// The command that triggers a check of a repository's refs.
pub fn reconcile_command(namespace: &str, repository: &str) -> String {
    format!(
        "kubectl annotate -n {namespace} --overwrite {KUBECTL_REPOSITORY}/{repository} {RECONCILE}=\"$(date +%s)\""
    )
}

/// The command that resumes a layer or a repository with `spec.suspend`.
pub fn resume_command(kind: &str, namespace: &str, name: &str) -> String {
    format!(
        "kubectl patch -n {namespace} {kind}/{name} --type=merge -p '{{\"spec\":{{\"suspend\":false}}}}'"
    )
}

/// The command that prints the logs of all attempts from the datastore.
pub fn stored_log_command(namespace: &str, run: &str) -> String {
    format!(
        "kubectl get --raw /apis/read.pawl.run/v1alpha1/namespaces/{namespace}/terraformruns/{run}/log"
    )
}

/// Whether an annotation that switches something on has the value `true`, the only one that does.
pub fn is_on(meta: &ObjectMeta, annotation: &str) -> bool {
    let all = meta.annotations.as_ref();
    all.and_then(|all| all.get(annotation))
        .is_some_and(|value| value == "true")
}

/// The command that prints the logs of all pods.
pub fn logs_command(namespace: &str, run: &str) -> String {
    format!("kubectl logs -n {namespace} -l {LABEL_RUN}={run} --tail=-1")
}

/// The command that confirms a layer with an unverified author.
pub fn confirm_command(namespace: &str, layer: &str) -> String {
    format!("kubectl annotate -n {namespace} {KUBECTL_LAYER}/{layer} {UNVERIFIED}-")
}

/// The command that abandons the apply of a run on a lost node. It fills in the user's own name.
pub fn abandon_command(namespace: &str, run: &str) -> String {
    format!(
        "kubectl annotate -n {namespace} {KUBECTL_RUN}/{run} {ABANDON}=\"REASON\" \
         {ABANDONED_BY}={WHOAMI}"
    )
}

/// The command that requests a recovery. The new run imports into the state the objects that this run created but did not record.
pub fn recover_command(namespace: &str, run: &str) -> String {
    format!("kubectl annotate -n {namespace} {KUBECTL_RUN}/{run} {RECOVER}=true")
}

/// The command that downloads the state that an apply of this run failed to save.
pub fn errored_state_command(namespace: &str, run: &str) -> String {
    format!(
        "kubectl get --raw /apis/read.pawl.run/v1alpha1/namespaces/{namespace}/terraformruns/{run}/erroredstate"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0b9c1a4e-1f7e-4c07-9d43-2a1f35e3b8aa";

    #[test]
    fn attempts_have_hostnames_that_differ_with_the_uid() {
        let name = attempt_name(&"n".repeat(MAX_RUN_NAME), UID, 999);
        assert!(name.len() <= 63 && short_hash(UID).len() == 5, "{name}");
        assert_ne!(attempt_name("a", UID, 1), attempt_name("a", "other", 1));
        assert_eq!(attempt_name("a", UID, 1), attempt_name("a", UID, 1));
    }

    #[test]
    fn policy_knows_attempts_by_their_names() {
        let policy = include_str!("../../charts/pawl/templates/policies/attempt.yaml");
        let hash = std::str::from_utf8(ALPHABET).unwrap();
        let name = format!("name.matches('-[{hash}]{{5}}-a[1-9][0-9]*(:.*)?$')");
        assert!(policy.contains(&name), "{name}");
    }

    #[test]
    fn rerun_has_a_valid_name_of_its_own() {
        let name = rerun_name(&format!("{}.b", "n".repeat(45)), UID);
        assert!(name.len() <= MAX_RUN_NAME && !name.contains(".-"), "{name}");
        assert_ne!(rerun_name("a", UID), rerun_name("a", "other"));
        assert_ne!(rerun_name("a", UID), recovery_name("a", UID));
    }
}
