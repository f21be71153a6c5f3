//! What an attempt's pod is given, and what it answers with.

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
/// Name of the node that the pod is on.
pub const ENV_NODE_NAME: &str = "PAWL_NODE_NAME";
/// Directory with tools in the image: `TOOL/VERSION/BINARY` ([`crate::ToolName::directory`], [`crate::ToolName::binary`]).
pub const ENV_TOOLS: &str = "PAWL_TOOLS";
/// The cache of tools that were got, a volume; below the work directory when it is not set.
pub const ENV_TOOLS_CACHE: &str = "PAWL_TOOLS_CACHE";
/// What the operator says about tools: [`crate::tools::ToolSettings`] as JSON.
pub const ENV_TOOL_SETTINGS: &str = "PAWL_TOOL_SETTINGS";
/// Authorities besides those of the image, as PEM, for all that is fetched; those of the image alone when it is not set.
pub const ENV_CA: &str = "PAWL_CA";
/// Directory with a filesystem mirror of providers.
pub const ENV_PROVIDERS: &str = "PAWL_PROVIDERS";
/// Shared cache directory with providers; nothing is cached when it is not set.
pub const ENV_PROVIDERS_CACHE: &str = "PAWL_PROVIDERS_CACHE";
/// `true` where code of the stack shall not run unconfined; not set otherwise.
pub const ENV_REQUIRE_CONFINEMENT: &str = "PAWL_REQUIRE_CONFINEMENT";
/// Seconds between SIGTERM and SIGKILL.
pub const ENV_GRACE: &str = "PAWL_GRACE_SECONDS";

/// Default of [`ENV_TOOLS`].
pub const TOOLS_DIR: &str = "/opt/pawl/tools";
/// Default of [`ENV_PROVIDERS`].
pub const PROVIDERS_DIR: &str = "/opt/pawl/providers";
/// The one directory an attempt writes below; an `emptyDir`.
pub const WORK_DIR: &str = "/pawl/work";
/// What the agent alone writes to, an `emptyDir`: the plan that is shown and applied.
pub const KEPT_DIR: &str = "/pawl/kept";
/// Secrets, mounted optional: `SECRETS_DIR/NAME/KEY`.
pub const SECRETS_DIR: &str = "/pawl/secrets";
/// ConfigMaps, mounted optional: `CONFIG_MAPS_DIR/NAME/KEY`.
pub const CONFIG_MAPS_DIR: &str = "/pawl/configmaps";
/// Where the cache is mounted: tools in `tools`, providers in `providers`.
pub const CACHE_DIR: &str = "/pawl/cache";
/// Credentials of mirrors, mounted optional: `MIRRORS_DIR/TOOL/KEY`, out of the code's reach.
pub const MIRRORS_DIR: &str = "/pawl/mirrors";
/// Tokens of the run's account for clouds and Vault: `IDENTITY_DIR/FIELD/token`, where code of the stack reads them.
pub const IDENTITY_DIR: &str = "/pawl/identity";
/// Token, certificate authority and namespace, where clients look for them.
pub const TOKEN_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Where the kubelet reads the termination message.
pub const TERMINATION_LOG: &str = "/dev/termination-log";
/// Name of the container of an attempt's pod.
pub const CONTAINER: &str = "runner";

/// Exit code for a command line that makes no sense (`EX_USAGE`).
pub const EXIT_USAGE: u8 = 64;
/// Exit code of an attempt that ended without a result of its run: another follows, or the controller writes the end.
pub const EXIT_NO_RESULT: u8 = 1;

/// The agent's exit code for a result. In a pod a run that succeeded exits 0 always: see [`pod_exit_code`].
pub const fn exit_code(result: RunResult) -> u8 {
    match result {
        RunResult::Drifted => 2,
        RunResult::Indeterminate => 4,
        RunResult::NoChanges | RunResult::Planned | RunResult::Applied | RunResult::Destroyed => 0,
        RunResult::Rejected | RunResult::Canceled | RunResult::Expired | RunResult::Superseded => 3,
        RunResult::Failed | RunResult::Unknown => 1,
    }
}

/// The agent's exit code in a pod, where anything but 0 would show a run that succeeded as a failed pod.
pub fn pod_exit_code(result: RunResult) -> u8 {
    if result.phase() == Phase::Succeeded { 0 } else { exit_code(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_succeeded_is_a_pod_that_succeeded() {
        for result in RunResult::ALL {
            assert_eq!(pod_exit_code(result) == 0, result.phase() == Phase::Succeeded, "{result}");
        }
        assert_eq!(exit_code(RunResult::Drifted), 2);
    }
}
