//! What a mirror does instead of serving.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It answers with this status and these headers: 429 with `Retry-After`, 503, 500.
    Status(u16, Vec<(String, String)>),
    /// It answers 200 with a page of HTML, as a portal or a proxy does.
    Html,
    /// It takes the request and never answers.
    Hang,
    /// It closes the connection after so many bytes of a body, of which the last may be lost on the way.
    Cut(u64),
    /// It sends so many bytes of a body at a time, after a wait.
    Drip {
        /// Bytes.
        bytes: usize,
        /// The wait.
        every: Duration,
    },
    /// It redirects to the same path below another address, which has no `/` at its end.
    Redirect(String),
    /// It serves these bytes as if they were what is there.
    Replaced(Bytes),
}

impl Trouble {
    /// This status, with no headers.
    pub fn status(code: u16) -> Self {
        Self::Status(code, Vec::new())
    }

    /// Too many requests: to be asked again after so many seconds.
    pub fn too_many(retry_after: u64) -> Self {
        Self::Status(429, vec![("Retry-After".to_owned(), retry_after.to_string())])
    }
}

/// What goes wrong below which path, and how often still; without a number, always.
#[derive(Debug, Default)]
pub(super) struct Troubles(BTreeMap<String, (Trouble, Option<usize>)>);

impl Troubles {
    pub(super) fn set(&mut self, prefix: &str, trouble: Trouble, times: Option<usize>) {
        self.0.insert(prefix.to_owned(), (trouble, times));
    }

    pub(super) fn clear(&mut self, prefix: &str) {
        self.0.remove(prefix);
    }

    /// What goes wrong with a request for this path: that of the longest prefix. It is used up by one.
    pub(super) fn take(&mut self, path: &str) -> Option<Trouble> {
        // Of prefixes of one path the longer comes later.
        let (_, (trouble, left)) =
            self.0.iter_mut().rfind(|(prefix, (_, left))| path.starts_with(*prefix) && *left != Some(0))?;
        *left = left.map(|left| left - 1);
        Some(trouble.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_counts_and_is_used_up() {
        let mut troubles = Troubles::default();
        troubles.set("/", Trouble::Html, None);
        troubles.set("/a/", Trouble::Hang, Some(1));
        troubles.set("/b/", Trouble::Cut(1), Some(1));
        assert_eq!(troubles.take("/a/x"), Some(Trouble::Hang));
        assert_eq!(troubles.take("/a/x"), Some(Trouble::Html));
        assert_eq!(troubles.take("/b/x"), Some(Trouble::Cut(1)));
        troubles.clear("/");
        assert_eq!(troubles.take("/b/x"), None);
    }
}
