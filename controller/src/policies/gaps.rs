//! Records gaps, where the policies were not enforced, until everything that depends on them has been revoked there. In memory only.

use std::collections::BTreeMap;

use super::installed::Policies;

/// Where the policies were not enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// In this namespace; `None`: everywhere.
    pub namespace: Option<String>,
    /// A gap that opens again while it is being closed has another number, and stays open.
    number: u64,
}

/// The policies and gaps that the watches and probes of this process showed so far.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// `None` before the first listing.
    installed: Option<Policies>,
    /// As they were at the last proof; before the first proof, at the first listing.
    proven: Option<Policies>,
    /// Counts the changes of `installed`. A proof counts for one value only.
    pub(super) changes: u64,
    open: BTreeMap<Option<String>, u64>,
    numbers: u64,
}

impl Gaps {
    /// Takes the policies as the watches show them. Returns whether anything changed.
    pub(super) fn show(&mut self, policies: Policies) -> bool {
        if self.installed.as_ref() == Some(&policies) {
            return false;
        }
        self.changes += 1;
        self.proven.get_or_insert_with(|| policies.clone());
        self.installed = Some(policies);
        true
    }

    pub(super) const fn is_listed(&self) -> bool {
        self.installed.is_some()
    }

    /// The first policy that does not exist or has no binding. Until the first listing, every policy counts as missing.
    pub(super) fn missing(&self) -> Option<String> {
        self.installed.as_ref().map_or_else(
            || Some("the admission policies could not be listed yet".to_owned()),
            Policies::missing,
        )
    }

    /// A probe of the namespace was let through; `None`: a policy does not exist.
    pub(super) fn fail(&mut self, namespace: Option<&str>) {
        // Before the first listing nothing is known to be missing.
        if self.is_listed() {
            self.numbers += 1;
            self.open.insert(namespace.map(str::to_owned), self.numbers);
        }
    }

    /// Every policy refused its probe. `changes` is the count when the first probe was sent.
    pub(super) fn succeed(&mut self, changes: u64) {
        // The probes may have reached the policies before the change.
        if changes != self.changes {
            return;
        }
        let broken = self
            .installed
            .as_ref()
            .zip(self.proven.as_ref())
            .is_some_and(|(now, before)| !now.unbroken_since(before));
        if broken {
            self.fail(None);
        }
        self.proven.clone_from(&self.installed);
    }

    /// Whether something in the namespace is still to be revoked.
    pub(super) fn is_open(&self, namespace: &str) -> bool {
        self.open.contains_key(&None) || self.open.contains_key(&Some(namespace.to_owned()))
    }

    pub(super) fn open(&self) -> Vec<Gap> {
        self.open
            .iter()
            .map(|(namespace, number)| Gap {
                namespace: namespace.clone(),
                number: *number,
            })
            .collect()
    }

    /// Everything in the gap has been revoked.
    pub(super) fn close(&mut self, gap: &Gap) {
        self.open
            .retain(|namespace, number| *namespace != gap.namespace || *number != gap.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::installed::tests::{complete, with};

    const POLICY: &str = "policy/pawl-status";

    fn proven() -> Gaps {
        let mut gaps = Gaps::default();
        assert!(gaps.show(complete()) && !gaps.show(complete()));
        gaps.succeed(gaps.changes);
        gaps
    }

    fn places(gaps: &Gaps) -> Vec<Option<String>> {
        gaps.open().into_iter().map(|gap| gap.namespace).collect()
    }

    #[test]
    fn first_proof_of_a_process_opens_no_gap() {
        assert!(!proven().is_open("team"));
    }

    #[test]
    fn first_proof_after_a_failure_opens_a_gap() {
        let mut absent = Gaps::default();
        absent.show(with(POLICY, None));
        absent.show(complete());
        absent.succeed(absent.changes);
        assert_eq!(places(&absent), [None], "listed first without one");
        let mut let_through = Gaps::default();
        let_through.show(complete());
        let_through.fail(Some("team"));
        let_through.succeed(let_through.changes);
        assert!(let_through.is_open("team") && !let_through.is_open("other"));
    }

    #[test]
    fn policy_that_returns_opens_a_gap_unseen_or_not() {
        for seen in [true, false] {
            let mut gaps = proven();
            if seen {
                gaps.show(with(POLICY, None));
                assert!(gaps.missing().unwrap().contains("pawl-status is missing"));
            }
            gaps.show(with(POLICY, Some(("again", 1))));
            gaps.succeed(gaps.changes);
            assert_eq!((places(&gaps), gaps.missing()), (vec![None], None));
            let gap = gaps.open().remove(0);
            gaps.close(&gap);
            gaps.succeed(gaps.changes);
            assert!(
                !gaps.is_open("team"),
                "a further proof of the same policies opens none"
            );
        }
    }

    #[test]
    fn one_change_that_is_proven_opens_no_gap() {
        let mut gaps = proven();
        gaps.show(with(POLICY, Some(("p", 2))));
        gaps.succeed(gaps.changes);
        assert!(!gaps.is_open("team"));
        gaps.show(with(POLICY, Some(("p", 3))));
        gaps.show(with(POLICY, Some(("p", 4))));
        gaps.succeed(gaps.changes);
        assert!(gaps.is_open("team"), "two changes in one step");
    }

    #[test]
    fn probe_sent_before_a_change_proves_nothing() {
        let mut gaps = proven();
        let before = gaps.changes;
        gaps.show(with(POLICY, None));
        gaps.show(with(POLICY, Some(("again", 1))));
        gaps.succeed(before);
        assert!(!gaps.is_open("team"), "nothing is concluded yet");
        gaps.succeed(gaps.changes);
        assert!(gaps.is_open("team"));
    }

    #[test]
    fn gap_that_opens_again_while_it_is_closed_stays_open() {
        let mut gaps = proven();
        gaps.fail(Some("team"));
        let first = gaps.open().remove(0);
        gaps.fail(Some("team"));
        gaps.close(&first);
        assert!(gaps.is_open("team"));
        let second = gaps.open().remove(0);
        gaps.close(&second);
        assert!(!gaps.is_open("team"));
    }

    #[test]
    fn nothing_fails_before_the_first_listing() {
        let mut gaps = Gaps::default();
        assert!(gaps.missing().is_some());
        gaps.fail(None);
        assert!(gaps.open().is_empty());
    }
}
