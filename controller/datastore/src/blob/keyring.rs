//! Checks that the keys belong to the store. A Secret without keys is filled once, and only while the store is empty.
//! Keys that do not decrypt the store's content are rejected as a whole, before any write.

use std::collections::{BTreeMap, BTreeSet};

use crds::datastore::{KEY_MISSING, Problem};
use serving::problem::{problem, unavailable};

use crate::{
    blob::{
        sealed::{Fit, Sealed},
        store::Store,
    },
    cluster::Cluster,
    crypt::keys::Keys,
    names::{self, Name},
    settings::SecretName,
};

/// Directories with data of runs, repositories and states. Probes and key marks do not count.
const CONTENT: [&str; 6] = [
    "runs",
    "claims",
    "gone",
    "states",
    "repositories",
    "outputs",
];
/// Directory with one mark per key that was used for writing: an object that only this key decrypts.
const MARKS: &str = "keys";
/// Namespaces, and objects in each, that are sampled in a store without marks, for example after a partial restore.
const SAMPLES: usize = 4;

/// Checks the keys, from the Secret if one is set. May be repeated until it succeeds.
///
/// # Errors
/// `KeyMissing` when these keys do not decrypt the store's content; `Unavailable`. In both cases nothing was written to
/// the store.
pub async fn settle(
    sealed: &Sealed,
    cluster: &dyn Cluster,
    secret: Option<&SecretName>,
) -> Result<(), Problem> {
    let keys = sealed.keys();
    let place = if let Some(secret) = secret {
        fill(sealed.store(), keys, cluster, secret).await?;
        format!("the Secret {secret}")
    } else {
        keys.reload()
            .map_err(|error| problem(KEY_MISSING, error.to_string()))?;
        keys.directory().display().to_string()
    };
    check(sealed, &place).await
}

/// Loads the keys of the Secret. Adds a new key if it has none and the store is empty.
async fn fill(
    store: &Store,
    keys: &Keys,
    cluster: &dyn Cluster,
    secret: &SecretName,
) -> Result<(), Problem> {
    let unusable = |error: &dyn std::fmt::Display| {
        problem(
            KEY_MISSING,
            format!("the keys of {secret} cannot be used: {error}"),
        )
    };
    let mut read_again = false;
    for _ in 0..3 {
        let read = cluster
            .secret(secret)
            .await
            .map_err(|error| unavailable("the API server", &error))?;
        let read = read.ok_or_else(|| {
            problem(
                KEY_MISSING,
                format!("there is no Secret {secret}; the chart makes it"),
            )
        })?;
        if Keys::are_in(&read.data) {
            return keys.take(&read.data).map_err(|error| unusable(&error));
        }
        if !is_empty(store).await? {
            // Another replica may have filled the Secret and written to the store since the read.
            if !std::mem::replace(&mut read_again, true) {
                continue;
            }
            return Err(problem(
                KEY_MISSING,
                format!(
                    "the Secret {secret} holds no keys, and the store is not empty: put back the entries that the Secret had; no \
                     key was made, and nothing in the store was changed"
                ),
            ));
        }
        let entries = Keys::make().map_err(|error| unusable(&error))?;
        keys.take(&entries).map_err(|error| unusable(&error))?;
        if cluster
            .fill(secret, &read, &entries)
            .await
            .map_err(|error| unavailable("the API server", &error))?
        {
            tracing::info!(%secret, "the keys of the store were created; back up this Secret");
            return Ok(());
        }
        // Another replica was first: use its keys.
    }
    Err(problem(
        KEY_MISSING,
        format!("other writers change the Secret {secret} too often"),
    ))
}

async fn is_empty(store: &Store) -> Result<bool, Problem> {
    for word in CONTENT.into_iter().chain([MARKS]) {
        if store.children(&names::top(word)).await? != (Vec::new(), Vec::new()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Decrypts the marks of all keys, and writes one for the active key.
async fn check(sealed: &Sealed, place: &str) -> Result<(), Problem> {
    let marks = names::top(MARKS);
    let (_, ids) = sealed.store().children(&marks).await?;
    let looked_at = if ids.is_empty() {
        samples(sealed).await?
    } else {
        ids.iter().map(|id| names::below(&marks, id)).collect()
    };
    let mut fits = Vec::new();
    for name in &looked_at {
        fits.push(sealed.fit(name).await?);
    }
    judge(&fits, place)?;
    mark(sealed).await
}

/// Writes a mark for the active key: before its first use, and after a rotation.
///
/// # Errors
/// `Unavailable`; `KeyMissing` when there is no such key.
pub async fn mark(sealed: &Sealed) -> Result<(), Problem> {
    let active = sealed
        .keys()
        .active()
        .map_err(|error| problem(KEY_MISSING, error.to_string()))?;
    sealed
        .mark(&names::below(&names::top(MARKS), active.id()), &active)
        .await
        .map(drop)
}

/// A key is wrong when it decrypts none of the objects that reference it. A single failure may be a damaged object.
fn judge(fits: &[Fit], place: &str) -> Result<(), Problem> {
    let mut differ = BTreeMap::new();
    let mut missing = BTreeSet::new();
    for fit in fits {
        match fit {
            Fit::Nothing => {}
            Fit::Missing(id) => {
                missing.insert(id.as_str());
            }
            Fit::Opens(id) => {
                differ.insert(id.as_str(), false);
            }
            Fit::Differs(id) => {
                differ.entry(id.as_str()).or_insert(true);
            }
        }
    }
    let list = |ids: Vec<&str>| {
        ids.iter()
            .map(|id| format!("`{id}`"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let others: Vec<&str> = differ
        .into_iter()
        .filter_map(|(id, differs)| differs.then_some(id))
        .collect();
    let wrong = match (missing.is_empty(), others.is_empty()) {
        (true, true) => return Ok(()),
        (false, _) => format!(
            "{place} does not have the key {}",
            list(missing.into_iter().collect())
        ),
        (true, false) => format!("{place} has another key under the name {}", list(others)),
    };
    Err(problem(
        KEY_MISSING,
        format!(
            "the store holds objects of keys that are not there: {wrong}; put back the key, nothing in the store was changed"
        ),
    ))
}

async fn samples(sealed: &Sealed) -> Result<Vec<Name>, Problem> {
    let (store, mut found) = (sealed.store(), Vec::new());
    let directories = async |below: &Name| {
        Ok::<_, Problem>(store.children(below).await?.0.into_iter().take(SAMPLES))
    };
    for word in ["runs", "claims", "states"] {
        let top = names::top(word);
        for namespace in directories(&top).await? {
            let below = names::below(&top, &namespace);
            match word {
                "runs" => found.extend(
                    directories(&below)
                        .await?
                        .map(|uid| names::below(&names::below(&below, &uid), "run")),
                ),
                "claims" => {
                    let (_, uids) = store.children(&below).await?;
                    found.extend(
                        uids.iter()
                            .take(SAMPLES)
                            .map(|uid| names::below(&below, uid)),
                    );
                }
                _ => {
                    for stack in directories(&below).await? {
                        let stack = names::below(&below, &stack);
                        for workspace in directories(&stack).await? {
                            let journal =
                                names::below(&names::below(&stack, &workspace), "journal");
                            let (_, records) = store.children(&journal).await?;
                            found.extend(
                                records.last().map(|record| names::below(&journal, record)),
                            );
                        }
                    }
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_damaged_object_is_not_a_wrong_key() {
        let of = |fits: &[Fit]| judge(fits, "here").map_err(|problem| problem.message);
        let (opens, differs) = (Fit::Opens("k1".into()), Fit::Differs("k1".into()));
        assert_eq!(of(&[]), Ok(()));
        assert_eq!(
            of(&[
                differs.clone(),
                opens.clone(),
                differs.clone(),
                Fit::Nothing
            ]),
            Ok(())
        );
        assert!(
            of(&[differs.clone(), Fit::Opens("k2".into())])
                .unwrap_err()
                .contains("another key under the name `k1`")
        );
        assert!(
            of(&[opens, Fit::Missing("k0".into())])
                .unwrap_err()
                .contains("here does not have the key `k0`")
        );
    }
}
