//! A forge that sends webhooks to `controller server`, in Gitea's format and with its signature.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crds::TerraformRepository;
use k8s_openapi::api::{
    core::v1::{Secret, Service},
    rbac::v1::RoleBinding,
};
use kube::{Api, ResourceExt as _, api::PostParams};
use reqwest::{
    StatusCode,
    header::{HeaderMap, HeaderValue},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use harness::cluster::objects;
use harness::cluster::{Cluster, NAMESPACE, chart::Values};
use harness::wait;

/// A longer wait indicates a defect, not a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// A forge's timeout for a response.
const ANSWER: Duration = Duration::from_secs(5);
/// Block size of SHA-256, in bytes.
const BLOCK: usize = 64;

/// The chart's values that enable the server.
pub fn values() -> Values {
    Values::from([(
        "server".to_owned(),
        json!({"hooks": {"enabled": true}}).to_string(),
    )])
}

/// The webhook of a repository, as configured in its forge.
#[derive(Clone, Debug)]
pub struct Hook {
    http: reqwest::Client,
    url: String,
    secret: String,
}

impl Hook {
    /// Creates a `TerraformRepository` of this spec with a webhook, grants the server access to its secret, and waits until a delivery is
    /// accepted.
    ///
    /// # Errors
    /// When something cannot be created, or no delivery is accepted.
    pub async fn set(
        cluster: &Cluster,
        namespace: &str,
        name: &str,
        mut spec: Value,
    ) -> Result<Self> {
        let client = cluster.client().await?;
        let (secret_name, secret) = (format!("{name}-hook"), word());
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        objects::create(
            &secrets,
            json!({"metadata": {"name": secret_name}, "stringData": {"secret": secret}}),
        )
        .await?;
        bind(cluster, namespace, "pawl-server").await?;
        spec["webhook"] = json!({"secretRef": {"name": secret_name}});
        let repository = TerraformRepository::new(name, serde_json::from_value(spec)?);
        let repositories = Api::namespaced(client.clone(), namespace);
        let made = repositories
            .create(&PostParams::default(), &repository)
            .await
            .context("cannot make the repository")?;
        let services: Api<Service> = Api::namespaced(client, NAMESPACE);
        let service = services
            .get("pawl-server")
            .await
            .context("the chart has no server")?
            .spec
            .context("no spec")?;
        let address = service.cluster_ip.context("the server has no address")?;
        let port = service
            .ports
            .and_then(|ports| ports.first().map(|port| port.port))
            .context("the server has no port")?;
        let url = format!(
            "http://{address}:{port}/hooks/{}",
            made.uid().context("no UID")?
        );
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(ANSWER)
            .build()?;
        let hook = Self { http, url, secret };
        hook.wait().await?;
        Ok(hook)
    }

    /// URL and secret of deliveries.
    pub fn settings(&self) -> (&str, &str) {
        (&self.url, &self.secret)
    }

    /// Sends a push event once, like a forge.
    ///
    /// # Errors
    /// When there is no response.
    pub async fn push(&self, commit: &str) -> Result<StatusCode> {
        let id = word();
        // Each body is different, like each push.
        let body = json!({"ref": "refs/heads/main", "after": commit, "commits": [{"id": commit}], "sent": id}).to_string();
        let signed = self.signature(body.as_bytes());
        let request = self
            .http
            .post(&self.url)
            .headers(headers(&id, Some(&signed))?);
        Ok(request
            .body(body)
            .send()
            .await
            .context("the server does not answer")?
            .status())
    }

    pub fn signature(&self, body: &[u8]) -> String {
        signature(self.secret.as_bytes(), body)
    }

    /// Sends a body with the given signature, or without one; returns the status code and the verdict.
    ///
    /// # Errors
    /// When there is no response.
    pub async fn deliver(
        &self,
        id: &str,
        body: Vec<u8>,
        signature: Option<&str>,
    ) -> Result<(u16, String)> {
        let request = self
            .http
            .post(&self.url)
            .headers(headers(id, signature)?)
            .timeout(PATIENCE)
            .body(body);
        let answer = request.send().await.context("the server does not answer")?;
        let (status, said) = (
            answer.status().as_u16(),
            answer.text().await.context("no verdict")?,
        );
        let said: Value = serde_json::from_str(&said).context("no verdict")?;
        Ok((
            status,
            said["verdict"].as_str().unwrap_or_default().to_owned(),
        ))
    }

    /// Sends a push event of `size` bytes; returns how long after its last byte the server accepts it.
    ///
    /// # Errors
    /// When it is not accepted.
    pub async fn answers(&self, size: usize) -> Result<Duration> {
        let mut body = json!({"ref": "refs/heads/main", "sent": word()})
            .to_string()
            .into_bytes();
        body.resize(size.max(body.len()), b' ');
        let (code, took) = self.exchange(body.len(), &body).await?;
        ensure!(code == "202", "the server says {code}");
        Ok(took)
    }

    /// Announces `said` bytes and sends `body`; returns the status code, and the time from the last byte to the response.
    ///
    /// # Errors
    /// When there is no response.
    pub async fn exchange(&self, said: usize, body: &[u8]) -> Result<(String, Duration)> {
        let (host, path) = self
            .url
            .strip_prefix("http://")
            .and_then(|url| url.split_once('/'))
            .context("no address")?;
        let head = format!(
            "POST /{path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {said}\r\nX-Gitea-Event: push\r\n\
             X-Gitea-Delivery: {}\r\nX-Gitea-Signature: {}\r\n\r\n",
            word(),
            self.signature(body)
        );
        let exchange = async {
            let mut stream = TcpStream::connect(host).await?;
            stream.set_nodelay(true)?;
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(body).await?;
            // Bytes still in flight count as part of the measured time.
            let (sent, mut first) = (Instant::now(), [0; 12]);
            stream.read_exact(&mut first).await?;
            let line = String::from_utf8_lossy(&first).into_owned();
            let code = line
                .strip_prefix("HTTP/1.1 ")
                .with_context(|| format!("the server says {line}"))?;
            Ok((code.to_owned(), sent.elapsed()))
        };
        tokio::time::timeout(PATIENCE, exchange)
            .await
            .context("the server does not answer")?
    }

    /// The server must learn of the repository, and the API server of its right to the Secret.
    async fn wait(&self) -> Result<()> {
        let look = async || match self.push("0").await {
            Ok(StatusCode::ACCEPTED) => Ok(Ok(())),
            other => Ok(Err(format!("{other:?}"))),
        };
        wait::until("a delivery is taken", PATIENCE, look).await
    }
}

/// Lets one of Pawl's accounts, `pawl-server` or `pawl-sources`, read the Secrets that repositories of a namespace reference.
///
/// # Errors
/// When the API server refuses.
pub async fn bind(cluster: &Cluster, namespace: &str, account: &str) -> Result<()> {
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": account},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": format!("{account}-secrets")},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}],
    }))?;
    Api::namespaced(cluster.client().await?, namespace)
        .create(&PostParams::default(), &binding)
        .await?;
    Ok(())
}

fn headers(id: &str, signature: Option<&str>) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    headers.insert("x-gitea-event", HeaderValue::from_static("push"));
    headers.insert("x-gitea-delivery", id.parse()?);
    if let Some(signature) = signature {
        headers.insert("x-gitea-signature", signature.parse()?);
    }
    Ok(headers)
}

/// Random digits.
fn word() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// HMAC-SHA256 (RFC 2104) in hexadecimal digits. A key is at most one block.
fn signature(key: &[u8], body: &[u8]) -> String {
    let pad = |with: u8| {
        let mut block = [with; BLOCK];
        block
            .iter_mut()
            .zip(key)
            .for_each(|(byte, of_key)| *byte ^= of_key);
        block
    };
    let inner = Sha256::new()
        .chain_update(pad(0x36))
        .chain_update(body)
        .finalize();
    let outer = Sha256::new()
        .chain_update(pad(0x5c))
        .chain_update(inner)
        .finalize();
    crds::digest::hex_digest(&outer).split_off("sha256:".len())
}
