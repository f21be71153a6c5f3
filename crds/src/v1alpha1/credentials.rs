//! Credentials that Pawl makes out or hands on for the code of a run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::identity::{AwsIdentity, AzureIdentity, GcpIdentity, IdentityToken, VaultIdentity};

/// Credentials of the code. Each identity is a token of the account that `runner.serviceAccountName` names, for one audience; the kubelet
/// renews it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    /// A role of AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aws: Option<Box<AwsIdentity>>,
    /// An identity at Google Cloud, by workload identity federation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcp: Option<Box<GcpIdentity>>,
    /// An application or managed identity of Azure, by a federated credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub azure: Option<Box<AzureIdentity>>,
    /// A token to log in to Vault with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vault: Option<Box<VaultIdentity>>,
}

impl Credentials {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The tokens that the run's account needs, in the order of their fields.
    pub fn tokens(&self) -> Vec<IdentityToken> {
        let aws = self.aws.as_ref().map(|aws| ("aws", aws.audience.clone()));
        let gcp = self.gcp.as_ref().map(|gcp| ("gcp", gcp.audience()));
        let azure = self.azure.as_ref().map(|azure| ("azure", azure.audience.clone()));
        let vault = self.vault.as_ref().map(|vault| ("vault", vault.audience.clone()));
        let all = [aws, gcp, azure, vault].into_iter().flatten();
        all.map(|(field, audience)| IdentityToken { field, audience }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_identity_has_a_token_of_its_own_audience() {
        let pool = "projects/1/locations/global/workloadIdentityPools/p/providers/k";
        let credentials: Credentials = serde_json::from_value(json!({
            "aws": {"roleArn": "arn:aws:iam::111122223333:role/r"},
            "gcp": {"workloadIdentityProvider": pool},
            "azure": {"clientId": "c", "tenantId": "t"},
            "vault": {"address": "https://vault", "audience": "v"},
        }))
        .unwrap();
        let tokens: Vec<_> = credentials.tokens().into_iter().map(|token| (token.field, token.audience)).collect();
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
