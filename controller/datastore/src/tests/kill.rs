//! Kills a writer a thousand times during writes: no acknowledged version is lost, and none is incomplete.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::StreamExt as _;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use crds::datastore::StateId;

use super::{digest, open, view, write_key};
use crate::{
    auth::lookup::Lookup,
    names::StateKey,
    state::{States, lock::Holder},
    testing::{FakeCluster, NAMESPACE_UID, collect},
};

const FOLDER: &str = "PAWL_TEST_KILL_FOLDER";
const STACK: &str = "PAWL_TEST_KILL_STACK";
/// Number of kills in total.
const ROUNDS: usize = 1000;
/// Rounds per state.
const PER_STATE: usize = 50;
/// Number of concurrent workers.
const WORKERS: usize = 2;

fn key(stack: &str) -> StateKey {
    StateKey::new(
        "team",
        StateId {
            stack: stack.into(),
            workspace: "default".into(),
        },
    )
    .unwrap()
}

/// Small contents are in their record, large ones in a blob.
fn content(serial: u64) -> Vec<u8> {
    let filler = "x".repeat(if serial.is_multiple_of(3) {
        200_000
    } else {
        300
    });
    format!(r#"{{"version": 4, "serial": {serial}, "filler": "{filler}"}}"#).into_bytes()
}

/// The process to kill: writes versions, and reports its start and each acknowledged version.
#[tokio::test]
#[ignore = "started by the test below, and killed"]
async fn writer() {
    let (Ok(folder), Ok(stack)) = (std::env::var(FOLDER), std::env::var(STACK)) else {
        return;
    };
    let states = States::new(open(
        &Path::new(&folder).join("data"),
        &Path::new(&folder).join("keys"),
    ));
    let (run, key) = (view(1, true), key(&stack));
    let holder = Holder {
        run: &run,
        attempt: 1,
        pod_uid: "pod-1",
    };
    let lookup = Lookup::new(std::sync::Arc::new(FakeCluster::default()));
    states
        .lock(&key, &holder, NAMESPACE_UID, br#"{"ID": "a"}"#, &lookup)
        .await
        .unwrap();
    let mut serial = states
        .newest(&key)
        .await
        .unwrap()
        .head
        .newest()
        .and_then(|version| version.serial)
        .unwrap_or(0);
    let mut out = std::io::stdout().lock();
    writeln!(out, "begun").unwrap();
    out.flush().unwrap();
    loop {
        serial += 1;
        let body = futures::stream::iter([Ok(Bytes::from(content(serial)))]);
        let written = states.receive(&key, body.boxed(), None).await.unwrap();
        states.put(&key, &holder, "a", written).await.unwrap();
        writeln!(out, "acknowledged {serial}").unwrap();
        out.flush().unwrap();
    }
}

/// When to kill the writer, relative to the machine's speed.
enum Death {
    /// After this fraction of the previous start-up time.
    Beginning(f64),
    /// After this many writes, plus this fraction of the duration of the last one.
    Writing(u32, f64),
}

/// Runs one writer until its kill; returns the last acknowledged version. `begins` is the start-up time.
fn live_and_die(folder: &Path, stack: &str, death: &Death, begins: &mut Duration) -> Option<u64> {
    let mut at = Instant::now();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "tests::kill::writer",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(FOLDER, folder)
        .env(STACK, stack)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = child.stdout.take().unwrap();
    let (said, heard) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut last = None;
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let serial = line
                .split("acknowledged ")
                .nth(1)
                .and_then(|serial| serial.parse().ok());
            if serial.is_some() || line.ends_with("begun") {
                last = serial.or(last);
                // The receiver may be gone.
                let _ = said.send(());
            }
        }
        last
    });
    let life = match *death {
        Death::Beginning(part) => begins.mul_f64(part),
        Death::Writing(writes, part) => {
            let mut one = Duration::ZERO;
            for write in 0..=writes {
                if heard.recv_timeout(Duration::from_secs(60)).is_err() {
                    child.kill().unwrap();
                    panic!("{stack}: no write after {write} of them");
                }
                (one, at) = (at.elapsed(), Instant::now());
                if write == 0 {
                    *begins = one;
                }
            }
            one.mul_f64(part)
        }
    };
    std::thread::sleep(life);
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

#[test]
fn killed_writers_lose_no_version_and_leave_none_partial() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("keys")).unwrap();
    write_key(&folder.path().join("keys"), "k1", 1);
    let begun = Instant::now();
    let totals: Vec<(u64, usize)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let folder = folder.path();
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()
                        .unwrap();
                    let mut rng = StdRng::seed_from_u64(worker as u64);
                    let (mut versions, mut between, mut begins) = (0, 0, Duration::from_millis(10));
                    for state in 0..ROUNDS / PER_STATE / WORKERS {
                        let (stack, mut last) = (format!("s{worker}-{state}"), 0);
                        for _ in 0..PER_STATE {
                            let part = rng.random_range(0.0..1.2);
                            let writes = rng.random_range(1..5);
                            let death = if rng.random_bool(0.2) {
                                Death::Beginning(part)
                            } else {
                                Death::Writing(writes, part)
                            };
                            let said = live_and_die(folder, &stack, &death, &mut begins);
                            last = said.map_or(last, |said| said.max(last));
                            let found = runtime.block_on(check(folder, &stack, last, false));
                            // Killed between the write and its acknowledgement.
                            between += usize::from(found > last);
                            last = found;
                        }
                        versions += runtime.block_on(check(folder, &stack, last, true));
                    }
                    (versions, between)
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .collect()
    });
    let versions: u64 = totals.iter().map(|(versions, _)| versions).sum();
    let between: usize = totals.iter().map(|(_, between)| between).sum();
    eprintln!(
        "{ROUNDS} kills, {versions} versions written, {between} times killed between the write and its word, {:.0?}",
        begun.elapsed()
    );
    assert!(
        versions > 200,
        "too few writes to have been killed in one: {versions}"
    );
}

/// Returns the newest version's serial, which must be at least `acknowledged`, and checks that all listed versions can be decrypted and
/// match their digests.
async fn check(folder: &Path, stack: &str, acknowledged: u64, all: bool) -> u64 {
    let states = States::new(open(&folder.join("data"), &folder.join("keys")));
    let key = key(stack);
    let versions = states.newest(&key).await.unwrap().head.versions;
    let newest = versions
        .last()
        .and_then(|version| version.serial)
        .unwrap_or(0);
    assert!(
        newest >= acknowledged,
        "{stack}: version {acknowledged} was acknowledged, and the newest is {newest}"
    );
    let serials: Vec<u64> = versions
        .iter()
        .filter_map(|version| version.serial)
        .collect();
    assert!(
        serials.windows(2).all(|pair| pair[0] + 1 == pair[1]),
        "{stack}: {serials:?}"
    );
    assert_eq!(versions.len() as u64, newest.min(64));
    let checked = if all { versions.len() } else { 1 };
    for version in versions.iter().rev().take(checked) {
        let (_, stream) = states
            .get(&key, Some(version.number))
            .await
            .unwrap()
            .unwrap();
        let read = collect(stream).await.unwrap();
        assert_eq!(digest(&read), version.digest);
        assert!(read == content(version.serial.unwrap()));
    }
    newest
}
