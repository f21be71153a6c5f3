//! The state of the last apply of a stack and workspace. A plan that was made from another one waits for a person.

use std::ops::ControlFlow::Continue;

use crds::{
    datastore::{LastState, MANAGED, Problem},
    state_key,
};

use crate::names::StateKey;

use super::{Head, States};

impl Head {
    /// The state of the last apply: the newest version, unless a later apply had its state elsewhere.
    fn last(&self, key: &StateKey) -> Option<LastState> {
        let managed = || {
            let newest = self.newest()?;
            Some(LastState {
                backend: MANAGED.to_owned(),
                key: state_key::managed(key.namespace(), key.id()),
                lineage: newest.lineage.clone(),
                serial: newest.serial,
            })
        };
        self.elsewhere.clone().or_else(managed)
    }
}

impl States {
    /// The state of the last apply, for a run in the namespace with this UID. An earlier namespace of the same name does not count.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`, `KeyMissing`.
    pub async fn last(
        &self,
        key: &StateKey,
        namespace_uid: &str,
    ) -> Result<Option<LastState>, Problem> {
        let head = self.newest(key).await?.head;
        let is_own = head.belongs_to(key, namespace_uid).is_ok();
        Ok(head.last(key).filter(|_| is_own))
    }

    /// Records the state after an apply that had it elsewhere.
    ///
    /// # Errors
    /// `StateOfFormerNamespace` where a managed state of an earlier namespace is in the way; `Unavailable`, `Corrupt`, `KeyMissing`.
    pub async fn applied_elsewhere(
        &self,
        key: &StateKey,
        namespace_uid: &str,
        last: &LastState,
    ) -> Result<(), Problem> {
        let change = |head: &mut Head| {
            if !head.versions.is_empty() {
                head.belongs_to(key, namespace_uid)?;
            }
            head.namespace_uid = Some(namespace_uid.to_owned());
            head.elsewhere = Some(last.clone());
            Ok(Continue(()))
        };
        self.change(key, change).await
    }
}
