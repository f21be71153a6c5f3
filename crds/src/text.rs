//! Single-line texts of bounded length.

/// At most `limit` characters of a text on one line; an ellipsis marks the cut.
pub fn clip(text: &str, limit: usize) -> String {
    let mut line: String = text
        .split(['\n', '\r', '\t'])
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    line.retain(|c| !c.is_control() && !reorders(c));
    if line.chars().count() <= limit {
        return line;
    }
    let mut short: String = line.chars().take(limit.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Whether a character breaks a line or changes the text direction, so that a reader would see another text than the stored one.
pub const fn reorders(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A URL without user, password and query; any other text unchanged.
pub fn without_userinfo(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = rest
        .split_once('/')
        .map_or((rest, None), |(host, path)| (host, Some(path)));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    match path {
        Some(path) => format!("{scheme}://{host}/{path}"),
        None => format!("{scheme}://{host}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clipped_text_is_one_line() {
        assert_eq!(clip("a\n  b\r\nc", 10), "a b c");
        assert_eq!(clip("abcdef", 4), "abc…");
        assert_eq!(clip("\u{1b}[31mred", 20), "[31mred");
        assert_eq!(clip("a\u{202e}b\u{2066}c\u{200f}d\u{2028}e", 20), "abcde");
    }
}
