//! Checks that the keys belong to the store.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use axum::body::Body;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::json;

use crds::datastore::{KEY_MISSING, Problem};

use super::{Lab, write_key};
use crate::{
    blob::{
        keyring::settle,
        sealed::{Fit, Sealed},
        store::Store,
    },
    certificate,
    cluster::Entries,
    crypt::keys::Keys,
    names::{below, top},
    settings::SecretName,
    testing::FakeCluster,
};

fn secret() -> SecretName {
    "pawl/keyring".parse().unwrap()
}

/// A process on this folder that has not loaded its keys, which are mounted at `keys`.
fn starting(folder: &Path, keys: &Path) -> Sealed {
    let store = Store::open(
        &format!("file://{}", folder.display()),
        &std::collections::HashMap::new(),
    )
    .unwrap();
    Sealed::new(store, Arc::new(Keys::waiting(keys)))
}

/// A cluster with an empty Secret, as the chart creates it.
fn cluster() -> FakeCluster {
    let cluster = FakeCluster::default();
    cluster.secrets.lock().unwrap().insert(
        "keyring".into(),
        Entries {
            version: "1".into(),
            ..Entries::default()
        },
    );
    cluster
}

fn entries(cluster: &FakeCluster) -> BTreeMap<String, Vec<u8>> {
    cluster.secrets.lock().unwrap()["keyring"].data.clone()
}

fn refused(outcome: Result<(), Problem>, part: &str) {
    let problem = outcome.unwrap_err();
    assert!(
        problem.reason == KEY_MISSING && problem.message.contains(part),
        "{problem}"
    );
}

#[tokio::test]
async fn concurrent_starts_create_one_key_in_an_empty_store() {
    let (folder, keys, cluster) = (
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
        Arc::new(cluster()),
    );
    let replicas: Vec<_> = (0..6)
        .map(|_| starting(folder.path(), keys.path()))
        .collect();
    let settling = replicas.iter().map(|sealed| {
        let (sealed, cluster) = (sealed.clone(), cluster.clone());
        tokio::spawn(async move { settle(&sealed, &*cluster, Some(&secret())).await })
    });
    for outcome in futures::future::join_all(settling).await {
        outcome.unwrap().unwrap();
    }
    let made = entries(&cluster);
    assert_eq!(made.len(), 2, "one key, and its name: {:?}", made.keys());
    replicas[0]
        .create(&below(&top("claims"), "a"), &json!({}), b"")
        .await
        .unwrap();
    for sealed in &replicas {
        assert!(
            matches!(
                sealed.fit(&below(&top("claims"), "a")).await.unwrap(),
                Fit::Opens(_)
            ),
            "the same key in each"
        );
    }
    // The process restarts before the kubelet has mounted the new key.
    let again = starting(folder.path(), keys.path());
    settle(&again, &*cluster, Some(&secret())).await.unwrap();
    assert!(matches!(
        again.fit(&below(&top("claims"), "a")).await.unwrap(),
        Fit::Opens(_)
    ));
    assert_eq!(entries(&cluster), made);
    // A replica reads the Secret before it is filled, and checks the store after the first mark was written.
    cluster.before.lock().unwrap().insert(
        "keyring".into(),
        Entries {
            version: "1".into(),
            ..Entries::default()
        },
    );
    settle(
        &starting(folder.path(), keys.path()),
        &*cluster,
        Some(&secret()),
    )
    .await
    .unwrap();
    assert_eq!(entries(&cluster), made);
}

#[tokio::test]
async fn store_with_content_never_gets_a_new_key() {
    let lab = Lab::new();
    lab.asks("pod-1", &[("PUT objects/plan", b"+ aws_vpc.main", "201")])
        .await;
    let (nothing, cluster) = (tempfile::tempdir().unwrap(), cluster());
    let sealed = starting(lab.folder.path(), nothing.path());
    refused(
        settle(&sealed, &cluster, Some(&secret())).await,
        "the store is not empty",
    );
    assert!(entries(&cluster).is_empty());
    // Each kind of content alone counts as content.
    for object in [
        "claims/team/u",
        "gone/team/u",
        "states/team/net/w-x/journal/1",
        "repositories/team/u/bundles/c",
        "outputs/team/net/w-x",
    ] {
        let (folder, empty) = (tempfile::tempdir().unwrap(), self::cluster());
        let file = folder.path().join(object);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, b"sealed").unwrap();
        refused(
            settle(
                &starting(folder.path(), nothing.path()),
                &empty,
                Some(&secret()),
            )
            .await,
            "the store is not empty",
        );
        assert!(entries(&empty).is_empty(), "{object}");
    }
}

#[tokio::test]
async fn foreign_keys_are_rejected_and_named() {
    let lab = Lab::new();
    lab.asks("pod-1", &[("PUT objects/plan", b"+ aws_vpc.main", "201")])
        .await;
    let (others, cluster) = (tempfile::tempdir().unwrap(), FakeCluster::default());
    let at = |keys: &Path| starting(lab.folder.path(), keys);
    // A store without marks reveals its keys only through its objects.
    write_key(others.path(), "k1", 9);
    refused(
        settle(&at(others.path()), &cluster, None).await,
        "another key under the name `k1`",
    );
    std::fs::remove_file(others.path().join("k1")).unwrap();
    write_key(others.path(), "k2", 9);
    refused(
        settle(&at(others.path()), &cluster, None).await,
        "does not have the key `k1`",
    );
    assert!(
        !lab.files()
            .iter()
            .any(|path| path.to_string_lossy().contains("/keys/")),
        "nothing was written"
    );
    // The marks reveal a wrong key even when no object of that key is found.
    settle(&at(lab.keys.path()), &cluster, None).await.unwrap();
    std::fs::remove_dir_all(lab.folder.path().join("runs")).unwrap();
    let sealed = at(others.path());
    refused(
        settle(&sealed, &cluster, None).await,
        "does not have the key `k1`",
    );
    // The process recovers when the key is restored; an additional key is a rotation.
    write_key(others.path(), "k1", 1);
    write_key(others.path(), "k2", 9);
    settle(&sealed, &cluster, None).await.unwrap();
    assert_eq!(
        sealed.fit(&below(&top("keys"), "k2")).await.unwrap(),
        Fit::Opens("k2".into())
    );
    refused(
        settle(&at(lab.keys.path()), &cluster, None).await,
        "does not have the key `k2`",
    );
}

#[tokio::test]
async fn service_without_its_keys_is_alive_but_not_ready() {
    let lab = Lab::new();
    let unfit = serving::problem::problem(KEY_MISSING, "the key `k1` is not there");
    lab.service.unfit.send_replace(Some(unfit));
    let ask = async |path: &str| lab.send("GET", path, &[], Body::empty()).await;
    assert_eq!(ask("/healthz").await.code, 200);
    let ready = ask("/readyz").await;
    assert!(
        ready.code == 503 && ready.text().contains("`k1` is not there"),
        "{ready:?}"
    );
    let refused = lab.put("objects/plan", b"x").await;
    assert_eq!(
        (refused.code, refused.reason().as_str()),
        (500, KEY_MISSING)
    );
    lab.service.unfit.send_replace(None);
    lab.asks("pod-1", &[("PUT objects/plan", b"x", "201")])
        .await;
}

#[tokio::test]
async fn certificate_is_created_once() {
    let cluster = cluster();
    let names: Vec<String> = ["datastore".to_owned(), "datastore.pawl.svc".to_owned()].into();
    let obtain = async || {
        certificate::settle(&cluster, &secret(), &names)
            .await
            .unwrap()
    };
    let made = obtain().await;
    made.config(None).unwrap();
    assert!(obtain().await == made, "the same again");
    // The authority that pods receive has signed the certificate.
    let pem = |entry: &str| CertificateDer::from_pem_slice(&entries(&cluster)[entry]).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(pem("ca.crt")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .unwrap();
    let verify = |host: &'static str| {
        use rustls::client::danger::ServerCertVerifier as _;
        let host = rustls::pki_types::ServerName::try_from(host).unwrap();
        verifier.verify_server_cert(
            &pem("tls.crt"),
            &[],
            &host,
            &[],
            rustls::pki_types::UnixTime::now(),
        )
    };
    assert!(
        verify("datastore").is_ok()
            && verify("datastore.pawl.svc").is_ok()
            && verify("elsewhere").is_err()
    );
}
