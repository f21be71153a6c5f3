//! Computes a key for the state of a plan. Runs with the same key, within a namespace or several that share states,
//! apply one after the other (`design/0010-leases-and-locks.md`).
//!
//! A key is a digest, so it fits in a status, and it contains no credentials. Two keys for one state would break the
//! exclusion; one key for two states only causes a wait. Therefore arguments that do not identify the state, and that
//! can differ between two ways to reach it, are left out.

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

/// The key of a state outside the datastore, from the backend's type and configuration after `init` or in the spec. When the environment
/// and not the configuration identifies the state, the run's own stack is used.
pub fn foreign(
    kind: &str,
    config: &Value,
    workspace: &str,
    namespace: &str,
    id: &StateId,
) -> String {
    let place = BackendType::of(kind).state(config);
    if place.is_empty() {
        return digest(&json!(["unnamed", kind, namespace, id.stack, workspace]));
    }
    digest(&json!(["backend", kind, place, workspace]))
}

/// The expected key according to the spec alone. Before `init` it is unknown whether the code configures a backend, or completes the one
/// of the spec.
pub fn expected(
    namespace: &str,
    name: &str,
    spec: &TerraformRunSpec,
    has_datastore: bool,
) -> Option<String> {
    let id = StateId::of(name, spec);
    match &spec.backend {
        Some(backend) => backend.names_state().then(|| {
            let config = Value::Object(backend.config.clone());
            foreign(&backend.kind, &config, &spec.workspace, namespace, &id)
        }),
        None => has_datastore.then(|| managed(namespace, &id)),
    }
}

fn digest(value: &Value) -> String {
    hex_digest(&Sha256::digest(canonical(value).as_bytes()))
}

/// Canonical JSON: sorted keys, no spaces.
pub fn canonical(value: &Value) -> String {
    fn sorted(value: &Value) -> Value {
        match value {
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                entries.sort_by_key(|(key, _)| *key);
                Value::Object(
                    entries
                        .into_iter()
                        .map(|(key, value)| (key.clone(), sorted(value)))
                        .collect(),
                )
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

    fn id(stack: &str) -> StateId {
        StateId {
            stack: stack.into(),
            workspace: "default".into(),
        }
    }

    fn http(config: &Value) -> String {
        foreign("http", config, "default", "team", &id("net"))
    }

    #[test]
    fn equal_states_have_equal_keys() {
        let plain = http(&json!({"address": "http://s/a"}));
        let left = json!({"address": "http://u:p@s/a?x=1", "lock_address": "http://s/l", "password": "p", "retry_max": 2, "username": null});
        assert_eq!(
            http(&left),
            plain,
            "credentials and the way to the lock name no place"
        );
        assert_eq!(
            foreign(
                "http",
                &json!({"address": "http://s/a"}),
                "default",
                "else",
                &id("other")
            ),
            plain,
            "across namespaces"
        );
        assert_ne!(http(&json!({"address": "http://s/b"})), plain);
        assert_ne!(
            foreign(
                "http",
                &json!({"address": "http://s/a"}),
                "prod",
                "team",
                &id("net")
            ),
            plain
        );
        assert_eq!((plain.len(), &plain[..7]), (71, "sha256:"));
    }

    #[test]
    fn unnamed_state_is_keyed_by_the_stack() {
        let none = http(&json!({"address": null, "password": "p"}));
        assert_eq!(none, http(&Value::Null));
        assert_ne!(
            foreign("http", &Value::Null, "default", "team", &id("dns")),
            none
        );
        let pg = |url: &str| {
            foreign(
                "pg",
                &json!({"conn_str": url}),
                "default",
                "team",
                &id("net"),
            )
        };
        assert_eq!(pg("postgres://u:p@h/a"), pg("postgres://h/a?sslmode=off"));
        assert_ne!(pg("postgres://h/a"), pg("postgres://h/b"));
        assert_eq!(
            pg("host=h password=p"),
            pg("host=h password=q"),
            "a text with a password in it is left out"
        );
    }

    #[test]
    fn expected_key_equals_the_key_after_init() {
        let mut spec: TerraformRunSpec =
            serde_json::from_value(json!({"source": {"inline": {"files": {"main.tf": ""}}}}))
                .unwrap();
        assert_eq!(
            expected("team", "net", &spec, true),
            Some(managed("team", &id("net")))
        );
        assert_eq!(expected("team", "net", &spec, false), None);
        assert_ne!(managed("team", &id("net")), managed("else", &id("net")));
        spec.backend = serde_json::from_value(
            json!({"type": "http", "config": {"address": "http://s/a", "username": "u"}}),
        )
        .unwrap();
        let found = json!({"address": "http://s/a", "username": "u", "update_method": null, "headers": null});
        assert_eq!(expected("team", "net", &spec, true), Some(http(&found)));
    }
}
