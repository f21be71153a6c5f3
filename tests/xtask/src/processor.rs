//! Measures the processor time of a stage: of its commands and all their descendants.
//!
//! If this program may create cgroups of version 2, each stage has one, so that processes that outlive their parents count as well.
//! Otherwise only processes count that their parents waited for, which excludes the containerd shims. Pods run in the cgroup of their
//! cluster, which is read before it is removed ([`tell_pods`]).

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    time::Duration,
};

use nix::{
    sys::wait::{Id, WaitPidFlag, waitid},
    unistd::Pid,
};

use crate::{command, report};

/// Mount points of version 2. A machine with both versions has it at the first.
const ROOTS: [&str; 2] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
/// `/proc` counts in hundredths of a second on every supported platform.
const TICK: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct Meter {
    group: Option<PathBuf>,
    waited: Duration,
}

impl Meter {
    pub(crate) fn new(stage: &str) -> Self {
        let name = format!("pawl-ci-{}-{}", stage.replace(' ', "-"), std::process::id());
        let group = root()
            .map(|root| root.join(name))
            .filter(|group| fs::create_dir(group).is_ok());
        Self {
            group,
            waited: Duration::ZERO,
        }
    }

    /// Wraps the command so that it starts in the cgroup.
    pub(crate) fn measured(&self, command: Command) -> Command {
        let Some(group) = &self.group else {
            return command;
        };
        let mut outer = Command::new("sh");
        outer
            .args(["-c", "echo 0 2>/dev/null > \"$0\"; exec \"$@\""])
            .arg(group.join("cgroup.procs"));
        command::within(outer, &command)
    }

    /// Waits for the process of a measured command.
    pub(crate) fn wait(&mut self, child: &mut Child) -> io::Result<ExitStatus> {
        let pid = Pid::from_raw(child.id().cast_signed());
        // The process stays a zombie, so its times can still be read.
        if waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).is_ok() {
            self.waited += fs::read_to_string(format!("/proc/{pid}/stat"))
                .ok()
                .and_then(|stat| ticks(&stat))
                .unwrap_or_default();
        }
        child.wait()
    }

    /// Kills a measured command and, if it has a cgroup, its descendants.
    pub(crate) fn kill(&self, child: &mut Child) -> io::Result<()> {
        if let Some(group) = &self.group {
            // Fails before Linux 5.14.
            let _ = fs::write(group.join("cgroup.kill"), "1");
        }
        child.kill()
    }

    /// Processor time so far.
    pub(crate) fn taken(&self) -> Duration {
        self.group
            .as_deref()
            .and_then(usage)
            .unwrap_or_default()
            .max(self.waited)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        // Fails while it has a process, such as one of a cluster that stays up.
        if let Some(group) = &self.group {
            let _ = fs::remove_dir(group);
        }
    }
}

/// Prints the processor time of a cluster's pods before its cgroup is removed. `cargo ci` adds it to the stage.
pub fn tell_pods(group: &str) {
    if let Some(took) = root().and_then(|root| usage(&root.join(group))) {
        report::note(
            "cluster",
            &format!(
                "pods of {group} took {:.1} s of the processor",
                took.as_secs_f64()
            ),
        );
    }
}

/// Adds up the output of [`tell_pods`].
pub(crate) fn told_pods(output: &str) -> Duration {
    let seconds = |line: &str| {
        let (_, rest) = line
            .strip_prefix("cluster ")?
            .trim_start()
            .strip_prefix("pods of ")?
            .split_once(" took ")?;
        Duration::try_from_secs_f64(rest.strip_suffix(" s of the processor")?.parse().ok()?).ok()
    };
    output.lines().filter_map(seconds).sum()
}

/// Processor time of the pods of all running clusters.
pub(crate) fn live_pods() -> Duration {
    let groups = root()
        .and_then(|root| fs::read_dir(root).ok())
        .into_iter()
        .flatten()
        .flatten();
    let of_cluster = |name: &str| {
        name.strip_prefix("pawl")
            .is_some_and(|rest| rest.parse::<u8>().is_ok())
    };
    let groups = groups.filter(|entry| of_cluster(&entry.file_name().to_string_lossy()));
    groups.filter_map(|entry| usage(&entry.path())).sum()
}

fn root() -> Option<&'static Path> {
    ROOTS
        .map(Path::new)
        .into_iter()
        .find(|root| root.join("cgroup.controllers").exists())
}

/// Processor time of all present and past processes in a cgroup and its descendants.
fn usage(group: &Path) -> Option<Duration> {
    let text = fs::read_to_string(group.join("cpu.stat")).ok()?;
    let micros = text
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "))?;
    micros.trim().parse().ok().map(Duration::from_micros)
}

/// Processor time of a process and of the children that it waited for, from its line in `/proc`.
pub fn ticks(stat: &str) -> Option<Duration> {
    // The name is in parentheses and may contain any character; the times are fields 14 to 17.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields
        .get(11..15)?
        .iter()
        .map(|field| field.parse::<u32>().ok())
        .sum::<Option<u32>>()?;
    Some(TICK * ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_a_space_in_the_name_gives_the_sum_of_times() {
        let stat = "7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 150 20 30 1 20 0 1 0 99";
        assert_eq!(ticks(stat), Some(Duration::from_millis(2010)));
        assert_eq!(ticks("7 (a"), None);
    }

    #[test]
    fn lines_about_pods_are_added_up() {
        let text = "cluster   pods of pawl3 took 12.5 s of the processor\ncluster   is up 3s\n\
                    cluster   pods of pawl4 took 0.5 s of the processor\n";
        assert_eq!(told_pods(text), Duration::from_secs(13));
    }

    #[test]
    fn children_of_a_command_count_with_and_without_a_cgroup() {
        for group in [true, false] {
            let mut meter = Meter::new("test");
            if !group {
                drop(std::mem::replace(
                    &mut meter,
                    Meter {
                        group: None,
                        waited: Duration::ZERO,
                    },
                ));
            }
            let mut command = Command::new("sh");
            command.args([
                "-c",
                "sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; true",
            ]);
            let mut child = meter.measured(command).spawn().unwrap();
            assert!(meter.wait(&mut child).unwrap().success());
            assert!(meter.taken() >= TICK * 2, "{:?}", meter.taken());
        }
    }
}
