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

/// The subject's last common name in a certificate (DER) that is known to be well formed; none when it has none, or is anything
/// else.
pub fn common_name(certificate: &[u8]) -> Option<String> {
    const SEQUENCE: u8 = 0x30;
    const SET: u8 = 0x31;
    const OID: u8 = 0x06;
    const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    let (tag, certificate, _) = element(certificate)?;
    let (body_tag, mut body, _) = element(certificate)?;
    if tag != SEQUENCE || body_tag != SEQUENCE {
        return None;
    }
    // version (explicit tag 0, optional), serial number, algorithm, issuer, validity, subject.
    if element(body)?.0 == 0xa0 {
        body = element(body)?.2;
    }
    for _ in 0..4 {
        body = element(body)?.2;
    }
    let (tag, mut subject, _) = element(body)?;
    let mut found = None;
    while tag == SEQUENCE && !subject.is_empty() {
        let (set, mut attributes, rest) = element(subject)?;
        subject = rest;
        while set == SET && !attributes.is_empty() {
            let (_, attribute, more) = element(attributes)?;
            attributes = more;
            let (kind, oid, value) = element(attribute)?;
            let (_, text, _) = element(value)?;
            if kind == OID && oid == COMMON_NAME {
                found = std::str::from_utf8(text).ok().map(str::to_owned);
            }
        }
    }
    found
}

/// Tag, content and what follows.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let count = usize::from(first & 0x7f);
        let (digits, rest) = rest.split_at_checked(count).filter(|_| (1..=4).contains(&count))?;
        (digits.iter().fold(0_usize, |all, digit| (all << 8) | usize::from(*digit)), rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
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

    #[test]
    fn anything_else_has_no_name() {
        use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
        let mut rng = StdRng::seed_from_u64(7);
        for _ in 0..3000 {
            let bytes: Vec<u8> = (0..rng.random_range(0..200))
                .map(|_| {
                    if rng.random_bool(0.5) {
                        [0x30, 0x31, 0x06, 0x55, 0x04, 0x03, 0x81, 0x84][rng.random_range(0..8)]
                    } else {
                        rng.random()
                    }
                })
                .collect();
            let _ = common_name(&bytes);
        }
        assert_eq!(common_name(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
