//! Submodules: fetches the referenced commits of other repositories into the same mirror, with the credentials of their
//! hosts.

use std::collections::BTreeMap;

use crds::{Reason, text::clip};
use source::Url;

use crate::{failure::Problem, mirror::Mirror, tree::Tree};

/// Maximum number of submodules of a commit, including nested ones.
const MAX: usize = 128;

/// Fetches the submodules of a commit, recursively. A submodule missing in `.gitmodules` remains an empty directory, as
/// in git.
///
/// # Errors
/// When one cannot be fetched.
pub async fn fetch(
    mirror: &Mirror<'_>,
    url: &str,
    commit: &str,
    tree: &Tree,
) -> Result<(), Problem> {
    let (mut left, mut count) = (vec![(url.to_owned(), commit.to_owned(), tree.clone())], 0);
    while let Some((url, commit, tree)) = left.pop() {
        let links: Vec<_> = tree
            .entries()
            .iter()
            .filter(|entry| entry.is_gitlink())
            .collect();
        if links.is_empty() || tree.at(".gitmodules").is_none() {
            continue;
        }
        let urls = urls(&mirror.config(&commit, ".gitmodules").await?);
        for link in links {
            let Some(written) = urls.get(&link.path) else {
                continue;
            };
            count += 1;
            if count > MAX {
                return Err(Problem::new(
                    Reason::SourceInvalid,
                    format!("it has more than {MAX} submodules"),
                ));
            }
            let place = relative(&url, written)
                .filter(|place| Url::parse(place).is_some())
                .ok_or_else(|| {
                    let message = format!(
                        "the submodule {} leads to {}, which is neither https nor ssh",
                        clip(&link.path, 100),
                        clip(written, 200)
                    );
                    Problem::new(Reason::SourceInvalid, message)
                })?;
            let named = |problem: Problem| {
                Problem::new(
                    problem.reason,
                    format!("submodule {}: {}", clip(&link.path, 100), problem.message),
                )
            };
            mirror.fetch(&place, &link.id).await.map_err(named)?;
            left.push((place, link.id.clone(), mirror.tree(&link.id).await?));
        }
    }
    Ok(())
}

/// URLs of submodules, by path.
fn urls(config: &[(String, String)]) -> BTreeMap<String, String> {
    let of = |name: &str| {
        config
            .iter()
            .rev()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.clone())
    };
    let paths = config
        .iter()
        .filter_map(|(key, path)| Some((key.strip_suffix(".path")?, path)));
    paths
        .filter_map(|(key, path)| {
            Some((
                path.trim_end_matches('/').to_owned(),
                of(&format!("{key}.url"))?,
            ))
        })
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
    fn submodule_urls_come_from_gitmodules() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let config = [
            pair("submodule.a.b.path", "modules/a/"),
            pair("submodule.a.b.url", "../a"),
            pair("submodule.c.path", "c"),
        ];
        assert_eq!(
            urls(&config).into_iter().collect::<Vec<_>>(),
            [pair("modules/a", "../a")]
        );
    }
}
