//! Frozen namespaces: an annotation on a namespace, or a chart value, prevents anything new from starting; work in
//! progress continues. Everything that starts work checks here first.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crds::names;
use kube::ResourceExt;

/// Why nothing starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frozen {
    /// The operator froze everything.
    Whole,
    /// The namespace has the annotation.
    Namespace(String),
}

impl fmt::Display for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("nothing new begins: the operator froze all namespaces (controller.freeze of the chart)"),
            Self::Namespace(name) => {
                write!(f, "nothing new begins: namespace {name} is frozen by its annotation {}", names::FREEZE)
            }
        }
    }
}

impl Frozen {
    /// How to end the freeze.
    pub fn next_step(&self) -> String {
        match self {
            Self::Whole => {
                "ask the operator of Pawl why, and when controller.freeze is off again the run goes on by itself".into()
            }
            Self::Namespace(name) => {
                format!(
                    "see who froze the namespace, and why; then the run goes on by itself: kubectl annotate namespace {name} {}-",
                    names::FREEZE
                )
            }
        }
    }
}

/// The frozen namespaces, from a watch.
#[derive(Debug)]
pub struct Freezes {
    whole: bool,
    namespaces: Mutex<BTreeSet<Box<str>>>,
}

impl Freezes {
    /// Starts with everything frozen, or with no namespace frozen.
    pub fn new(whole: bool) -> Self {
        Self {
            whole,
            namespaces: Mutex::default(),
        }
    }

    /// Whether and why nothing starts in a namespace.
    pub fn of(&self, namespace: &str) -> Option<Frozen> {
        if self.whole {
            return Some(Frozen::Whole);
        }
        self.lock()
            .contains(namespace)
            .then(|| Frozen::Namespace(namespace.to_owned()))
    }

    /// Records a namespace as the watch shows it; `None`: it was deleted. Returns whether it was frozen or unfrozen.
    pub fn show(&self, name: &str, namespace: Option<&impl ResourceExt>) -> bool {
        let value = namespace.and_then(|namespace| namespace.annotations().get(names::FREEZE));
        if value.is_some_and(|value| value == "true") {
            self.lock().insert(name.into())
        } else {
            self.lock().remove(name)
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Box<str>>> {
        // Consistent between any two events, so a poisoned lock still holds a valid value.
        self.namespaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Namespace;

    use super::*;

    #[test]
    fn annotation_freezes_its_namespace_until_it_is_gone() {
        let freezes = Freezes::new(false);
        let show = |name: &str, value: Option<&str>| {
            let metadata = serde_json::json!({"name": name, "annotations": value.map(|value| serde_json::json!({names::FREEZE: value}))});
            let namespace: Namespace =
                serde_json::from_value(serde_json::json!({"metadata": metadata})).unwrap();
            freezes.show(name, Some(&namespace))
        };
        assert!(!show("a", None) && show("b", Some("true")));
        assert_eq!(
            (freezes.of("a"), freezes.of("b")),
            (None, Some(Frozen::Namespace("b".into())))
        );
        assert!(!show("b", Some("true")) && !show("a", Some("false")));
        assert!(show("b", None));
        assert_eq!(freezes.of("b"), None);
        assert!(show("b", Some("true")));
        assert!(
            freezes.show("b", None::<&Namespace>),
            "and one that is made again begins anew"
        );
        assert_eq!(freezes.of("b"), None);
    }

    #[test]
    fn operator_freezes_all_namespaces() {
        assert_eq!(Freezes::new(true).of("a"), Some(Frozen::Whole));
    }
}
