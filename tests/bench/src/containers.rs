//! Start and end times of containers from containerd's events: in microseconds, and uniform for all pods. A pod's status has whole seconds.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::Value;

use harness::wait;

/// Start and end of a container.
#[derive(Clone, Copy, Debug, Default)]
struct Life {
    start: Option<Timestamp>,
    end: Option<Timestamp>,
}

/// Receives the events of a containerd.
#[derive(Debug)]
pub(super) struct Containers {
    child: Child,
    lives: Arc<Mutex<BTreeMap<String, Life>>>,
}

impl Drop for Containers {
    fn drop(&mut self) {
        // It may have ended with its containerd.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Containers {
    pub(super) fn listen(socket: &Path) -> Result<Self> {
        let mut child = Command::new("ctr")
            .arg("--address")
            .arg(socket)
            .args(["--namespace", "k8s.io", "events"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start ctr")?;
        let out = child.stdout.take().context("ctr without output")?;
        let lives: Arc<Mutex<BTreeMap<String, Life>>> = Arc::default();
        let shared = lives.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let Some((at, topic, detail)) = parse(&line) else {
                    continue;
                };
                // Processes executed in a container have their own exec id.
                let of = |key: &str| detail[key].as_str().unwrap_or_default().to_owned();
                let mut lives = shared.lock().unwrap_or_else(PoisonError::into_inner);
                match topic.as_str() {
                    "/tasks/start" => lives.entry(of("container_id")).or_default().start = Some(at),
                    "/tasks/exit" if of("id") == of("container_id") => {
                        let exited = detail["exited_at"]
                            .as_str()
                            .and_then(|at| at.parse().ok())
                            .unwrap_or(at);
                        lives.entry(of("container_id")).or_default().end = Some(exited);
                    }
                    _ => {}
                }
            }
        });
        Ok(Self { child, lives })
    }

    /// Start and end of an ended container.
    pub(super) async fn ended(&self, id: &str) -> Result<(Timestamp, Timestamp)> {
        let look = async || {
            let life = self
                .lives
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get(id)
                .copied()
                .unwrap_or_default();
            Ok(life.start.zip(life.end))
        };
        wait::until(
            format!("containerd tells the end of the container {id}"),
            Duration::from_secs(5),
            look,
        )
        .await
    }
}

/// Parses a line of `ctr events`: `2026-11-21 12:16:31.05 +0000 UTC k8s.io /tasks/start {…}`.
fn parse(line: &str) -> Option<(Timestamp, String, Value)> {
    let mut words = line.splitn(7, ' ');
    let (date, time, offset) = (words.next()?, words.next()?, words.next()?);
    let (_zone, _namespace, topic, detail) =
        (words.next()?, words.next()?, words.next()?, words.next()?);
    let offset = format!("{}:{}", offset.get(..3)?, offset.get(3..)?);
    let at = format!("{date}T{time}{offset}").parse().ok()?;
    Some((at, topic.to_owned(), serde_json::from_str(detail).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_time_topic_and_container() {
        let line = r#"2026-11-21 12:16:31.056747123 +0000 UTC k8s.io /tasks/start {"container_id":"c","pid":7}"#;
        let (at, topic, detail) = parse(line).unwrap();
        assert_eq!(at, "2026-11-21T12:16:31.056747123Z".parse().unwrap());
        assert_eq!(
            (topic.as_str(), &detail["container_id"]),
            ("/tasks/start", &Value::from("c"))
        );
        assert!(parse("nothing of the kind").is_none());
    }
}
