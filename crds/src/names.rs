//! Names on objects: annotations, labels, finalizers, policies, and the names of pods and their accounts.

use sha2::{Digest, Sha256};

use crate::digest::hex_digest;

/// The API group.
pub const GROUP: &str = "pawl.run";
/// A run, in a line that a person pastes. With the group: Burrito's definitions have the same short names and plurals, and where both are
/// installed kubectl takes the group that comes first in the alphabet (`design/0014-upgrades.md`).
pub const KUBECTL_RUN: &str = "tfrun.pawl.run";
/// The same for a layer.
pub const KUBECTL_LAYER: &str = "tfl.pawl.run";
/// The same for a repository.
pub const KUBECTL_REPOSITORY: &str = "tfrepo.pawl.run";

/// Annotation: the whole checksum of the plan that its setter approves.
pub const APPROVE: &str = "pawl.run/approve";
/// Annotation: the API name of the one who approves.
pub const APPROVED_BY: &str = "pawl.run/approved-by";
/// Annotation: what the approver says.
pub const COMMENT: &str = "pawl.run/comment";
/// Annotation: why the plan is denied; one-way.
pub const DENY: &str = "pawl.run/deny";
/// Annotation: why the run is cancelled; one-way.
pub const CANCEL: &str = "pawl.run/cancel";
/// Annotation, set with [`DENY`] and never after it: the API name of the one who denies.
pub const DENIED_BY: &str = "pawl.run/denied-by";
/// Annotation, set with [`CANCEL`] and never after it: the API name of the one who cancels.
pub const CANCELED_BY: &str = "pawl.run/canceled-by";
/// Annotation: why an apply whose node is lost is given up; one-way.
pub const ABANDON: &str = "pawl.run/abandon";
/// Annotation: the API name of the one who gives it up.
pub const ABANDONED_BY: &str = "pawl.run/abandoned-by";
/// Annotation: `true` asks for a fresh run of the same spec.
pub const RERUN: &str = "pawl.run/rerun";
/// Annotation on a run made for `pawl.run/rerun`: name of the run that asked for it.
pub const RERUN_OF: &str = "pawl.run/rerun-of";

/// Annotation, set with the finalizer: UID of the run that it was set on. On a run of another UID it says that it was made again,
/// from a backup or a copy.
pub const LIFE: &str = "pawl.run/life";

/// Annotation of dry runs: name of the admission policy that has to refuse them.
pub const PROBE: &str = "pawl.run/probe";

/// Annotation: `true` asks for a run that takes what this one created and did not record into the state.
pub const RECOVER: &str = "pawl.run/recover";
/// Annotation on a run made for `pawl.run/recover`: name of the run that asked for it.
pub const RECOVERY_OF: &str = "pawl.run/recovery-of";

/// Annotation on a repository: its refs are looked at at once when it changes.
pub const POKE: &str = "pawl.run/poke";
/// Annotation on a layer: `now` asks for a plan; the controller puts a word of its own in its place, by which the request is known.
pub const PLAN: &str = "pawl.run/plan";
/// Annotation on a layer: `true` stops it, as `spec.suspend` does, whoever manages its spec.
pub const SUSPEND: &str = "pawl.run/suspend";
/// Annotation on a layer, set by the controller: the layer asks for rights, and the admission policies were not enforced for a while, so
/// its author is unverified. It makes no run until a person with these rights removes the annotation.
pub const UNVERIFIED: &str = "pawl.run/unverified";
/// Annotation on a namespace: `true` lets no run begin in it.
pub const FREEZE: &str = "pawl.run/freeze";
/// Annotation on a layer's run: what set it off, as [`crate::Trigger`] has it. Written by the controller only, as the next three.
pub const TRIGGER: &str = "pawl.run/trigger";
/// Annotation on a layer's run: `status.source.content` of the layer that it was made of.
pub const CONTENT: &str = "pawl.run/content";
/// Annotation on a layer's run: digest of the settings that it was made with.
pub const SETTINGS: &str = "pawl.run/settings";
/// Label on a layer's run: name of the layer.
pub const LABEL_LAYER: &str = "pawl.run/layer";
/// Label on a layer's run: UID of the layer.
pub const LABEL_LAYER_UID: &str = "pawl.run/layer-uid";
/// Finalizer of a layer that destroys what it made.
pub const LAYER_FINALIZER: &str = "pawl.run/layer";

/// Finalizer of a run: set before its first pod, removable by the verb `control` only.
pub const RUN_FINALIZER: &str = "pawl.run/run";
/// Finalizer of an attempt's pod, until the controller has read its end.
pub const POD_FINALIZER: &str = "pawl.run/attempt";

/// Label: name of the run.
pub const LABEL_RUN: &str = "pawl.run/run";
/// Label: UID of the run.
pub const LABEL_RUN_UID: &str = "pawl.run/run-uid";
/// Label: number of the attempt.
pub const LABEL_ATTEMPT: &str = "pawl.run/attempt";
/// Label on the pod of a closed attempt: the second at which the controller let go of it, since 1970. It is watched no longer.
pub const LABEL_RELEASED: &str = "pawl.run/released";
/// Label: `pawl` on everything the controller makes.
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`LABEL_MANAGED_BY`].
pub const MANAGED_BY: &str = "pawl";

/// RBAC verb: approve a plan.
pub const VERB_APPROVE: &str = "approve";
/// RBAC verb: give up an apply whose node is lost.
pub const VERB_ABANDON: &str = "abandon";
/// RBAC verb: create runs that approve themselves.
pub const VERB_AUTOAPPROVE: &str = "autoapprove";
/// RBAC verb of the controller: write a run's status, make a layer's run, and remove the finalizers of both.
pub const VERB_CONTROL: &str = "control";

/// Admission policy on the approval annotations.
pub const POLICY_APPROVAL: &str = "pawl-approval";
/// Admission policy on the writes of a run's status.
pub const POLICY_STATUS: &str = "pawl-status";
/// Admission policy on runs that approve themselves or name a ServiceAccount, created or asked for by `rerun`.
pub const POLICY_CREATION: &str = "pawl-creation";
/// Admission policy on the finalizer of a run.
pub const POLICY_FINALIZER: &str = "pawl-finalizer";
/// Admission policy on what a layer asks for: its runs are made by the controller, whom [`POLICY_CREATION`] does not ask for it.
pub const POLICY_LAYER: &str = "pawl-layer";
/// All of them.
pub const POLICIES: [&str; 5] = [POLICY_APPROVAL, POLICY_STATUS, POLICY_CREATION, POLICY_FINALIZER, POLICY_LAYER];

/// The field manager of the agent.
pub const AGENT_MANAGER: &str = "pawl-runner-agent";
/// The field manager of the controller.
pub const CONTROLLER_MANAGER: &str = "pawl-controller";

/// The field manager of `controller sources`.
pub const SOURCES_MANAGER: &str = "pawl-sources";
/// The field manager of `controller server`.
pub const SERVER_MANAGER: &str = "pawl-server";

/// The longest name of a layer: a label has no more room, and names of its runs begin with it.
pub const MAX_LAYER_NAME: usize = 63;
/// The longest name of a run.
pub const MAX_RUN_NAME: usize = 52;

/// Letters and digits that form no words and are not mistaken for one another (as Kubernetes draws its suffixes).
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Five characters of a hash of a UID.
pub fn short_hash(uid: &str) -> String {
    hashed(uid, 5)
}

/// That many characters of a hash; at most 32.
fn hashed(text: &str, characters: usize) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(characters).map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect()
}

/// The name of an attempt's pod, ServiceAccount, Role and RoleBinding: `NAME-HASH-a1`, at most 63 characters, so that it is a
/// label value, a hostname and the holder of a state lock as well.
pub fn attempt_name(run: &str, uid: &str, attempt: u32) -> String {
    format!("{run}-{}-a{attempt}", short_hash(uid))
}

/// The name of the run that answers `pawl.run/rerun=true` on this one; the same each time it is asked for.
pub fn rerun_name(run: &str, uid: &str) -> String {
    derived_name(run, &short_hash(&format!("rerun of {uid}")))
}

/// The name of a layer's run: it follows from the layer's UID and from what set it off, so that no crash makes two.
/// `of` names commit, settings and trigger.
pub fn layer_run_name(layer: &str, uid: &str, of: &str) -> String {
    // A layer has thousands of runs in its life, and one of them must not be taken for another.
    derived_name(layer, &hashed(&format!("layer {uid}: {of}"), 10))
}

fn derived_name(run: &str, hash: &str) -> String {
    let room = MAX_RUN_NAME - hash.len() - 1;
    let stem: String = run.chars().take(room).collect();
    format!("{}-{hash}", stem.trim_end_matches(['-', '.']))
}

/// The name of the run that answers `pawl.run/recover=true` on this one; the same each time it is asked for.
pub fn recovery_name(run: &str, uid: &str) -> String {
    derived_name(run, &short_hash(&format!("recovery of {uid}")))
}

/// The name of the Lease of a state, for the namespaces that share it: `pawl-state-` and half of the digits of a digest of both.
/// A namespace has no `/` in its name, so that no two pairs are one text.
pub fn lease_name(scope: &str, state_key: &str) -> String {
    let digest = hex_digest(&Sha256::digest(format!("{scope}/{state_key}").as_bytes()));
    let digits = digest.strip_prefix("sha256:").unwrap_or(&digest);
    format!("pawl-state-{}", digits.get(..32).unwrap_or(digits))
}

/// The command that approves a plan of a run, right for whoever pastes it.
pub fn approve_command(namespace: &str, run: &str, checksum: &str) -> String {
    format!(
        "kubectl annotate -n {namespace} --overwrite {KUBECTL_RUN}/{run} {APPROVE}={checksum} \
         {APPROVED_BY}=\"$(kubectl auth whoami -o jsonpath='{{.status.userInfo.username}}')\""
    )
}

/// An annotation as a JSON Patch points to it (RFC 6901).
pub fn annotation_pointer(name: &str) -> String {
    format!("/metadata/annotations/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// The command that asks for a fresh run of the same spec.
pub fn rerun_command(namespace: &str, run: &str) -> String {
    format!("kubectl annotate -n {namespace} {KUBECTL_RUN}/{run} {RERUN}=true")
}

/// The command that gives up a plan which waits and asks for a fresh one. A run that waits has no rerun before it has ended.
pub fn replan_command(namespace: &str, run: &str) -> String {
    let rerun = rerun_command(namespace, run);
    format!(
        "kubectl annotate -n {namespace} {KUBECTL_RUN}/{run} {CANCEL}=\"its plan is stale\" && \
         kubectl wait -n {namespace} {KUBECTL_RUN}/{run} --for=condition=Finished --timeout=2m && {rerun}"
    )
}

/// The command that has the refs of a repository looked at now.
pub fn poke_command(namespace: &str, repository: &str) -> String {
    format!("kubectl annotate -n {namespace} --overwrite {KUBECTL_REPOSITORY}/{repository} {POKE}=\"$(date +%s)\"")
}

/// The line that shows the logs of all attempts as the datastore has them.
pub fn stored_log_command(namespace: &str, run: &str) -> String {
    format!("kubectl get --raw /apis/read.pawl.run/v1alpha1/namespaces/{namespace}/terraformruns/{run}/log")
}

/// The line that shows the logs of all pods.
pub fn logs_command(namespace: &str, run: &str) -> String {
    format!("kubectl logs -n {namespace} -l {LABEL_RUN}={run} --tail=-1")
}

/// The command by which a person confirms a layer whose author is unverified.
pub fn confirm_command(namespace: &str, layer: &str) -> String {
    format!("kubectl annotate -n {namespace} {KUBECTL_LAYER}/{layer} {UNVERIFIED}-")
}

/// The command that gives up the apply of a run whose node is lost, right for whoever pastes it.
pub fn abandon_command(namespace: &str, run: &str) -> String {
    format!(
        "kubectl annotate -n {namespace} {KUBECTL_RUN}/{run} {ABANDON}=\"REASON\" \
         {ABANDONED_BY}=\"$(kubectl auth whoami -o jsonpath='{{.status.userInfo.username}}')\""
    )
}

/// The command that asks for a run which takes what this one created and did not record into the state.
pub fn recover_command(namespace: &str, run: &str) -> String {
    format!("kubectl annotate -n {namespace} {KUBECTL_RUN}/{run} {RECOVER}=true")
}

/// The command that fetches the state which an apply of this run could not save.
pub fn errored_state_command(namespace: &str, run: &str) -> String {
    format!("kubectl get --raw /apis/read.pawl.run/v1alpha1/namespaces/{namespace}/terraformruns/{run}/erroredstate")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_hash_has_five_characters() {
        assert_eq!(short_hash(UID).len(), 5);
    }

    const UID: &str = "0b9c1a4e-1f7e-4c07-9d43-2a1f35e3b8aa";

    #[test]
    fn the_longest_name_makes_a_hostname() {
        let name = attempt_name(&"n".repeat(MAX_RUN_NAME), UID, 999);
        assert!(name.len() <= 63, "{name}");
    }

    #[test]
    fn another_run_of_the_same_name_has_other_pods() {
        assert_ne!(attempt_name("a", UID, 1), attempt_name("a", "other", 1));
        assert_eq!(attempt_name("a", UID, 1), attempt_name("a", UID, 1));
    }

    #[test]
    fn a_rerun_has_a_legal_name_of_its_own() {
        let name = rerun_name(&format!("{}.b", "n".repeat(45)), UID);
        assert!(name.len() <= MAX_RUN_NAME && !name.contains(".-"), "{name}");
        assert_ne!(rerun_name("a", UID), rerun_name("a", "other"));
        assert_ne!(rerun_name("a", UID), recovery_name("a", UID));
    }
}
