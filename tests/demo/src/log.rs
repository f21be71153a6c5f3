//! The log of a run's pod: the tool's output, and the plan as text.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::{AsyncBufReadExt as _, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;

use super::screen;

/// Beginnings of a plan's text in both tools; before it are events.
const BEGINNINGS: [&str; 5] = [
    "Objects have changed outside of ",
    " used the selected providers",
    " will perform the following actions",
    "No changes.",
    "Changes to Outputs:",
];

/// The log of a pod.
pub(super) async fn lines(pods: &Api<Pod>, pod: &str) -> Result<Vec<String>> {
    let text = pods
        .logs(pod, &LogParams::default())
        .await
        .with_context(|| format!("cannot read the log of {pod}"))?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// The plan's text in a pod's log. Retries until it is complete: the log reaches the API server a moment after the status. It is refused
/// until the kubelet has reported that the container runs, which may be a second after the agent has reported that the plan waits.
pub(super) async fn plan(pods: &Api<Pod>, pod: &str) -> Option<String> {
    let mut before = None;
    for _ in 0..50 {
        let text = lines(pods, pod)
            .await
            .ok()
            .and_then(|lines| plan_text(&lines));
        if text.is_some() && text == before {
            return text;
        }
        before = text;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    before
}

fn plan_text(lines: &[String]) -> Option<String> {
    let start = lines
        .iter()
        .position(|line| BEGINNINGS.iter().any(|beginning| line.contains(beginning)))?;
    Some(lines[start..].join("\n"))
}

/// Prints the lines of a pod's log after the first `skip`, until the log ends.
pub(super) async fn follow(pods: Api<Pod>, pod: String, skip: usize) {
    let params = LogParams {
        follow: true,
        ..LogParams::default()
    };
    let Ok(stream) = pods.log_stream(&pod, &params).await else {
        return;
    };
    let mut lines = stream.lines().skip(skip);
    while let Ok(Some(line)) = lines.try_next().await {
        if !line.trim().is_empty() {
            screen::line(&line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_text_begins_at_the_first_known_line() {
        let log = [
            "OpenTofu 1.10.6",
            "Plan: 1 to add",
            "",
            "OpenTofu used the selected providers to …",
            "",
            "  + create",
        ];
        let log: Vec<String> = log.into_iter().map(str::to_owned).collect();
        assert_eq!(
            plan_text(&log).unwrap(),
            "OpenTofu used the selected providers to …\n\n  + create"
        );
        assert_eq!(plan_text(&log[..3]), None);
    }
}
