//! Workload identity: environment variables by which the SDKs of clouds and Vault find a token of the run's ServiceAccount, and
//! related settings.

use std::{fs, path::PathBuf};

use crds::{
    AwsIdentity, AzureIdentity, Credentials, Failure, FailureClass, GcpIdentity, Reason,
    TerraformRun, VaultIdentity,
};
use serde_json::{Value, json};

use super::{
    PhaseRunner,
    env_names::{Moment, is_identity, refused},
    inputs, preflight,
};
use crate::{classify::OrInternal as _, files, guard, settings::Settings};

/// Maximum length of a session name in AWS.
const SESSION: usize = 64;

/// An environment variable: the field of `spec.credentials`, its name, its value.
type Variable = (&'static str, &'static str, String);

impl PhaseRunner {
    /// Gathers all inputs of the run's code after the preflight check. `fetches`: the source is fetched as well.
    pub(super) async fn inputs(
        &self,
        run: &TerraformRun,
        fetches: bool,
    ) -> Result<inputs::Inputs, Failure> {
        let (spec, settings) = (&run.spec, &self.settings);
        preflight::check(spec, settings, fetches, jiff::Timestamp::now())?;
        let mut given = inputs::gather(
            spec,
            settings,
            &self.take_outputs(run).await?,
            &self.redactor,
        )?;
        let own = environment(&spec.credentials, settings);
        let twice: Vec<String> = own
            .iter()
            .filter(|(_, name, _)| given.env.iter().any(|(given, _)| given == name))
            .map(|(field, name, _)| format!("env {name} is set by credentials.{field} as well"))
            .collect();
        if !twice.is_empty() {
            return Err(Reason::InvalidSpec
                .failure(format!("{}; leave one of the two out", twice.join(", "))));
        }
        for token in spec.credentials.tokens() {
            if let Some(text) = inputs::mounted(&settings.identity.join(token.field), "token") {
                self.redactor.add(&text);
            }
        }
        if let Some(gcp) = &spec.credentials.gcp {
            files::write(
                &gcp_file(settings),
                external_account(gcp, &token(settings, "gcp"))
                    .to_string()
                    .as_bytes(),
            )
            .or_internal("the credentials of Google Cloud cannot be written")?;
        }
        for (field, name, value) in own {
            given.env.push((name.to_owned(), value));
            given
                .env_origins
                .push((name.to_owned(), format!("credentials.{field}")));
        }
        if let Some(text) = self.take_injected(run, &mut given) {
            self.say(&text).await;
            *guard(&self.kept_back) = Some(text);
        }
        Ok(given)
    }

    /// Passes on what the cluster gave the pod for the account that the run names, except names that bring code. The run's own
    /// variables win. These are credentials, which differ between the pods of plan and apply, so the manifest does not have them.
    /// Returns what is kept back, for people.
    fn take_injected(&self, run: &TerraformRun, given: &mut inputs::Inputs) -> Option<String> {
        let restores = run.attempt().is_some_and(|a| a.restores.is_some());
        let has_account = run.spec.runner.account(restores).is_some();
        let mut kept_back = Vec::new();
        let injected = self.settings.injected.iter();
        for (name, value) in injected.filter(|(name, _)| is_identity(name)) {
            if !has_account || refused(name, Moment::Later).is_some() {
                kept_back.push(name.as_str());
                continue;
            }
            if name.contains("SECRET") || name.ends_with("TOKEN") {
                self.redactor.add(value);
            }
            if let Some(text) = name
                .ends_with("TOKEN_FILE")
                .then(|| fs::read_to_string(value).ok())
                .flatten()
            {
                self.redactor.add(text.trim());
            }
            if given.env.iter().all(|(own, _)| own != name) {
                given.env.push((name.clone(), value.clone()));
            }
        }
        if kept_back.is_empty() {
            return None;
        }
        let why = if has_account {
            "since they would bring code or a path; env may name them"
        } else {
            "since the run names no account: runner.serviceAccountName"
        };
        Some(format!(
            "the cluster gave the pod {}, which the code does not get, {why}",
            kept_back.join(", ")
        ))
    }

    /// Adds to a failure of credentials that some were kept back, and gives the failure for want of the pod's own token its reason.
    pub(super) fn for_want_of_identity(&self, failure: Failure) -> Failure {
        let failure = without_account(failure);
        let kept_back = guard(&self.kept_back).clone();
        match kept_back.filter(|_| failure.class == FailureClass::Credentials) {
            Some(text) => Failure {
                message: crds::text::clip(&format!("{}; {text}", failure.message), 1024),
                ..failure
            },
            None => failure,
        }
    }
}

/// The failure of code that looked for the token of the pod's account, which it gets only with an account that the run names.
fn without_account(failure: Failure) -> Failure {
    let text = failure.message.to_lowercase();
    let is_refused = ["permission denied", "no such file", "not found"]
        .iter()
        .any(|words| text.contains(words));
    if !text.contains("serviceaccount/token") || !is_refused {
        return failure;
    }
    Failure {
        diagnostics: failure.diagnostics,
        changes: failure.changes,
        ..Reason::Unauthorized.failure(crds::text::clip(
            &format!(
                "{}; code has a token of the cluster only with an account that the run names: runner.serviceAccountName",
                failure.message
            ),
            1024,
        ))
    }
}

/// Path of the credentials file for Google's libraries. The stack's code cannot change it.
fn gcp_file(settings: &Settings) -> PathBuf {
    settings.kept.join("gcp.json")
}

/// Path of a field's token. The kubelet renews the file in place.
fn token(settings: &Settings, field: &str) -> String {
    settings
        .identity
        .join(field)
        .join("token")
        .display()
        .to_string()
}

/// The environment variables for the SDKs.
fn environment(credentials: &Credentials, settings: &Settings) -> Vec<Variable> {
    let mut env: Vec<Variable> = Vec::new();
    if let Some(AwsIdentity {
        role_arn,
        region,
        audience: _,
    }) = credentials.aws.as_deref()
    {
        // The session name lets a reader of the cloud's audit log find the run.
        let session: String = format!("pawl-{}", settings.run)
            .chars()
            .take(SESSION)
            .collect();
        env.extend([
            ("aws", "AWS_ROLE_ARN", role_arn.clone()),
            ("aws", "AWS_WEB_IDENTITY_TOKEN_FILE", token(settings, "aws")),
            ("aws", "AWS_ROLE_SESSION_NAME", session),
        ]);
        env.extend(region.clone().map(|region| ("aws", "AWS_REGION", region)));
    }
    if let Some(GcpIdentity { project, .. }) = credentials.gcp.as_deref() {
        env.push((
            "gcp",
            "GOOGLE_APPLICATION_CREDENTIALS",
            gcp_file(settings).display().to_string(),
        ));
        env.extend(
            project
                .clone()
                .map(|project| ("gcp", "GOOGLE_PROJECT", project)),
        );
    }
    if let Some(AzureIdentity {
        client_id,
        tenant_id,
        subscription_id,
        audience: _,
    }) = credentials.azure.as_deref()
    {
        // The SDK reads the first three, the provider and the backend the others.
        env.extend([
            ("azure", "AZURE_CLIENT_ID", client_id.clone()),
            ("azure", "AZURE_TENANT_ID", tenant_id.clone()),
            (
                "azure",
                "AZURE_FEDERATED_TOKEN_FILE",
                token(settings, "azure"),
            ),
            ("azure", "ARM_USE_OIDC", "true".to_owned()),
            ("azure", "ARM_CLIENT_ID", client_id.clone()),
            ("azure", "ARM_TENANT_ID", tenant_id.clone()),
            (
                "azure",
                "ARM_OIDC_TOKEN_FILE_PATH",
                token(settings, "azure"),
            ),
        ]);
        env.extend(
            subscription_id
                .clone()
                .map(|id| ("azure", "ARM_SUBSCRIPTION_ID", id)),
        );
    }
    if let Some(VaultIdentity {
        address,
        namespace,
        audience: _,
    }) = credentials.vault.as_deref()
    {
        env.push(("vault", "VAULT_ADDR", address.clone()));
        env.extend(
            namespace
                .clone()
                .map(|namespace| ("vault", "VAULT_NAMESPACE", namespace)),
        );
    }
    env
}

/// A credential configuration of workload identity federation (<https://google.aip.dev/auth/4117>). It contains the path of the
/// token, no secret.
fn external_account(gcp: &GcpIdentity, token: &str) -> Value {
    let mut config = json!({
        "type": "external_account",
        "audience": format!("//iam.googleapis.com/{}", gcp.workload_identity_provider),
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": "https://sts.googleapis.com/v1/token",
        "credential_source": {"file": token, "format": {"type": "text"}},
    });
    if let Some(email) = &gcp.service_account_email {
        let url = format!(
            "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{email}:generateAccessToken"
        );
        config["service_account_impersonation_url"] = url.into();
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phases::tests::settings;

    fn credentials() -> Credentials {
        serde_json::from_value(json!({
            "aws": {"roleArn": "arn:aws:iam::111122223333:role/r", "region": "eu-central-1"},
            "gcp": {"workloadIdentityProvider": "projects/1/p", "serviceAccountEmail": "tf@p.iam.gserviceaccount.com"},
            "azure": {"clientId": "c", "tenantId": "t"},
            "vault": {"address": "https://vault"},
        }))
        .unwrap()
    }

    #[test]
    fn token_of_an_account_that_is_not_named_is_no_fault_of_the_code() {
        let path = "/var/run/secrets/kubernetes.io/serviceaccount/token";
        let text = format!("init failed: open {path}: permission denied");
        let failure = without_account(Reason::InitFailed.failure(&text));
        assert_eq!(failure.reason, Reason::Unauthorized.as_str());
        assert_eq!(failure.class, FailureClass::Credentials);
        assert!(failure.message.starts_with(&text));
        assert!(
            failure.message.contains("runner.serviceAccountName"),
            "{failure:?}"
        );
        for other in [
            "open main.tf: permission denied",
            "the token serviceaccount/token expired",
        ] {
            let failure = Reason::InitFailed.failure(other);
            assert_eq!(without_account(failure.clone()), failure);
        }
    }

    #[test]
    fn sdk_environment_names_the_token_files() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings {
            identity: "/pawl/identity".into(),
            kept: "/pawl/kept".into(),
            ..settings(dir.path())
        };
        let env = environment(&credentials(), &settings);
        let value = |name: &str| {
            env.iter()
                .find(|(_, of, _)| *of == name)
                .map(|(_, _, value)| value.as_str())
        };
        for (name, wanted) in [
            ("AWS_WEB_IDENTITY_TOKEN_FILE", "/pawl/identity/aws/token"),
            ("AWS_REGION", "eu-central-1"),
            ("GOOGLE_APPLICATION_CREDENTIALS", "/pawl/kept/gcp.json"),
            ("AZURE_FEDERATED_TOKEN_FILE", "/pawl/identity/azure/token"),
            ("ARM_OIDC_TOKEN_FILE_PATH", "/pawl/identity/azure/token"),
            ("VAULT_ADDR", "https://vault"),
        ] {
            assert_eq!(value(name), Some(wanted), "{name}");
        }
        assert_eq!(value("GOOGLE_PROJECT"), None, "it is not said");
        let config = external_account(credentials().gcp.as_ref().unwrap(), "/t");
        assert_eq!(config["audience"], "//iam.googleapis.com/projects/1/p");
        assert!(
            config["service_account_impersonation_url"]
                .as_str()
                .unwrap()
                .contains("tf@p.iam")
        );
        assert!(environment(&Credentials::default(), &settings).is_empty());
    }
}
