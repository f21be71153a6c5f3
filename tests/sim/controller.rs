//! A controller's process: the real reconciler on lagging caches, with the queue of the real runtime.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ::controller::{
    cluster::{Cluster, cached::Store, clock::Timed, node_watch},
    gc,
    layer::{self},
    policies::{Prober, watch::Watched},
    revoke::Revoke,
    run::{Context, reconcile},
    settings::Settings,
    watches::Watches,
};
use crds::{TerraformLayer, TerraformRepository, TerraformRun, names};
use datastore_client::{RequestError, controller::Datastore};
use futures::{
    FutureExt,
    channel::mpsc::{UnboundedReceiver, unbounded},
};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::{Namespace, Node, Pod},
};
use kube::{Client, core::PartialObjectMeta, runtime::watcher::Event};
use played::{
    Refusal, User,
    store::{LAYERS, PODS, RUNS},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use serving::health::Readiness;
use tokio::{sync::watch, time::sleep};
use watching::{Feed, Indexes, Key};

use crate::{
    deeds,
    http::Server,
    layers::REPOSITORIES,
    queue::Queue,
    world::{NAMESPACES, NODES, NS, Process, Shared, Trouble, clock, date, millis, now},
};

/// Restarts one controller after each death, as a new process.
pub(crate) async fn supervise(shared: Shared, index: u8) {
    loop {
        let process = Process::new(&format!("controller{index}"), user());
        shared.lock().controllers.insert(index, process.clone());
        let life = tokio::spawn(live(shared.clone(), process.clone(), index));
        process.death().await;
        life.abort();
        let wait = {
            let mut world = shared.lock();
            world.note(&format!("   controller{index} died"));
            500 + world.chance.below(8_000)
        };
        sleep(Duration::from_millis(wait)).await;
    }
}

/// A controller's watch of the admission policies. It never lags: an approval that is forged before the watch shows the removal of its
/// policy may be recorded (`design/0004-approval-and-admission.md`).
pub(crate) struct Guard {
    watched: Arc<Watched>,
    feeds: [Feed; 2],
    /// When its process first listed them.
    pub(crate) since: u64,
}

impl Guard {
    fn new(prober: Arc<Prober>, policies: &[Value]) -> Self {
        let mut guard = Self {
            watched: Watched::new(prober),
            feeds: Default::default(),
            since: millis(),
        };
        guard.tell(policies);
        guard
    }

    /// Delivers a listing of the policies. Policy and binding have the same name.
    pub(crate) fn tell(&mut self, policies: &[Value]) {
        for event in listing::<ValidatingAdmissionPolicy>(policies) {
            self.feeds[0].event(&event, &self.watched);
        }
        for event in listing::<ValidatingAdmissionPolicyBinding>(policies) {
            self.feeds[1].event(&event, &self.watched);
        }
    }
}

fn listing<K: DeserializeOwned>(objects: &[Value]) -> impl Iterator<Item = Event<K>> {
    let applied = objects
        .iter()
        .map(|object| Event::InitApply(K::deserialize(object).unwrap()));
    [Event::Init]
        .into_iter()
        .chain(applied)
        .chain([Event::InitDone])
}

/// The controller's watches, in the order in which a process lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Watch {
    Namespaces,
    Runs,
    Pods,
    Nodes,
    Repositories,
    Layers,
}

impl Watch {
    pub(crate) const ALL: [Self; 6] = [
        Self::Namespaces,
        Self::Runs,
        Self::Pods,
        Self::Nodes,
        Self::Repositories,
        Self::Layers,
    ];

    /// Namespace and resource of its objects.
    const fn of(self) -> (&'static str, &'static str) {
        match self {
            Self::Namespaces => ("", NAMESPACES),
            Self::Runs => (NS, RUNS),
            Self::Pods => (NS, PODS),
            Self::Nodes => ("", NODES),
            Self::Repositories => (NS, REPOSITORIES),
            Self::Layers => (NS, LAYERS),
        }
    }
}

struct Informer {
    ctx: Arc<Context>,
    feeds: BTreeMap<Watch, Feed>,
    of_namespaces: Indexes<PartialObjectMeta<Namespace>>,
    of_runs: Indexes<TerraformRun>,
    of_pods: Indexes<Pod>,
    of_nodes: node_watch::Watched,
    of_repositories: Indexes<TerraformRepository>,
    of_layers: Indexes<TerraformLayer>,
    waking: UnboundedReceiver<Key>,
    layers_waking: UnboundedReceiver<Key>,
    queue: Arc<Queue<TerraformRun>>,
    layer_queue: Arc<Queue<TerraformLayer>>,
}

/// Deserialises an event's object.
fn read<K: DeserializeOwned>(event: &Event<Arc<Value>>) -> Event<K> {
    let of = |object: &Arc<Value>| K::deserialize(&**object).unwrap();
    match event {
        Event::Apply(object) => Event::Apply(of(object)),
        Event::Delete(object) => Event::Delete(of(object)),
        Event::InitApply(object) => Event::InitApply(of(object)),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    }
}

impl Informer {
    fn event(&mut self, watch: Watch, event: &Event<Arc<Value>>) {
        let feed = self.feeds.entry(watch).or_default();
        match watch {
            Watch::Namespaces => feed.event(
                &read::<PartialObjectMeta<Namespace>>(event),
                &self.of_namespaces,
            ),
            Watch::Runs => feed.event(&read::<TerraformRun>(event), &self.of_runs),
            Watch::Pods => feed.event(&read::<Pod>(event), &self.of_pods),
            Watch::Nodes => feed.event(&read::<Node>(event), &self.of_nodes),
            Watch::Repositories => {
                feed.event(&read::<TerraformRepository>(event), &self.of_repositories);
            }
            Watch::Layers => feed.event(&read::<TerraformLayer>(event), &self.of_layers),
        }
        self.queue.take(&mut self.waking);
        self.layer_queue.take(&mut self.layers_waking);
    }

    /// Lists the objects of these watches in one request, because processes are short-lived. Returns the listed version.
    async fn list(&mut self, watches: &'static [Watch], shared: &Shared, process: &Process) -> u64 {
        let (kinds, version) = loop {
            let sent = self.ctx.cluster.clock.sent();
            let listed = shared.request(
                process,
                || "list".into(),
                |world| {
                    let of = |watch: &Watch| world.store.list(watch.of().1, watch.of().0, "");
                    Ok((
                        watches.iter().map(of).collect::<Vec<_>>(),
                        world.store.version(),
                        now(),
                    ))
                },
            );
            match listed.await {
                Ok((kinds, version, at)) => {
                    self.ctx.cluster.clock.answered(sent, date(at).as_bytes());
                    break (kinds, version);
                }
                Err(_) => sleep(Duration::from_millis(700)).await,
            }
        };
        for (watch, objects) in watches.iter().zip(kinds) {
            self.event(*watch, &Event::Init);
            for object in objects {
                self.event(*watch, &Event::InitApply(object));
            }
            self.event(*watch, &Event::InitDone);
        }
        version
    }
}

fn datastore(shared: &Shared, process: &Process) -> Datastore {
    let (shared, process) = (shared.clone(), process.clone());
    Datastore::played(
        "https://datastore",
        Box::new(move |method, path| {
            let (shared, process) = (shared.clone(), process.clone());
            Box::pin(async move {
                let what = format!(
                    "datastore: {method} {}",
                    path.rsplit('/').next().unwrap_or_default()
                );
                let parts: Vec<String> = path.split(['/', '?']).map(str::to_owned).collect();
                let read = method == http::Method::GET;
                let answer = shared.request(
                    &process,
                    || what,
                    move |world| {
                        if millis() < world.data.away_until {
                            return Err(Trouble::Lost);
                        }
                        let uid = parts.get(5).cloned().unwrap_or_default();
                        if !read && parts.get(6).is_some_and(|part| part == "lock") {
                            deeds::unlock(world, |lock| lock.uid == uid);
                            return Ok(Vec::new());
                        }
                        if !read {
                            world.data.bundles.retain(|(of, _), _| *of != uid);
                            return Ok(Vec::new());
                        }
                        if parts.get(6).is_some_and(|part| part == "source") {
                            return Ok(Vec::new());
                        }
                        let attempt = parts
                            .get(7)
                            .and_then(|number| number.parse().ok())
                            .unwrap_or(0);
                        let missing = || Refusal::not_found("object");
                        let found = world
                            .data
                            .results
                            .get(&(uid, attempt))
                            .ok_or_else(missing)?;
                        Ok(serde_json::to_vec(found).unwrap())
                    },
                );
                match answer.await {
                    Ok(body) => Ok(http::Response::new(body).into()),
                    Err(Trouble::Refused(refusal)) => {
                        let mut answer = http::Response::new(refusal.message);
                        *answer.status_mut() = http::StatusCode::from_u16(refusal.code).unwrap();
                        Ok(answer.into())
                    }
                    Err(Trouble::Lost) => Err(RequestError::unanswered("the connection was lost")),
                }
            })
        }),
    )
}

/// Runs the sweep for leftover rights once, as a starting controller does.
pub(crate) async fn sweep(shared: &Shared) {
    // By then late writes have landed and are old enough for the sweep.
    sleep(Duration::from_secs(
        gc::leftover_accounts::SETTLED.unsigned_abs().as_secs() + 120,
    ))
    .await;
    let process = Process::new("sweeper", user());
    let _ = gc::leftover_accounts::once(Some(NS), &context(shared, &process).cluster).await;
}

fn user() -> User {
    User::with("controller", &[names::VERB_CONTROL])
}

fn context(shared: &Shared, process: &Process) -> Arc<Context> {
    let (has_store, slots, seed) = {
        let world = shared.lock();
        (
            world.schedule.scene.datastore,
            world.schedule.scene.slots,
            world.schedule.seed,
        )
    };
    // Each process is on its own machine.
    let clock = clock(seed, &format!("{} {}", process.name, millis()));
    let server = Server {
        shared: shared.clone(),
        process: process.clone(),
    };
    let client = Client::new(Timed::new(server, clock.clone()), "default");
    let settings = Settings {
        datastore_url: has_store.then(|| "https://datastore".into()),
        max_concurrent_runs: (slots > 0).then_some(slots.into()),
        ..Settings::default()
    };
    let datastore = has_store.then(|| datastore(shared, process));
    Arc::new(Context::new(
        Cluster::new(client, settings, clock),
        datastore,
    ))
}

async fn live(shared: Shared, process: Process, index: u8) {
    let ctx = context(&shared, &process);
    shared.act(|world| {
        let guard = Guard::new(ctx.policies.clone(), &world.store.policies());
        world.guards.insert(index, guard);
    });
    let cluster = &ctx.cluster;
    let watches = Watches::new(ctx.clone());
    let of_layers = watches.layers.clone();
    let (_stop, stopped) = watch::channel(false);
    let revoke = Revoke {
        runs: ctx.clone(),
        layers: of_layers.clone(),
    }
    .run(Arc::new(Readiness::awaiting(1)), stopped);
    let ((wake, waking), (to_layers, layers_waking)) = (unbounded(), unbounded());
    cluster.wakers.add(None, wake.clone());
    of_layers.layers.wakers.add(None, to_layers.clone());
    let (runs, layers) = (Store::new(wake), Store::new(to_layers));
    let (queue, layer_queue) = (Queue::new(runs.clone()), Queue::new(layers.clone()));
    let informer = Informer {
        feeds: BTreeMap::new(),
        of_namespaces: watches.of_namespaces(),
        of_runs: watches.of_runs(&runs),
        of_pods: watches.of_pods(&runs),
        of_nodes: node_watch::Watched(cluster.clone()),
        of_repositories: watches.of_repositories(),
        of_layers: layer::watch::indexes(&of_layers, &layers),
        waking,
        layers_waking,
        queue: queue.clone(),
        layer_queue: layer_queue.clone(),
        ctx: ctx.clone(),
    };
    let look = {
        let ctx = ctx.clone();
        move |run: Arc<TerraformRun>| reconcile(run, ctx.clone()).boxed()
    };
    let layers = async {
        of_layers.layers.listings.ready().await;
        let look =
            move |seen: Arc<TerraformLayer>| layer::reconcile(seen, of_layers.clone()).boxed();
        layer_queue.work(&process, look).await;
    };
    tokio::join!(
        inform(&shared, &process, index, informer),
        queue.work(&process, look),
        layers,
        revoke
    );
}

/// Fills the caches: a list, then every change in order, each after a delay. A watch without events for a while lists again.
async fn inform(shared: &Shared, process: &Process, index: u8, mut informer: Informer) {
    let mut seen = informer.list(&Watch::ALL, shared, process).await;
    // Versions that the new listings cover, by watch.
    let mut known = BTreeMap::new();
    let changes = shared.changes();
    loop {
        let (lost, again) = {
            let mut world = shared.lock();
            (
                world.next_listing(index),
                world.again.remove(&index).unwrap_or(0),
            )
        };
        seen = seen.saturating_sub(again);
        let due = lost.map_or(0, |(_, until)| until.saturating_sub(millis()));
        if let Some((watch, _)) = lost.filter(|_| due == 0) {
            shared.lock().deaf.remove(&(index, watch));
            let just = Watch::ALL
                .chunks(1)
                .find(|just| just[0] == watch)
                .unwrap_or_default();
            known.insert(watch, informer.list(just, shared, process).await);
            continue;
        }
        tokio::select! {
            biased;
            () = changes.after(seen) => {}
            () = changes.next() => continue,
            () = sleep(Duration::from_millis(due)), if lost.is_some() => continue,
        }
        let (late, until) = {
            let mut world = shared.lock();
            let late = match world.lag.get(&index) {
                Some((millis_late, until)) if millis() < *until => *millis_late,
                Some(_) | None => 1 + world.chance.below(8),
            };
            (late, world.api_away_until.saturating_sub(millis()))
        };
        sleep(Duration::from_millis(late.max(until))).await;
        process.live().await;
        let (fresh, deaf) = {
            let world = shared.lock();
            (world.store.since(seen).to_vec(), world.deaf.clone())
        };
        for change in fresh {
            seen = change.version;
            let watch = Watch::ALL
                .into_iter()
                .find(|watch| watch.of().1 == change.key.resource);
            let Some(watch) = watch.filter(|watch| !deaf.contains_key(&(index, *watch))) else {
                continue;
            };
            if known
                .get(&watch)
                .is_none_or(|known| change.version > *known)
            {
                let event = if change.deleted {
                    Event::Delete(change.object)
                } else {
                    Event::Apply(change.object)
                };
                informer.event(watch, &event);
            }
        }
    }
}
