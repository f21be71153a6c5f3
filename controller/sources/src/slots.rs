//! Bounds concurrent checks. One namespace holds at most half of the slots, and so do all slow repositories of all namespaces together, so that
//! failing or hostile ones leave the rest to others. Slots are given in the order of requests.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// The group of slow repositories. No namespace has this name.
const SLOW: &str = "";

pub struct Slots {
    all: Arc<Semaphore>,
    /// The most slots of one group.
    most: usize,
    /// Those of each namespace, and [`SLOW`].
    groups: Mutex<BTreeMap<String, Arc<Semaphore>>>,
}

/// A slot, which is free again when this is dropped.
#[must_use]
pub struct Slot(#[allow(dead_code, reason = "held")] Vec<OwnedSemaphorePermit>);

impl Slots {
    pub fn new(all: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all)),
            most: (all / 2).max(1),
            groups: Mutex::default(),
        }
    }

    /// Waits for a slot.
    ///
    /// # Errors
    /// Never: no semaphore is closed.
    pub async fn take(&self, namespace: &str, slow: bool) -> Result<Slot, AcquireError> {
        let mut held = Vec::new();
        // First its own groups', so that no one of a full group is in line for the others.
        for group in [Some(namespace), slow.then_some(SLOW)]
            .into_iter()
            .flatten()
        {
            held.push(self.group(group).acquire_owned().await?);
        }
        held.push(self.all.clone().acquire_owned().await?);
        Ok(Slot(held))
    }

    fn group(&self, name: &str) -> Arc<Semaphore> {
        let mut all = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, group| Arc::strong_count(group) > 1);
        all.entry(name.to_owned())
            .or_insert_with(|| Arc::new(Semaphore::new(self.most)))
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn one_namespace_never_holds_all_slots() {
        let slots = Slots::new(8);
        let take = |namespace: &str| {
            slots
                .take(namespace, false)
                .now_or_never()
                .map(Result::unwrap)
        };
        let mut held: Vec<_> = (0..4).map(|_| take("loud").unwrap()).collect();
        assert!(take("loud").is_none());
        let others: Vec<_> = (0..4).map(|n| take(&format!("n{n}")).unwrap()).collect();
        assert!(take("n4").is_none(), "all are taken");
        held.pop();
        assert!(take("n4").is_some());
        drop((held, others));
        let _again: Vec<_> = (0..4).map(|_| take("loud").unwrap()).collect();
        assert_eq!(slots.groups.lock().unwrap().len(), 1);
        assert!(Slots::new(1).take("only", true).now_or_never().is_some());
    }

    #[test]
    fn slow_repositories_of_all_namespaces_leave_half() {
        let slots = Slots::new(8);
        let take = |namespace: String, slow| slots.take(&namespace, slow).now_or_never();
        let slow: Vec<_> = (0..8).map(|n| take(format!("slow{n}"), true)).collect();
        assert_eq!(slow.iter().filter(|slot| slot.is_some()).count(), 4);
        let fast: Vec<_> = (0..4).map(|n| take(format!("n{n}"), false)).collect();
        assert!(fast.iter().all(Option::is_some));
    }
}
