//! Refs: what `git ls-remote` lists, and the commit that a layer's ref means there.

use std::collections::BTreeMap;

/// Refs of a repository and what each is at, as `git ls-remote` printed them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing(BTreeMap<String, String>);

impl Listing {
    /// Reads lines `ID<tab>REF`; others are none.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| line.split_once('\t'));
        Self(lines.filter(|(id, _)| source::url::is_commit(id)).map(|(id, name)| (name.to_owned(), id.to_owned())).collect())
    }

    /// The commit that a branch or tag is at, looked for in the order in which git does: a tag before a branch of its name, an annotated
    /// tag by what it is on.
    pub fn commit(&self, name: &str) -> Option<&str> {
        let at = |full: String| self.0.get(&format!("{full}^{{}}")).or_else(|| self.0.get(&full)).map(String::as_str);
        ["", "refs/", "refs/tags/", "refs/heads/"].into_iter().find_map(|prefix| at(format!("{prefix}{name}")))
    }
}

/// What `git ls-remote` is asked for, for these refs; nothing for full ids of commits, which never move.
pub fn patterns<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let moving = names.into_iter().filter(|name| !is_fixed(name));
    moving
        .flat_map(|name| {
            let tag = format!("refs/tags/{name}");
            let own = if name == "HEAD" || name.starts_with("refs/") { name.to_owned() } else { format!("refs/{name}") };
            [own, format!("{tag}^{{}}"), tag, format!("refs/heads/{name}")]
        })
        .collect()
}

/// Whether a ref is the full id of a commit.
pub fn is_fixed(name: &str) -> bool {
    source::url::is_commit(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ref_means_what_git_takes_it_for_and_nothing_that_ends_as_it() {
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
    fn a_full_id_is_asked_of_nobody() {
        assert!(patterns(["a".repeat(40).as_str()]).is_empty());
        assert_eq!(patterns(["main"]), ["refs/main", "refs/tags/main^{}", "refs/tags/main", "refs/heads/main"]);
    }
}
