//! Parses a backend block in a string field.

use serde_json::{Map, Value};

/// Type and arguments of `backend "TYPE" { … }`, if all values are literal strings, numbers or booleans.
pub(super) fn backend(text: &str) -> Option<(String, Map<String, Value>)> {
    let after = text.split_once("backend")?.1.trim_start();
    let (kind, rest) = after.strip_prefix('"')?.split_once('"')?;
    let body = rest.trim_start().strip_prefix('{')?;
    let end = end(body)?;
    let mut config = Map::new();
    for line in body[..end].lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || line.starts_with("//") {
            continue;
        }
        let (name, value) = line.split_once('=')?;
        config.insert(name.trim().to_owned(), scalar(value.trim())?);
    }
    Some((kind.to_owned(), config))
}

/// The end of the block; ignores quoted braces.
fn end(body: &str) -> Option<usize> {
    let (mut depth, mut quoted, mut escaped) = (0_u32, false, false);
    for (at, c) in body.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '{' if !quoted => depth += 1,
            '}' if !quoted && depth == 0 => return Some(at),
            '}' if !quoted => depth -= 1,
            _ => {}
        }
    }
    None
}

fn scalar(text: &str) -> Option<Value> {
    let end = match text.strip_prefix('"') {
        Some(rest) => rest.find('"')? + 2,
        None => text.find(['#', ' ']).unwrap_or(text.len()),
    };
    let (closed, rest) = text.split_at(end);
    // Only a comment may follow a value.
    let rest = rest.trim_start();
    if !(rest.is_empty() || rest.starts_with('#') || rest.starts_with("//")) {
        return None;
    }
    let value: Value = serde_json::from_str(closed).ok()?;
    let plain = value.as_str().is_none_or(|word| !word.contains("${"));
    (plain && !value.is_object() && !value.is_array()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_literal_backend_blocks_are_parsed() {
        let text = "terraform {\n  backend \"s3\" {\n    bucket  = \"a\" # ours\n    # more\n    encrypt = true\n    port = 9\n    key = \"a/{b}\"\n  }\n}\n";
        let (kind, config) = backend(text).unwrap();
        assert_eq!(
            (kind.as_str(), json!(config)),
            (
                "s3",
                json!({"bucket": "a", "encrypt": true, "port": 9, "key": "a/{b}"})
            )
        );
        assert_eq!(
            backend("backend \"local\" {}").unwrap(),
            ("local".into(), Map::new())
        );
        for text in [
            "",
            "backend s3 {}",
            "backend \"s3\" {",
            "backend \"s3\" {\n a = var.b\n}",
            "backend \"s3\" {\n a = \"${x}\"\n}",
            "backend \"s3\" {\n b {\n c = 1\n }\n}",
            "backend \"s3\" { a = \"b\" c = true }",
            "backend \"s3\" { a = true, c = true }",
        ] {
            assert_eq!(backend(text), None, "{text}");
        }
    }
}
