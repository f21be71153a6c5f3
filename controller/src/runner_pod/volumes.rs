//! The volumes of a pod: work directories, tokens, and the Secrets and ConfigMaps that its run references.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, ConfigMapVolumeSource, DownwardAPIProjection, DownwardAPIVolumeFile,
    EmptyDirVolumeSource, KeyToPath, ObjectFieldSelector, SecretVolumeSource, Volume, VolumeMount,
    VolumeProjection,
};

use super::{FILE_MODE, identity, mount, projected, token_of};
use crds::{Attempt, KeyRef, SourceKind, TerraformRun, datastore, pod_env};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Secret,
    ConfigMap,
}

/// The keys that a run references in each Secret and ConfigMap; `None` is all.
type References<'a> = BTreeMap<(Kind, &'a str), Option<BTreeSet<&'a str>>>;

/// Names become directories, so invalid names are left out; the agent reports them as missing.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

/// The Secrets and ConfigMaps that the run references.
fn references(run: &TerraformRun) -> References<'_> {
    let (spec, credentials) = (&run.spec, &run.spec.credentials);
    let from = spec.variables.iter().filter_map(|v| v.value_from.as_ref());
    let from = from.chain(spec.env.iter().filter_map(|v| v.value_from.as_ref()));
    let keys = (from.map(|from| (&from.secret_key_ref, &from.config_map_key_ref)))
        .chain(
            spec.variable_files
                .iter()
                .map(|file| (&file.secret_key_ref, &file.config_map_key_ref)),
        )
        .chain(
            spec.files
                .iter()
                .map(|file| (&file.secret_key_ref, &file.config_map_key_ref)),
        )
        .chain(
            spec.hooks
                .iter()
                .map(|hook| (&None, &hook.config_map_key_ref)),
        )
        .flat_map(|(secret, config_map)| {
            secret
                .iter()
                .map(|key| (Kind::Secret, key))
                .chain(config_map.iter().map(|key| (Kind::ConfigMap, key)))
        })
        .chain(
            credentials
                .registries
                .iter()
                .map(|registry| (Kind::Secret, &registry.secret_key_ref)),
        )
        .chain(
            credentials
                .cli_config
                .iter()
                .map(|config| (Kind::Secret, &config.secret_key_ref)),
        );
    let source = match spec.source.kind() {
        Some(SourceKind::Git(git)) => git
            .secret_ref
            .as_ref()
            .map(|secret| (Kind::Secret, &secret.name)),
        Some(SourceKind::Artifact(artifact)) => artifact
            .secret_ref
            .as_ref()
            .map(|secret| (Kind::Secret, &secret.name)),
        Some(SourceKind::Secret(object)) => Some((Kind::Secret, &object.name)),
        Some(SourceKind::ConfigMap(object)) => Some((Kind::ConfigMap, &object.name)),
        Some(SourceKind::Inline(_) | SourceKind::Repository(_)) | None => None,
    };
    let whole = (source.into_iter())
        .chain(
            credentials
                .git
                .iter()
                .map(|git| (Kind::Secret, &git.secret_ref.name)),
        )
        .chain(
            spec.env_from
                .iter()
                .filter_map(|from| Some((Kind::Secret, &from.secret_ref.as_ref()?.name))),
        )
        .chain(
            spec.env_from
                .iter()
                .filter_map(|from| Some((Kind::ConfigMap, &from.config_map_ref.as_ref()?.name))),
        );
    let mut found = References::new();
    for (kind, KeyRef { name, key }) in keys.filter(|(_, key)| is_name(&key.name)) {
        if let Some(keys) = found
            .entry((kind, name))
            .or_insert_with(|| Some(BTreeSet::new()))
        {
            keys.insert(key);
        }
    }
    found.extend(
        whole
            .filter(|(_, name)| is_name(name))
            .map(|(kind, name)| ((kind, name.as_str()), None)),
    );
    found
}

/// The volumes of a run's pod and their mounts.
pub(super) fn volumes(
    run: &TerraformRun,
    attempt: &Attempt,
    datastore: bool,
) -> (Vec<Volume>, Vec<VolumeMount>) {
    let scratch = |name: &str| Volume {
        name: name.into(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    };
    let mut volumes = vec![
        scratch("work"),
        scratch("kept"),
        scratch("tmp"),
        token_volume(),
    ];
    let mut mounts = vec![
        mount("work", pod_env::WORK_DIR, false),
        mount("kept", pod_env::KEPT_DIR, false),
        mount("tmp", "/tmp", false),
        mount("tmp", "/var/tmp", false),
        mount("token", pod_env::TOKEN_DIR, true),
    ];

    if datastore {
        volumes.push(projected(
            "datastore",
            vec![token_of("token".into(), Some(datastore::AUDIENCE))],
        ));
        mounts.push(mount("datastore", datastore::TOKEN_DIR, true));
    }

    if let Some(volume) = identity::volume(run, attempt) {
        volumes.push(volume);
        mounts.push(mount(identity::VOLUME, pod_env::IDENTITY_DIR, true));
    }

    for (n, ((kind, object), keys)) in references(run).into_iter().enumerate() {
        let item = |key: &str| KeyToPath {
            path: key.to_owned(),
            key: key.to_owned(),
            mode: None,
        };
        let items = keys.map(|keys| keys.into_iter().map(item).collect());
        let (default_mode, optional) = (Some(FILE_MODE), Some(true));
        let (name, object) = (format!("object-{n}"), object.to_owned());
        let mut volume = Volume {
            name: name.clone(),
            ..Volume::default()
        };
        let dir = match kind {
            Kind::Secret => pod_env::SECRETS_DIR,
            Kind::ConfigMap => pod_env::CONFIG_MAPS_DIR,
        };
        mounts.push(mount(&name, &format!("{dir}/{object}"), true));
        match kind {
            Kind::Secret => {
                let secret_name = Some(object);
                volume.secret = Some(SecretVolumeSource {
                    secret_name,
                    items,
                    default_mode,
                    optional,
                });
            }
            Kind::ConfigMap => {
                volume.config_map = Some(ConfigMapVolumeSource {
                    name: object,
                    items,
                    default_mode,
                    optional,
                });
            }
        }
        volumes.push(volume);
    }
    (volumes, mounts)
}

/// The token, certificate authority and namespace that automounting would provide, at the same location.
fn token_volume() -> Volume {
    let authority = VolumeProjection {
        config_map: Some(ConfigMapProjection {
            name: "kube-root-ca.crt".into(),
            items: Some(vec![KeyToPath {
                key: "ca.crt".into(),
                path: "ca.crt".into(),
                mode: None,
            }]),
            optional: None,
        }),
        ..VolumeProjection::default()
    };
    let namespace = VolumeProjection {
        downward_api: Some(DownwardAPIProjection {
            items: Some(vec![DownwardAPIVolumeFile {
                path: "namespace".into(),
                field_ref: Some(ObjectFieldSelector {
                    field_path: "metadata.namespace".into(),
                    api_version: None,
                }),
                ..DownwardAPIVolumeFile::default()
            }]),
        }),
        ..VolumeProjection::default()
    };
    projected(
        "token",
        vec![token_of("token".into(), None), authority, namespace],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        runner_pod::{Handout, runner_pod, tests::spec_of},
        settings::Settings,
        testing,
    };
    use serde_json::{Value, json};

    /// What a run with these fields mounts, by path: the keys, or `*`.
    fn mounted(fields: &Value) -> String {
        let mut run = testing::run();
        let mut spec = json!({"source": {"inline": {"files": {}}}});
        testing::merge(&mut spec, fields);
        run.spec = serde_json::from_value(spec).unwrap();
        let spec = spec_of(&run);
        let mounts = spec.containers[0].volume_mounts.clone().unwrap();
        let told = spec.volumes.unwrap().into_iter().filter_map(|volume| {
            let (items, mode, optional) = match (volume.secret, volume.config_map) {
                (Some(secret), _) => (secret.items, secret.default_mode, secret.optional),
                (_, Some(map)) => (map.items, map.default_mode, map.optional),
                _ => return None,
            };
            assert_eq!(mode, Some(0o444), "{}", volume.name);
            assert_eq!(optional, Some(true), "{}", volume.name);
            let keys = items.map_or_else(
                || "*".to_owned(),
                |items| {
                    items
                        .into_iter()
                        .map(|item| item.key)
                        .collect::<Vec<_>>()
                        .join(",")
                },
            );
            let mount = mounts
                .iter()
                .find(|mount| mount.name == volume.name)
                .unwrap();
            assert_eq!(mount.read_only, Some(true), "{}", volume.name);
            Some(format!(
                "{}={keys}",
                mount.mount_path.trim_start_matches("/pawl/")
            ))
        });
        told.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn referenced_objects_are_mounted_with_their_keys() {
        let key = |name: &str, key: &str| json!({"name": name, "key": key});
        let variable = |from: Value| json!({"name": "v", "valueFrom": from});
        let git = json!({"url": "https://x", "revision": "main", "path": ".", "secretRef": {"name": "git"}});
        let artifact = json!({"url": "https://h/a", "digest": "d", "secretRef": {"name": "flux"}});
        let stack = variable(json!({"configMapKeyRef": key("stack", "k")}));
        for (fields, wanted) in [
            (
                json!({"source": {"inline": null, "git": git}, "variables": [
                    variable(json!({"secretKeyRef": key("db", "user")})), variable(json!({"secretKeyRef": key("db", "password")})),
                    variable(json!({"secretKeyRef": key("git", "username")})), variable(json!({"secretKeyRef": key("../etc", "x")})),
                    variable(json!({"configMapKeyRef": key("region", "name")}))]}),
                "secrets/db=password,user secrets/git=* configmaps/region=name",
            ),
            (
                json!({"credentials": {"git": [{"host": "h", "secretRef": {"name": "git"}}],
                    "registries": [{"host": "r", "secretKeyRef": key("tokens", "r")}],
                    "cliConfig": {"secretKeyRef": key("tokens", "rc")}}}),
                "secrets/git=* secrets/tokens=r,rc",
            ),
            (
                json!({"hooks": [{"name": "a", "when": "Always", "configMapKeyRef": key("scripts", "a.sh")}]}),
                "configmaps/scripts=a.sh",
            ),
            (
                json!({"source": {"inline": null, "configMapRef": {"name": "stack"}}, "variables": [stack]}),
                "configmaps/stack=*",
            ),
            (
                json!({"source": {"inline": null, "secretRef": {"name": "stack"}}}),
                "secrets/stack=*",
            ),
            (
                json!({"source": {"inline": null, "artifact": artifact}}),
                "secrets/flux=*",
            ),
            (
                json!({"source": {"inline": null, "secretRef": {"name": "../x"}}}),
                "",
            ),
            (
                json!({"variableFiles": [{"path": "a.tfvars"}, {"secretKeyRef": key("vars", "prod.tfvars")}],
                    "files": [{"path": "a", "secretKeyRef": key("files", "a")}, {"path": "b", "configMapKeyRef": key("cm", "b")}],
                    "envFrom": [{"secretRef": {"name": "files"}}, {"configMapRef": {"name": "env"}}]}),
                "secrets/files=* secrets/vars=prod.tfvars configmaps/cm=b configmaps/env=*",
            ),
        ] {
            assert_eq!(mounted(&fields), wanted, "{fields}");
        }
    }

    /// The root is read-only: tools and hooks write temporary files to either directory.
    #[test]
    fn both_directories_of_temporary_files_are_writable() {
        let spec = spec_of(&testing::run());
        let mounts = spec.containers[0].volume_mounts.as_ref().unwrap();
        for path in ["/tmp", "/var/tmp"] {
            let mounted = mounts.iter().find(|mount| mount.mount_path == path);
            let mounted = mounted.unwrap_or_else(|| panic!("{path} is not mounted"));
            assert_ne!(mounted.read_only, Some(true), "{path}");
        }
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
        assert!(
            spec_of(&run)
                .volumes
                .unwrap()
                .iter()
                .all(|volume| volume.name != "datastore")
        );
        let handout = Handout {
            url: "https://datastore".into(),
            ca: "PEM".into(),
        };
        let attempt = Attempt {
            number: 1,
            ..Attempt::default()
        };
        let spec = runner_pod(&run, &attempt, &Settings::default(), Some(&handout))
            .spec
            .unwrap();
        let volume = spec
            .volumes
            .unwrap()
            .into_iter()
            .find(|volume| volume.name == "datastore")
            .unwrap();
        let token = volume
            .projected
            .unwrap()
            .sources
            .unwrap()
            .remove(0)
            .service_account_token
            .unwrap();
        assert_eq!(token.audience.as_deref(), Some("pawl-datastore"));
        assert_eq!(token.path.as_str(), "token");
        let container = &spec.containers[0];
        let mounts = container.volume_mounts.clone().unwrap();
        assert!(
            mounts
                .iter()
                .any(|m| m.mount_path == datastore::TOKEN_DIR && m.read_only == Some(true))
        );
        let env = container.env.clone().unwrap();
        let value = |name: &str| {
            env.iter()
                .find(|e| e.name == name)
                .and_then(|e| e.value.clone())
        };
        assert_eq!(
            (
                value(datastore::ENV_URL).as_deref(),
                value(datastore::ENV_CA).as_deref()
            ),
            (Some("https://datastore"), Some("PEM"))
        );
    }
}
