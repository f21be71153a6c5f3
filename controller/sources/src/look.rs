//! One look at a repository: what its refs are at, and what is new of that for its layers. It writes nothing but mirrors and bundles; a bundle is
//! stored before anybody is told of its commit.

use std::{path::PathBuf, sync::Arc, time::Instant};

use crds::{Commit, LayerSource, RefStatus, text::clip};
use jiff::Timestamp;
use source::{FetchError, Repository, SshFiles, Url};

use crate::{
    commit,
    credentials::{self, Data},
    failure::Problem,
    follow::{Key, Layer, View},
    git::{Commands, GitError},
    github_app::Tokens,
    mirror::{Mirror, Mirrors},
    refs::{self, Listing},
    relevance::{Content, Subject, content},
    schedule::{Cause, Memory, is_tried},
    status::{At, Look, Seen},
    store::{self, Bundles},
    submodules,
    walk::Known,
};

/// The longest listing of refs, in bytes.
const MAX_REFS: usize = 64 << 20;
/// How often blobs are asked for, each time what the last ones lead to. Modules do not lie that deep.
const MAX_ROUNDS: usize = 64;

/// What looks are made with.
pub struct Looker<B> {
    /// How git is run.
    pub git: Commands,
    /// The mirrors.
    pub mirrors: Mirrors,
    /// Where bundles are kept.
    pub bundles: B,
    /// Tokens of GitHub Apps.
    pub tokens: Tokens,
    /// A directory of this process's own, in memory where there is such a place: private keys lie there while they are used.
    pub private: PathBuf,
}

/// What a look has found.
pub struct Found {
    /// What there is to say of the repository.
    pub look: Look,
    /// What is new for layers.
    pub sources: Vec<(Arc<Layer>, LayerSource)>,
    /// What of layers was answered by that, whether it is new or not.
    pub answered: Vec<(Key, (String, Subject))>,
    /// Refs that went on: from which commit, and when that was committed.
    pub moved: Vec<(String, String, Timestamp)>,
    server: Option<Server>,
}

/// How a server is asked, and the files that are needed for it; they go with this value.
struct Server {
    repository: Repository,
    git: Commands,
    _keys: Option<SshFiles>,
    _authority: Option<tempfile::NamedTempFile>,
}

impl<B: Bundles> Looker<B> {
    /// Looks at a repository. `secret` is what the Secret that it names has, with its name.
    pub async fn look(
        &self,
        view: &View,
        secret: Result<Option<(String, Data)>, Problem>,
        memory: &Memory,
        cause: Cause,
        now: Timestamp,
    ) -> Found {
        let begun = Instant::now();
        let names = view.refs();
        let mut found = Found {
            look: Look {
                generation: view.repository.metadata.generation,
                poke: view.poke().cloned(),
                beyond: view.beyond(),
                ..Look::default()
            },
            sources: Vec::new(),
            answered: Vec::new(),
            moved: Vec::new(),
            server: None,
        };
        let asked = async {
            let server = self.server(view, secret?, now).await?;
            let listing = self.listing(&server, &names).await?;
            Ok((server, listing))
        };
        let (server, listing) = match asked.await {
            Ok(answer) => answer,
            Err(problem) => {
                found.look.failed = Some(problem);
                found.look.refs = names.into_iter().map(|name| (name.to_owned(), Seen::Unseen)).collect();
                return found;
            }
        };
        let _busy = self.mirrors.uses(view.uid());
        for name in names {
            let known = view.repository.status.as_ref().and_then(|status| status.refs.iter().find(|known| known.name == name));
            let at = if refs::is_fixed(name) { Some(name) } else { listing.commit(name) };
            let is_where_it_failed =
                known.is_some_and(|known| at == known.commit.as_ref().map(|commit| commit.revision.as_str()) || at.is_none());
            if let Some(known) = known
                && is_where_it_failed
                && !is_tried(known, memory, cause, now)
            {
                found.look.refs.push((name.to_owned(), Seen::Unseen));
                continue;
            }
            let seen = if let Some(at) = at {
                let of_ref = OfRef { view, name, known, at, begun, verify: cause == Cause::Poke || memory.looked.is_none() };
                self.reference(&server, &of_ref, memory, &mut found).await
            } else {
                let (url, name) = (server.repository.url().as_str(), clip(name, 100));
                Err(Problem::new(crds::Reason::RevisionNotFound, format!("{url} has no branch or tag {name}")))
            };
            found.look.refs.push((name.to_owned(), seen.unwrap_or_else(Seen::Failed)));
        }
        found.server = Some(server);
        found
    }

    /// Says which refs were moved by force: after layers have been told, since it is asked of the server.
    pub async fn forced(&self, view: &View, found: &mut Found) {
        let Some(server) = found.server.take() else { return };
        let _busy = self.mirrors.uses(view.uid());
        let mirror = self.mirror(&server, view);
        for (name, before, time) in &found.moved {
            let seen = found.look.refs.iter_mut().find(|(of, _)| of == name);
            let Some((_, Seen::At(at))) = seen else { continue };
            // What is older cannot follow; and a server has no words of its own for that.
            let is_older = at.commit.time.as_ref().is_some_and(|own| own.0 < *time);
            let follows = if is_older {
                Some(false)
            } else {
                mirror.follows(server.repository.url().as_str(), &at.commit.revision, before, *time).await
            };
            at.forced_from = (follows == Some(false)).then(|| before.clone());
        }
    }

    /// What a ref is at, and what is new of that for its layers.
    async fn reference(&self, server: &Server, of: &OfRef<'_>, memory: &Memory, found: &mut Found) -> Result<Seen, Problem> {
        let OfRef { view, name, known, at, .. } = *of;
        let before = known.and_then(|known| known.commit.as_ref());
        let is_same = before.is_some_and(|before| before.revision == at && before.digest.is_some());
        let wants = |layer: &&Arc<Layer>| !is_same || !layer.is_current() || !memory.has_answered(layer, view);
        let layers: Vec<&Arc<Layer>> = view.of_ref(name).filter(wants).collect();
        let kept = if is_same && !of.verify { before.cloned() } else { None };
        if layers.is_empty() && kept.is_some() {
            return Ok(Seen::Same);
        }
        let (namespace, uid) = (view.repository.metadata.namespace.as_deref().unwrap_or_default(), view.uid());
        let stored = match kept {
            Some(_) => None,
            None => self.bundles.digest(namespace, uid, at).await.map_err(|error| store::unkept(&error))?,
        };
        if layers.is_empty() && is_same && stored.is_some() {
            return Ok(Seen::Same);
        }
        let mirror = self.mirror(server, view);
        let url = server.repository.url().as_str();
        mirror.fetch(url, at).await?;
        let tree = mirror.tree(at).await?;
        let commit = match (kept, stored) {
            (Some(kept), _) => kept,
            (None, Some(stored)) => {
                Commit { digest: Some(stored.digest), size: Some(stored.size), ..commit::facts(at, &mirror.commit(at).await?) }
            }
            (None, None) => {
                submodules::fetch(&mirror, url, at, &tree).await?;
                mirror.large(url, at).await?;
                let facts = commit::facts(at, &mirror.commit(at).await?);
                let stored = store::keep(&self.bundles, &server.git, &mirror.dir(), (namespace, uid, at)).await?;
                Commit { digest: Some(stored.digest), size: Some(stored.size), ..facts }
            }
        };
        self.sources(&mirror, view, &layers, &commit, &tree, found).await?;
        if is_same && before.is_some_and(|before| before.digest == commit.digest) {
            return Ok(Seen::Same);
        }
        if let Some(before) = before.filter(|before| before.revision != at)
            && let Some(time) = &before.time
        {
            found.moved.push((name.to_owned(), before.revision.clone(), time.0));
        }
        Ok(Seen::At(Box::new(At { commit, took: of.begun.elapsed(), forced_from: None })))
    }

    /// What of a commit is new for layers.
    async fn sources(
        &self,
        mirror: &Mirror<'_>,
        view: &View,
        layers: &[&Arc<Layer>],
        commit: &Commit,
        tree: &crate::tree::Tree,
        found: &mut Found,
    ) -> Result<(), Problem> {
        let subjects: Vec<Subject> = layers.iter().map(|layer| layer.subject(&view.repository.spec.defaults)).collect();
        let mut known = Known::new();
        let mut contents = Vec::new();
        for _ in 0..MAX_ROUNDS {
            contents = subjects.iter().map(|subject| content(tree, subject, &known)).collect();
            let missing =
                contents.iter().filter_map(|content| if let Content::Missing(missing) = content { Some(missing) } else { None });
            let missing: std::collections::BTreeSet<_> = missing.flatten().cloned().collect();
            if missing.is_empty() {
                break;
            }
            mirror.blobs(&missing, &mut known).await?;
        }
        for ((layer, subject), content) in layers.iter().zip(subjects).zip(contents) {
            if let Some(source) = source(layer, &content, commit) {
                found.sources.push((Arc::clone(layer), source));
            }
            found.answered.push((layer.key.clone(), (layer.of.clone(), subject)));
        }
        Ok(())
    }

    /// The refs that layers name, as the server has them. Where none moves, or there is none, it is only asked whether it is there.
    async fn listing(&self, server: &Server, names: &[&str]) -> Result<Listing, Problem> {
        let mut patterns = refs::patterns(names.iter().copied());
        if patterns.is_empty() {
            patterns.push("HEAD".to_owned());
        }
        let url = server.repository.url().as_str();
        let args: Vec<&str> =
            ["ls-remote", "--quiet", "--", url].into_iter().chain(patterns.iter().map(String::as_str)).collect();
        let output = server.git.output(&args, &self.env(server), &self.private, Vec::new(), MAX_REFS).await;
        let output = output.map_err(|error| Problem::from(&error))?;
        if output.ended.code != 0 {
            let error: FetchError<GitError> = source::words::refused(url, "HEAD", &output.ended);
            return Err(error.into());
        }
        Ok(Listing::parse(&String::from_utf8_lossy(&output.stdout)))
    }

    /// How a repository's server is asked.
    async fn server(&self, view: &View, secret: Option<(String, Data)>, now: Timestamp) -> Result<Server, Problem> {
        let illegal = |error: FetchError<GitError>| Problem::from(error);
        let url = Url::parse(&view.repository.spec.url).ok_or(FetchError::IllegalUrl).map_err(illegal)?;
        let mut access = credentials::access(&url, secret.as_ref().map(|(name, data)| (name.as_str(), data)))?;
        if let Some(app) = &access.app {
            let token = self.tokens.token(app, &url, access.authority.as_deref(), now).await?;
            let login = access.login.get_or_insert_with(|| source::Login {
                origin: url.web_origin(),
                host: url.host().to_owned(),
                http: None,
                identity: None,
                known_hosts: None,
                authority: None,
            });
            login.http = Some(source::Credentials::Basic("x-access-token".to_owned(), token));
        }
        let logins: Vec<source::Login> = access.login.into_iter().collect();
        let git = self.git.without(logins.iter().flat_map(source::Login::secrets));
        let mut repository = Repository::new(url.as_str(), "HEAD").and_then(|new| new.with_logins(&logins)).map_err(illegal)?;
        let fault = |error: std::io::Error| {
            Problem::new(crds::Reason::AgentFault, format!("what the server is asked with cannot be written: {error}"))
        };
        let mut keys = None;
        if logins.iter().any(|login| login.identity.is_some()) {
            let dir = self.private.join(format!("keys-{:016x}", rand::random::<u64>()));
            keys = Some(SshFiles::create(&dir, &logins).map_err(fault)?);
            repository = repository.with_ssh(dir);
        }
        let mut authority = None;
        if let Some(pem) = &access.authority {
            let file = tempfile::NamedTempFile::new_in(&self.private).map_err(fault)?;
            std::fs::write(file.path(), pem).map_err(fault)?;
            repository = repository.with_authority(&url.web_origin(), file.path().to_owned());
            authority = Some(file);
        }
        Ok(Server { repository, git, _keys: keys, _authority: authority })
    }

    fn env(&self, server: &Server) -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
        server.repository.env(self.git.inherited(), &[])
    }

    fn mirror<'a>(&'a self, server: &'a Server, view: &'a View) -> Mirror<'a> {
        Mirror { mirrors: &self.mirrors, uid: view.uid(), git: &server.git, env: self.env(server) }
    }
}

/// A ref that is looked at.
struct OfRef<'a> {
    view: &'a View,
    name: &'a str,
    known: Option<&'a RefStatus>,
    /// The commit that it is at.
    at: &'a str,
    begun: Instant,
    /// Whether the datastore is asked for its bundle even when it was stored once.
    verify: bool,
}

/// What a layer is told of a commit; none when it is told already.
fn source(layer: &Layer, content: &Content, commit: &Commit) -> Option<LayerSource> {
    let (digest, missing) = match content {
        Content::There(digest) => (digest.clone(), None),
        Content::NotThere(why) => (String::new(), Some(clip(why, 500))),
        Content::Missing(_) => return None,
    };
    let fresh = LayerSource {
        of: layer.of.clone(),
        revision: commit.revision.clone(),
        content: digest,
        subject: commit.subject.clone(),
        missing,
    };
    let Some(old) = &layer.source else { return Some(fresh) };
    if old.content != fresh.content || old.missing != fresh.missing {
        return Some(fresh);
    }
    if old.of == fresh.of {
        return None;
    }
    // Of the same ref and path the first commit stays the one to plan: other globs have found nothing else.
    let place = |of: &str| of.rsplit_once('\n').map(|(place, _)| place.to_owned());
    let first = place(&old.of) == place(&fresh.of);
    Some(if first { LayerSource { of: fresh.of, ..old.clone() } } else { fresh })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(source: Option<LayerSource>, of: &str) -> Layer {
        let spec = serde_json::from_value(serde_json::json!({"repository": {"name": "r"}})).unwrap();
        let mut layer = Layer::of(&crds::TerraformLayer::new("l", spec));
        (layer.source, layer.of) = (source, of.into());
        layer
    }

    fn commit(revision: &str) -> Commit {
        Commit { revision: revision.into(), subject: Some("s".into()), ..Commit::default() }
    }

    /// Burrito 11.3: a commit that arrives while another is planned counts as planned, since only times are compared. What is compared here is
    /// content, whenever it came.
    #[test]
    fn a_layer_is_told_of_the_first_commit_with_other_content() {
        let there = |digest: &str| Content::There(digest.into());
        let first = source(&layer(None, "main\n.\nt"), &there("x"), &commit("a")).unwrap();
        assert_eq!((first.revision.as_str(), first.content.as_str()), ("a", "x"));
        let told =
            |content: &Content, of: &str, revision: &str| source(&layer(Some(first.clone()), of), content, &commit(revision));
        assert_eq!(told(&there("x"), "main\n.\nt", "b"), None, "nothing relevant");
        let second = told(&there("y"), "main\n.\nt", "c").unwrap();
        assert_eq!(second.revision, "c");
        let globs = told(&there("x"), "main\n.\nu", "d").unwrap();
        assert_eq!((globs.revision.as_str(), globs.of.as_str()), ("a", "main\n.\nu"), "other globs, and nothing that they find");
        assert_eq!(told(&there("x"), "prod\n.\nt", "d").unwrap().revision, "d", "another ref");
        let gone = told(&Content::NotThere("no such".into()), "main\n.\nt", "e").unwrap();
        assert_eq!((gone.missing.as_deref(), gone.content.as_str()), (Some("no such"), ""));
        assert_eq!(source(&layer(Some(gone), "main\n.\nt"), &Content::NotThere("no such".into()), &commit("f")), None);
    }
}
