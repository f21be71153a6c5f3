//! Managed state beside the `kubernetes` backend: the same run on each, in turns. Measured is the pod from its start to its end, as
//! nobody but the tool that the agent runs is served at the managed state.

use anyhow::Result;
use crds::TerraformRun;
use serde_json::{Value, json};

use super::lab::Lab;
use super::samples::{Samples, Unit};
use super::table::Table;

const MAIN: &str = "variable \"round\" {\n  type = number\n}\nresource \"terraform_data\" \"a\" {\n  count = 20\n  input = \"${count.index} ${var.round}\"\n}\n";

/// Measures both.
pub(super) async fn measure(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    let namespace = lab.namespace().await?;
    let n = ["-n", namespace.as_str()];
    lab.cluster
        .kubectl(&[&n[..], &["create", "role", "state", "--verb=*", "--resource=secrets,leases.coordination.k8s.io"]].concat())?;
    lab.cluster.kubectl(
        &[&n[..], &["create", "rolebinding", "state", "--role=state", &format!("--serviceaccount={namespace}:default")]].concat(),
    )?;
    let config = json!({"secret_suffix": "bench", "namespace": namespace, "in_cluster_config": true});
    let backends = [("managed", Value::Null), ("kubernetes", json!({"type": "kubernetes", "config": config}))];
    let run = |name: &str, backend: &Value, operation: &str, round: usize| -> Result<TerraformRun> {
        let spec = json!({"source": {"inline": {"files": {"main.tf": MAIN}}}, "tool": {"name": "OpenTofu"}, "stack": "bench",
            "backend": backend, "operation": operation, "approval": {"mode": "Automatic"},
            "variables": [{"name": "round", "value": round}], "runner": {"serviceAccountName": "default"}});
        let mut run = TerraformRun::new(name, serde_json::from_value(spec)?);
        run.metadata.namespace = Some(namespace.clone());
        Ok(run)
    };
    for (operation, words) in [("Apply", "state read, locked and written"), ("Plan", "state read and locked")] {
        let (mut taken, mut ratio) = ([Samples::default(), Samples::default()], Samples::default());
        // The first round makes the state, and is none that counts.
        for round in 0..=times {
            let mut inside = [0.0; 2];
            for ((word, backend), inside) in backends.iter().zip(&mut inside) {
                let name = format!("{word}-{}-{round}", operation.to_lowercase());
                *inside = lab.time_run(&run(&name, backend, operation, round)?).await?.inside.as_secs_f64();
            }
            if round > 0 {
                taken.iter_mut().zip(inside).for_each(|(samples, seconds)| samples.push(seconds));
                ratio.push(inside[0] / inside[1]);
            }
        }
        for ((word, _), samples) in backends.iter().zip(&taken) {
            table.plain(&format!("{words}, {word}"), samples.spread(Unit::Seconds));
        }
        table.plain("  ratio", ratio.spread(Unit::Ratio));
    }
    Ok(())
}
