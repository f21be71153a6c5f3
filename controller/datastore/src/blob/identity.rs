//! Store and cluster each keep the other's id, so that neither a store of another cluster nor an empty one in place of the cluster's own is
//! served from: states would count as never made. The store's is in its object `identity`, the cluster's is the UID of a Secret, which has
//! the store's.

use std::collections::BTreeMap;

use crds::datastore::{Problem, UNAVAILABLE};
use serde::{Deserialize, Serialize};
use serving::problem::{problem, unavailable};

use crate::{
    blob::store::Store,
    cluster::Cluster,
    names::{self, Name},
    settings::SecretName,
};

/// Entry of the Secret with the store's id.
const ENTRY: &str = "store";
/// Maximum size of the record, in bytes.
const LIMIT: u64 = 4096;

/// The store's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    store: String,
    cluster: String,
}

/// What starts of the process do about store and cluster.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// They belong together.
    Fits,
    /// Neither has an id, or one value adopts what is there: both get these.
    Write(Record),
    Refused(String),
}

/// Checks that the store belongs to the cluster, and records it at the first start. May be repeated until it succeeds.
///
/// # Errors
/// `Unavailable`: the message names both ids, or the call that failed. No content was read or changed.
pub async fn settle(
    store: &Store,
    cluster: &dyn Cluster,
    secret: &SecretName,
    adopt: &str,
) -> Result<(), Problem> {
    let name = names::top("identity");
    let api = |error: &dyn std::error::Error| unavailable("the API server", error);
    for _ in 0..3 {
        let read = cluster.secret(secret).await.map_err(|error| api(&error))?;
        let read = read.ok_or_else(|| {
            problem(
                UNAVAILABLE,
                format!("there is no Secret {secret}; the chart makes it"),
            )
        })?;
        let expected = read.data.get(ENTRY).map(|id| String::from_utf8_lossy(id));
        let found = of_store(store, &name).await?;
        let record = match judge(found.as_ref(), expected.as_deref(), &read.uid, adopt) {
            Verdict::Fits => return Ok(()),
            Verdict::Refused(why) => return Err(problem(UNAVAILABLE, why)),
            Verdict::Write(record) => record,
        };
        let content = serde_json::to_vec(&record).unwrap_or_default();
        match found {
            Some(found) if found == record => {}
            Some(_) => store.overwrite(&name, content).await?,
            // Another replica was first: the next turn reads its record.
            None if !store.create(&name, content).await? => continue,
            None => {}
        }
        let entry = BTreeMap::from([(ENTRY.to_owned(), record.store.clone().into_bytes())]);
        let filled = cluster.fill(secret, &read, &entry).await;
        if filled.map_err(|error| api(&error))? {
            tracing::info!(%secret, store = record.store, "store and cluster know each other");
            return Ok(());
        }
    }
    Err(problem(
        UNAVAILABLE,
        format!("other writers change the Secret {secret} too often"),
    ))
}

async fn of_store(store: &Store, name: &Name) -> Result<Option<Record>, Problem> {
    let Some(read) = store.read(name, LIMIT).await? else {
        return Ok(None);
    };
    serde_json::from_slice(&read).map(Some).map_err(|error| {
        problem(
            UNAVAILABLE,
            format!("the store's object identity cannot be read: {error}"),
        )
    })
}

fn judge(found: Option<&Record>, expected: Option<&str>, cluster: &str, adopt: &str) -> Verdict {
    let take = |store: String| {
        let cluster = cluster.to_owned();
        Verdict::Write(Record { store, cluster })
    };
    let (store, why) = match (found, expected) {
        (None, None) => return take(names::random()),
        // The first start ended between the two writes.
        (Some(found), None) if found.cluster == cluster => return take(found.store.clone()),
        (Some(found), Some(expected)) if found.store == expected && found.cluster == cluster => {
            return Verdict::Fits;
        }
        (None, Some(expected)) => (
            expected,
            format!("this store has no id, and cluster {cluster} expects store {expected}"),
        ),
        (Some(found), None) => (
            found.store.as_str(),
            format!(
                "store {} belongs to cluster {}, and this is cluster {cluster}, which has no store yet",
                found.store, found.cluster
            ),
        ),
        (Some(found), Some(expected)) => (
            found.store.as_str(),
            format!(
                "store {} belongs to cluster {}, and this is cluster {cluster}, which expects store {expected}",
                found.store, found.cluster
            ),
        ),
    };
    if adopt == store {
        return take(found.map_or_else(names::random, |found| found.store.clone()));
    }
    Verdict::Refused(format!(
        "{why}; nothing is served from it: give the datastore its own store again, or, if this store is to take its place from now on, set the \
         chart's datastore.adopt to {store}"
    ))
}

/// Creates one name twice. Claims and locks need a store that refuses the second.
///
/// # Errors
/// `Unavailable`: the store takes the second, or the call that failed.
pub async fn creates_once(store: &Store) -> Result<(), Problem> {
    let name = names::below(&names::top("probes"), &names::random());
    let first = store.create(&name, b"1".to_vec()).await?;
    let second = store.create(&name, b"2".to_vec()).await?;
    // A leftover is harmless, and the sweep deletes it.
    let _ = store.delete(&name).await;
    if first && !second {
        return Ok(());
    }
    Err(problem(
        UNAVAILABLE,
        "the store creates an object although one of that name exists (a conditional PUT, If-None-Match: *), so two runs could claim one apply; \
         nothing is served from it: use a store that refuses the second",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_and_cluster_that_do_not_belong_together_are_refused() {
        let record = |store: &str, cluster: &str| Record {
            store: store.into(),
            cluster: cluster.into(),
        };
        let own = record("s", "c");
        assert_eq!(judge(Some(&own), Some("s"), "c", ""), Verdict::Fits);
        assert_eq!(judge(Some(&own), Some("s"), "c", "old"), Verdict::Fits);
        assert_eq!(
            judge(Some(&own), None, "c", ""),
            Verdict::Write(own.clone()),
            "the first start was cut off"
        );
        assert!(matches!(judge(None, None, "c", ""), Verdict::Write(_)));
        let foreign = record("t", "d");
        for (found, expected, adopts, named) in [
            (None, Some("s"), "s", vec!["store s", "cluster c"]),
            (
                Some(&foreign),
                Some("s"),
                "t",
                vec!["store t", "store s", "cluster c", "cluster d"],
            ),
            (
                Some(&foreign),
                None,
                "t",
                vec!["store t", "cluster c", "cluster d"],
            ),
            // The Secret was restored into another cluster.
            (
                Some(&record("s", "d")),
                Some("s"),
                "s",
                vec!["store s", "cluster c", "cluster d"],
            ),
        ] {
            for adopt in ["", "other"] {
                let Verdict::Refused(why) = judge(found, expected, "c", adopt) else {
                    panic!("{found:?} {expected:?}");
                };
                let adopts = format!("datastore.adopt to {adopts}");
                assert!(
                    named.iter().all(|id| why.contains(id)) && why.ends_with(&adopts),
                    "{why}"
                );
            }
            let Verdict::Write(record) = judge(found, expected, "c", adopts) else {
                panic!("{found:?} {expected:?}");
            };
            assert_eq!(record.cluster, "c");
            assert_eq!(
                found.is_some(),
                record.store == adopts,
                "an empty store gets an id of its own"
            );
        }
    }
}
