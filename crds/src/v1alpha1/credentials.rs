//! What a run may ask others with, besides its source.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values::{KeyRef, SecretName};

/// What `init` asks others with for modules and providers, each host with its own. Code of the stack can read all of it, since the tool
/// has to; so let it be good for reading and nothing else. It is no part of the plan's checksum.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    /// Git servers of modules and submodules; at most 16. The server of the source needs no entry where `source.git.secretRef` has its
    /// credentials, unless modules come from there too: those credentials are the agent's alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub git: Vec<GitCredential>,
    /// Registries of modules and providers; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub registries: Vec<RegistryCredential>,
    /// A CLI configuration (`.tfrc`) that is joined with Pawl's own. Its `provider_installation`, which may name mirrors, stands in place of
    /// Pawl's cache of providers; `plugin_cache_dir`, `credentials_helper` and `dev_overrides` are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cli_config: Option<CliConfig>,
}

impl Credentials {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What a git server is asked with.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitCredential {
    /// The host, or `host:port` for `https` on another port than 443; at most 255 characters. A key for ssh is for all ports of the host.
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?$"))]
    pub host: String,
    /// Secret of the run's namespace: `username` and `password`, or `bearerToken`, for `https`; `identity` (or `ssh-privatekey`) and
    /// `known_hosts` for ssh.
    pub secret_ref: SecretName,
}

/// What a registry is asked with.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegistryCredential {
    /// The host, or `host:port`, as sources of modules name it; at most 255 characters.
    #[schemars(length(min = 1, max = 255), regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?$"))]
    pub host: String,
    /// Key of a Secret with the token.
    pub secret_key_ref: KeyRef,
}

/// Where the text of a CLI configuration is.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CliConfig {
    /// Key of a Secret with the text, in HCL; at most 256 KiB.
    pub secret_key_ref: KeyRef,
}
