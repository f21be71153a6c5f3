//! Source as it is written: words and signs, what is compiled for the product, and what a `use` names.

use super::Names;

/// The words and signs of a text, without comments, literals and lifetimes.
pub(super) fn tokens(text: &str) -> Vec<String> {
    let (text, mut found, mut i): (Vec<char>, _, _) = (text.chars().collect(), Vec::new(), 0);
    let at = |i: usize| text.get(i).copied().unwrap_or('\0');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let quoted = |mut i: usize, quote: char| {
        while i < text.len() && at(i) != quote {
            i += if at(i) == '\\' { 2 } else { 1 };
        }
        i + 1
    };
    while i < text.len() {
        match at(i) {
            '/' if at(i + 1) == '/' => {
                while i < text.len() && at(i) != '\n' {
                    i += 1;
                }
            }
            '/' if at(i + 1) == '*' => {
                let mut depth = 0;
                loop {
                    match (at(i), at(i + 1)) {
                        ('/', '*') => (depth, i) = (depth + 1, i + 2),
                        ('*', '/') => (depth, i) = (depth - 1, i + 2),
                        _ => i += 1,
                    }
                    if depth == 0 || i >= text.len() {
                        break;
                    }
                }
            }
            '"' => i = quoted(i + 1, '"'),
            '\'' if at(i + 1) == '\\' || at(i + 2) == '\'' => i = quoted(i + 1, '\''),
            '\'' => i += 1 + text.iter().skip(i + 1).take_while(|c| is_word(**c)).count(),
            ':' if at(i + 1) == ':' => {
                found.push("::".to_owned());
                i += 2;
            }
            c if is_word(c) => {
                let word: String = text.iter().skip(i).take_while(|c| is_word(**c)).collect();
                i += word.chars().count();
                let hashes = text.iter().skip(i).take_while(|c| **c == '#').count();
                let is_prefix = matches!(word.as_str(), "r" | "b" | "br" | "c" | "cr");
                if is_prefix && word.ends_with('r') && at(i + hashes) == '"' {
                    let end: String = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
                    let rest: String = text.iter().skip(i + hashes + 1).collect();
                    let inside = rest.find(&end).map_or(rest.chars().count(), |at| rest[..at].chars().count());
                    i += hashes + 1 + inside + end.len();
                } else if !(c.is_numeric() || is_prefix && matches!(at(i), '"' | '\'')) {
                    found.push(word);
                }
            }
            c => {
                if !c.is_whitespace() {
                    found.push(c.to_string());
                }
                i += 1;
            }
        }
    }
    found
}

/// The end of what is between brackets, which open at that place.
fn closed(tokens: &[String], open: usize) -> usize {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" if depth == 1 => return i,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
    }
    tokens.len()
}

/// The end of the item that begins there, and the name of the module that it declares without a body.
fn item(tokens: &[String], begin: usize) -> (usize, Option<&String>) {
    let (mut i, mut kind) = (begin, None);
    while let Some(token) = tokens.get(i) {
        match token.as_str() {
            "#" => i = closed(tokens, i + 1),
            ";" => return (i + 1, tokens.get(i - 1).filter(|_| kind == Some("mod"))),
            "}" => return (i, None),
            "{" if kind != Some("use") => return (closed(tokens, i) + 1, None),
            "(" | "[" | "{" => i = closed(tokens, i),
            "pub" => {}
            word => {
                kind.get_or_insert(word);
            }
        }
        i += 1;
    }
    (tokens.len(), None)
}

/// What is compiled for the product, and which modules are not.
pub(super) fn product(tokens: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut kept, mut tests, mut i) = (Vec::new(), Vec::new(), 0);
    while let Some(token) = tokens.get(i) {
        let attribute = tokens.get(i + 1).filter(|next| token == "#" && *next == "[").map(|_| closed(tokens, i + 1));
        let is_test = attribute.is_some_and(|end| {
            let words = &tokens[i + 2..end.min(tokens.len())];
            words.first().is_some_and(|word| word == "cfg")
                && words.iter().any(|word| word == "test")
                && !words.contains(&"not".into())
        });
        if let (true, Some(end)) = (is_test, attribute) {
            let (after, module) = item(tokens, end + 1);
            tests.extend(module.cloned());
            i = after;
        } else {
            kept.push(token.clone());
            i += 1;
        }
    }
    (kept, tests)
}

/// The paths of a `use`, and the names that they have from then on.
pub(super) fn tree(tokens: &[String], i: &mut usize, prefix: &[String], found: &mut Vec<(Names, String)>) {
    let (mut path, mut name) = (prefix.to_vec(), None);
    while let Some(token) = tokens.get(*i) {
        *i += 1;
        match token.as_str() {
            "{" => {
                while tokens.get(*i).is_some_and(|token| token != "}") {
                    tree(tokens, i, &path, found);
                }
                *i += 1;
                // Up to the comma that follows, or the end.
                if tokens.get(*i).is_some_and(|token| token == ",") {
                    *i += 1;
                }
                return;
            }
            "," | ";" => break,
            "}" => {
                *i -= 1;
                break;
            }
            "as" => {
                name = tokens.get(*i).cloned();
                *i += 1;
            }
            "self" if !path.is_empty() => {}
            "::" => {}
            word => path.push(word.to_owned()),
        }
    }
    if let Some(last) = path.last().cloned() {
        found.push((path, name.unwrap_or(last)));
    }
}
