//! Frozen namespaces: an annotation on a namespace, or a chart value, prevents anything new from starting; work in
//! progress continues. Everything that starts work checks here first. The same watch shows which namespaces are being
//! deleted.

use std::{
    collections::BTreeMap,
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
                "ask the operator of Pawl why; when controller.freeze is off again, all that waits goes on by itself".into()
            }
            Self::Namespace(name) => {
                format!(
                    "kubectl annotate namespace {name} {}-",
                    names::FREEZE
                )
            }
        }
    }
}

/// The namespaces that are frozen or being deleted, from a watch.
#[derive(Debug)]
pub struct Freezes {
    whole: bool,
    marked: Mutex<BTreeMap<Box<str>, Mark>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    frozen: bool,
    goes: bool,
}

impl Freezes {
    /// Starts with everything frozen, or with no namespace frozen.
    pub fn new(whole: bool) -> Self {
        Self {
            whole,
            marked: Mutex::default(),
        }
    }

    /// Whether and why nothing starts in a namespace.
    pub fn of(&self, namespace: &str) -> Option<Frozen> {
        if self.whole {
            return Some(Frozen::Whole);
        }
        self.mark(namespace)
            .frozen
            .then(|| Frozen::Namespace(namespace.to_owned()))
    }

    /// Number of frozen namespaces; `None`: all.
    pub fn count(&self) -> Option<usize> {
        let frozen = || self.lock().values().filter(|mark| mark.frozen).count();
        (!self.whole).then(frozen)
    }

    /// Whether the watch has shown that the namespace is being deleted. A namespace that it has not shown counts as
    /// one that stays.
    pub fn goes(&self, namespace: &str) -> bool {
        self.mark(namespace).goes
    }

    /// Records a namespace as the watch shows it; `None`: it was deleted. Returns whether anything changed.
    pub fn show(&self, name: &str, namespace: Option<&impl ResourceExt>) -> bool {
        let mark = namespace.map_or_else(Mark::default, |namespace| Mark {
            frozen: names::is_on(namespace.meta(), names::FREEZE),
            goes: namespace.meta().deletion_timestamp.is_some(),
        });
        let mut marked = self.lock();
        let before = if mark == Mark::default() {
            marked.remove(name)
        } else {
            marked.insert(name.into(), mark)
        };
        before.unwrap_or_default() != mark
    }

    fn mark(&self, namespace: &str) -> Mark {
        self.lock().get(namespace).copied().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Box<str>, Mark>> {
        // Consistent between any two events, so a poisoned lock still holds a valid value.
        self.marked.lock().unwrap_or_else(PoisonError::into_inner)
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
        assert_eq!(
            (freezes.count(), Freezes::new(true).count()),
            (Some(1), None)
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
    fn namespace_goes_from_its_deletion_until_it_is_gone() {
        let freezes = Freezes::new(false);
        let mut namespace = Namespace::default();
        assert!(!freezes.show("a", Some(&namespace)) && !freezes.goes("a"));
        namespace
            .annotations_mut()
            .insert(names::FREEZE.into(), "true".into());
        assert!(freezes.show("a", Some(&namespace)) && !freezes.goes("a"));
        namespace.metadata.deletion_timestamp = Some(
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH),
        );
        assert!(freezes.show("a", Some(&namespace)) && freezes.goes("a"));
        assert!(!freezes.show("a", Some(&namespace)) && !freezes.goes("b"));
        assert!(freezes.show("a", None::<&Namespace>) && !freezes.goes("a"));
    }

    #[test]
    fn operator_freezes_all_namespaces() {
        assert_eq!(Freezes::new(true).of("a"), Some(Frozen::Whole));
    }
}
