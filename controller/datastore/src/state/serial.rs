//! Finds `serial` and `lineage` at the start of a state and replaces the serial, without parsing the whole. Both are
//! among the first members, also in states that the tool encrypted.

use std::ops::Range;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The value, and the byte range of its digits.
    pub serial: Option<(u64, Range<usize>)>,
    pub lineage: Option<String>,
}

/// Scans the start of a JSON document; stops without an error where it is truncated or not JSON.
pub fn scan(bytes: &[u8]) -> Found {
    let mut found = Found::default();
    let mut at = skip_space(bytes, 0);
    if bytes.get(at) != Some(&b'{') {
        return found;
    }
    at += 1;
    while found.serial.is_none() || found.lineage.is_none() {
        at = skip_space(bytes, at);
        let Some(key) = string(bytes, at) else { break };
        at = skip_space(bytes, key.end);
        if bytes.get(at) != Some(&b':') {
            break;
        }
        let start = skip_space(bytes, at + 1);
        let Some(end) = value_end(bytes, start) else {
            break;
        };
        match &bytes[key] {
            br#""serial""# => {
                let text = std::str::from_utf8(&bytes[start..end]).unwrap_or_default();
                found.serial = text.parse().ok().map(|serial| (serial, start..end));
            }
            br#""lineage""# => {
                let lineage: Option<String> = serde_json::from_slice(&bytes[start..end]).ok();
                found.lineage = lineage.filter(|lineage| lineage.len() <= 128);
            }
            _ => {}
        }
        at = skip_space(bytes, end);
        if bytes.get(at) != Some(&b',') {
            break;
        }
        at += 1;
    }
    found
}

fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while bytes
        .get(at)
        .is_some_and(|b| matches!(b, b' ' | b'\t' | b'\r' | b'\n'))
    {
        at += 1;
    }
    at
}

/// The string that starts here, including quotes.
fn string(bytes: &[u8], start: usize) -> Option<Range<usize>> {
    if bytes.get(start) != Some(&b'"') {
        return None;
    }
    let mut at = start + 1;
    loop {
        match bytes.get(at)? {
            b'\\' => at += 2,
            b'"' => return Some(start..at + 1),
            _ => at += 1,
        }
    }
}

/// The end of the value that starts here; `None` when it is truncated.
fn value_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    let mut depth = 0_usize;
    loop {
        match bytes.get(at)? {
            b'"' => {
                at = string(bytes, at)?.end;
                if depth == 0 {
                    return Some(at);
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' | b',' | b' ' | b'\t' | b'\r' | b'\n' if depth == 0 => return Some(at),
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_and_lineage_are_found_only_at_the_top() {
        let text = br#"{ "version": 4, "x": {"serial": 9, "y": ["}", "\"serial\": 1"]},
            "serial": 12, "lineage": "3f8a", "resources": [{"serial": 1"#;
        let found = scan(text);
        let (serial, range) = found.serial.unwrap();
        assert_eq!(
            (serial, &text[range], found.lineage.as_deref()),
            (12, b"12".as_slice(), Some("3f8a"))
        );
    }

    #[test]
    fn other_documents_have_no_serial() {
        for text in [
            "",
            "{",
            "[]",
            "null",
            r#"{"serial": "#,
            r#"{"serial": 1"#,
            r#"{"serial": -1}"#,
            r#"{"serial": "1"}"#,
            "{\"a",
            r#"{"a" 1}"#,
        ] {
            assert_eq!(scan(text.as_bytes()).serial, None, "{text}");
        }
        assert_eq!(scan(br#"{"serial":0}"#).serial, Some((0, 10..11)));
    }

    #[test]
    fn random_state_never_panics() {
        use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
        let mut rng = StdRng::seed_from_u64(3);
        for _ in 0..5000 {
            let text: Vec<u8> = (0..rng.random_range(0..60))
                .map(|_| br#"{}[]":,\ serial1"#[rng.random_range(0..16)])
                .collect();
            let _ = scan(&text);
        }
    }
}
