//! What a pod is told of the network: proxies, and whom it trusts besides.

use crds::pod_env;
use k8s_openapi::api::core::v1::EnvVar;

use crate::settings::Settings;

/// What pods never reach by a proxy: themselves, the services of the cluster, and the API server by its address, which the kubelet fills in.
const DIRECT: &str = "localhost,127.0.0.1,::1,kubernetes.default,.svc,.cluster.local,$(KUBERNETES_SERVICE_HOST)";

/// The environment that proxies and authorities are told by; empty when the operator says nothing.
pub(super) fn environment(settings: &Settings) -> Vec<EnvVar> {
    let said = |value: Option<&String>| value.filter(|value| !value.is_empty()).cloned();
    let (http, https) = (said(settings.runner_http_proxy.as_ref()), said(settings.runner_https_proxy.as_ref()));
    let direct = (http.is_some() || https.is_some()).then(|| match said(settings.runner_no_proxy.as_ref()) {
        Some(more) => format!("{DIRECT},{more}"),
        None => DIRECT.to_owned(),
    });
    // Some programs read the names in capitals only, others the small ones.
    let proxies = [("HTTP_PROXY", http), ("HTTPS_PROXY", https), ("NO_PROXY", direct)];
    let proxies = proxies.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let proxies = proxies.flat_map(|(name, value)| [(name.to_owned(), value.clone()), (name.to_ascii_lowercase(), value)]);
    let authorities = said(settings.runner_ca.as_ref()).map(|pem| (pod_env::ENV_CA.to_owned(), pem));
    proxies.chain(authorities).map(|(name, value)| EnvVar { name, value: Some(value), value_from: None }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{runner_pod::runner_pod, testing};
    use crds::Attempt;

    fn told(settings: &Settings) -> Vec<(String, String)> {
        let pod = runner_pod(&testing::run(), &Attempt { number: 1, ..Attempt::default() }, settings, None);
        let env = pod.spec.unwrap().containers[0].env.clone().unwrap();
        let is_ours = |env: &EnvVar| env.name == pod_env::ENV_CA || env.name.to_ascii_lowercase().ends_with("_proxy");
        env.into_iter().filter(is_ours).map(|env| (env.name, env.value.unwrap())).collect()
    }

    #[test]
    fn nothing_is_told_when_the_operator_says_nothing() {
        let none = Some(String::new());
        let empty = Settings {
            runner_http_proxy: none.clone(),
            runner_https_proxy: none.clone(),
            runner_no_proxy: Some(".example.org".into()),
            runner_ca: none,
            ..Settings::default()
        };
        assert_eq!((told(&Settings::default()), told(&empty)), (Vec::new(), Vec::new()));
    }

    #[test]
    fn the_cluster_is_never_reached_by_a_proxy() {
        let proxy = "http://proxy.example.org:3128";
        let mut settings = Settings { runner_https_proxy: Some(proxy.into()), ..Settings::default() };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let wanted = [pair("HTTPS_PROXY", proxy), pair("https_proxy", proxy), pair("NO_PROXY", DIRECT), pair("no_proxy", DIRECT)];
        assert_eq!(told(&settings), wanted);
        settings.runner_http_proxy = Some(proxy.into());
        settings.runner_no_proxy = Some(".example.org,10.0.0.0/8".into());
        settings.runner_ca = Some("PEM".into());
        let told = told(&settings);
        let value = |name: &str| told.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str());
        assert_eq!((value("http_proxy"), value(pod_env::ENV_CA)), (Some(proxy), Some("PEM")));
        let direct: Vec<_> = value("no_proxy").unwrap().split(',').collect();
        for name in
            ["localhost", "127.0.0.1", ".svc", ".cluster.local", "$(KUBERNETES_SERVICE_HOST)", ".example.org", "10.0.0.0/8"]
        {
            assert!(direct.contains(&name), "{name}: {direct:?}");
        }
    }
}
