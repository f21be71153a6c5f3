//! Sends requests, the server's only writes.

use std::sync::Arc;

use futures::{StreamExt as _, stream::FuturesUnordered};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::{sync::watch, time::Instant};

use crds::{TerraformRepository, clock::ServerClock, names};

use super::{pending::Standing, receiver::Receiver};
use crate::error::{self, Error};

/// Maximum concurrent requests.
const AT_ONCE: usize = 8;

/// Sends requests until `stop`, and until nothing more can be sent at once.
pub async fn run(
    receiver: Arc<Receiver>,
    client: Client,
    clock: ServerClock,
    mut stop: watch::Receiver<bool>,
) {
    let standing = |uid: &str| match receiver.repositories.get(uid) {
        None => Standing::Gone,
        Some(repository) if repository.is_requested() => Standing::Requested,
        Some(_) => Standing::Free,
    };
    let mut under_way = FuturesUnordered::new();
    loop {
        let (due, next) =
            receiver
                .pending()
                .due(Instant::now(), AT_ONCE - under_way.len(), standing);
        let (receiver, client, clock) = (&receiver, &client, &clock);
        under_way.extend(
            due.into_iter()
                .map(|uid| async move { (request(receiver, client, clock, &uid).await, uid) }),
        );
        if *stop.borrow() && under_way.is_empty() {
            return;
        }
        let later = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some((requested, uid)) = under_way.next() => match requested {
                Ok(()) => receiver.pending().sent(&uid, Instant::now()),
                Err(error) => {
                    receiver.metrics.request_failed(&error);
                    tracing::warn!(%error, uid, "a repository cannot be notified; its refs are checked at the next interval, or when a retry succeeds");
                    receiver.pending().failed(&uid, Instant::now());
                }
            },
            () = receiver.wanted.notified() => {}
            () = receiver.repositories.changed.notified() => {}
            () = later => {}
            _ = stop.wait_for(|stop| *stop), if !*stop.borrow() => {}
        }
    }
}

/// Pending a repository. A deleted one needs none.
async fn request(
    receiver: &Receiver,
    client: &Client,
    clock: &ServerClock,
    uid: &str,
) -> Result<(), Error> {
    let Some(repository) = receiver.repositories.get(uid) else {
        return Ok(());
    };
    let api: Api<TerraformRepository> = Api::namespaced(client.clone(), &repository.namespace);
    // The UID protects a recreated repository of the same name.
    let patch = Patch::Merge(
        json!({"metadata": {"uid": uid, "annotations": {names::RECONCILE: clock.now().to_string()}}}),
    );
    let params = PatchParams {
        field_manager: Some(names::SERVER_MANAGER.into()),
        ..PatchParams::default()
    };
    match error::call_opt(
        "request a reconcile",
        api.patch(&repository.name, &params, &patch),
    )
    .await
    {
        Ok(Some(requested)) => {
            receiver.repositories.saw(&requested);
            receiver.metrics.requested();
            Ok(())
        }
        Ok(None) => Ok(()),
        // Includes the conflict for a recreated repository, which the watch will show.
        Err(error) => Err(error),
    }
}
