//! Garbage collection: deletes the objects of deleted runs and repositories one day after it first found them gone, and
//! claims of runs after 400 days. A run counts as gone only when a live read of its name returns nothing or another UID.

use std::{collections::HashSet, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crds::datastore::{ObjectKind, Problem};
use serving::problem::{not_found, unavailable};

use crate::{
    names::{self, RepositoryKey, RunKey},
    objects::{self, Named, claim, sources},
    service::Service,
};

/// Retention of a deleted run's objects.
const OBJECTS: SignedDuration = SignedDuration::from_hours(24);
/// Retention of a deleted run's claim, which is also the record for auditors: a year, and a month to ask.
const CLAIMS: SignedDuration = SignedDuration::from_hours(400 * 24);
/// Minimum age of an unreferenced blob before its deletion, by the store's clock.
const BLOBS: Duration = Duration::from_secs(86_400);

/// The time at which a run was first found gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub at: Timestamp,
}

/// The action for a run that has objects in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Keep,
    /// The run exists after all: remove the mark.
    Unmark,
    /// The run is gone: record the time.
    Mark,
    /// The retention of its objects has passed.
    DeleteObjects,
    /// The retention of its claim has passed as well.
    DeleteAll,
}

/// Decides about a run from its existence, its mark and the time.
pub fn verdict(gone: bool, marked: Option<Timestamp>, now: Timestamp) -> Verdict {
    match (gone, marked) {
        (false, Some(_)) => Verdict::Unmark,
        (true, None) => Verdict::Mark,
        (true, Some(at)) if now.duration_since(at) >= CLAIMS => Verdict::DeleteAll,
        (true, Some(at)) if now.duration_since(at) >= OBJECTS => Verdict::DeleteObjects,
        (false, None) | (true, Some(_)) => Verdict::Keep,
    }
}

/// Sweeps at every interval, forever.
pub async fn run(service: Arc<Service>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        if let Err(problem) = sweep(&service, service.cluster.now()).await {
            service.metrics.sweep_failed();
            tracing::warn!(%problem, "the sweep was not finished; the next one starts over");
        }
    }
}

/// Sweeps once, as of `now`.
///
/// # Errors
/// `Unavailable`. Anything that could not be checked is retained.
pub async fn sweep(service: &Service, now: Timestamp) -> Result<(), Problem> {
    let store = service.sealed.store();
    let (mut namespaces, _) = store.children(&names::top("runs")).await?;
    namespaces.extend(store.children(&names::top("claims")).await?.0);
    namespaces.sort_unstable();
    namespaces.dedup();
    for namespace in &namespaces {
        sweep_namespace(service, namespace, now).await?;
    }
    let (namespaces, _) = store.children(&names::top("repositories")).await?;
    for namespace in &namespaces {
        sweep_repositories(service, namespace, now).await?;
    }
    let (namespaces, _) = store.children(&names::top("states")).await?;
    for namespace in &namespaces {
        for key in service.states.list(namespace).await? {
            match service.states.prune(&key, BLOBS).await {
                Ok(count) => service.metrics.swept("state", count),
                Err(problem) => {
                    tracing::warn!(state = %key.prefix(), %problem, "a state was not swept");
                }
            }
        }
    }
    for entry in store.list(&names::top("probes")).await? {
        if entry.is_older(BLOBS) {
            store.delete(&entry.name).await?;
        }
    }
    service
        .metrics
        .swept("leftover", store.remove_leftovers(BLOBS).await);
    Ok(())
}

async fn sweep_namespace(
    service: &Service,
    namespace: &str,
    now: Timestamp,
) -> Result<(), Problem> {
    let store = service.sealed.store();
    // One list saves a read for each existing run. Without the right to list, each run is read.
    let there = match service.cluster.uids(namespace).await {
        Ok(uids) => uids,
        Err(error) if matches!(error.code(), 401 | 403) => HashSet::new(),
        Err(error) => return Err(unavailable("the API server", &error)),
    };
    let below = |top: &'static str| names::below(&names::top(top), namespace);
    let (runs, _) = store.children(&below("runs")).await?;
    let (_, claims) = store.children(&below("claims")).await?;
    let (_, marks) = store.children(&below("gone")).await?;
    let uids: HashSet<&String> = runs.iter().chain(&claims).collect();
    for uid in uids {
        let Ok(key) = RunKey::new(namespace, uid) else {
            continue;
        };
        let marked = marks.contains(uid);
        if runs.contains(uid) {
            match sweep_blobs(service, &key).await {
                Ok(count) => service.metrics.swept("blob", count),
                Err(problem) => {
                    tracing::warn!(namespace, uid, %problem, "blobs of a run were not swept");
                }
            }
        }
        if there.contains(uid) && !marked {
            continue;
        }
        // Retain a run whose record is unreadable: its owner is unknown.
        if let Err(problem) = sweep_run(service, &key, marked, now).await {
            tracing::warn!(namespace, uid, %problem, "a run was not swept");
        }
    }
    Ok(())
}

async fn sweep_run(
    service: &Service,
    key: &RunKey,
    marked: bool,
    now: Timestamp,
) -> Result<(), Problem> {
    let sealed = &service.sealed;
    let name = match sealed.read::<Named>(&key.name_record()).await? {
        Some((named, _)) => Some(named.name),
        None => claim::get(sealed, key).await?.map(|claim| claim.run),
    };
    let Some(name) = name else {
        return Err(not_found("the run's name is not known"));
    };
    let gone = service
        .lookup
        .find(key.namespace(), &name)
        .await?
        .is_none_or(|run| run.uid != key.uid());
    let mark = if marked {
        sealed
            .read::<Mark>(&key.mark())
            .await?
            .map(|(mark, _)| mark.at)
    } else {
        None
    };
    match verdict(gone, mark, now) {
        Verdict::Keep => {}
        Verdict::Unmark => sealed.store().delete(&key.mark()).await?,
        Verdict::Mark => {
            tracing::info!(
                namespace = key.namespace(),
                uid = key.uid(),
                run = name,
                "found data of a deleted run"
            );
            sealed.create(&key.mark(), &Mark { at: now }, &[]).await?;
        }
        Verdict::DeleteObjects => delete_objects(service, key).await?,
        Verdict::DeleteAll => {
            delete_objects(service, key).await?;
            sealed.store().delete(&key.end()).await?;
            sealed.store().delete(&key.claim()).await?;
            sealed.store().delete(&key.mark()).await?;
            service.metrics.swept("claim", 1);
        }
    }
    Ok(())
}

/// `controller sources` deletes snapshots that are no longer needed. This covers repositories deleted while that
/// process was down.
async fn sweep_repositories(
    service: &Service,
    namespace: &str,
    now: Timestamp,
) -> Result<(), Problem> {
    let kept = sources::of_namespace(&service.sealed, namespace).await?;
    let there = match service.cluster.repositories(namespace).await {
        Ok(uids) => uids,
        // Without the right to list, existence is unknown.
        Err(error) if matches!(error.code(), 401 | 403) => return Ok(()),
        Err(error) => return Err(unavailable("the API server", &error)),
    };
    for uid in &kept {
        let Ok(key) = RepositoryKey::new(namespace, uid) else {
            continue;
        };
        if let Err(problem) = sweep_repository(service, &key, !there.contains(uid), now).await {
            tracing::warn!(namespace, uid, %problem, "a repository was not swept");
        }
    }
    Ok(())
}

async fn sweep_repository(
    service: &Service,
    key: &RepositoryKey,
    gone: bool,
    now: Timestamp,
) -> Result<(), Problem> {
    let (sealed, snapshots) = (&service.sealed, &service.snapshots);
    service
        .metrics
        .swept("blob", snapshots.prune(key, BLOBS).await?);
    let mark = sealed
        .read::<Mark>(&key.mark())
        .await?
        .map(|(mark, _)| mark.at);
    match verdict(gone, mark, now) {
        Verdict::Keep => {}
        Verdict::Unmark => sealed.store().delete(&key.mark()).await?,
        Verdict::Mark => drop(sealed.create(&key.mark(), &Mark { at: now }, &[]).await?),
        Verdict::DeleteObjects | Verdict::DeleteAll => {
            snapshots.delete_all(key).await?;
            sealed.store().delete(&key.mark()).await?;
            service.metrics.swept("repository", 1);
        }
    }
    Ok(())
}

async fn delete_objects(service: &Service, key: &RunKey) -> Result<(), Problem> {
    if service.sealed.store().list(&key.prefix()).await?.is_empty() {
        // Without a claim nothing is left to retain.
        if claim::get(&service.sealed, key).await?.is_none() {
            service.sealed.store().delete(&key.mark()).await?;
        }
        return Ok(());
    }
    service.delete_objects(key).await?;
    service.metrics.swept("run", 1);
    tracing::info!(
        namespace = key.namespace(),
        uid = key.uid(),
        "data of a deleted run was deleted"
    );
    Ok(())
}

/// Deletes unreferenced blobs.
async fn sweep_blobs(service: &Service, key: &RunKey) -> Result<usize, Problem> {
    let record = |blob: &str| {
        let mut words = blob.splitn(3, '-');
        let attempt = names::attempt(words.next()?.strip_prefix('a')?).ok()?;
        Some(key.object(attempt, ObjectKind::of(words.next()?)?))
    };
    objects::prune(&service.sealed, &key.blobs(), BLOBS, record).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_keeps_objects_a_day_and_claims_400_days() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let ago = |hours: i64| Some(now - SignedDuration::from_hours(hours));
        assert_eq!(verdict(false, None, now), Verdict::Keep);
        assert_eq!(
            verdict(false, ago(9700), now),
            Verdict::Unmark,
            "it was there after all"
        );
        assert_eq!(verdict(true, None, now), Verdict::Mark);
        assert_eq!(verdict(true, ago(0), now), Verdict::Keep);
        assert_eq!(verdict(true, ago(23), now), Verdict::Keep);
        assert_eq!(verdict(true, ago(24), now), Verdict::DeleteObjects);
        assert_eq!(verdict(true, ago(399 * 24), now), Verdict::DeleteObjects);
        assert_eq!(verdict(true, ago(400 * 24), now), Verdict::DeleteAll);
        assert_eq!(
            verdict(true, ago(-24), now),
            Verdict::Keep,
            "a clock that went back"
        );
    }
}
