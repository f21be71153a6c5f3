//! A controller's process: the real reconciler on caches that lag, with the queue of the real runtime.

use std::{sync::Arc, time::Duration};

use ::controller::{
    cluster::{Cluster, clock::Timed, index::Feed, node_watch},
    gc::{
        self,
        pods::{is_left, left_by, let_go},
    },
    layer::{self, OfLayer},
    run::{
        Context, PodView, on_error, reconcile,
        watch::{trim, wake_hash},
    },
    settings::Settings,
};
use crds::{TerraformLayer, TerraformRepository, TerraformRun, names};
use datastore_client::{RequestError, controller::Datastore};
use futures::{
    FutureExt, StreamExt,
    channel::mpsc::{UnboundedReceiver, unbounded},
};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::{
    Client, ResourceExt,
    core::PartialObjectMeta,
    runtime::{reflector::ObjectRef, watcher::Event},
};
use serde::Deserialize;
use tests::played::{
    Refusal, User,
    store::{Change, LAYERS, PODS, RUNS},
};
use tokio::time::{Instant, sleep};

use crate::{
    http::Server,
    invariants,
    layers::REPOSITORIES,
    queue::Queue,
    world::{NAMESPACES, NODES, NS, Process, Shared, Trouble, clock, date, millis, now},
};

/// Keeps one controller alive: a new process after each death.
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

struct Informer {
    ctx: Arc<Context>,
    waking: UnboundedReceiver<ObjectRef<TerraformRun>>,
    pods: Feed,
    plans: Feed,
    line: Feed,
    slots: Feed,
    frozen: Feed,
    layers: Feed,
    repositories: Feed,
    runs_of_layers: Feed,
    layers_waking: UnboundedReceiver<ObjectRef<TerraformLayer>>,
    queue: Arc<Queue<TerraformRun>>,
    layer_queue: Arc<Queue<TerraformLayer>>,
}

impl Informer {
    fn run(&mut self, event: &Event<TerraformRun>) {
        self.ctx.queue.apply(&mut self.line, event);
        let of = match event {
            Event::Apply(run) | Event::InitApply(run) | Event::Delete(run) => OfLayer::of(run),
            Event::Init | Event::InitDone => None,
        };
        self.ctx.layers.run(&mut self.runs_of_layers, event, of);
        self.ctx.slots.apply(&mut self.slots, event);
        let older = self.ctx.newer_plans.apply(&mut self.plans, event);
        if let Event::Apply(run) | Event::Delete(run) = event
            && let Some(pod) = left_by(run, matches!(event, Event::Delete(_)), &self.ctx)
        {
            let (name, uid) = (run.metadata.name.clone().unwrap_or_default(), run.metadata.uid.clone().unwrap_or_default());
            let_go(NS.into(), name, uid, pod, self.ctx.cluster.clone());
        }
        for run in older {
            self.queue.soon(&run.name, Instant::now());
        }
        match event {
            Event::Apply(run) | Event::InitApply(run) => {
                let mut run = run.clone();
                trim(&mut run);
                self.queue.put(&run.name_any(), wake_hash(&run), run);
            }
            Event::Delete(run) => self.queue.remove(&run.name_any()),
            Event::Init | Event::InitDone => {}
        }
        self.wake();
    }

    /// Runs whose turn has come nearer, or whose node has changed; layers of which something else has.
    fn wake(&mut self) {
        while let Some(Some(run)) = self.waking.next().now_or_never() {
            self.queue.soon(&run.name, Instant::now());
        }
        while let Some(Some(layer)) = self.layers_waking.next().now_or_never() {
            self.layer_queue.soon(&layer.name, Instant::now());
        }
    }

    fn layer(&mut self, event: Event<TerraformLayer>) {
        self.ctx.layers.layer(&mut self.layers, &event);
        match event {
            Event::Apply(mut layer) | Event::InitApply(mut layer) => {
                layer::trim(&mut layer);
                self.layer_queue.put(&layer.name_any(), layer::watch::wake_hash(&layer), layer);
            }
            Event::Delete(layer) => self.layer_queue.remove(&layer.name_any()),
            Event::Init | Event::InitDone => {}
        }
        self.wake();
    }

    fn repository(&mut self, event: &Event<TerraformRepository>) {
        self.ctx.layers.repository(&mut self.repositories, event);
        self.wake();
    }

    fn pod(&mut self, event: &Event<Pod>) {
        self.ctx.pods.apply(&mut self.pods, event);
        if let Event::Apply(pod) | Event::Delete(pod) | Event::InitApply(pod) = event
            && let Some(run) = pod.metadata.labels.as_ref().and_then(|labels| labels.get(names::LABEL_RUN))
        {
            self.queue.soon(run, Instant::now());
            let uid =
                pod.metadata.labels.as_ref().and_then(|labels| labels.get(names::LABEL_RUN_UID)).cloned().unwrap_or_default();
            let known = self.queue.get(run);
            let gone = matches!(event, Event::Delete(_));
            if let (false, Some(view)) = (gone, PodView::of(pod))
                && is_left(&view, &uid, known.as_deref())
            {
                let_go(NS.into(), run.clone(), uid, view, self.ctx.cluster.clone());
            }
        }
    }

    fn node(&mut self, event: &Event<Node>) {
        node_watch::heard(event, &self.ctx);
        self.wake();
    }

    fn namespace(&mut self, event: &Event<PartialObjectMeta<Namespace>>) {
        for namespace in self.ctx.freezes.apply(&mut self.frozen, event) {
            self.ctx.slots.wake(&namespace);
            self.layer_queue.all_soon();
        }
        self.wake();
    }

    fn change(&mut self, change: &Change) {
        if change.key.resource == RUNS {
            let run = TerraformRun::deserialize(&*change.object).unwrap();
            self.run(&if change.deleted { Event::Delete(run) } else { Event::Apply(run) });
        } else if change.key.resource == PODS {
            let pod = Pod::deserialize(&*change.object).unwrap();
            self.pod(&if change.deleted { Event::Delete(pod) } else { Event::Apply(pod) });
        } else if change.key.resource == LAYERS {
            let layer = TerraformLayer::deserialize(&*change.object).unwrap();
            self.layer(if change.deleted { Event::Delete(layer) } else { Event::Apply(layer) });
        } else if change.key.resource == REPOSITORIES {
            self.repository(&Event::Apply(TerraformRepository::deserialize(&*change.object).unwrap()));
        } else if change.key.resource == NODES {
            self.node(&Event::Apply(Node::deserialize(&*change.object).unwrap()));
        } else if change.key.resource == NAMESPACES {
            let namespace = PartialObjectMeta::deserialize(&*change.object).unwrap();
            self.namespace(&if change.deleted { Event::Delete(namespace) } else { Event::Apply(namespace) });
        }
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
                            invariants::unlock(world, |lock| lock.uid == uid);
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

/// A look for rights that nobody took back, as a controller that begins has it.
pub(crate) async fn sweep(shared: &Shared) {
    // What lands late has landed by then, and has settled.
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
    // Each process is on a machine of its own.
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
    let (queue, layer_queue) = (Arc::<Queue<TerraformRun>>::default(), Arc::<Queue<TerraformLayer>>::default());
    let (pods, plans) = (ctx.pods.feed(), ctx.newer_plans.feed());
    let (wake, waking) = unbounded();
    ctx.nodes.wakes(None, wake.clone());
    let (line, slots, frozen) = (ctx.queue.feed(None, wake.clone()), ctx.slots.feed(None, wake), ctx.freezes.feed());
    let (layers, repositories, runs_of_layers) = (ctx.layers.feed(), ctx.layers.feed(), ctx.layers.feed());
    let (wake, layers_waking) = unbounded();
    ctx.layers.wakes(None, wake);
    let (to_runs, to_layers, informed) = (queue.clone(), layer_queue.clone(), ctx.clone());
    let informer = Informer {
        ctx: informed,
        waking,
        pods,
        plans,
        line,
        slots,
        frozen,
        layers,
        repositories,
        runs_of_layers,
        layers_waking,
        queue: to_runs,
        layer_queue: to_layers,
    };
    let look = {
        let ctx = ctx.clone();
        move |run: Arc<TerraformRun>| {
            let ctx = ctx.clone();
            async move { reconcile(run.clone(), ctx.clone()).await.unwrap_or_else(|error| on_error(run, &error, ctx)) }.boxed()
        }
    };
    let layers = async {
        ctx.layers.ready().await;
        let ctx = Arc::new(layer::Context::new(ctx.cluster.clone(), ctx.layers.clone(), ctx.events.clone()));
        let look = move |seen: Arc<TerraformLayer>| {
            let ctx = ctx.clone();
            async move {
                layer::reconcile(seen.clone(), ctx.clone()).await.unwrap_or_else(|error| layer::on_error(seen, &error, ctx))
            }
            .boxed()
        };
        layer_queue.work(&process, look).await;
    };
    tokio::join!(inform(&shared, &process, index, informer), queue.work(&process, look), layers);
}

/// Fills the caches: a list, and then every change in its order, each some time after it was made.
async fn inform(shared: &Shared, process: &Process, index: u8, mut informer: Informer) {
    let listed = loop {
        let sent = informer.ctx.clock.sent();
        let listed = shared.request(
            process,
            || "list".into(),
            |world| {
                let of = |resource| world.store.list(resource, NS, "");
                let of_cluster = |resource| world.store.list(resource, "", "");
                let kinds = (of(RUNS), of(PODS), of_cluster(NODES), of_cluster(NAMESPACES), of(LAYERS), of(REPOSITORIES));
                Ok((kinds, world.store.version(), now()))
            },
        );
        match listed.await {
            Ok((kinds, version, at)) => {
                informer.ctx.clock.answered(sent, date(at).as_bytes());
                break (kinds, version);
            }
            Err(_) => sleep(Duration::from_millis(700)).await,
        }
    };
    let ((runs, pods, nodes, namespaces, layers, repositories), mut seen) = listed;
    informer.namespace(&Event::Init);
    for namespace in namespaces {
        informer.namespace(&Event::InitApply(PartialObjectMeta::deserialize(&*namespace).unwrap()));
    }
    informer.namespace(&Event::InitDone);
    informer.run(&Event::Init);
    for run in runs {
        informer.run(&Event::InitApply(TerraformRun::deserialize(&*run).unwrap()));
    }
    informer.run(&Event::InitDone);
    informer.pod(&Event::Init);
    for pod in pods {
        informer.pod(&Event::InitApply(Pod::deserialize(&*pod).unwrap()));
    }
    informer.pod(&Event::InitDone);
    informer.node(&Event::Init);
    for node in nodes {
        informer.node(&Event::InitApply(Node::deserialize(&*node).unwrap()));
    }
    informer.node(&Event::InitDone);
    informer.repository(&Event::Init);
    for repository in repositories {
        informer.repository(&Event::InitApply(TerraformRepository::deserialize(&*repository).unwrap()));
    }
    informer.repository(&Event::InitDone);
    informer.layer(Event::Init);
    for layer in layers {
        informer.layer(Event::InitApply(TerraformLayer::deserialize(&*layer).unwrap()));
    }
    informer.layer(Event::InitDone);
    let changes = shared.changes();
    loop {
        changes.after(seen).await;
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
        let fresh = shared.lock().store.since(seen).to_vec();
        for change in fresh {
            seen = change.version;
            informer.change(&change);
        }
    }
}
