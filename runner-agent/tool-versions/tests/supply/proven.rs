//! What is got is proven, kept, and proven at every use.

use std::{fs, process::Command};

use tool_versions::{Kind, Tool, Verification, supply::Origin};

use super::{
    making::{BORN, DAY, Plan},
    version,
    world::{ARCHIVE, World, get, key, keyring, published, release},
};

#[tokio::test]
async fn it_is_got_once_and_runs() {
    let world = World::new().await;
    let mut seen = Vec::new();
    let got = world.supply().get(Tool::OpenTofu, &version("1.10.6"), &mut |so_far, all| seen.push((so_far, all))).await.unwrap();
    let size = release().len() as u64;
    let Origin::Installed { signer, bytes, from, .. } = &got.origin else { panic!("{got:?}") };
    assert_eq!((signer.as_deref(), *bytes), (Some(key().fingerprint().to_string().as_str()), size));
    assert_eq!(from, &world.server.url(""));
    assert_eq!(got.remark, None);
    assert_eq!(seen.last(), Some(&(size, Some(size))), "it says how far it is");
    let output = Command::new(&got.in_use.installed.binary).output().unwrap();
    assert_eq!(output.stdout, b"tofu of the mirror\n");
    let requests = world.server.seen().len();
    let again = world.get().await.unwrap();
    assert_eq!((again.origin, again.remark), (Origin::Cached, None));
    assert_eq!(world.server.seen().len(), requests, "nobody is asked");
}

#[tokio::test]
async fn what_was_changed_in_the_cache_is_not_run() {
    let world = World::new().await;
    let binary = world.get().await.unwrap().in_use.installed.binary.clone();
    fs::remove_file(&binary).unwrap();
    fs::write(&binary, "#!/bin/sh\necho other\n").unwrap();
    let error = world.get().await.unwrap_err();
    assert_eq!(error.kind, Kind::Integrity);
    assert!(error.text.contains("sha256:") && error.text.contains("it was removed"), "{error}");
    assert!(!binary.exists());
    assert!(matches!(world.get().await.unwrap().origin, Origin::Installed { .. }), "and it can be had again");
}

#[tokio::test]
async fn less_proof_is_the_operators_word_and_is_said_at_every_use() {
    let world = World::new().await;
    world.set("tofu_1.10.6_SHA256SUMS.gpgsig", vec![]);
    let sums = world.verified(Verification::Sums);
    let got = get(&sums).await.unwrap();
    assert!(got.remark.unwrap().contains("no signature is checked"));
    let again = get(&sums).await.unwrap();
    assert!(again.remark.unwrap().contains("without a signature"));
    assert_eq!(world.asked(".gpgsig"), 0);
    // Where signatures are asked for, that is not enough.
    assert!(world.get().await.is_err());
    world.files.lock().unwrap().extend(published(&release(), &key(), BORN + DAY));
    let proven = world.get().await.unwrap();
    assert!(matches!(&proven.origin, Origin::Installed { signer: Some(_), .. }), "{proven:?}");
    let requests = world.server.seen().len();
    let again = world.get().await.unwrap();
    assert_eq!((again.origin, again.remark), (Origin::Cached, None), "it is proven from now on");
    assert_eq!(world.server.seen().len(), requests);
    // Of a sum that is wrong nothing is taken; without sums everything is.
    let world = World::new().await;
    world.set(ARCHIVE, super::server::ok("", &super::world::zip(&[("tofu", b"other")])));
    assert_eq!(get(&world.verified(Verification::Sums)).await.unwrap_err().kind, Kind::Integrity);
    let nothing = get(&world.verified(Verification::Nothing)).await.unwrap();
    assert!(nothing.remark.unwrap().contains("neither signature nor sum"));
}

#[tokio::test]
async fn offline_touches_no_network() {
    let world = World::new().await;
    let mut offline = world.supply();
    offline.offline = true;
    let error = get(&offline).await.unwrap_err();
    assert_eq!((error.kind, error.text.contains("offline")), (Kind::Configuration, true), "{error}");
    assert_eq!(world.server.seen().len(), 0);
    world.get().await.unwrap();
    let requests = world.server.seen().len();
    assert_eq!(get(&offline).await.unwrap().origin, Origin::Cached);
    assert_eq!(world.server.seen().len(), requests);
}

#[tokio::test]
async fn an_operators_own_key_signs_for_his_mirror() {
    let other = Plan { seed: 5, ..Plan::default() }.make();
    let world = World::with(published(&release(), &other, BORN + DAY)).await;
    assert_eq!(world.get().await.unwrap_err().kind, Kind::Integrity);
    let got = get(&world.verified(Verification::Signature(keyring(&other)))).await.unwrap();
    assert!(matches!(got.origin, Origin::Installed { signer: Some(key), .. } if key == other.fingerprint().to_string()));
}
