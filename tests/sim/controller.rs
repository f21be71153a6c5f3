//! A controller's process: the real reconciler on lagging caches, with the queue of the real runtime.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ::controller::{
    cluster::{
        Cluster,
        clock::Timed,
        index::{Feed, mapped},
        node_watch,
    },
    gc,
    layer::{self, LayerRun},
    policies::{Prober, watch::Watched},
    revoke::Revoke,
    run::{
        Context, event_handlers, reconcile,
        watch::{trim, wake_hash},
    },
    settings::Settings,
};
use crds::{TerraformLayer, TerraformRun, names};
use datastore_client::{RequestError, controller::Datastore};
use futures::{
    FutureExt, StreamExt,
    channel::mpsc::{UnboundedReceiver, unbounded},
};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::{
    Client,
    core::PartialObjectMeta,
    runtime::{reflector::ObjectRef, watcher::Event},
};
use played::{
    Refusal, User,
    store::{LAYERS, PODS, RUNS},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use serving::health::Readiness;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

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
    prober: Arc<Prober>,
    watched: Watched,
    /// When its process first listed them.
    pub(crate) since: u64,
}

impl Guard {
    fn new(prober: Arc<Prober>, policies: &[Value]) -> Self {
        let mut guard = Self { prober, watched: Watched::default(), since: millis() };
        guard.tell(policies);
        guard
    }

    /// Delivers a listing of the policies. Policy and binding have the same name.
    pub(crate) fn tell(&mut self, policies: &[Value]) {
        for event in listing(policies) {
            self.watched.policy(event, &self.prober);
        }
        for event in listing(policies) {
            self.watched.binding(event, &self.prober);
        }
    }
}

fn listing<K: DeserializeOwned>(objects: &[Value]) -> impl Iterator<Item = Event<K>> {
    let applied = objects.iter().map(|object| Event::InitApply(K::deserialize(object).unwrap()));
    [Event::Init].into_iter().chain(applied).chain([Event::InitDone])
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
    pub(crate) const ALL: [Self; 6] = [Self::Namespaces, Self::Runs, Self::Pods, Self::Nodes, Self::Repositories, Self::Layers];

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
    runs: event_handlers::Runs,
    pods: event_handlers::Pods,
    waking: UnboundedReceiver<ObjectRef<TerraformRun>>,
    frozen: Feed,
    layers: Feed,
    repositories: Feed,
    runs_of_layers: Feed,
    layers_waking: UnboundedReceiver<ObjectRef<TerraformLayer>>,
    queue: Arc<Queue<TerraformRun>>,
    layer_queue: Arc<Queue<TerraformLayer>>,
}

/// Deserialises an event's object.
fn read<K: DeserializeOwned>(event: Event<Arc<Value>>) -> Event<K> {
    mapped(event, |object| K::deserialize(&*object).unwrap())
}

impl Informer {
    fn run(&mut self, event: Event<TerraformRun>) {
        self.runs.handle(&event);
        let of = match &event {
            Event::Apply(run) | Event::InitApply(run) | Event::Delete(run) => LayerRun::of(run),
            Event::Init | Event::InitDone => None,
        };
        self.ctx.layers.run(&mut self.runs_of_layers, &event, of);
        let has_listed = matches!(event, Event::InitDone);
        self.queue.take(event.modify(trim), wake_hash);
        if has_listed {
            event_handlers::listed(None, |run| self.queue.get(&run.name), &self.ctx);
        }
    }

    fn layer(&mut self, event: Event<TerraformLayer>) {
        self.ctx.layers.layer(&mut self.layers, &event);
        self.layer_queue.take(event.modify(layer::trim), layer::watch::wake_hash);
    }

    fn pod(&mut self, event: &Event<Pod>) {
        self.pods.handle(event, |run| self.queue.get(&run.name));
        if matches!(event, Event::InitDone) {
            self.pods.listed(self.queue.all().iter().map(|run| &**run));
        }
        if let Event::Apply(pod) | Event::Delete(pod) | Event::InitApply(pod) = event
            && let Some(run) = pod.metadata.labels.as_ref().and_then(|labels| labels.get(names::LABEL_RUN))
        {
            self.queue.soon(run, Instant::now());
        }
    }

    fn namespace(&mut self, event: &Event<PartialObjectMeta<Namespace>>) {
        for namespace in self.ctx.freezes.apply(&mut self.frozen, event) {
            self.ctx.slots.wake(&namespace);
            self.ctx.layers.wake(&namespace);
        }
    }

    fn event(&mut self, watch: Watch, event: Event<Arc<Value>>) {
        match watch {
            Watch::Namespaces => self.namespace(&read(event)),
            Watch::Runs => self.run(read(event)),
            Watch::Pods => self.pod(&read(event)),
            Watch::Nodes => node_watch::heard(&read::<Node>(event), &self.ctx),
            Watch::Repositories => self.ctx.layers.repository(&mut self.repositories, &read(event)),
            Watch::Layers => self.layer(read(event)),
        }
        while let Some(Some(run)) = self.waking.next().now_or_never() {
            self.queue.soon(&run.name, Instant::now());
        }
        while let Some(Some(layer)) = self.layers_waking.next().now_or_never() {
            self.layer_queue.soon(&layer.name, Instant::now());
        }
    }

    /// Lists the objects of these watches in one request, because processes are short-lived. Returns the listed version.
    async fn list(&mut self, watches: &'static [Watch], shared: &Shared, process: &Process) -> u64 {
        let (kinds, version) = loop {
            let sent = self.ctx.clock.sent();
            let listed = shared.request(
                process,
                || "list".into(),
                |world| {
                    let of = |watch: &Watch| world.store.list(watch.of().1, watch.of().0, "");
                    Ok((watches.iter().map(of).collect::<Vec<_>>(), world.store.version(), now()))
                },
            );
            match listed.await {
                Ok((kinds, version, at)) => {
                    self.ctx.clock.answered(sent, date(at).as_bytes());
                    break (kinds, version);
                }
                Err(_) => sleep(Duration::from_millis(700)).await,
            }
        };
        for (watch, objects) in watches.iter().zip(kinds) {
            self.event(*watch, Event::Init);
            for object in objects {
                self.event(*watch, Event::InitApply(object));
            }
            self.event(*watch, Event::InitDone);
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
                let what = format!("datastore: {method} {}", path.rsplit('/').next().unwrap_or_default());
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
                        let attempt = parts.get(7).and_then(|number| number.parse().ok()).unwrap_or(0);
                        let missing = || Refusal::not_found("object");
                        let found = world.data.results.get(&(uid, attempt)).ok_or_else(missing)?;
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
    sleep(Duration::from_secs(gc::objects::SETTLED.unsigned_abs().as_secs() + 120)).await;
    let process = Process::new("sweeper", user());
    let _ = gc::objects::once(Some(NS), &context(shared, &process)).await;
}

fn user() -> User {
    User::with("controller", &[names::VERB_CONTROL])
}

fn context(shared: &Shared, process: &Process) -> Arc<Context> {
    let (has_store, slots, seed) = {
        let world = shared.lock();
        (world.schedule.scene.datastore, world.schedule.scene.slots, world.schedule.seed)
    };
    // Each process is on its own machine.
    let clock = clock(seed, &format!("{} {}", process.name, millis()));
    let server = Server { shared: shared.clone(), process: process.clone() };
    let client = Client::new(Timed::new(server, clock.clone()), "default");
    let settings = Settings {
        datastore_url: has_store.then(|| "https://datastore".into()),
        max_concurrent_runs: (slots > 0).then_some(slots.into()),
        ..Settings::default()
    };
    let datastore = has_store.then(|| datastore(shared, process));
    Arc::new(Context::new(Cluster::new(client, settings, clock), datastore))
}

async fn live(shared: Shared, process: Process, index: u8) {
    let ctx = context(&shared, &process);
    shared.act(|world| {
        let guard = Guard::new(ctx.policies.clone(), &world.store.policies());
        world.guards.insert(index, guard);
    });
    let of_layers = Arc::new(layer::Context::new(ctx.cluster.clone(), ctx.layers.clone(), ctx.events.clone()));
    let (_stop, stopped) = watch::channel(false);
    let revoke = Revoke { runs: ctx.clone(), layers: of_layers.clone() }.run(Arc::new(Readiness::awaiting(1)), stopped);
    let (queue, layer_queue) = (Arc::<Queue<TerraformRun>>::default(), Arc::<Queue<TerraformLayer>>::default());
    let (wake, waking) = unbounded();
    let (to_layers, layers_waking) = unbounded();
    ctx.layers.wakes(None, to_layers);
    let informer = Informer {
        runs: event_handlers::Runs::new(None, &wake, &ctx),
        pods: event_handlers::Pods::new(&wake, &ctx),
        waking,
        frozen: ctx.freezes.feed(),
        layers: ctx.layers.feed(),
        repositories: ctx.layers.feed(),
        runs_of_layers: ctx.layers.feed(),
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
        ctx.layers.ready().await;
        let look = move |seen: Arc<TerraformLayer>| layer::reconcile(seen, of_layers.clone()).boxed();
        layer_queue.work(&process, look).await;
    };
    tokio::join!(inform(&shared, &process, index, informer), queue.work(&process, look), layers, revoke);
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
            (world.next_listing(index), world.again.remove(&index).unwrap_or(0))
        };
        seen = seen.saturating_sub(again);
        let due = lost.map_or(0, |(_, until)| until.saturating_sub(millis()));
        if let Some((watch, _)) = lost.filter(|_| due == 0) {
            shared.lock().deaf.remove(&(index, watch));
            let just = Watch::ALL.chunks(1).find(|just| just[0] == watch).unwrap_or_default();
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
            let watch = Watch::ALL.into_iter().find(|watch| watch.of().1 == change.key.resource);
            let Some(watch) = watch.filter(|watch| !deaf.contains_key(&(index, *watch))) else { continue };
            if known.get(&watch).is_none_or(|known| change.version > *known) {
                informer.event(watch, if change.deleted { Event::Delete(change.object) } else { Event::Apply(change.object) });
            }
        }
    }
}
