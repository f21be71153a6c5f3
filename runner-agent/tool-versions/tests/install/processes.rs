//! Many processes that want the same version, and those that are killed while they get it: this program again, as one of its ignored
//! tests.

use std::{
    env, fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tool_versions::{Tool, Verification, cache::store::verify::digest};

use super::{
    making::{BORN, DAY},
    server::Act,
    version,
    world::{ARCHIVE, SCRIPT, World, get, installer, key, keyring, published, zip},
};
use crate::kills::{LANES, Window, per_lane};

const ROOT: &str = "PAWL_TEST_STORE";
const BASE: &str = "PAWL_TEST_BASE";

#[tokio::test]
#[ignore = "it is run by the tests below, in processes of its own"]
async fn child() {
    let (root, base) = (env::var(ROOT).expect("run by another test"), env::var(BASE).unwrap());
    let installer = installer(&base, Path::new(&root), Verification::Signature(keyring(&key())));
    get(&installer).await.unwrap();
}

fn start(world: &World) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "install::processes::child", "--ignored", "--quiet"]);
    command.env(ROOT, world.root()).env(BASE, world.server.url(""));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap()
}

/// A mirror whose archive comes in pieces, and is long enough that a kill meets it half written.
async fn slow() -> (World, usize) {
    let mut script = SCRIPT.as_bytes().to_vec();
    script.extend((0..400_000_u32).flat_map(|n| (n.wrapping_mul(2_654_435_761) >> 8).to_le_bytes()));
    let size = script.len();
    let archive = zip(&[("tofu", &script)]);
    let world = World::with(published(&archive, &key(), BORN + DAY)).await;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", archive.len());
    let mut acts = vec![Act::Send(head.into_bytes())];
    for piece in archive.chunks(archive.len() / 8) {
        acts.extend([Act::Send(piece.to_vec()), Act::Wait(Duration::from_millis(1))]);
    }
    world.set(ARCHIVE, acts);
    (world, size)
}

async fn ended(mut child: Child) -> bool {
    tokio::task::spawn_blocking(move || child.wait().unwrap().success()).await.unwrap()
}

#[tokio::test]
async fn fifty_processes_do_one_download() {
    let (world, size) = slow().await;
    for child in (0..50).map(|_| start(&world)).collect::<Vec<_>>() {
        assert!(ended(child).await);
    }
    assert_eq!(world.asked(ARCHIVE), 1, "one of them got it");
    let all = world.installer().store.list().unwrap();
    assert_eq!(all.iter().map(|one| one.size).collect::<Vec<_>>(), [size as u64]);
}

#[tokio::test]
async fn whoever_is_killed_while_it_downloads_leaves_nothing_that_looks_installed_and_is_not() {
    let lanes: [_; LANES as usize] = tokio::join!(lane(), lane(), lane(), lane()).into();
    let (asked, whole) = lanes.iter().fold((0, 0), |sum, lane| (sum.0 + lane.0, sum.1 + lane.1));
    println!("{} kills: {asked} had begun to download, {whole} had installed it", per_lane() * LANES);
    assert!(whole > 0 && asked > whole, "the kills came all too early or too late");
}

/// Kills one after the other; how many had begun to download, and how many had installed it.
async fn lane() -> (u32, u32) {
    let (world, size) = slow().await;
    let store = world.installer().store;
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let begun = Instant::now();
        assert!(ended(start(&world)).await);
        shortest = shortest.min(begun.elapsed());
        fs::remove_dir_all(world.root().join("opentofu")).unwrap();
    }
    let (mut window, mut asked) = (Window::new(shortest), 0);
    for _ in 0..per_lane() {
        let before = world.asked(ARCHIVE);
        let mut child = start(&world);
        tokio::time::sleep(window.next()).await;
        child.kill().unwrap();
        child.wait().unwrap();
        asked += u32::from(world.asked(ARCHIVE) > before);
        for installed in store.list().unwrap() {
            window.whole += 1;
            assert_eq!(fs::metadata(&installed.binary).unwrap().len(), size as u64);
            assert_eq!(digest(&installed.binary).unwrap(), installed.digest);
            store.take(installed).unwrap();
            // Again from the beginning.
            fs::remove_dir_all(world.root().join("opentofu")).unwrap();
        }
    }
    // The one after them is not kept from it, and no more is left than one unfinished version.
    assert!(ended(start(&world)).await);
    assert!(store.find(Tool::OpenTofu, &version("1.10.6")).unwrap().is_some());
    assert!(world.left().len() < 12, "{:?}", world.left());
    (asked, window.whole)
}
