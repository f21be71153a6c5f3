//! Access to a cluster's datastore with a pod's token.

use std::{fs, net::SocketAddr, os::unix::fs::PermissionsExt, path::PathBuf};

use anyhow::{Context, Result};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use datastore_client::{Connection, Limits, Text};
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::Api;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use super::{
    pki,
    whole::{Cluster, NAMESPACE},
};

/// The PersistentVolumeClaim of the datastore.
pub const CLAIM: &str = "pawl-data";
pub const SERVICE: &str = "pawl-datastore";

/// A connection from this machine to the datastore.
#[derive(Debug)]
pub struct Datastore {
    connection: Connection,
    /// The certificate authority, in PEM.
    pub authority: String,
    pub address: SocketAddr,
}

impl Cluster {
    /// The directory on this machine where the datastore stores its objects.
    pub fn datastore(&self) -> PathBuf {
        self.state().join("datastore")
    }

    /// The id of the store that the cluster expects.
    ///
    /// # Errors
    /// There is no such Secret.
    pub fn expected_store(&self) -> Result<String> {
        self.kubectl(&[
            "-n",
            NAMESPACE,
            "get",
            "secret",
            "pawl-datastore-identity",
            "-o",
            "go-template={{ .data.store | base64decode }}",
        ])
    }

    /// Creates the datastore's volume: a directory of this machine, so that tests can read it.
    pub(super) fn make_datastore_volume(&self) -> Result<()> {
        let dir = self.datastore();
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        // The datastore runs as an unprivileged user.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777))
            .with_context(|| format!("cannot open {}", dir.display()))?;
        let size = json!({"storage": "10Gi"});
        let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": CLAIM}, "spec": {
                "capacity": size, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "", "hostPath": {"path": dir, "type": "Directory"},
                "claimRef": {"namespace": NAMESPACE, "name": CLAIM}}},
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CLAIM, "namespace": NAMESPACE}, "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": CLAIM, "resources": {"requests": size}}},
        ]});
        let file = self.state().join("datastore-volume.json");
        fs::write(&file, objects.to_string())
            .with_context(|| format!("cannot write {}", file.display()))?;
        self.kubectl(&["apply", "--server-side", "-f", &file.display().to_string()])
            .map(drop)
    }

    /// Prepares access to the datastore. Sends no request to it.
    pub async fn reach_datastore(&self) -> Result<Datastore> {
        let client = self.client().await?;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        let secret = secrets
            .get(&format!("{SERVICE}-certificate"))
            .await
            .context("the datastore has no certificate")?;
        let authority = secret
            .data
            .and_then(|mut data| data.remove("ca.crt"))
            .context("the certificate has no authority")?
            .0;
        let authority = String::from_utf8(authority).context("the authority is no PEM")?;
        let services: Api<Service> = Api::namespaced(client, NAMESPACE);
        let spec = services
            .get(SERVICE)
            .await?
            .spec
            .context("a service without a spec")?;
        let (ip, port) = (
            spec.cluster_ip.context("no address")?,
            spec.ports
                .and_then(|p| p.first().map(|p| p.port))
                .unwrap_or(443),
        );
        let address = SocketAddr::new(ip.parse()?, u16::try_from(port)?);
        let name = format!("{SERVICE}.{NAMESPACE}.svc");
        let url = format!("https://{name}:{port}");
        let connection = Connection::new(&url, Text::Known(authority.clone()), Limits::default())
            .at(&name, address);
        Ok(Datastore {
            connection,
            authority,
            address,
        })
    }

    /// Requests a token of a service account, bound to a pod if given, in the group of kubelets, since no one else gets one of an attempt.
    /// Without `audience` the token is for the API server.
    pub fn pod_token(
        &self,
        namespace: &str,
        account: &str,
        pod: Option<&str>,
        audience: Option<&str>,
    ) -> Result<String> {
        let mut args = vec!["-n", namespace, "create", "token", account, "--as=kubelet"];
        args.extend(["--as-group=system:nodes", "--as-group=system:masters"]);
        if let Some(pod) = pod {
            args.extend(["--bound-object-kind=Pod", "--bound-object-name", pod]);
        }
        if let Some(audience) = audience {
            args.extend(["--audience", audience]);
        }
        Ok(self.kubectl(&args)?.trim().to_owned())
    }

    /// Signs the same token again with the expiry `second` (Unix time), which may be in the past.
    ///
    /// # Errors
    /// When the token cannot be parsed or signed.
    pub fn until(&self, token: &str, second: i64) -> Result<String> {
        let payload = token
            .split('.')
            .nth(1)
            .context("a token without a payload")?;
        let mut payload: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload)?)?;
        payload["exp"] = json!(second);
        for begin in ["iat", "nbf"] {
            payload[begin] = json!(payload[begin].as_i64().unwrap_or(second).min(second - 3600));
        }
        let key = self.state().join("pki/sa.key");
        pki::token(
            &fs::read_to_string(&key).with_context(|| format!("cannot read {}", key.display()))?,
            &payload,
        )
    }
}

impl Datastore {
    /// Builds a request that is authenticated by the token.
    pub fn request(
        &self,
        method: Method,
        path: &str,
        token: &str,
        nonce: &str,
    ) -> Result<RequestBuilder> {
        let request = self.connection.request(method, path)?;
        Ok(request
            .bearer_auth(token)
            .header(crds::datastore::HEADER_NONCE, nonce))
    }
}
