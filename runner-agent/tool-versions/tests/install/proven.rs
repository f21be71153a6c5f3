//! Versions are verified at installation and at every use.

use std::{fs, process::Command};

use pgp::crypto::hash::HashAlgorithm;
use tool_versions::{
    Channel, Digest, Installer, Kind, Mirror, Platform, Store, Tool, Verification,
    install::{Ask, Origin, output_of},
    releases::mirror::Location,
};

use super::{
    making::{self, BORN, DAY, Made, made},
    server::ok,
    version,
    world::{ARCHIVE, World, get, key, keyring, published, release},
};

#[tokio::test]
async fn version_is_downloaded_once_and_runs() {
    let world = World::new().await;
    let mut seen = Vec::new();
    let got = world
        .installer()
        .get(Tool::OpenTofu, &version("1.10.6"), &mut |so_far, all| {
            seen.push((so_far, all));
        })
        .await
        .unwrap();
    let size = release().len() as u64;
    let Origin::Installed {
        signer,
        bytes,
        from,
        ..
    } = &got.origin
    else {
        panic!("{got:?}")
    };
    assert_eq!(
        (signer.as_deref(), *bytes),
        (Some(key().fingerprint().to_string().as_str()), size)
    );
    assert_eq!(from, &world.server.url(""));
    assert_eq!(got.remark, None);
    assert_eq!(seen.last(), Some(&(size, Some(size))));
    let output = output_of(&mut Command::new(&got.in_use.installed.binary)).unwrap();
    assert_eq!(output.stdout, b"tofu of the mirror\n");
    let requests = world.server.seen().len();
    let again = world.get().await.unwrap();
    assert_eq!((again.origin, again.remark), (Origin::Cached, None));
    assert_eq!(world.server.seen().len(), requests);
}

#[tokio::test]
async fn changed_executable_is_removed() {
    let world = World::new().await;
    let binary = world.get().await.unwrap().in_use.installed.binary.clone();
    fs::remove_file(&binary).unwrap();
    fs::write(&binary, "#!/bin/sh\necho other\n").unwrap();
    let error = world.get().await.unwrap_err();
    assert_eq!(error.kind, Kind::Integrity);
    assert!(
        error.text.contains("sha256:") && error.text.contains("it was removed"),
        "{error}"
    );
    assert!(!binary.exists());
    assert!(
        matches!(world.get().await.unwrap().origin, Origin::Installed { .. }),
        "and it can be had again"
    );
}

#[tokio::test]
async fn less_proof_is_opt_in_and_reported_at_every_use() {
    let world = World::new().await;
    world.set("tofu_1.10.6_SHA256SUMS.gpgsig", vec![]);
    let sums = world.verified(Verification::Sums);
    let got = get(&sums).await.unwrap();
    assert!(got.remark.unwrap().contains("no signature is checked"));
    let again = get(&sums).await.unwrap();
    assert!(again.remark.unwrap().contains("without a signature"));
    assert_eq!(world.asked(".gpgsig"), 0);
    // A channel with signatures does not accept it.
    assert!(world.get().await.is_err());
    world
        .files
        .lock()
        .unwrap()
        .extend(published(&release(), &key(), BORN + DAY));
    let proven = world.get().await.unwrap();
    assert!(
        matches!(
            &proven.origin,
            Origin::Installed {
                signer: Some(_),
                ..
            }
        ),
        "{proven:?}"
    );
    let requests = world.server.seen().len();
    let again = world.get().await.unwrap();
    assert_eq!((again.origin, again.remark), (Origin::Cached, None));
    assert_eq!(world.server.seen().len(), requests);
    // A wrong sum is refused; without sums any archive is accepted.
    let world = World::new().await;
    world.set(
        ARCHIVE,
        super::server::ok("", &super::world::zip(&[("tofu", b"other")])),
    );
    assert_eq!(
        get(&world.verified(Verification::Sums))
            .await
            .unwrap_err()
            .kind,
        Kind::Integrity
    );
    let nothing = get(&world.verified(Verification::Nothing)).await.unwrap();
    assert!(
        nothing
            .remark
            .unwrap()
            .contains("neither signature nor sum")
    );
}

#[tokio::test]
async fn removed_key_proves_nothing() {
    let (one, other) = (key(), made("seed=5"));
    let world = World::new().await;
    let by = |made: &Made| world.verified(Verification::Signature(keyring(made)));
    get(&by(&one)).await.unwrap();
    // The mirror still has the signature of the old key.
    assert_eq!(get(&by(&other)).await.unwrap_err().kind, Kind::Integrity);
    let mut offline = by(&other);
    offline.offline = true;
    assert_eq!(get(&offline).await.unwrap_err().kind, Kind::Configuration);
    // The same archive, signed by the new key.
    world
        .files
        .lock()
        .unwrap()
        .extend(published(&release(), &other, BORN + DAY));
    let got = get(&by(&other)).await.unwrap();
    assert!(
        matches!(&got.origin, Origin::Installed { signer: Some(key), .. } if *key == other.fingerprint().to_string()),
        "{got:?}"
    );
    assert_eq!(get(&by(&other)).await.unwrap().origin, Origin::Cached);
    assert!(matches!(
        get(&by(&one)).await.unwrap_err().kind,
        Kind::Integrity
    ));
}

/// A mirror of Terragrunt 0.93.0 whose executable reports the version `says`, with correct, signed sums.
async fn terragrunt(says: &str) -> (World, Installer) {
    let (platform, key) = (Platform::here(), key());
    let binary = format!("#!/bin/sh\necho asked >> \"$0.asked\"\necho terragrunt version {says}\n");
    let name = format!("terragrunt_{platform}");
    let sums = format!("{}  {name}\n", Digest::of(binary.as_bytes()));
    let signature = making::binary(&key.sign(sums.as_bytes(), BORN + DAY, HashAlgorithm::Sha256));
    let at = |name: &str| format!("/gruntwork-io/terragrunt/releases/download/v0.93.0/{name}");
    let files = [
        (at(&name), binary.into_bytes()),
        (at("SHA256SUMS"), sums.into_bytes()),
        (at("SHA256SUMS.gpgsig"), signature),
    ];
    let world = World::with(
        files
            .into_iter()
            .map(|(path, bytes)| (path, ok("", &bytes)))
            .collect(),
    )
    .await;
    let installer = world.installer();
    let mirror = Mirror::below(Tool::Terragrunt, Location::Url(world.server.url("")));
    let channels = installer
        .channels
        .iter()
        .map(|channel| Channel {
            mirror: mirror.clone(),
            ..channel.clone()
        })
        .collect();
    let store = Store::at(world.root(), platform.clone());
    (
        world,
        Installer {
            store,
            platform,
            channels,
            ..installer
        },
    )
}

#[tokio::test]
async fn signed_terragrunt_of_another_version_is_refused() {
    let wanted = version("0.93.0");
    let get = async |installer: &Installer| {
        installer
            .get(Tool::Terragrunt, &wanted, &mut |_, _| {})
            .await
    };
    let (world, installer) = terragrunt("v0.90.0").await;
    let error = get(&installer).await.unwrap_err();
    assert_eq!(error.kind, Kind::Integrity);
    assert!(
        error.text.contains("0.90.0") && error.text.contains("Terragrunt 0.93.0"),
        "{error}"
    );
    assert_eq!(world.left(), Vec::<std::path::PathBuf>::new());
    // With and without the `v`; the executable runs once.
    for says in ["v0.93.0", "0.93.0"] {
        let (_world, installer) = terragrunt(says).await;
        let got = get(&installer).await.unwrap();
        let again = get(&installer).await.unwrap();
        assert_eq!(again.origin, Origin::Cached);
        let asked = got
            .in_use
            .installed
            .binary
            .with_file_name("terragrunt.asked");
        assert_eq!(fs::read_to_string(asked).unwrap(), "asked\n", "{says}");
    }
    // A cached version that was never asked is asked.
    let (world, installer) = terragrunt("v0.90.0").await;
    let silent = Installer {
        ask: Ask::by(|_| Ok("terragrunt version v0.93.0".into())),
        ..installer.clone()
    };
    let got = get(&silent).await.unwrap();
    let proof = got.in_use.installed.binary.with_file_name("proof.json");
    let mut stored: serde_json::Value = serde_json::from_slice(&fs::read(&proof).unwrap()).unwrap();
    stored.as_object_mut().unwrap().remove("said").unwrap();
    fs::write(&proof, stored.to_string()).unwrap();
    drop(got);
    assert_eq!(get(&installer).await.unwrap_err().kind, Kind::Integrity);
    assert_eq!(world.left(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn offline_sends_no_request() {
    let world = World::new().await;
    let mut offline = world.installer();
    offline.offline = true;
    let error = get(&offline).await.unwrap_err();
    assert_eq!(
        (error.kind, error.text.contains("offline")),
        (Kind::Configuration, true),
        "{error}"
    );
    assert_eq!(world.server.seen().len(), 0);
    world.get().await.unwrap();
    let requests = world.server.seen().len();
    assert_eq!(get(&offline).await.unwrap().origin, Origin::Cached);
    assert_eq!(world.server.seen().len(), requests);
}
