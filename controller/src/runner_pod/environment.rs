//! The environment of a pod: identity of its attempt, datastore, proxies, and additional certificate authorities.

use crds::{TerraformRun, datastore, pod_env};
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector};
use kube::ResourceExt;

use super::{Handout, grace_seconds, variable};
use crate::settings::Settings;

/// Hosts that pods reach without a proxy: themselves, the services of the cluster, and the API server's address, which
/// the kubelet fills in.
const DIRECT: &str =
    "localhost,127.0.0.1,::1,kubernetes.default,.svc,.cluster.local,$(KUBERNETES_SERVICE_HOST)";

pub(super) fn environment(
    run: &TerraformRun,
    attempt: u32,
    settings: &Settings,
    store: Option<&Handout>,
) -> Vec<EnvVar> {
    let field = |name: &str, path: &str| EnvVar {
        name: name.into(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: path.into(),
                api_version: None,
            }),
            ..EnvVarSource::default()
        }),
    };
    let mut env = vec![
        variable(pod_env::ENV_NAMESPACE, run.namespace().unwrap_or_default()),
        variable(pod_env::ENV_RUN, run.name_any()),
        variable(pod_env::ENV_RUN_UID, run.uid().unwrap_or_default()),
        variable(pod_env::ENV_ATTEMPT, attempt.to_string()),
        field(pod_env::ENV_POD_NAME, "metadata.name"),
        field(pod_env::ENV_POD_UID, "metadata.uid"),
        field(pod_env::ENV_NODE_NAME, "spec.nodeName"),
        variable(pod_env::ENV_GRACE, grace_seconds(run).to_string()),
    ];
    if let Some(Handout { url, ca }) = store {
        env.extend([
            variable(datastore::ENV_URL, url.clone()),
            variable(datastore::ENV_CA, ca.clone()),
        ]);
    }
    if settings.runner_require_confinement {
        env.push(variable(pod_env::ENV_REQUIRE_CONFINEMENT, "true"));
    }
    env.extend(network(settings));
    env
}

/// The environment variables for proxies and certificate authorities; empty when the operator sets none.
fn network(settings: &Settings) -> Vec<EnvVar> {
    let said = |value: Option<&String>| value.filter(|value| !value.is_empty()).cloned();
    let (http, https) = (
        said(settings.runner_http_proxy.as_ref()),
        said(settings.runner_https_proxy.as_ref()),
    );
    let direct = (http.is_some() || https.is_some()).then(|| {
        match said(settings.runner_no_proxy.as_ref()) {
            Some(more) => format!("{DIRECT},{more}"),
            None => DIRECT.to_owned(),
        }
    });
    // Some programs read only the upper-case names, others only the lower-case ones.
    let proxies = [
        ("HTTP_PROXY", http),
        ("HTTPS_PROXY", https),
        ("NO_PROXY", direct),
    ];
    let proxies = proxies
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    let proxies = proxies.flat_map(|(name, value)| {
        [
            (name.to_owned(), value.clone()),
            (name.to_ascii_lowercase(), value),
        ]
    });
    let authorities =
        said(settings.runner_ca.as_ref()).map(|pem| (pod_env::ENV_CA.to_owned(), pem));
    proxies
        .chain(authorities)
        .map(|(name, value)| variable(name, value))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        runner_pod::tests::{built, spec_of, value},
        testing,
    };

    fn told(settings: &Settings) -> Vec<(String, String)> {
        let env = built(&testing::run(), settings).spec.unwrap().containers[0]
            .env
            .clone()
            .unwrap();
        let is_ours = |env: &EnvVar| {
            env.name == pod_env::ENV_CA || env.name.to_ascii_lowercase().ends_with("_proxy")
        };
        env.into_iter()
            .filter(is_ours)
            .map(|env| (env.name, env.value.unwrap()))
            .collect()
    }

    #[test]
    fn environment_omits_unset_proxies_and_authorities() {
        let none = Some(String::new());
        let empty = Settings {
            runner_http_proxy: none.clone(),
            runner_https_proxy: none.clone(),
            runner_no_proxy: Some(".example.org".into()),
            runner_ca: none,
            ..Settings::default()
        };
        assert_eq!(told(&Settings::default()), Vec::new());
        assert_eq!(told(&empty), Vec::new());
    }

    #[test]
    fn cluster_hosts_bypass_the_proxy() {
        let proxy = "http://proxy.example.org:3128";
        let mut settings = Settings {
            runner_https_proxy: Some(proxy.into()),
            ..Settings::default()
        };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let wanted = [
            pair("HTTPS_PROXY", proxy),
            pair("https_proxy", proxy),
            pair("NO_PROXY", DIRECT),
            pair("no_proxy", DIRECT),
        ];
        assert_eq!(told(&settings), wanted);
        settings.runner_http_proxy = Some(proxy.into());
        settings.runner_no_proxy = Some(".example.org,10.0.0.0/8".into());
        settings.runner_ca = Some("PEM".into());
        let told = told(&settings);
        let value = |name: &str| {
            told.iter()
                .find(|(of, _)| of == name)
                .map(|(_, value)| value.as_str())
        };
        assert_eq!(
            (value("http_proxy"), value(pod_env::ENV_CA)),
            (Some(proxy), Some("PEM"))
        );
        let direct: Vec<_> = value("no_proxy").unwrap().split(',').collect();
        for name in [
            "localhost",
            "127.0.0.1",
            ".svc",
            ".cluster.local",
            "$(KUBERNETES_SERVICE_HOST)",
            ".example.org",
            "10.0.0.0/8",
        ] {
            assert!(direct.contains(&name), "{name}: {direct:?}");
        }
    }

    #[test]
    fn environment_has_the_attempts_identity() {
        let run = testing::run();
        let spec = spec_of(&run);
        let named = [pod_env::ENV_RUN, pod_env::ENV_ATTEMPT, pod_env::ENV_GRACE]
            .map(|name| value(&spec, name));
        assert_eq!(
            named,
            [Some(run.name_any()), Some("1".into()), Some("600".into())]
        );
        let uid = spec.containers[0]
            .env
            .iter()
            .flatten()
            .find(|env| env.name == pod_env::ENV_POD_UID)
            .unwrap();
        assert!(uid.value.is_none(), "by downward API");
        assert!(uid.value_from.is_some(), "by downward API");
    }

    #[test]
    fn confinement_is_required_only_if_configured() {
        let said = |runner_require_confinement| {
            let settings = Settings {
                runner_require_confinement,
                ..Settings::default()
            };
            value(
                &built(&testing::run(), &settings).spec.unwrap(),
                pod_env::ENV_REQUIRE_CONFINEMENT,
            )
        };
        assert_eq!((said(false), said(true).as_deref()), (None, Some("true")));
    }
}
