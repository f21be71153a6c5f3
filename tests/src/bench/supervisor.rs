//! What a second container would cost, which alone mounts the pod's tokens: a bare pod, and the same with another container of the same
//! image beside it that ends at once (`design/0016-tokens-and-accounts.md`).

use anyhow::{Context, Result};
use serde_json::json;

use super::lab::Lab;
use super::samples::{Samples, Unit};
use super::stacks::{Commands, Stack};
use super::table::Table;

/// Measures both, one after the other.
pub(super) async fn measure(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    let namespace = lab.namespace().await?;
    let (mut one, mut two, mut more) = (Samples::default(), Samples::default(), Samples::default());
    for n in 0..times {
        let alone = lab.bare_pod(&namespace, &format!("one-{n}"), Stack::Nothing, Commands::Plain)?;
        let mut both = lab.bare_pod(&namespace, &format!("two-{n}"), Stack::Nothing, Commands::Plain)?;
        let containers = &mut both.spec.as_mut().context("a pod without spec")?.containers;
        let mut supervisor = containers.first().context("a pod without container")?.clone();
        supervisor.name = "supervisor".into();
        supervisor.command = Some(serde_json::from_value(json!(["sh", "-c", "exit 0"]))?);
        // Last, and so the later one: what matters is when both have started.
        containers.push(supervisor);
        let (alone, both) = (lab.time_pod(&alone).await?.outside.as_secs_f64(), lab.time_pod(&both).await?.outside.as_secs_f64());
        one.push(alone);
        two.push(both);
        more.push(both - alone);
    }
    table.plain("bare pod of one container, created to success seen", one.spread(Unit::Millis));
    table.plain("the same with a second container", two.spread(Unit::Millis));
    table.plain("  what the second container costs", more.spread(Unit::Millis));
    Ok(())
}
