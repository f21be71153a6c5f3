//! The submodules of a commit: which are fetched, from where, and which stay empty. Pure, so that runs and layers decide alike.

use crds::text::clip;

use crate::{listing::Gitlink, url::Url};

/// The most submodules of a repository, including nested ones.
pub const MAX: usize = 128;

/// A submodule to fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submodule {
    /// Its name in `.gitmodules`.
    pub name: String,
    /// Its path in the repository.
    pub path: String,
    /// Its commit.
    pub commit: String,
    /// Its URL, which is not relative.
    pub url: String,
}

/// The submodules of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Submodules {
    /// Those that are fetched.
    pub fetched: Vec<Submodule>,
    /// Those that stay empty, each with the reason.
    pub empty: Vec<String>,
}

/// The submodules of a commit of the repository at `base`, from its tree and from the values of its `.gitmodules`.
///
/// # Errors
/// One has a URL that is never fetched from.
pub fn of(
    base: &str,
    links: Vec<Gitlink>,
    config: &[(String, String)],
) -> Result<Submodules, String> {
    let of = |name: &str, key: &str| {
        let key = format!("submodule.{name}.{key}");
        let mut found = config.iter().rev().filter(|(own, _)| *own == key);
        found.next().map(|(_, value)| value.as_str())
    };
    let names: Vec<(&str, &str)> = config
        .iter()
        .filter_map(|(key, path)| {
            let name = key.strip_prefix("submodule.")?.strip_suffix(".path")?;
            Some((name, path.trim_end_matches('/')))
        })
        // Git ignores these names too.
        .filter(|(name, _)| !name.is_empty() && name.split(['/', '\\']).all(|part| part != ".."))
        .collect();
    let mut all = Submodules::default();
    for (path, commit) in links {
        let name = names.iter().rev().find(|(_, own)| *own == path);
        let entry = name.and_then(|(name, _)| Some((*name, of(name, "url")?)));
        let shown = clip(&path, 100);
        let Some((name, written)) = entry else {
            all.empty.push(format!("{shown} (no URL in .gitmodules)"));
            continue;
        };
        if of(name, "update") == Some("none") {
            all.empty.push(format!("{shown} (update = none)"));
            continue;
        }
        let url = relative(base, written)
            .filter(|url| Url::parse(url).is_some())
            .ok_or_else(|| {
                format!(
                    "the submodule {shown} leads to {}, which is neither https nor ssh",
                    clip(written, 200)
                )
            })?;
        all.fetched.push(Submodule {
            name: name.to_owned(),
            path,
            commit,
            url,
        });
    }
    Ok(all)
}

/// The message about a submodule.
pub fn named(path: &str, message: &str) -> String {
    format!("submodule {}: {message}", clip(path, 100))
}

/// The pairs that `git config -z --list` prints.
pub fn pairs(listing: &[u8]) -> Vec<(String, String)> {
    String::from_utf8_lossy(listing)
        .split('\0')
        .filter_map(|pair| pair.split_once('\n'))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// The URL of a submodule. One that starts with a dot is relative to its repository's URL.
fn relative(base: &str, url: &str) -> Option<String> {
    if !(url.starts_with("./") || url.starts_with("../")) {
        return Some(url.to_owned());
    }
    let mut base = base.trim_end_matches('/').to_owned();
    let mut rest = url;
    // Keep the part before the path: `..` cannot remove the host.
    let from = base.find("://").map_or_else(
        || base.find(':'),
        |at| base.get(at + 3..)?.find('/').map(|slash| at + 3 + slash),
    )?;
    loop {
        if let Some(next) = rest.strip_prefix("./") {
            rest = next;
        } else if let Some(next) = rest.strip_prefix("../") {
            let cut = base
                .rfind('/')
                .filter(|slash| *slash > from)
                .unwrap_or(from);
            if base.len() <= cut + 1 {
                return None;
            }
            // In scp syntax, a path at the top has no leading slash.
            base.truncate(if cut == from && base.as_bytes().get(from) == Some(&b':') {
                from + 1
            } else {
                cut
            });
            rest = next;
        } else {
            break;
        }
    }
    let joint = if base.ends_with([':', '/']) { "" } else { "/" };
    (!rest.is_empty()).then(|| format!("{base}{joint}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_urls_stay_with_their_host() {
        let rows = [
            (
                "https://h/team/stack.git",
                "../lib.git",
                Some("https://h/team/lib.git"),
            ),
            (
                "https://h/team/stack",
                "../../lib/m.git",
                Some("https://h/lib/m.git"),
            ),
            (
                "https://h/team/stack",
                "./m",
                Some("https://h/team/stack/m"),
            ),
            ("https://h/stack", "../../evil", None),
            (
                "git@h:team/stack.git",
                "../lib.git",
                Some("git@h:team/lib.git"),
            ),
            ("git@h:stack.git", "../lib.git", Some("git@h:lib.git")),
            (
                "ssh://git@h:22/team/stack",
                "../lib",
                Some("ssh://git@h:22/team/lib"),
            ),
            (
                "https://h/stack",
                "https://other/x",
                Some("https://other/x"),
            ),
        ];
        for (base, url, expected) in rows {
            assert_eq!(relative(base, url).as_deref(), expected, "{base} {url}");
        }
    }

    #[test]
    fn entry_of_gitmodules_decides_what_is_fetched() {
        let pair = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let config = [
            ("submodule.a.b.path", "modules/a/"),
            ("submodule.a.b.url", "../a"),
            ("submodule.c.path", "c"),
            ("submodule.none.path", "private"),
            ("submodule.none.url", "https://h/gone"),
            ("submodule.none.update", "none"),
            ("submodule.x/../y.path", "evil"),
            ("submodule.x/../y.url", "https://h/evil"),
        ]
        .map(pair);
        let link = |path: &str| (path.to_owned(), "1".repeat(40));
        let links = ["modules/a", "c", "private", "evil", "vendor/old"].map(link);
        let all = of("https://h/t/r.git", links.into(), &config).unwrap();
        assert_eq!(
            all.fetched,
            [Submodule {
                name: "a.b".into(),
                path: "modules/a".into(),
                commit: "1".repeat(40),
                url: "https://h/t/a".into()
            }]
        );
        assert_eq!(
            all.empty,
            [
                "c (no URL in .gitmodules)",
                "private (update = none)",
                "evil (no URL in .gitmodules)",
                "vendor/old (no URL in .gitmodules)"
            ]
        );
        for url in ["file:///etc", "ext::sh -c x", "--upload-pack=x", "/etc"] {
            let config = [("submodule.m.path", "m"), ("submodule.m.url", url)].map(pair);
            let said = of("https://h/r", vec![link("m")], &config).unwrap_err();
            assert!(said.contains(url), "{said}");
        }
    }
}
