//! Credentials of a run for other services than its source, and workload identities.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    identity::{AwsIdentity, AzureIdentity, GcpIdentity, IdentityToken, VaultIdentity},
    values::{KeyRef, SecretName},
};

/// Credentials of `init` for hosts of modules and providers, and identities of the run's account at clouds and Vault.
/// Each identity is a token of the account in `runner.serviceAccountName` for one audience, renewed by the kubelet. The
/// tool needs all of them, so code of the stack can read them: give them only the rights that the stack needs. They are
/// not part of the plan's checksum.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    /// Git servers of modules and submodules; at most 16. The server of the source needs an entry only when modules
    /// come from it too: `source.git.secretRef` is available to the agent alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub git: Vec<GitCredential>,
    /// Registries of modules and providers; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub registries: Vec<RegistryCredential>,
    /// A CLI configuration (`.tfrc`) that is merged with Pawl's own. Its `provider_installation`, which may use
    /// mirrors, replaces Pawl's provider cache; `plugin_cache_dir`, `credentials_helper` and `dev_overrides` are
    /// rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cli_config: Option<CliConfig>,
    /// A role in AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aws: Option<Box<AwsIdentity>>,
    /// An identity in Google Cloud, by workload identity federation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcp: Option<Box<GcpIdentity>>,
    /// An application or managed identity in Azure, by a federated credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub azure: Option<Box<AzureIdentity>>,
    /// A token for logging in to Vault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vault: Option<Box<VaultIdentity>>,
}

impl Credentials {
    /// Whether no credentials are set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The tokens that the run's account needs, in the order of the fields.
    pub fn tokens(&self) -> Vec<IdentityToken> {
        let aws = self.aws.as_ref().map(|aws| ("aws", aws.audience.clone()));
        let gcp = self.gcp.as_ref().map(|gcp| ("gcp", gcp.audience()));
        let azure = self
            .azure
            .as_ref()
            .map(|azure| ("azure", azure.audience.clone()));
        let vault = self
            .vault
            .as_ref()
            .map(|vault| ("vault", vault.audience.clone()));
        let all = [aws, gcp, azure, vault].into_iter().flatten();
        all.map(|(field, audience)| IdentityToken { field, audience })
            .collect()
    }
}

/// The credentials for a git server.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitCredential {
    /// The host, `host:port` for `https` on a port other than 443, or a part of it: `host/path`, `user@host`; at most 255 characters. Of the entries
    /// that match a URL, the longest counts, as in git's `http.<url>.*`. An SSH key applies to all ports and users of the host. A token also serves
    /// URLs that are written for SSH, if no key does; a key with a path also serves URLs that are written for `https`, if no token does.
    #[schemars(
        length(min = 1, max = 255),
        extend("x-kubernetes-validations" = super::texts::git_host())
    )]
    pub host: String,
    /// Secret in the namespace of the run, or of the repository: `username` and `password`, or `bearerToken`, for `https`; `ca.crt` for a private
    /// certificate authority of this host only; `identity` (or `ssh-privatekey`) and `known_hosts` for SSH.
    pub secret_ref: SecretName,
}

/// The credentials for a registry.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegistryCredential {
    /// The host, or `host:port`, as written in module sources; at most 255 characters.
    #[schemars(
        length(min = 1, max = 255),
        extend("x-kubernetes-validations" = super::texts::registry_host())
    )]
    pub host: String,
    /// Key of a Secret with the token.
    pub secret_key_ref: KeyRef,
}

/// The location of a CLI configuration.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CliConfig {
    /// Key of a Secret with the text, in HCL; at most 256 KiB.
    pub secret_key_ref: KeyRef,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_identity_has_a_token_for_its_audience() {
        let pool = "projects/1/locations/global/workloadIdentityPools/p/providers/k";
        let credentials: Credentials = serde_json::from_value(json!({
            "aws": {"roleArn": "arn:aws:iam::111122223333:role/r"},
            "gcp": {"workloadIdentityProvider": pool},
            "azure": {"clientId": "c", "tenantId": "t"},
            "vault": {"address": "https://vault", "audience": "v"},
        }))
        .unwrap();
        let tokens: Vec<_> = credentials
            .tokens()
            .into_iter()
            .map(|token| (token.field, token.audience))
            .collect();
        let wanted = [
            ("aws", "sts.amazonaws.com".to_owned()),
            ("gcp", format!("https://iam.googleapis.com/{pool}")),
            ("azure", "api://AzureADTokenExchange".to_owned()),
            ("vault", "v".to_owned()),
        ];
        assert_eq!(tokens, wanted);
        assert!(Credentials::default().tokens().is_empty() && Credentials::default().is_empty());
    }
}
