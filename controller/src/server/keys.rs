//! The secrets that authenticate deliveries.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::ByteString;
use ring::hmac;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

/// Prefix of signing tokens in Standard Webhooks; base64 follows.
const SIGNING_TOKEN: &str = "whsec_";

/// A secret. It has no `==`: a comparison that is not in constant time leaks the secret byte by byte.
pub struct Key {
    text: Vec<u8>,
    /// The key for signatures of Standard Webhooks.
    signing: Vec<u8>,
}

impl Key {
    /// The secret, without the newline that editors append to files; `None` when nothing is left.
    pub fn new(text: &[u8]) -> Option<Self> {
        let text = text.trim_ascii();
        let token = text.strip_prefix(SIGNING_TOKEN.as_bytes());
        let signing =
            token.map_or_else(|| Some(text.to_vec()), |token| STANDARD.decode(token).ok())?;
        (!text.is_empty() && !signing.is_empty()).then(|| Self {
            text: text.to_vec(),
            signing,
        })
    }

    /// Compares with the secret in constant time. Hashing both sides first hides the length as well.
    pub fn is(&self, given: &[u8]) -> bool {
        let (given, own) = (Sha256::digest(given), Sha256::digest(&self.text));
        given.as_slice().ct_eq(own.as_slice()).into()
    }

    /// Starts an HMAC-SHA256 with the secret.
    pub fn sign(&self) -> hmac::Context {
        hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.text))
    }

    /// Starts an HMAC-SHA256 for Standard Webhooks: a signing token contains the key in base64.
    pub fn sign_standard(&self) -> hmac::Context {
        hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.signing))
    }
}

/// The current secret of a repository, and the previous one during a rotation.
pub struct Keys(Vec<Key>);

impl Keys {
    /// Reads the entries `secret` and `previous` of a Secret; `None` without the first, and then no delivery is
    /// accepted.
    pub fn of(entries: &BTreeMap<String, ByteString>) -> Option<Self> {
        let key = |name: &str| entries.get(name).and_then(|entry| Key::new(&entry.0));
        Some(Self(
            std::iter::once(key("secret")?)
                .chain(key("previous"))
                .collect(),
        ))
    }

    /// Whether one of them equals this secret.
    pub fn any_is(&self, given: &[u8]) -> bool {
        self.0
            .iter()
            .fold(false, |found, key| found | key.is(given))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Key> {
        self.0.iter()
    }
}

/// Compares two signatures in constant time. Their length is not secret.
pub(super) fn same_signature(one: &[u8], other: &[u8]) -> bool {
    let same: Choice = one.ct_eq(other);
    same.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If `Key` had an `==`, this would be ambiguous and not compile.
    #[test]
    fn key_has_no_equality() {
        trait Ambiguous<A> {
            fn compiles() {}
        }
        impl<T> Ambiguous<()> for T {}
        struct Comparable;
        impl<T: PartialEq> Ambiguous<Comparable> for T {}
        <Key as Ambiguous<_>>::compiles();
    }

    fn entries(of: &[(&str, &str)]) -> BTreeMap<String, ByteString> {
        of.iter()
            .map(|(name, value)| ((*name).to_owned(), ByteString(value.as_bytes().to_vec())))
            .collect()
    }

    #[test]
    fn missing_or_empty_secret_gives_no_keys() {
        let count = |of: &[(&str, &str)]| Keys::of(&entries(of)).map(|keys| keys.iter().count());
        assert_eq!(count(&[("secret", "a")]), Some(1));
        assert_eq!(count(&[("secret", "a"), ("previous", "b")]), Some(2));
        assert_eq!(count(&[("secret", "a"), ("previous", "")]), Some(1));
        // Anyone can sign with an empty key.
        for nothing in [
            &[][..],
            &[("secret", "")],
            &[("secret", "\n")],
            &[("secret", "whsec_")],
            &[("previous", "b")],
            &[("token", "a")],
        ] {
            assert_eq!(count(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn only_the_whole_secret_matches() {
        let keys = Keys::of(&entries(&[
            ("secret", "new-one\n"),
            ("previous", "old-one"),
        ]))
        .unwrap();
        for (given, is) in [
            ("new-one", true),
            ("old-one", true),
            ("new-on", false),
            ("new-one\n", false),
            ("", false),
        ] {
            assert_eq!(keys.any_is(given.as_bytes()), is, "{given:?}");
        }
    }

    #[test]
    fn signing_token_is_decoded_from_base64() {
        let tag = |context: hmac::Context| context.sign().as_ref().to_vec();
        let key = Key::new(b"whsec_a2V5").unwrap();
        assert_eq!(
            tag(key.sign_standard()),
            tag(Key::new(b"key").unwrap().sign())
        );
        assert_ne!(
            tag(key.sign()),
            tag(key.sign_standard()),
            "other forges sign with the text"
        );
        assert!(Key::new(b"whsec_*").is_none());
    }
}
