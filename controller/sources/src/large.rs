//! The contents of Git LFS, fetched into a mirror for its snapshots.

use std::collections::BTreeSet;

use crds::Reason;
use source::{
    Url,
    git_errors::contents_refused,
    lfs::{self, MAX_POINTER, Pointer},
};

use crate::{
    failure::Problem,
    git::GitError,
    mirror::Mirror,
    tree::{Entry, Tree},
};

/// The settings that `git-lfs` takes from a repository's `.lfsconfig`. A mirror has no work tree with it.
const LFS_CONFIG: [&str; 4] = [
    "lfs.url",
    "lfs.fetchinclude",
    "lfs.fetchexclude",
    "remote.origin.lfsurl",
];
/// Number of blobs in one read of pointers.
const POINTERS: usize = 10_000;
/// The server of large files, for people.
const LARGE: &str = "the server of the large files of Git LFS";
impl Mirror<'_> {
    /// Fetches the contents of a commit's large files, if its `.gitattributes` use Git LFS, for its snapshot. Returns its pointers, and a remark for the
    /// status where the settings are not followed or a file stays a pointer.
    ///
    /// # Errors
    /// When a retry may help. A file that the server refuses permanently remains a pointer; the agent rejects it if the
    /// stack contains it.
    pub async fn large(
        &self,
        url: &str,
        commit: &str,
        tree: &Tree,
    ) -> Result<(BTreeSet<Pointer>, Option<String>), Problem> {
        let asks = self
            .local(
                &[
                    "grep",
                    "-q",
                    "-e",
                    "filter=lfs",
                    commit,
                    "--",
                    ":(glob)**/.gitattributes",
                ],
                Vec::new(),
                4096,
            )
            .await?;
        let pointers = if asks.ended.code == 0 {
            self.pointers(tree).await?
        } else {
            BTreeSet::new()
        };
        if pointers.is_empty() {
            return Ok((pointers, None));
        }
        let store = self.dir().join("lfs");
        let mut config: Vec<String> = lfs::config(&store)
            .into_iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        config.push(format!("remote.origin.url={url}"));
        let own = self.config(commit, tree, ".lfsconfig").await?;
        let (own, other): (Vec<_>, Vec<_>) = own
            .iter()
            .filter(|(key, _)| LFS_CONFIG.contains(&key.as_str()))
            .partition(|(key, value)| !key.ends_with("url") || self.is_asked(value));
        config.extend(own.into_iter().map(|(key, value)| format!("{key}={value}")));
        // The address may hold a password.
        let refused = other.first().map(|(key, _)| {
            format!("{url}: {key} of .lfsconfig is no address that sources may ask; the server of the repository was asked instead")
        });
        let told = config.iter().flat_map(|pair| ["-c", pair.as_str()]);
        let args: Vec<&str> = told.chain(["lfs", "fetch", "origin", commit]).collect();
        let ended = self.remote(url, &args).await?.ended;
        if ended.code == 0 {
            return Ok((pointers, refused));
        }
        let problem = Problem::from(contents_refused::<GitError>(url, &ended));
        if problem.reason == Reason::SourceUnreachable && !ended.output.contains(lfs::NO_PROGRAM) {
            let message = refused.into_iter().chain([problem.message]);
            return Err(Problem::no_repository(
                LARGE,
                &message.collect::<Vec<_>>().join(": "),
            ));
        }
        tracing::warn!(
            commit,
            problem = problem.message,
            "large files stay pointers"
        );
        let left = format!(
            "{url}: large files of Git LFS stay pointers: {}",
            problem.message
        );
        let remark = refused.into_iter().chain([left]);
        Ok((pointers, Some(remark.collect::<Vec<_>>().join("; "))))
    }

    /// Whether an address of `.lfsconfig` is asked. `git-lfs` uses no proxy for loopback, so the address is judged here.
    fn is_asked(&self, address: &str) -> bool {
        let may = |host: &str| {
            let outbound = self.git.outbound.as_ref();
            outbound.is_none_or(|outbound| outbound.may_reach(host))
        };
        Url::parse(address).is_some_and(|url| may(url.host()))
    }

    /// The pointers in a tree.
    async fn pointers(&self, tree: &Tree) -> Result<BTreeSet<Pointer>, Problem> {
        let small =
            |entry: &&Entry| !entry.is_link() && !entry.is_gitlink() && entry.size <= MAX_POINTER;
        let small = tree.entries().iter().filter(small);
        let ids: BTreeSet<&str> = small.map(|entry| entry.id.as_str()).collect();
        let (ids, mut found): (Vec<&str>, _) = (ids.into_iter().collect(), BTreeSet::new());
        for ids in ids.chunks(POINTERS) {
            let texts = self.texts(ids.iter().copied()).await?;
            found.extend(texts.values().filter_map(|text| Pointer::parse(text)));
        }
        Ok(found)
    }
}
