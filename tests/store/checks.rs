//! Checks for every kind of store.

use std::{future::Future, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use crds::datastore::{LOCKED, ObjectKind, Problem, UNAVAILABLE, WRONG_DIGEST};
use datastore::{
    auth::lookup::Lookup,
    cluster::RunView,
    names::{LogKey, RunKey, StateKey, below, top},
    objects::{Objects, Wrote},
    state::{States, lock::Holder},
    testing::{FakeCluster, collect, digest, noise, view},
};
use futures::{FutureExt as _, StreamExt as _, future::join_all, stream};

use crate::{Check, Place};

/// All checks by name.
pub(crate) fn all() -> Vec<(&'static str, Check)> {
    vec![
        check("of many who create an object one does", one_creates),
        check("what is listed is there", listed),
        check("a large object in parts is what was written", large),
        check("an object that is given up is never seen", given_up),
        check("an object is written once by many", once),
        check("a log grows through two replicas", log),
        check("of many who want a lock one has it", lock),
        check("versions follow each other and none is lost", versions),
        check("a run is deleted whole", deleted),
        check("a stranger reads and writes nothing", stranger),
    ]
}

fn check<F: Future<Output = Result<()>> + Send + 'static>(
    name: &'static str,
    check: fn(Arc<Place>) -> F,
) -> (&'static str, Check) {
    (name, Arc::new(move |place| check(place).boxed()))
}

/// The results of tasks that run at once.
async fn together<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
    count: u8,
    task: impl Fn(u8) -> F,
) -> Result<Vec<T>> {
    let tasks = (0..count).map(|n| tokio::spawn(task(n)));
    join_all(tasks)
        .await
        .into_iter()
        .map(|outcome| outcome?)
        .collect()
}

/// The runs of a cluster with one run.
fn lookup() -> Lookup {
    let cluster = FakeCluster::default();
    cluster.set(run());
    Lookup::new(Arc::new(cluster))
}

fn run() -> RunView {
    view(1, true)
}

fn body(bytes: &[u8]) -> impl futures::Stream<Item = Result<Bytes, Problem>> + use<> {
    let pieces: Vec<_> = bytes
        .chunks(50_000)
        .map(|piece| Ok(Bytes::copy_from_slice(piece)))
        .collect();
    stream::iter(pieces)
}

fn key() -> Result<RunKey> {
    Ok(RunKey::new("team", "u1")?)
}

async fn one_creates(place: Arc<Place>) -> Result<()> {
    for round in 0..5 {
        let name = below(&top("probes"), &format!("n{round}"));
        let tried = together(16, |n| {
            let (place, name) = (place.clone(), name.clone());
            async move { Ok((n, place.store()?.create(&name, vec![n; 1000]).await?)) }
        });
        let created = tried.await?.into_iter().filter(|(_, did)| *did);
        let created: Vec<_> = created.map(|(n, _)| n).collect();
        ensure!(created.len() == 1, "round {round}: created by {created:?}");
        let there = place
            .store()?
            .read(&name, 1000)
            .await?
            .context("nothing is there")?;
        ensure!(
            there == vec![created[0]; 1000],
            "round {round}: another's content than the one who was told so"
        );
    }
    Ok(())
}

async fn listed(place: Arc<Place>) -> Result<()> {
    let store = place.store()?;
    let prefix = top("probes");
    ensure!(
        store.list(&prefix).await?.is_empty()
            && store.children(&prefix).await? == (Vec::new(), Vec::new())
    );
    for name in ["b/x", "b/y", "a", "c/d/e"] {
        let name = name
            .split('/')
            .fold(prefix.clone(), |name, word| below(&name, word));
        store.overwrite(&name, b"1".to_vec()).await?;
        store.overwrite(&name, b"22".to_vec()).await?;
    }
    let (directories, objects) = store.children(&prefix).await?;
    ensure!(
        directories == ["b", "c"] && objects == ["a"],
        "{directories:?} {objects:?}"
    );
    let all = store.list(&prefix).await?;
    ensure!(
        all.len() == 4 && all.iter().all(|entry| entry.size == 2),
        "{all:?}"
    );
    for entry in &all {
        store.delete(&entry.name).await?;
        store.delete(&entry.name).await?;
    }
    ensure!(store.list(&prefix).await?.is_empty());
    ensure!(store.read(&below(&prefix, "a"), 10).await?.is_none());
    Ok(())
}

async fn large(place: Arc<Place>) -> Result<()> {
    let objects = Objects::new(place.open()?);
    // Sizes around the boundaries of a part, including the header and the segments' tags.
    for (attempt, size) in [
        (1, 20 << 20),
        (2, 8 << 20),
        (3, (8 << 20) - 128 * 16 - 60),
        (4, 200_000),
    ] {
        let content = noise(size, attempt.into());
        let (stored, wrote) = objects
            .put(
                &key()?,
                attempt,
                ObjectKind::Bundle,
                &digest(&content),
                body(&content),
            )
            .await?;
        ensure!(wrote == Wrote::Created && stored.size == size as u64);
        ensure!(objects.verify(&key()?, attempt, ObjectKind::Bundle).await? == stored);
        let read = objects
            .get(&key()?, attempt, ObjectKind::Bundle)
            .await?
            .context("nothing is there")?;
        ensure!(collect(read.content).await? == content, "{size}");
    }
    Ok(())
}

async fn given_up(place: Arc<Place>) -> Result<()> {
    let sealed = place.open()?;
    let objects = Objects::new(sealed.clone());
    let content = noise(20 << 20, 1);
    let refused = objects
        .put(
            &key()?,
            1,
            ObjectKind::Bundle,
            &digest(b"other"),
            body(&content),
        )
        .await;
    ensure!(refused.is_err_and(|problem| problem.reason == WRONG_DIGEST));
    let cut = body(&content)
        .take(300)
        .chain(stream::iter([Err(Problem::default())]));
    ensure!(
        objects
            .put(&key()?, 1, ObjectKind::Bundle, &digest(&content), cut)
            .await
            .is_err()
    );
    let left = sealed.store().list(&key()?.prefix()).await?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

async fn once(place: Arc<Place>) -> Result<()> {
    let tried = together(6, |n| {
        let place = place.clone();
        async move {
            let (content, objects) = (noise(300_000, n.into()), Objects::new(place.open()?));
            let (digest, body) = (digest(&content), body(&content));
            let put = objects
                .put(&key()?, 1, ObjectKind::Plan, &digest, body)
                .await;
            Ok(put.ok().map(|_| content))
        }
    });
    let written: Vec<_> = tried.await?.into_iter().flatten().collect();
    ensure!(
        written.len() == 1,
        "{} were told that they wrote it",
        written.len()
    );
    let sealed = place.open()?;
    let read = Objects::new(sealed.clone())
        .get(&key()?, 1, ObjectKind::Plan)
        .await?
        .context("nothing is there")?;
    ensure!(collect(read.content).await? == written[0]);
    let blobs = sealed.store().list(&key()?.blobs()).await?.len();
    ensure!(blobs == 1, "{blobs} blobs");
    Ok(())
}

async fn log(place: Arc<Place>) -> Result<()> {
    let open = || anyhow::Ok(Arc::new(datastore::objects::log::Logs::new(place.open()?)));
    let (one, two) = (open()?, open()?);
    let (key, whole) = (
        LogKey {
            run: key()?,
            attempt: 1,
            phase: "plan",
        },
        noise(900_000, 2),
    );
    for (n, piece) in whole.chunks(90_000).enumerate() {
        let logs = if n % 3 == 0 { &one } else { &two };
        logs.append(&key, n as u64 * 90_000, piece, n == 9).await?;
    }
    let third = open()?;
    let index = third.index(&key).await?;
    ensure!(
        (index.length, index.ended, index.gap) == (900_000, true, false),
        "{index:?}"
    );
    ensure!(collect(third.read(&key, &index, 0)).await? == whole);
    Ok(())
}

async fn lock(place: Arc<Place>) -> Result<()> {
    let state = StateKey::new("team", run().state)?;
    let lockers = (0..10).map(|n| {
        let (place, state) = (place.clone(), state.clone());
        tokio::spawn(async move {
            let (run, pod_uid) = (run(), format!("pod-{n}"));
            let holder = Holder {
                run: &run,
                attempt: 1,
                pod_uid: &pod_uid,
            };
            let info = format!(r#"{{"ID": "lock-{n}"}}"#);
            anyhow::Ok(
                States::new(place.open()?)
                    .lock(&state, &holder, "ns", info.as_bytes(), &lookup())
                    .await,
            )
        })
    });
    let mut winners = 0;
    for outcome in futures::future::join_all(lockers).await {
        match outcome?? {
            Ok(()) => winners += 1,
            Err(problem) => ensure!(
                problem.reason == LOCKED && problem.holder.is_some(),
                "{problem}"
            ),
        }
    }
    ensure!(winners == 1, "{winners} have the lock");
    Ok(())
}

async fn versions(place: Arc<Place>) -> Result<()> {
    let (run, state) = (run(), StateKey::new("team", run().state)?);
    let holder = Holder {
        run: &run,
        attempt: 1,
        pod_uid: "pod-1",
    };
    let states = States::new(place.open()?);
    states
        .lock(&state, &holder, "ns", br#"{"ID": "a"}"#, &lookup())
        .await?;
    // Several writers under one lock: every acknowledged write is among the versions, in any order.
    let writers = together(4, |writer| {
        let (place, state, run) = (place.clone(), state.clone(), run.clone());
        async move {
            let (states, mut acknowledged) = (States::new(place.open()?), Vec::new());
            let holder = Holder {
                run: &run,
                attempt: 1,
                pod_uid: "pod-1",
            };
            for n in 0..5 {
                let length = if n % 2 == 0 { 1000 } else { 300_000 };
                let content = noise(length, u64::from(writer) * 100 + n);
                let written = states.receive(&state, body(&content), None).await?;
                states.put(&state, &holder, "a", written).await?;
                acknowledged.push(digest(&content));
            }
            Ok(acknowledged)
        }
    });
    let acknowledged = writers.await?.concat();
    let versions = states.newest(&state).await?.head.versions;
    let numbers = versions.iter().map(|version| version.number);
    ensure!(numbers.eq(1..=versions.len() as u64), "numbers");
    for digest in &acknowledged {
        ensure!(
            versions.iter().any(|version| version.digest == *digest),
            "an acknowledged version is lost"
        );
    }
    ensure!(
        acknowledged.len() == 20 && versions.len() == 20,
        "{} and {}",
        acknowledged.len(),
        versions.len()
    );
    for version in &versions {
        let (_, content) = states
            .get(&state, Some(version.number))
            .await?
            .context("not there")?;
        ensure!(
            digest(&collect(content).await?) == version.digest,
            "version {}",
            version.number
        );
    }
    states.unlock(&state, &holder, "a").await?;
    ensure!(states.list("team").await? == [state]);
    Ok(())
}

async fn deleted(place: Arc<Place>) -> Result<()> {
    let sealed = place.open()?;
    let objects = Objects::new(sealed.clone());
    objects.name(&key()?, "net").await?;
    for kind in ObjectKind::ALL {
        let content = noise(
            if kind == ObjectKind::Result {
                100
            } else {
                200_000
            },
            1,
        );
        objects
            .put(&key()?, 1, kind, &digest(&content), body(&content))
            .await?;
    }
    objects.delete_bundles(&key()?).await?;
    ensure!(objects.get(&key()?, 1, ObjectKind::Bundle).await?.is_none());
    ensure!(
        objects
            .get(&key()?, 1, ObjectKind::PlanJson)
            .await?
            .is_some()
    );
    objects.delete_all(&key()?).await?;
    let left = sealed.store().list(&key()?.prefix()).await?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

async fn stranger(place: Arc<Place>) -> Result<()> {
    let name = below(&top("probes"), "x");
    place.store()?.overwrite(&name, b"1".to_vec()).await?;
    let Some(stranger) = place.of_a_stranger() else {
        return Ok(());
    };
    let stranger = stranger?;
    let refused = |problem: &Problem| problem.reason == UNAVAILABLE;
    ensure!(
        stranger
            .read(&name, 10)
            .await
            .is_err_and(|problem| refused(&problem))
    );
    ensure!(
        stranger
            .create(&below(&top("probes"), "y"), b"1".to_vec())
            .await
            .is_err_and(|problem| refused(&problem))
    );
    ensure!(
        place
            .store()?
            .read(&below(&top("probes"), "y"), 10)
            .await?
            .is_none()
    );
    Ok(())
}
