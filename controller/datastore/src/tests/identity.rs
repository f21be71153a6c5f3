//! The start of a process on a store of its own, of another cluster, and of none.

use std::{collections::HashMap, path::Path};

use crate::{
    blob::{
        identity::{creates_once, settle},
        store::Store,
    },
    cluster::Entries,
    settings::SecretName,
    testing::FakeCluster,
};

fn secret() -> SecretName {
    "pawl/identity".parse().unwrap()
}

fn store(folder: &Path) -> Store {
    Store::open(&format!("file://{}", folder.display()), &HashMap::new()).unwrap()
}

/// A cluster with the empty Secret of the chart.
fn cluster(uid: &str) -> FakeCluster {
    let cluster = FakeCluster::default();
    let empty = Entries {
        uid: uid.into(),
        version: "1".into(),
        ..Entries::default()
    };
    cluster
        .secrets
        .lock()
        .unwrap()
        .insert("identity".into(), empty);
    cluster
}

#[tokio::test]
async fn empty_or_foreign_store_is_served_only_when_adopted() {
    let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (here, there) = (cluster("here"), cluster("there"));
    let name = secret();
    let start = async |folder: &Path, cluster: &FakeCluster, adopt: &str| {
        let started = settle(&store(folder), cluster, &name, adopt).await;
        started.map_err(|problem| problem.message)
    };
    for _ in 0..2 {
        start(own.path(), &here, "").await.unwrap();
    }
    let id =
        String::from_utf8(here.secrets.lock().unwrap()["identity"].data["store"].clone()).unwrap();
    // `helm upgrade` with an empty volume in place of the old one.
    let empty = start(other.path(), &here, "").await.unwrap_err();
    assert!(empty.contains(&id) && empty.contains("here"), "{empty}");
    assert!(
        std::fs::read_dir(other.path()).unwrap().next().is_none(),
        "nothing was written"
    );
    // A second cluster on the store of the first.
    let foreign = start(own.path(), &there, "").await.unwrap_err();
    assert!(
        foreign.contains(&id) && foreign.contains("here") && foreign.contains("there"),
        "{foreign}"
    );
    start(own.path(), &there, &id).await.unwrap();
    let moved = start(own.path(), &here, "").await.unwrap_err();
    assert!(moved.contains("belongs to cluster there"), "{moved}");
    // The volume is lost for good.
    start(other.path(), &here, &id).await.unwrap();
    start(other.path(), &here, "").await.unwrap();
    let again = start(tempfile::tempdir().unwrap().path(), &here, &id).await;
    assert!(again.is_err(), "the value adopts once");
    // A start that ended between the record of the store and the one of the cluster: the next one goes on, with or without the value.
    let expect = |id: &str| {
        let mut secrets = here.secrets.lock().unwrap();
        let data = &mut secrets.get_mut("identity").unwrap().data;
        data.insert("store".into(), id.into());
    };
    for adopt in [id.as_str(), ""] {
        expect(&id);
        start(other.path(), &here, adopt).await.unwrap();
    }
    let third = tempfile::tempdir().unwrap();
    let of_other = here.secrets.lock().unwrap()["identity"].data["store"].clone();
    let of_other = String::from_utf8(of_other).unwrap();
    start(third.path(), &here, &of_other).await.unwrap();
    let earlier = start(other.path(), &here, "").await.unwrap_err();
    assert!(
        earlier.contains(&format!(
            " -n pawl --reuse-values --set-string datastore.adopt={of_other}"
        )),
        "{earlier}"
    );
}

#[tokio::test]
async fn store_refuses_the_second_object_of_one_name() {
    let folder = tempfile::tempdir().unwrap();
    creates_once(&store(folder.path())).await.unwrap();
}
