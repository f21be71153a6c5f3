//! Keeps secrets out of the log and the status: every exact value from a Secret is masked, its base64 forms included.
//!
//! Masking works line by line on whole lines, so a value is found wherever chunks of output end. A value of several lines is
//! masked line by line.

use std::{
    borrow::Cow,
    sync::{Arc, PoisonError, RwLock},
};

/// Shorter values are not masked: they would mask half of the log, and are no secrets.
pub const MIN_LENGTH: usize = 4;

/// What stands in place of a secret.
pub const MASK: &str = "(sensitive value)";

/// The values to mask. Cloned freely.
#[derive(Clone, Debug, Default)]
pub struct Redactor {
    values: Arc<RwLock<Vec<String>>>,
}

impl Redactor {
    /// Masks a value from now on.
    pub fn add(&self, value: &str) {
        let mut fresh = Vec::new();
        let mut forms = vec![value.to_owned(), value.trim_end_matches(['\n', '\r']).to_owned()];
        forms.extend(value.lines().map(str::to_owned));
        forms.extend(value.lines().map(|line| line.trim().to_owned()));
        for form in forms.iter().filter(|form| form.len() >= MIN_LENGTH) {
            fresh.push(form.clone());
            // As it stands within JSON.
            if let Ok(json) = serde_json::to_string(form) {
                fresh.push(json.trim_matches('"').to_owned());
            }
        }
        for form in [value, value.trim_end_matches(['\n', '\r'])] {
            if form.len() >= MIN_LENGTH {
                let plain = base64(form.as_bytes());
                fresh.push(plain.replace('+', "-").replace('/', "_"));
                fresh.push(plain.trim_end_matches('=').to_owned());
                fresh.push(plain);
            }
        }
        let mut values = self.values.write().unwrap_or_else(PoisonError::into_inner);
        values.extend(fresh);
        // The longest first: a value within another must not leave the rest of that one to be read.
        values.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        values.dedup();
    }

    /// The text without secrets.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let values = self.values.read().unwrap_or_else(PoisonError::into_inner);
        let mut text = Cow::Borrowed(text);
        for value in values.iter() {
            if text.contains(value.as_str()) {
                text = Cow::Owned(text.replace(value.as_str(), MASK));
            }
        }
        text
    }
}

/// Base64 with padding.
pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let [a, b, c] = [0, 1, 2].map(|i| u32::from(group.get(i).copied().unwrap_or_default()));
        let bits = a << 16 | b << 8 | c;
        for i in 0..4 {
            let digit = usize::try_from(bits >> (18 - 6 * i) & 63).unwrap_or_default();
            text.push(if i <= group.len() { char::from(DIGITS[digit]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
        assert_eq!(base64(&[0xfb, 0xff]), "+/8=");
    }

    #[test]
    fn values_are_masked_in_every_form() {
        let redactor = Redactor::default();
        redactor.add("s3cr3t\"value\n");
        redactor.add("line one\nline two\n");
        redactor.add("abc");
        let coded = base64(b"s3cr3t\"value");
        for text in ["x s3cr3t\"value y", r#"{"a":"s3cr3t\"value"}"#, &coded, "line two", "  line one"] {
            let masked = redactor.redact(text);
            assert!(masked.contains(MASK), "{text} -> {masked}");
        }
        assert_eq!(redactor.redact("abc stays"), "abc stays");
    }

    #[test]
    fn a_value_within_another_does_not_uncover_it() {
        let redactor = Redactor::default();
        redactor.add("pass");
        redactor.add("password-1");
        assert_eq!(redactor.redact("password-1"), MASK);
    }
}
