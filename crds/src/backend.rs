//! Facts about each backend type, one row per type: which arguments identify a state, whether the state outlives a pod,
//! whether the tool locks it, and whether a lock is released by its ID.
//!
//! The lists are allow-lists. A list of credential arguments could never be complete, so an argument that is not listed
//! enters no key, no checksum and no comparison.
//!
//! State keys (stored in statuses, they name leases) and plan checksums are derived from these lists. Adding or
//! removing an argument changes the keys and checksums of existing configurations.

use serde_json::{Map, Value};

use crate::{ToolName, text::without_userinfo};

/// A type of backend.
#[derive(Debug, PartialEq, Eq)]
pub struct BackendType {
    /// The name, as in `backend "s3"`.
    pub name: &'static str,
    /// Arguments that identify the state, independent of how it is reached. Words of this and other lists are separated
    /// by spaces.
    state: &'static str,
    /// Arguments that describe how the state is reached. They enter the plan's checksum. A change of one leads to the same state.
    way: &'static str,
    /// An argument that identifies the state as a URL, which may contain credentials. It is used without the credentials. A value that is
    /// not a URL is ignored.
    url: Option<&'static str>,
    /// Arguments that tell states of one place apart. A configuration with none of them is completed by the code or the environment.
    own: &'static str,
    /// Whether the state outlives the pod that wrote it.
    pub is_durable: bool,
    lock: Lock,
    /// Whether servers of this type are known that let two clients hold the lock: some ignore conditional writes, and a pool of connections
    /// ends sessions.
    pub lock_may_fail: bool,
    /// Whether a refusal of the lock has the facts of its holder. Else they are those of the refused client.
    pub names_holder: bool,
    /// An argument's default where it identifies the state: a configuration with it is of the same state as one without.
    default: Option<(&'static str, &'static str)>,
    /// Whether Terraform's `force-unlock` releases the lock only with a matching ID. OpenTofu's always does.
    terraform_unlocks_by_id: bool,
}

/// When a tool locks a state during its work.
#[derive(Debug, PartialEq, Eq)]
enum Lock {
    Always,
    Never,
    /// When one of these arguments is `true` or a non-empty string.
    With(&'static str),
    /// Like `With`, for one argument that an environment variable can replace.
    WithEnv(&'static str, &'static str),
    /// Unless this argument is `false`.
    Unless(&'static str),
}

/// Defaults of a row: durable, with locking.
const DURABLE: BackendType = BackendType {
    name: "",
    state: "",
    way: "",
    url: None,
    own: "",
    is_durable: true,
    lock: Lock::Always,
    lock_may_fail: false,
    names_holder: true,
    default: None,
    terraform_unlocks_by_id: true,
};

const TYPES: &[BackendType] = &[
    BackendType {
        name: "artifactory",
        state: "repo subpath",
        own: "subpath",
        lock: Lock::Never,
        ..DURABLE
    },
    BackendType {
        name: "azurerm",
        state: "container_name endpoint key storage_account_name",
        own: "key",
        way: "resource_group_name",
        ..DURABLE
    },
    BackendType {
        name: "cloud",
        state: "hostname organization workspaces",
        own: "workspaces",
        default: Some(("hostname", "app.terraform.io")),
        ..DURABLE
    },
    BackendType {
        name: "consul",
        state: "address path",
        own: "path",
        lock: Lock::Unless("lock"),
        ..DURABLE
    },
    BackendType {
        name: "cos",
        state: "bucket endpoint key prefix",
        own: "key prefix",
        way: "region",
        ..DURABLE
    },
    BackendType {
        name: "etcd",
        state: "path",
        own: "path",
        lock: Lock::Never,
        ..DURABLE
    },
    BackendType {
        name: "etcdv3",
        state: "prefix",
        own: "prefix",
        lock: Lock::Unless("lock"),
        ..DURABLE
    },
    BackendType {
        name: "gcs",
        state: "bucket path prefix",
        own: "path prefix",
        ..DURABLE
    },
    BackendType {
        name: "http",
        state: "address",
        own: "address",
        way: "lock_address unlock_address",
        lock: Lock::WithEnv("lock_address", "TF_HTTP_LOCK_ADDRESS"),
        terraform_unlocks_by_id: false,
        ..DURABLE
    },
    BackendType {
        name: "inmem",
        is_durable: false,
        ..DURABLE
    },
    BackendType {
        name: "kubernetes",
        state: "namespace secret_suffix",
        own: "secret_suffix",
        default: Some(("namespace", "default")),
        ..DURABLE
    },
    // An attempt's pod has no volume that outlives it, so the path makes no difference.
    BackendType {
        name: "local",
        state: "path workspace_dir",
        is_durable: false,
        ..DURABLE
    },
    BackendType {
        name: "manta",
        state: "path",
        own: "path",
        ..DURABLE
    },
    BackendType {
        name: "oci",
        state: "bucket key namespace workspace_key_prefix",
        own: "key",
        default: Some(("workspace_key_prefix", "env:")),
        way: "region",
        ..DURABLE
    },
    BackendType {
        name: "oss",
        state: "bucket endpoint key path prefix",
        own: "key path prefix",
        default: Some(("prefix", "env:")),
        way: "region tablestore_table",
        lock: Lock::With("tablestore_table"),
        ..DURABLE
    },
    BackendType {
        name: "pg",
        state: "schema_name",
        own: "conn_str schema_name",
        url: Some("conn_str"),
        lock_may_fail: true,
        names_holder: false,
        default: Some(("schema_name", "terraform_remote_state")),
        ..DURABLE
    },
    BackendType {
        name: "remote",
        state: "hostname organization workspaces",
        own: "workspaces",
        default: Some(("hostname", "app.terraform.io")),
        ..DURABLE
    },
    BackendType {
        name: "s3",
        state: "bucket endpoint key workspace_key_prefix",
        own: "key",
        way: "dynamodb_table region",
        lock: Lock::With("dynamodb_table use_lockfile"),
        lock_may_fail: true,
        default: Some(("workspace_key_prefix", "env:")),
        ..DURABLE
    },
    BackendType {
        name: "swift",
        state: "path",
        own: "path",
        lock: Lock::Unless("lock"),
        ..DURABLE
    },
];

/// Any other type, from a newer tool: its state is identified by every argument that identifies a state in some row.
const OTHER: BackendType = BackendType {
    state: "address bucket container_name endpoint hostname key namespace organization path prefix \
            repo schema_name secret_suffix storage_account_name subpath workspace_dir \
            workspace_key_prefix workspaces",
    way: "dynamodb_table lock_address region resource_group_name tablestore_table unlock_address",
    url: Some("conn_str"),
    ..DURABLE
};

impl BackendType {
    /// The row of a type; `OTHER` for an unknown name.
    pub fn of(name: &str) -> &'static Self {
        TYPES.iter().find(|row| row.name == name).unwrap_or(&OTHER)
    }

    /// The arguments that identify the state, sorted. They do not depend on how the state is reached or with which
    /// credentials. Empty when the configuration has none of them.
    pub fn state(&self, config: &Value) -> Map<String, Value> {
        let Value::Object(config) = config else {
            return Map::new();
        };
        let mut kept: Vec<_> = config
            .iter()
            .filter(|(key, value)| lists(self.state, key) && names_something(value))
            .collect();
        kept.sort_by_key(|(key, _)| *key);
        let mut state: Map<String, Value> = kept
            .into_iter()
            .map(|(key, value)| (key.clone(), plain(value)))
            .collect();
        let url = self.url.and_then(|key| {
            Some((
                key,
                config
                    .get(key)?
                    .as_str()
                    .filter(|text| text.contains("://"))?,
            ))
        });
        if let Some((key, url)) = url {
            state.insert(key.to_owned(), without_userinfo(url).into());
        }
        // Newer versions have the endpoint of S3 in an object.
        if lists(self.state, "endpoint") && !state.contains_key("endpoint") {
            let endpoint = config.get("endpoints").and_then(|all| all.get(self.name));
            let endpoint = endpoint.filter(|endpoint| names_something(endpoint));
            state.extend(endpoint.map(|url| ("endpoint".to_owned(), plain(url))));
        }
        if let Some((key, value)) = self.default {
            if state.get(key).is_some_and(|given| given == value) {
                state.remove(key);
            }
            // The database may come from the environment.
            if state.is_empty() && self.url.is_some() {
                state.insert(key.to_owned(), value.into());
            }
        }
        state
    }

    /// Whether a configuration alone tells which state it is.
    pub fn names_state(&self, config: &Value) -> bool {
        let state = self.state(config);
        if self.own.is_empty() {
            return !state.is_empty();
        }
        self.own
            .split_ascii_whitespace()
            .any(|key| state.contains_key(key))
    }

    /// The arguments that a plan depends on: the state and how it is reached, without credentials. `null` when there is
    /// no configuration.
    pub fn place(&self, config: &Value) -> Value {
        let Value::Object(config) = config else {
            return Value::Null;
        };
        let counts = |key: &str| lists(self.state, key) || lists(self.way, key);
        let kept = config
            .iter()
            .filter(|(key, value)| counts(key) && !value.is_null());
        Value::Object(
            kept.map(|(key, value)| (key.clone(), plain(value)))
                .collect(),
        )
    }

    /// Whether the tool locks the state, according to the configuration and the tool's environment. `env` tells whether
    /// a variable is set.
    pub fn locks(&self, config: &Value, env: impl Fn(&str) -> bool) -> bool {
        let named = |key: &str| match config.get(key) {
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Bool(word)) => *word,
            _ => false,
        };
        match self.lock {
            Lock::Always => true,
            Lock::Never => false,
            Lock::With(keys) => keys.split(' ').any(named),
            Lock::WithEnv(key, variable) => named(key) || env(variable),
            Lock::Unless(key) => config.get(key) != Some(&Value::Bool(false)),
        }
    }

    /// Whether the tool releases the lock only with a matching ID. A tool that ignores the ID could remove a lock that
    /// another client took in the meantime.
    pub fn unlocks_by_id(&self, tool: Option<ToolName>) -> bool {
        self.terraform_unlocks_by_id || tool == Some(ToolName::OpenTofu)
    }
}

fn lists(list: &str, key: &str) -> bool {
    list.split_ascii_whitespace().any(|word| word == key)
}

fn plain(value: &Value) -> Value {
    value
        .as_str()
        .map_or_else(|| value.clone(), |text| without_userinfo(text).into())
}

fn names_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_are_unique_and_unknown_ones_use_all_arguments() {
        let names: Vec<_> = TYPES.iter().map(|row| row.name).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
        for row in TYPES {
            assert_eq!(BackendType::of(row.name), row);
            assert!(
                row.state
                    .split_ascii_whitespace()
                    .all(|key| lists(OTHER.state, key)),
                "{}",
                row.name
            );
            let own = |key| lists(row.state, key) || row.url == Some(key);
            assert!(row.own.split_ascii_whitespace().all(own), "{}", row.name);
            let fits = |key| lists(OTHER.way, key) && !lists(row.state, key);
            assert!(row.way.split_ascii_whitespace().all(fits), "{}", row.name);
        }
        assert_eq!(BackendType::of("a-newer-one"), &OTHER);
    }

    /// Credentials of all backends in OpenTofu's source, and arguments that name no state.
    const CREDENTIALS: &str = "access_key access_token client_certificate_password client_id client_key \
        client_private_key_pem client_secret credentials encryption_key headers http_auth max_retries oidc_token password \
        profile retry_max sas_token secret_id secret_key security_token sse_customer_key token username";

    #[test]
    fn credentials_do_not_count() {
        let config: Map<String, Value> = CREDENTIALS
            .split(' ')
            .map(|key| (key.to_owned(), json!("x")))
            .collect();
        let config = Value::Object(config);
        for row in TYPES.iter().chain([&OTHER]) {
            let default = row.default.filter(|_| row.url.is_some());
            let state = default.map(|(key, value)| (key.to_owned(), value.into()));
            assert_eq!(
                (row.place(&config), row.state(&config)),
                (json!({}), state.into_iter().collect()),
                "{}",
                row.name
            );
        }
        let config = json!({
            "address": "https://user:pass@state/a?token=x", "password": "p", "region": null, "lock_address": "https://u:p@lock/a",
        });
        let place = json!({"address": "https://state/a", "lock_address": "https://lock/a"});
        assert_eq!(BackendType::of("http").place(&config), place);
        assert_eq!(
            BackendType::of("pg").place(&json!({"conn_str": "postgres://u:p@h"})),
            json!({})
        );
        let s3 = json!({"bucket": "b", "key": "k", "region": "eu", "dynamodb_table": "t"});
        assert_eq!(BackendType::of("s3").place(&s3), s3);
        assert!(
            BackendType::of("s3")
                .state(&s3)
                .keys()
                .eq(["bucket", "key"])
        );
    }

    #[test]
    fn partial_configuration_names_no_state() {
        for (kind, config, names) in [
            ("s3", json!({"bucket": "b", "key": "k"}), true),
            ("s3", json!({"bucket": "b"}), false),
            ("http", json!({"username": "u"}), false),
            ("kubernetes", json!({"namespace": "n"}), false),
            ("pg", json!({"conn_str": "postgres://h/d"}), true),
            ("a-newer-one", json!({"key": "k"}), true),
            ("a-newer-one", json!({}), false),
        ] {
            assert_eq!(
                BackendType::of(kind).names_state(&config),
                names,
                "{kind} {config}"
            );
        }
    }

    #[test]
    fn locking_of_each_backend_is_known() {
        let of = |kind: &str, config: Value| BackendType::of(kind).locks(&config, |_| false);
        for (kind, with, without) in [
            (
                "http",
                json!({"lock_address": "http://s/l"}),
                json!({"address": "http://s", "lock_address": null}),
            ),
            (
                "s3",
                json!({"use_lockfile": true}),
                json!({"use_lockfile": false, "dynamodb_table": ""}),
            ),
            (
                "s3",
                json!({"dynamodb_table": "locks"}),
                json!({"bucket": "b"}),
            ),
            (
                "oss",
                json!({"tablestore_table": "locks"}),
                json!({"bucket": "b", "tablestore_table": null}),
            ),
            ("consul", json!({"lock": null}), json!({"lock": false})),
        ] {
            assert!(of(kind, with) && !of(kind, without), "{kind}");
        }
        for kind in ["kubernetes", "pg", "remote", "gcs", "a-newer-one"] {
            assert!(of(kind, Value::Null), "{kind}");
        }
        let env = |name: &str| name == "TF_HTTP_LOCK_ADDRESS";
        assert!(BackendType::of("http").locks(&json!({"address": "http://s"}), env));
        assert!(!BackendType::of("s3").locks(&json!({"bucket": "b"}), env));
    }

    #[test]
    fn defaults_name_the_same_state() {
        let of = |kind: &str, config: Value| BackendType::of(kind).state(&config);
        for (kind, bare, more) in [
            (
                "s3",
                json!({"bucket": "b", "key": "k", "workspace_key_prefix": null, "endpoint": "http://s"}),
                json!({"workspace_key_prefix": "env:", "endpoint": null, "endpoints": {"s3": "http://s", "sts": "http://t"}}),
            ),
            (
                "kubernetes",
                json!({"secret_suffix": "a"}),
                json!({"namespace": "default"}),
            ),
            (
                "pg",
                json!({"conn_str": "postgres://u@h/d"}),
                json!({"schema_name": "terraform_remote_state"}),
            ),
            (
                "pg",
                json!({}),
                json!({"schema_name": "terraform_remote_state"}),
            ),
        ] {
            let mut whole = bare.clone();
            for (key, value) in more.as_object().unwrap() {
                whole[key] = value.clone();
            }
            let state = of(kind, bare);
            assert_eq!(of(kind, whole), state);
            assert!(!state.is_empty(), "{kind}");
        }
        let other = json!({"bucket": "b", "key": "k", "endpoints": {"s3": "http://other"}});
        assert_ne!(
            of("s3", other),
            of("s3", json!({"bucket": "b", "key": "k"}))
        );
        let names = |kind: &str| BackendType::of(kind).names_holder;
        assert!(names("http") && names("s3") && names("a-newer-one") && !names("pg"));
    }

    #[test]
    fn unlocking_by_id_is_known_for_each_backend() {
        let of = |kind: &str, tool| BackendType::of(kind).unlocks_by_id(tool);
        assert!(
            of("s3", Some(ToolName::Terraform))
                && of("s3", None)
                && of("http", Some(ToolName::OpenTofu))
        );
        assert!(!of("http", Some(ToolName::Terraform)) && !of("http", None));
    }
}
