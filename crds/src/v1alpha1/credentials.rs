//! Credentials that Pawl makes out or hands on for the code of a run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::identity::{AwsIdentity, AzureIdentity, GcpIdentity, VaultIdentity};

/// Credentials of the code. Each identity is a token of the account that `runner.serviceAccountName` names, for one audience; the kubelet
/// renews it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    /// A role of AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aws: Option<AwsIdentity>,
    /// An identity at Google Cloud, by workload identity federation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcp: Option<GcpIdentity>,
    /// An application or managed identity of Azure, by a federated credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub azure: Option<AzureIdentity>,
    /// A token to log in to Vault with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vault: Option<VaultIdentity>,
}

impl Credentials {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
