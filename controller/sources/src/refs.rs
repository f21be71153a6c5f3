//! Refs: parses `git ls-remote` and resolves a layer's ref to a commit.

use std::collections::BTreeMap;

/// Refs of a repository with their ids, as printed by `git ls-remote`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing(BTreeMap<String, String>);

impl Listing {
    /// Parses lines `ID<tab>REF`; ignores others.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| line.split_once('\t'));
        Self(
            lines
                .filter(|(id, _)| source::url::is_commit(id))
                .map(|(id, name)| (name.to_owned(), id.to_owned()))
                .collect(),
        )
    }

    /// The commit of a branch or tag, in git's order: a tag before a branch of the same name; an annotated tag is
    /// dereferenced.
    pub fn commit(&self, name: &str) -> Option<&str> {
        let at = |full: String| {
            self.0
                .get(&format!("{full}^{{}}"))
                .or_else(|| self.0.get(&full))
                .map(String::as_str)
        };
        ["", "refs/", "refs/tags/", "refs/heads/"]
            .into_iter()
            .find_map(|prefix| at(format!("{prefix}{name}")))
    }
}

/// The patterns for `git ls-remote`; none for full commit ids, which never move.
pub fn patterns<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let moving = names.into_iter().filter(|name| !is_fixed(name));
    moving
        .flat_map(|name| {
            let tag = format!("refs/tags/{name}");
            let own = if name == "HEAD" || name.starts_with("refs/") {
                name.to_owned()
            } else {
                format!("refs/{name}")
            };
            [
                own,
                format!("{tag}^{{}}"),
                tag,
                format!("refs/heads/{name}"),
            ]
        })
        .collect()
}

/// Whether a ref is a full commit id.
pub fn is_fixed(name: &str) -> bool {
    source::url::is_commit(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ref_resolves_as_in_git_and_never_by_suffix() {
        let id = |c: char| c.to_string().repeat(40);
        let text = [
            (id('1'), "HEAD"),
            (id('2'), "refs/heads/main"),
            (id('3'), "refs/heads/feature/main"),
            (id('4'), "refs/tags/v1"),
            (id('5'), "refs/tags/v1^{}"),
            (id('6'), "refs/heads/v1"),
            (id('7'), "refs/pull/1/head"),
            (id('8'), "refs/tags/light"),
        ];
        let text = text.map(|(id, name)| format!("{id}\t{name}")).join("\n");
        let listing = Listing::parse(&format!("warning: something\nnone\trefs/heads/x\n{text}\n"));
        let rows = [
            ("HEAD", Some('1')),
            ("main", Some('2')),
            ("feature/main", Some('3')),
            ("v1", Some('5')),
            ("heads/v1", Some('6')),
            ("refs/pull/1/head", Some('7')),
            ("light", Some('8')),
            ("mai", None),
            ("x", None),
        ];
        for (name, expected) in rows {
            assert_eq!(listing.commit(name), expected.map(id).as_deref(), "{name}");
        }
    }

    #[test]
    fn full_commit_id_needs_no_listing() {
        assert!(patterns(["a".repeat(40).as_str()]).is_empty());
        assert_eq!(
            patterns(["main"]),
            [
                "refs/main",
                "refs/tags/main^{}",
                "refs/tags/main",
                "refs/heads/main"
            ]
        );
    }
}
