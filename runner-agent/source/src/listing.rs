//! The size of a tree that is not checked out yet. A few objects of git can be a tree of any number of files.

use std::io::{BufRead as _, BufReader, Read};

use tool_versions::Limits;

/// The limits of a snapshot: 4 GiB, 200000 files and directories. The compression ratio is unlimited, since the commit id fixes the
/// tree.
pub const LIMITS: Limits = Limits {
    size: 4 << 30,
    ratio: u64::MAX,
    entries: 200_000,
};
/// Lists a tree for [`within`], without its commit. Directories are listed too, so that each step of git prints an entry.
pub const LIST: [&str; 6] = ["ls-tree", "-r", "-t", "-l", "-z", "--full-tree"];
/// Maximum size of a listing, in bytes.
pub const MAX_LISTING: usize = 64 << 20;

/// The path of a submodule, and its commit.
pub type Gitlink = (String, String);

/// Reads a [listing](LIST) until it exceeds a limit. Returns the submodules.
///
/// # Errors
/// The exceeded limit, in words.
pub fn within(listing: impl Read, limits: &Limits) -> Result<Vec<Gitlink>, String> {
    let (mut size, mut bytes, mut links) = (0_u64, 0, Vec::new());
    // A partial listing is an error of git.
    let records = BufReader::new(listing.take(MAX_LISTING as u64 + 1)).split(0);
    for (count, record) in (1..).zip(records.map_while(Result::ok)) {
        let facts = String::from_utf8_lossy(&record);
        // `MODE TYPE ID SIZE<tab>PATH`; a directory has the size `-`.
        let (facts, path) = facts.split_once('\t').unwrap_or((&facts, ""));
        let facts: Vec<&str> = facts.split_ascii_whitespace().collect();
        if let ["160000", _, commit, ..] = facts[..] {
            links.push((path.to_owned(), commit.to_owned()));
        }
        let own = facts.get(3).and_then(|size| size.parse::<u64>().ok());
        size = size.saturating_add(own.unwrap_or(0));
        bytes += record.len() + 1;
        if count > limits.entries {
            return Err(format!("{} files and directories", limits.entries));
        }
        if size > limits.size {
            return Err(format!("{} MiB", limits.size >> 20));
        }
        if bytes > MAX_LISTING {
            return Err(format!("{} MiB of paths", MAX_LISTING >> 20));
        }
    }
    Ok(links)
}

/// The message for a tree that exceeds a limit, in the same words for runs and layers.
pub fn too_large(url: &str, revision: &str, limit: &str) -> String {
    format!("{revision} of {url} was not checked out: it has more than {limit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_is_read_until_it_exceeds_a_limit() {
        let limits = Limits {
            size: 3 << 20,
            ratio: u64::MAX,
            entries: 3,
        };
        let id = "a".repeat(40);
        let row = |size: &str| format!("100644 blob {id} {size}\ta b\0");
        let over = |rows: &[&str]| {
            let text: String = rows.iter().map(|size| row(size)).collect();
            within(text.as_bytes(), &limits).err().unwrap_or_default()
        };
        assert_eq!(over(&["1", "-", "1"]), "");
        assert_eq!(over(&["1", "-", "1", "-"]), "3 files and directories");
        assert_eq!(over(&["     2097152", "2097152"]), "3 MiB");
        // A listing without an end.
        let all = Limits {
            size: u64::MAX,
            entries: usize::MAX,
            ..limits
        };
        assert_eq!(
            within(std::io::repeat(b'a'), &all).unwrap_err(),
            "64 MiB of paths"
        );
    }
}
