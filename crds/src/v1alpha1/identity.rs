//! Workload identity: what a token of the run's account is exchanged for, and with whom.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A role of AWS, taken by `AssumeRoleWithWebIdentity`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AwsIdentity {
    /// ARN of the role; at most 256 characters.
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]+$"))]
    pub role_arn: String,
    /// The region, where neither code nor `env` says it; at most 64 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[a-z0-9-]+$"))]
    pub region: Option<String>,
    /// Audience of the token, which the role's trust policy asks for. Default: `sts.amazonaws.com`; at most 256 characters.
    #[serde(default = "aws_audience")]
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[!-~]+$"))]
    pub audience: String,
}

/// An identity at Google Cloud.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GcpIdentity {
    /// Name of the provider of the workload identity pool; at most 512 characters:
    /// `projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/PROVIDER`.
    #[schemars(
        length(min = 1, max = 512),
        regex(pattern = r"^projects/[0-9]+/locations/[a-z0-9-]+/workloadIdentityPools/[a-z0-9-]+/providers/[a-z0-9-]+$")
    )]
    pub workload_identity_provider: String,
    /// The service account that is impersonated; without one the rights are those of the federated identity itself. At most 256
    /// characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[a-z0-9-]+@[a-z0-9.-]+$"))]
    pub service_account_email: Option<String>,
    /// The project, where neither code nor `env` says it; at most 64 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[a-z0-9:.-]+$"))]
    pub project: Option<String>,
    /// Audience of the token. Default: that which the provider asks for by itself, `https://iam.googleapis.com/` and its name; at most
    /// 640 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 640), regex(pattern = r"^[!-~]+$"))]
    pub audience: Option<String>,
}

/// An application or managed identity of Azure.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AzureIdentity {
    /// Id of the client; at most 36 characters.
    #[schemars(length(min = 36, max = 36), regex(pattern = r"^[0-9a-fA-F-]{36}$"))]
    pub client_id: String,
    /// Id of the tenant; at most 36 characters.
    #[schemars(length(min = 36, max = 36), regex(pattern = r"^[0-9a-fA-F-]{36}$"))]
    pub tenant_id: String,
    /// Id of the subscription, where neither code nor `env` says it; at most 36 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 36, max = 36), regex(pattern = r"^[0-9a-fA-F-]{36}$"))]
    pub subscription_id: Option<String>,
    /// Audience of the token. Default: `api://AzureADTokenExchange`; at most 256 characters.
    #[serde(default = "azure_audience")]
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[!-~]+$"))]
    pub audience: String,
}

/// A token to log in to Vault with, by its methods `jwt` and `kubernetes`. Role and method stand in the code's provider block.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VaultIdentity {
    /// Address of the server, `https://` or `http://`; at most 1024 characters.
    #[schemars(length(min = 8, max = 1024), regex(pattern = r"^https?://[^\s@]+$"))]
    pub address: String,
    /// Namespace of Vault Enterprise; at most 256 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[!-~]+$"))]
    pub namespace: Option<String>,
    /// Audience of the token. Default: `vault`; at most 256 characters.
    #[serde(default = "vault_audience")]
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[!-~]+$"))]
    pub audience: String,
}

/// A token of the run's account that is mounted for an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityToken {
    /// The field of `spec.credentials`, and the directory of its file.
    pub field: &'static str,
    /// Whom the token is for.
    pub audience: String,
}

impl GcpIdentity {
    /// Audience of the token.
    pub fn audience(&self) -> String {
        let own = || format!("https://iam.googleapis.com/{}", self.workload_identity_provider);
        self.audience.clone().unwrap_or_else(own)
    }
}

fn aws_audience() -> String {
    "sts.amazonaws.com".into()
}

fn azure_audience() -> String {
    "api://AzureADTokenExchange".into()
}

fn vault_audience() -> String {
    "vault".into()
}
