//! The cache: installation, verification, pruning, locks.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    time::{Duration, SystemTime},
};

use tool_versions::{
    Kind, Platform, Store, Tool, Version,
    cache::store::{Installed, install::Proof},
    install::output_of,
};

fn version(text: &str) -> Version {
    text.parse().unwrap()
}

fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::at(
        dir.path(),
        Platform {
            os: "linux".into(),
            arch: "amd64".into(),
        },
    );
    (dir, store)
}

fn install(store: &Store, tool: Tool, text: &str, bytes: &[u8]) -> Installed {
    let turn = store
        .turn(tool, &version(text), Duration::from_secs(60))
        .unwrap();
    let mut staging = turn.begin().unwrap();
    staging.write_all(bytes).unwrap();
    staging
        .commit(&Proof {
            source: "a test".into(),
            ..Proof::default()
        })
        .unwrap()
}

fn everything(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        found.push(entry.path().display().to_string());
        found.extend(everything(&entry.path()));
    }
    found.sort();
    found
}

#[test]
fn installed_version_is_found_and_runs() {
    let (dir, store) = store();
    assert_eq!(store.list().unwrap(), []);
    assert!(
        store
            .find(Tool::OpenTofu, &version("1.10.6"))
            .unwrap()
            .is_none()
    );
    let installed = install(&store, Tool::OpenTofu, "1.10.6", b"#!/bin/sh\necho tofu\n");
    assert_eq!(
        installed.digest,
        tool_versions::cache::store::verify::digest(&installed.binary).unwrap()
    );
    let place = format!("opentofu/1.10.6/linux_amd64/{}/tofu", installed.digest);
    assert_eq!(installed.binary, dir.path().join(place));
    assert_eq!(
        fs::metadata(&installed.binary)
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o555
    );
    let found = store
        .find(Tool::OpenTofu, &version("1.10.6"))
        .unwrap()
        .unwrap();
    assert_eq!((&found.binary, found.size), (&installed.binary, 20));
    assert_eq!(store.list().unwrap(), std::slice::from_ref(&found));
    let in_use = store.take(found).unwrap();
    let output = output_of(&mut Command::new(&in_use.installed.binary)).unwrap();
    assert_eq!(output.stdout, b"tofu\n");
    // Another platform in the same directory has no version.
    assert!(
        Store::at(
            dir.path(),
            Platform {
                os: "linux".into(),
                arch: "arm64".into()
            }
        )
        .list()
        .unwrap()
        .is_empty()
    );
}

#[test]
fn unfinished_version_is_not_listed() {
    let (dir, store) = store();
    let turn = store
        .turn(Tool::Terraform, &version("1.5.7"), Duration::ZERO)
        .unwrap();
    let mut staging = turn.begin().unwrap();
    staging.write_all(b"half").unwrap();
    drop(staging);
    assert_eq!(store.list().unwrap(), []);
    let left: Vec<_> = everything(dir.path())
        .into_iter()
        .filter(|path| path.contains("/terraform/"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    let empty = turn.begin().unwrap().commit(&Proof::default()).unwrap_err();
    assert_eq!(empty.kind, Kind::Integrity);
    let mut staging = turn.begin().unwrap();
    staging.write_all(b"whole").unwrap();
    let installed = staging.commit(&Proof::default()).unwrap();
    // The same bytes again.
    let mut again = turn.begin().unwrap();
    again.write_all(b"whole").unwrap();
    assert_eq!(
        again.commit(&Proof::default()).unwrap().binary,
        installed.binary
    );
    assert_eq!(store.list().unwrap().len(), 1);
}

#[test]
fn directories_that_are_no_versions_are_skipped() {
    let (dir, store) = store();
    let digest = "a".repeat(64);
    for path in [
        format!("opentofu/1.10.6/linux_amd64/{digest}/tofu"),
        "opentofu/1.10.6/linux_amd64/short/tofu".to_owned(),
        "opentofu/1.10/linux_amd64/x/tofu".to_owned(),
        "opentofu/README".to_owned(),
    ] {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }
    assert_eq!(store.list().unwrap(), [], "a version has a proof");
    // An installation replaces a directory of its name.
    let installed = install(&store, Tool::OpenTofu, "1.10.6", b"real");
    let linked = dir
        .path()
        .join("opentofu/1.10.6/linux_amd64")
        .join("b".repeat(64));
    fs::create_dir_all(&linked).unwrap();
    fs::write(linked.join("proof.json"), "{}").unwrap();
    std::os::unix::fs::symlink("/bin/sh", linked.join("tofu")).unwrap();
    let listed = store.list().unwrap();
    assert_eq!(
        listed.iter().map(|one| &one.binary).collect::<Vec<_>>(),
        [&installed.binary],
        "a link is no version"
    );
}

#[test]
fn changed_bytes_are_removed_even_with_the_old_mtime() {
    let (_dir, store) = store();
    let installed = install(&store, Tool::OpenTofu, "1.10.6", b"real");
    drop(store.take(installed.clone()).unwrap());
    // Same size and modification time, as an attacker would leave it.
    let meta = fs::metadata(&installed.binary).unwrap();
    fs::set_permissions(&installed.binary, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&installed.binary, "evil").unwrap();
    fs::File::options()
        .write(true)
        .open(&installed.binary)
        .unwrap()
        .set_modified(meta.modified().unwrap())
        .unwrap();
    let error = store.take(installed.clone()).unwrap_err();
    assert_eq!(error.kind, Kind::Integrity);
    assert!(
        error.text.contains(&installed.digest) && error.text.contains("it was removed"),
        "{error}"
    );
    assert!(store.list().unwrap().is_empty() && !installed.binary.exists());
    assert_eq!(store.take(installed).unwrap_err().kind, Kind::Unavailable);
}

#[test]
fn known_stamp_skips_the_digest_and_unknown_is_replaced() {
    let (_dir, store) = store();
    let installed = install(&store, Tool::OpenTofu, "1.10.6", b"real");
    let seen = installed.binary.with_file_name("seen.json");
    let before = fs::read(&seen).unwrap();
    drop(store.take(installed.clone()).unwrap());
    assert_eq!(fs::read(&seen).unwrap(), before);
    // A copied cache has other stamps, a broken file none; both are rewritten.
    for broken in [
        "",
        "{}",
        "{\"stamp\":{\"inode\":1,\"size\":4,\"changed\":[0,0],\"modified\":[0,0]},\"digest\":\"x\"}",
    ] {
        fs::write(&seen, broken).unwrap();
        drop(store.take(installed.clone()).unwrap());
        assert_eq!(fs::read(&seen).unwrap(), before, "{broken}");
    }
}

#[test]
fn least_recently_used_is_pruned_first() {
    let (dir, store) = store();
    let ago = |minutes: u64| SystemTime::now() - Duration::from_secs(60 * minutes);
    let all: Vec<_> = [("1.8.0", 30), ("1.9.4", 10), ("1.10.6", 20), ("1.11.0", 40)]
        .into_iter()
        .map(|(text, minutes)| {
            let installed = install(&store, Tool::OpenTofu, text, text.as_bytes());
            let used = installed.binary.with_file_name("used");
            fs::File::options()
                .append(true)
                .open(used)
                .unwrap()
                .set_modified(ago(minutes))
                .unwrap();
            installed
        })
        .collect();
    let left = |store: &Store| -> Vec<String> {
        store
            .list()
            .unwrap()
            .iter()
            .map(|one| one.version.to_string())
            .collect()
    };
    // A child of another test holds this process's locks between fork and exec.
    let free = |some: &[Installed]| {
        for one in some {
            let used = fs::File::open(one.binary.with_file_name("used")).unwrap();
            while used.try_lock().is_err() {
                std::thread::sleep(Duration::from_millis(2));
            }
            used.unlock().unwrap();
        }
    };
    assert!(store.prune(1000, SystemTime::now()).unwrap().is_empty());
    assert!(store.prune(0, ago(60)).unwrap().is_empty());
    // 22 bytes in all; the oldest is in use.
    let held = store.take(all[3].clone()).unwrap();
    fs::File::options()
        .append(true)
        .open(all[3].binary.with_file_name("used"))
        .unwrap()
        .set_modified(ago(40))
        .unwrap();
    free(&all[..3]);
    let gone = store.prune(17, SystemTime::now()).unwrap();
    assert_eq!(
        gone.iter()
            .map(|one| one.version.to_string())
            .collect::<Vec<_>>(),
        ["1.8.0"]
    );
    assert_eq!(left(&store), ["1.10.6", "1.11.0", "1.9.4"]);
    drop(held);
    free(&all[1..]);
    assert_eq!(store.prune(5, SystemTime::now()).unwrap().len(), 2);
    assert_eq!(left(&store), ["1.9.4"]);
    assert!(everything(&dir.path().join(".aside")).is_empty());
}

#[test]
fn turn_timeout_names_the_version() {
    let (_dir, store) = store();
    let _held = store
        .turn(Tool::OpenTofu, &version("1.10.6"), Duration::ZERO)
        .unwrap();
    let error = store
        .turn(
            Tool::OpenTofu,
            &version("1.10.6"),
            Duration::from_millis(60),
        )
        .unwrap_err();
    assert_eq!(error.kind, Kind::Unavailable);
    assert!(
        error
            .text
            .starts_with("OpenTofu 1.10.6 is being installed by another process"),
        "{error}"
    );
    // Another version has another lock.
    store
        .turn(Tool::OpenTofu, &version("1.10.5"), Duration::ZERO)
        .unwrap();
}

#[test]
fn prune_removes_leftovers_but_not_running_work() {
    let (dir, store) = store();
    // One process is installing.
    let turn = store
        .turn(Tool::OpenTofu, &version("1.10.6"), Duration::ZERO)
        .unwrap();
    let mut staging = turn.begin().unwrap();
    staging.write_all(b"half").unwrap();
    // One process was killed while it installed, and one while it removed a version.
    drop(
        store
            .turn(Tool::Terraform, &version("1.5.7"), Duration::ZERO)
            .unwrap(),
    );
    let left = dir.path().join(".aside/terraform-1.5.7-linux_amd64");
    let gone = dir.path().join(".aside/gone-x-1-1");
    for dir in [&left, &gone] {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("tofu"), "half").unwrap();
    }
    store.prune(u64::MAX, SystemTime::now()).unwrap();
    assert!(!left.exists() && !gone.exists());
    staging.commit(&Proof::default()).unwrap();
    assert_eq!(store.list().unwrap().len(), 1);
}
