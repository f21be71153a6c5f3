//! Managed state beside the `kubernetes` backend: the same tool in the same pod, reading a state, and writing one under its lock.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crds::{Phase, contract};
use kube::ResourceExt as _;
use kube::api::PostParams;
use serde_json::json;

use super::lab::Lab;
use super::samples::{Samples, Unit};
use super::table::Table;

/// What is run in the pod, each measured there, so that the way into the pod does not count.
const SCRIPT: &str = r#"
set -e
export HOME=/tmp TF_IN_AUTOMATION=1
tool=$(ls /opt/pawl/tools/opentofu/*/tofu | sort -V | tail -1)
case $1 in
prepare)
  mkdir -p /tmp/k && cd /tmp/k
  printf 'terraform {\n  backend "kubernetes" {\n    secret_suffix = "bench"\n    namespace = "%s"\n    in_cluster_config = true\n  }\n}\n' "$2" > main.tf
  "$tool" init -input=false -no-color > /dev/null
  ;;
*)
  cd "$1"
  begin=$(cut -d ' ' -f 1 /proc/uptime)
  case $2 in
  pull) "$tool" state pull > /tmp/state ;;
  push) "$tool" state pull > /tmp/state; "$tool" state push -force /tmp/state > /dev/null ;;
  esac
  end=$(cut -d ' ' -f 1 /proc/uptime)
  echo "$begin $end" ;;
esac
"#;

/// Measures both, in turns.
pub(super) async fn measure(lab: &Lab, times: usize, table: &mut Table) -> Result<()> {
    let namespace = lab.namespace().await?;
    let main = "resource \"terraform_data\" \"a\" {\n  count = 20\n  input = count.index\n}\n";
    let spec = |name: &str, mode: &str| {
        json!({"source": {"inline": {"files": {"main.tf": main}}}, "tool": {"name": "OpenTofu"}, "stack": "bench",
            "approval": {"mode": mode, "holdFor": "1h"}, "variables": [], "workspace": "default", "operation": if name == "fill" { "Apply" } else { "Destroy" }})
    };
    let create = async |name: &str, mode: &str| -> Result<()> {
        let run = crds::TerraformRun::new(name, serde_json::from_value(spec(name, mode))?);
        lab.runs(&namespace).create(&PostParams::default(), &run).await?;
        Ok(())
    };
    create("fill", "Automatic").await?;
    until(lab, &namespace, "fill", Phase::Succeeded).await?;
    // A plan that waits keeps its pod, and with it the way to the managed state.
    create("holds", "Manual").await?;
    until(lab, &namespace, "holds", Phase::AwaitingApproval).await?;
    let attempt = lab.runs(&namespace).get("holds").await?.status.and_then(|s| s.attempt).context("no attempt")?;
    let pod = lab.pods(&namespace).get(&attempt.pod_name).await?;
    let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone()).context("no account")?;
    let n = ["-n", namespace.as_str()];
    lab.cluster
        .kubectl(&[&n[..], &["create", "role", "state", "--verb=*", "--resource=secrets,leases.coordination.k8s.io"]].concat())?;
    lab.cluster.kubectl(
        &[&n[..], &["create", "rolebinding", "state", "--role=state", &format!("--serviceaccount={namespace}:{account}")]]
            .concat(),
    )?;
    let exec = |args: &[&str]| -> Result<String> {
        let pod = pod.name_any();
        lab.cluster.kubectl(&[&n[..], &["exec", &pod, "--", "sh", "-c", SCRIPT, "sh"], args].concat())
    };
    let source = format!("{}/src", contract::WORK_DIR);
    exec(&["prepare", &namespace])?;
    exec(&["/tmp/k", "push"])?;
    for what in ["pull", "push"] {
        let (mut managed, mut kubernetes, mut ratio) = (Samples::default(), Samples::default(), Samples::default());
        for _ in 0..times {
            let ours = seconds(&exec(&[&source, what])?)?;
            let theirs = seconds(&exec(&["/tmp/k", what])?)?;
            managed.push(ours);
            kubernetes.push(theirs);
            ratio.push(ours / theirs);
        }
        let words = if what == "pull" { "state read" } else { "state read, locked and written" };
        table.plain(&format!("{words}, managed"), managed.spread(Unit::Millis));
        table.plain(&format!("{words}, kubernetes backend"), kubernetes.spread(Unit::Millis));
        table.plain("  ratio", ratio.spread(Unit::Ratio));
    }
    lab.cluster.kubectl(&[&n[..], &["annotate", "tfrun", "holds", "pawl.run/cancel=measured"]].concat())?;
    Ok(())
}

/// From the two readings of the pod's clock, in seconds; it ticks in hundredths.
fn seconds(text: &str) -> Result<f64> {
    let line = text.lines().last().context("the script said nothing")?;
    let mut numbers = line.split(' ').map(str::parse::<f64>);
    let (begin, end) = (numbers.next().context("no begin")??, numbers.next().context("no end")??);
    Ok(end - begin)
}

async fn until(lab: &Lab, namespace: &str, name: &str, phase: Phase) -> Result<()> {
    let begun = Instant::now();
    loop {
        let status = lab.runs(namespace).get(name).await?.status.unwrap_or_default();
        if status.phase == Some(phase) {
            return Ok(());
        }
        ensure!(!status.is_terminal() && begun.elapsed() < Duration::from_secs(120), "{name}: {status:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
