//! Parses the output of a tool without JSON.

use std::path::{Component, Path, PathBuf};

use crds::{Diagnostic, text::clip};

use super::terragrunt;

/// The path of a file relative to the root of the source, so that people can open it, whichever directory the tool ran in.
pub(super) fn in_source(below: &Path, file: &str) -> String {
    let whole = below.join(file);
    let mut parts = Vec::new();
    for part in whole.components() {
        match part {
            // Paths above the source stay as they are.
            Component::ParentDir if parts.pop().is_none() => return file.to_owned(),
            Component::ParentDir | Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return file.to_owned(),
            Component::Normal(part) => parts.push(part),
        }
    }
    parts.into_iter().collect::<PathBuf>().display().to_string()
}

/// Prefixes of the tools' errors that are no diagnostics.
const BARE: [&str; 3] = [
    "Error refreshing state: ",
    "Error loading state: ",
    "Error selecting workspace: ",
];

/// Parses diagnostics from plain output: `Error: …`, with or without the tools' frame, and `on FILE line N`.
pub fn parse(lines: &[String]) -> Vec<Diagnostic> {
    let mut found: Vec<Diagnostic> = Vec::new();
    let mut is_open = false;
    for line in lines {
        // An error ends with its frame, with a record of Terragrunt, or with the tool's next step: output of the two streams may be
        // interleaved.
        is_open &= !line.starts_with('╵')
            && terragrunt::record(line).is_none()
            && !line.starts_with("Initializing ");
        let line = line.trim_start_matches(['│', '╷', '╵', ' ']).trim_end();
        if let Some(summary) = line.strip_prefix("Error: ") {
            found.push(Diagnostic {
                severity: "error".into(),
                summary: summary.into(),
                ..Diagnostic::default()
            });
            is_open = true;
        } else if let Some((summary, detail)) = BARE
            .iter()
            .find_map(|head| Some((head.trim_end_matches(": "), line.strip_prefix(head)?)))
        {
            found.push(Diagnostic {
                severity: "error".into(),
                summary: summary.into(),
                detail: Some(format!("{detail}\n")),
                ..Diagnostic::default()
            });
            is_open = true;
        } else if let Some(current) = found.last_mut().filter(|_| is_open) {
            if let (None, Some((file, number))) = (&current.file, place(line)) {
                current.file = Some(file);
                current.line = Some(number);
            } else if !(line.is_empty() || current.detail.is_none() && is_source(line)) {
                let detail = current.detail.get_or_insert_default();
                if detail.len() < 2_000 {
                    detail.push_str(line);
                    detail.push('\n');
                }
            }
        }
    }
    found
}

/// A line of source code below its place: `12:   x = 1`.
fn is_source(line: &str) -> bool {
    line.split_once(": ").is_some_and(|(number, _)| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn place(line: &str) -> Option<(String, u32)> {
    let (file, rest) = line.strip_prefix("on ")?.split_once(" line ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((file.to_owned(), digits.parse().ok()?))
}

/// Marks of a line that states an error.
const HEADS: [&str; 5] = ["error: ", "fatal: ", "panic: ", "fatal error", " error "];

/// The last error of a program without diagnostics: from the first line that states an error, otherwise the last line. Git, for
/// example, ends with advice.
pub(super) fn last_words(tail: &[String]) -> String {
    let lines: Vec<String> = tail
        .iter()
        .map(|line| clip(line, 300))
        .filter(|line| !line.is_empty())
        .collect();
    let begins = |line: &String| {
        let line = line.to_lowercase();
        HEADS.iter().any(|head| line.contains(head))
    };
    match lines.iter().position(begins) {
        Some(at) => lines.get(at..).unwrap_or_default().join(" "),
        None => lines.last().cloned().unwrap_or_default(),
    }
}
