//! Renders output values as the tools do (`internal/repl/format.go` of both).

use std::fmt::Write as _;

use serde_json::Value;

/// Renders a value of a type, both in the tool's JSON encoding.
pub(super) fn written(value: &Value, kind: &Value) -> String {
    let mut out = String::new();
    write(&mut out, value, kind, 0);
    out
}

fn write(out: &mut String, value: &Value, kind: &Value, indent: usize) {
    let word = kind
        .as_str()
        .or_else(|| kind.get(0).and_then(Value::as_str))
        .unwrap_or("dynamic");
    match value {
        Value::Null => out.push_str(&null(word, kind)),
        Value::Bool(is) => out.push_str(if *is { "true" } else { "false" }),
        // Without an exponent, whatever the size.
        Value::Number(number) if !number.is_f64() => {
            let _ = write!(out, "{number}");
        }
        Value::Number(number) => {
            let _ = write!(out, "{}", number.as_f64().unwrap_or_default());
        }
        Value::String(text) if text.contains('\n') => heredoc(out, text, indent),
        Value::String(text) => quoted(out, text),
        Value::Array(values) => {
            let call = matches!(word, "list" | "set").then_some(word);
            called(out, call, |out| {
                let inner = |i: usize| {
                    if word == "tuple" {
                        kind.get(1)?.get(i)
                    } else {
                        kind.get(1)
                    }
                };
                around(
                    out,
                    '[',
                    ']',
                    indent,
                    values.iter().enumerate(),
                    |out, (i, value), indent| {
                        write(out, value, inner(i).unwrap_or(&Value::Null), indent);
                        out.push(',');
                    },
                );
            });
        }
        Value::Object(values) => {
            let call = (word == "map").then_some(word);
            called(out, call, |out| {
                let inner = |name: &str| {
                    if word == "object" {
                        kind.get(1)?.get(name)
                    } else {
                        kind.get(1)
                    }
                };
                around(
                    out,
                    '{',
                    '}',
                    indent,
                    values.iter(),
                    |out, (name, value), indent| {
                        quoted(out, name);
                        out.push_str(" = ");
                        write(out, value, inner(name).unwrap_or(&Value::Null), indent);
                    },
                );
            });
        }
    }
}

/// Wraps in `tolist(…)` if a literal would have another type.
fn called(out: &mut String, kind: Option<&str>, inner: impl FnOnce(&mut String)) {
    if let Some(kind) = kind {
        let _ = write!(out, "to{kind}(");
    }
    inner(out);
    if kind.is_some() {
        out.push(')');
    }
}

/// Writes each element on its own line, indented by two more columns.
fn around<T>(
    out: &mut String,
    open: char,
    close: char,
    indent: usize,
    elements: impl ExactSizeIterator<Item = T>,
    write: impl Fn(&mut String, T, usize),
) {
    let is_empty = elements.len() == 0;
    out.push(open);
    for element in elements {
        line(out, indent + 2);
        write(out, element, indent + 2);
    }
    if !is_empty {
        line(out, indent);
    }
    out.push(close);
}

fn line(out: &mut String, indent: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n(' ', indent));
}

fn heredoc(out: &mut String, text: &str, indent: usize) {
    let mut end = "EOT".to_owned();
    while text.split('\n').any(|line| line.trim() == end) {
        end.push('_');
    }
    out.push_str(if indent > 0 { "<<-" } else { "<<" });
    out.push_str(&end);
    for part in text.split('\n').chain([end.as_str()]) {
        line(out, indent);
        out.push_str(part);
    }
}

/// Quotes like Go.
fn quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\x07' => out.push_str("\\a"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x0b' => out.push_str("\\v"),
            c if c.is_ascii_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn null(word: &str, kind: &Value) -> String {
    match word {
        "dynamic" => "null".to_owned(),
        "string" | "number" | "bool" => format!("to{word}(null)"),
        "list" | "set" | "map" => format!(
            "to{word}(null) /* of {} */",
            friendly(kind.get(1).unwrap_or(&Value::Null))
        ),
        other => format!("null /* {other} */"),
    }
}

/// A type in words: `list of string`.
fn friendly(kind: &Value) -> String {
    match (kind.as_str(), kind.get(0).and_then(Value::as_str)) {
        (None, Some(word @ ("list" | "set" | "map"))) => {
            format!(
                "{word} of {}",
                friendly(kind.get(1).unwrap_or(&Value::Null))
            )
        }
        (Some(word), _) | (None, Some(word)) => word.to_owned(),
        (None, None) => "dynamic".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Expected values are those that OpenTofu 1.10.6 and Terraform 1.11.4 print.
    #[test]
    fn values_are_rendered_as_the_tools_do() {
        let rows = [
            (
                json!("a \"b\" ${x} \t é"),
                json!("string"),
                "\"a \\\"b\\\" ${x} \\t é\"",
            ),
            (json!("a\nb\"q"), json!("string"), "<<EOT\na\nb\"q\nEOT"),
            (
                json!("a\n EOT\n"),
                json!("string"),
                "<<EOT_\na\n EOT\n\nEOT_",
            ),
            (
                json!(12_345_678_901_234_567_890_u64),
                json!("number"),
                "12345678901234567890",
            ),
            (json!(1.5), json!("number"), "1.5"),
            (
                json!(1e30),
                json!("number"),
                "1000000000000000000000000000000",
            ),
            (json!(true), json!("bool"), "true"),
            (json!([]), json!(["tuple", []]), "[]"),
            (json!({}), json!(["object", {}]), "{}"),
            (
                json!(["a", "b"]),
                json!(["list", "string"]),
                "tolist([\n  \"a\",\n  \"b\",\n])",
            ),
            (
                json!(["x"]),
                json!(["set", "string"]),
                "toset([\n  \"x\",\n])",
            ),
            (
                json!({"k": null}),
                json!(["map", "string"]),
                "tomap({\n  \"k\" = tostring(null)\n})",
            ),
            (
                json!({"a b": ["x\ny", [null]], "n": 3}),
                json!(["object", {"a b": ["tuple", ["string", ["tuple", ["dynamic"]]]], "n": "number"}]),
                "{\n  \"a b\" = [\n    <<-EOT\n    x\n    y\n    EOT,\n    [\n      null,\n    ],\n  ]\n  \"n\" = 3\n}",
            ),
            (
                json!({"l": null, "o": null}),
                json!(["object", {"l": ["list", ["map", "string"]], "o": ["object", {}]}]),
                "{\n  \"l\" = tolist(null) /* of map of string */\n  \"o\" = null /* object */\n}",
            ),
        ];
        for (value, kind, wanted) in rows {
            assert_eq!(written(&value, &kind), wanted, "{value} {kind}");
        }
        assert_eq!(
            written(&json!(["a"]), &Value::Null),
            "[\n  \"a\",\n]",
            "a type that is not told"
        );
    }
}
