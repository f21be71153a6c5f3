//! Parses Terragrunt's log, and selects the actual error from its output.
//!
//! Records begin with `11:55:28.523 ERROR  downloading source url …` since about 0.60, with `time=2024-01-01T00:00:00Z level=error
//! msg=…` before. Lines without such a beginning belong to the record above: advice, examples, links.

use crds::Diagnostic;

/// Maximum number of reported lines of an error.
const LINES: usize = 4;

/// The level and text of a line that begins a record.
pub(super) fn record(line: &str) -> Option<(&str, &str)> {
    if let Some((_, rest)) = line
        .strip_prefix("time=")
        .and_then(|rest| rest.split_once(" level="))
    {
        let (level, rest) = rest.split_once(' ')?;
        let text = rest.split_once("msg=").map_or(rest, |(_, text)| text);
        return Some((level, text.trim_matches('"')));
    }
    let (time, rest) = line.split_once(' ')?;
    let is_time = time.len() == 12
        && time.bytes().enumerate().all(|(at, byte)| match at {
            2 | 5 => byte == b':',
            8 => byte == b'.',
            _ => byte.is_ascii_digit(),
        });
    let (level, text) = rest.split_once(' ')?;
    is_time.then_some((level, text.trim_start()))
}

/// Whether a line begins an error record.
fn is_error(line: &str) -> bool {
    record(line).is_some_and(|(level, _)| level.eq_ignore_ascii_case("error"))
}

/// The output without Terragrunt's own records and its final error.
pub(super) fn without_its_own(tail: &[String]) -> Vec<&String> {
    let end = tail
        .iter()
        .rposition(|line| is_error(line))
        .unwrap_or(tail.len());
    tail[..end]
        .iter()
        .filter(|line| record(line).is_none())
        .collect()
}

/// The meaningful lines of the last error record.
fn last_error(tail: &[String]) -> Option<Vec<&str>> {
    let at = tail.iter().rposition(|line| is_error(line))?;
    let head = record(&tail[at])?.1;
    let more = tail[at + 1..]
        .iter()
        .take_while(|line| record(line).is_none())
        .map(|line| line.trim());
    let mut lines: Vec<&str> = Vec::new();
    let mut all = std::iter::once(head).chain(more).peekable();
    while let Some(line) = all.next() {
        match line.trim_start_matches("* ") {
            // Advice follows the first paragraph, unless that announces a list.
            "" if lines.is_empty() || all.peek().is_some_and(|next| next.starts_with("* ")) => {}
            "" => break,
            "error occurred:" | "1 error occurred:" => {}
            // The target directory does not matter.
            line => lines.push(
                line.split_once(": Cloning into '")
                    .map_or(line, |(line, _)| line),
            ),
        }
        if lines.len() == LINES {
            break;
        }
    }
    Some(lines).filter(|lines| !lines.is_empty())
}

/// The text of Terragrunt's last error.
pub(super) fn error(tail: &[String]) -> Option<String> {
    last_error(tail).map(|lines| lines.join("; "))
}

/// Parses an error in one of its files: `/w/live/a/terragrunt.hcl:1,16-2,1: Invalid expression; Expected the start of an
/// expression.`
pub(super) fn diagnostic(tail: &[String]) -> Option<Diagnostic> {
    let first = *last_error(tail)?.first()?;
    let (file, rest) = [".hcl:", ".hcl.json:"].iter().find_map(|end| {
        let at = first.find(end)? + end.len() - 1;
        Some((&first[..at], &first[at + 1..]))
    })?;
    let (place, text) = rest.split_once(": ")?;
    let line = place.split_once(',')?.0.parse().ok()?;
    let (summary, detail) = text.split_once("; ").unwrap_or((text, ""));
    Some(Diagnostic {
        severity: "error".into(),
        summary: summary.into(),
        detail: Some(detail.to_owned()).filter(|detail| !detail.is_empty()),
        file: Some(file.into()),
        line: Some(line),
        ..Diagnostic::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn terragrunts_error_is_reported_without_its_advice() {
        // In the wording of Terragrunt 1.1.3.
        for (said, told) in [
            (
                "11:55:28.515 WARN   CAS download failed: fatal: no repository\n\nPlease make sure you have the correct access rights\n\
                 and the repository exists.\n11:55:28.523 INFO   TIP (debugging-docs): For help, visit https://docs\n\
                 11:55:28.523 ERROR  downloading source url git::file:///x?ref=v1\nerror occurred:\n\n* /usr/bin/git exited with 128: Cloning into '/w/x'...\n  \
                 fatal: '/x' does not appear to be a git repository\n  \n  Please make sure you have the correct access rights\n  and the repository exists.\n  \n",
                "downloading source url git::file:///x?ref=v1; /usr/bin/git exited with 128; fatal: '/x' does not appear to be a git repository",
            ),
            (
                "11:55:00.938 ERROR  Error: Unknown variable\n11:55:00.939 ERROR  resolving dependency \"a\" outputs: a is a dependency of b but detected no outputs.\n\n\
                 If this dependency is accessed before\n\ndependency \"a\" {\n}\nhttps://docs.terragrunt.com/reference/",
                "resolving dependency \"a\" outputs: a is a dependency of b but detected no outputs.",
            ),
            (
                "hook says no\n11:55:29.301 ERROR  error occurred:\n\n* Failed to execute \"sh -c x\" in ./c\n  hook says no\n  \n  exit status 3\n",
                "Failed to execute \"sh -c x\" in ./c; hook says no",
            ),
            (
                "time=2024-01-01T00:00:00Z level=error msg=Unable to determine underlying exit code, so Terragrunt will exit with error code 1",
                "Unable to determine underlying exit code, so Terragrunt will exit with error code 1",
            ),
        ] {
            assert_eq!(error(&tail(said)).as_deref(), Some(told));
        }
        assert_eq!(error(&tail("Error: x\nERROR too\n12:00 ERROR  x")), None);
    }

    #[test]
    fn tools_output_is_told_from_terragrunts() {
        let said = tail(
            "12:25:01.496 INFO   Executing hook\nExpiredToken\n12:25:05.356 ERROR  error occurred:\n\n* Failed to execute\n  exit status 1",
        );
        assert_eq!(without_its_own(&said), ["ExpiredToken"]);
        assert_eq!(without_its_own(&tail("a\nb")), ["a", "b"]);
    }

    #[test]
    fn error_in_a_terragrunt_file_has_a_place() {
        let said = "11:55:28.744 ERROR  /w/a/terragrunt.hcl:1,16-2,1: Invalid expression; Expected the start of an expression.";
        let found = diagnostic(&tail(said)).unwrap();
        assert_eq!(
            (found.file.as_deref(), found.line, found.summary.as_str()),
            (Some("/w/a/terragrunt.hcl"), Some(1), "Invalid expression")
        );
        assert_eq!(
            found.detail.as_deref(),
            Some("Expected the start of an expression.")
        );
        assert_eq!(
            diagnostic(&tail("11:55:28.744 ERROR  a.hcl: no such file")),
            None
        );
    }
}
