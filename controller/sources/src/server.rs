//! Access to a repository: git contacts its server and stores the result in a mirror.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use crds::{Reason, text::clip};
use futures::future::BoxFuture;
use jiff::Timestamp;
use source::{
    FetchError, Repository, SshFiles, Url, clone::head_of, credentials::of_source, snapshot::Header,
};
use tempfile::NamedTempFile;

use crate::{
    credentials::{self, Access, Secrets},
    failure::Problem,
    follow::View,
    git::{Commands, GitError},
    github_app::Tokens,
    mirror::{Busy, Mirror, Mirrors},
    proxy::Outbound,
    refs::{self, Listing},
    store, submodules,
    tree::Tree,
    walk::{Ask, Known},
};

/// Maximum size of a listing of refs, in bytes.
const MAX_REFS: usize = 64 << 20;

/// A value that a server has to give first.
pub type Reply<'a, T> = BoxFuture<'a, Result<T, Problem>>;

/// Access to repositories.
pub trait Git: Send + Sync {
    /// Opens a repository, with the Secrets that it names.
    fn reach<'a>(
        &'a self,
        view: &'a View,
        secrets: Secrets,
        now: Timestamp,
    ) -> Reply<'a, Box<dyn Remote>>;
    /// Drops everything stored of a repository.
    fn forget(&self, uid: &str);
    /// Deletes stored data beyond the limits.
    fn make_room(&self);
}

/// An open repository.
pub trait Remote: Send + Sync {
    /// Its URL, without credentials.
    fn url(&self) -> &str;
    /// Lists the refs that layers use. When there is none, or none can move, only checks that the repository exists.
    fn listing<'a>(&'a self, names: &'a [&str]) -> Reply<'a, Listing>;
    /// The tree of a commit, fetched if missing.
    fn tree<'a>(&'a self, commit: &'a str) -> Reply<'a, Tree>;
    /// The object of a fetched commit.
    fn commit<'a>(&'a self, commit: &'a str) -> Reply<'a, Vec<u8>>;
    /// Reads blobs of a fetched commit, each in the requested form, into `known`.
    fn blobs<'a>(
        &'a self,
        wanted: &'a BTreeSet<(String, Ask)>,
        known: &'a mut Known,
    ) -> Reply<'a, ()>;
    /// Packs the snapshot of a fetched commit, including LFS files and submodules. With it comes a remark on its large files.
    fn pack<'a>(
        &'a self,
        commit: &'a str,
        tree: &'a Tree,
    ) -> Reply<'a, (NamedTempFile, Option<String>)>;
}

pub struct Servers {
    pub git: Commands,
    pub mirrors: Arc<Mirrors>,
    pub tokens: Tokens,
    /// A private directory, in memory if possible, for private keys in use.
    pub private: PathBuf,
}

/// The access to a server, with the files needed for it, which are deleted on drop.
struct Server {
    repository: Repository,
    uid: String,
    git: Commands,
    mirrors: Arc<Mirrors>,
    private: PathBuf,
    /// The branch that `HEAD` names.
    head: OnceLock<String>,
    _busy: Busy,
    _keys: Option<SshFiles>,
    _authorities: Vec<NamedTempFile>,
}

impl Git for Servers {
    fn reach<'a>(
        &'a self,
        view: &'a View,
        secrets: Secrets,
        now: Timestamp,
    ) -> Reply<'a, Box<dyn Remote>> {
        Box::pin(
            async move { Ok(Box::new(self.server(view, &secrets, now).await?) as Box<dyn Remote>) },
        )
    }

    fn forget(&self, uid: &str) {
        self.mirrors.remove(uid);
    }

    fn make_room(&self) {
        self.mirrors.make_room();
    }
}

impl Servers {
    async fn server(
        &self,
        view: &View,
        secrets: &Secrets,
        now: Timestamp,
    ) -> Result<Server, Problem> {
        let url =
            Url::parse(&view.repository.spec.url).ok_or(FetchError::<GitError>::IllegalUrl)?;
        let Access { mut login, app } = credentials::access(&url, &view.repository.spec, secrets)?;
        if let Some(app) = &app {
            let token = self
                .tokens
                .token(app, &url, login.authority.as_deref(), now)
                .await?;
            login.http = Some(source::Credentials::Basic(
                "x-access-token".to_owned(),
                token,
            ));
        }
        let further = credentials::further(&view.repository.spec, secrets)?;
        let logins = of_source(Some(login), &url, further);
        let git = self
            .git
            .without(logins.iter().flat_map(source::Login::secrets));
        let mut repository =
            Repository::new::<GitError>(url.as_str(), "HEAD")?.with_logins::<GitError>(&logins)?;
        let fault = |error: std::io::Error| {
            Problem::new(
                Reason::AgentFault,
                format!("the request to the server cannot be encoded: {error}"),
            )
        };
        let mut keys = None;
        if logins.iter().any(|login| login.identity.is_some()) {
            let dir = self
                .private
                .join(format!("keys-{:016x}", rand::random::<u64>()));
            let way = git.outbound.as_ref().map(Outbound::ssh);
            let files = SshFiles::create(&dir, &logins, &way.unwrap_or_default());
            keys = Some(files.map_err(fault)?);
            repository = repository.with_ssh(dir);
        }
        let mut authorities = Vec::new();
        for login in &logins {
            let Some(pem) = &login.authority else {
                continue;
            };
            let file = tempfile::NamedTempFile::new_in(&self.private).map_err(fault)?;
            std::fs::write(file.path(), pem).map_err(fault)?;
            repository = repository.with_authority(&login.scope(), file.path().to_owned());
            authorities.push(file);
        }
        Ok(Server {
            repository,
            uid: view.uid().to_owned(),
            git,
            _busy: Mirrors::uses(&self.mirrors, view.uid()),
            mirrors: self.mirrors.clone(),
            private: self.private.clone(),
            head: OnceLock::new(),
            _keys: keys,
            _authorities: authorities,
        })
    }
}

impl Server {
    fn mirror(&self) -> Mirror<'_> {
        Mirror {
            mirrors: &self.mirrors,
            uid: &self.uid,
            git: &self.git,
            repository: &self.repository,
        }
    }
}

impl Remote for Server {
    fn url(&self) -> &str {
        self.repository.url().as_str()
    }

    fn listing<'a>(&'a self, names: &'a [&str]) -> Reply<'a, Listing> {
        Box::pin(async move {
            let mut patterns = refs::patterns(names.iter().copied());
            // Each snapshot says which branch it is.
            if !names.contains(&"HEAD") {
                patterns.push("HEAD".to_owned());
            }
            let url = self.url();
            let args: Vec<&str> = ["ls-remote", "--quiet", "--symref", "--", url]
                .into_iter()
                .chain(patterns.iter().map(String::as_str))
                .collect();
            let env = self.git.towards(url, &self.repository);
            let output = self
                .git
                .output(&args, &env, &self.private, Vec::new(), MAX_REFS)
                .await;
            let output = output.map_err(|error| Problem::from(&error))?;
            if output.ended.code != 0 {
                return Err(Problem::refused(url, true, "HEAD", &output.ended));
            }
            let listing = String::from_utf8_lossy(&output.stdout);
            if let Some(head) = listing.lines().find_map(head_of) {
                let _ = self.head.set(head);
            }
            Ok(Listing::parse(&listing))
        })
    }

    fn tree<'a>(&'a self, commit: &'a str) -> Reply<'a, Tree> {
        Box::pin(async move {
            let mirror = self.mirror();
            mirror.fetch(self.url(), commit).await?;
            mirror.tree(self.url(), commit).await
        })
    }

    fn commit<'a>(&'a self, commit: &'a str) -> Reply<'a, Vec<u8>> {
        Box::pin(async move { self.mirror().commit(commit).await })
    }

    fn blobs<'a>(
        &'a self,
        wanted: &'a BTreeSet<(String, Ask)>,
        known: &'a mut Known,
    ) -> Reply<'a, ()> {
        Box::pin(async move { self.mirror().blobs(wanted, known).await })
    }

    fn pack<'a>(
        &'a self,
        commit: &'a str,
        tree: &'a Tree,
    ) -> Reply<'a, (NamedTempFile, Option<String>)> {
        Box::pin(async move {
            let (mirror, url) = (self.mirror(), self.url());
            let tags = mirror.tags(commit).await?;
            let (mut remotes, mut large) = (Vec::new(), BTreeSet::new());
            let mut remarks = Vec::new();
            for of in submodules::fetch(&mirror, url, commit, tree).await? {
                let (pointers, remark) = mirror.large(&of.url, &of.commit, &of.tree).await?;
                large.extend(pointers);
                remarks.extend(remark);
                remotes.push((of.url, of.commit));
            }
            let header = Header {
                head: self.head.get().cloned(),
                tags,
                remotes,
                ..Header::default()
            };
            let large = large.into_iter().collect();
            let packed = store::packed(&self.git, &mirror.dir(), header, large).await?;
            let remark = (!remarks.is_empty()).then(|| clip(&remarks.join("; "), 1000));
            Ok((packed, remark))
        })
    }
}
