//! What happens in one simulated life of a run: everything that is not decided by our own code, as data that can be written
//! down in one line, replayed, and made smaller.

use serde::{Deserialize, Serialize};

use crate::{controller::Watch, layers::LayerScene};

/// Chance that is the same again (splitmix64).
#[derive(Clone, Debug)]
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

    /// True once in `n`.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()].clone()
    }
}

/// What happens at a boundary: a request of a process, or the beginning of a step of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// The process dies before the request lands.
    CrashBefore,
    /// It lands, and the process dies before it hears so.
    CrashAfter,
    /// It never lands; no answer.
    Lost,
    /// It lands; no answer.
    ReplyLost,
    /// No answer, and it lands so many seconds later.
    Late(u8),
    /// Refused with this code, and nothing landed.
    Refused(u16),
    /// The answer takes so many seconds.
    Slow(u8),
}

/// What happens at a time, whoever is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Strike {
    /// The container is killed.
    Kill,
    /// The pod is deleted with its grace.
    Evict,
    /// The pod's object is taken away by force, finalizer and all; its process lives on for so many seconds.
    ForceDelete(u8),
    /// The pod's node hears and says nothing for so many seconds.
    CutOff(u8),
    /// The first node is heard of no more for so many seconds, and its pods hear nothing; or it is started anew meanwhile.
    LoseNode(u16, bool),
    /// The container is started a second time beside the first.
    Twice,
    /// This controller dies.
    KillController(u8),
    /// The process that follows repositories dies.
    KillSources,
    /// What the watches of both controllers see comes so many seconds late from now on, for as long.
    Lag(u8, u8),
    /// The same of this controller alone.
    LagOf(u8, u8, u8),
    /// This watch of this controller hears nothing for so many seconds, and then lists anew: what happened meanwhile no event tells.
    Relist(u8, Watch, u8),
    /// The watches of this controller show the last so many changes once more.
    Again(u8, u8),
    /// The datastore is away for so many seconds.
    DatastoreAway(u8),
    /// The API server is away for so many seconds.
    ApiAway(u8),
    /// The admission policies are not there for so many seconds.
    PoliciesAway(u8),
    /// The namespace is frozen for so many seconds.
    Freeze(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Gesture {
    /// Approves the plan that waits.
    Approve,
    /// Approves another.
    ApproveWrong,
    /// Takes the approval back.
    Withdraw,
    Deny,
    Cancel,
    Delete,
    Rerun,
    /// Gives the apply up.
    Abandon,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum When {
    /// So many milliseconds after the beginning.
    At(u32),
    /// So many milliseconds after the run was first seen to wait for an approval.
    Waits(u32),
    /// So many milliseconds after it was first seen in phase Apply.
    Applies(u32),
    /// So many milliseconds after its end.
    Ended(u32),
    /// So many milliseconds after it first said that its node is lost.
    Unreachable(u32),
}

/// Which hook exits with another code than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Failing {
    BeforeApply,
    AfterApply,
}

/// What the stack does, and how the run is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Scene {
    /// Approves itself.
    pub automatic: bool,
    pub operation: crds::Operation,
    /// There is a datastore, and the state is managed.
    pub datastore: bool,
    /// Seconds that a pod is held.
    pub hold: u8,
    /// The plan has changes.
    pub changes: bool,
    /// Those are of a kind that an Automatic run asks a person about.
    pub destroys: bool,
    /// The apply fails after its first object.
    pub fails: bool,
    /// Steps that fail for a while, by the network, before one succeeds.
    pub flaky: u8,
    /// The tool does not end on SIGINT.
    pub stubborn: bool,
    /// Code changes between plan and apply.
    pub tampered: bool,
    /// The image cannot be pulled.
    pub no_image: bool,
    /// Objects that the apply creates, one a second.
    pub objects: u8,
    /// A second run of the same stack, created so many seconds later.
    pub second: Option<u8>,
    /// Two controllers that both think they lead.
    pub two: bool,
    /// Hooks run before the apply, after it, and at every end.
    pub hooks: bool,
    /// The one before the apply changes the code.
    pub hook_tampers: bool,
    /// One of them fails.
    pub hook_fails: Option<Failing>,
    /// The most attempts that are open at once; any number when 0.
    pub slots: u8,
    /// Runs of the same stack that only plan, made for a schedule before the first.
    pub crowd: u8,
    /// The second run approves itself when the first does not, and the other way round.
    pub rival: bool,
    /// A layer and its repository in place of the first run: its runs are the controller's doing.
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

/// One life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Schedule {
    /// What delays and orders follow from.
    pub seed: u64,
    pub scene: Scene,
    #[serde(default)]
    pub person: Vec<(When, Gesture)>,
    /// By the number of the boundary.
    #[serde(default)]
    pub faults: Vec<(u32, Fault)>,
    /// By milliseconds.
    #[serde(default)]
    pub strikes: Vec<(u32, Strike)>,
}

/// What happens to the watches of a controller, in one life of six.
pub(crate) fn watches(c: &mut Chance, two: bool, within: &[u64]) -> Vec<(u32, Strike)> {
    let count = if c.one_in(6) { c.pick(&[1, 1, 2, 3]) } else { 0 };
    let strikes = (0..count).map(|_| {
        let latest = c.pick(within);
        let (at, index) = (u32::try_from(c.below(latest)).unwrap(), u8::from(two && c.one_in(2)));
        if c.one_in(4) {
            return (at, Strike::Again(index, c.pick(&[1, 4, 30])));
        }
        let watch = c.pick(&[Watch::Runs, Watch::Runs, Watch::Pods, Watch::Pods, Watch::Nodes, Watch::Layers, Watch::Namespaces]);
        (at, Strike::Relist(index, watch, c.pick(&[1, 5, 30, 120])))
    });
    strikes.collect()
}

impl Schedule {
    pub(crate) fn random(seed: u64) -> Self {
        let mut c = Chance(seed ^ 0x5eed);
        // Of their own, so that a seed has the life that it always had.
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
            // Not drawn, so that older seeds are the lives that they were.
            destroys: seed % 7 == 3,
            fails: c.one_in(8),
            flaky: if c.one_in(6) { c.pick(&[1, 2, 4]) } else { 0 },
            stubborn: c.one_in(8),
            tampered: c.one_in(20),
            no_image: c.one_in(40),
            objects: c.pick(&[1, 3, 8, 20, 84]),
            second: if c.one_in(8) { Some(c.pick(&[0, 5, 20, 60])) } else { None },
            two: c.one_in(2),
            hooks: of_hooks.one_in(4),
            hook_tampers: of_hooks.one_in(12),
            hook_fails: if of_hooks.one_in(6) { Some(of_hooks.pick(&[Failing::BeforeApply, Failing::AfterApply])) } else { None },
            ..Scene::default()
        };
        let (bounded, frozen) = (of_slots.one_in(5), of_slots.one_in(12));
        if bounded {
            (scene.slots, scene.crowd, scene.rival) = (of_slots.pick(&[1, 1, 2]), of_slots.pick(&[0, 1, 3]), of_slots.one_in(2));
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
                    person.push((When::Waits(later + c.pick(&[3, 50, 3_000, 50_000])), Gesture::Approve));
                }
            }
        }
        if c.one_in(12) {
            person.push((When::At(u32::try_from(c.below(20_000)).unwrap()), Gesture::ApproveWrong));
        }
        if c.one_in(3) {
            let gesture = c.pick(&[Gesture::Deny, Gesture::Cancel, Gesture::Cancel, Gesture::Delete, Gesture::Delete]);
            let within = u32::try_from(c.below(6_000)).unwrap();
            let when = c.pick(&[When::At(within * 2), When::Waits(within), When::Applies(within), When::Applies(within / 50)]);
            person.push((when, gesture));
            if c.one_in(4) {
                person.push((c.pick(&[When::At(within * 5), When::Ended(within)]), Gesture::Delete));
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
            faults.push((u32::try_from(c.below(130)).unwrap(), fault));
        }
        let mut strikes = Vec::new();
        for _ in 0..c.pick(&[0, 0, 1, 1, 2, 3]) {
            let at = u32::try_from(c.below(c.clone().pick(&[4_000, 12_000, 60_000]))).unwrap();
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
            let at = u32::try_from(of_slots.below(12_000)).unwrap();
            strikes.push((at, Strike::Freeze(of_slots.pick(&[2, 20, 120]))));
        }
        strikes.extend(watches(&mut of_watches, scene.two, &[4_000, 12_000, 60_000]));
        let is_lost = strikes.iter().any(|(_, strike)| matches!(strike, Strike::LoseNode(..)));
        if is_lost && of_nodes.one_in(2) {
            person.push((When::Unreachable(of_nodes.pick(&[0, 3_000, 60_000])), Gesture::Abandon));
        }
        Self { seed, scene, person, faults, strikes }
    }

    /// How much happens; a smaller schedule that shows the same is the better one.
    pub(crate) fn size(&self) -> usize {
        let happens = self.scene.layer.as_ref().map_or(0, |layer| layer.happens.len());
        self.faults.len() + self.strikes.len() + self.person.len() + happens
    }

    /// The schedules with one thing less.
    pub(crate) fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        for i in 0..self.faults.len() {
            let mut less = self.clone();
            less.faults.remove(i);
            all.push(less);
        }
        for i in 0..self.strikes.len() {
            let mut less = self.clone();
            less.strikes.remove(i);
            all.push(less);
        }
        for i in 0..self.person.len() {
            let mut less = self.clone();
            less.person.remove(i);
            all.push(less);
        }
        for i in 0..self.scene.layer.as_ref().map_or(0, |layer| layer.happens.len()) {
            let mut less = self.clone();
            if let Some(layer) = &mut less.scene.layer {
                layer.happens.remove(i);
            }
            all.push(less);
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
