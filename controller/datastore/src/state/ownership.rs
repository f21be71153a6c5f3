//! Ownership of a state. A namespace may be recreated under the same name, so a state belongs to the UID of the namespace in which it was
//! first used. Only a person can hand it over to another namespace.

use std::ops::ControlFlow::{Break, Continue};

use crds::datastore::Problem;

use crate::{blob::store::ByteStream, names::StateKey};

use super::{Head, States, Version};

impl States {
    /// Reads the newest version for a run in the namespace with this UID; `None` before the first version.
    ///
    /// # Errors
    /// `StateOfFormerNamespace`; `Unavailable`, `Corrupt`, `KeyMissing`.
    pub async fn get_for(
        &self,
        key: &StateKey,
        namespace_uid: &str,
    ) -> Result<Option<(Version, ByteStream)>, Problem> {
        let newest = self.newest(key).await?;
        newest.head.belongs_to(key, namespace_uid)?;
        self.get_from(key, None, Some(newest.head)).await
    }

    /// Hands the state over to the namespace with this UID, on a person's request. Returns whether the owner changed.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`, `KeyMissing`.
    pub async fn hand_over(
        &self,
        key: &StateKey,
        namespace_uid: &str,
        user: &str,
        reason: &str,
    ) -> Result<bool, Problem> {
        let change = |head: &mut Head| {
            if head.namespace_uid.as_deref() == Some(namespace_uid) {
                return Ok(Break(false));
            }
            let former = head.namespace_uid.replace(namespace_uid.to_owned());
            let what = format!(
                "handed over to the namespace {namespace_uid}, from {}",
                former.as_deref().unwrap_or("none")
            );
            head.note(what, user.to_owned(), reason.to_owned());
            Ok(Continue(true))
        };
        self.change(key, change).await
    }
}
