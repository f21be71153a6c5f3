//! The world of one schedule: the store, the living processes, their effects, and the boundaries at which faults occur.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use crds::{Claim, TerraformRun, clock::ServerClock, termination::TerminationMessage};
use jiff::{SignedDuration, Timestamp, fmt::rfc2822::DateTimePrinter};
use played::trace::Step;
use played::{
    Refusal, User,
    store::{Change, Edit, Key, LAYERS, PODS, RUNS, Store, text},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

pub(crate) use crate::process::{Changes, Process};
use crate::{
    controller::{Guard, Watch},
    invariants::{self, Watcher},
    layered,
    layers::{self, Ground},
    schedule::{Chance, Fault, Schedule},
    sources::Forge,
};

pub(crate) const NODES: &str = "nodes";
/// The resource name of namespaces. The runs' namespace exists as an object only while it is frozen.
pub(crate) const NAMESPACES: &str = "namespaces";
/// The nodes. Pods are placed on the first that is not lost.
pub(crate) const NODE_NAMES: [&str; 2] = ["node-1", "node-2"];
/// The namespace of all runs.
pub(crate) const NS: &str = "team";
/// Start of each life, in Unix seconds.
const BEGIN: i64 = 1_800_000_000;

thread_local! {
    /// Start of the life on this thread.
    static BEGUN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Starts the clock of a life.
pub(crate) fn begin() {
    BEGUN.set(Some(Instant::now()));
}

/// Milliseconds since the start of the life.
pub(crate) fn millis() -> u64 {
    BEGUN.get().map_or(0, |begun| {
        u64::try_from(begun.elapsed().as_millis()).unwrap()
    })
}

/// The time of the API server. All other machines have their own clocks.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_millisecond(BEGIN * 1000 + i64::try_from(millis()).unwrap()).unwrap()
}

/// The clock error of a machine: up to an hour, and often the maximum.
fn off(seed: u64, machine: &str) -> SignedDuration {
    let mut chance = Chance(machine.bytes().fold(seed, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    }));
    SignedDuration::from_secs(match chance.below(4) {
        0 => -3_600,
        1 => 3_600,
        _ => i64::try_from(chance.below(7_201)).unwrap() - 3_600,
    })
}

/// An estimate of the API server's clock by a process on this machine.
pub(crate) fn clock(seed: u64, machine: &str) -> ServerClock {
    let off = off(seed, machine);
    ServerClock::beside(move || (now() + off, Instant::now().into_std()))
}

/// The `Date` header of the API server.
pub(crate) fn date(at: Timestamp) -> String {
    DateTimePrinter::new()
        .timestamp_to_rfc9110_string(&at)
        .unwrap()
}

/// The error of a request.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    /// No reply.
    Lost,
    Refused(Refusal),
}

impl World {
    /// Removes the policies, or restores them as new objects.
    pub(crate) fn set_policies(&mut self, away: bool) {
        self.store.lacks_policies = away;
        self.store.policies_made += u32::from(!away);
        let policies = self.store.policies();
        self.guards
            .values_mut()
            .for_each(|guard| guard.tell(&policies));
    }

    /// Whether a controller started after approvals were forged, or before it had revoked them all. Such a controller cannot know that the
    /// policies were missing.
    pub(crate) fn believes_forgeries(&self) -> bool {
        self.forged_at
            .is_some_and(|at| self.guards.values().any(|guard| guard.since >= at))
    }
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The content of the datastore.
#[derive(Default)]
pub(crate) struct Datastore {
    pub away_until: u64,
    /// By run and attempt: the checksum of the bundle.
    pub bundles: BTreeMap<(String, u32), String>,
    pub claims: BTreeMap<String, Claim>,
    pub results: BTreeMap<(String, u32), TerminationMessage>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lock {
    pub id: String,
    pub holder: Arc<str>,
    pub uid: String,
    pub attempt: u32,
}

#[derive(Default)]
pub(crate) struct World {
    pub store: Store,
    pub schedule: Schedule,
    pub chance: Chance,
    pub boundaries: u32,
    /// The boundary at which the first apply began.
    pub applied_at: Option<u32>,
    pub tracing: bool,
    pub trace: Vec<String>,
    pub watcher: Watcher,
    pub data: Datastore,
    pub lock: Option<Lock>,
    /// The real infrastructure of a layer's stack.
    pub ground: Ground,
    /// The Git server.
    pub forge: Forge,
    /// The sources process.
    pub sources: Option<Process>,
    /// Boundaries of the controller that concern layers.
    pub of_layers: Vec<u32>,
    pub api_away_until: u64,
    /// Processes without access to the API, by name, and until when.
    pub cut_off: BTreeMap<Arc<str>, u64>,
    /// By node: until when it is lost.
    pub lost: BTreeMap<String, u64>,
    /// By node: the boot ID, which is the time of the last reboot.
    pub boots: BTreeMap<String, u64>,
    /// Agents' processes by the UID of their pod.
    pub agents: BTreeMap<String, Vec<Process>>,
    pub controllers: BTreeMap<u8, Process>,
    /// By controller: its watch of the admission policies.
    pub guards: BTreeMap<u8, Guard>,
    /// When approvals were first forged while the policies were missing.
    pub forged_at: Option<u64>,
    /// By controller: lag of its watches, and until when.
    pub lag: BTreeMap<u8, (u64, u64)>,
    /// The time at which each watch of each controller lists again. It gets no events before.
    pub deaf: BTreeMap<(u8, Watch), u64>,
    /// By controller: how many of the last changes its watches repeat.
    pub again: BTreeMap<u8, u64>,
    /// By UID: when the pod's object was deleted.
    pub gone_pods: BTreeMap<String, u64>,
    /// UIDs of pods whose container the node must start a second time.
    pub twice: BTreeSet<String>,
    /// By UID: how long the process lives without its pod, in milliseconds.
    pub outlive: BTreeMap<String, u64>,
    /// Deserialised current runs.
    pub runs: BTreeMap<String, Arc<TerraformRun>>,
    checked: u64,
    pub requests: u32,
    pub changed: Changes,
}

/// The world, shared by its tasks.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<World>>);

impl Shared {
    pub(crate) fn new(schedule: &Schedule, tracing: bool) -> Self {
        let (schedule, chance) = (schedule.clone(), Chance(schedule.seed));
        Self(Arc::new(Mutex::new(World {
            schedule,
            chance,
            tracing,
            ..World::default()
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    /// Changes the world in one step and checks the result.
    pub(crate) fn act<T>(&self, what: impl FnOnce(&mut World) -> T) -> T {
        let mut world = self.lock();
        let answer = what(&mut world);
        world.look();
        answer
    }

    pub(crate) fn changes(&self) -> Changes {
        self.lock().changed.clone()
    }

    /// Sleeps between `least` and twice as many milliseconds.
    pub(crate) async fn pause(&self, least: u64) {
        let millis = {
            let mut world = self.lock();
            least + world.chance.below(least)
        };
        sleep(Duration::from_millis(millis)).await;
    }

    /// Sends a request of a process to the API server or the datastore. The request is a boundary: a fault may occur
    /// there.
    pub(crate) async fn request<T: Send + 'static>(
        &self,
        process: &Process,
        what: impl FnOnce() -> String,
        operation: impl FnOnce(&mut World) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, Trouble> {
        process.live().await;
        let (fault, there, back) = {
            let mut world = self.lock();
            world.requests += 1;
            let fault = world.boundary(process, what);
            (fault, 1 + world.chance.below(3), 1 + world.chance.below(2))
        };
        match fault {
            Some(Fault::CrashBefore) => process.kill(),
            Some(Fault::Slow(seconds)) => sleep(Duration::from_secs(seconds.into())).await,
            Some(
                Fault::CrashAfter
                | Fault::Lost
                | Fault::ReplyLost
                | Fault::Late(_)
                | Fault::Refused(_),
            )
            | None => {}
        }
        sleep(Duration::from_millis(there)).await;
        process.live().await;
        match fault {
            Some(Fault::Lost) => return Err(Trouble::Lost),
            Some(Fault::Refused(code)) => {
                return Err(Refusal {
                    code,
                    reason: "Played",
                    message: "as the schedule says".into(),
                }
                .into());
            }
            Some(Fault::Late(seconds)) => {
                let this = self.clone();
                tokio::spawn(async move {
                    sleep(Duration::from_secs(seconds.into())).await;
                    let _ = this.act(operation);
                });
                return Err(Trouble::Lost);
            }
            Some(Fault::CrashBefore | Fault::CrashAfter | Fault::ReplyLost | Fault::Slow(_))
            | None => {}
        }
        let away = {
            let world = self.lock();
            let until = world
                .cut_off
                .get(&process.name)
                .copied()
                .unwrap_or(0)
                .max(world.api_away_until);
            millis() < until
        };
        if away {
            sleep(Duration::from_secs(3)).await;
            return Err(Trouble::Lost);
        }
        let answer = self.act(operation);
        if fault == Some(Fault::CrashAfter) {
            process.kill();
        }
        if fault == Some(Fault::ReplyLost) {
            return Err(Trouble::Lost);
        }
        sleep(Duration::from_millis(back)).await;
        process.live().await;
        answer
    }

    /// Starts a step of an agent's work. The step is a boundary: a fault may occur there. Returns whether it fails with a
    /// network error.
    pub(crate) async fn exec(&self, process: &Process, what: &str) -> bool {
        process.live().await;
        let fault = self.lock().boundary(process, || format!("exec {what}"));
        match fault {
            Some(Fault::CrashBefore) => process.kill(),
            Some(Fault::Slow(seconds)) => sleep(Duration::from_secs(seconds.into())).await,
            Some(Fault::CrashAfter) => {
                let process = process.clone();
                let after = self.lock().chance.below(1500);
                tokio::spawn(async move {
                    sleep(Duration::from_millis(after)).await;
                    process.kill();
                });
            }
            Some(Fault::Lost | Fault::ReplyLost | Fault::Late(_) | Fault::Refused(_)) => {
                return true;
            }
            None => {}
        }
        process.live().await;
        false
    }
}

impl World {
    /// Counts a boundary and returns its fault.
    fn boundary(&mut self, process: &Process, what: impl FnOnce() -> String) -> Option<Fault> {
        let number = self.boundaries;
        self.boundaries += 1;
        let what = what();
        if layers::is_of_layers(&what) {
            self.of_layers.push(number);
        }
        let fault = self
            .schedule
            .faults
            .iter()
            .find(|(at, _)| *at == number)
            .map(|(_, fault)| *fault);
        if self.tracing {
            let text = format!("#{number} {}: {}", process.name, what);
            self.note(&match fault {
                Some(fault) => format!("{text}   <- {fault:?}"),
                None => text,
            });
        }
        fault
    }

    pub(crate) fn note(&mut self, text: &str) {
        if self.tracing {
            let seconds = f64::from(u32::try_from(millis()).unwrap()) / 1000.0;
            self.trace.push(format!("{seconds:>8.3} {text}"));
        }
    }

    pub(crate) fn violated(&mut self, invariant: &str, text: &str) {
        self.note(&format!("VIOLATED {invariant}: {text}"));
        self.watcher.violations.push(format!("{invariant}: {text}"));
    }

    /// Records that a life came to a state of interest.
    pub(crate) fn came_to(&mut self, ending: &'static str) {
        self.watcher.endings.insert(ending);
    }

    /// The next watch of a controller that lists again, and when.
    pub(crate) fn next_listing(&self, index: u8) -> Option<(Watch, u64)> {
        let of_it = self.deaf.iter().filter(|((of, _), _)| *of == index);
        of_it
            .map(|((_, watch), until)| (*watch, *until))
            .min_by_key(|(_, until)| *until)
    }

    /// The node for a new pod.
    pub(crate) fn place(&self) -> &'static str {
        let lost = |name: &&str| self.lost_until(name) > millis();
        NODE_NAMES
            .into_iter()
            .find(|name| !lost(name))
            .unwrap_or(NODE_NAMES[0])
    }

    /// Until when a node is lost.
    pub(crate) fn lost_until(&self, node: &str) -> u64 {
        self.lost.get(node).copied().unwrap_or(0)
    }

    /// Writes the node's status: as its kubelet, or as the control plane when it is lost.
    pub(crate) fn tell_node(&mut self, name: &str, ready: &str) {
        let boot = self.boots.get(name).copied().unwrap_or(0);
        let key = Key::of(NODES, "", name);
        // The control plane reports a lost node, by its own clock.
        let at = if ready == "True" {
            now() + off(self.schedule.seed, name)
        } else {
            now()
        };
        let node = json!({"metadata": {"name": name}, "status": {
            "nodeInfo": {"architecture": "", "bootID": format!("{name}-{boot}"), "containerRuntimeVersion": "", "kernelVersion": "",
                "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""},
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": crds::whole_seconds(at)}]}});
        match self.store.get(&key) {
            Ok(old) => {
                self.store.node_writes(
                    &key,
                    text(&old, "/metadata/uid"),
                    &json!({"status": node["status"]}),
                );
            }
            Err(_) => drop(self.create(&User::default(), NODES, node)),
        }
    }

    /// Creates an object in the namespace of the runs. Nodes and namespaces have none.
    pub(crate) fn create(
        &mut self,
        user: &User,
        resource: &str,
        object: Value,
    ) -> Result<(), Refusal> {
        let namespace = if [NODES, NAMESPACES].contains(&resource) {
            ""
        } else {
            NS
        };
        self.store
            .create(user, resource, namespace, object, false, now())
            .map(drop)
    }

    /// Applies a merge patch to an object other than its status.
    pub(crate) fn merge(&mut self, user: &User, key: &Key, patch: Value) -> Result<(), Refusal> {
        self.store
            .edit(user, key, false, &Edit::Merge(patch), false)
            .map(drop)
    }

    pub(crate) fn annotate(
        &mut self,
        user: &User,
        key: &Key,
        annotations: &Value,
    ) -> Result<(), Refusal> {
        self.merge(user, key, json!({"metadata": {"annotations": annotations}}))
    }

    pub(crate) fn delete(&mut self, key: &Key, grace: Option<u64>) -> Result<(), Refusal> {
        self.store.delete(key, &Value::Null, grace, now()).map(drop)
    }

    pub(crate) fn run(&self, name: &str) -> Option<Arc<TerraformRun>> {
        self.runs.get(name).cloned()
    }

    pub(crate) fn pod(&self, name: &str) -> Option<Arc<Value>> {
        self.store.get(&Key::of(PODS, NS, name)).ok()
    }

    /// Whether the token of a pod is valid: its pod exists, or did so a moment ago.
    pub(crate) fn authenticates(&self, user: &User) -> bool {
        let Some((pod, uid)) = &user.pod else {
            return true;
        };
        let there = self
            .pod(pod)
            .is_some_and(|object| object["metadata"]["uid"] == **uid);
        // In every second life the API server caches token reviews for 10 s.
        let remembered = if self.schedule.seed.is_multiple_of(2) {
            10_000
        } else {
            0
        };
        there
            || self
                .gone_pods
                .get(uid)
                .is_some_and(|since| millis() < since + remembered)
    }

    /// Checks the changes since the last call: invariants, and tasks that wait for a change.
    fn look(&mut self) {
        let version = self.store.version();
        if version == self.checked {
            return;
        }
        let changes = self.store.since(self.checked).to_vec();
        self.checked = version;
        for change in changes {
            match change.key.resource.as_str() {
                RUNS => self.look_at_run(&change),
                LAYERS => layered::changed(self, &change),
                layers::REPOSITORIES => layered::followed(self, &change),
                PODS => self.look_at_pod(&change),
                _ => {}
            }
        }
        self.changed.come_to(version);
    }

    fn look_at_run(&mut self, change: &Change) {
        let fresh: Arc<TerraformRun> =
            Arc::new(TerraformRun::deserialize(&*change.object).unwrap());
        let before = self.runs.remove(&change.key.name);
        if self.tracing {
            self.note(&invariants::differences(
                before.as_deref(),
                &fresh,
                change.deleted,
            ));
        }
        if change.deleted {
            invariants::gone(self, &fresh);
            return;
        }
        let bytes = change
            .object
            .get("status")
            .map_or(0, |status| status.to_string().len());
        let step = Step {
            before: before.as_deref(),
            after: &fresh,
            by: change.by.as_ref(),
            whole: true,
        };
        invariants::changed(self, &step, bytes);
        self.runs.insert(change.key.name.clone(), fresh);
    }

    fn look_at_pod(&mut self, change: &Change) {
        if change.deleted {
            self.gone_pods
                .insert(text(&change.object, "/metadata/uid").to_owned(), millis());
        } else {
            invariants::podded(self, &change.object);
        }
        if self.tracing {
            let state = &change.object["status"]["containerStatuses"][0]["state"];
            self.note(&format!(
                "   pod {} {} {}",
                change.key.name,
                if change.deleted { "gone" } else { "" },
                state
            ));
        }
    }
}
