//! Which state a plan is of, as a key: runs with the same key, of a namespace or of several that share states, apply one after the
//! other (`design/0010-leases-and-locks.md`).
//!
//! A key is a digest, so that it can stand in a status, and of no credential. Two keys of one state cost the exclusion, one key of
//! two states only a wait: what names no place, and differs between two ways to the same state, stays out.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    TerraformRunSpec,
    backend::BackendType,
    datastore::{StateId, hex_digest},
};

/// The key of the managed state of a run.
pub fn managed(namespace: &str, id: &StateId) -> String {
    digest(&json!(["managed", namespace, id.stack, id.workspace]))
}

/// The key of a state that is kept elsewhere: the backend's type and configuration, as `init` left it or as the spec has it.
/// Where the configuration names no place (it comes from the environment), the run's own stack stands in for it.
pub fn foreign(kind: &str, config: &Value, workspace: &str, namespace: &str, id: &StateId) -> String {
    let place = BackendType::of(kind).state(config);
    if place.is_empty() {
        return digest(&json!(["unnamed", kind, namespace, id.stack, workspace]));
    }
    digest(&json!(["backend", kind, place, workspace]))
}

/// The key that a run will have, as far as its spec says: nobody knows before `init` whether the code names a backend.
pub fn expected(namespace: &str, name: &str, spec: &TerraformRunSpec, has_datastore: bool) -> Option<String> {
    let id = StateId::of(name, spec);
    match &spec.backend {
        Some(backend) => {
            let config = Value::Object(backend.config.clone());
            Some(foreign(&backend.kind, &config, &spec.workspace, namespace, &id))
        }
        None => has_datastore.then(|| managed(namespace, &id)),
    }
}

fn digest(value: &Value) -> String {
    hex_digest(&Sha256::digest(canonical(value).as_bytes()))
}

/// JSON with sorted keys and without spaces: one text for one value.
pub fn canonical(value: &Value) -> String {
    fn sorted(value: &Value) -> Value {
        match value {
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                entries.sort_by_key(|(key, _)| *key);
                Value::Object(entries.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect())
            }
            Value::Array(list) => list.iter().map(sorted).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
        }
    }
    sorted(value).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> StateId {
        StateId { stack: "net".into(), workspace: "default".into() }
    }

    fn http(config: &Value) -> String {
        foreign("http", config, "default", "team", &id())
    }

    #[test]
    fn one_state_has_one_key_whoever_asks() {
        let plain = http(&json!({"address": "http://s/a"}));
        let left = json!({"address": "http://u:p@s/a?x=1", "lock_address": "http://s/l", "password": "p", "retry_max": 2, "username": null});
        assert_eq!(http(&left), plain, "credentials and the way to the lock name no place");
        let elsewhere = StateId { stack: "other".into(), workspace: "default".into() };
        assert_eq!(foreign("http", &json!({"address": "http://s/a"}), "default", "else", &elsewhere), plain, "across namespaces");
        assert_ne!(http(&json!({"address": "http://s/b"})), plain);
        assert_ne!(foreign("http", &json!({"address": "http://s/a"}), "prod", "team", &id()), plain);
        assert_eq!((plain.len(), &plain[..7]), (71, "sha256:"));
    }

    #[test]
    fn a_place_that_nobody_named_is_the_stacks_own() {
        let none = http(&json!({"address": null, "password": "p"}));
        assert_eq!(none, http(&Value::Null));
        let other = StateId { stack: "dns".into(), workspace: "default".into() };
        assert_ne!(foreign("http", &Value::Null, "default", "team", &other), none);
        let pg = |url: &str| foreign("pg", &json!({"conn_str": url}), "default", "team", &id());
        assert_eq!(pg("postgres://u:p@h/a"), pg("postgres://h/a?sslmode=off"));
        assert_ne!(pg("postgres://h/a"), pg("postgres://h/b"));
        assert_eq!(pg("host=h password=p"), pg("host=h password=q"), "a text with a password in it is left out");
    }

    #[test]
    fn what_is_expected_is_what_is_found() {
        let mut spec: TerraformRunSpec =
            serde_json::from_value(json!({"source": {"inline": {"files": {"main.tf": ""}}}})).unwrap();
        assert_eq!(expected("team", "net", &spec, true), Some(managed("team", &id())));
        assert_eq!(expected("team", "net", &spec, false), None);
        assert_ne!(managed("team", &id()), managed("else", &id()));
        spec.backend =
            serde_json::from_value(json!({"type": "http", "config": {"address": "http://s/a", "username": "u"}})).unwrap();
        let found = json!({"address": "http://s/a", "username": "u", "update_method": null, "headers": null});
        assert_eq!(expected("team", "net", &spec, true), Some(http(&found)));
    }
}
