//! Variables, environment and backend: reads their values and passes them to the tool.

use std::{collections::BTreeMap, fs, path::Path};

use crds::{EnvFrom, Failure, Reason, TerraformRunSpec, ValueFrom};
use serde_json::{Map, Value};

pub(super) use super::mounted_objects::{is_empty, mounted};
use super::{
    env_names::{Moment, refused},
    given_files::{self, GivenFile},
    mounted_objects::{Found, Object, is_name, key_of, keys},
    options::{self, Options},
    outputs::{self, TakenOutputs},
    variable_files::{self, GivenVariables, VariablesFile},
};
use crate::{
    files::{BACKEND_FILE, VARIABLES_FILE},
    report::redact::Redactor,
    sealed_inputs::SealedInputs,
    settings::Settings,
};

/// The values, and their names with origins for the manifest.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    pub(super) variables: Map<String, Value>,
    pub(super) variable_origins: Vec<(String, String)>,
    /// The variables that are texts of Secrets and ConfigMaps.
    pub(super) texts: BTreeMap<String, String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) env_origins: Vec<(String, String)>,
    pub(super) variable_files: Vec<GivenVariables>,
    /// Variable files, as written beside the code.
    pub(super) put: Vec<VariablesFile>,
    /// Origins of `envFrom` entries.
    pub(super) env_from: Vec<String>,
    pub(super) files: Vec<GivenFile>,
    pub(super) options: Options,
    /// Values of Secrets, ConfigMaps and other stacks, by their use, e.g. `variable db_password`.
    pub(super) taken: BTreeMap<String, String>,
    /// Notes for the log.
    pub(super) notes: Vec<String>,
}

/// Gathers all values, so that the first missing one is reported before the fetch.
pub(super) fn gather(
    spec: &TerraformRunSpec,
    settings: &Settings,
    outputs: &TakenOutputs,
    redactor: &Redactor,
) -> Result<Inputs, Failure> {
    let mut inputs = Inputs {
        options: options::of(spec)?,
        ..Inputs::default()
    };
    inputs.variable_files = variable_files::gather(spec, settings, redactor, &mut inputs.taken)?;
    if settings.folder.is_some() {
        let left_out = spec.files.iter().map(|file| {
            format!(
                "spec.files: {} is left out: a person's files stay as they are",
                file.path
            )
        });
        inputs.notes.extend(left_out);
    } else {
        inputs.files = given_files::gather(spec, settings, redactor, &mut inputs.taken)?;
    }
    let mut value = |value: Option<Value>,
                     from: &Option<ValueFrom>,
                     wanted: String|
     -> Result<(Value, String), Failure> {
        let (value, origin) = match (value, from) {
            (Some(value), None) => {
                refuse_rounded(&value, &wanted)?;
                return Ok((value, "value".to_owned()));
            }
            (None, Some(from)) => match &from.output_of {
                Some(of) => outputs::value(outputs, of, redactor, &wanted)?,
                None => read(from, settings, redactor, &wanted)?,
            },
            (Some(_), Some(_)) | (None, None) => {
                return Err(invalid(format!(
                    "{wanted} needs exactly one of value and valueFrom"
                )));
            }
        };
        refuse_rounded(&value, &wanted)?;
        inputs.taken.insert(wanted, value.to_string());
        Ok((value, origin))
    };
    for variable in &spec.variables {
        let (given, origin) = value(
            variable.value.clone(),
            &variable.value_from,
            format!("variable {}", variable.name),
        )?;
        let is_text = variable
            .value_from
            .as_ref()
            .is_some_and(|from| from.output_of.is_none());
        if let (true, Value::String(text)) = (is_text, &given) {
            inputs.texts.insert(variable.name.clone(), text.clone());
        }
        inputs.variables.insert(variable.name.clone(), given);
        inputs
            .variable_origins
            .push((variable.name.clone(), origin));
    }
    let mut env = Vec::new();
    for variable in &spec.env {
        let name = &variable.name;
        if let Some(why) = refused(name, Moment::Creation) {
            return Err(invalid(format!("env {name} is refused: it {why}")));
        }
        let given = variable.value.clone().map(Value::String);
        let (given, origin) = value(given, &variable.value_from, format!("env {name}"))?;
        let text = crds::outputs::text(&given);
        if text.contains('\0') {
            return Err(invalid(format!("env {name} holds a zero byte")));
        }
        env.push((name.clone(), text));
        inputs.env_origins.push((name.clone(), origin));
    }
    for from in &spec.env_from {
        whole(from, settings, redactor, &mut inputs)?;
    }
    for (name, text) in env {
        inputs.set(name, text);
    }
    inputs.record_fixed();
    Ok(inputs)
}

impl Inputs {
    /// Sets an environment variable; a later value overrides an earlier one.
    fn set(&mut self, name: String, value: String) {
        self.env.retain(|(other, _)| *other != name);
        self.env.push((name, value));
    }

    /// Records each name that may not change later by itself: `envFrom` is recorded as a whole, and may gain a key.
    fn record_fixed(&mut self) {
        for (name, value) in &self.env {
            if refused(name, Moment::Later).is_some() {
                let value = Value::String(value.clone()).to_string();
                self.taken.insert(format!("env {name}"), value);
            }
            if PLACES.contains(&name.as_str()) {
                self.taken
                    .insert(format!("{OF_STATE} {name}"), place(value));
            }
        }
    }

    /// Inputs that differ from those of the plan and bring code that no checksum covers; no `allowRotation` permits these.
    pub(super) fn bring_code(&self, sealed: &SealedInputs) -> Vec<String> {
        let brings = |input: &String| match input.split_once(' ') {
            Some(("env", name)) => refused(name, Moment::Later).is_some(),
            _ if input.starts_with(OF_STATE) => true,
            Some(("file", name)) => self.files.iter().any(|file| file.brings_code(name)),
            _ => false,
        };
        let mut found = sealed.changed(&self.taken);
        found.extend(sealed.added(&self.taken));
        found.retain(brings);
        found
    }
}

/// Environment variables that select the state. Their credentials may change after the plan.
const PLACES: [&str; 9] = [
    "PG_CONN_STR",
    "PG_SCHEMA_NAME",
    "KUBE_NAMESPACE",
    "TF_HTTP_ADDRESS",
    "CONSUL_HTTP_ADDR",
    "AWS_ENDPOINT_URL_S3",
    "AWS_S3_ENDPOINT",
    "TF_CLOUD_HOSTNAME",
    "TF_CLOUD_ORGANIZATION",
];
/// The use of the place that such a variable names.
const OF_STATE: &str = "the state's place in";

/// The place in such a value: a URL, or words as in `host=db password=p`.
fn place(value: &str) -> String {
    if value.contains("://") {
        return crds::text::without_userinfo(value);
    }
    let words = value.split_whitespace();
    let words = words.filter(|word| !word.starts_with("password=") && !word.starts_with("user="));
    words.collect::<Vec<_>>().join(" ")
}

/// The object of an `envFrom` entry; `None` unless it names exactly one.
pub(super) fn named_whole<'a>(from: &'a EnvFrom, settings: &Settings) -> Option<Object<'a>> {
    let secret = from.secret_ref.as_ref().map(|secret| secret.name.as_str());
    Object::of(
        secret,
        from.config_map_ref.as_ref().map(|map| map.name.as_str()),
        settings,
    )
}

/// Sets all keys of a Secret or ConfigMap as environment variables. Skips keys that are not valid names, as Kubernetes does for
/// pods.
fn whole(
    from: &EnvFrom,
    settings: &Settings,
    redactor: &Redactor,
    inputs: &mut Inputs,
) -> Result<(), Failure> {
    let Some(object) = named_whole(from, settings) else {
        return Err(invalid(
            "envFrom needs exactly one of secretRef and configMapRef".to_owned(),
        ));
    };
    let Object {
        name, kind, word, ..
    } = object;
    let keys = if is_name(name) {
        keys(&object.dir)
    } else {
        Vec::new()
    };
    if keys.is_empty() {
        return Err(object
            .reason
            .failure(object.absent_for("envFrom", settings)));
    }
    let prefix = from.prefix.as_deref().unwrap_or_default();
    let mut all = Map::new();
    for key in keys {
        let variable = format!("{prefix}{key}");
        let is_valid = |text: &str| {
            let mut bytes = text.bytes();
            bytes
                .next()
                .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
                && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        if !is_valid(&variable) {
            inputs.notes.push(format!("key {key} of {kind} {name} is left out of envFrom: {variable} is no name of a variable"));
            continue;
        }
        if let Some(why) = refused(&variable, Moment::Creation) {
            return Err(invalid(format!(
                "envFrom: {variable} of {kind} {name} is refused: it {why}"
            )));
        }
        let Some(value) = mounted(&object.dir, &key) else {
            continue;
        };
        if value.contains('\0') {
            return Err(invalid(format!(
                "envFrom: {variable} of {kind} {name} holds a zero byte"
            )));
        }
        if from.secret_ref.is_some() {
            redactor.add(&value);
        }
        all.insert(variable.clone(), Value::String(value.clone()));
        inputs.set(variable, value);
    }
    let origin = format!("{word} {name}");
    inputs.taken.insert(
        format!("envFrom {prefix}{origin}"),
        Value::Object(all).to_string(),
    );
    inputs.env_from.push(if prefix.is_empty() {
        origin
    } else {
        format!("{origin} as {prefix}")
    });
    Ok(())
}

fn invalid(message: String) -> Failure {
    Reason::InvalidSpec.failure(message)
}

fn read(
    from: &ValueFrom,
    settings: &Settings,
    redactor: &Redactor,
    wanted: &str,
) -> Result<(Value, String), Failure> {
    let refs = (
        from.secret_key_ref.as_ref(),
        from.config_map_key_ref.as_ref(),
    );
    let Found { bytes, origin } = key_of(refs, settings, wanted)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    if from.secret_key_ref.is_some() {
        redactor.add(&text);
    }
    Ok((Value::String(text), origin))
}

/// Writes the files and variables into the stack's directory. The source may not use the names of variables and backend. `root` is the
/// source's top.
pub(super) fn put_all(stack: &Path, root: &Path, given: &mut Inputs) -> Result<(), Failure> {
    given_files::put_beside(&given.files, stack)?;
    refuse_own_names(stack)?;
    given.put = variable_files::texts(&given.variable_files, &given.variables, stack, root)?;
    variable_files::put(&given.put, stack)
}

fn refuse_own_names(stack: &Path) -> Result<(), Failure> {
    let tofu_names = [
        BACKEND_FILE.replace(".tf.json", ".tofu.json"),
        BACKEND_FILE.replace(".tf.json", ".tofu"),
    ];
    for name in [VARIABLES_FILE, BACKEND_FILE]
        .into_iter()
        .chain(tofu_names.iter().map(String::as_str))
    {
        if fs::symlink_metadata(stack.join(name)).is_ok() {
            return Err(Reason::SourceInvalid.failure(format!(
                "the source has a file {name}, a name that Pawl uses for itself"
            )));
        }
    }
    if let Some(name) = variable_files::own_names(stack).first() {
        return Err(Reason::SourceInvalid.failure(format!(
            "the source has a file {name}, a name that Pawl uses for itself"
        )));
    }
    Ok(())
}

/// Refuses a whole number that JSON here does not carry exactly: above 2^64 only its first digits arrive.
fn refuse_rounded(value: &Value, wanted: &str) -> Result<(), Failure> {
    /// From here on not every whole number is a double.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(double) if number.is_f64() && double.abs() >= EXACT => Err(invalid(format!(
                "{wanted} is a number with more digits than are carried exactly, {number} arrived; write it as a text, in quotes"
            ))),
            _ => Ok(()),
        },
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| refuse_rounded(item, wanted)),
        Value::Object(fields) => fields
            .values()
            .try_for_each(|item| refuse_rounded(item, wanted)),
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phases::tests::settings;
    use crds::{FailureClass, reason};
    use serde_json::json;
    use std::os::unix::fs::PermissionsExt;

    fn spec(json: &Value) -> TerraformRunSpec {
        let mut base = json!({"source": {"inline": {"files": {}}}});
        base.as_object_mut()
            .unwrap()
            .extend(json.as_object().unwrap().clone());
        serde_json::from_value(base).unwrap()
    }

    #[test]
    fn values_come_from_their_declared_sources() {
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
        assert_eq!(
            Value::Object(inputs.variables),
            json!({"n": {"a": [1, null]}, "p": "hunter22\n"})
        );
        assert_eq!(
            inputs.variable_origins,
            [
                ("n".into(), "value".into()),
                ("p".into(), "secret db/password".into())
            ]
        );
        assert_eq!(inputs.env, [("REGION".into(), "eu".into())]);
        assert_eq!(redactor.redact("is hunter22"), "is (sensitive value)");
    }

    #[test]
    fn later_values_that_bring_code_are_told_from_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let settings = settings(dir.path());
        let put = |name: &str, value: &str| {
            fs::create_dir_all(settings.secrets.join("s")).unwrap();
            fs::write(settings.secrets.join("s").join(name), value).unwrap();
        };
        put("TOKEN", "before");
        put("GIT_SSH_COMMAND", "ssh -4");
        put("DB", "postgres://u:p@db/a");
        let spec = spec(&json!({
            "env": [{"name": "PG_CONN_STR", "valueFrom": {"secretKeyRef": {"name": "s", "key": "DB"}}},
                {"name": "GIT_PAGER", "valueFrom": {"secretKeyRef": {"name": "s", "key": "TOKEN"}}},
                {"name": "GIT_DIR", "value": "x"}],
            "envFrom": [{"secretRef": {"name": "s"}}],
        }));
        let gathered =
            || gather(&spec, &settings, &TakenOutputs::new(), &Redactor::default()).unwrap();
        let sealed = SealedInputs::of(&gathered().taken).unwrap();
        assert!(gathered().bring_code(&sealed).is_empty());
        put("OTHER", "data");
        assert!(gathered().bring_code(&sealed).is_empty());
        put("DB", "postgres://u:rotated@db/a");
        assert!(gathered().bring_code(&sealed).is_empty());
        put("DB", "postgres://u:p@db/other");
        assert_eq!(
            gathered().bring_code(&sealed),
            ["the state's place in PG_CONN_STR"]
        );
        put("DB", "postgres://u:p@db/a");
        put("TOKEN", "after");
        assert_eq!(gathered().bring_code(&sealed), ["env GIT_PAGER"]);
        put("TF_ENCRYPTION", "{}");
        fs::remove_file(settings.secrets.join("s/GIT_SSH_COMMAND")).unwrap();
        assert_eq!(
            gathered().bring_code(&sealed),
            ["env GIT_PAGER", "env GIT_SSH_COMMAND", "env TF_ENCRYPTION"]
        );
    }

    #[test]
    fn missing_values_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let settings = settings(dir.path());
        fs::create_dir_all(settings.secrets.join("shell")).unwrap();
        fs::write(settings.secrets.join("shell/ENV"), "x").unwrap();
        let rows = [
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
            (
                json!({"envFrom": [{"prefix": "BASH_", "secretRef": {"name": "shell"}}]}),
                reason::INVALID_SPEC,
                "envFrom: BASH_ENV of Secret shell is refused: it would load other code than is approved",
            ),
        ];
        for (json, reason, message) in rows {
            let failure = gather(
                &spec(&json),
                &settings,
                &TakenOutputs::new(),
                &Redactor::default(),
            )
            .unwrap_err();
            let said = (
                failure.class,
                failure.reason.as_str(),
                failure.message.as_str(),
            );
            assert_eq!(said, (FailureClass::Configuration, reason, message));
        }
    }

    #[test]
    fn files_are_private_and_their_names_are_reserved() {
        let dir = tempfile::tempdir().unwrap();
        let mut given = Inputs {
            variables: json!({"a": 1}).as_object().unwrap().clone(),
            ..Inputs::default()
        };
        put_all(dir.path(), dir.path(), &mut given).unwrap();
        fs::write(dir.path().join(BACKEND_FILE), "{}").unwrap();
        let mode = fs::metadata(dir.path().join(VARIABLES_FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        for name in [BACKEND_FILE, VARIABLES_FILE] {
            let failure = put_all(dir.path(), dir.path(), &mut given).unwrap_err();
            assert!(
                failure.reason == reason::SOURCE_INVALID && failure.message.contains("zz_pawl"),
                "{}",
                failure.message
            );
            fs::remove_file(dir.path().join(name)).unwrap();
        }
        put_all(dir.path(), dir.path(), &mut given).unwrap();
    }
}
