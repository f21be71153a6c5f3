//! Asks whether the datastore responds while attempts are open, so that the runs which wait for it can name it.

use std::{future, sync::Arc, time::Duration};

use crds::{datastore::causes, text::clip};
use tokio::sync::watch;

use super::context::Context;
use crate::cluster::watch::until;

/// The time between two questions.
const ASK: Duration = Duration::from_secs(10);

/// Asks until `stop`, and wakes the runs with open attempts when an outage begins or ends.
pub async fn run(ctx: Arc<Context>, stop: watch::Receiver<bool>) {
    let Some(datastore) = ctx.datastore.clone() else {
        return until(stop, future::pending::<()>()).await;
    };
    let work = async {
        loop {
            tokio::time::sleep(ASK).await;
            if ctx.slots.opened().is_empty() {
                // Nothing waits, and the next attempt that opens begins with a new count.
                ctx.outage.heard(Ok(()));
                continue;
            }
            let answer = datastore.ready().await;
            let answer = answer.map_err(|error| clip(&causes(&error), 200));
            if ctx.outage.heard(answer) {
                ctx.cluster.wakers.send_all(&ctx.slots.opened());
            }
        }
    };
    until(stop, work).await;
}
