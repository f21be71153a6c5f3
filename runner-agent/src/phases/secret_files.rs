//! Registers the single values of a secret file with the redactor, since a tool prints these and not the whole text.

use hcl_edit::{
    Decorated, Formatted, Number, Spanned,
    expr::{ObjectKey, ObjectValue},
    structure::Body,
    visit::Visit,
};
use serde_json::Value;

use crate::report::redact::Redactor;

/// Minimum length in bytes of a masked word in a file of unknown form. Shorter words are often not secret, and masking them would make the
/// log unreadable.
const WORD: usize = 8;

/// In files above 32 KiB only whole lines are masked. Each word has so many encoded forms that the agent would run out of memory.
const WORDS: usize = 32 << 10;

/// Masks a file of unknown form: its lines, and in them the text after `=` or `:` and between quotes. Binary files are not printed.
pub(super) fn file(bytes: &[u8], redactor: &Redactor) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    redactor.add(text);
    if text.len() > WORDS {
        return;
    }
    for word in text
        .lines()
        .flat_map(words)
        .filter(|word| word.len() >= WORD)
    {
        redactor.add(word);
    }
}

/// The parts of a line that may be values.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let behind = [" = ", "=", ": "]
        .iter()
        .filter_map(move |between| line.split_once(between))
        .map(|(_, value)| bare(value));
    behind.chain(line.split('"').skip(1).step_by(2))
}

fn bare(word: &str) -> &str {
    word.trim().trim_end_matches(',').trim_matches(['"', '\''])
}

/// Masks each value of a variable file.
pub(super) fn values(text: &str, parsed: &Variables, redactor: &Redactor) {
    match parsed {
        Variables::Json(value) => json(value, redactor),
        Variables::Hcl(body) => Masking(redactor).visit_body(body),
        Variables::Unknown => {
            redactor.add(text);
            text.lines()
                .flat_map(words)
                .for_each(|word| redactor.add(word));
        }
    }
}

/// The parsed content of a variable file.
#[derive(Debug)]
pub(super) enum Variables {
    Json(Value),
    Hcl(Box<Body>),
    /// Not parseable here; the tool decides whether it is valid.
    Unknown,
}

impl Variables {
    /// Parses a file, as JSON if its name ends so, like the tools.
    ///
    /// # Errors
    /// Invalid JSON, or JSON that is no object.
    pub(super) fn read(name: &str, text: &str) -> Result<Self, String> {
        // The tools compare this suffix case-sensitively.
        if std::path::Path::new(name)
            .extension()
            .is_some_and(|ending| ending == "json")
        {
            let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
            return if value.is_object() {
                Ok(Self::Json(value))
            } else {
                Err("it is no JSON object".to_owned())
            };
        }
        Ok(tool_versions::request::hcl::parse(text)
            .map_or(Self::Unknown, |body| Self::Hcl(Box::new(body))))
    }

    /// The names of its variables; `None` if it was not parsed.
    pub(super) fn names(&self) -> Option<Vec<String>> {
        match self {
            Self::Json(value) => Some(value.as_object()?.keys().cloned().collect()),
            Self::Hcl(body) => Some(
                body.attributes()
                    .map(|attribute| attribute.key.as_str().to_owned())
                    .collect(),
            ),
            Self::Unknown => None,
        }
    }
}

/// Masks each text and number of a value.
pub(super) fn json(value: &Value, redactor: &Redactor) {
    match value {
        Value::String(text) => redactor.add(text),
        Value::Number(number) => redactor.add(&number.to_string()),
        Value::Array(list) => list.iter().for_each(|value| json(value, redactor)),
        Value::Object(named) => named.values().for_each(|value| json(value, redactor)),
        Value::Null | Value::Bool(_) => {}
    }
}

/// Masks strings and numbers, not names.
struct Masking<'a>(&'a Redactor);

impl Visit for Masking<'_> {
    fn visit_string(&mut self, text: &Decorated<String>) {
        self.0.add(text.as_str());
    }

    fn visit_number(&mut self, number: &Formatted<Number>) {
        self.0.add(&number.value().to_string());
    }

    fn visit_literal(&mut self, text: &Spanned<String>) {
        self.0.add(text.as_str());
    }

    fn visit_object_item(&mut self, _key: &ObjectKey, value: &ObjectValue) {
        self.visit_expr(value.expr());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_of_a_variable_file_is_masked_but_no_name() {
        let hcl = "password = \"hunter22\"\nport = 54321\nkeys = { first = \"one-key\", \"second\" = [\"two-key\"] }\ncert = <<EOT\n  line-a\n  line-b\nEOT\n";
        let json = r#"{"password": "hunter22", "port": 54321, "keys": {"first": "one-key", "second": ["two-key"]}, "cert": "line-a\nline-b"}"#;
        for (name, text) in [("a.tfvars", hcl), ("a.tfvars.json", json)] {
            let redactor = Redactor::default();
            let parsed = Variables::read(name, text).unwrap();
            assert_eq!(parsed.names().unwrap().len(), 4, "{name}");
            values(text, &parsed, &redactor);
            for secret in [
                "hunter22", "54321", "one-key", "two-key", "line-a", "line-b",
            ] {
                assert_eq!(
                    redactor.redact(&format!("<{secret}>")),
                    "<(sensitive value)>",
                    "{name}"
                );
            }
            assert_eq!(
                redactor.redact("password of second"),
                "password of second",
                "{name}"
            );
        }
    }

    #[test]
    fn unparsed_file_is_masked_by_word_and_json_must_be_valid() {
        let text = "a = \"hunter22\"\nb = [";
        let parsed = Variables::read("a.tfvars", text).unwrap();
        assert!(parsed.names().is_none());
        let redactor = Redactor::default();
        values(text, &parsed, &redactor);
        assert_eq!(redactor.redact("<hunter22>"), "<(sensitive value)>");
        assert!(
            Variables::read("a.tfvars.json", "a = 1")
                .unwrap_err()
                .contains("line 1")
        );
        assert!(
            Variables::read("a.json", "[]")
                .unwrap_err()
                .contains("no JSON object")
        );
    }

    #[test]
    fn unknown_file_is_masked_by_line_and_by_word() {
        let redactor = Redactor::default();
        file(
            b"[default]\naws_access_key_id = AKIAEXAMPLE\naws_secret_access_key=abc/def+ghi\n\"token\": \"t0k3n-of-mine\",\n",
            &redactor,
        );
        for secret in ["AKIAEXAMPLE", "abc/def+ghi", "t0k3n-of-mine"] {
            assert_eq!(
                redactor.redact(&format!("<{secret}>")),
                "<(sensitive value)>",
                "{secret}"
            );
        }
    }
}
