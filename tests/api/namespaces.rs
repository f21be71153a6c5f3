//! Namespaces that are missing: said at once, to whoever makes a run in one.

use anyhow::Result;
use kube::api::PostParams;
use serde_json::json;

use crate::{
    rig::RUN,
    world::{Test, World, refused, run},
};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new("namespaces::one_that_is_missing_is_named_when_the_run_is_made", true, missing)]
}

async fn missing(world: World) -> Result<()> {
    let created = world.runs("no-such").create(&PostParams::default(), &run(RUN, &json!({}))?).await;
    refused("of no namespace", created, "namespaces \"no-such\" not found")
}
