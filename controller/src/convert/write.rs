//! Builds the created objects.

use std::collections::BTreeMap;

use crds::{duration::Span, names};
use serde_json::{Map, Value, json};

use super::read::{Document, Notes};

/// Prefixes of labels and annotations of the old operator, and of tools that applied the old object. These are not copied: such a tool
/// would take the new object for its own and delete it.
const FOREIGN: [&str; 14] = [
    "kubectl.kubernetes.io/",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/instance",
    "kustomize.toolkit.fluxcd.io/",
    "helm.toolkit.fluxcd.io/",
    "reconcile.fluxcd.io/",
    "infra.contrib.fluxcd.io/",
    "argocd.argoproj.io/",
    "meta.helm.sh/",
    "burrito/",
    "pawl.run/",
    "kubernetes.io/change-cause",
    "tf.galleybytes.com/",
    "alustan.io/",
];

/// Field of a repository that temporarily holds the ref for its layers.
pub(super) const GIT_REF: &str = "ref";

/// The word, or the word and the first number from 2 that make a name nobody has.
pub(super) fn numbered(word: &str, taken: impl Fn(&str) -> bool) -> String {
    let mut name = word.to_owned();
    let mut number = 2;
    while taken(&name) {
        name = format!("{word}-{number}");
        number += 1;
    }
    name
}

/// An object under construction.
pub(super) struct Tree(pub(super) Value);

impl Tree {
    /// An object of Pawl with name, namespace, and own labels and annotations of another object.
    pub(super) fn of(kind: &str, document: &Document, longest: usize, notes: &mut Notes) -> Self {
        let mut tree = Self(json!({"apiVersion": "pawl.run/v1alpha1", "kind": kind}));
        let name: String = document.name().chars().take(longest).collect();
        if name != document.name() {
            notes.say("metadata.name", &format!("is cut to {longest} characters"));
        }
        tree.put("metadata.name", Some(name.trim_end_matches(['-', '.'])));
        tree.put(
            "metadata.namespace",
            Some(document.namespace()).filter(|namespace| !namespace.is_empty()),
        );
        for field in ["labels", "annotations"] {
            let all = document
                .metadata
                .get(field)
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default();
            let foreign = |key: &str| {
                FOREIGN.iter().any(|prefix| key.starts_with(prefix))
                    || key.contains("terraform.padok.cloud/")
            };
            let own: Map<_, _> = all.into_iter().filter(|(key, _)| !foreign(key)).collect();
            tree.put(
                &format!("metadata.{field}"),
                Some(own).filter(|own| !own.is_empty()),
            );
        }
        tree
    }

    pub(super) fn layer(document: &Document, notes: &mut Notes) -> Self {
        Self::of("TerraformLayer", document, names::MAX_LAYER_NAME, notes)
    }

    /// Sets the field at a path, if there is a value.
    pub(super) fn put(&mut self, path: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            *self.at(path) = value.into();
        }
    }

    pub(super) fn push(&mut self, path: &str, value: Value) {
        let list = self.at(path);
        match list {
            Value::Array(list) => list.push(value),
            other => *other = json!([value]),
        }
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.0
            .pointer(&format!("/{}", path.replace('.', "/")))
            .is_some_and(|value| !value.is_null())
    }

    /// Lets each plan wait for a person: the state's place was not carried over, so the first plan may create everything again.
    pub(super) fn wait(&mut self) {
        for path in ["/spec/approval", "/spec/remediation"] {
            let modes = self.0.pointer_mut(path).and_then(Value::as_object_mut);
            for mode in modes.into_iter().flat_map(Map::values_mut) {
                if *mode == "Automatic" {
                    *mode = "Manual".into();
                }
            }
        }
    }

    fn at(&mut self, path: &str) -> &mut Value {
        path.split('.').fold(&mut self.0, |at, key| &mut at[key])
    }
}

/// The created objects, in the order in which to apply them.
#[derive(Default)]
pub(super) struct Made {
    repositories: BTreeMap<(String, String), Tree>,
    others: Vec<Tree>,
}

impl Made {
    pub(super) fn repository(&mut self, namespace: &str, name: &str, repository: Tree) {
        self.repositories
            .insert((namespace.to_owned(), name.to_owned()), repository);
    }

    pub(super) fn push(&mut self, object: Tree) {
        self.others.push(object);
    }

    pub(super) fn find(&mut self, namespace: &str, name: &str) -> Option<&mut Tree> {
        self.repositories
            .get_mut(&(namespace.to_owned(), name.to_owned()))
    }

    /// The name of the repository with this namespace, URL and Secret; creates it if it does not exist.
    pub(super) fn repository_of(
        &mut self,
        namespace: &str,
        url: &str,
        secret: Option<&str>,
    ) -> String {
        let same = |tree: &Tree| {
            tree.0["spec"]["url"] == url && tree.0["spec"]["secretRef"]["name"].as_str() == secret
        };
        if let Some(((_, name), _)) = self
            .repositories
            .iter()
            .find(|((of, _), tree)| of == namespace && same(tree))
        {
            return name.clone();
        }
        let last = url
            .trim_end_matches('/')
            .trim_end_matches(".git")
            .rsplit(['/', ':'])
            .next()
            .unwrap_or_default();
        let word: String = last
            .to_ascii_lowercase()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .take(50)
            .collect();
        let word = word.trim_matches('-');
        let word = if word.is_empty() { "repository" } else { word };
        let name = numbered(word, |name| {
            self.repositories
                .contains_key(&(namespace.to_owned(), name.to_owned()))
        });
        let mut tree =
            Tree(json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRepository"}));
        tree.put("metadata.name", Some(name.as_str()));
        tree.put(
            "metadata.namespace",
            Some(namespace).filter(|namespace| !namespace.is_empty()),
        );
        tree.put("spec.url", Some(url));
        tree.put("spec.secretRef.name", secret);
        self.repository(namespace, &name, tree);
        name
    }

    /// Allows the layers in a namespace to use a repository in another one.
    pub(super) fn allow(&mut self, namespace: &str, name: &str, layers: &str) {
        if namespace == layers {
            return;
        }
        if let Some(tree) = self.find(namespace, name) {
            let there = tree.0["spec"]["allowedNamespaces"]
                .as_array()
                .is_some_and(|all| all.iter().any(|one| one == layers));
            if !there {
                tree.push("spec.allowedNamespaces", layers.into());
            }
        }
    }

    pub(super) fn objects(self) -> Vec<Value> {
        let mut all: Vec<_> = self
            .repositories
            .into_values()
            .chain(self.others)
            .map(|tree| tree.0)
            .collect();
        for object in all.iter_mut().filter_map(Value::as_object_mut) {
            object.remove(GIT_REF);
        }
        all
    }
}

/// A duration in Pawl's notation, clamped to bounds, with a warning if it was outside.
pub(super) fn span(
    text: Option<String>,
    field: &str,
    (least, most): (Span, Span),
    notes: &mut Notes,
) -> Option<String> {
    let text = text?;
    let Ok(span) = text.parse::<Span>() else {
        notes.say(
            field,
            &format!("is no duration that can be carried over: {text}"),
        );
        return None;
    };
    let bound = span.clamp(least, most);
    if bound != span {
        notes.say(field, &format!("of {text} becomes {bound}"));
    }
    Some(bound.to_string())
}

/// A number clamped to bounds, with a warning if it was outside.
pub(super) fn number(
    value: Option<u64>,
    field: &str,
    (least, most): (u64, u64),
    notes: &mut Notes,
) -> Option<u64> {
    let value = value?;
    let bound = value.clamp(least, most);
    if bound != value {
        notes.say(field, &format!("of {value} becomes {bound}"));
    }
    Some(bound)
}
