//! API discovery of the group. Its verbs are only `get` and `create`: the deletion of a namespace skips resources that
//! can be neither listed nor deleted.

use serde_json::{Value, json};

use super::{GROUP, VERSION};

/// The list of groups, which has only this one.
pub fn groups() -> Value {
    let mut group = group();
    if let Some(group) = group.as_object_mut() {
        group.remove("kind");
        group.remove("apiVersion");
    }
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]})
}

pub fn group() -> Value {
    let version = json!({"groupVersion": format!("{GROUP}/{VERSION}"), "version": VERSION});
    json!({"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [version], "preferredVersion": version})
}

pub fn resources() -> Value {
    let resource = |name: &str, kind: &str, verb: &str| json!({"name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": [verb]});
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/{VERSION}"),
        "resources": [
            resource("terraformruns/log", "Log", "get"),
            resource("terraformruns/journal", "Journal", "get"),
            resource("terraformruns/erroredstate", "State", "get"),
            resource("terraformruns/plan", "Plan", "get"),
            resource("terraformruns/planjson", "Plan", "get"),
            resource("terraformruns/changes", "Changes", "get"),
            resource("records", "Record", "get"),
            resource("states", "State", "get"),
            resource("states/outputs", "Outputs", "get"),
            resource("states/download", "State", "get"),
            resource("states/restore", "StateRestore", "create"),
            resource("states/unlock", "StateUnlock", "create"),
            resource("states/handover", "StateHandover", "create"),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discovery_offers_neither_list_nor_delete() {
        for resource in resources()["resources"].as_array().unwrap() {
            for verb in resource["verbs"].as_array().unwrap() {
                assert!(verb == "get" || verb == "create", "{resource}");
            }
        }
    }
}
