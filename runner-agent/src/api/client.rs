//! The client: one object, three requests.

use std::{sync::Arc, time::Duration};

use crds::{TerraformRun, names};
use futures::{Stream, StreamExt};
use kube::{
    Client, Config,
    api::{Patch, PatchParams, WatchEvent, WatchParams},
};
use serde_json::Value;

use crate::ports::{Api, ApiError, Seen};

/// The longest time a request may take.
const REQUEST: Duration = Duration::from_secs(10);
/// The longest time a watch stands before it is made anew, so that a connection that died in silence is noticed.
const WATCH: u32 = 240;

/// The run in a cluster's API.
#[derive(Clone)]
pub struct KubeApi {
    runs: kube::Api<TerraformRun>,
    name: String,
}

impl KubeApi {
    /// A client for one run, from the pod's account, or from `KUBECONFIG` where that is set.
    pub async fn connect(namespace: &str, name: &str) -> anyhow::Result<Self> {
        let mut config = if std::env::var_os("KUBECONFIG").is_some() { Config::infer().await? } else { Config::incluster_env()? };
        // A retry of the client's would hide what was sent; and proxies are for the tool's traffic, not for the cluster's.
        config.default_retry = false;
        config.proxy_url = None;
        config.connect_timeout = Some(REQUEST);
        let runs = kube::Api::namespaced(Client::try_from(config)?, namespace);
        Ok(Self { runs, name: name.to_owned() })
    }
}

fn error(error: &kube::Error) -> ApiError {
    let code = match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    };
    ApiError { code, text: error.to_string() }
}

async fn bounded<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, ApiError> {
    match tokio::time::timeout(REQUEST, request).await {
        Ok(result) => result.map_err(|e| error(&e)),
        Err(_) => Err(ApiError { code: None, text: format!("no answer within {} s", REQUEST.as_secs()) }),
    }
}

impl Api for KubeApi {
    async fn get(&self) -> Result<TerraformRun, ApiError> {
        bounded(self.runs.get(&self.name)).await
    }

    async fn patch(&self, operations: Vec<Value>) -> Result<TerraformRun, ApiError> {
        let patch = serde_json::from_value(Value::Array(operations))
            .map_err(|e| ApiError { code: None, text: format!("not a patch: {e}") })?;
        let params = PatchParams { field_manager: Some(names::AGENT_MANAGER.into()), ..PatchParams::default() };
        bounded(self.runs.patch_status(&self.name, &params, &Patch::Json::<()>(patch))).await
    }

    async fn watch(&self, version: &str) -> Result<impl Stream<Item = Seen> + Send + 'static, ApiError> {
        let params = WatchParams::default().fields(&format!("metadata.name={}", self.name)).timeout(WATCH).disable_bookmarks();
        let events = bounded(self.runs.watch(&params, version)).await?;
        Ok(events.map(|event| match event {
            Ok(WatchEvent::Added(run) | WatchEvent::Modified(run)) => Seen::Run(Arc::new(run)),
            Ok(WatchEvent::Deleted(_)) => Seen::Gone,
            Ok(WatchEvent::Bookmark(_) | WatchEvent::Error(_)) | Err(_) => Seen::Lost,
        }))
    }
}
