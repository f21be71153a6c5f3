//! Variable files that a run references in the source, in ConfigMaps and in Secrets.
//!
//! They are written beside the code under names that the tool loads automatically, in their order. So every command of the tool reads
//! them, and Terragrunt copies them. Files of the code may sort after them, and Terragrunt may pass others: each command that takes
//! variables gets these as its last arguments too, so they win ([`super::phase_results::Shell::with_variables`]).
//!
//! No checksum covers them, since not even a hash of their values may be shown. A plan contains its variables, except ephemeral
//! ones, which an apply reads again. So the agent keeps the texts in memory, and restores exactly these files before anything is
//! stored or applied.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use crds::{Failure, Reason, TerraformRunSpec};
use serde_json::{Map, Value};

use super::{
    mounted_objects::{Found, key_of},
    secret_files::{self, Variables},
};
use crate::{
    classify::OrInternal as _,
    files::{self, VARIABLE_FILES, VARIABLES_FILE, is_variables_file},
    report::redact::Redactor,
    settings::Settings,
};

/// Maximum size of a variable file in a source: 4 MiB, more than a ConfigMap can hold.
const LARGEST: u64 = 4 << 20;

/// A referenced variable file.
#[derive(Debug)]
pub(super) struct GivenVariables {
    /// E.g. `configMap vars/prod.tfvars` or `path prod.tfvars`.
    pub(super) origin: String,
    /// Its name; the suffix decides the format.
    name: String,
    from: From,
}

#[derive(Debug)]
enum From {
    /// Relative to the stack's directory.
    Source(String),
    /// Its text and its path.
    Mounted(String, PathBuf),
}

/// Reads the files outside the source, and records their texts in `taken`.
pub(super) fn gather(
    spec: &TerraformRunSpec,
    settings: &Settings,
    redactor: &Redactor,
    taken: &mut BTreeMap<String, String>,
) -> Result<Vec<GivenVariables>, Failure> {
    let mut given = Vec::new();
    for file in &spec.variable_files {
        let refs = (
            file.secret_key_ref.as_ref(),
            file.config_map_key_ref.as_ref(),
        );
        let one = match (&file.path, refs) {
            (Some(path), (None, None)) => {
                if path.starts_with('/') {
                    return Err(invalid(format!(
                        "spec.variableFiles: {path} is no path below the stack's directory or beside it"
                    )));
                }
                GivenVariables {
                    origin: format!("path {path}"),
                    name: path.clone(),
                    from: From::Source(path.clone()),
                }
            }
            (None, refs) => {
                let key = refs
                    .0
                    .or(refs.1)
                    .map(|key| key.key.clone())
                    .unwrap_or_default();
                let object = refs
                    .0
                    .or(refs.1)
                    .map(|key| key.name.clone())
                    .unwrap_or_default();
                let wanted = format!("variable file {object}/{key}");
                let Found { bytes, origin } = key_of(refs, settings, &wanted)?;
                let text = String::from_utf8(bytes)
                    .map_err(|_| invalid(format!("spec.variableFiles: {origin} is not UTF-8")))?;
                let parsed =
                    Variables::read(&key, &text).map_err(|why| not_understood(&origin, &why))?;
                if refs.0.is_some() {
                    secret_files::values(&text, &parsed, redactor);
                }
                taken.insert(format!("variable file {origin}"), text.clone());
                let dir = if refs.0.is_some() {
                    &settings.secrets
                } else {
                    &settings.config_maps
                };
                let path = dir.join(object).join(&key);
                GivenVariables {
                    origin,
                    name: key,
                    from: From::Mounted(text, path),
                }
            }
            (Some(path), _) => {
                return Err(invalid(format!(
                    "spec.variableFiles: {path} needs exactly one of path, configMapKeyRef and secretKeyRef"
                )));
            }
        };
        given.push(one);
    }
    Ok(given)
}

fn invalid(message: impl AsRef<str>) -> Failure {
    Reason::InvalidSpec.failure(message)
}

fn not_understood(origin: &str, why: &str) -> Failure {
    Reason::VariableInvalid.failure(format!("the variable file {origin} is not JSON: {why}"))
}

/// The file of texts that the code declares as lists, objects and the like: the tool reads them as expressions, as it reads `TF_VAR_…`.
pub(super) const TEXTS_FILE: &str = "zz_pawl-values.auto.tfvars";

/// A variable file as written beside the code.
#[derive(Clone, Debug)]
pub(super) struct VariablesFile {
    pub(super) name: String,
    text: String,
}

impl VariablesFile {
    /// The values, of the file of the run's `variables`.
    pub(super) fn values(&self) -> Option<Map<String, Value>> {
        let is_own = self.name == VARIABLES_FILE;
        serde_json::from_str(&self.text).ok().filter(|_| is_own)
    }
}

/// The run's variable files: those it references, in a source with its top at `root`, and that of its `variables`.
pub(super) fn texts(
    given: &[GivenVariables],
    variables: &Map<String, Value>,
    stack: &Path,
    root: &Path,
) -> Result<Vec<VariablesFile>, Failure> {
    let mut all = Vec::new();
    for (number, file) in given.iter().enumerate() {
        let text = match &file.from {
            From::Mounted(text, _) => text.clone(),
            From::Source(path) => of_source(&stack.join(path), root, path)?,
        };
        all.push(VariablesFile {
            name: file.put_name(number),
            text,
        });
    }
    all.extend(of_values(variables));
    Ok(all)
}

/// The file of the run's `variables`.
pub(super) fn of_values(variables: &Map<String, Value>) -> Vec<VariablesFile> {
    let file = (!variables.is_empty()).then(|| VariablesFile {
        name: VARIABLES_FILE.to_owned(),
        text: Value::Object(variables.clone()).to_string(),
    });
    file.into_iter().collect()
}

/// Writes the run's variables to two files in `dir`, outside the stack's directory, and returns their paths. A file without
/// variables is written empty.
pub(super) fn write_apart(all: &[VariablesFile], dir: &Path) -> Result<[PathBuf; 2], Failure> {
    let paths = [
        (TEXTS_FILE, "values.tfvars", ""),
        (VARIABLES_FILE, "variables.tfvars.json", "{}"),
    ];
    for (name, own, empty) in paths {
        let text = all.iter().find(|file| file.name == name);
        files::write(&dir.join(own), text.map_or(empty, |file| &file.text))
            .or_internal("the variables cannot be written")?;
    }
    Ok(paths.map(|(_, own, _)| dir.join(own)))
}

/// Reads the variable files beside the code of a stored plan, before any code runs there.
pub(super) fn kept(stack: &Path) -> Result<Vec<VariablesFile>, Failure> {
    let read = |name: String| {
        let mut text = String::new();
        files::regular(&stack.join(&name))?.read_to_string(&mut text)?;
        Ok(VariablesFile { name, text })
    };
    let mut names = own_names(stack);
    // Their order decides.
    names.sort();
    let all: io::Result<Vec<_>> = names.into_iter().map(read).collect();
    all.or_internal("the variables of the plan cannot be read")
}

/// The files with `texts` of Secrets and ConfigMaps written as the code declares them.
pub(super) fn retyped(
    files: &[VariablesFile],
    texts: &BTreeMap<String, String>,
    is_expression: impl Fn(&str) -> bool,
) -> Result<Vec<VariablesFile>, Failure> {
    let (own, mut all): (Vec<_>, Vec<_>) = files
        .iter()
        .cloned()
        .partition(|file| file.name == VARIABLES_FILE || file.name == TEXTS_FILE);
    let values = own.into_iter().find(|file| file.name == VARIABLES_FILE);
    let mut values: Map<String, Value> = values
        .map_or(Ok(Map::new()), |file| serde_json::from_str(&file.text))
        .or_internal("the variables cannot be read back")?;
    let mut expressions = String::new();
    for (name, text) in texts {
        if is_expression(name) {
            values.remove(name);
            expressions.push_str(&expression(name, text)?);
        } else {
            values.insert(name.clone(), text.clone().into());
        }
    }
    let own = [
        (
            TEXTS_FILE,
            Some(expressions).filter(|text| !text.is_empty()),
        ),
        (
            VARIABLES_FILE,
            (!values.is_empty()).then(|| Value::Object(values).to_string()),
        ),
    ];
    all.extend(own.into_iter().filter_map(|(name, text)| {
        let name = name.to_owned();
        Some(VariablesFile { name, text: text? })
    }));
    Ok(all)
}

/// A variable whose value is an expression. The tools read a bare one as if it were in parentheses.
fn expression(name: &str, text: &str) -> Result<String, Failure> {
    let line = format!("{name} = ({text}\n)\n");
    let refused = |why: &str| {
        Reason::VariableInvalid.failure(format!(
            "variable {name}: its text is no value of the type that the code declares, which is written as in a .tfvars file: {why}"
        ))
    };
    let body = tool_versions::request::hcl::parse(&line).map_err(|why| refused(&why))?;
    let mut all = body.iter();
    match (all.next().and_then(|one| one.as_attribute()), all.next()) {
        (Some(attribute), None) if attribute.value.as_parenthesis().is_some() => Ok(line),
        _ => Err(refused("it is more than one value")),
    }
}

/// Writes the files beside the code, and removes all others with such names.
pub(super) fn put(all: &[VariablesFile], stack: &Path) -> Result<(), Failure> {
    let clear = |name: String| {
        let path = stack.join(name);
        if fs::symlink_metadata(&path)?.is_dir() {
            fs::remove_dir_all(path)
        } else {
            fs::remove_file(path)
        }
    };
    let write = |file: &VariablesFile| files::write(&stack.join(&file.name), &file.text);
    let put = own_names(stack)
        .into_iter()
        .try_for_each(clear)
        .and_then(|()| all.iter().try_for_each(write));
    put.or_internal("the variables cannot be written")
}

/// Entries of the stack's directory with names that Pawl reserves for variable files.
pub(super) fn own_names(stack: &Path) -> Vec<String> {
    let entries = fs::read_dir(stack).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| is_variables_file(name))
        .collect()
}

/// Command-line arguments for the files, for a person's folder, where Pawl writes nothing.
pub(super) fn arguments(
    given: &[GivenVariables],
    stack: &Path,
    root: &Path,
) -> Result<Vec<OsString>, Failure> {
    let mut words = Vec::new();
    for file in given {
        let path = match &file.from {
            From::Mounted(_, path) => path.clone(),
            From::Source(path) => {
                // An absolute path, since Terragrunt runs the tool in a copy of the folder.
                let path_here = stack.join(path);
                of_source(&path_here, root, path)?;
                path_here
            }
        };
        words.extend(["-var-file".into(), path.into_os_string()]);
    }
    Ok(words)
}

/// Reads a file of the source. Refuses links out of it.
fn of_source(path: &Path, root: &Path, named: &str) -> Result<String, Failure> {
    let real = path.canonicalize().map_err(|error| {
        invalid(format!("spec.variableFiles: the source has no file {named} ({error}); paths begin in the stack's directory"))
    })?;
    if !real.starts_with(root) {
        return Err(invalid(format!(
            "spec.variableFiles: {named} leads out of the source"
        )));
    }
    let mut text = String::new();
    let read =
        files::regular(&real).and_then(|file| file.take(LARGEST + 1).read_to_string(&mut text));
    let count = read.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => {
            invalid(format!("spec.variableFiles: {named} is no file of text"))
        }
        _ => invalid(format!(
            "spec.variableFiles: {named} cannot be read: {error}"
        )),
    })?;
    if count as u64 > LARGEST {
        return Err(invalid(format!(
            "spec.variableFiles: {named} is larger than {} MiB",
            LARGEST >> 20
        )));
    }
    Variables::read(named, &text).map_err(|why| not_understood(named, &why))?;
    Ok(text)
}

impl GivenVariables {
    /// The name under which the tool loads the file. It contains the original name, so that people recognise the file in the tool's
    /// messages.
    fn put_name(&self, number: usize) -> String {
        let last = self.name.rsplit('/').next().unwrap_or_default();
        let (stem, json) = last
            .strip_suffix(".json")
            .map_or((last, ""), |stem| (stem, ".json"));
        let stem: String = stem
            .strip_suffix(".tfvars")
            .unwrap_or(stem)
            .chars()
            .take(64)
            .collect();
        format!(
            "{VARIABLE_FILES}{number:02}-{}.auto.tfvars{json}",
            stem.replace(' ', "_")
        )
    }
}

/// Names of the variables in a file; `None` if it is unreadable or not parseable.
pub(super) fn names(path: &Path) -> Option<Vec<String>> {
    read(path)?.names()
}

/// A variable file; `None` if it is unreadable or not parseable.
pub(super) fn read(path: &Path) -> Option<Variables> {
    let mut text = String::new();
    files::regular(path)
        .ok()?
        .take(LARGEST)
        .read_to_string(&mut text)
        .ok()?;
    Variables::read(&path.display().to_string(), &text).ok()
}

/// The variable files in the stack's directory that a tool loads automatically.
pub(super) fn found(stack: &Path) -> Vec<PathBuf> {
    let is_read = |name: &str| {
        let base = name.strip_suffix(".json").unwrap_or(name);
        base == "terraform.tfvars" || base.ends_with(".auto.tfvars")
    };
    let entries = fs::read_dir(stack).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_read))
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phases::tests::settings;
    use crds::reason;
    use serde_json::json;

    fn gathered(
        dir: &Path,
        list: &Value,
    ) -> Result<(Vec<GivenVariables>, BTreeMap<String, String>), Failure> {
        let settings = settings(dir);
        for (path, text) in [
            ("secrets/s/prod.tfvars", "password = \"hunter22\"\n"),
            ("configmaps/c/size.tfvars.json", "{\"size\": 3}"),
            ("configmaps/c/bad.json", "size = 3"),
        ] {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let spec = serde_json::from_value(
            json!({"source": {"inline": {"files": {}}}, "variableFiles": list}),
        )
        .unwrap();
        let mut taken = BTreeMap::new();
        gather(&spec, &settings, &Redactor::default(), &mut taken).map(|given| (given, taken))
    }

    #[test]
    fn variable_files_are_loaded_in_order_before_variables() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let stack = root.join("live/net");
        fs::create_dir_all(&stack).unwrap();
        fs::write(root.join("live/all.tfvars"), "region = \"eu\"\n").unwrap();
        let list = json!([
            {"path": "../all.tfvars"},
            {"secretKeyRef": {"name": "s", "key": "prod.tfvars"}},
            {"configMapKeyRef": {"name": "c", "key": "size.tfvars.json"}},
        ]);
        let (given, taken) = gathered(&root, &list).unwrap();
        let origins: Vec<_> = given.iter().map(|one| one.origin.as_str()).collect();
        assert_eq!(
            origins,
            [
                "path ../all.tfvars",
                "secret s/prod.tfvars",
                "configMap c/size.tfvars.json"
            ]
        );
        assert_eq!(taken.len(), 2, "what is of the source is counted there");
        let files = texts(&given, json!({"n": 1}).as_object().unwrap(), &stack, &root).unwrap();
        put(&files, &stack).unwrap();
        let mut names: Vec<_> = fs::read_dir(&stack)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.push("zz.auto.tfvars".into());
        names.sort();
        let wanted = [
            "zz.auto.tfvars",
            "zz_pawl-00-all.auto.tfvars",
            "zz_pawl-01-prod.auto.tfvars",
            "zz_pawl-02-size.auto.tfvars.json",
            "zz_pawl.auto.tfvars.json",
        ];
        assert_eq!(names, wanted);
        assert!(
            wanted[1..].iter().all(|name| is_variables_file(name))
                && !is_variables_file("zz_pawl-00-a.tf")
        );
        assert_eq!(found(&stack).len(), 4);
        // Code that ran in between changed a file, removed one and added others.
        let size = stack.join("zz_pawl-02-size.auto.tfvars.json");
        fs::write(stack.join("zz_pawl-00-all.auto.tfvars"), "evil").unwrap();
        fs::remove_file(&size).unwrap();
        fs::create_dir_all(size.join("below")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", stack.join("zz_pawl-99-evil.auto.tfvars"))
            .unwrap();
        put(&files, &stack).unwrap();
        assert_eq!(
            fs::read_to_string(stack.join("zz_pawl-00-all.auto.tfvars")).unwrap(),
            "region = \"eu\"\n"
        );
        assert_eq!(fs::read_to_string(&size).unwrap(), "{\"size\": 3}");
        let mut again: Vec<_> = kept(&stack)
            .unwrap()
            .into_iter()
            .map(|file| file.name)
            .collect();
        again.sort();
        assert_eq!(again, wanted[1..]);
        let words = arguments(&given, &stack, &root).unwrap();
        assert_eq!(
            words[..2],
            [
                OsString::from("-var-file"),
                stack.join("../all.tfvars").into()
            ]
        );
        assert_eq!(words[3], root.join("secrets/s/prod.tfvars"));
    }

    #[test]
    fn missing_or_outside_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let stack = root.join("source/net");
        fs::create_dir_all(&stack).unwrap();
        fs::write(root.join("outside.tfvars"), "").unwrap();
        fs::write(stack.join("bad.tfvars.json"), "a = 1").unwrap();
        let of = |path: &str| {
            let given = gathered(&root, &json!([{"path": path}])).map(|(given, _)| given);
            given
                .and_then(|given| texts(&given, &Map::new(), &stack, &root.join("source")))
                .unwrap_err()
        };
        for (path, reason, said) in [
            (
                "gone.tfvars",
                reason::INVALID_SPEC,
                "the source has no file gone.tfvars",
            ),
            (
                "../../outside.tfvars",
                reason::INVALID_SPEC,
                "leads out of the source",
            ),
            ("/etc/passwd", reason::INVALID_SPEC, "no path below"),
            (".", reason::INVALID_SPEC, ". cannot be read"),
            (
                "bad.tfvars.json",
                reason::VARIABLE_INVALID,
                "the variable file bad.tfvars.json is not JSON: expected",
            ),
        ] {
            let failure = of(path);
            assert_eq!(failure.reason, reason, "{path}");
            assert!(
                failure.message.contains(said) || path == ".",
                "{}",
                failure.message
            );
        }
        for (list, said) in [
            (
                json!([{"configMapKeyRef": {"name": "c", "key": "bad.json"}}]),
                "the variable file configMap c/bad.json is not JSON",
            ),
            (
                json!([{"secretKeyRef": {"name": "s", "key": "no"}}]),
                "Secret s has no key no; variable file s/no wants s/no",
            ),
            (json!([{}]), "exactly one of"),
        ] {
            let failure = gathered(&root, &list).unwrap_err();
            assert!(failure.message.contains(said), "{}", failure.message);
        }
    }
}
