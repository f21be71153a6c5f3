//! Pods of closed attempts, with the controller's account and rights: deleted an hour later, once the datastore has their log.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use controller::gc::ended_pods::{Kept, once};
use crds::names;
use datastore_client::{RequestError, controller::Datastore};
use jiff::Timestamp;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{
    rig::{Rig, is_open, terminated},
    world::{World, tests},
};

tests! {
    Guarded: pod_is_deleted_an_hour_later_once_its_log_is_stored,
}

async fn pod_is_deleted_an_hour_later_once_its_log_is_stored(world: World) -> Result<()> {
    let rig = Rig::new(world).await?;
    rig.create(&json!({"approval": {"mode": "Automatic"}, "retry": {"limit": 0}}))
        .await?;
    rig.look("opened", is_open(1)).await?;
    let (name, pods) = (rig.attempt().await?.pod_name, rig.pods());
    rig.token().await?;
    terminated(
        &pods,
        &name,
        "Failed",
        json!({"exitCode": crds::pod_env::EXIT_USAGE, "reason": "Error"}),
    )
    .await?;
    rig.look("ended", |status| status.result.is_some()).await?;
    rig.step().await?;
    let pod = pods.get(&name).await?;
    ensure!(
        pod.finalizers().is_empty() && pod.labels().contains_key(names::LABEL_RELEASED),
        "{:?}",
        pod.metadata
    );

    let asked = Arc::new(Mutex::new(Vec::new()));
    let sweep = async |kept: &mut Kept, answer: Option<&'static str>| {
        let asked = asked.clone();
        let played = Datastore::played(
            "https://datastore",
            Box::new(move |_, path| {
                asked
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(path);
                let answer = answer.map(|text| http::Response::new(text).into());
                Box::pin(
                    async move { answer.ok_or_else(|| RequestError::unanswered("no datastore")) },
                )
            }),
        );
        let first = once(Some(&rig.namespace), kept, &rig.context.cluster, &played).await?;
        anyhow::Ok((first, pods.get_opt(&name).await?.is_some()))
    };
    let mut kept = Kept::new();
    let (first, there) = sweep(&mut kept, Some(r#"{"whole": true}"#)).await?;
    ensure!(
        there && first.is_some() && asked.lock().is_ok_and(|asked| asked.is_empty()),
        "it has not stayed for an hour: {first:?}"
    );
    let before = Timestamp::now().as_second() - 3600;
    let older =
        Patch::Merge(json!({"metadata": {"labels": {names::LABEL_RELEASED: before.to_string()}}}));
    pods.patch_metadata(&name, &PatchParams::default(), &older)
        .await?;
    let unknown = sweep(&mut kept, None).await?;
    ensure!(
        unknown == (Some(Timestamp::from_second(before)?), true),
        "deleted without an answer: {unknown:?}"
    );
    for _ in 0..2 {
        let missing = sweep(&mut kept, Some(r#"{"whole": false}"#)).await?;
        ensure!(
            missing == (None, true),
            "something of its log is missing: {missing:?}"
        );
    }
    let path = format!(
        "/v1/namespaces/{}/uids/{}/attempts/1/log",
        rig.namespace,
        rig.get().await?.metadata.uid.context("no UID")?
    );
    ensure!(
        asked
            .lock()
            .is_ok_and(|asked| *asked == [path.clone(), path]),
        "asked once each: {asked:?}"
    );
    let (first, there) = sweep(&mut Kept::new(), Some(r#"{"whole": true}"#)).await?;
    ensure!(!there && first.is_none(), "it is there: {first:?}");
    Ok(())
}
