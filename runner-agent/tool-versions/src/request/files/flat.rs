//! Line-based version files.

/// The first non-empty line with its number; `#` starts a comment.
pub(super) fn line(text: &str) -> Option<(String, usize)> {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim());
    lines
        .zip(1..)
        .find(|(line, _)| !line.is_empty())
        .map(|(line, number)| (line.to_owned(), number))
}

/// The version of a key in asdf's `.tool-versions`: the second word of the last line that starts with the key. `system`, `path:`
/// and `ref:` name no version.
pub(super) fn asdf(text: &str, key: &str) -> Option<(String, usize)> {
    let lines = text.lines().zip(1..).filter_map(|(line, number)| {
        let mut words = line
            .split('#')
            .next()
            .unwrap_or_default()
            .split_whitespace();
        let version = (words.next() == Some(key))
            .then(|| words.next())
            .flatten()?;
        let is_ours =
            !(version == "system" || version.starts_with("path:") || version.starts_with("ref:"));
        is_ours.then(|| (version.to_owned(), number))
    });
    lines.last()
}

/// `KEY = "…"` outside of any table.
pub(super) fn toml(text: &str, wanted: &str) -> Option<(String, usize)> {
    let top = text
        .lines()
        .zip(1..)
        .take_while(|(line, _)| !line.trim_start().starts_with('['));
    let mut values = top.filter_map(|(line, number)| {
        let (key, value) = line.split_once('=')?;
        let key = key.trim();
        let key = key
            .strip_prefix(['"', '\''])
            .and_then(|key| key.strip_suffix(['"', '\'']))
            .unwrap_or(key);
        let value = value.trim();
        let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let value = value[1..].split(quote).next()?;
        (key == wanted && !value.is_empty()).then(|| (value.to_owned(), number))
    });
    values.next()
}

/// The version in `.tfswitch.toml` for a product; without a `product` it is Terraform's.
pub(super) fn tfswitch(text: &str, product: &str) -> Option<(String, usize)> {
    let said = toml(text, "product").map_or_else(
        || "terraform".to_owned(),
        |(product, _)| product.to_ascii_lowercase(),
    );
    if said == product {
        toml(text, "version")
    } else {
        None
    }
}
