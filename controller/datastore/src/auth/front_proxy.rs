//! Requests that the API server passes on. It proves itself by its client certificate; then, and only then, its headers say for
//! whom it asks. What that person may do the API server has decided before (RBAC of the group `read.pawl.run`).

use axum::http::HeaderMap;

use crate::cluster::FrontProxyConfig;

/// The person that the API server asks for; none when the certificate's common name is not its own, or it names nobody.
/// `common_name` is of a certificate that was verified against [`FrontProxyConfig::authority`].
pub fn user(config: &FrontProxyConfig, common_name: Option<&str>, headers: &HeaderMap) -> Option<String> {
    let common_name = common_name?;
    if !config.names.is_empty() && !config.names.iter().any(|name| name == common_name) {
        return None;
    }
    let names = if config.user_headers.is_empty() { &["X-Remote-User".to_owned()] } else { config.user_headers.as_slice() };
    let user = names.iter().find_map(|name| headers.get(name.as_str()))?.to_str().ok()?.trim();
    (!user.is_empty() && user.len() <= 512).then(|| user.to_owned())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_a_certificate_with_its_name_speaks_for_people() {
        let config = FrontProxyConfig { names: vec!["front-proxy-client".into()], ..FrontProxyConfig::default() };
        let mut headers = HeaderMap::new();
        assert_eq!(user(&config, Some("front-proxy-client"), &headers), None, "nobody is named");
        headers.insert("x-remote-user", HeaderValue::from_static("ada"));
        assert_eq!(user(&config, Some("front-proxy-client"), &headers).as_deref(), Some("ada"));
        assert_eq!(user(&config, Some("kubelet"), &headers), None);
        assert_eq!(user(&config, None, &headers), None);
        let any = FrontProxyConfig { user_headers: vec!["X-User".into()], ..FrontProxyConfig::default() };
        assert_eq!(user(&any, Some("x"), &headers), None, "not this cluster's header");
    }
}
