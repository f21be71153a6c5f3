//! Large files of layers, with real git-lfs: as `.lfsconfig` says, in submodules too.

use std::{ffi::OsString, fs, path::Path};

use serde_json::json;
use servers::{
    git::GitServer,
    large::{oid, pointer},
    local_git::LocalGit,
    repo::Change,
};
use source::Repository;
use xtask::{cache::Cache, packages};

use super::{World, env};

const ASKED: &[u8] = b"*.zip filter=lfs diff=lfs merge=lfs -text\n";
const MODULES: &[u8] = b"[submodule \"m\"]\n\tpath = m\n\turl = ../module.git\n";

/// The directories of git and of Debian's `git-lfs`, installed or unpacked into the cache. `None` without it; under `CI` that fails.
pub(crate) fn path() -> Option<String> {
    if Path::new("/usr/bin/git-lfs").exists() {
        return Some("/usr/bin:/bin".to_owned());
    }
    let unpacked =
        Cache::open().and_then(|cache| packages::unpacked(&cache, "git-lfs", &["git-lfs"]));
    match unpacked {
        Ok(dir) => Some(format!("{}/usr/bin:/usr/bin:/bin", dir.display())),
        Err(error) if std::env::var_os("CI").is_none() => {
            println!("left out: Debian's package git-lfs is not there: {error:#}");
            None
        }
        Err(error) => panic!("{error:#}"),
    }
}

/// The digest of a file, or that of the contents to which it points.
fn kind(root: &Path, name: &str) -> String {
    let bytes = fs::read(root.join(name)).unwrap();
    if bytes.starts_with(b"version https://git-lfs") {
        return "a pointer".to_owned();
    }
    oid(&bytes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lfsconfig_and_large_files_of_submodules_are_followed() {
    let Some(path) = path() else { return };
    let mut world = World::new(&[("app", json!({"path": "live"}))]).await;
    let dir = tempfile::tempdir().unwrap();
    let store = GitServer::start("127.0.0.1:0".parse().unwrap(), dir.path())
        .await
        .unwrap();
    store.create("store").unwrap();
    let (code, part, deep) = (b"code".as_slice(), b"part".as_slice(), b"deep".as_slice());
    // Each server has contents that the other lacks.
    store.add_large(code);
    store.add_large(deep);
    world.server.add_large(part);
    let elsewhere = format!("[lfs]\n url = {}/info/lfs\n", store.url("store"));
    let deeper = world.server.create("team/deep").unwrap();
    let text = pointer(deep);
    let files = [
        Change::File(".gitattributes", ASKED),
        Change::File(".lfsconfig", elsewhere.as_bytes()),
        Change::File("deep.zip", text.as_bytes()),
    ];
    let deeper = deeper.commit_changes("main", &files).unwrap();
    let module = world.server.create("team/module").unwrap();
    let text = pointer(part);
    let files = [
        Change::File(".gitattributes", ASKED),
        Change::File("part.zip", text.as_bytes()),
        Change::File(
            ".gitmodules",
            b"[submodule \"d\"]\n\tpath = d\n\turl = ../deep.git\n",
        ),
        Change::Submodule("d", &deeper),
    ];
    let module = module.commit_changes("main", &files).unwrap();
    let own = format!("{elsewhere} fetchexclude = other\n");
    let text = pointer(code);
    let excluded = pointer(b"nowhere");
    let files = [
        Change::File(".gitattributes", ASKED),
        Change::File(".lfsconfig", own.as_bytes()),
        Change::File("live/code.zip", text.as_bytes()),
        Change::File("other/code.zip", excluded.as_bytes()),
        Change::File(".gitmodules", MODULES),
        Change::Submodule("m", &module),
    ];
    let commit = world.repo.commit_changes("main", &files).unwrap();
    assert_eq!(world.look().await, ["app"]);
    let status = world.status();
    assert_eq!(status.refs[0].commit.clone().unwrap().large, None);

    let (layer, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let kept = &world.syncer.snapshots;
    kept.tree(&commit, Some("main"), layer.path()).await;
    let mut env: Vec<(OsString, OsString)> = env();
    env.push(("PATH".into(), path.into()));
    let url = world.server.url("team/stacks");
    let repository = Repository::new::<std::io::Error>(&url, "main").unwrap();
    let fetched = repository.fetch(&LocalGit, env.clone(), run.path()).await;
    fetched.unwrap();
    let contents = repository.fetch_contents(&LocalGit, env, run.path()).await;
    contents.unwrap();
    for root in [layer.path(), run.path()] {
        let names = [
            "live/code.zip",
            "other/code.zip",
            "m/part.zip",
            "m/d/deep.zip",
        ];
        assert_eq!(
            names.map(|name| kind(root, name)),
            [oid(code), "a pointer".into(), oid(part), oid(deep)]
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lfs_settings_that_are_not_followed_are_named() {
    if path().is_none() {
        return;
    }
    let mut world = World::new(&[("app", json!({"path": "live"}))]).await;
    let code = b"code".as_slice();
    world.server.add_large(code);
    let (there, gone) = (pointer(code), pointer(b"nowhere"));
    // An address that the operator denies, and one of no server.
    let rows = [
        (
            "[lfs]\n url = http://me:pw@127.0.0.2:1/x\n",
            "lfs.url of .lfsconfig",
        ),
        (
            "[remote \"origin\"]\n lfsurl = file:///etc\n",
            "remote.origin.lfsurl of .lfsconfig",
        ),
    ];
    for (config, named) in rows {
        let files = [
            Change::File(".gitattributes", ASKED),
            Change::File(".lfsconfig", config.as_bytes()),
            Change::File("live/code.zip", there.as_bytes()),
        ];
        let commit = world.repo.commit_changes("main", &files).unwrap();
        world.look().await;
        let known = world.status().refs[0].clone();
        let large = known.commit.unwrap().large.unwrap();
        assert!(large.contains(named) && !large.contains("pw"), "{large}");
        let [ready, _, message] = world.condition("Ready");
        assert!(ready == "True" && message.contains(named), "{message}");
        let root = world.syncer.snapshots.dir.path().join(commit);
        assert_eq!(kind(&root, "live/code.zip"), oid(code));
    }
    // Another ref at that commit, whose snapshot is there, says so too.
    world.layer("second", &json!({"path": "live", "ref": "HEAD"}));
    world.look().await;
    let refs = world.status().refs.clone();
    assert_eq!(refs.len(), 2);
    for known in refs {
        assert!(known.commit.unwrap().large.is_some(), "{}", known.name);
    }
    let files = [
        Change::Delete(".lfsconfig"),
        Change::File("live/gone.zip", gone.as_bytes()),
    ];
    world.repo.commit_changes("main", &files).unwrap();
    world.look().await;
    let [_, _, message] = world.condition("Ready");
    assert!(message.contains("stay pointers"), "{message}");
    world
        .repo
        .commit_changes("main", &[Change::Delete("live/gone.zip")])
        .unwrap();
    world.look().await;
    assert!(world.status().refs.iter().all(|known| {
        let commit = known.commit.as_ref().unwrap();
        commit.large.is_none()
    }));
}
