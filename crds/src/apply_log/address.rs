//! Parses resource addresses and writes string literals in the tools' language. Text from a journal becomes code of a
//! recovery run only after it has been validated as an address.

use std::fmt::Write as _;

/// Whether a text is exactly the address of one managed object, such as `module.a["x"].aws_vpc.main[0]`.
pub fn is_address(text: &str) -> bool {
    kind(text).is_some()
}

/// The resource type in the address of a managed object.
pub fn kind(text: &str) -> Option<&str> {
    let mut rest = text;
    loop {
        let (first, after) = word(rest)?;
        let after = after.strip_prefix('.')?;
        let (_, after) = word(after)?;
        let after = key(after)?;
        if first != "module" {
            return (first != "data" && after.is_empty()).then_some(first);
        }
        rest = after.strip_prefix('.')?;
    }
}

/// Splits off a leading identifier.
fn word(text: &str) -> Option<(&str, &str)> {
    let end = text
        .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-')))
        .unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        .then_some((word, rest))
}

/// Skips a leading index, if any.
fn key(text: &str) -> Option<&str> {
    let Some(inner) = text.strip_prefix('[') else {
        return Some(text);
    };
    if let Some(quoted) = inner.strip_prefix('"') {
        let mut escaped = false;
        for (at, c) in quoted.char_indices() {
            match c {
                _ if c.is_control() => return None,
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => {
                    let template = quoted[..at].replace("$${", "").replace("%%{", "");
                    let literal = !template.contains("${") && !template.contains("%{");
                    return quoted[at + 1..].strip_prefix(']').filter(|_| literal);
                }
                _ => {}
            }
        }
        return None;
    }
    let (digits, rest) = inner.split_once(']')?;
    (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())).then_some(rest)
}

/// A text as a quoted string literal of the tools' language, with templates escaped.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '$' | '%' if chars.peek() == Some(&'{') => {
                out.push(c);
                out.push(c);
            }
            c if c.is_control() => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_has_no_template() {
        assert_eq!(quoted("a\"${b}\n"), r#""a\"$${b}\n""#);
    }

    #[test]
    fn only_addresses_are_accepted() {
        for (text, expected) in [
            ("terraform_data.a", "terraform_data"),
            ("aws_vpc.main[12]", "aws_vpc"),
            ("module.a.module.b-c[\"x\"].t_y.z[\"a \\\"q\\\" ]\"]", "t_y"),
            ("t.a[\"$${x}\"]", "t"),
            ("t.a[\"ä/ö\"]", "t"),
        ] {
            assert_eq!(kind(text), Some(expected), "{text}");
        }
        let one_word = "|a|a.|.a|data.t.a|module.a|module.a.data.t.b|a.b[x]|a.b[-1]|a.b[\"x]|a.b[\"x\"|a.b[\"${x}\"]|a.b[0].c|1a.b";
        let others = ["a.b c", "a.b\n}", "a.b[\"x\ny\"]", "a.b # c"];
        for text in one_word.split('|').chain(others) {
            assert_eq!(kind(text), None, "{text:?}");
        }
    }
}
