//! Submodules: fetches the referenced commits of other repositories into the same mirror, with the credentials of their
//! hosts.

use crds::Reason;
use source::submodules::{self, MAX, named};

use crate::{failure::Problem, mirror::Mirror, tree::Tree};

/// A commit in a mirror.
pub struct Fetched {
    /// The URL of its repository.
    pub url: String,
    pub commit: String,
    pub tree: Tree,
}

/// Fetches the submodules of a commit, recursively; returns the commit and theirs. Those that git leaves empty are left out.
///
/// # Errors
/// When one cannot be fetched.
pub async fn fetch(
    mirror: &Mirror<'_>,
    url: &str,
    commit: &str,
    tree: &Tree,
) -> Result<Vec<Fetched>, Problem> {
    let first = Fetched {
        url: url.to_owned(),
        commit: commit.to_owned(),
        tree: tree.clone(),
    };
    let (mut all, mut left) = (Vec::new(), vec![(String::new(), first)]);
    while let Some((at, of)) = left.pop() {
        let below = below(mirror, &of).await;
        let below = below.map_err(|problem| told(&at, problem))?;
        all.push(of);
        for submodule in below.fetched {
            if all.len() + left.len() > MAX {
                return Err(Problem::new(
                    Reason::SourceInvalid,
                    format!("it has more than {MAX} submodules"),
                ));
            }
            let at = if at.is_empty() {
                submodule.path
            } else {
                format!("{at}/{}", submodule.path)
            };
            let of = take(mirror, submodule.url, submodule.commit).await;
            let of = of.map_err(|problem| told(&at, problem))?;
            left.push((at, of));
        }
    }
    Ok(all)
}

/// The problem of a submodule, which names it.
fn told(at: &str, problem: Problem) -> Problem {
    if at.is_empty() {
        return problem;
    }
    Problem::new(problem.reason, named(at, &problem.message))
}

async fn take(mirror: &Mirror<'_>, url: String, commit: String) -> Result<Fetched, Problem> {
    mirror.fetch(&url, &commit).await?;
    let tree = mirror.tree(&url, &commit).await?;
    Ok(Fetched { url, commit, tree })
}

async fn below(mirror: &Mirror<'_>, of: &Fetched) -> Result<submodules::Submodules, Problem> {
    let entries = of.tree.entries().iter();
    let links: Vec<_> = entries
        .filter(|entry| entry.is_gitlink())
        .map(|entry| (entry.path.clone(), entry.id.clone()))
        .collect();
    if links.is_empty() {
        return Ok(submodules::Submodules::default());
    }
    let config = mirror.config(&of.commit, &of.tree, ".gitmodules").await?;
    submodules::of(&of.url, links, &config)
        .map_err(|message| Problem::new(Reason::SourceInvalid, message))
}
