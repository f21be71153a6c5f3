//! Memory and processor time of processes, read from `/proc`, and metrics that they serve.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use xtask::processor;

use super::lab::Lab;
use harness::cluster::victims;

/// Memory of a process in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Resident pages.
    pub(crate) resident: u64,
    /// Peak of the resident pages.
    pub(crate) peak: u64,
    /// Resident pages without a file.
    pub(crate) own: u64,
}

/// The kernel's accounting of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// Whether it is running or runnable.
    pub(crate) runs: bool,
    /// Processor time, including that of its ended children.
    pub(crate) cpu: Duration,
}

pub(crate) fn memory(pid: i32) -> Result<Memory> {
    memory_of(&read(pid, "status")?)
        .with_context(|| format!("no memory of the process {pid} in /proc"))
}

pub(crate) fn work(pid: i32) -> Result<Work> {
    work_of(&read(pid, "stat")?).with_context(|| format!("no times of the process {pid} in /proc"))
}

fn read(pid: i32, file: &str) -> Result<String> {
    fs::read_to_string(format!("/proc/{pid}/{file}"))
        .with_context(|| format!("the process {pid} has ended"))
}

/// Parses `/proc/PID/status`.
fn memory_of(text: &str) -> Option<Memory> {
    let of = |name: &str| -> Option<u64> {
        let rest = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        rest.split_whitespace().next()?.parse().ok()
    };
    Some(Memory {
        resident: of("VmRSS")?,
        peak: of("VmHWM")?,
        own: of("RssAnon")?,
    })
}

/// Parses `/proc/PID/stat`. The state follows the name, which is in parentheses and may contain any character.
fn work_of(text: &str) -> Option<Work> {
    let runs = text.rsplit_once(')')?.1.trim_start().starts_with('R');
    Some(Work {
        runs,
        cpu: processor::ticks(text)?,
    })
}

/// The process of a pod whose program has that name.
pub(crate) fn process(pod: &Pod, program: &str) -> Result<i32> {
    let is = |line: &str| {
        line.split(' ')
            .next()
            .and_then(|path| path.rsplit('/').next())
            == Some(program)
    };
    let found = victims::of_pod(pod)?.into_iter().find(|(_, line)| is(line));
    found
        .map(|(pid, _)| pid)
        .with_context(|| format!("no process {program} in the pod {}", pod.name_any()))
}

/// The peak of a process's pages without a file, while this watches it.
pub(crate) struct Peak {
    most: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Peak {
    pub(crate) async fn of_datastore(lab: &Lab) -> Result<Self> {
        Ok(Self::of(process(
            &lab.component("datastore").await?,
            "controller",
        )?))
    }

    pub(crate) fn of(pid: i32) -> Self {
        let (most, stop) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (kept, ended) = (most.clone(), stop.clone());
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                if let Ok(memory) = memory(pid) {
                    kept.fetch_max(memory.own, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { most, stop }
    }

    /// In KiB.
    pub(crate) fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.most.load(Ordering::Relaxed)
    }
}

/// The sum of a metric's samples whose labels contain `label`, from a page `/metrics`; 0 without samples.
pub(crate) fn total(text: &str, metric: &str, label: &str) -> f64 {
    let samples = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.strip_prefix(metric));
    samples
        .filter_map(|rest| {
            let (labels, value) = rest.rsplit_once(' ')?;
            let whole = labels.is_empty() || (labels.starts_with('{') && labels.ends_with('}'));
            if whole && labels.contains(label) {
                value.parse::<f64>().ok()
            } else {
                None
            }
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_state_are_parsed() {
        let text = "Name:\tcontroller\nVmHWM:\t  300 kB\nVmRSS:\t  200 kB\nRssAnon:\t  150 kB\nRssFile:\t   50 kB\n";
        assert_eq!(
            memory_of(text),
            Some(Memory {
                resident: 200,
                peak: 300,
                own: 150
            })
        );
        assert_eq!(memory_of("Name:\tzombie\n"), None);
        let text = "7 (a) R (b) S 1 7 7 0 -1 4194560 500 0 3 0 100 20 3 4 20 0 3 0 12345 1000 200";
        assert_eq!(
            work_of(text),
            Some(Work {
                runs: false,
                cpu: Duration::from_millis(1270)
            })
        );
        assert!(work_of(&text.replace(") S", ") R")).unwrap().runs);
        assert_eq!(work_of("7 (a) S 1"), None);
    }

    #[test]
    fn samples_of_one_metric_are_added_up() {
        let text = "# TYPE pawl_layers gauge\npawl_layers{state=\"Idle\"} 7\npawl_layers{state=\"PlanNeeded\"} 2\n\
                    pawl_layers_other 100\npawl_leads 1\n# EOF\n";
        let rows = [
            ("pawl_layers", "", 9.0),
            ("pawl_layers", "\"Idle\"", 7.0),
            ("pawl_leads", "", 1.0),
            ("pawl_none", "", 0.0),
        ];
        for (metric, label, expected) in rows {
            assert!(
                (total(text, metric, label) - expected).abs() < 1e-9,
                "{metric} {label}"
            );
        }
    }
}
