//! A controller's process: the real reconciler on caches that lag, with the queue of the real runtime.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use ::controller::{
    cluster::{Cluster, clock::Timed, index::Feed, node_watch},
    gc::{
        self,
        pods::{is_left, left_by, let_go},
    },
    run::{
        Context, PodView, on_error, reconcile,
        watch::{trim, wake_hash},
    },
    settings::Settings,
};
use crds::{TerraformRun, names};
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
use serde::Deserialize;
use tests::played::{
    Refusal, User,
    store::{Change, PODS, RUNS},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    http::Server,
    invariants,
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

#[derive(Default)]
struct Cache {
    runs: BTreeMap<String, Arc<TerraformRun>>,
    seen: BTreeMap<String, u64>,
    due: BTreeMap<String, Instant>,
}

impl Cache {
    fn soon(&mut self, name: &str, at: Instant) {
        let due = self.due.entry(name.to_owned()).or_insert(at);
        *due = (*due).min(at);
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
    cache: Arc<Mutex<Cache>>,
    woken: Arc<Notify>,
}

impl Informer {
    fn run(&mut self, event: &Event<TerraformRun>) {
        self.ctx.queue.apply(&mut self.line, event);
        self.ctx.slots.apply(&mut self.slots, event);
        let older = self.ctx.newer_plans.apply(&mut self.plans, event);
        if let Event::Apply(run) | Event::Delete(run) = event
            && let Some(pod) = left_by(run, matches!(event, Event::Delete(_)), &self.ctx)
        {
            let (name, uid) = (run.metadata.name.clone().unwrap_or_default(), run.metadata.uid.clone().unwrap_or_default());
            let_go(NS.into(), name, uid, pod, self.ctx.cluster.clone());
        }
        let mut cache = self.cache.lock().unwrap();
        for run in older {
            cache.soon(&run.name, Instant::now());
        }
        match event {
            Event::Apply(run) | Event::InitApply(run) => {
                let mut run = run.clone();
                trim(&mut run);
                let (name, hash) = (run.metadata.name.clone().unwrap_or_default(), wake_hash(&run));
                if cache.seen.insert(name.clone(), hash) != Some(hash) {
                    cache.soon(&name, Instant::now());
                }
                cache.runs.insert(name, Arc::new(run));
            }
            Event::Delete(run) => {
                let name = run.metadata.name.clone().unwrap_or_default();
                cache.runs.remove(&name);
                cache.seen.remove(&name);
            }
            Event::Init | Event::InitDone => {}
        }
        drop(cache);
        self.wake();
    }

    /// Runs whose turn has come nearer, or whose node has changed.
    fn wake(&mut self) {
        while let Some(Some(run)) = self.waking.next().now_or_never() {
            self.cache.lock().unwrap().soon(&run.name, Instant::now());
        }
        self.woken.notify_one();
    }

    fn pod(&mut self, event: &Event<Pod>) {
        self.ctx.pods.apply(&mut self.pods, event);
        if let Event::Apply(pod) | Event::Delete(pod) | Event::InitApply(pod) = event
            && let Some(run) = pod.metadata.labels.as_ref().and_then(|labels| labels.get(names::LABEL_RUN))
        {
            let mut cache = self.cache.lock().unwrap();
            cache.soon(run, Instant::now());
            let uid =
                pod.metadata.labels.as_ref().and_then(|labels| labels.get(names::LABEL_RUN_UID)).cloned().unwrap_or_default();
            let known = cache.runs.get(run).cloned();
            drop(cache);
            self.woken.notify_one();
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
    let (cache, woken) = (Arc::new(Mutex::new(Cache::default())), Arc::new(Notify::new()));
    let (pods, plans) = (ctx.pods.feed(), ctx.newer_plans.feed());
    let (wake, waking) = unbounded();
    ctx.nodes.wakes(None, wake.clone());
    let (line, slots, frozen) = (ctx.queue.feed(None, wake.clone()), ctx.slots.feed(None, wake), ctx.freezes.feed());
    let (waking, cache_of, woken_by) = (waking, cache.clone(), woken.clone());
    let informer = Informer { waking, ctx: ctx.clone(), pods, plans, line, slots, frozen, cache: cache_of, woken: woken_by };
    tokio::join!(inform(&shared, &process, index, informer), work(&process, &ctx, &cache, &woken));
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
                Ok((of(RUNS), of(PODS), of_cluster(NODES), of_cluster(NAMESPACES), world.store.version(), now()))
            },
        );
        match listed.await {
            Ok((runs, pods, nodes, namespaces, version, at)) => {
                informer.ctx.clock.answered(sent, date(at).as_bytes());
                break (runs, pods, nodes, namespaces, version);
            }
            Err(_) => sleep(Duration::from_millis(700)).await,
        }
    };
    let (runs, pods, nodes, namespaces, mut seen) = listed;
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

/// Looks at runs that are due, one at a time, as the runtime does for one run.
async fn work(process: &Process, ctx: &Arc<Context>, cache: &Mutex<Cache>, woken: &Notify) {
    let mut looks: HashMap<String, u32> = HashMap::new();
    loop {
        process.live().await;
        let next = {
            let mut cache = cache.lock().unwrap();
            let first = cache.due.iter().min_by_key(|(_, at)| **at).map(|(name, at)| (name.clone(), *at));
            match first {
                Some((name, at)) if at <= Instant::now() => {
                    cache.due.remove(&name);
                    Ok(cache.runs.get(&name).cloned().map(|run| (name, run)))
                }
                Some((_, at)) => Err(Some(at)),
                None => Err(None),
            }
        };
        match next {
            Ok(None) => {}
            Ok(Some((name, run))) => {
                *looks.entry(name.clone()).or_default() += 1;
                let action = match reconcile(run.clone(), ctx.clone()).await {
                    Ok(action) => action,
                    Err(error) => on_error(run, &error, ctx.clone()),
                };
                if let Some(after) = requeue(&action) {
                    cache.lock().unwrap().soon(&name, Instant::now() + after);
                }
            }
            Err(at) => tokio::select! {
                biased;
                () = woken.notified() => {}
                () = sleep_until(at.unwrap_or_else(Instant::now)), if at.is_some() => {}
            },
        }
    }
}

/// When an action wants another look. Its field is private, its word for it is not.
fn requeue(action: &kube::runtime::controller::Action) -> Option<Duration> {
    let known = kube::runtime::controller::Action::await_change();
    (*action != known).then(|| parse(&format!("{action:?}"))).flatten()
}

/// `Action { requeue_after: Some(1.5s) }`.
fn parse(text: &str) -> Option<Duration> {
    let inner = text.split("Some(").nth(1)?.split(')').next()?;
    let span = [("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9), ("s", 1.0)]
        .into_iter()
        .find_map(|(unit, factor)| Some(inner.strip_suffix(unit)?.parse::<f64>().ok()? * factor));
    span.map(Duration::from_secs_f64)
}
