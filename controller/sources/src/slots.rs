//! Bounds concurrent checks. One namespace holds at most half of the slots, so that its slow, failing or hostile repositories leave the rest
//! to others; slots are given in the order of requests.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

pub struct Slots {
    all: Arc<Semaphore>,
    /// The most slots of one namespace.
    most: usize,
    namespaces: Mutex<BTreeMap<String, Arc<Semaphore>>>,
}

/// A slot, which is free again when this is dropped.
#[must_use]
pub struct Slot(#[allow(dead_code, reason = "held")] [OwnedSemaphorePermit; 2]);

impl Slots {
    pub fn new(all: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all)),
            most: (all / 2).max(1),
            namespaces: Mutex::default(),
        }
    }

    /// Waits for a slot.
    ///
    /// # Errors
    /// Never: no semaphore is closed.
    pub async fn take(&self, namespace: &str) -> Result<Slot, AcquireError> {
        let own = {
            let mut all = self
                .namespaces
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, own| Arc::strong_count(own) > 1);
            all.entry(namespace.to_owned())
                .or_insert_with(|| Arc::new(Semaphore::new(self.most)))
                .clone()
        };
        // First its namespace's, so that no one of a full namespace is in line for the others.
        let own = own.acquire_owned().await?;
        Ok(Slot([own, self.all.clone().acquire_owned().await?]))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn one_namespace_never_holds_all_slots() {
        let slots = Slots::new(8);
        let take = |namespace: &str| slots.take(namespace).now_or_never().map(Result::unwrap);
        let mut held: Vec<_> = (0..4).map(|_| take("loud").unwrap()).collect();
        assert!(take("loud").is_none());
        let others: Vec<_> = (0..4).map(|n| take(&format!("n{n}")).unwrap()).collect();
        assert!(take("n4").is_none(), "all are taken");
        held.pop();
        assert!(take("n4").is_some());
        drop((held, others));
        let _again: Vec<_> = (0..4).map(|_| take("loud").unwrap()).collect();
        assert_eq!(slots.namespaces.lock().unwrap().len(), 1);
        assert!(Slots::new(1).take("only").now_or_never().is_some());
    }
}
