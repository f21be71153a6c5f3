//! Requests that the API server forwards. Its client certificate authenticates them, and only then the headers with the user's name are
//! trusted. The API server has already authorized the user (RBAC of the group `read.pawl.run`).

use axum::http::HeaderMap;

use crate::cluster::FrontProxyConfig;

/// The user on whose behalf the API server forwards; `None` when the certificate's common name is not allowed or no user is given.
/// `common_name` must come from a certificate verified against [`FrontProxyConfig::authority`].
pub fn user(
    config: &FrontProxyConfig,
    common_name: Option<&str>,
    headers: &HeaderMap,
) -> Option<String> {
    let common_name = common_name?;
    if !config.names.is_empty() && !config.names.iter().any(|name| name == common_name) {
        return None;
    }
    let names = if config.user_headers.is_empty() {
        &["X-Remote-User".to_owned()]
    } else {
        config.user_headers.as_slice()
    };
    let user = names
        .iter()
        .find_map(|name| headers.get(name.as_str()))?
        .to_str()
        .ok()?
        .trim();
    (!user.is_empty() && user.len() <= 512).then(|| user.to_owned())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn front_proxy_needs_an_allowed_common_name() {
        let config = FrontProxyConfig {
            names: vec!["front-proxy-client".into()],
            ..FrontProxyConfig::default()
        };
        let mut headers = HeaderMap::new();
        assert_eq!(
            user(&config, Some("front-proxy-client"), &headers),
            None,
            "nobody is named"
        );
        headers.insert("x-remote-user", HeaderValue::from_static("ada"));
        assert_eq!(
            user(&config, Some("front-proxy-client"), &headers).as_deref(),
            Some("ada")
        );
        assert_eq!(user(&config, Some("kubelet"), &headers), None);
        assert_eq!(user(&config, None, &headers), None);
        let any = FrontProxyConfig {
            user_headers: vec!["X-User".into()],
            ..FrontProxyConfig::default()
        };
        assert_eq!(
            user(&any, Some("x"), &headers),
            None,
            "not this cluster's header"
        );
    }
}
