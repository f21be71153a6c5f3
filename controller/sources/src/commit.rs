//! The facts of a commit, from its object. Anyone who can push controls them.

use crds::{Commit, text::clip};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Extracts the facts from a commit object.
pub fn facts(revision: &str, object: &[u8]) -> Commit {
    let text = String::from_utf8_lossy(object);
    let (head, message) = text.split_once("\n\n").unwrap_or((&text, ""));
    let line = |name: &str| {
        head.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
    };
    // The format is `NAME <ADDRESS> SECONDS ZONE`.
    let author = line("author").and_then(|line| Some(line.rsplitn(3, ' ').nth(2)?.trim()));
    let time = line("committer")
        .and_then(|line| line.rsplit(' ').nth(1)?.parse().ok())
        .and_then(|s| Timestamp::from_second(s).ok());
    let subject = message.lines().map(str::trim).find(|line| !line.is_empty());
    let short = |text: Option<&str>| {
        text.map(|text| clip(text, 250))
            .filter(|text| !text.is_empty())
    };
    Commit {
        revision: revision.to_owned(),
        author: short(author),
        time: time.map(Time),
        subject: short(subject),
        digest: None,
        size: None,
        large: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_facts_come_from_the_object() {
        let object = "tree 4b82\nparent 9fce\nauthor Ada Lovelace <ada@example.org> 1700000000 +0100\n\
            committer Forge <forge@example.org> 1700000060 +0000\ngpgsig -----BEGIN\n x\n\n\nAdd a network\n\nIt was missing.\n";
        let commit = facts("c", object.as_bytes());
        assert_eq!(
            commit.author.as_deref(),
            Some("Ada Lovelace <ada@example.org>")
        );
        assert_eq!(commit.subject.as_deref(), Some("Add a network"));
        assert_eq!(commit.time.unwrap().0.as_second(), 1_700_000_060);
    }

    #[test]
    fn hostile_commit_facts_are_clipped_to_one_line() {
        let object = format!(
            "author {} 1 +0000\ncommitter x <y> never +0000\n\n\u{1b}[31m{}\n",
            "é".repeat(400),
            "s".repeat(400)
        );
        let commit = facts("c", object.as_bytes());
        assert_eq!(commit.author.unwrap().chars().count(), 250);
        let subject = commit.subject.unwrap();
        assert!(
            subject.chars().count() == 250 && subject.starts_with("[31m"),
            "{subject}"
        );
        assert_eq!(commit.time, None);
        let empty = facts("c", b"\xff");
        assert_eq!((empty.author, empty.subject), (None, None));
    }
}
