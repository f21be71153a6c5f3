//! A schedule: everything in one simulation that does not follow from our code, as data that fits on one line, can be replayed, and can be
//! shrunk.

use serde::{Deserialize, Serialize};

use crate::{controller::Watch, layers::LayerScene};

/// A reproducible random generator (splitmix64).
#[derive(Clone, Debug, Default)]
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// A number below the limit.
    pub(crate) fn number(&mut self, limit: u64) -> u32 {
        u32::try_from(self.below(limit)).unwrap()
    }

    /// True with probability 1/n.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()].clone()
    }
}

/// A fault at a boundary: a request of a process, or the start of a step of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// The process dies before the request lands.
    CrashBefore,
    /// The request lands, and the process dies before the reply.
    CrashAfter,
    /// The request never lands; no reply.
    Lost,
    /// The request lands; no reply.
    ReplyLost,
    /// No reply, and the request lands this many seconds later.
    Late(u8),
    /// Refused with this code; nothing landed.
    Refused(u16),
    /// The reply takes this many seconds.
    Slow(u8),
}

/// An event at a time, independent of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Strike {
    /// The container is killed.
    Kill,
    /// The pod is deleted with its grace.
    Evict,
    /// The pod's object is force-deleted, with its finalizers; its process lives on for this many seconds.
    ForceDelete(u8),
    /// The pod's node receives but sends nothing for this many seconds.
    CutOff(u8),
    /// The first node is lost for this many seconds, and its pods receive nothing. With `true` it reboots meanwhile.
    LoseNode(u16, bool),
    /// The container is started a second time in parallel.
    Twice,
    /// This controller dies.
    KillController(u8),
    /// The sources process dies.
    KillSources,
    /// The watches of both controllers lag by this many seconds, for this many seconds.
    Lag(u8, u8),
    /// The same for one controller.
    LagOf(u8, u8, u8),
    /// This watch of this controller gets no events for this many seconds, and then lists again.
    Relist(u8, Watch, u8),
    /// The watches of this controller repeat this many of the last changes.
    Again(u8, u8),
    /// The datastore is away for this many seconds.
    DatastoreAway(u8),
    /// The API server is away for this many seconds.
    ApiAway(u8),
    /// The admission policies are missing for this many seconds.
    PoliciesAway(u8),
    /// The namespace is frozen for this many seconds.
    Freeze(u8),
    /// Somebody takes the name of the next attempt's pod and account for this many seconds, with its labels or without.
    Foreign(bool, u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Gesture {
    /// Approves the waiting plan.
    Approve,
    /// Approves another checksum.
    ApproveWrong,
    /// Withdraws the approval.
    Withdraw,
    Deny,
    Cancel,
    Delete,
    Rerun,
    /// Gives up the apply.
    Abandon,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum When {
    /// Milliseconds after the beginning.
    At(u32),
    /// Milliseconds after the run first waited for an approval.
    Waits(u32),
    /// Milliseconds after the run was first in phase Apply.
    Applies(u32),
    /// Milliseconds after the end of the run.
    Ended(u32),
    /// Milliseconds after the run first reported its node as lost.
    Unreachable(u32),
}

/// The hook that exits with a code other than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Failing {
    BeforeApply,
    AfterApply,
}

/// Behaviour of the stack, and settings of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Scene {
    /// The run is approved automatically.
    pub automatic: bool,
    pub operation: crds::Operation,
    /// There is a datastore, and the state is managed.
    pub datastore: bool,
    /// Seconds for which a pod is held.
    pub hold: u8,
    /// The plan has changes.
    pub changes: bool,
    /// The changes are of a kind for which an Automatic run asks a person.
    pub destroys: bool,
    /// The apply fails after its first object.
    pub fails: bool,
    /// Number of steps that fail with a network error before one succeeds.
    pub flaky: u8,
    /// The tool does not end on SIGINT.
    pub stubborn: bool,
    /// Code changes between plan and apply.
    pub tampered: bool,
    /// The image cannot be pulled.
    pub no_image: bool,
    /// Number of objects that the apply creates, one per second.
    pub objects: u8,
    /// A second run of the same stack is created this many seconds later.
    pub second: Option<u8>,
    /// Two controllers that both believe they lead.
    pub two: bool,
    /// Hooks run before the apply, after it, and at every end.
    pub hooks: bool,
    /// The hook before the apply changes the code.
    pub hook_tampers: bool,
    /// One of the hooks fails.
    pub hook_fails: Option<Failing>,
    /// Limit of attempts that are open at once. 0: unlimited.
    pub slots: u8,
    /// Number of plan-only runs of the same stack, made for a schedule before the first run.
    pub crowd: u8,
    /// The second run is approved automatically if the first is not, and vice versa.
    pub rival: bool,
    /// A layer and its repository instead of the first run. The controller makes the runs.
    pub layer: Option<LayerScene>,
}

impl Default for Scene {
    fn default() -> Self {
        Self {
            automatic: false,
            operation: crds::Operation::Apply,
            datastore: true,
            hold: 30,
            changes: true,
            destroys: false,
            fails: false,
            flaky: 0,
            stubborn: false,
            tampered: false,
            no_image: false,
            objects: 3,
            second: None,
            two: false,
            hooks: false,
            hook_tampers: false,
            hook_fails: None,
            slots: 0,
            crowd: 0,
            rival: false,
            layer: None,
        }
    }
}

/// One simulated life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Schedule {
    /// Seed of all delays and orders.
    pub seed: u64,
    pub scene: Scene,
    #[serde(default)]
    pub person: Vec<(When, Gesture)>,
    /// By number of the boundary.
    #[serde(default)]
    pub faults: Vec<(u32, Fault)>,
    /// By milliseconds.
    #[serde(default)]
    pub strikes: Vec<(u32, Strike)>,
}

/// Strikes on the watches of a controller, in one life of six.
pub(crate) fn watches(c: &mut Chance, two: bool, within: &[u64]) -> Vec<(u32, Strike)> {
    let count = if c.one_in(6) {
        c.pick(&[1, 1, 2, 3])
    } else {
        0
    };
    let strikes = (0..count).map(|_| {
        let latest = c.pick(within);
        let (at, index) = (c.number(latest), u8::from(two && c.one_in(2)));
        if c.one_in(4) {
            return (at, Strike::Again(index, c.pick(&[1, 4, 30])));
        }
        let watch = c.pick(&[
            Watch::Runs,
            Watch::Runs,
            Watch::Pods,
            Watch::Pods,
            Watch::Nodes,
            Watch::Layers,
            Watch::Namespaces,
        ]);
        (at, Strike::Relist(index, watch, c.pick(&[1, 5, 30, 120])))
    });
    strikes.collect()
}

/// Removes an event from a list.
type Remove = fn(&mut Schedule, usize);

impl Schedule {
    /// The default scene, without events.
    pub(crate) fn of(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// Changes the scene.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Scene)) -> Self {
        change(&mut self.scene);
        self
    }

    pub(crate) fn gesture(mut self, when: When, gesture: Gesture) -> Self {
        self.person.push((when, gesture));
        self
    }

    /// Adds a gesture this many milliseconds after the run first waited for an approval.
    pub(crate) fn waits(self, after: u32, gesture: Gesture) -> Self {
        self.gesture(When::Waits(after), gesture)
    }

    pub(crate) fn strike(mut self, at: u32, strike: Strike) -> Self {
        self.strikes.push((at, strike));
        self
    }

    /// The same life with one more fault.
    pub(crate) fn fault(&self, at: u32, fault: Fault) -> Self {
        let mut schedule = self.clone();
        schedule.faults.push((at, fault));
        schedule
    }

    pub(crate) fn random(seed: u64) -> Self {
        let mut c = Chance(seed ^ 0x5eed);
        // Separate generators, so that older seeds reproduce their lives.
        let (mut of_hooks, mut of_slots) = (Chance(seed ^ 0x400c), Chance(seed ^ 0x5107));
        let (mut of_watches, mut of_nodes) = (Chance(seed ^ 0x3a7c), Chance(seed ^ 0x40de));
        let manual = !c.one_in(3);
        let mut scene = Scene {
            automatic: !manual,
            operation: if c.one_in(12) {
                crds::Operation::Plan
            } else if c.one_in(10) {
                crds::Operation::Destroy
            } else {
                crds::Operation::Apply
            },
            datastore: !c.one_in(4),
            hold: c.pick(&[0, 2, 5, 30, 120]),
            changes: !c.one_in(15),
            // Derived without a draw, so that older seeds reproduce their lives.
            destroys: seed % 7 == 3,
            fails: c.one_in(8),
            flaky: if c.one_in(6) { c.pick(&[1, 2, 4]) } else { 0 },
            stubborn: c.one_in(8),
            tampered: c.one_in(20),
            no_image: c.one_in(40),
            objects: c.pick(&[1, 3, 8, 20, 84]),
            second: if c.one_in(8) {
                Some(c.pick(&[0, 5, 20, 60]))
            } else {
                None
            },
            two: c.one_in(2),
            hooks: of_hooks.one_in(4),
            hook_tampers: of_hooks.one_in(12),
            hook_fails: if of_hooks.one_in(6) {
                Some(of_hooks.pick(&[Failing::BeforeApply, Failing::AfterApply]))
            } else {
                None
            },
            ..Scene::default()
        };
        let (bounded, frozen) = (of_slots.one_in(5), of_slots.one_in(12));
        if bounded {
            (scene.slots, scene.crowd, scene.rival) = (
                of_slots.pick(&[1, 1, 2]),
                of_slots.pick(&[0, 1, 3]),
                of_slots.one_in(2),
            );
        }
        if bounded && scene.second.is_none() && of_slots.one_in(2) {
            scene.second = Some(of_slots.pick(&[0, 5, 20]));
        }
        if scene.operation == crds::Operation::Plan {
            scene.second = None;
        }
        let mut person = Vec::new();
        if !manual && scene.destroys {
            person.push((When::Waits(500), Gesture::Approve));
        }
        if manual && !c.one_in(8) {
            let after = c.pick(&[0, 50, 500, 3_000, 8_000, 40_000]);
            person.push((When::Waits(after), Gesture::Approve));
            if c.one_in(5) {
                let later = after + c.pick(&[0, 1, 5, 20, 100, 2_000]);
                person.push((When::Waits(later), Gesture::Withdraw));
                if !c.one_in(3) {
                    person.push((
                        When::Waits(later + c.pick(&[3, 50, 3_000, 50_000])),
                        Gesture::Approve,
                    ));
                }
            }
        }
        if c.one_in(12) {
            person.push((When::At(c.number(20_000)), Gesture::ApproveWrong));
        }
        if c.one_in(3) {
            let gesture = c.pick(&[
                Gesture::Deny,
                Gesture::Cancel,
                Gesture::Cancel,
                Gesture::Delete,
                Gesture::Delete,
            ]);
            let within = c.number(6_000);
            let when = c.pick(&[
                When::At(within * 2),
                When::Waits(within),
                When::Applies(within),
                When::Applies(within / 50),
            ]);
            person.push((when, gesture));
            if c.one_in(4) {
                person.push((
                    c.pick(&[When::At(within * 5), When::Ended(within)]),
                    Gesture::Delete,
                ));
            }
        }
        if c.one_in(15) {
            person.push((When::Ended(1_000), Gesture::Rerun));
        }
        let mut faults = Vec::new();
        for _ in 0..c.pick(&[0, 1, 2, 3, 5, 8]) {
            let fault = match c.below(9) {
                0 => Fault::CrashBefore,
                1 => Fault::CrashAfter,
                2 | 3 => Fault::ReplyLost,
                4 => Fault::Lost,
                5 => Fault::Late(c.pick(&[1, 3, 12, 40])),
                6 => Fault::Refused(c.pick(&[401, 403, 404, 409, 422, 429, 500, 503])),
                _ => Fault::Slow(c.pick(&[1, 5, 11, 35])),
            };
            faults.push((c.number(130), fault));
        }
        let mut strikes = Vec::new();
        for _ in 0..c.pick(&[0, 0, 1, 1, 2, 3]) {
            let latest = c.clone().pick(&[4_000, 12_000, 60_000]);
            let at = c.number(latest);
            let strike = match c.below(13) {
                0 | 1 => Strike::Kill,
                2 => Strike::Evict,
                3 | 4 => Strike::ForceDelete(c.pick(&[0, 1, 5, 30, 120, 250])),
                5 => Strike::CutOff(c.pick(&[2, 15, 50, 120, 250])),
                6 => Strike::Twice,
                7 => Strike::KillController(c.pick(&[0, 1])),
                8 => Strike::Lag(c.pick(&[1, 5, 30]), c.pick(&[5, 60])),
                9 => Strike::DatastoreAway(c.pick(&[3, 30, 90, 250])),
                10 => Strike::ApiAway(c.pick(&[2, 15, 70, 200])),
                11 => Strike::LoseNode(c.pick(&[20, 100, 400, 900]), c.one_in(2)),
                _ => Strike::PoliciesAway(c.pick(&[5, 70])),
            };
            strikes.push((at, strike));
        }
        if frozen {
            let at = of_slots.number(12_000);
            strikes.push((at, Strike::Freeze(of_slots.pick(&[2, 20, 120]))));
        }
        strikes.extend(watches(
            &mut of_watches,
            scene.two,
            &[4_000, 12_000, 60_000],
        ));
        let mut of_foreign = Chance(seed ^ 0xf07e);
        if of_foreign.one_in(8) {
            let (at, labelled) = (of_foreign.number(20_000), !of_foreign.one_in(3));
            let seconds = of_foreign.pick(&[5, 20, 90]);
            strikes.push((at, Strike::Foreign(labelled, seconds)));
        }
        let is_lost = strikes
            .iter()
            .any(|(_, strike)| matches!(strike, Strike::LoseNode(..)));
        if is_lost && of_nodes.one_in(2) {
            person.push((
                When::Unreachable(of_nodes.pick(&[0, 3_000, 60_000])),
                Gesture::Abandon,
            ));
        }
        Self {
            seed,
            scene,
            person,
            faults,
            strikes,
        }
    }

    /// Number of events. Shrinking prefers smaller schedules.
    pub(crate) fn size(&self) -> usize {
        let happens = self
            .scene
            .layer
            .as_ref()
            .map_or(0, |layer| layer.happens.len());
        self.faults.len() + self.strikes.len() + self.person.len() + happens
    }

    /// All schedules with one event less.
    pub(crate) fn smaller(&self) -> Vec<Self> {
        let happens = self
            .scene
            .layer
            .as_ref()
            .map_or(0, |layer| layer.happens.len());
        let lists: [(usize, Remove); 4] = [
            (self.faults.len(), |less, i| _ = less.faults.remove(i)),
            (self.strikes.len(), |less, i| _ = less.strikes.remove(i)),
            (self.person.len(), |less, i| _ = less.person.remove(i)),
            (happens, |less, i| {
                _ = less
                    .scene
                    .layer
                    .as_mut()
                    .map(|layer| layer.happens.remove(i));
            }),
        ];
        let mut all = Vec::new();
        for (count, remove) in lists {
            for i in 0..count {
                let mut less = self.clone();
                remove(&mut less, i);
                all.push(less);
            }
        }
        let plain: [fn(&mut Scene); 13] = [
            |s| s.slots = 0,
            |s| s.crowd = 0,
            |s| s.rival = false,
            |s| s.two = false,
            |s| s.hooks = false,
            |s| s.hook_tampers = false,
            |s| s.hook_fails = None,
            |s| s.second = None,
            |s| s.stubborn = false,
            |s| s.flaky = 0,
            |s| s.fails = false,
            |s| s.tampered = false,
            |s| s.objects = 3,
        ];
        for change in plain {
            let mut less = self.clone();
            change(&mut less.scene);
            if less != *self {
                all.push(less);
            }
        }
        all
    }

    pub(crate) fn line(&self) -> String {
        serde_json::to_string(self).unwrap()
    }
}
