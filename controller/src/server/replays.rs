//! Deliveries that came before: by the ids that forges give them, and by signatures of bodies, which stay when somebody changes the id.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::verify::Print;

/// The most prints that are kept of a repository: an id and a body of each delivery.
const KEPT: usize = 256;

/// What came of each repository, by UID. Only of those that are there, and only what was proven, so that it has a bound.
#[derive(Default)]
pub struct Replays(Mutex<BTreeMap<String, VecDeque<Print>>>);

impl Replays {
    /// Takes note of a delivery. Returns whether it is new: nothing of it was there before.
    pub fn is_new(&self, repository: &str, prints: &[Print]) -> bool {
        let mut all = self.lock();
        let known = all.entry(repository.to_owned()).or_default();
        let before = known.len();
        known.retain(|print| !prints.contains(print));
        let is_new = known.len() == before;
        // What is asked for again is forgotten last.
        known.extend(prints);
        let over = known.len().saturating_sub(KEPT);
        known.drain(..over);
        is_new
    }

    /// Forgets repositories that are gone.
    pub fn keep(&self, is_there: impl Fn(&str) -> bool) {
        self.lock().retain(|repository, _| is_there(repository));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, VecDeque<Print>>> {
        // Whole between any two deliveries.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(of: usize) -> Print {
        (of as u128).to_be_bytes()
    }

    #[test]
    fn a_delivery_is_known_by_its_id_and_by_its_body() {
        let replays = Replays::default();
        assert!(replays.is_new("a", &[print(1), print(2)]));
        assert!(!replays.is_new("a", &[print(1), print(3)]), "the id");
        assert!(!replays.is_new("a", &[print(4), print(2)]), "the body, under another id");
        assert!(replays.is_new("b", &[print(1), print(2)]), "another repository");
        assert!(replays.is_new("a", &[]) && replays.is_new("a", &[]), "what has neither is never known");
    }

    #[test]
    fn what_is_kept_has_a_bound_and_what_comes_again_stays() {
        let replays = Replays::default();
        for n in 0..2 * KEPT {
            assert!(replays.is_new("a", &[print(n)]));
            assert!(!replays.is_new("a", &[print(0)]) || n == 0);
            assert!(replays.lock()["a"].len() <= KEPT);
        }
        assert!(replays.is_new("a", &[print(1)]), "forgotten");
        replays.keep(|repository| repository != "a");
        assert!(replays.lock().is_empty());
    }
}
