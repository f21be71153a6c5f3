//! One check of a repository: the commits of its refs, and news for its layers. Writes only mirrors and snapshots. A
//! snapshot is stored before its commit is reported anywhere.

use std::{collections::BTreeMap, sync::Arc};

use crds::{Commit, LayerSource, RefStatus, datastore::Stored, text::clip};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    commit,
    credentials::Secrets,
    failure::Problem,
    follow::{Key, Layer, View},
    refs,
    relevance::{Content, Subject, content, whole},
    schedule::{Answer, Cause, Memory, is_tried},
    server::{Git, Remote},
    status::{At, Look, Seen},
    store::{self, Snapshots},
    tree::Tree,
    walk::Known,
};

/// Maximum rounds of reading blobs, each for the references of the previous ones. Real modules are not nested this
/// deep.
const MAX_ROUNDS: usize = 64;

pub struct Syncer<B> {
    pub git: Box<dyn Git>,
    pub snapshots: B,
}

pub struct SyncResult {
    /// The result for the repository's status.
    pub look: Look,
    /// News for layers.
    pub sources: Vec<(Arc<Layer>, LayerSource)>,
    /// The layer requests that this check answered, with or without news.
    pub answered: BTreeMap<Key, Answer>,
}

impl<B: Snapshots> Syncer<B> {
    /// Checks a repository. `secrets` are those that it names.
    pub async fn look(
        &self,
        view: &View,
        secrets: Result<Secrets, Problem>,
        memory: &Memory,
        cause: Cause,
        now: Timestamp,
    ) -> SyncResult {
        let begun = Instant::now();
        let names = view.refs();
        let mut found = SyncResult {
            look: Look {
                generation: view.repository.metadata.generation,
                request: view.request().cloned(),
                beyond: view.beyond(),
                ..Look::default()
            },
            sources: Vec::new(),
            answered: BTreeMap::new(),
        };
        let asked = async {
            let place = self.git.reach(view, secrets?, now).await?;
            let listing = place.listing(&names).await?;
            Ok((place, listing))
        };
        let (place, listing) = match asked.await {
            Ok(answer) => answer,
            Err(problem) => {
                found.look.failed = Some(problem);
                found.look.refs = names
                    .into_iter()
                    .map(|name| (name.to_owned(), Seen::Unseen))
                    .collect();
                return found;
            }
        };
        for name in names {
            let known = view
                .repository
                .status
                .as_ref()
                .and_then(|status| status.refs.iter().find(|known| known.name == name));
            let at = if refs::is_fixed(name) {
                Some(name)
            } else {
                listing.commit(name)
            };
            let is_where_it_failed = known.is_some_and(|known| {
                at == known.commit.as_ref().map(|commit| commit.revision.as_str()) || at.is_none()
            });
            if let Some(known) = known
                && is_where_it_failed
                && !is_tried(known, memory, cause, now)
            {
                found.look.refs.push((name.to_owned(), Seen::Unseen));
                continue;
            }
            let seen = if let Some(at) = at {
                let of_ref = OfRef {
                    view,
                    name,
                    known,
                    at,
                    begun,
                    verify: cause == Cause::Request || memory.looked.is_none(),
                };
                self.reference(&*place, &of_ref, memory, &mut found).await
            } else {
                let (url, name) = (place.url(), clip(name, 100));
                Err(Problem::new(
                    crds::Reason::RevisionNotFound,
                    format!("{url} has no branch or tag {name}"),
                ))
            };
            found
                .look
                .refs
                .push((name.to_owned(), seen.unwrap_or_else(Seen::Failed)));
        }
        found
    }

    /// Stores a revision that runs wait for, whether or not a ref points to it.
    ///
    /// # Errors
    /// Why it was not stored.
    pub async fn store(
        &self,
        view: &View,
        secrets: Result<Secrets, Problem>,
        revision: &str,
        now: Timestamp,
    ) -> Result<(), Problem> {
        let place = self.git.reach(view, secrets?, now).await?;
        let tree = place.tree(revision).await?;
        self.keep(&*place, view, revision, &tree).await.map(drop)
    }

    /// Stores the snapshot of a commit. The remark is one on its large files.
    async fn keep(
        &self,
        place: &dyn Remote,
        view: &View,
        at: &str,
        tree: &Tree,
    ) -> Result<(Stored, Option<String>), Problem> {
        let (packed, remark) = place.pack(at, tree).await?;
        let namespace = view
            .repository
            .metadata
            .namespace
            .as_deref()
            .unwrap_or_default();
        self.snapshots
            .put(namespace, view.uid(), at, packed.path())
            .await
            .map(|stored| (stored, remark))
            .map_err(|error| store::unkept(&error))
    }

    /// The commit of a ref, and news for its layers.
    async fn reference(
        &self,
        place: &dyn Remote,
        of: &OfRef<'_>,
        memory: &Memory,
        found: &mut SyncResult,
    ) -> Result<Seen, Problem> {
        let OfRef {
            view,
            name,
            known,
            at,
            ..
        } = *of;
        let before = known.and_then(|known| known.commit.as_ref());
        let is_same = before.is_some_and(|before| before.revision == at && before.digest.is_some());
        let wants = |layer: &&Arc<Layer>| {
            !is_same || !layer.is_current() || !memory.has_answered(layer, view)
        };
        let layers: Vec<&Arc<Layer>> = view.of_ref(name).filter(wants).collect();
        let kept = if is_same && !of.verify {
            before.cloned()
        } else {
            None
        };
        if layers.is_empty() && kept.is_some() {
            return Ok(Seen::Same);
        }
        let (namespace, uid) = (
            view.repository
                .metadata
                .namespace
                .as_deref()
                .unwrap_or_default(),
            view.uid(),
        );
        let stored = match kept {
            Some(_) => None,
            None => self
                .snapshots
                .digest(namespace, uid, at)
                .await
                .map_err(|error| store::unkept(&error))?,
        };
        if layers.is_empty() && is_same && stored.is_some() {
            return Ok(Seen::Same);
        }
        let tree = place.tree(at).await?;
        let commit = match (kept, stored) {
            (Some(kept), _) => kept,
            (None, Some(stored)) => Commit {
                digest: Some(stored.digest),
                size: Some(stored.size),
                large: remark(view, found, at),
                ..commit::facts(at, &place.commit(at).await?)
            },
            (None, None) => {
                let (stored, large) = self.keep(place, view, at, &tree).await?;
                Commit {
                    digest: Some(stored.digest),
                    size: Some(stored.size),
                    large,
                    ..commit::facts(at, &place.commit(at).await?)
                }
            }
        };
        self.sources(place, view, &layers, &commit, &tree, found)
            .await?;
        if is_same && before.is_some_and(|before| before.digest == commit.digest) {
            return Ok(Seen::Same);
        }
        Ok(Seen::At(Box::new(At {
            commit,
            took: of.begun.elapsed(),
        })))
    }

    /// News of a commit for layers.
    async fn sources(
        &self,
        place: &dyn Remote,
        view: &View,
        layers: &[&Arc<Layer>],
        commit: &Commit,
        tree: &Tree,
        found: &mut SyncResult,
    ) -> Result<(), Problem> {
        let subjects: Vec<Subject> = layers
            .iter()
            .map(|layer| layer.subject(&view.repository.spec.defaults))
            .collect();
        let mut known = Known::new();
        let mut contents = Vec::new();
        for round in 0..=MAX_ROUNDS {
            contents = subjects
                .iter()
                .map(|subject| content(tree, subject, &known))
                .collect();
            let missing = contents.iter().filter_map(|content| {
                if let Content::Missing(missing) = content {
                    Some(missing)
                } else {
                    None
                }
            });
            let missing: std::collections::BTreeSet<_> = missing.flatten().cloned().collect();
            if missing.is_empty() || round == MAX_ROUNDS {
                break;
            }
            place.blobs(&missing, &mut known).await?;
        }
        for ((layer, subject), content) in layers.iter().zip(subjects).zip(contents) {
            let content = match content {
                Content::Missing(_) => {
                    let why = format!(
                        "modules or links in a chain longer than {MAX_ROUNDS}: each commit counts"
                    );
                    whole(tree, why)
                }
                content => content,
            };
            if let Some(source) = source(layer, &content, commit) {
                found.sources.push((Arc::clone(layer), source));
            }
            found
                .answered
                .insert(layer.key.clone(), Answer::new(layer, subject));
        }
        Ok(())
    }
}

struct OfRef<'a> {
    view: &'a View,
    name: &'a str,
    known: Option<&'a RefStatus>,
    /// Its current commit.
    at: &'a str,
    begun: Instant,
    /// Whether to check that the datastore still has its snapshot.
    verify: bool,
}

/// The remark on the large files of a commit whose snapshot was stored for another ref, or earlier.
fn remark(view: &View, found: &SyncResult, at: &str) -> Option<String> {
    let known = view.repository.status.iter().flat_map(|s| &s.refs);
    let known = known.filter_map(|known| known.commit.as_ref());
    let fresh = found.look.refs.iter().filter_map(|(_, seen)| match seen {
        Seen::At(at) => Some(&at.commit),
        _ => None,
    });
    let mut all = fresh.chain(known);
    all.find(|commit| commit.revision == at)?.large.clone()
}

/// The new source of a layer for a commit; `None` when it is unchanged.
fn source(layer: &Layer, content: &Content, commit: &Commit) -> Option<LayerSource> {
    let (digest, missing, not_followed) = match content {
        Content::There(digest, not_followed) => (digest.clone(), None, not_followed.clone()),
        Content::NotThere(why) => (String::new(), Some(clip(why, 500)), Vec::new()),
        Content::Missing(_) => return None,
    };
    let fresh = LayerSource {
        of: layer.of.clone(),
        revision: commit.revision.clone(),
        content: digest,
        subject: commit.subject.clone(),
        missing,
        not_followed: not_followed.iter().map(|call| clip(call, 250)).collect(),
    };
    let Some(old) = &layer.source else {
        return Some(fresh);
    };
    if old.content != fresh.content || old.missing != fresh.missing {
        return Some(fresh);
    }
    if old.of == fresh.of && old.not_followed == fresh.not_followed {
        return None;
    }
    // For the same ref and path with the same content, the layer keeps the first commit, also if its globs changed.
    let place = |of: &str| of.rsplit_once('\n').map(|(place, _)| place.to_owned());
    let first = place(&old.of) == place(&fresh.of);
    Some(if first {
        LayerSource {
            of: fresh.of,
            not_followed: fresh.not_followed,
            ..old.clone()
        }
    } else {
        fresh
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(source: Option<LayerSource>, of: &str) -> Layer {
        let spec =
            serde_json::from_value(serde_json::json!({"repository": {"name": "r"}})).unwrap();
        let mut layer = Layer::of(&crds::TerraformLayer::new("l", spec));
        (layer.source, layer.of) = (source, of.into());
        layer
    }

    fn commit(revision: &str) -> Commit {
        Commit {
            revision: revision.into(),
            subject: Some("s".into()),
            ..Commit::default()
        }
    }

    /// Burrito 11.3: a commit that arrived during the plan of another counted as planned, because only times were
    /// compared. Here the content is compared.
    #[test]
    fn layer_gets_the_first_commit_with_new_content() {
        let there = |digest: &str| Content::There(digest.into(), Vec::new());
        let first = source(&layer(None, "main\n.\nt"), &there("x"), &commit("a")).unwrap();
        assert_eq!(
            (first.revision.as_str(), first.content.as_str()),
            ("a", "x")
        );
        let told = |content: &Content, of: &str, revision: &str| {
            source(&layer(Some(first.clone()), of), content, &commit(revision))
        };
        assert_eq!(
            told(&there("x"), "main\n.\nt", "b"),
            None,
            "nothing relevant"
        );
        let second = told(&there("y"), "main\n.\nt", "c").unwrap();
        assert_eq!(second.revision, "c");
        let globs = told(&there("x"), "main\n.\nu", "d").unwrap();
        assert_eq!(
            (globs.revision.as_str(), globs.of.as_str()),
            ("a", "main\n.\nu"),
            "other globs, and nothing that they find"
        );
        assert_eq!(
            told(&there("x"), "prod\n.\nt", "d").unwrap().revision,
            "d",
            "another ref"
        );
        let gone = told(&Content::NotThere("no such".into()), "main\n.\nt", "e").unwrap();
        assert_eq!(
            (gone.missing.as_deref(), gone.content.as_str()),
            (Some("no such"), "")
        );
        assert_eq!(
            source(
                &layer(Some(gone), "main\n.\nt"),
                &Content::NotThere("no such".into()),
                &commit("f")
            ),
            None
        );
    }
}
