//! How what runs is told to end: the tool by one SIGINT, to its own pid and never to its group; all of it by SIGKILL.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use nix::sys::signal::Signal;

use super::{
    confine::Confined,
    tree::{Executable, kill_below, send},
};

/// Between two looks at whether the attempt is being stopped.
const LOOK: Duration = Duration::from_millis(100);

/// Which process of a command is the tool, if any is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Role {
    #[default]
    Other,
    /// The command itself.
    Tool,
    /// A process below the command that runs this executable: Terragrunt runs OpenTofu or Terraform.
    Above(PathBuf),
}

/// The commands that run now. Cloned freely.
#[derive(Clone, Debug, Default)]
pub struct Children {
    table: Arc<Mutex<Table>>,
    pub(super) confined: Arc<OnceLock<Confined>>,
}

/// What runs, and what it was told.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Children that tokio waits for.
    pub(super) tracked: HashMap<i32, Tracked>,
    /// Whether the attempt is being stopped: nothing is started any more, and what runs has had its signal.
    pub(super) stopped: bool,
    pub(super) killed: bool,
}

/// A command that runs.
#[derive(Debug, Default)]
pub(super) struct Tracked {
    pub(super) role: Role,
    /// The tool that it runs, when it is not the tool itself.
    pub(super) beneath: Option<Executable>,
    /// Processes of it that had their SIGINT.
    pub(super) told: HashSet<i32>,
}

impl Tracked {
    /// The processes of the tool: the command itself, or what it runs now.
    fn tools(&self, pid: i32) -> Vec<i32> {
        let beneath = self.beneath.map(|beneath| beneath.below(pid)).unwrap_or_default();
        if beneath.is_empty() { vec![pid] } else { beneath }
    }

    /// Sends each process of the tool its one SIGINT. Terragrunt has none as long as the tool runs, since it hands on what it gets, up to
    /// 15 s later, and the second one makes the tool drop its state. Once it had one, it tells what it starts by itself.
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
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the attempt is being stopped.
    pub fn is_stopped(&self) -> bool {
        self.table().stopped
    }

    /// Returns once the attempt is being stopped, a tenth of a second later at most.
    pub async fn stopped(&self) {
        while !self.is_stopped() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Sends the one SIGINT to the tool of each running command, to its own pid and never to its group, and starts nothing any more.
    pub fn interrupt(&self) {
        let mut table = self.table();
        if !std::mem::replace(&mut table.stopped, true) {
            table.tracked.iter_mut().for_each(|(pid, tracked)| tracked.interrupt(*pid));
        }
    }

    /// The same for what a command has started since it was told.
    pub(super) fn interrupt_later(&self, pid: i32) {
        let mut table = self.table();
        if table.stopped
            && let Some(tracked) = table.tracked.get_mut(&pid)
        {
            tracked.interrupt(pid);
        }
    }

    /// Kills what runs below the tool of each command, never the tool itself.
    pub fn kill_providers(&self) {
        self.table().tracked.iter().flat_map(|(pid, tracked)| tracked.tools(*pid)).for_each(kill_below);
    }

    /// Kills the commands and everything below them.
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
