//! A pod's access to tools: the operator's settings, the cache, and the credentials of mirrors.

use crds::{pod_env, tools::ToolSettings};
use k8s_openapi::api::core::v1::{
    HostPathVolumeSource, Namespace, PersistentVolumeClaimVolumeSource, Pod, PodSecurityContext,
    PodSpec, SecretVolumeSource, Volume,
};

use super::{mount, variable};

/// The Pod Security level that permits mounting a directory of the node.
const PRIVILEGED: &str = "privileged";
const ENFORCED: &str = "pod-security.kubernetes.io/enforce";

/// Whether pods of a namespace may mount directories of the node, according to its Pod Security label. Without a label
/// the cluster's default is unknown.
pub fn may_mount_nodes(namespace: &Namespace) -> bool {
    namespace
        .metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(ENFORCED))
        .is_some_and(|level| level == PRIVILEGED)
}

/// Adds the tools to a pod. `nodes` tells whether it may mount a directory of the node; otherwise the cache is the
/// pod's own.
pub fn equip(pod: &mut Pod, settings: &ToolSettings, nodes: bool) {
    let Some(spec) = &mut pod.spec else { return };
    let mut env = Vec::new();
    if *settings != ToolSettings::default() {
        env.push(variable(pod_env::ENV_TOOL_SETTINGS, settings.to_json()));
    }
    if let Some(volume) = cache(settings, nodes) {
        add(spec, volume, pod_env::CACHE_DIR, false);
        env.push(variable(pod_env::ENV_TOOLS_CACHE, pod_env::CACHE_DIR));
        if settings.cache.providers {
            env.push(variable(
                pod_env::ENV_PROVIDERS_CACHE,
                format!("{}/providers", pod_env::CACHE_DIR),
            ));
        }
        let security = spec
            .security_context
            .get_or_insert_with(PodSecurityContext::default);
        if let (None, Some(group)) = (security.fs_group, settings.cache.fs_group) {
            security.fs_group = Some(group);
            security.fs_group_change_policy = Some("OnRootMismatch".into());
        }
    }
    for mirror in &settings.mirrors {
        let Some(secret) = &mirror.secret_name else {
            continue;
        };
        let name = mirror.tool.directory();
        let source = SecretVolumeSource {
            secret_name: Some(secret.clone()),
            default_mode: Some(super::FILE_MODE),
            // Optional, so that the pod starts without the Secret and the agent reports it as missing in the run's status.
            optional: Some(true),
            ..SecretVolumeSource::default()
        };
        let volume = Volume {
            name: format!("mirror-{name}"),
            secret: Some(source),
            ..Volume::default()
        };
        add(
            spec,
            volume,
            &format!("{}/{name}", pod_env::MIRRORS_DIR),
            true,
        );
    }
    if let Some(container) = spec.containers.first_mut() {
        container.env.get_or_insert_default().extend(env);
    }
}

/// The volume of the cache; `None` when the cache is below the work directory and ends with the pod.
fn cache(settings: &ToolSettings, nodes: bool) -> Option<Volume> {
    let volume = Volume {
        name: "cache".into(),
        ..Volume::default()
    };
    match (&settings.cache.claim_name, &settings.cache.host_path) {
        (Some(claim), _) => Some(Volume {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.clone(),
                read_only: None,
            }),
            ..volume
        }),
        // The directory must exist: one that the kubelet creates belongs to root.
        (None, Some(path)) if nodes => Some(Volume {
            host_path: Some(HostPathVolumeSource {
                path: path.clone(),
                type_: Some("Directory".into()),
            }),
            ..volume
        }),
        (None, _) => None,
    }
}

fn add(spec: &mut PodSpec, volume: Volume, path: &str, read_only: bool) {
    let mount = mount(&volume.name, path, read_only);
    spec.volumes.get_or_insert_default().push(volume);
    if let Some(container) = spec.containers.first_mut() {
        container.volume_mounts.get_or_insert_default().push(mount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        runner_pod::tests::{built, spec_of, value},
        settings::Settings,
        testing,
    };
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    fn equipped(settings: &str, nodes: bool) -> PodSpec {
        let mut pod = built(&testing::run(), &Settings::default());
        equip(&mut pod, &settings.parse().unwrap(), nodes);
        pod.spec.unwrap()
    }

    fn volume<'a>(spec: &'a PodSpec, name: &str) -> Option<&'a Volume> {
        spec.volumes
            .as_ref()
            .unwrap()
            .iter()
            .find(|volume| volume.name == name)
    }

    #[test]
    fn pod_without_tool_settings_is_unchanged() {
        assert_eq!(equipped("", true), spec_of(&testing::run()));
    }

    #[test]
    fn cache_claim_is_mounted_with_its_group() {
        let spec = equipped(r#"{"cache":{"claimName":"tools","fsGroup":65532}}"#, false);
        let source = volume(&spec, "cache")
            .unwrap()
            .persistent_volume_claim
            .clone()
            .unwrap();
        assert_eq!(source.claim_name.as_str(), "tools");
        assert_eq!(source.read_only, None);
        assert_eq!(
            value(&spec, pod_env::ENV_TOOLS_CACHE).as_deref(),
            Some(pod_env::CACHE_DIR)
        );
        assert_eq!(
            value(&spec, pod_env::ENV_PROVIDERS_CACHE).as_deref(),
            Some("/pawl/cache/providers")
        );
        assert_eq!(spec.security_context.unwrap().fs_group, Some(65532));
        let without = equipped(
            r#"{"cache":{"claimName":"tools","providers":false}}"#,
            false,
        );
        assert_eq!(value(&without, pod_env::ENV_PROVIDERS_CACHE), None);
    }

    #[test]
    fn node_directory_is_mounted_if_pod_security_allows_it() {
        let said = r#"{"cache":{"hostPath":"/var/cache/pawl"}}"#;
        let spec = equipped(said, true);
        let source = volume(&spec, "cache").unwrap().host_path.clone().unwrap();
        assert_eq!(source.path.as_str(), "/var/cache/pawl");
        assert_eq!(source.type_.as_deref(), Some("Directory"));
        let spec = equipped(said, false);
        assert!(volume(&spec, "cache").is_none());
        assert!(value(&spec, pod_env::ENV_TOOLS_CACHE).is_none());
        let of = |labels: &[(&str, &str)]| {
            let labels = labels
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            may_mount_nodes(&Namespace {
                metadata: ObjectMeta {
                    labels: Some(labels),
                    ..ObjectMeta::default()
                },
                ..Namespace::default()
            })
        };
        assert!(of(&[(ENFORCED, "privileged")]));
        assert!(!of(&[(ENFORCED, "baseline")]));
        assert!(!of(&[(ENFORCED, "restricted")]));
        assert!(!of(&[]));
    }

    #[test]
    fn credentials_of_mirrors_are_mounted_read_only_and_optional() {
        let spec = equipped(
            r#"{"mirrors":[{"tool":"Terraform","url":"https://m","secretName":"mirror"},{"tool":"OpenTofu","url":"https://m"}]}"#,
            false,
        );
        let secret = volume(&spec, "mirror-terraform")
            .unwrap()
            .secret
            .clone()
            .unwrap();
        assert_eq!(secret.secret_name.as_deref(), Some("mirror"));
        assert_eq!(secret.optional, Some(true));
        let mounts = spec.containers[0].volume_mounts.clone().unwrap();
        let mount = mounts
            .iter()
            .find(|mount| mount.name == "mirror-terraform")
            .unwrap();
        assert_eq!(mount.mount_path.as_str(), "/pawl/mirrors/terraform");
        assert_eq!(mount.read_only, Some(true));
        assert!(volume(&spec, "mirror-opentofu").is_none());
        let said: ToolSettings = value(&spec, pod_env::ENV_TOOL_SETTINGS)
            .unwrap()
            .parse()
            .unwrap();
        assert_eq!(said.mirrors.len(), 2);
    }
}
