//! The state of the watches: repositories, and the layers that use them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crds::{LayerSource, RunTemplate, TerraformLayer, TerraformRepository, names, version};
use kube::ResourceExt as _;

use crate::{relevance::Subject, status::MAX_REFS};

/// Namespace and name.
pub type Key = (String, String);

/// The part of a layer that is needed here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    pub key: Key,
    pub uid: String,
    pub repository: Key,
    pub git_ref: String,
    /// The value that `status.source.of` must have.
    pub of: String,
    /// `status.source`.
    pub source: Option<LayerSource>,
    /// Revisions that it may still need: of its source, its last plan and its last apply.
    pub revisions: BTreeSet<String>,
    path: String,
    triggers: Vec<String>,
    /// Variable files and hooks of its own template; `None` of those that it does not set.
    files: [Option<Vec<String>>; 2],
}

impl Layer {
    pub fn of(layer: &TerraformLayer) -> Self {
        let status = layer.status.clone().unwrap_or_default();
        let runs = [&status.last_plan, &status.last_apply]
            .into_iter()
            .flatten()
            .map(|run| run.revision.clone());
        Self {
            key: (layer.namespace().unwrap_or_default(), layer.name_any()),
            uid: layer.uid().unwrap_or_default(),
            repository: layer.repository_key(),
            git_ref: layer.spec.git_ref.clone(),
            of: layer.source_of(),
            revisions: status
                .source
                .iter()
                .map(|source| source.revision.clone())
                .chain(runs)
                .collect(),
            source: status.source,
            path: layer.spec.path.clone(),
            triggers: layer.spec.trigger_paths.clone(),
            files: files(&layer.spec.template),
        }
    }

    /// The settings that determine which files are relevant to the layer, with its repository's defaults.
    pub fn subject(&self, defaults: &RunTemplate) -> Subject {
        let of_defaults = files(defaults);
        let files = self.files.iter().zip(&of_defaults);
        let files = files.filter_map(|(own, default)| own.as_ref().or(default.as_ref()));
        Subject {
            path: self.path.clone(),
            files: files.flatten().cloned().collect(),
            triggers: self.triggers.clone(),
        }
    }

    /// Whether its `status.source` belongs to its current spec.
    pub fn is_current(&self) -> bool {
        self.source
            .as_ref()
            .is_some_and(|source| source.of == self.of)
    }
}

/// Paths of variable files and of hooks of the source in a template.
fn files(template: &RunTemplate) -> [Option<Vec<String>>; 2] {
    ["variableFiles", "hooks"].map(|field| {
        let list = template.0.get(field)?.as_array()?.iter();
        Some(
            list.filter_map(|one| one["path"].as_str().map(str::to_owned))
                .collect(),
        )
    })
}

/// A repository with the layers that it allows.
#[derive(Clone, Debug)]
pub struct View {
    pub repository: Arc<TerraformRepository>,
    pub layers: Vec<Arc<Layer>>,
}

impl View {
    /// The refs that layers use, sorted, up to the maximum.
    pub fn refs(&self) -> Vec<&str> {
        let all: BTreeSet<&str> = self
            .layers
            .iter()
            .map(|layer| layer.git_ref.as_str())
            .collect();
        all.into_iter().take(MAX_REFS).collect()
    }

    /// Number of refs beyond the maximum.
    pub fn beyond(&self) -> usize {
        let all: BTreeSet<&str> = self
            .layers
            .iter()
            .map(|layer| layer.git_ref.as_str())
            .collect();
        all.len().saturating_sub(MAX_REFS)
    }

    pub fn of_ref<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Arc<Layer>> {
        self.layers
            .iter()
            .filter(move |layer| layer.git_ref == name)
    }

    /// The current request.
    pub fn request(&self) -> Option<&String> {
        self.repository
            .annotations()
            .get(names::RECONCILE)
            .filter(|request| !request.is_empty())
    }

    pub fn uid(&self) -> &str {
        self.repository.metadata.uid.as_deref().unwrap_or_default()
    }
}

#[derive(Debug, Default)]
pub struct Follow {
    repositories: BTreeMap<Key, Arc<TerraformRepository>>,
    /// With the last seen version.
    layers: BTreeMap<Key, (u64, Arc<Layer>)>,
    by_repository: BTreeMap<Key, BTreeSet<Key>>,
}

impl Follow {
    /// Stores a seen repository; returns whether it changed. Ignores versions older than the known one.
    pub fn repository(&mut self, mut repository: TerraformRepository) -> bool {
        repository.metadata.managed_fields = None;
        let key = (
            repository.namespace().unwrap_or_default(),
            repository.name_any(),
        );
        if let Some(known) = self.repositories.get(&key)
            && known.metadata.uid == repository.metadata.uid
            // Our own write may be known before the watch delivers earlier versions.
            && version(&known.metadata) >= version(&repository.metadata)
        {
            return false;
        }
        self.repositories.insert(key, Arc::new(repository));
        true
    }

    /// Removes a repository; returns its UID, if it was known.
    pub fn without_repository(&mut self, key: &Key) -> Option<String> {
        self.repositories.remove(key)?.metadata.uid.clone()
    }

    /// Stores a seen layer; returns the affected repositories. Ignores versions older than the known one.
    pub fn layer(&mut self, layer: &TerraformLayer) -> Vec<Key> {
        let (version, layer) = (version(&layer.metadata), Layer::of(layer));
        let mut before = None;
        if let Some((seen, known)) = self.layers.get_mut(&layer.key) {
            if known.uid == layer.uid && *seen > version {
                return Vec::new();
            }
            *seen = version;
            if **known == layer {
                return Vec::new();
            }
            before = Some(known.clone());
        }
        let mut concerned = vec![layer.repository.clone()];
        if let Some(before) = before.filter(|before| before.repository != layer.repository) {
            self.unlink(&before);
            concerned.push(before.repository.clone());
        }
        self.by_repository
            .entry(layer.repository.clone())
            .or_default()
            .insert(layer.key.clone());
        self.layers
            .insert(layer.key.clone(), (version, Arc::new(layer)));
        concerned
    }

    /// Removes a layer; returns the affected repository.
    pub fn without_layer(&mut self, key: &Key) -> Option<Key> {
        let (_, layer) = self.layers.remove(key)?;
        self.unlink(&layer);
        Some(layer.repository.clone())
    }

    fn unlink(&mut self, layer: &Layer) {
        if let Some(keys) = self.by_repository.get_mut(&layer.repository) {
            keys.remove(&layer.key);
            if keys.is_empty() {
                self.by_repository.remove(&layer.repository);
            }
        }
    }

    pub fn key_of(&self, uid: &str) -> Option<&Key> {
        self.repositories
            .iter()
            .find(|(_, repository)| repository.metadata.uid.as_deref() == Some(uid))
            .map(|(key, _)| key)
    }

    pub fn uid(&self, key: &Key) -> Option<String> {
        self.repositories.get(key)?.metadata.uid.clone()
    }

    pub fn view(&self, key: &Key) -> Option<View> {
        let repository = self.repositories.get(key)?.clone();
        let layers = self
            .by_repository
            .get(key)
            .into_iter()
            .flatten()
            .filter_map(|key| self.layers.get(key))
            .map(|(_, layer)| layer);
        let layers = layers
            .filter(|layer| repository.admits(&layer.key.0))
            .cloned()
            .collect();
        Some(View { repository, layers })
    }

    pub fn repositories(&self) -> impl Iterator<Item = (&Key, &Arc<TerraformRepository>)> {
        self.repositories.iter()
    }

    /// All revisions of a repository that refs and layers may still need, also layers in namespaces that it does not
    /// allow.
    pub fn revisions(&self, key: &Key) -> BTreeSet<String> {
        let status = self
            .repositories
            .get(key)
            .and_then(|repository| repository.status.as_ref());
        let refs = status
            .into_iter()
            .flat_map(|status| &status.refs)
            .filter_map(|known| Some(known.commit.as_ref()?.revision.clone()));
        let layers = self
            .by_repository
            .get(key)
            .into_iter()
            .flatten()
            .filter_map(|key| self.layers.get(key));
        refs.chain(layers.flat_map(|(_, layer)| layer.revisions.iter().cloned()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn layer(namespace: &str, name: &str, spec: Value) -> TerraformLayer {
        let mut layer = TerraformLayer::new(name, serde_json::from_value(spec).unwrap());
        layer.metadata.namespace = Some(namespace.into());
        layer
    }

    fn repository(version: &str, spec: Value) -> TerraformRepository {
        let mut repository = TerraformRepository::new("r", serde_json::from_value(spec).unwrap());
        repository.metadata.namespace = Some("a".into());
        repository.metadata.uid = Some("u".into());
        repository.metadata.resource_version = Some(version.into());
        repository
    }

    fn key(namespace: &str, name: &str) -> Key {
        (namespace.into(), name.into())
    }

    #[test]
    fn layers_are_indexed_by_the_repository_that_allows_them() {
        let mut follow = Follow::default();
        let r = key("a", "r");
        assert!(follow.repository(repository(
            "5",
            json!({"url": "https://h/r", "allowedNamespaces": ["b"]})
        )));
        assert_eq!(
            follow.layer(&layer("a", "x", json!({"repository": {"name": "r"}}))),
            std::slice::from_ref(&r)
        );
        assert!(
            follow
                .layer(&layer("a", "x", json!({"repository": {"name": "r"}})))
                .is_empty(),
            "nothing new"
        );
        follow.layer(&layer(
            "b",
            "x",
            json!({"repository": {"name": "r", "namespace": "a"}, "ref": "prod"}),
        ));
        follow.layer(&layer(
            "c",
            "x",
            json!({"repository": {"name": "r", "namespace": "a"}, "ref": "other"}),
        ));
        let view = follow.view(&r).unwrap();
        assert_eq!(
            (view.refs(), view.of_ref("prod").count()),
            (vec!["main", "prod"], 1)
        );
        let moved = layer("b", "x", json!({"repository": {"name": "r"}}));
        assert_eq!(follow.layer(&moved), [key("b", "r"), r.clone()]);
        assert_eq!(follow.view(&r).unwrap().refs(), ["main"]);
        assert_eq!(follow.without_layer(&key("a", "x")), Some(r.clone()));
        assert!(follow.view(&r).unwrap().refs().is_empty());
        assert_eq!(follow.without_repository(&r), Some("u".into()));
        assert!(follow.view(&r).is_none());
    }

    #[test]
    fn versions_older_than_the_known_one_are_ignored() {
        let mut follow = Follow::default();
        let spec = json!({"url": "https://h/r"});
        assert!(follow.repository(repository("9", spec.clone())));
        assert!(
            !follow.repository(repository("9", spec.clone()))
                && !follow.repository(repository("8", spec.clone()))
        );
        assert!(follow.repository(repository("10", spec.clone())));
        let again = |uid: &str| {
            let mut again = repository("3", spec.clone());
            again.metadata.uid = Some(uid.into());
            again
        };
        assert!(follow.repository(again("v")), "another one of its name");
        let of_layer = |version: &str, uid: &str, git_ref: &str| {
            let mut layer = layer(
                "a",
                "x",
                json!({"repository": {"name": "r"}, "ref": git_ref}),
            );
            layer.metadata.resource_version = Some(version.into());
            layer.metadata.uid = Some(uid.into());
            layer
        };
        assert_eq!(follow.layer(&of_layer("9", "u", "main")).len(), 1);
        assert!(follow.layer(&of_layer("8", "u", "prod")).is_empty());
        assert_eq!(follow.layer(&of_layer("10", "u", "prod")).len(), 1);
        assert_eq!(
            follow.layer(&of_layer("3", "v", "main")).len(),
            1,
            "another one of its name"
        );
    }

    #[test]
    fn layers_variable_files_override_the_repositorys() {
        let files = |path: &str| json!({"variableFiles": [{"path": path}, {"secretKeyRef": {"name": "s", "key": "k"}}]});
        let defaults = serde_json::from_value(files("../common.tfvars")).unwrap();
        let of = |template: Value| {
            let layer = Layer::of(&layer(
                "a",
                "x",
                json!({"repository": {"name": "r"}, "template": template}),
            ));
            layer.subject(&defaults).files
        };
        assert_eq!(of(files("prod.tfvars")), ["prod.tfvars"]);
        assert_eq!(of(json!({})), ["../common.tfvars"]);
        assert!(of(json!({"variableFiles": []})).is_empty());
    }
}
