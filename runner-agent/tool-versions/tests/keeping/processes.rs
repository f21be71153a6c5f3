//! Processes that are killed while they write to the cache. The child is an ignored test of this program.

use std::{
    env,
    io::Write as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use tool_versions::{Tool, cache::store::install::Proof};

use super::{store, version};
use crate::kills::{LANES, lane, per_lane};

const ROOT: &str = "PAWL_TEST_STORE";
/// Bytes of the executable: enough that kills hit a partial write.
const SIZE: usize = 256 * 1024;

/// Installs 1.10.6 unless it is there.
#[test]
#[ignore = "the test below runs it in child processes"]
fn child() {
    let store = store(Path::new(&env::var(ROOT).expect("run by another test")));
    let turn = store.turn(Tool::OpenTofu, &version("1.10.6"), Duration::from_secs(60)).unwrap();
    if store.find(Tool::OpenTofu, &version("1.10.6")).unwrap().is_none() {
        let mut staging = turn.begin().unwrap();
        let bytes: Vec<u8> = (0..SIZE).map(|i| u8::try_from(i % 251).unwrap()).collect();
        for piece in bytes.chunks(4096) {
            staging.write_all(piece).unwrap();
        }
        staging.commit(&Proof::default()).unwrap();
    }
    let installed = store.find(Tool::OpenTofu, &version("1.10.6")).unwrap().expect("it was installed");
    store.take(installed).unwrap();
}

fn start(root: &Path) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "keeping::processes::child", "--ignored", "--quiet"]).env(ROOT, root);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap()
}

#[test]
fn killed_installers_leave_no_partial_version() {
    let run = || {
        let dir = tempfile::tempdir().unwrap();
        let unfinished = dir.path().join(".aside/opentofu-1.10.6-linux_amd64");
        lane(dir.path(), &store(dir.path()), SIZE as u64, || start(dir.path()), || unfinished.exists())
    };
    let lanes: Vec<(u32, u32)> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(run)).collect();
        lanes.into_iter().map(|lane| lane.join().unwrap()).collect()
    });
    let (half, whole) = lanes.iter().fold((0, 0), |sum, lane| (sum.0 + lane.0, sum.1 + lane.1));
    println!("{} kills: {whole} left it whole, {half} half", per_lane() * LANES);
    assert!(whole > 0 && half > 0, "the kills came all too early or too late");
}
