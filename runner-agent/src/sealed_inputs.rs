//! Keyed digests of a plan's inputs from Secrets and ConfigMaps. They detect changes without revealing the values.
//!
//! Stored in the bundle, which is encrypted, with a random key per bundle. So no reader of a digest can test guesses of a value against it.

use std::collections::BTreeMap;

use crds::datastore::hex_digest;
use ring::{hmac, rand::SystemRandom};
use serde::{Deserialize, Serialize};

/// Keyed digests of values, by their use, e.g. `variable db_password`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedInputs {
    /// The key in hexadecimal digits.
    key: String,
    digests: BTreeMap<String, String>,
}

/// The variables that Terragrunt gave a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenVariables {
    /// Digests of their values.
    pub sealed: SealedInputs,
    /// Whether outputs of other units were replaced by mocks.
    #[serde(default)]
    pub mocked: bool,
    /// Mocks that Terragrunt took without a word, with the remedy of each.
    #[serde(default)]
    pub silent: Vec<String>,
}

impl SealedInputs {
    /// Computes digests of values with a random key.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn of(values: &BTreeMap<String, String>) -> Result<Self, ring::error::Unspecified> {
        let random: [u8; 32] = ring::rand::generate(&SystemRandom::new())?.expose();
        let key = hex_digest(&random);
        let digests = values
            .iter()
            .map(|(name, value)| (name.clone(), tag(&key, value)))
            .collect();
        Ok(Self { key, digests })
    }

    /// Names of the values that have changed or are gone. Empty for a plan without inputs.
    pub fn changed(&self, values: &BTreeMap<String, String>) -> Vec<String> {
        let same = |name: &String, digest: &String| {
            values
                .get(name)
                .is_some_and(|value| tag(&self.key, value) == *digest)
        };
        self.digests
            .iter()
            .filter(|(name, digest)| !same(name, digest))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Names of values that the plan did not have.
    pub fn added(&self, values: &BTreeMap<String, String>) -> Vec<String> {
        let is_new = |name: &&String| !self.digests.contains_key(*name);
        values.keys().filter(is_new).cloned().collect()
    }
}

fn tag(key: &str, value: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
    hex_digest(hmac::sign(&key, value.as_bytes()).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn changed_values_are_named_but_not_shown() {
        let before = values(&[("variable a", "hunter22"), ("env B", "x")]);
        let sealed = SealedInputs::of(&before).unwrap();
        assert!(sealed.changed(&before).is_empty());
        assert_eq!(
            sealed.changed(&values(&[("variable a", "hunter23"), ("env B", "x")])),
            ["variable a"]
        );
        assert_eq!(
            sealed.changed(&values(&[("variable a", "hunter22")])),
            ["env B"],
            "one that is gone"
        );
        let more = values(&[("variable a", "hunter22"), ("env B", "x"), ("env C", "")]);
        assert_eq!(sealed.added(&more), ["env C"]);
        let text = serde_json::to_string(&sealed).unwrap();
        assert!(!text.contains("hunter22"));
        assert_ne!(
            SealedInputs::of(&before).unwrap(),
            sealed,
            "each bundle has a key of its own"
        );
        assert!(
            SealedInputs::default().changed(&before).is_empty(),
            "a bundle without inputs"
        );
    }
}
