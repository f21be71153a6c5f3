//! Parses untrusted HCL within bounds.

use std::thread;

use hcl_edit::{parser, structure::Body};

/// The stack of the parsing thread: 16 MiB. The parser nests 64 levels, and without optimization some constructs exceed the
/// default 2 MiB.
const STACK: usize = 16 << 20;

/// The largest text, in bytes: 256 KiB. The parser needs up to 210 bytes of memory for each byte, so 54 MiB.
pub const LARGEST: usize = 256 << 10;

/// Parses the body of a file.
///
/// # Errors
/// The line and the syntax error; or that the text is too large.
pub fn parse(text: &str) -> Result<Body, String> {
    // The tools accept a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.len() > LARGEST {
        return Err(format!("it is larger than {} KiB", LARGEST >> 10));
    }
    let read = || {
        parser::parse_body(text)
            .map_err(|error| format!("line {}: {}", error.location().line(), error.message()))
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .stack_size(STACK)
            .spawn_scoped(scope, read);
        let thread = thread.map_err(|error| format!("no thread can be started for it: {error}"))?;
        thread
            .join()
            .unwrap_or_else(|_| Err("its parser failed".to_owned()))
    })
}

/// Parses the top-level blocks of these types. Where the parser refuses another block of the file, it does so for its own flaws, or the
/// tool reports the error: the block is left out, and lines and offsets stay.
///
/// # Errors
/// As [`parse`], if one of these blocks cannot be parsed.
pub fn blocks(text: &str, types: &[&str]) -> Result<Body, String> {
    parse(text).or_else(|why| match only(text, types) {
        Some(rest) if text.len() <= LARGEST => parse(&rest),
        _ => Err(why),
    })
}

/// Whether a line is a comment as a whole, for texts that the parser refuses.
pub fn is_comment(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with('#') || line.starts_with("//")
}

/// Blanks out all other top-level blocks. `None` if braces or quotes do not match.
fn only(text: &str, types: &[&str]) -> Option<String> {
    let bytes = text.as_bytes();
    let mut rest = bytes.to_vec();
    // The enclosing braces and quotes.
    let mut open: Vec<u8> = Vec::new();
    let (mut at, mut begun) = (0, None);
    while let Some(byte) = bytes.get(at) {
        let left = &bytes[at..];
        if open.last() == Some(&b'"') {
            at += match left {
                [b'$', b'$', b'{', ..] | [b'%', b'%', b'{', ..] => 3,
                [b'$' | b'%', b'{', ..] => {
                    open.push(b'{');
                    2
                }
                [b'\\', _, ..] => 2,
                _ => {
                    if *byte == b'"' {
                        open.pop();
                    }
                    1
                }
            };
            continue;
        }
        if open.is_empty() && byte.is_ascii_alphabetic() {
            begun = begun.or(Some(at));
        }
        at += match left {
            [b'#', ..] | [b'/', b'/', ..] => line(left),
            [b'/', b'*', ..] => text.get(at + 2..)?.find("*/")? + 4,
            [b'<', b'<', ..] => heredoc(left)?,
            [b'"' | b'{', ..] => {
                open.push(*byte);
                1
            }
            [b'}', ..] => {
                open.pop()?;
                let whole = begun.filter(|_| open.is_empty());
                if let Some(from) = whole {
                    begun = None;
                    let word = text
                        .get(from..at)?
                        .split(|c: char| !c.is_alphanumeric() && c != '_')
                        .next()?;
                    if !types.contains(&word) {
                        let blank = rest[from..=at].iter_mut().filter(|byte| **byte != b'\n');
                        blank.for_each(|byte| *byte = b' ');
                    }
                }
                1
            }
            [b'\n', ..] if open.is_empty() => {
                begun = None;
                1
            }
            _ => 1,
        };
    }
    open.is_empty()
        .then(|| String::from_utf8(rest).ok())
        .flatten()
}

/// Length of a line without its end.
fn line(text: &[u8]) -> usize {
    text.iter()
        .position(|byte| *byte == b'\n')
        .unwrap_or(text.len())
}

/// Length of a here document, which ends with a line that has only its marker.
fn heredoc(text: &[u8]) -> Option<usize> {
    let first = line(text);
    let marker = text[2..first].trim_ascii();
    let marker = marker.strip_prefix(b"-").unwrap_or(marker);
    let mut at = first;
    while at < text.len() {
        let length = line(&text[at + 1..]);
        at += 1 + length;
        if text[at - length..at].trim_ascii() == marker {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts that the tools take and this parser does not.
    const REFUSED: [&str; 3] = [
        "locals {\n  t = { N = 1, N = 2 }\n}\n",
        "locals {\n  m = { for k, v in { a = true } : k => v\n    ? \"yes\"\n    : \"no\" }\n}\n",
        "locals {\n  t = \"%{ if true &&\n true }x%{ endif } $${ {\"\n}\n",
    ];

    #[test]
    fn blocks_beside_a_refused_one_are_read() {
        for refused in REFUSED {
            assert!(parse(refused).is_err(), "{refused}");
            for around in [
                "# \"{\n/*/ { */ variable \"a\" {\n  description = <<-EOT\n    } \"\n  EOT\n}\n",
                "resource \"x\" \"y\" {\n  t = \"${f({ a = \"}\" })} \\\" é\"\n} // {\nvariable \"a\" {}\n",
            ] {
                for text in [format!("{refused}{around}"), format!("{around}{refused}")] {
                    let body = blocks(&text, &["variable"]).unwrap();
                    let found: Vec<_> = body.blocks().map(|block| block.ident.as_str()).collect();
                    assert_eq!(found, ["variable"], "{text}");
                }
            }
            assert!(
                blocks(refused, &["locals"])
                    .unwrap_err()
                    .starts_with("line ")
            );
        }
    }

    #[test]
    fn unmatched_braces_are_refused() {
        for text in ["variable \"a\" {", "}", "a = \"", "x {\n a = <<E\n}", "/* "] {
            assert!(blocks(text, &["variable"]).is_err(), "{text}");
        }
    }
}
