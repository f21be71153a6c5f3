//! Namespaces that share states: runs of a namespace queue for a state with each other, and with those of the
//! namespaces that the operator groups with it (`design/0010-leases-and-locks.md`).

use std::{collections::BTreeSet, str::FromStr};

use crds::names;

/// Groups of namespaces that share states. A namespace in no group is its own group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedStates(Vec<Vec<String>>);

impl SharedStates {
    /// The namespaces whose runs queue with those of this one, including itself.
    pub fn group<'a>(&'a self, namespace: &'a str) -> Vec<&'a str> {
        let listed = self
            .0
            .iter()
            .find(|group| group.iter().any(|name| name == namespace));
        listed.map_or_else(
            || vec![namespace],
            |group| group.iter().map(String::as_str).collect(),
        )
    }

    /// The name of a namespace's group: its first member, which is in no other group.
    pub fn scope<'a>(&'a self, namespace: &'a str) -> &'a str {
        self.group(namespace).first().copied().unwrap_or(namespace)
    }

    /// The name of the Lease on a state for runs of a namespace.
    pub fn lease_name(&self, namespace: &str, state_key: &str) -> String {
        names::lease_name(self.scope(namespace), state_key)
    }
}

impl FromStr for SharedStates {
    type Err = String;

    /// Parses JSON, `[["team-a","team-b"]]`; an empty text means no group. Rejects a namespace in two groups, because
    /// it would be ambiguous whether the other members share states.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let mut groups: Vec<Vec<String>> = serde_json::from_str(text)
            .map_err(|error| format!("namespaces that share: {error}"))?;
        for group in &mut groups {
            group.sort_unstable();
            group.dedup();
        }
        let mut seen = BTreeSet::new();
        for name in groups.iter().flatten() {
            if name.is_empty() {
                return Err("namespaces that share: a name is empty".to_owned());
            }
            if !seen.insert(name) {
                return Err(format!("namespaces that share: {name} is in two groups"));
            }
        }
        Ok(Self(groups))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_shares_states_within_its_group() {
        let shared: SharedStates = r#"[["b","a"],["c"]]"#.parse().unwrap();
        assert_eq!(
            (shared.group("a"), shared.group("b"), shared.group("x")),
            (vec!["a", "b"], vec!["a", "b"], vec!["x"])
        );
        assert_eq!(
            (shared.scope("b"), shared.scope("c"), shared.scope("x")),
            ("a", "c", "x")
        );
        assert_eq!(shared.lease_name("a", "k"), shared.lease_name("b", "k"));
        assert_ne!(shared.lease_name("a", "k"), shared.lease_name("x", "k"));
        assert_eq!(
            r#"[["a","b"],["c"]]"#.parse(),
            Ok(shared),
            "in whichever order"
        );
        assert_eq!("".parse(), Ok(SharedStates::default()));
    }

    #[test]
    fn invalid_groups_are_rejected() {
        for (text, said) in [
            (r#"[["a","b"],["b"]]"#, "b is in two groups"),
            (r#"[["a",""]]"#, "empty"),
            (r#"["a"]"#, "expected"),
        ] {
            let error = text.parse::<SharedStates>().unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
