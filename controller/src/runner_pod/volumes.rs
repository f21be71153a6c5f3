//! The volumes of a pod: work directories, tokens, and the Secrets and ConfigMaps that its run references.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, ConfigMapVolumeSource, DownwardAPIProjection, DownwardAPIVolumeFile, EmptyDirVolumeSource, KeyToPath,
    ObjectFieldSelector, ProjectedVolumeSource, SecretVolumeSource, Volume, VolumeMount, VolumeProjection,
};

use super::{FILE_MODE, identity, token_of};
use crds::{Attempt, Source, SourceKind, TerraformRun, ValueFrom, datastore, pod_env};

/// The mounted keys of one Secret or ConfigMap: those that the run references, or all.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Keys {
    All,
    Some(BTreeSet<String>),
}

/// Names become directories, so invalid names are left out; the agent reports them as missing.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

fn add(to: &mut BTreeMap<String, Keys>, name: &str, key: &str) {
    match to.entry(name.to_owned()).or_insert_with(|| Keys::Some(BTreeSet::new())) {
        Keys::All => {}
        Keys::Some(keys) => {
            keys.insert(key.to_owned());
        }
    }
}

/// Adds the Secrets with credentials of `init`.
fn credentials(run: &TerraformRun, secrets: &mut BTreeMap<String, Keys>) {
    let credentials = &run.spec.credentials;
    for git in &credentials.git {
        secrets.insert(git.secret_ref.name.clone(), Keys::All);
    }
    let cli_config = credentials.cli_config.iter().map(|config| &config.secret_key_ref);
    for key in credentials.registries.iter().map(|registry| &registry.secret_key_ref).chain(cli_config) {
        add(secrets, &key.name, &key.key);
    }
}

/// Adds the objects of variable files, files, and whole environments.
fn of_inputs(run: &TerraformRun, secrets: &mut BTreeMap<String, Keys>, config_maps: &mut BTreeMap<String, Keys>) {
    let variables = run.spec.variable_files.iter().map(|file| (&file.secret_key_ref, &file.config_map_key_ref));
    let files = run.spec.files.iter().map(|file| (&file.secret_key_ref, &file.config_map_key_ref));
    for (secret, config_map) in variables.chain(files) {
        if let Some(key) = secret {
            add(secrets, &key.name, &key.key);
        }
        if let Some(key) = config_map {
            add(config_maps, &key.name, &key.key);
        }
    }
    for from in &run.spec.env_from {
        if let Some(secret) = &from.secret_ref {
            secrets.insert(secret.name.clone(), Keys::All);
        }
        if let Some(config_map) = &from.config_map_ref {
            config_maps.insert(config_map.name.clone(), Keys::All);
        }
    }
}

/// The Secrets and ConfigMaps that the run references.
fn references(run: &TerraformRun) -> (BTreeMap<String, Keys>, BTreeMap<String, Keys>) {
    let (mut secrets, mut config_maps) = (BTreeMap::new(), BTreeMap::new());
    let variables = run.spec.variables.iter().filter_map(|v| v.value_from.as_ref());
    let env = run.spec.env.iter().filter_map(|v| v.value_from.as_ref());
    for ValueFrom { secret_key_ref, config_map_key_ref, output_of: _ } in variables.chain(env) {
        if let Some(key) = secret_key_ref {
            add(&mut secrets, &key.name, &key.key);
        }
        if let Some(key) = config_map_key_ref {
            add(&mut config_maps, &key.name, &key.key);
        }
    }
    for key in run.spec.hooks.iter().filter_map(|hook| hook.config_map_key_ref.as_ref()) {
        add(&mut config_maps, &key.name, &key.key);
    }
    source_references(&run.spec.source, &mut secrets, &mut config_maps);
    credentials(run, &mut secrets);
    of_inputs(run, &mut secrets, &mut config_maps);
    secrets.retain(|name, _| is_name(name));
    config_maps.retain(|name, _| is_name(name));
    (secrets, config_maps)
}

/// Adds the objects that are the source, or hold its credentials.
fn source_references(source: &Source, secrets: &mut BTreeMap<String, Keys>, config_maps: &mut BTreeMap<String, Keys>) {
    let secret = match source.kind() {
        Some(SourceKind::Git(git)) => git.secret_ref.as_ref().map(|secret| &secret.name),
        Some(SourceKind::Artifact(artifact)) => artifact.secret_ref.as_ref().map(|secret| &secret.name),
        Some(SourceKind::Secret(object)) => Some(&object.name),
        Some(SourceKind::ConfigMap(object)) => {
            config_maps.insert(object.name.clone(), Keys::All);
            None
        }
        Some(SourceKind::Inline(_) | SourceKind::Repository(_)) | None => None,
    };
    secrets.extend(secret.map(|name| (name.clone(), Keys::All)));
}

/// The volumes of a run's pod and their mounts.
pub(super) fn volumes(run: &TerraformRun, attempt: &Attempt, datastore: bool) -> (Vec<Volume>, Vec<VolumeMount>) {
    let mount = |name: &str, path: &str, read_only: bool| VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    };
    let scratch =
        |name: &str| Volume { name: name.into(), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() };
    let mut volumes = vec![scratch("work"), scratch("kept"), scratch("tmp"), token_volume()];
    let mut mounts = vec![
        mount("work", pod_env::WORK_DIR, false),
        mount("kept", pod_env::KEPT_DIR, false),
        mount("tmp", "/tmp", false),
        mount("token", pod_env::TOKEN_DIR, true),
    ];

    if datastore {
        volumes.push(Volume {
            name: "datastore".into(),
            projected: Some(ProjectedVolumeSource {
                default_mode: Some(FILE_MODE),
                sources: Some(vec![token_of("token".into(), Some(datastore::AUDIENCE))]),
            }),
            ..Volume::default()
        });
        mounts.push(mount("datastore", datastore::TOKEN_DIR, true));
    }

    if let Some(volume) = identity::volume(run, attempt) {
        volumes.push(volume);
        mounts.push(mount(identity::VOLUME, pod_env::IDENTITY_DIR, true));
    }

    let items = |keys: Keys| match keys {
        Keys::All => None,
        Keys::Some(keys) => Some(keys.into_iter().map(|key| KeyToPath { path: key.clone(), key, mode: None }).collect()),
    };
    let (secrets, config_maps) = references(run);
    for (n, (secret, keys)) in secrets.into_iter().enumerate() {
        let name = format!("secret-{n}");
        mounts.push(mount(&name, &format!("{}/{secret}", pod_env::SECRETS_DIR), true));
        volumes.push(Volume {
            name,
            secret: Some(SecretVolumeSource {
                secret_name: Some(secret),
                items: items(keys),
                default_mode: Some(FILE_MODE),
                optional: Some(true),
            }),
            ..Volume::default()
        });
    }
    for (n, (config_map, keys)) in config_maps.into_iter().enumerate() {
        let name = format!("config-map-{n}");
        mounts.push(mount(&name, &format!("{}/{config_map}", pod_env::CONFIG_MAPS_DIR), true));
        volumes.push(Volume {
            name,
            config_map: Some(ConfigMapVolumeSource {
                name: config_map,
                items: items(keys),
                default_mode: Some(FILE_MODE),
                optional: Some(true),
            }),
            ..Volume::default()
        });
    }
    (volumes, mounts)
}

/// The token, certificate authority and namespace that automounting would provide, at the same location.
fn token_volume() -> Volume {
    let authority = VolumeProjection {
        config_map: Some(ConfigMapProjection {
            name: "kube-root-ca.crt".into(),
            items: Some(vec![KeyToPath { key: "ca.crt".into(), path: "ca.crt".into(), mode: None }]),
            optional: None,
        }),
        ..VolumeProjection::default()
    };
    let namespace = VolumeProjection {
        downward_api: Some(DownwardAPIProjection {
            items: Some(vec![DownwardAPIVolumeFile {
                path: "namespace".into(),
                field_ref: Some(ObjectFieldSelector { field_path: "metadata.namespace".into(), api_version: None }),
                ..DownwardAPIVolumeFile::default()
            }]),
        }),
        ..VolumeProjection::default()
    };
    Volume {
        name: "token".into(),
        projected: Some(ProjectedVolumeSource {
            default_mode: Some(FILE_MODE),
            sources: Some(vec![token_of("token".into(), None), authority, namespace]),
        }),
        ..Volume::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        runner_pod::{Handout, runner_pod, tests::spec_of},
        settings::Settings,
        testing,
    };
    use crds::{Attempt, GitSource, KeyRef, SecretName, Source, Variable};

    #[test]
    fn secrets_are_mounted_optional_with_referenced_keys() {
        let key = |name: &str, key: &str| KeyRef { name: name.into(), key: key.into() };
        let secret = |at| Some(ValueFrom { secret_key_ref: Some(at), ..ValueFrom::default() });
        let mut run = testing::run();
        run.spec.source = Source {
            git: Some(GitSource {
                url: "https://x".into(),
                revision: "main".into(),
                path: ".".into(),
                secret_ref: Some(SecretName { name: "git".into() }),
            }),
            ..Source::default()
        };
        let variable = |name: &str, value_from| Variable { name: name.into(), value: None, value_from };
        run.spec.variables = vec![
            variable("a", secret(key("db", "password"))),
            variable("b", secret(key("db", "user"))),
            variable("c", secret(key("git", "username"))),
            variable("d", secret(key("../etc", "x"))),
            variable("e", Some(ValueFrom { config_map_key_ref: Some(key("region", "name")), ..ValueFrom::default() })),
        ];
        let spec = spec_of(&run);
        let volumes = spec.volumes.unwrap();
        let secrets: Vec<_> = volumes.iter().filter_map(|v| v.secret.clone()).collect();
        assert_eq!(secrets.len(), 2, "one a Secret, none for what is no name");
        assert!(secrets.iter().all(|s| s.optional == Some(true) && s.default_mode == Some(0o444)));
        let keys: Vec<_> = secrets[0].items.clone().unwrap().into_iter().map(|item| item.key).collect();
        assert_eq!(keys, ["password", "user"]);
        assert!(secrets[1].items.is_none(), "the credentials of git are wanted whole");
        let mounts: Vec<_> = spec.containers[0].volume_mounts.clone().unwrap().into_iter().map(|m| m.mount_path).collect();
        assert!(mounts.contains(&"/pawl/secrets/db".into()) && mounts.contains(&"/pawl/configmaps/region".into()), "{mounts:?}");
    }

    #[test]
    fn credentials_of_init_are_mounted() {
        let key = |name: &str, key: &str| serde_json::json!({"name": name, "key": key});
        let mut run = testing::run();
        run.spec.credentials = serde_json::from_value(serde_json::json!({
            "git": [{"host": "h", "secretRef": {"name": "git"}}],
            "registries": [{"host": "r", "secretKeyRef": key("tokens", "r")}],
            "cliConfig": {"secretKeyRef": key("tokens", "rc")},
        }))
        .unwrap();
        let secrets: Vec<_> = spec_of(&run).volumes.unwrap().into_iter().filter_map(|volume| volume.secret).collect();
        let names: Vec<_> = secrets.iter().filter_map(|secret| secret.secret_name.as_deref()).collect();
        assert_eq!(names, ["git", "tokens"]);
        let keys: Vec<_> = secrets[1].items.clone().unwrap().into_iter().map(|item| item.key).collect();
        assert!(secrets[0].items.is_none() && keys == ["r", "rc"], "{keys:?}");
    }

    #[test]
    fn scripts_of_hooks_are_mounted_by_their_keys() {
        let mut run = testing::run();
        let hook = serde_json::json!({"name": "a", "when": "Always", "configMapKeyRef": {"name": "scripts", "key": "a.sh"}});
        run.spec.hooks = vec![serde_json::from_value(hook).unwrap()];
        let map = spec_of(&run).volumes.unwrap().into_iter().find_map(|v| v.config_map).unwrap();
        let keys: Vec<_> = map.items.unwrap().into_iter().map(|item| item.key).collect();
        assert_eq!((map.name.as_str(), map.optional, keys), ("scripts", Some(true), vec!["a.sh".to_owned()]));
    }

    #[test]
    fn source_objects_and_credentials_are_mounted_whole() {
        let mounts = |source: serde_json::Value| {
            let mut run = testing::run();
            run.spec.source = serde_json::from_value(source).unwrap();
            let key = KeyRef { name: "stack".into(), key: "k".into() };
            let from = ValueFrom { config_map_key_ref: Some(key), ..ValueFrom::default() };
            run.spec.variables = vec![Variable { name: "v".into(), value: None, value_from: Some(from) }];
            let spec = spec_of(&run);
            let whole = |volume: &Volume| {
                volume.config_map.as_ref().is_some_and(|c| c.items.is_none())
                    || volume.secret.as_ref().is_some_and(|s| s.items.is_none())
            };
            let whole: Vec<_> = spec.volumes.unwrap().into_iter().filter(whole).map(|volume| volume.name).collect();
            let mounts = spec.containers[0].volume_mounts.clone().unwrap();
            mounts.into_iter().filter(|mount| whole.contains(&mount.name)).map(|mount| mount.mount_path).collect::<Vec<_>>()
        };
        assert_eq!(mounts(serde_json::json!({"configMapRef": {"name": "stack"}})), ["/pawl/configmaps/stack"]);
        assert_eq!(mounts(serde_json::json!({"secretRef": {"name": "stack"}})), ["/pawl/secrets/stack"]);
        let artifact = serde_json::json!({"url": "https://h/a", "digest": "d", "secretRef": {"name": "flux"}});
        assert_eq!(mounts(serde_json::json!({"artifact": artifact})), ["/pawl/secrets/flux"]);
        assert!(mounts(serde_json::json!({"secretRef": {"name": "../x"}})).is_empty());
    }

    #[test]
    fn input_files_and_environments_are_mounted() {
        let mut run = testing::run();
        let spec = serde_json::json!({"source": {"inline": {"files": {}}},
            "variableFiles": [{"path": "a.tfvars"}, {"secretKeyRef": {"name": "vars", "key": "prod.tfvars"}}],
            "files": [{"path": "a", "secretKeyRef": {"name": "files", "key": "a"}}, {"path": "b", "configMapKeyRef": {"name": "cm", "key": "b"}}],
            "envFrom": [{"secretRef": {"name": "files"}}, {"configMapRef": {"name": "env"}}]});
        run.spec = serde_json::from_value(spec).unwrap();
        let (secrets, config_maps) = references(&run);
        let some = |key: &str| Keys::Some([key.to_owned()].into());
        assert_eq!(secrets, [("files".to_owned(), Keys::All), ("vars".to_owned(), some("prod.tfvars"))].into());
        assert_eq!(config_maps, [("cm".to_owned(), some("b")), ("env".to_owned(), Keys::All)].into());
    }

    #[test]
    fn token_is_projected_and_automounting_is_off() {
        let spec = spec_of(&testing::run());
        assert_eq!(spec.automount_service_account_token, Some(false));
        assert_eq!(spec.enable_service_links, Some(false));
        assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
        let volumes = spec.volumes.unwrap();
        let token = volumes.iter().find_map(|v| v.projected.clone()).unwrap();
        assert_eq!(token.sources.unwrap().len(), 3);
    }

    #[test]
    fn datastore_gets_a_separate_projected_token() {
        let run = testing::run();
        assert!(spec_of(&run).volumes.unwrap().iter().all(|volume| volume.name != "datastore"));
        let handout = Handout { url: "https://datastore".into(), ca: "PEM".into() };
        let attempt = Attempt { number: 1, ..Attempt::default() };
        let spec = runner_pod(&run, &attempt, &Settings::default(), Some(&handout)).spec.unwrap();
        let volume = spec.volumes.unwrap().into_iter().find(|volume| volume.name == "datastore").unwrap();
        let token = volume.projected.unwrap().sources.unwrap().remove(0).service_account_token.unwrap();
        assert_eq!((token.audience.as_deref(), token.path.as_str()), (Some("pawl-datastore"), "token"));
        let container = &spec.containers[0];
        let mounts = container.volume_mounts.clone().unwrap();
        assert!(mounts.iter().any(|m| m.mount_path == datastore::TOKEN_DIR && m.read_only == Some(true)));
        let env = container.env.clone().unwrap();
        let value = |name: &str| env.iter().find(|e| e.name == name).and_then(|e| e.value.clone());
        assert_eq!(
            (value(datastore::ENV_URL).as_deref(), value(datastore::ENV_CA).as_deref()),
            (Some("https://datastore"), Some("PEM"))
        );
    }
}
