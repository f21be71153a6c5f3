//! The actions of the tool for a run, in order, and checks of them.

use crds::{Phase, RunResult};

/// An action for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// The tool began its apply: under a claim of the same process (`Some(true)`), of another process (`Some(false)`), or without a claim
    /// (`None`).
    Applies(Option<bool>),
    /// An object was changed.
    Changed,
    /// The apply ended; `true` if successful.
    Ended(bool),
    /// It received SIGINT.
    Interrupted,
    Killed,
}

/// All actions for a run so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deeds {
    /// Number of applies that began.
    pub applies: u32,
    /// Number of changed objects.
    pub changed: u32,
    /// Whether it ended, and whether any ended successfully.
    pub ended: Option<bool>,
    /// Whether it was killed before its end.
    pub killed: bool,
    interrupts: u32,
}

impl Deeds {
    /// Adds the next action, with the run's result at that time. Returns the violated invariants.
    pub fn add(
        &mut self,
        deed: Deed,
        result: Option<RunResult>,
    ) -> Vec<(&'static str, &'static str)> {
        let is_over = self.ended.is_some();
        let found = match deed {
            Deed::Applies(own) => {
                self.applies += 1;
                vec![
                    ("S1", own.is_none(), "it is applied without a claim"),
                    (
                        "S17",
                        own == Some(false),
                        "a process applies under the claim of another",
                    ),
                    ("S1", self.applies > 1, "it is applied a second time"),
                    (
                        "S11",
                        result.is_some_and(|result| result.phase() == Phase::Canceled),
                        "it is applied though it is Canceled",
                    ),
                ]
            }
            Deed::Changed => {
                self.changed += 1;
                vec![]
            }
            Deed::Ended(well) => {
                *self.ended.get_or_insert_default() |= well;
                vec![]
            }
            Deed::Interrupted | Deed::Killed if is_over => vec![],
            Deed::Interrupted => {
                self.interrupts += 1;
                vec![("S13", self.interrupts > 1, "a second SIGINT")]
            }
            Deed::Killed => {
                self.killed = true;
                vec![(
                    "S13",
                    self.interrupts == 0,
                    "a tool behind a claim was killed and had not been asked to end",
                )]
            }
        };
        found
            .into_iter()
            .filter(|(_, wrong, _)| *wrong)
            .map(|(invariant, _, text)| (invariant, text))
            .collect()
    }
}
