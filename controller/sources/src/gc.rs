//! Deletes unused snapshots: no ref is at their commit, and no layer or unfinished run uses it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crds::{TerraformRun, backoff::Backoff};
use kube::{Api, ResourceExt as _, api::ListParams, core::DeserializeGuard};
use serving::call::{after, call};

use crate::{follow::Key, store::Snapshots, worker::Shared};

/// Page size of the list of runs.
const PAGE: u32 = 250;
/// Maximum tries to delete the snapshots of a deleted repository.
const TRIES: u32 = 8;
/// Backoff between these tries.
const BETWEEN: Backoff = Backoff {
    base: Duration::from_secs(1),
    cap: Duration::from_secs(60),
};

/// Commits by repository.
type Commits = BTreeMap<Key, BTreeSet<String>>;

/// Sweeps at every interval, forever. A snapshot is deleted when it was unused in two consecutive sweeps, because a
/// user may have appeared in between.
pub async fn run<B: Snapshots>(
    shared: Arc<Shared<B>>,
    scopes: Vec<Option<String>>,
    every: Duration,
) {
    let mut before = Commits::new();
    loop {
        tokio::time::sleep(every).await;
        match sweep(&shared, &scopes, &before).await {
            Ok(unneeded) => before = unneeded,
            Err(why) => tracing::warn!(
                why,
                "the sweep for unused snapshots failed; it is repeated later"
            ),
        }
    }
}

async fn sweep<B: Snapshots>(
    shared: &Shared<B>,
    scopes: &[Option<String>],
    before: &Commits,
) -> Result<Commits, String> {
    let repositories: Vec<(Key, String)> = shared
        .follow()
        .repositories()
        .map(|(key, repository)| (key.clone(), repository.uid().unwrap_or_default()))
        .collect();
    let mut kept = Commits::new();
    for (key, uid) in &repositories {
        let list = shared
            .syncer
            .snapshots
            .list(&key.0, uid)
            .await
            .map_err(|error| error.why())?;
        kept.insert(key.clone(), list.into_iter().collect());
    }
    // Query after listing the snapshots, so that no newer use is missed.
    let of_layers: Commits = kept
        .keys()
        .map(|key| (key.clone(), shared.follow().revisions(key)))
        .collect();
    let mut left = without(kept, &of_layers);
    if left.is_empty() {
        return Ok(left);
    }
    left = without(left, &of_runs(shared, scopes).await?);
    for (key, uid) in &repositories {
        let twice = left.get(key).into_iter().flatten().filter(|commit| {
            before
                .get(key)
                .is_some_and(|before| before.contains(*commit))
        });
        for commit in twice {
            shared
                .syncer
                .snapshots
                .delete(&key.0, uid, commit)
                .await
                .map_err(|error| error.why())?;
            shared.metrics.deleted();
            tracing::info!(repository = %format!("{}/{}", key.0, key.1), commit, "deleted its unused snapshot");
        }
    }
    Ok(left)
}

fn without(commits: Commits, needed: &Commits) -> Commits {
    let each = commits.into_iter().map(|(key, commits)| {
        let none = BTreeSet::new();
        let left = commits
            .difference(needed.get(&key).unwrap_or(&none))
            .cloned()
            .collect::<BTreeSet<_>>();
        (key, left)
    });
    each.filter(|(_, left)| !left.is_empty()).collect()
}

/// The commits of unfinished runs.
async fn of_runs<B: Snapshots>(
    shared: &Shared<B>,
    scopes: &[Option<String>],
) -> Result<Commits, String> {
    let mut needed = Commits::new();
    for scope in scopes {
        let client = shared.client.clone();
        let api: Api<DeserializeGuard<TerraformRun>> = match scope {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        };
        let mut next = Some(ListParams::default().limit(PAGE));
        while let Some(params) = next {
            let list = call("list runs", api.list(&params))
                .await
                .map_err(|error| error.to_string())?;
            next = after(&params, &list.metadata);
            for run in list.items {
                // The needs of an unreadable run are unknown.
                let run = run
                    .0
                    .map_err(|error| format!("a run is not understood: {error}"))?;
                if let Some((key, commit)) = needed_by(&run) {
                    needed.entry(key).or_default().insert(commit);
                }
            }
        }
    }
    Ok(needed)
}

/// The repository and commit that a run needs.
fn needed_by(run: &TerraformRun) -> Option<(Key, String)> {
    let source = run.spec.source.repository.as_ref()?;
    let has_ended = run
        .status
        .as_ref()
        .is_some_and(crds::TerraformRunStatus::is_terminal);
    let namespace = source
        .namespace
        .clone()
        .or_else(|| run.namespace())
        .unwrap_or_default();
    (!has_ended).then(|| ((namespace, source.name.clone()), source.revision.clone()))
}

/// Deletes all snapshots of a deleted repository.
pub async fn all_of<B: Snapshots>(shared: Arc<Shared<B>>, namespace: String, uid: String) {
    shared.syncer.git.forget(&uid);
    for tries in 1..=TRIES {
        let deleted = async {
            for commit in shared.syncer.snapshots.list(&namespace, &uid).await? {
                shared
                    .syncer
                    .snapshots
                    .delete(&namespace, &uid, &commit)
                    .await?;
                shared.metrics.deleted();
            }
            Ok::<_, datastore_client::RequestError>(())
        };
        let Err(error) = deleted.await else { return };
        tracing::warn!(
            namespace,
            uid,
            why = error.why(),
            "snapshots of a deleted repository are not deleted yet"
        );
        tokio::time::sleep(BETWEEN.after(tries)).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn commits(key: &str, commits: &[&str]) -> Commits {
        [(
            ("a".to_owned(), key.to_owned()),
            commits.iter().map(ToString::to_string).collect(),
        )]
        .into()
    }

    #[test]
    fn needed_snapshots_are_kept() {
        let left = without(commits("r", &["1", "2", "3"]), &commits("r", &["2", "9"]));
        assert_eq!(left, commits("r", &["1", "3"]));
        assert_eq!(without(left.clone(), &commits("s", &["1"])), left);
        assert!(without(left, &commits("r", &["1", "3"])).is_empty());
    }

    #[test]
    fn run_retains_its_snapshot_until_it_ends() {
        let run = |namespace: Option<&str>, phase: &str| {
            let mut source = json!({"name": "r", "revision": "c".repeat(40)});
            if let Some(namespace) = namespace {
                source["namespace"] = json!(namespace);
            }
            let spec = serde_json::from_value(json!({"source": {"repository": source}})).unwrap();
            let mut run = TerraformRun::new("x", spec);
            run.metadata.namespace = Some("own".into());
            run.status = serde_json::from_value(json!({"phase": phase})).unwrap();
            needed_by(&run).map(|(key, _)| key)
        };
        assert_eq!(run(None, "Plan"), Some(("own".into(), "r".into())));
        assert_eq!(
            run(Some("other"), "AwaitingApproval"),
            Some(("other".into(), "r".into()))
        );
        assert_eq!(run(None, "Succeeded"), None);
    }
}
