//! Several errors in one sentence, short enough for a status.

use crds::{Diagnostic, text::clip};

use super::Said;

/// Maximum characters of the decisive error, and of the names of all others.
const FIRST: usize = 620;
const OTHERS: usize = 240;

/// Shortens a text to one line between words. Retains the beginning and the end, since the cause usually comes last.
pub fn shorten(text: &str, limit: usize) -> String {
    let line = clip(text, usize::MAX);
    let count = line.chars().count();
    if count <= limit {
        return line;
    }
    let half = limit.saturating_sub(3) / 2;
    let head: String = line.chars().take(half).collect();
    let tail: String = line.chars().skip(count - half).collect();
    let head = head
        .rsplit_once(' ')
        .map_or(head.as_str(), |(whole, _)| whole);
    let tail = tail
        .split_once(' ')
        .map_or(tail.as_str(), |(_, whole)| whole);
    format!("{head} … {tail}")
}

/// The first error, and the number and names of the others. `None` without errors.
pub(super) fn of(errors: &[Diagnostic], said: &Said) -> Option<String> {
    let (first, others) = errors.split_first()?;
    let mut text = whole(first);
    let count = others.len() + said.more;
    if count > 0 {
        let word = if count == 1 { "error" } else { "errors" };
        text = format!(
            "{}; {count} more {word}: {}",
            text.trim_end_matches('.'),
            shorten(&named(others), OTHERS)
        );
    }
    Some(text)
}

/// Lines that git prints before and after the cause.
const IDLE: [&str; 3] = [
    "Cloning into ",
    "Please make sure you have the correct access rights",
    "and the repository exists.",
];
/// A cause of ssh, and what follows from it.
const NO_USER: &str = "No user exists for uid";
const NO_USER_MEANS: &str = " (ssh runs as no user without a name in /etc/passwd, and the image has one for 65532; modules by https need none)";

fn whole(d: &Diagnostic) -> String {
    let detail = d.detail.as_deref().unwrap_or_default();
    // Drop the tools' general explanation of locks, which follows the cause.
    let told = detail
        .split("\n\n")
        .filter(|part| !part.contains("acquires a state lock to protect"));
    let told = told.flat_map(str::lines).filter(|line| {
        let line = line.trim_start();
        !IDLE.iter().any(|idle| line.starts_with(idle))
    });
    let mut detail = shorten(&told.collect::<Vec<_>>().join("\n"), FIRST / 2);
    if detail.contains(NO_USER) {
        detail += NO_USER_MEANS;
    }
    let head = format!("{}{}", shorten(&d.summary, FIRST / 2), place(d));
    if detail.is_empty() {
        head
    } else {
        format!("{head}: {detail}")
    }
}

/// The names of the errors; equal ones are counted.
fn named(errors: &[Diagnostic]) -> String {
    let mut names: Vec<(String, usize)> = Vec::new();
    for error in errors {
        let name = format!("{}{}", shorten(&error.summary, OTHERS / 2), place(error));
        match names.iter_mut().find(|(known, _)| *known == name) {
            Some((_, times)) => *times += 1,
            None => names.push((name, 1)),
        }
    }
    let names = names.into_iter().map(|(name, times)| {
        if times == 1 {
            name
        } else {
            format!("{name}, {times} times")
        }
    });
    names.collect::<Vec<_>>().join(", ")
}

fn place(d: &Diagnostic) -> String {
    let address = d.address.as_deref();
    let file = d.file.as_ref().map(|file| {
        d.line
            .map_or_else(|| file.clone(), |line| format!("{file} line {line}"))
    });
    match (address, file) {
        (Some(address), Some(file)) => format!(" ({}, {file})", shorten(address, 120)),
        (Some(address), None) => format!(" ({})", shorten(address, 120)),
        (None, Some(file)) => format!(" ({file})"),
        (None, None) => String::new(),
    }
}
