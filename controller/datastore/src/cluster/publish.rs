//! Objects with published outputs. This process may create, patch and delete such objects, but not read any: it applies
//! each as a whole (server-side apply) and uses the response. An admission policy denies it all other objects.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams,
        Preconditions,
    },
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crds::{names, outputs};
use serving::call::{CallError, call};

use super::MANAGER;

/// The kind of an object with outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// For outputs that every reader of ConfigMaps may see.
    ConfigMap,
    /// For all outputs.
    Secret,
}

impl Kind {
    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }
}

/// The desired content of an object with outputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    pub kind: Kind,
    pub name: String,
    pub data: BTreeMap<String, String>,
    /// UID of the object as last written; `None` before the first write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

impl Published {
    /// Whether both have the same kind and name.
    pub fn is(&self, other: &Self) -> bool {
        self.kind == other.kind && self.name == other.name
    }
}

/// The owner of an object with outputs.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// Namespace of stack and object.
    pub namespace: &'a str,
    /// `STACK/WORKSPACE`.
    pub of: &'a str,
    /// The publishing run.
    pub by: &'a str,
}

fn manifest(owner: Owner<'_>, object: &Published) -> Value {
    let mut manifest = json!({
        "apiVersion": "v1", "kind": object.kind.as_str(),
        "metadata": {
            "name": object.name, "namespace": owner.namespace,
            "labels": {names::LABEL_MANAGED_BY: names::MANAGED_BY, outputs::LABEL: "true"},
            "annotations": {outputs::OF: owner.of, outputs::BY: owner.by},
        },
    });
    match object.kind {
        Kind::ConfigMap => manifest["data"] = json!(object.data),
        Kind::Secret => {
            let data: Map<_, _> = object
                .data
                .iter()
                .map(|(key, value)| (key.clone(), BASE64_STANDARD.encode(value).into()))
                .collect();
            manifest["type"] = outputs::SECRET_TYPE.into();
            manifest["data"] = data.into();
        }
    }
    manifest
}

/// A patch that removes keys added by others: they would be mistaken for outputs.
fn without_others(object: &Published, data: Vec<String>, binary: Vec<String>) -> Option<Value> {
    let none = |keys: Vec<String>, own: bool| -> Map<String, Value> {
        keys.into_iter()
            .filter(|key| !own || !object.data.contains_key(key))
            .map(|key| (key, Value::Null))
            .collect()
    };
    let (data, binary) = (none(data, true), none(binary, false));
    let mut patch = Map::new();
    for (field, keys) in [("data", data), ("binaryData", binary)] {
        if !keys.is_empty() {
            patch.insert(field.into(), keys.into());
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

pub(super) async fn publish(
    client: &Client,
    owner: Owner<'_>,
    object: &Published,
) -> Result<String, CallError> {
    let what = "publish outputs";
    let params = PatchParams::apply(MANAGER).force();
    let more = PatchParams {
        field_manager: Some(MANAGER.into()),
        ..PatchParams::default()
    };
    let manifest = Patch::Apply(manifest(owner, object));
    let api = api(client, owner.namespace, object.kind);
    let there = call(what, api.patch(&object.name, &params, &manifest)).await?;
    let keys = |field: &str| {
        there.data[field]
            .as_object()
            .into_iter()
            .flat_map(Map::keys)
            .cloned()
            .collect()
    };
    if let Some(patch) = without_others(object, keys("data"), keys("binaryData")) {
        call(what, api.patch(&object.name, &more, &Patch::Merge(patch))).await?;
        tracing::info!(
            namespace = owner.namespace,
            name = object.name,
            "keys that others had added to outputs were removed"
        );
    }
    Ok(there.metadata.uid.unwrap_or_default())
}

fn api(client: &Client, namespace: &str, kind: Kind) -> Api<DynamicObject> {
    let resource = match kind {
        Kind::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
        Kind::Secret => ApiResource::erase::<Secret>(&()),
    };
    Api::namespaced_with(client.clone(), namespace, &resource)
}

pub(super) async fn withdraw(
    client: &Client,
    namespace: &str,
    object: &Published,
) -> Result<(), CallError> {
    let preconditions = Preconditions {
        uid: object.uid.clone(),
        resource_version: None,
    };
    let params = DeleteParams {
        preconditions: Some(preconditions),
        ..DeleteParams::default()
    };
    match call(
        "delete outputs",
        api(client, namespace, object.kind).delete(&object.name, &params),
    )
    .await
    {
        // The object is gone or was recreated.
        Err(error) if matches!(error.code(), 404 | 409) => Ok(()),
        other => other.map(drop),
    }
}

/// Probes with a ConfigMap that has no outputs: only the policy rejects it.
pub(super) async fn probe(client: &Client, namespace: &str) -> Result<(), CallError> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let metadata = ObjectMeta {
        generate_name: Some("pawl-outputs-probe-".into()),
        ..ObjectMeta::default()
    };
    let params = PostParams {
        dry_run: true,
        field_manager: Some(MANAGER.into()),
    };
    let probe = ConfigMap {
        metadata,
        ..ConfigMap::default()
    };
    call("prove the policy on outputs", api.create(&params, &probe))
        .await
        .map(|there| drop(there.name_any()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(kind: Kind) -> Published {
        Published {
            kind,
            name: "net".into(),
            data: BTreeMap::from([("id".into(), "vpc-1".into())]),
            uid: None,
        }
    }

    #[test]
    fn published_object_names_its_owner() {
        let owner = Owner {
            namespace: "team",
            of: "net/default",
            by: "net-1",
        };
        let secret = manifest(owner, &object(Kind::Secret));
        assert_eq!(
            (&secret["type"], &secret["data"]["id"]),
            (&json!("pawl.run/outputs"), &json!("dnBjLTE="))
        );
        let map = manifest(owner, &object(Kind::ConfigMap));
        assert_eq!(
            (&map["data"]["id"], map.get("type")),
            (&json!("vpc-1"), None)
        );
        for manifest in [secret, map] {
            assert_eq!(
                manifest["metadata"]["annotations"]["pawl.run/outputs-of"],
                "net/default"
            );
            assert_eq!(manifest["metadata"]["labels"]["pawl.run/outputs"], "true");
        }
    }

    #[test]
    fn keys_added_by_others_are_removed() {
        let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect();
        assert_eq!(
            without_others(&object(Kind::ConfigMap), keys(&["id"]), keys(&[])),
            None
        );
        let patch = without_others(&object(Kind::ConfigMap), keys(&["id", "x"]), keys(&["id"]));
        assert_eq!(
            patch,
            Some(json!({"data": {"x": null}, "binaryData": {"id": null}}))
        );
    }
}
