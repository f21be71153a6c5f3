//! Stops commands: the tool by one SIGINT to its own PID, never to its group; everything by SIGKILL.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::Duration,
};

use nix::sys::signal::Signal;

use super::{
    confine::Confined,
    tree::{Executable, kill_below, send},
};
use crate::guard;

/// Poll interval of `stopped`.
const LOOK: Duration = Duration::from_millis(100);

/// The process of a command that is the tool, if any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Role {
    #[default]
    Other,
    /// The command itself.
    Tool,
    /// The tool is a descendant of the command, with this executable: Terragrunt runs OpenTofu or Terraform.
    Above(PathBuf),
}

/// The running commands. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Children {
    table: Arc<Mutex<Table>>,
    /// Whether each command gets a session of its own.
    pub(super) apart: bool,
    pub(super) confined: Arc<OnceLock<Confined>>,
}

/// Running commands and the signals they got.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Children that tokio waits for.
    pub(super) tracked: HashMap<i32, Tracked>,
    /// Whether the attempt is being stopped: no command starts any more, and running ones got their signal.
    pub(super) stopped: bool,
    pub(super) killed: bool,
}

/// A running command.
#[derive(Debug, Default)]
pub(super) struct Tracked {
    pub(super) role: Role,
    /// The tool that it runs, unless it is the tool itself.
    pub(super) beneath: Option<Executable>,
    /// PIDs that got their SIGINT.
    pub(super) told: HashSet<i32>,
}

impl Tracked {
    /// The tool's processes: the descendants that run it now, else the command itself.
    fn tools(&self, pid: i32) -> Vec<i32> {
        let beneath = self
            .beneath
            .map(|beneath| beneath.below(pid))
            .unwrap_or_default();
        if beneath.is_empty() {
            vec![pid]
        } else {
            beneath
        }
    }

    /// Sends each process of the tool its one SIGINT. Terragrunt gets none while the tool runs: it forwards the signal up to 15 s
    /// later, and a second SIGINT makes the tool drop its state. After its own SIGINT, Terragrunt signals later commands itself.
    fn interrupt(&mut self, pid: i32) {
        if self.told.contains(&pid) {
            return;
        }
        for tool in self.tools(pid) {
            if self.told.insert(tool) {
                send(tool, Signal::SIGINT);
            }
        }
    }
}

impl Children {
    /// Commands of a person's machine: they have no controlling terminal.
    pub fn apart() -> Self {
        Self {
            apart: true,
            ..Self::default()
        }
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        guard(&self.table)
    }

    /// Whether the attempt is being stopped.
    pub fn is_stopped(&self) -> bool {
        self.table().stopped
    }

    /// Returns at most 0.1 s after the attempt is being stopped.
    pub async fn stopped(&self) {
        while !self.is_stopped() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Sends one SIGINT to the tool of each running command, to its own PID and never to its group. Afterwards no command starts.
    pub fn interrupt(&self) {
        let mut table = self.table();
        if !std::mem::replace(&mut table.stopped, true) {
            table
                .tracked
                .iter_mut()
                .for_each(|(pid, tracked)| tracked.interrupt(*pid));
        }
    }

    /// Sends SIGINT to tools that a command has started since `interrupt`.
    pub(super) fn interrupt_later(&self, pid: i32) {
        let mut table = self.table();
        if table.stopped
            && let Some(tracked) = table.tracked.get_mut(&pid)
        {
            tracked.interrupt(pid);
        }
    }

    /// Kills the processes below each command's tool, but never the tool itself.
    pub fn kill_providers(&self) {
        self.table()
            .tracked
            .iter()
            .flat_map(|(pid, tracked)| tracked.tools(*pid))
            .for_each(kill_below);
    }

    /// Kills the commands and all their descendants.
    pub fn kill(&self) {
        let mut table = self.table();
        table.stopped = true;
        table.killed = true;
        for pid in table.tracked.keys() {
            kill_below(*pid);
            send(*pid, Signal::SIGKILL);
        }
    }
}
