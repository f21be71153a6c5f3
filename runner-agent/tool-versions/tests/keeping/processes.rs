//! Processes of their own: this program again, as one of its ignored tests.

use std::{
    env, fs,
    io::Write as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tool_versions::{
    Tool,
    cache::store::{install::Proof, verify::digest},
};

use super::{store, version};
use crate::kills::{LANES, Window, per_lane};

const ROOT: &str = "PAWL_TEST_STORE";
const SIZE: usize = 256 * 1024;

/// The bytes that are installed: long enough that a kill meets them half written.
fn bytes() -> Vec<u8> {
    (0..SIZE).map(|i| u8::try_from(i % 251).unwrap()).collect()
}

/// Wants 1.10.6: takes its turn, and gets it if it is not there. What is got is counted in a file.
#[test]
#[ignore = "it is run by the tests below, in processes of its own"]
fn child() {
    let root = env::var(ROOT).expect("run by another test");
    let store = store(Path::new(&root));
    if store.find(Tool::OpenTofu, &version("1.10.6")).unwrap().is_none() {
        let turn = store.turn(Tool::OpenTofu, &version("1.10.6"), Duration::from_secs(60)).unwrap();
        if store.find(Tool::OpenTofu, &version("1.10.6")).unwrap().is_none() {
            let mut staging = turn.begin().unwrap();
            let mut got = fs::File::options().create(true).append(true).open(Path::new(&root).join("got")).unwrap();
            got.write_all(b"x").unwrap();
            for piece in bytes().chunks(4096) {
                staging.write_all(piece).unwrap();
            }
            staging.commit(&Proof::default()).unwrap();
        }
    }
    let installed = store.find(Tool::OpenTofu, &version("1.10.6")).unwrap().expect("it is there now");
    store.take(installed).unwrap();
}

fn start(root: &Path) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "keeping::processes::child", "--ignored", "--quiet"]).env(ROOT, root);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap()
}

#[test]
fn fifty_processes_get_it_once() {
    let dir = tempfile::tempdir().unwrap();
    let all: Vec<_> = (0..50).map(|_| start(dir.path())).collect();
    for mut child in all {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(fs::read(dir.path().join("got")).unwrap(), b"x", "one of them got it");
    assert_eq!(store(dir.path()).list().unwrap().len(), 1);
}

#[test]
fn whoever_is_killed_leaves_nothing_that_looks_installed_and_is_not() {
    let lanes: Vec<(u32, u32)> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().map(|lane| lane.join().unwrap()).collect()
    });
    let (whole, half) = lanes.iter().fold((0, 0), |sum, lane| (sum.0 + lane.0, sum.1 + lane.1));
    println!("{} kills: {whole} left it whole, {half} half", per_lane() * LANES);
    assert!(whole > 0 && half > 0, "the kills came all too early or too late");
}

/// Kills one after the other; how many left it whole, and how many half.
fn lane() -> (u32, u32) {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let begun = Instant::now();
        assert!(start(dir.path()).wait().unwrap().success());
        shortest = shortest.min(begun.elapsed());
        fs::remove_dir_all(dir.path().join("opentofu")).unwrap();
    }
    let (mut window, mut half) = (Window::new(shortest), 0);
    for _ in 0..per_lane() {
        let mut child = start(dir.path());
        thread::sleep(window.next());
        child.kill().unwrap();
        child.wait().unwrap();
        for installed in store.list().unwrap() {
            window.whole += 1;
            assert_eq!(fs::metadata(&installed.binary).unwrap().len(), SIZE as u64);
            assert_eq!(digest(&installed.binary).unwrap(), installed.digest);
            store.take(installed.clone()).unwrap();
            // Again from the beginning.
            fs::remove_dir_all(dir.path().join("opentofu")).unwrap();
        }
        half += u32::from(dir.path().join(".aside/opentofu-1.10.6-linux_amd64").exists());
    }
    // The one after them is not kept from it.
    assert!(start(dir.path()).wait().unwrap().success());
    assert_eq!(store.list().unwrap().len(), 1);
    (window.whole, half)
}
