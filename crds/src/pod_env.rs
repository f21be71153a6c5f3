//! Environment, paths and exit codes of an attempt's pod.

use crate::{Phase, RunResult};

/// Namespace of the run.
pub const ENV_NAMESPACE: &str = "PAWL_NAMESPACE";
/// Name of the run.
pub const ENV_RUN: &str = "PAWL_RUN";
/// UID of the run.
pub const ENV_RUN_UID: &str = "PAWL_RUN_UID";
/// Number of the attempt.
pub const ENV_ATTEMPT: &str = "PAWL_ATTEMPT";
/// Name of the pod.
pub const ENV_POD_NAME: &str = "PAWL_POD_NAME";
/// UID of the pod.
pub const ENV_POD_UID: &str = "PAWL_POD_UID";
/// Name of the pod's node.
pub const ENV_NODE_NAME: &str = "PAWL_NODE_NAME";
/// Directory with tools in the image: `TOOL/VERSION/BINARY` ([`crate::ToolName::directory`], [`crate::ToolName::binary`]).
pub const ENV_TOOLS: &str = "PAWL_TOOLS";
/// Cache volume for downloaded tools; when unset, a directory below the work directory.
pub const ENV_TOOLS_CACHE: &str = "PAWL_TOOLS_CACHE";
/// The operator's tool settings: [`crate::tools::ToolSettings`] as JSON.
pub const ENV_TOOL_SETTINGS: &str = "PAWL_TOOL_SETTINGS";
/// Additional certificate authorities, PEM, for all downloads; when unset, only those of the image.
pub const ENV_CA: &str = "PAWL_CA";
/// Directory with a filesystem mirror of providers.
pub const ENV_PROVIDERS: &str = "PAWL_PROVIDERS";
/// Shared cache directory for providers; when unset, providers are not cached.
pub const ENV_PROVIDERS_CACHE: &str = "PAWL_PROVIDERS_CACHE";
/// `true` when code of the stack must not run unconfined; otherwise unset.
pub const ENV_REQUIRE_CONFINEMENT: &str = "PAWL_REQUIRE_CONFINEMENT";
/// Seconds between SIGTERM and SIGKILL.
pub const ENV_GRACE: &str = "PAWL_GRACE_SECONDS";

/// Default of [`ENV_TOOLS`].
pub const TOOLS_DIR: &str = "/opt/pawl/tools";
/// Default of [`ENV_PROVIDERS`].
pub const PROVIDERS_DIR: &str = "/opt/pawl/providers";
/// The only directory below which an attempt writes; an `emptyDir`.
pub const WORK_DIR: &str = "/pawl/work";
/// Directory that only the agent writes, an `emptyDir`: holds the plan that is shown and applied.
pub const KEPT_DIR: &str = "/pawl/kept";
/// Optional mounts of Secrets: `SECRETS_DIR/NAME/KEY`.
pub const SECRETS_DIR: &str = "/pawl/secrets";
/// Optional mounts of ConfigMaps: `CONFIG_MAPS_DIR/NAME/KEY`.
pub const CONFIG_MAPS_DIR: &str = "/pawl/configmaps";
/// Mount path of the cache: tools in `tools`, providers in `providers`.
pub const CACHE_DIR: &str = "/pawl/cache";
/// Optional mounts of mirror credentials: `MIRRORS_DIR/TOOL/KEY`. Code of the stack cannot read them.
pub const MIRRORS_DIR: &str = "/pawl/mirrors";
/// Tokens of the run's account for clouds and Vault: `IDENTITY_DIR/FIELD/token`. Code of the stack can read them.
pub const IDENTITY_DIR: &str = "/pawl/identity";
/// Default location of token, certificate authority and namespace for Kubernetes clients.
pub const TOKEN_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Path at which the kubelet reads the termination message.
pub const TERMINATION_LOG: &str = "/dev/termination-log";
/// Name of the runner's container.
pub const CONTAINER: &str = "runner";

/// Exit code for an invalid command line (`EX_USAGE`).
pub const EXIT_USAGE: u8 = 64;
/// Exit code of an attempt that ended without a result for its run: another attempt follows, or the controller ends the
/// run.
pub const EXIT_NO_RESULT: u8 = 1;

/// The agent's exit code for a result. A pod shows failed runs alone as failed: see [`pod_exit_code`].
pub const fn exit_code(result: RunResult) -> u8 {
    match result {
        RunResult::Drifted => 2,
        RunResult::Indeterminate => 4,
        RunResult::NoChanges | RunResult::Planned | RunResult::Applied | RunResult::Destroyed => 0,
        RunResult::Rejected | RunResult::Canceled | RunResult::Expired | RunResult::Superseded => 3,
        RunResult::Failed | RunResult::Unknown => 1,
    }
}

/// The agent's exit code in a pod. A run that succeeded or was cancelled exits 0, because any other code would show the pod as failed.
pub fn pod_exit_code(result: RunResult) -> u8 {
    match result.phase() {
        Phase::Succeeded | Phase::Canceled => 0,
        _ => exit_code(result),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failed_run_fails_its_pod() {
        for result in RunResult::ALL {
            assert_eq!(
                pod_exit_code(result) != 0,
                result.phase() == Phase::Failed,
                "{result}"
            );
        }
        assert_eq!(pod_exit_code(RunResult::Rejected), 0);
        assert_eq!(exit_code(RunResult::Rejected), 3);
        assert_eq!(exit_code(RunResult::Drifted), 2);
    }
}
