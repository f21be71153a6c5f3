//! Ownership of a state. A namespace may be recreated under the same name, so a state belongs to the UID of the namespace in which it was
//! first used. Only a person can hand it over to another namespace.

use bytes::Bytes;
use jiff::Timestamp;

use crds::datastore::Problem;

use crate::{blob::store::ByteStream, names::StateKey};

use super::{Head, Note, States, TRIES, Version, lock::busy};

impl States {
    /// Reads the newest version for a run in the namespace with this UID; `None` before the first version.
    ///
    /// # Errors
    /// `StateOfFormerNamespace`; `Unavailable`, `Corrupt`, `KeyMissing`.
    pub async fn get_for(&self, key: &StateKey, namespace_uid: &str) -> Result<Option<(Version, ByteStream)>, Problem> {
        let newest = self.newest(key).await?;
        newest.head.belongs_to(key, namespace_uid)?;
        self.get_from(key, None, Some(newest.head)).await
    }

    /// Hands the state over to the namespace with this UID, on a person's request. Returns whether the owner changed.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`, `KeyMissing`.
    pub async fn hand_over(&self, key: &StateKey, namespace_uid: &str, user: &str, reason: &str) -> Result<bool, Problem> {
        for attempt in 0..TRIES {
            let newest = self.newest(key).await?;
            if newest.head.namespace_uid.as_deref() == Some(namespace_uid) {
                return Ok(false);
            }
            let former = newest.head.namespace_uid.clone();
            let mut head = Head { namespace_uid: Some(namespace_uid.to_owned()), ..newest.head.clone() };
            let what = format!("handed over to the namespace {namespace_uid}, from {}", former.as_deref().unwrap_or("none"));
            head.note(Note { at: Timestamp::now(), what, by: user.to_owned(), reason: reason.to_owned() });
            if self.append(key, &newest, head, &Bytes::new()).await? {
                return Ok(true);
            }
            Self::back_off(attempt).await;
        }
        Err(busy())
    }
}
