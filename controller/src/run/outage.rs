//! Whether the datastore responds, as the controller found last.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Failures in a row that count as an outage: a restart of the datastore takes less time.
const FAILURES: u32 = 3;

/// Whether the datastore responds.
#[derive(Default)]
pub struct Outage(Mutex<State>);

#[derive(Default)]
struct State {
    failures: u32,
    /// The error that the outage began with.
    away: Option<Arc<str>>,
}

impl Outage {
    /// Why the datastore is away; `None` if it is not, or was not asked.
    pub(super) fn now(&self) -> Option<Arc<str>> {
        self.lock().away.clone()
    }

    /// Takes an answer. Returns whether an outage has begun or ended.
    pub(super) fn heard(&self, answer: Result<(), String>) -> bool {
        let mut state = self.lock();
        let Err(why) = answer else {
            return mem::take(&mut *state).away.is_some();
        };
        state.failures = state.failures.saturating_add(1);
        let begins = state.away.is_none() && state.failures >= FAILURES;
        if begins {
            state.away = Some(why.into());
        }
        begins
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outage_begins_with_the_third_failure_and_ends_with_an_answer() {
        let outage = Outage::default();
        let failed = |why: &str| outage.heard(Err(why.to_owned()));
        assert!(!failed("a") && !failed("b"));
        assert!(!outage.heard(Ok(())), "a restart");
        assert!(!failed("a") && !failed("b"));
        assert_eq!(outage.now(), None);
        assert!(failed("c"));
        assert!(!failed("d"), "one change for each outage");
        assert_eq!(outage.now().as_deref(), Some("c"));
        assert!(outage.heard(Ok(())));
        assert_eq!(outage.now(), None);
        assert!(!outage.heard(Ok(())));
    }
}
