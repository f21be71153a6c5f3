//! Variables, environment and backend: where their values come from, and how they are given to the tool.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use crds::{Failure, Reason, TerraformRunSpec, ValueFrom};
use serde_json::{Map, Value, json};

use super::outputs::{self, TakenOutputs};
use crate::{
    classify::internal,
    files::{BACKEND_FILE, VARIABLES_FILE},
    report::redact::Redactor,
    settings::Settings,
};

/// The longest value from a Secret or ConfigMap; etcd holds no longer ones.
const MAX_VALUE: u64 = 2 << 20;

/// Names that a run may not set: they steer the tool's command line, its files, or the processes themselves.
const REFUSED: &[&str] = &[
    "TF_DATA_DIR",
    "TF_WORKSPACE",
    "TF_INPUT",
    "TF_IN_AUTOMATION",
    "TF_CLI_CONFIG_FILE",
    "TERRAFORM_CONFIG",
    "PATH",
    "HOME",
    "TMPDIR",
    "IFS",
];
const REFUSED_PREFIXES: &[&str] = &["PAWL_", "TF_CLI_ARGS", "LD_"];

/// Whether a name of the environment is not a run's to set, nor a hook's.
pub(super) fn is_refused(name: &str) -> bool {
    REFUSED.contains(&name) || REFUSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Names of values with their origins, for the manifest, and the values themselves.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    pub(super) variables: Map<String, Value>,
    pub(super) variable_origins: Vec<(String, String)>,
    pub(super) env: Vec<(String, String)>,
    pub(super) env_origins: Vec<(String, String)>,
    /// Values of Secrets, ConfigMaps and other stacks, by what wants them: `variable db_password`.
    pub(super) taken: BTreeMap<String, String>,
}

/// Gathers all values, so that the first thing that is missing is named before anything is fetched.
pub(super) fn gather(
    spec: &TerraformRunSpec,
    settings: &Settings,
    outputs: &TakenOutputs,
    redactor: &Redactor,
) -> Result<Inputs, Failure> {
    let mut inputs = Inputs::default();
    for variable in &spec.variables {
        let (value, origin) = match (&variable.value, &variable.value_from) {
            (Some(value), None) => (value.clone(), "value".to_owned()),
            (None, Some(from)) => {
                let wanted = format!("variable {}", variable.name);
                if let Some(of) = &from.output_of {
                    let (value, origin) = outputs::value(outputs, of, redactor, &wanted)?;
                    inputs.taken.insert(wanted, value.to_string());
                    (value, origin)
                } else {
                    let (text, origin) = read(from, settings, redactor, &wanted)?;
                    inputs.taken.insert(wanted, text.clone());
                    (Value::String(text), origin)
                }
            }
            (Some(_), Some(_)) | (None, None) => {
                return Err(invalid(format!("variable {} needs exactly one of value and valueFrom", variable.name)));
            }
        };
        inputs.variables.insert(variable.name.clone(), value);
        inputs.variable_origins.push((variable.name.clone(), origin));
    }
    for variable in &spec.env {
        let name = &variable.name;
        if is_refused(name) {
            return Err(invalid(format!("env {name} is refused: it would steer the tool or the agent itself")));
        }
        let (value, origin) = match (&variable.value, &variable.value_from) {
            (Some(value), None) => (value.clone(), "value".to_owned()),
            (None, Some(from)) => {
                let wanted = format!("env {name}");
                let found = match &from.output_of {
                    Some(of) => {
                        let (value, origin) = outputs::value(outputs, of, redactor, &wanted)?;
                        (crds::outputs::text(&value), origin)
                    }
                    None => read(from, settings, redactor, &wanted)?,
                };
                inputs.taken.insert(wanted, found.0.clone());
                found
            }
            (Some(_), Some(_)) | (None, None) => {
                return Err(invalid(format!("env {name} needs exactly one of value and valueFrom")));
            }
        };
        if value.contains('\0') {
            return Err(invalid(format!("env {name} holds a zero byte")));
        }
        inputs.env.push((name.clone(), value));
        inputs.env_origins.push((name.clone(), origin));
    }
    Ok(inputs)
}

fn invalid(message: String) -> Failure {
    Reason::InvalidSpec.failure(message)
}

fn read(from: &ValueFrom, settings: &Settings, redactor: &Redactor, wanted: &str) -> Result<(String, String), Failure> {
    let (key, dir, kind, reason, secret) = match (&from.secret_key_ref, &from.config_map_key_ref) {
        (Some(key), None) => (key, &settings.secrets, "Secret", Reason::SecretNotFound, true),
        (None, Some(key)) => (key, &settings.config_maps, "ConfigMap", Reason::ConfigMapNotFound, false),
        (Some(_), Some(_)) | (None, None) => {
            return Err(invalid(format!("{wanted} needs exactly one of secretKeyRef, configMapKeyRef and outputOf")));
        }
    };
    let object = dir.join(&key.name);
    let text = mounted(&object, &key.key).ok_or_else(|| {
        let what = if is_empty(&object) {
            format!("{kind} {} does not exist or is empty", key.name)
        } else {
            format!("{kind} {} has no key {}", key.name, key.key)
        };
        reason.failure(format!("{what}; {wanted} wants {}/{}", key.name, key.key))
    })?;
    if secret {
        redactor.add(&text);
    }
    let word = if secret { "secret" } else { "configMap" };
    Ok((text, format!("{word} {}/{}", key.name, key.key)))
}

/// A key of a mounted Secret or ConfigMap.
pub(super) fn mounted(object: &Path, key: &str) -> Option<String> {
    // Names are checked by the schema; a path that leaves its directory is not even tried.
    if key.contains('/') || key == ".." || key == "." {
        return None;
    }
    let mut bytes = Vec::new();
    fs::File::open(object.join(key)).ok()?.take(MAX_VALUE).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a mounted object has no keys, as one that does not exist.
pub(super) fn is_empty(object: &Path) -> bool {
    // The kubelet's own entries begin with two dots.
    !fs::read_dir(object)
        .is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(|e| !e.file_name().to_string_lossy().starts_with(".."))))
}

/// Writes variables and backend into the stack's directory, under names that the source may not use.
pub(super) fn write(stack: &Path, spec: &TerraformRunSpec, variables: &Map<String, Value>) -> Result<(), Failure> {
    let tofu_names = [BACKEND_FILE.replace(".tf.json", ".tofu.json"), BACKEND_FILE.replace(".tf.json", ".tofu")];
    for name in [VARIABLES_FILE, BACKEND_FILE].into_iter().chain(tofu_names.iter().map(String::as_str)) {
        if fs::symlink_metadata(stack.join(name)).is_ok() {
            return Err(Reason::SourceInvalid.failure(format!("the source has a file {name}, a name that Pawl uses for itself")));
        }
    }
    if !variables.is_empty() {
        put(&stack.join(VARIABLES_FILE), &Value::Object(variables.clone()))?;
    }
    if let Some(backend) = &spec.backend {
        let config = json!({"terraform": {"backend": {backend.kind.clone(): backend.config}}});
        put(&stack.join(BACKEND_FILE), &config)?;
    }
    Ok(())
}

pub(super) fn put(path: &Path, value: &Value) -> Result<(), Failure> {
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(value.to_string().as_bytes()));
    written.map_err(|error| internal(&format!("{} cannot be written", path.display()), &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phases::tests::settings;
    use crds::{FailureClass, reason};
    use std::os::unix::fs::PermissionsExt;

    fn spec(json: &Value) -> TerraformRunSpec {
        let mut base = json!({"source": {"inline": {"files": {}}}});
        base.as_object_mut().unwrap().extend(json.as_object().unwrap().clone());
        serde_json::from_value(base).unwrap()
    }

    #[test]
    fn values_come_from_where_they_are_said_to() {
        let dir = tempfile::tempdir().unwrap();
        let settings = settings(dir.path());
        fs::create_dir_all(settings.secrets.join("db/..data")).unwrap();
        fs::write(settings.secrets.join("db/password"), "hunter22\n").unwrap();
        fs::create_dir_all(settings.config_maps.join("cm")).unwrap();
        fs::write(settings.config_maps.join("cm/region"), "eu").unwrap();
        let redactor = Redactor::default();
        let inputs = gather(
            &spec(&json!({
                "variables": [
                    {"name": "n", "value": {"a": [1, null]}},
                    {"name": "p", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}},
                ],
                "env": [{"name": "REGION", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "region"}}}],
            })),
            &settings,
            &TakenOutputs::new(),
            &redactor,
        )
        .unwrap();
        assert_eq!(Value::Object(inputs.variables), json!({"n": {"a": [1, null]}, "p": "hunter22\n"}));
        assert_eq!(inputs.variable_origins, [("n".into(), "value".into()), ("p".into(), "secret db/password".into())]);
        assert_eq!(inputs.env, [("REGION".into(), "eu".into())]);
        assert_eq!(redactor.redact("is hunter22"), "is (sensitive value)");
    }

    #[test]
    fn what_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let settings = settings(dir.path());
        fs::create_dir_all(settings.secrets.join("there/..data")).unwrap();
        fs::write(settings.secrets.join("there/other"), "x").unwrap();
        let rows = [
            (
                json!({"variables": [{"name": "p", "valueFrom": {"secretKeyRef": {"name": "gone", "key": "k"}}}]}),
                reason::SECRET_NOT_FOUND,
                "Secret gone does not exist or is empty; variable p wants gone/k",
            ),
            (
                json!({"variables": [{"name": "p", "valueFrom": {"secretKeyRef": {"name": "there", "key": "k"}}}]}),
                reason::SECRET_NOT_FOUND,
                "Secret there has no key k; variable p wants there/k",
            ),
            (
                json!({"env": [{"name": "E", "valueFrom": {"configMapKeyRef": {"name": "gone", "key": "k"}}}]}),
                reason::CONFIG_MAP_NOT_FOUND,
                "ConfigMap gone does not exist or is empty; env E wants gone/k",
            ),
            (
                json!({"env": [{"name": "TF_CLI_ARGS_plan", "value": "-destroy"}]}),
                reason::INVALID_SPEC,
                "env TF_CLI_ARGS_plan is refused: it would steer the tool or the agent itself",
            ),
            (
                json!({"env": [{"name": "LD_PRELOAD", "value": "x"}]}),
                reason::INVALID_SPEC,
                "env LD_PRELOAD is refused: it would steer the tool or the agent itself",
            ),
        ];
        for (json, reason, message) in rows {
            let failure = gather(&spec(&json), &settings, &TakenOutputs::new(), &Redactor::default()).unwrap_err();
            let said = (failure.class, failure.reason.as_str(), failure.message.as_str());
            assert_eq!(said, (FailureClass::Configuration, reason, message));
        }
    }

    #[test]
    fn files_are_private_and_never_the_users() {
        let dir = tempfile::tempdir().unwrap();
        let spec = spec(&json!({"backend": {"type": "http", "config": {"address": "http://s/a"}}}));
        let variables = json!({"a": 1}).as_object().unwrap().clone();
        write(dir.path(), &spec, &variables).unwrap();
        let backend = fs::read_to_string(dir.path().join(BACKEND_FILE)).unwrap();
        assert_eq!(backend, r#"{"terraform":{"backend":{"http":{"address":"http://s/a"}}}}"#);
        let mode = fs::metadata(dir.path().join(VARIABLES_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(write(dir.path(), &spec, &variables).unwrap_err().reason, reason::SOURCE_INVALID);
    }
}
