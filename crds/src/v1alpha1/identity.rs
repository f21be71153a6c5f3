//! Workload identity: the clouds and Vault, and what a token of the run's account is exchanged for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A role in AWS, assumed with `AssumeRoleWithWebIdentity`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AwsIdentity {
    /// ARN of the role; at most 256 characters.
    #[schemars(
        length(min = 1, max = 256),
        regex(pattern = r"^arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]+$")
    )]
    pub role_arn: String,
    /// The region, if neither code nor `env` sets it; at most 64 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[a-z0-9-]+$"))]
    pub region: Option<String>,
    /// Audience of the token, which the role's trust policy requires. Default: `sts.amazonaws.com`; at most 256
    /// characters.
    #[serde(default = "aws_audience")]
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[!-~]+$"))]
    pub audience: String,
}

/// An identity in Google Cloud.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GcpIdentity {
    /// Name of the provider of the workload identity pool; at most 512 characters:
    /// `projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/PROVIDER`.
    #[schemars(
        length(min = 1, max = 512),
        regex(
            pattern = r"^projects/[0-9]+/locations/[a-z0-9-]+/workloadIdentityPools/[a-z0-9-]+/providers/[a-z0-9-]+$"
        )
    )]
    pub workload_identity_provider: String,
    /// The service account to impersonate. Without one, the rights are those of the federated identity. At most 256
    /// characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 256),
        regex(pattern = r"^[a-z0-9-]+@[a-z0-9.-]+$")
    )]
    pub service_account_email: Option<String>,
    /// The project, if neither code nor `env` sets it; at most 64 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[a-z0-9:.-]+$"))]
    pub project: Option<String>,
    /// Audience of the token. Default: `https://iam.googleapis.com/` followed by the provider's name, which is the
    /// provider's own default; at most 640 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 640), regex(pattern = r"^[!-~]+$"))]
    pub audience: Option<String>,
}

/// An application or managed identity in Azure.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AzureIdentity {
    /// Client id; at most 36 characters.
    #[schemars(length(min = 36, max = 36), regex(pattern = r"^[0-9a-fA-F-]{36}$"))]
    pub client_id: String,
    /// Tenant id; at most 36 characters.
    #[schemars(length(min = 36, max = 36), regex(pattern = r"^[0-9a-fA-F-]{36}$"))]
    pub tenant_id: String,
    /// Subscription id, if neither code nor `env` sets it; at most 36 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 36, max = 36), regex(pattern = r"^[0-9a-fA-F-]{36}$"))]
    pub subscription_id: Option<String>,
    /// Audience of the token. Default: `api://AzureADTokenExchange`; at most 256 characters.
    #[serde(default = "azure_audience")]
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[!-~]+$"))]
    pub audience: String,
}

/// A token for logging in to Vault with its auth methods `jwt` and `kubernetes`. The code's provider block sets role
/// and method.
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

/// A token of the run's account, mounted for an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityToken {
    /// The field of `spec.credentials`, which also names the directory of the file.
    pub field: &'static str,
    /// Audience of the token.
    pub audience: String,
}

impl GcpIdentity {
    /// Audience of the token, with its default.
    pub fn audience(&self) -> String {
        let own = || {
            format!(
                "https://iam.googleapis.com/{}",
                self.workload_identity_provider
            )
        };
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
