//! The pod of an attempt: a pure function of run, attempt and settings.

pub mod account;
mod identity;
mod network;
pub mod status;
pub mod tools;

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use k8s_openapi::{
    api::core::v1::{
        Capabilities, ConfigMapProjection, ConfigMapVolumeSource, Container, DownwardAPIProjection, DownwardAPIVolumeFile,
        EmptyDirVolumeSource, EnvVar, EnvVarSource, KeyToPath, LocalObjectReference, ObjectFieldSelector, Pod,
        PodSecurityContext, PodSpec, ProjectedVolumeSource, ResourceRequirements, SeccompProfile, SecretVolumeSource,
        SecurityContext, ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kube::ResourceExt;

use crds::{Attempt, Source, TerraformRun, ValueFrom, datastore, names, pod_env};
use datastore_client::{RequestError, controller::Datastore};

use crate::settings::Settings;

/// Seconds until a token has to be renewed, which the kubelet does in good time.
const TOKEN_SECONDS: i64 = 3600;
/// Files of Secrets and ConfigMaps: readable by whatever user the image has, writable by none.
const FILE_MODE: i32 = 0o444;

/// How long a node has to end what has no pod any more, beside the pod's own grace.
const NODE_MARGIN: SignedDuration = SignedDuration::from_secs(60);

/// How long a pod of this run has to end, in seconds.
pub fn grace_seconds(run: &TerraformRun) -> i64 {
    run.spec.runner.termination_grace_period_seconds
}

/// How long a pod of this run may take to end.
pub fn grace(run: &TerraformRun) -> SignedDuration {
    SignedDuration::from_secs(grace_seconds(run))
}

/// How long a pod of this run that is gone may still have a process on a node that is Ready.
pub fn gone_wait(run: &TerraformRun) -> SignedDuration {
    grace(run).checked_add(NODE_MARGIN).unwrap_or(SignedDuration::MAX)
}

/// The image of the run's pods.
pub fn image<'a>(run: &'a TerraformRun, settings: &'a Settings) -> &'a str {
    run.spec.runner.image.as_deref().unwrap_or(&settings.runner_image)
}

/// The image of an attempt's pod: what was recorded when it was opened.
pub fn attempt_image<'a>(run: &'a TerraformRun, attempt: &'a Attempt, settings: &'a Settings) -> &'a str {
    attempt.image.as_deref().unwrap_or_else(|| image(run, settings))
}

/// What a pod is told of the datastore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handout {
    /// Its address.
    pub url: String,
    /// Its certificate authority, PEM.
    pub ca: String,
}

impl Handout {
    /// What is told of a datastore. Its certificate authority is read each time: a mounted Secret may change.
    ///
    /// # Errors
    /// When the certificate authority cannot be read.
    pub fn of(datastore: &Datastore) -> Result<Self, RequestError> {
        Ok(Self { url: datastore.url().to_owned(), ca: datastore.authority()? })
    }
}

/// Builds the pod of the run's attempt.
pub fn runner_pod(run: &TerraformRun, attempt: &Attempt, settings: &Settings, datastore: Option<&Handout>) -> Pod {
    let (runner, number) = (&run.spec.runner, attempt.number);
    let mut labels = runner.labels.clone();
    labels.extend(account::labels(run, number));
    labels.insert("app.kubernetes.io/name".into(), "pawl-runner".into());
    labels.insert("app.kubernetes.io/component".into(), "runner".into());
    let mut annotations = runner.annotations.clone();
    annotations.insert("cluster-autoscaler.kubernetes.io/safe-to-evict".into(), "false".into());
    annotations.insert("karpenter.sh/do-not-disrupt".into(), "true".into());
    annotations.insert("kubectl.kubernetes.io/default-container".into(), pod_env::CONTAINER.into());

    let (volumes, mounts) = volumes(run, attempt, datastore.is_some());
    let mut node_selector = runner.node_selector.clone();
    node_selector.extend(platform(run, attempt));
    let pull_secrets = runner.image_pull_secrets.iter().map(|s| s.name.clone());
    let default_secrets = settings.runner_image_pull_secrets.iter().filter(|s| !s.is_empty()).cloned();
    let pull_secrets: BTreeSet<String> = pull_secrets.chain(default_secrets).collect();
    Pod {
        metadata: ObjectMeta {
            name: Some(names::attempt_name(&run.name_any(), &run.uid().unwrap_or_default(), number)),
            namespace: run.namespace(),
            labels: Some(labels),
            annotations: Some(annotations),
            finalizers: Some(vec![names::POD_FINALIZER.into()]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            service_account_name: Some(account::service_account_name(run, attempt)),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            restart_policy: Some("Never".into()),
            termination_grace_period_seconds: Some(grace_seconds(run)),
            image_pull_secrets: some(pull_secrets.into_iter().map(|name| LocalObjectReference { name }).collect()),
            node_selector: some_map(node_selector),
            tolerations: some(runner.tolerations.clone()),
            affinity: runner.affinity.clone(),
            topology_spread_constraints: some(runner.topology_spread_constraints.clone()),
            priority_class_name: runner.priority_class_name.clone(),
            runtime_class_name: runner.runtime_class_name.clone(),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: settings.runner_user,
                fs_group: runner.fs_group,
                fs_group_change_policy: runner.fs_group.map(|_| "OnRootMismatch".into()),
                seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
                ..PodSecurityContext::default()
            }),
            containers: vec![container(run, attempt, settings, datastore, mounts)],
            volumes: Some(volumes),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// A plan is applied on the platform that it was made on: providers and tool are part of its checksum.
fn platform(run: &TerraformRun, attempt: &Attempt) -> BTreeMap<String, String> {
    let plan = run.status.as_ref().and_then(|status| status.plan.as_ref());
    let platform = plan.filter(|plan| attempt.restores == Some(plan.attempt)).and_then(|plan| plan.platform.as_deref());
    // Written by an agent; only what can be a label's value.
    let word = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    match platform.and_then(|platform| platform.split_once('_')) {
        Some((os, arch)) if word(os) && word(arch) => {
            [("kubernetes.io/os", os), ("kubernetes.io/arch", arch)].map(|(key, value)| (key.into(), value.into())).into()
        }
        Some(_) | None => BTreeMap::new(),
    }
}

fn container(
    run: &TerraformRun,
    attempt: &Attempt,
    settings: &Settings,
    datastore: Option<&Handout>,
    mounts: Vec<VolumeMount>,
) -> Container {
    let runner = &run.spec.runner;
    let default_policy = settings.runner_image_pull_policy.clone().filter(|policy| !policy.is_empty());
    let mut env = environment(run, attempt.number, settings, datastore);
    env.extend(network::environment(settings));
    Container {
        name: pod_env::CONTAINER.into(),
        image: Some(attempt_image(run, attempt, settings).to_owned()),
        image_pull_policy: runner.image_pull_policy.clone().or(default_policy),
        args: Some(vec!["run".into()]),
        env: Some(env),
        resources: Some(runner.resources.clone().unwrap_or_else(|| default_resources(settings))),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
            privileged: Some(false),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
            ..SecurityContext::default()
        }),
        termination_message_path: Some(pod_env::TERMINATION_LOG.into()),
        termination_message_policy: Some("File".into()),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

/// What is requested for a run that names nothing. A limit of the disk would end an apply that exceeds it.
fn default_resources(settings: &Settings) -> ResourceRequirements {
    let disk = settings.runner_ephemeral_storage.as_deref().filter(|quantity| !quantity.is_empty());
    let requests = [("cpu", Some("100m")), ("memory", Some("512Mi")), ("ephemeral-storage", disk)];
    let requests = requests.into_iter().filter_map(|(name, quantity)| Some((name.into(), Quantity(quantity?.into()))));
    ResourceRequirements { requests: Some(requests.collect()), ..ResourceRequirements::default() }
}

fn environment(run: &TerraformRun, attempt: u32, settings: &Settings, store: Option<&Handout>) -> Vec<EnvVar> {
    let value = |name: &str, value: String| EnvVar { name: name.into(), value: Some(value), value_from: None };
    let field = |name: &str, path: &str| EnvVar {
        name: name.into(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { field_path: path.into(), api_version: None }),
            ..EnvVarSource::default()
        }),
    };
    let mut env = vec![
        value(pod_env::ENV_NAMESPACE, run.namespace().unwrap_or_default()),
        value(pod_env::ENV_RUN, run.name_any()),
        value(pod_env::ENV_RUN_UID, run.uid().unwrap_or_default()),
        value(pod_env::ENV_ATTEMPT, attempt.to_string()),
        field(pod_env::ENV_POD_NAME, "metadata.name"),
        field(pod_env::ENV_POD_UID, "metadata.uid"),
        value(pod_env::ENV_GRACE, grace_seconds(run).to_string()),
    ];
    if let Some(Handout { url, ca }) = store {
        env.extend([value(datastore::ENV_URL, url.clone()), value(datastore::ENV_CA, ca.clone())]);
    }
    if settings.runner_require_confinement {
        env.push(value(pod_env::ENV_REQUIRE_CONFINEMENT, "true".into()));
    }
    env
}

/// What is mounted of one Secret or ConfigMap: the keys the run names, or all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Keys {
    All,
    Some(BTreeSet<String>),
}

/// Names become directories, so those that are no names of objects are left out; the agent says that they are missing.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

/// The Secrets and ConfigMaps that the run refers to.
fn references(run: &TerraformRun) -> (BTreeMap<String, Keys>, BTreeMap<String, Keys>) {
    fn add(to: &mut BTreeMap<String, Keys>, name: &str, key: &str) {
        match to.entry(name.to_owned()).or_insert_with(|| Keys::Some(BTreeSet::new())) {
            Keys::All => {}
            Keys::Some(keys) => {
                keys.insert(key.to_owned());
            }
        }
    }
    let (mut secrets, mut config_maps) = (BTreeMap::new(), BTreeMap::new());
    let variables = run.spec.variables.iter().filter_map(|v| v.value_from.as_ref());
    let env = run.spec.env.iter().filter_map(|v| v.value_from.as_ref());
    for ValueFrom { secret_key_ref, config_map_key_ref } in variables.chain(env) {
        if let Some(key) = secret_key_ref {
            add(&mut secrets, &key.name, &key.key);
        }
        if let Some(key) = config_map_key_ref {
            add(&mut config_maps, &key.name, &key.key);
        }
    }
    if let Some(secret) = run.spec.source.git.as_ref().and_then(|git| git.secret_ref.as_ref()) {
        secrets.insert(secret.name.clone(), Keys::All);
    }
    source_references(&run.spec.source, &mut secrets, &mut config_maps);
    secrets.retain(|name, _| is_name(name));
    config_maps.retain(|name, _| is_name(name));
    (secrets, config_maps)
}

/// The objects that the source is, or is fetched with.
fn source_references(source: &Source, secrets: &mut BTreeMap<String, Keys>, config_maps: &mut BTreeMap<String, Keys>) {
    let artifact = source.artifact.as_ref().and_then(|artifact| artifact.secret_ref.as_ref()).map(|secret| &secret.name);
    let secret = source.secret_ref.as_ref().map(|object| &object.name);
    secrets.extend(artifact.into_iter().chain(secret).map(|name| (name.clone(), Keys::All)));
    config_maps.extend(source.config_map_ref.iter().map(|object| (object.name.clone(), Keys::All)));
}

fn volumes(run: &TerraformRun, attempt: &Attempt, datastore: bool) -> (Vec<Volume>, Vec<VolumeMount>) {
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

/// A token of the pod's account: for the API server, or for the audience that is named.
fn token_of(path: String, audience: Option<&str>) -> VolumeProjection {
    VolumeProjection {
        service_account_token: Some(ServiceAccountTokenProjection {
            path,
            expiration_seconds: Some(TOKEN_SECONDS),
            audience: audience.map(Into::into),
        }),
        ..VolumeProjection::default()
    }
}

/// Token, certificate authority and namespace where clients look for them; what automounting would give, and no more.
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

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn some_map<K: Ord, V>(map: BTreeMap<K, V>) -> Option<BTreeMap<K, V>> {
    (!map.is_empty()).then_some(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crds::{GitSource, KeyRef, PlanStatus, SecretName, TerraformRunStatus, Variable};

    fn spec_of(run: &TerraformRun) -> PodSpec {
        built(run).spec.unwrap()
    }

    fn built(run: &TerraformRun) -> Pod {
        runner_pod(run, &Attempt { number: 1, ..Attempt::default() }, &Settings::default(), None)
    }

    #[test]
    fn it_passes_pod_security_restricted() {
        let mut run = testing::run();
        run.spec.runner.fs_group = Some(2000);
        let spec = spec_of(&run);
        let pod = spec.security_context.unwrap();
        assert_eq!((pod.run_as_non_root, pod.run_as_user, pod.fs_group), (Some(true), None, Some(2000)));
        assert_eq!(spec.containers.len(), 1);
        assert!(spec.init_containers.is_none() && spec.host_users.is_none() && spec.host_network.is_none());
        let context = spec.containers[0].security_context.clone().unwrap();
        assert_eq!(context.allow_privilege_escalation, Some(false));
        assert_eq!(context.read_only_root_filesystem, Some(true));
        assert_eq!(context.capabilities.unwrap().drop, Some(vec!["ALL".into()]));
        assert_eq!(context.seccomp_profile.unwrap().type_, "RuntimeDefault");
        let allowed = |v: &Volume| v.secret.is_some() || v.config_map.is_some() || v.empty_dir.is_some() || v.projected.is_some();
        assert!(spec.volumes.unwrap().iter().all(allowed));
    }

    #[test]
    fn the_disk_is_requested_and_not_limited() {
        let resources = |run: &TerraformRun, disk: Option<&str>| {
            let settings = Settings { runner_ephemeral_storage: disk.map(ToOwned::to_owned), ..Settings::default() };
            let pod = runner_pod(run, &Attempt { number: 1, ..Attempt::default() }, &settings, None);
            pod.spec.unwrap().containers[0].resources.clone().unwrap()
        };
        let mut run = testing::run();
        let of = |resources: &ResourceRequirements| resources.requests.as_ref().unwrap().get("ephemeral-storage").cloned();
        let by_default = resources(&run, Some("1Gi"));
        assert_eq!((of(&by_default), by_default.limits), (Some(Quantity("1Gi".into())), None));
        assert_eq!((of(&resources(&run, Some(""))), of(&resources(&run, None))), (None, None));
        run.spec.runner.resources =
            Some(ResourceRequirements { requests: Some(BTreeMap::new()), ..ResourceRequirements::default() });
        assert_eq!(of(&resources(&run, Some("1Gi"))), None, "what the run says stands");
    }

    #[test]
    fn what_the_user_says_of_labels_does_not_override_ours() {
        let mut run = testing::run();
        run.spec.runner.labels = BTreeMap::from([(names::LABEL_RUN.into(), "forged".into()), ("team".into(), "a".into())]);
        run.spec.runner.annotations = BTreeMap::from([("karpenter.sh/do-not-disrupt".into(), "false".into())]);
        let pod = built(&run);
        let labels = pod.metadata.labels.unwrap();
        assert_eq!(labels[names::LABEL_RUN], run.name_any());
        assert_eq!(labels["team"], "a");
        assert_eq!(labels[names::LABEL_MANAGED_BY], names::MANAGED_BY);
        assert_eq!(pod.metadata.annotations.unwrap()["karpenter.sh/do-not-disrupt"], "true");
        assert_eq!(pod.metadata.finalizers, Some(vec![names::POD_FINALIZER.into()]));
        assert!(pod.metadata.owner_references.is_none());
    }

    #[test]
    fn secrets_are_mounted_optional_and_by_the_keys_that_are_named() {
        let key = |name: &str, key: &str| KeyRef { name: name.into(), key: key.into() };
        let secret = |at| Some(ValueFrom { secret_key_ref: Some(at), config_map_key_ref: None });
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
            variable("e", Some(ValueFrom { secret_key_ref: None, config_map_key_ref: Some(key("region", "name")) })),
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
    fn what_the_source_is_or_is_fetched_with_is_mounted_whole() {
        let mounts = |source: serde_json::Value| {
            let mut run = testing::run();
            run.spec.source = serde_json::from_value(source).unwrap();
            let key = KeyRef { name: "stack".into(), key: "k".into() };
            let from = ValueFrom { secret_key_ref: None, config_map_key_ref: Some(key) };
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
    fn the_token_is_projected_and_nothing_is_mounted_by_itself() {
        let spec = spec_of(&testing::run());
        assert_eq!(spec.automount_service_account_token, Some(false));
        assert_eq!(spec.enable_service_links, Some(false));
        assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
        let volumes = spec.volumes.unwrap();
        let token = volumes.iter().find_map(|v| v.projected.clone()).unwrap();
        assert_eq!(token.sources.unwrap().len(), 3);
    }

    #[test]
    fn the_contract_is_in_the_environment() {
        let run = testing::run();
        let env = spec_of(&run).containers[0].env.clone().unwrap();
        let value = |name: &str| env.iter().find(|e| e.name == name).unwrap().value.clone();
        assert_eq!(value(pod_env::ENV_RUN), Some(run.name_any()));
        assert_eq!(value(pod_env::ENV_ATTEMPT), Some("1".into()));
        assert_eq!(value(pod_env::ENV_GRACE), Some("600".into()));
        assert_eq!(value(pod_env::ENV_POD_UID), None, "by downward API");
    }

    #[test]
    fn that_code_has_to_be_confined_is_said_where_it_has_to() {
        let said = |runner_require_confinement| {
            let settings = Settings { runner_require_confinement, ..Settings::default() };
            let pod = runner_pod(&testing::run(), &Attempt { number: 1, ..Attempt::default() }, &settings, None);
            let env = pod.spec.unwrap().containers[0].env.clone().unwrap();
            env.into_iter().find(|e| e.name == pod_env::ENV_REQUIRE_CONFINEMENT).and_then(|e| e.value)
        };
        assert_eq!((said(false), said(true).as_deref()), (None, Some("true")));
    }

    #[test]
    fn the_datastore_has_a_token_of_its_own() {
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

    #[test]
    fn a_restored_plan_runs_in_its_image_on_its_platform() {
        let mut run = testing::run();
        run.spec.runner.image = Some("moved".into());
        run.spec.runner.node_selector =
            BTreeMap::from([("kubernetes.io/arch".into(), "arm64".into()), ("pool".into(), "a".into())]);
        let plan = |platform: &str| PlanStatus { attempt: 1, platform: Some(platform.into()), ..PlanStatus::default() };
        let build = |run: &TerraformRun, restores| {
            let attempt = Attempt { number: 2, restores, image: Some("recorded".into()), ..Attempt::default() };
            runner_pod(run, &attempt, &Settings::default(), None).spec.unwrap()
        };
        run.status = Some(TerraformRunStatus { plan: Some(plan("linux_amd64")), ..TerraformRunStatus::default() });
        let spec = build(&run, Some(1));
        assert_eq!(spec.containers[0].image.as_deref(), Some("recorded"));
        let selector = spec.node_selector.unwrap();
        let wanted = [("kubernetes.io/arch", "amd64"), ("kubernetes.io/os", "linux"), ("pool", "a")];
        assert_eq!(selector.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect::<Vec<_>>(), wanted);
        assert_eq!(build(&run, None).node_selector.unwrap()["kubernetes.io/arch"], "arm64", "a plan of its own");
        for odd in ["linux", "linux_", "a/b_c", ""] {
            run.status = Some(TerraformRunStatus { plan: Some(plan(odd)), ..TerraformRunStatus::default() });
            assert_eq!(build(&run, Some(1)).node_selector.unwrap().len(), 2, "{odd}");
        }
    }
}
