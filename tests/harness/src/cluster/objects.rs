//! Helpers that create and patch objects.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// Creates an object from a manifest.
pub async fn create<K>(api: &Api<K>, manifest: Value) -> Result<K>
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let object =
        serde_json::from_value(manifest).context("this is no manifest of such an object")?;
    Ok(api.create(&PostParams::default(), &object).await?)
}

/// Applies a merge patch.
pub async fn merge<K: Clone + std::fmt::Debug + DeserializeOwned>(
    api: &Api<K>,
    name: &str,
    patch: &Value,
) -> kube::Result<K> {
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
}

/// Applies a merge patch to the status.
pub async fn merge_status<K: Clone + std::fmt::Debug + DeserializeOwned>(
    api: &Api<K>,
    name: &str,
    status: &Value,
) -> kube::Result<K> {
    api.patch_status(
        name,
        &PatchParams::default(),
        &Patch::Merge(json!({"status": status})),
    )
    .await
}

/// Creates a namespace with the `restricted` Pod Security Standard.
pub async fn namespace(client: &Client, name: &str) -> Result<()> {
    let manifest = json!({"metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    create(&Api::<Namespace>::all(client.clone()), manifest)
        .await
        .with_context(|| format!("cannot make namespace {name}"))?;
    Ok(())
}
