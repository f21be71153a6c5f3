//! Checks the subjects of commits: `area: imperative`.

use anyhow::{Result, bail};

use crate::{command::sh, root};

/// Only commits after the one that added this file are checked.
const SINCE: &str = "tests/xtask/src/commits.rs";
const LONGEST: usize = 72;

/// Checks the subjects of all commits after [`SINCE`], without merges.
///
/// Checks nothing without a history, as in an archive of the tree, and only the commits that exist in a shallow clone.
///
/// # Errors
/// All subjects that break the rule, one per line.
pub fn check() -> Result<()> {
    let git = |arguments: &[&str]| {
        sh(
            "git",
            &[&["-C", &root().display().to_string()], arguments].concat(),
        )
    };
    let Ok(added) = git(&["log", "--diff-filter=A", "--format=%H", "--", SINCE]) else {
        println!("left out: subjects of commits, since there is no git history");
        return Ok(());
    };
    let Some(first) = added.lines().last() else {
        println!("left out: subjects of commits, since the history does not have the rule yet");
        return Ok(());
    };
    let log = git(&[
        "log",
        "--no-merges",
        "--format=%h %s",
        &format!("{first}..HEAD"),
    ])?;
    let wrong: Vec<String> = log
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(commit, subject)| {
            problem(subject).map(|problem| format!("{commit} `{subject}`: {problem}"))
        })
        .collect();
    if wrong.is_empty() {
        println!(
            "{} subjects of commits are well formed",
            log.lines().count()
        );
        return Ok(());
    }
    bail!("{}", wrong.join("\n"))
}

fn problem(subject: &str) -> Option<String> {
    // Git's own form.
    let subject = subject
        .strip_prefix("Revert \"")
        .and_then(|rest| rest.strip_suffix('"'))
        .unwrap_or(subject);
    let is_area = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_./, -".contains(c);
    let well_formed = subject.split_once(": ").is_some_and(|(area, rest)| {
        !area.is_empty()
            && area.chars().all(is_area)
            && rest.starts_with(|c: char| c.is_ascii_lowercase())
    });
    if !well_formed {
        return Some("write `area: imperative`, in lower case up to the first word".to_owned());
    }
    let length = subject.chars().count();
    (length > LONGEST).then(|| format!("it has {length} characters of at most {LONGEST}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_have_an_area_a_lower_case_word_and_72_characters() {
        let long = format!("xtask: {}", "a".repeat(66));
        let rows = [
            ("tests/xtask: count lines by package", true),
            ("controller/src, crds: drop the field `took`", true),
            ("Revert \"chaos: let runs share states\"", true),
            (&long[..72], true),
            (&long, false),
            ("xtask: Count lines", false),
            ("Xtask: count lines", false),
            ("count lines", false),
            (": count lines", false),
            ("xtask:count lines", false),
            ("xtask: `cargo ci` counts", false),
        ];
        for (subject, good) in rows {
            assert_eq!(problem(subject).is_none(), good, "{subject}");
        }
    }
}
