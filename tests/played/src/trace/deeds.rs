//! What the tool did for a run, in its order, and what of it must never happen.

use crds::{Phase, RunResult};

/// Something that was done for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Its apply was begun: under a claim of the process that did it (`Some(true)`), of another, or under none.
    Applies(Option<bool>),
    /// An object was touched.
    Changed,
    /// The apply ended, well or not.
    Ended(bool),
    /// It was asked to end, by SIGINT.
    Interrupted,
    Killed,
}

/// All that was done for a run so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deeds {
    /// How often an apply was begun.
    pub applies: u32,
    /// Objects that were touched.
    pub changed: u32,
    /// Whether it ended, and one ended well.
    pub ended: Option<bool>,
    /// Whether it was killed before that.
    pub killed: bool,
    interrupts: u32,
}

impl Deeds {
    /// Takes what was done next, while the run said that it had ended so; the invariants that this violates.
    pub fn add(&mut self, deed: Deed, result: Option<RunResult>) -> Vec<(&'static str, &'static str)> {
        let is_over = self.ended.is_some();
        let found = match deed {
            Deed::Applies(own) => {
                self.applies += 1;
                vec![
                    ("S1", own.is_none(), "it is applied without a claim"),
                    ("S17", own == Some(false), "a process applies under the claim of another"),
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
                vec![("S13", self.interrupts == 0, "a tool behind a claim was killed and had not been asked to end")]
            }
        };
        found.into_iter().filter(|(_, wrong, _)| *wrong).map(|(invariant, _, text)| (invariant, text)).collect()
    }
}
