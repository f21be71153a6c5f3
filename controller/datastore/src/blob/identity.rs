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
/// Entry with the id of the store that is being adopted, written before the store's record: a start that ends between the two writes goes on.
const ADOPTED: &str = "adopted";
/// Maximum size of the record, in bytes.
const LIMIT: u64 = 4096;

/// The store's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    store: String,
    cluster: String,
}

/// The cluster's side.
struct Own<'a> {
    /// The Secret's UID.
    cluster: &'a str,
    /// The store that it expects.
    store: Option<&'a str>,
    /// The store whose adoption has begun.
    adopted: Option<&'a str>,
}

/// The decision of a start about store and cluster.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// They belong together.
    Fits,
    /// Neither has an id, or one value adopts what is there: both get these.
    Write(Record),
    /// Why, and the id whose adoption would change that.
    Refused(String, String),
}

/// Checks that the store belongs to the cluster, and records it at the first start. May be repeated until it succeeds.
///
/// # Errors
/// `Unavailable`: the message names both ids and the command that adopts the store, or the call that failed. No content was read or changed.
pub async fn settle(
    store: &Store,
    cluster: &dyn Cluster,
    secret: &SecretName,
    adopt: &str,
) -> Result<(), Problem> {
    let name = names::top("identity");
    let api = |error: &dyn std::error::Error| unavailable("the API server", error);
    for _ in 0..4 {
        let read = cluster.secret(secret).await.map_err(|error| api(&error))?;
        let read = read.ok_or_else(|| {
            problem(
                UNAVAILABLE,
                format!("there is no Secret {secret}; the chart makes it"),
            )
        })?;
        let entry = |name| std::str::from_utf8(read.data.get(name)?).ok();
        let own = Own {
            cluster: &read.uid,
            store: entry(ENTRY),
            adopted: entry(ADOPTED),
        };
        let found = of_store(store, &name).await?;
        let record = match judge(found.as_ref(), &own, adopt) {
            Verdict::Fits => return Ok(()),
            Verdict::Refused(why, id) => {
                let text = format!(
                    "{why}; nothing is served from it: give the datastore its own store again, or, if this store is to take its place from now \
                     on: helm upgrade RELEASE CHART -n {} --reuse-values --set-string datastore.adopt={id}",
                    secret.namespace
                );
                return Err(problem(UNAVAILABLE, text));
            }
            Verdict::Write(record) => record,
        };
        let fill = async |name: &str| {
            let entry = BTreeMap::from([(name.to_owned(), record.store.clone().into_bytes())]);
            let filled = cluster.fill(secret, &read, &entry).await;
            filled.map_err(|error| api(&error))
        };
        if own.store.is_some() && own.adopted != Some(&record.store) {
            fill(ADOPTED).await?;
            continue;
        }
        let content = serde_json::to_vec(&record).unwrap_or_default();
        match found {
            Some(found) if found == record => {}
            Some(_) => store.overwrite(&name, content).await?,
            // Another replica was first: the next turn reads its record.
            None if !store.create(&name, content).await? => continue,
            None => {}
        }
        if fill(ENTRY).await? {
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

fn judge(found: Option<&Record>, own: &Own<'_>, adopt: &str) -> Verdict {
    let cluster = own.cluster;
    let take = |store: String| {
        let cluster = cluster.to_owned();
        Verdict::Write(Record { store, cluster })
    };
    let (store, why) = match (found, own.store) {
        (None, None) => return take(names::random()),
        (Some(found), Some(expected)) if found.store == expected && found.cluster == cluster => {
            return Verdict::Fits;
        }
        // An earlier start ended between the two writes.
        (Some(found), expected)
            if found.cluster == cluster
                && (expected.is_none() || own.adopted == Some(&found.store)) =>
        {
            return take(found.store.clone());
        }
        (None, Some(expected)) => (
            expected,
            format!("this store has no id, and cluster {cluster} expects store {expected}"),
        ),
        (Some(found), expected) => {
            let expects = expected.map_or_else(
                || "has no store yet".to_owned(),
                |expected| format!("expects store {expected}"),
            );
            let Record { store, cluster: of } = found;
            let why = format!(
                "store {store} belongs to cluster {of}, and this is cluster {cluster}, which {expects}"
            );
            (store.as_str(), why)
        }
    };
    if adopt != store {
        return Verdict::Refused(why, store.to_owned());
    }
    take(match found {
        Some(found) => found.store.clone(),
        // The id that was noted for this adoption, unless it is of an earlier one.
        None => own
            .adopted
            .filter(|id| Some(*id) != own.store)
            .map_or_else(names::random, str::to_owned),
    })
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
        let expects = |store| Own {
            cluster: "c",
            store,
            adopted: None,
        };
        let own = record("s", "c");
        for adopt in ["", "old"] {
            assert_eq!(judge(Some(&own), &expects(Some("s")), adopt), Verdict::Fits);
        }
        assert_eq!(
            judge(Some(&own), &expects(None), ""),
            Verdict::Write(own.clone()),
            "the first start was cut off"
        );
        let begun = Own {
            adopted: Some("s"),
            ..expects(Some("old"))
        };
        assert_eq!(
            judge(Some(&own), &begun, ""),
            Verdict::Write(own.clone()),
            "the adoption was cut off"
        );
        assert_eq!(
            judge(None, &begun, "old"),
            Verdict::Write(own.clone()),
            "the same, before its first write"
        );
        assert!(matches!(judge(None, &expects(None), ""), Verdict::Write(_)));
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
            // An earlier store of this cluster.
            (
                Some(&record("r", "c")),
                Some("s"),
                "r",
                vec!["store s", "store r"],
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
                let Verdict::Refused(why, id) = judge(found, &expects(expected), adopt) else {
                    panic!("{found:?} {expected:?}");
                };
                assert!(named.iter().all(|id| why.contains(id)), "{why}");
                assert_eq!(id, adopts);
            }
            let Verdict::Write(record) = judge(found, &expects(expected), adopts) else {
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
