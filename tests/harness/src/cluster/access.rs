//! Access to a cluster's API: as administrator, as another user, or with `kubectl`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::http::{HeaderValue, header::USER_AGENT};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use super::cache;
use super::command::run;
use super::processes::{Processes, Record};
use crate::wait;

/// The API server's file of issuers, beside the kubeconfig.
pub(super) const AUTHENTICATION: &str = "authentication.yaml";

/// An AuthenticationConfiguration with these entries of `jwt`.
pub(super) fn authentication_config(issuers: &[Value]) -> Value {
    json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": issuers})
}

/// An issuer's entry of `jwt`: the API server takes `sub` and `groups` of its ID tokens for this audience, prefixed with `oidc:`.
pub fn issuer(url: &str, audience: &str, authority: &str) -> Value {
    let prefixed = |claim: &str| json!({"claim": claim, "prefix": "oidc:"});
    json!({"issuer": {"url": url, "audiences": [audience], "certificateAuthority": authority},
        "claimMappings": {"username": prefixed("sub"), "groups": prefixed("groups")}})
}

/// The `User-Agent` of a test that acts as one of Pawl's accounts. Pawl's own clients send none, kubectl and tools send their own.
pub const ACTOR: &str = "actor of a test";

#[derive(Clone, Debug)]
pub struct Access {
    /// The administrator's kubeconfig. It embeds its certificates, so it may be copied.
    pub kubeconfig: PathBuf,
    /// The API server's address.
    pub server: String,
    /// The audit log: one JSON object per line for each request.
    pub audit_log: PathBuf,
    /// A `kubectl` of the API server's version.
    pub kubectl: PathBuf,
}

impl Access {
    /// A client with all rights.
    pub async fn client(&self) -> Result<Client> {
        make(self.config().await?)
    }

    /// A client with a token. `agent` is its `User-Agent`; Pawl's processes have none.
    pub async fn client_for_token(&self, token: &str, agent: Option<&str>) -> Result<Client> {
        let mut config = self.config().await?;
        if let Some(agent) = agent {
            config
                .headers
                .push((USER_AGENT, HeaderValue::from_str(agent)?));
        }
        config.auth_info = kube::config::AuthInfo {
            token: Some(token.to_owned().into()),
            ..Default::default()
        };
        make(config)
    }

    /// A client that acts as a user in groups; the API server applies that user's rights. Its requests count as a test's, also those of
    /// an account of Pawl.
    pub async fn impersonate(&self, user: &str, groups: &[&str]) -> Result<Client> {
        let mut config = self.config().await?;
        config
            .headers
            .push((USER_AGENT, HeaderValue::from_static(ACTOR)));
        config.auth_info.impersonate = Some(user.to_owned());
        config.auth_info.impersonate_groups =
            (!groups.is_empty()).then(|| groups.iter().map(|group| (*group).to_owned()).collect());
        make(config)
    }

    /// The administrator's configuration, for callers that need a client with other settings.
    pub async fn config(&self) -> Result<Config> {
        crypto();
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig)
            .with_context(|| format!("cannot read {}", self.kubeconfig.display()))?;
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .context("the administrator's kubeconfig is not usable")
    }

    /// Trusts ID tokens of these issuers, entries of `jwt` in an AuthenticationConfiguration, and of no others. A running API server reads
    /// the file again within a minute, once all of them answer.
    pub fn trust(&self, issuers: &[Value]) -> Result<()> {
        let path = self.kubeconfig.with_file_name(AUTHENTICATION);
        cache::write(&path, authentication_config(issuers).to_string())
    }

    /// Runs `kubectl` as administrator and returns its stdout.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        run(self.kubectl_command(args))
            .with_context(|| format!("`kubectl {}` failed", args.join(" ")))
    }

    /// `kubectl` as administrator, for callers that need stdin, the exit code or stderr.
    pub fn kubectl_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.env("KUBECONFIG", &self.kubeconfig).args(args);
        command
    }

    /// Whether the API server reports that it is ready.
    pub async fn is_ready(&self) -> bool {
        let Ok(mut config) = self.config().await else {
            return false;
        };
        config.connect_timeout = Some(Duration::from_secs(1));
        config.read_timeout = Some(Duration::from_secs(2));
        let Ok(client) = make(config) else {
            return false;
        };
        ready(&client).await
    }

    /// Waits until the API server is ready. Fails with the end of the log if a process exits.
    pub(super) async fn wait_ready(&self, processes: &Processes, started: &[Record]) -> Result<()> {
        let client = self.client().await?;
        let what = format!(
            "kube-apiserver is ready; see {}",
            processes.log("kube-apiserver").display()
        );
        wait::until(what, Duration::from_secs(30), async || {
            let ready = ready(&client).await;
            started
                .iter()
                .filter(|_| !ready)
                .try_for_each(|record| processes.check(record))?;
            Ok(ready)
        })
        .await
    }

    pub(super) fn new(state: &Path, server: String, audit_log: PathBuf, kubectl: &Path) -> Self {
        Self {
            kubeconfig: state.join("kubeconfig"),
            server,
            audit_log,
            kubectl: kubectl.to_owned(),
        }
    }
}

async fn ready(client: &Client) -> bool {
    let Ok(request) = axum::http::Request::get("/readyz").body(Vec::new()) else {
        return false;
    };
    client.request_text(request).await.is_ok()
}

fn make(config: Config) -> Result<Client> {
    crypto();
    Client::try_from(config).context("cannot make a client of the cluster")
}

/// Installs the TLS provider of this process. A second call has no effect.
fn crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
