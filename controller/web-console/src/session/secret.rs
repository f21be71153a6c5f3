//! The key of sessions, in a Secret that the first replica fills.

use anyhow::{Context as _, bail};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use serving::call::call;

use super::fill;

/// The entry of the Secret.
const ENTRY: &str = "key";
/// Replicas that start together try to fill it together.
const TRIES: usize = 5;

/// The random bytes of this Secret (`NAMESPACE/NAME`); without a name, new ones. Fills the Secret if it is empty.
///
/// # Errors
/// The Secret does not exist, or cannot be read or filled.
pub async fn read(client: &Client, name: Option<&str>) -> anyhow::Result<Vec<u8>> {
    let mut random = vec![0; 32];
    fill(&mut random).map_err(|problem| anyhow::anyhow!(problem.detail))?;
    let Some(name) = name else {
        tracing::warn!(
            "without --session-secret, sessions end with this process and count on it alone"
        );
        return Ok(random);
    };
    let (namespace, name) = name.split_once('/').context("not NAMESPACE/NAME")?;
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    for _ in 0..TRIES {
        let secret = call("read the Secret", api.get(name)).await?;
        if let Some(key) = secret.data.and_then(|mut data| data.remove(ENTRY)) {
            return Ok(key.0);
        }
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": secret.metadata.resource_version},
            "data": {ENTRY: ByteString(random.clone())},
        }));
        let params = PatchParams::default();
        match call("fill the Secret", api.patch(name, &params, &patch)).await {
            Err(error) if error.code() != 409 => return Err(error.into()),
            // Read what is there now, also after success.
            _ => {}
        }
    }
    bail!("it has no entry {ENTRY}")
}
