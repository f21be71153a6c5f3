//! Processes that install the same version, and processes that are killed while they do. The child is an ignored test of this program.

use std::{
    env, mem,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use tool_versions::Verification;

use super::{
    making::{BORN, DAY},
    server::Act,
    world::{ARCHIVE, SCRIPT, World, get, installer, key, keyring, published, zip},
};
use crate::kills::{self, LANES, per_lane};

const ROOT: &str = "PAWL_TEST_STORE";
const BASE: &str = "PAWL_TEST_BASE";

#[tokio::test]
#[ignore = "the tests below run it in child processes"]
async fn child() {
    let (root, base) = (
        env::var(ROOT).expect("run by another test"),
        env::var(BASE).unwrap(),
    );
    let installer = installer(
        &base,
        Path::new(&root),
        Verification::Signature(keyring(&key())),
    );
    get(&installer).await.unwrap();
}

fn start(world: &World) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([
        "--exact",
        "install::processes::child",
        "--ignored",
        "--quiet",
    ]);
    command
        .env(ROOT, world.root())
        .env(BASE, world.server.url(""));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// A mirror whose archive comes in pieces, and is long enough that kills hit a partial download.
async fn slow() -> (World, usize) {
    let mut script = SCRIPT.as_bytes().to_vec();
    script
        .extend((0..400_000_u32).flat_map(|n| (n.wrapping_mul(2_654_435_761) >> 8).to_le_bytes()));
    let size = script.len();
    let archive = zip(&[("tofu", &script)]);
    let world = World::with(published(&archive, &key(), BORN + DAY)).await;
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        archive.len()
    );
    let mut acts = vec![Act::Send(head.into_bytes())];
    for piece in archive.chunks(archive.len() / 8) {
        acts.extend([
            Act::Send(piece.to_vec()),
            Act::Wait(Duration::from_millis(1)),
        ]);
    }
    world.set(ARCHIVE, acts);
    (world, size)
}

#[tokio::test]
async fn fifty_processes_do_one_download() {
    let (world, size) = slow().await;
    let children: Vec<_> = (0..50).map(|_| start(&world)).collect();
    let ended = move || {
        children
            .into_iter()
            .all(|mut child| child.wait().unwrap().success())
    };
    assert!(tokio::task::spawn_blocking(ended).await.unwrap());
    assert_eq!(world.asked(ARCHIVE), 1);
    let all = world.installer().store.list().unwrap();
    assert_eq!(
        all.iter().map(|one| one.size).collect::<Vec<_>>(),
        [size as u64]
    );
}

#[tokio::test]
async fn killed_downloads_leave_no_partial_version() {
    let lanes: [_; LANES as usize] = tokio::join!(lane(), lane(), lane(), lane()).into();
    let (asked, whole) = lanes
        .iter()
        .fold((0, 0), |sum, lane| (sum.0 + lane.0, sum.1 + lane.1));
    println!(
        "{} kills: {asked} had begun to download, {whole} had installed it",
        per_lane() * LANES
    );
    assert!(
        whole > 0 && asked > whole,
        "the kills came all too early or too late"
    );
}

/// The processes that had begun to download and those that had installed the version.
async fn lane() -> (u32, u32) {
    let (world, size) = slow().await;
    let run = move || {
        let (store, mut asked) = (world.installer().store, 0);
        let begun = || mem::replace(&mut asked, world.asked(ARCHIVE)) < world.asked(ARCHIVE);
        let counts = kills::lane(&world.root(), &store, size as u64, || start(&world), begun);
        // No more remains than one unfinished version.
        assert!(world.left().len() < 12, "{:?}", world.left());
        counts
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}
