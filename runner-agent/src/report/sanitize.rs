//! Makes foreign text harmless to display: nothing in it moves the cursor, or hides or reorders other text. Control characters
//! remain visible in escaped form.

use std::{borrow::Cow, fmt::Write as _};

use crds::text::reorders;

/// Escapes terminal control sequences and bidirectional controls: `^[` for an escape, `<U+202E>` for a change of direction. Removes
/// sequences that only set colours, or retains them with `colour`. Retains tabs and line ends.
pub fn sanitize(text: &str, colour: bool) -> Cow<'_, str> {
    let Some(first) = text.find(steers) else {
        return Cow::Borrowed(text);
    };
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(&text[..first]);
    let mut rest = &text[first..];
    while let Some(c) = rest.chars().next() {
        let sets = colours(rest);
        if sets > 0 {
            out.push_str(if colour { &rest[..sets] } else { "" });
            rest = &rest[sets..];
            continue;
        }
        rest = &rest[c.len_utf8()..];
        match c {
            // Part of a line end.
            '\r' if rest.is_empty() || rest.starts_with('\n') => {}
            c if !steers(c) => out.push(c),
            '\0'..='\x7f' => {
                out.extend(['^', char::from(u8::try_from(c).unwrap_or_default() ^ 0x40)]);
            }
            c => drop(write!(out, "<U+{:04X}>", u32::from(c))),
        }
    }
    Cow::Owned(out)
}

/// Whether a character does more than occupy its place.
fn steers(c: char) -> bool {
    c.is_control() && !matches!(c, '\t' | '\n') || reorders(c)
}

/// Length in bytes of a colour sequence at the start; 0 if there is none.
fn colours(text: &str) -> usize {
    let Some(parameters) = text.strip_prefix("\x1b[") else {
        return 0;
    };
    match parameters.find(|c: char| !c.is_ascii_digit() && c != ';') {
        Some(end) if parameters[end..].starts_with('m') => "\x1b[".len() + end + 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_removed_and_controls_escaped() {
        assert_eq!(
            sanitize("\u{1b}[31mred\u{1b}[0m \u{1b}[2J \u{202e}txt.exe", false),
            "red ^[[2J <U+202E>txt.exe"
        );
    }

    #[test]
    fn only_controls_are_escaped() {
        let harmless = "tab\tline\nümlaut 日本 👩‍💻 [0m ^[ <U+202E>";
        assert!(matches!(sanitize(harmless, false), Cow::Borrowed(_)));
        for c in (0..=0x2100).filter_map(char::from_u32) {
            let text = format!("a{c}b");
            let seen = sanitize(&text, false);
            let steering = (c.is_control() && c != '\t' && c != '\n')
                || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            assert_eq!(seen == text, !steering, "{c:?} became {seen}");
            assert!(seen.starts_with('a') && seen.ends_with('b'), "{seen}");
            assert!(!steering || !seen.contains(c), "{c:?} is still there");
        }
    }

    #[test]
    fn colours_are_optional_and_other_sequences_escaped() {
        let rows = [
            (
                "\x1b[1;31mred\x1b[0m\x1b[m",
                "red",
                "\x1b[1;31mred\x1b[0m\x1b[m",
            ),
            ("\x1b[2K\x1b[1A", "^[[2K^[[1A", "^[[2K^[[1A"),
            ("\x1b]0;title\x07", "^[]0;title^G", "^[]0;title^G"),
            (
                "\x1b]8;;http://x\x1b\\link",
                "^[]8;;http://x^[\\link",
                "^[]8;;http://x^[\\link",
            ),
            ("\u{9b}31m", "<U+009B>31m", "<U+009B>31m"),
            ("good\rbad", "good^Mbad", "good^Mbad"),
            ("one\r\ntwo\r", "one\ntwo", "one\ntwo"),
            ("\x1b[31", "^[[31", "^[[31"),
            ("\0\x7f\x08", "^@^?^H", "^@^?^H"),
        ];
        for (text, without, with) in rows {
            assert_eq!(
                (&*sanitize(text, false), &*sanitize(text, true)),
                (without, with),
                "{text:?}"
            );
        }
    }
}
