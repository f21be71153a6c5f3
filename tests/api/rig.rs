//! Our controller's and agent's code on a real API server, one reconcile and one process at a time. The node and the tool are simulated.

mod agent;

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use controller::{
    cluster::{Cluster, node_watch},
    policies,
    revoke::Revoke,
    run::{Context, Enforcement, PodView, cached_run::trim, reconcile},
    settings::Settings as ControllerSettings,
    watches::Watches,
};
use crds::{
    Attempt, TerraformRun, TerraformRunStatus as Status, clock::ServerClock, conditions, names,
    pod_env, termination::TerminationMessage,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::{Node, Pod},
};
use kube::{Api, ResourceExt, api::ListParams, runtime::watcher::Event};
use runner_agent::{driver::Driver, ports::SystemClock, settings::Settings};
use serde_json::{Value, json};
use serving::health::Readiness;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use watching::{Feed, Index as _, name_of};

pub(crate) use agent::{Played, Process};

use harness::{cluster::objects, wait};

use crate::world::{Agent, PATIENCE, World, sum};

/// The name of the run of each rig.
pub(crate) const RUN: &str = "run";

/// A namespace, and a controller that reconciles on request.
pub(crate) struct Rig {
    pub(crate) world: World,
    pub(crate) namespace: String,
    pub(crate) context: Arc<Context>,
    /// Of nodes.
    feed: Mutex<Feed>,
    /// Seconds by which the clock of its controller is ahead.
    ahead: Arc<AtomicI64>,
    /// Background tasks of its controller. They end with the rig.
    tasks: JoinSet<()>,
}

impl Rig {
    pub(crate) async fn new(world: World) -> Result<Self> {
        let namespace = world.namespace().await?;
        Self::of(world, namespace, ControllerSettings::default()).await
    }

    /// Like [`Self::new`], with a controller that watches the admission policies and revokes what was set without them.
    pub(crate) async fn guarded(world: World) -> Result<Self> {
        let mut rig = Self::new(world).await?;
        let ctx = rig.context.clone();
        let revoke = Revoke {
            runs: ctx.clone(),
            layers: Watches::new(ctx.clone()).layers,
        };
        rig.tasks.spawn(async move {
            let (_stop, stopped) = watch::channel(false);
            let watching =
                policies::watch::run(ctx.cluster.clone(), ctx.policies.clone(), stopped.clone());
            tokio::join!(
                watching,
                revoke.run(Arc::new(Readiness::awaiting(1)), stopped)
            );
        });
        Ok(rig)
    }

    /// Another namespace of the same controller. The first rig must outlive it.
    pub(crate) async fn beside(&self) -> Result<Self> {
        let (world, context) = (self.world.clone(), self.context.clone());
        let namespace = world.namespace().await?;
        Ok(Self {
            world,
            namespace,
            context,
            feed: Mutex::default(),
            ahead: self.ahead.clone(),
            tasks: JoinSet::new(),
        })
    }

    /// Waits until the policies are proven here, and earlier approvals are revoked.
    pub(crate) async fn enforced(&self) -> Result<()> {
        let prove = async || match self
            .context
            .policies
            .prove(&self.namespace, &self.context.cluster)
            .await
        {
            Ok(Enforcement::Enforced) => Ok(Ok(())),
            other => Ok(Err(format!("{other:?}"))),
        };
        wait::until("the policies are proven", PATIENCE, prove).await
    }

    /// Two namespaces, and controllers whose settings tell that they share states.
    pub(crate) async fn pair(world: World) -> Result<(Self, Self)> {
        let (one, two) = (world.namespace().await?, world.namespace().await?);
        let shared_states = json!([[one, two]])
            .to_string()
            .parse()
            .map_err(anyhow::Error::msg)?;
        let settings = ControllerSettings {
            shared_states,
            ..ControllerSettings::default()
        };
        Ok((
            Self::of(world.clone(), one, settings.clone()).await?,
            Self::of(world, two, settings).await?,
        ))
    }

    /// A new controller process with empty caches.
    pub(crate) async fn again(&self) -> Result<Self> {
        Self::of(
            self.world.clone(),
            self.namespace.clone(),
            self.context.cluster.settings.clone(),
        )
        .await
    }

    /// A controller of one namespace, with the rights that the chart grants in that case.
    pub(crate) async fn narrow(world: World) -> Result<Self> {
        let namespace = world.namespace().await?;
        let settings = ControllerSettings {
            watch_namespaces: vec![namespace.clone()],
            ..ControllerSettings::default()
        };
        let release = format!("narrow-{namespace}");
        world.install(
            &release,
            "templates/controller-rbac.yaml",
            &format!("watchNamespaces={{{namespace}}}"),
        )?;
        Self::by(world, namespace, settings, &format!("{release}-controller")).await
    }

    async fn of(world: World, namespace: String, settings: ControllerSettings) -> Result<Self> {
        Self::by(world, namespace, settings, "pawl-controller").await
    }

    async fn by(
        world: World,
        namespace: String,
        settings: ControllerSettings,
        account: &str,
    ) -> Result<Self> {
        let client = world.process(account).await?;
        let ahead = Arc::<AtomicI64>::default();
        let by = ahead.clone();
        let clock = ServerClock::beside(move || {
            let ahead = SignedDuration::from_secs(by.load(Ordering::Relaxed));
            (
                Timestamp::now() + ahead,
                Instant::now() + ahead.unsigned_abs(),
            )
        });
        let context = Arc::new(Context::new(Cluster::new(client, settings, clock), None));
        listed(&world, &context.policies).await?;
        Ok(Self {
            world,
            namespace,
            context,
            feed: Mutex::default(),
            ahead,
            tasks: JoinSet::new(),
        })
    }

    /// Advances the controller's clock.
    pub(crate) fn later(&self, seconds: i64) {
        self.ahead.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Waits until the newly installed admission policies are enforced, before any test.
    pub(crate) async fn prove_the_gate(world: World) -> Result<()> {
        Self::guarded(world).await?.enforced().await
    }

    /// Creates the run.
    pub(crate) async fn create(&self, spec: &Value) -> Result<TerraformRun> {
        self.world.create(&self.namespace, RUN, spec).await
    }

    pub(crate) async fn status(&self) -> Result<Status> {
        Ok(self.get().await?.status.unwrap_or_default())
    }

    /// The newest attempt.
    pub(crate) async fn attempt(&self) -> Result<Attempt> {
        self.status().await?.attempt.context("no attempt")
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.world.admin.clone(), &self.namespace)
    }

    pub(crate) async fn get(&self) -> Result<TerraformRun> {
        Ok(self.world.runs(&self.namespace).get(RUN).await?)
    }

    /// Calls that the API server refused for lack of a right.
    pub(crate) fn forbidden(&self) -> Vec<String> {
        let metrics = self.context.cluster.metrics.exposition().1;
        metrics
            .lines()
            .filter(|line| line.contains("forbidden") && !line.ends_with(" 0"))
            .map(str::to_owned)
            .collect()
    }

    /// Reconciles once, on the object as a cache would have it.
    pub(crate) async fn step(&self) -> Result<()> {
        self.step_of(RUN).await
    }

    /// The same for a run of that name.
    pub(crate) async fn step_of(&self, name: &str) -> Result<()> {
        let mut run = self.world.runs(&self.namespace).get(name).await?;
        for pod in self.pods().list(&ListParams::default()).await? {
            self.context
                .cluster
                .pods
                .put(&Arc::new(name_of(&pod)), PodView::of(&pod));
        }
        let all = Api::<Node>::all(self.world.admin.clone())
            .list(&ListParams::default())
            .await?
            .items;
        let own = all
            .into_iter()
            .filter(|node| node.name_any().starts_with(&format!("{}-", self.namespace)));
        for event in [Event::Init]
            .into_iter()
            .chain(own.map(Event::InitApply))
            .chain([Event::InitDone])
        {
            let mut feed = self.feed.lock().unwrap_or_else(PoisonError::into_inner);
            feed.event(&event, &node_watch::Watched(self.context.cluster.clone()));
        }
        trim(&mut run);
        // The run's status shows errors.
        let _ = reconcile(Arc::new(run), self.context.clone()).await;
        Ok(())
    }

    /// Applies a listing of the namespace to the controller's queue of runs for states.
    pub(crate) async fn watched(&self) -> Result<()> {
        for run in self
            .world
            .runs(&self.namespace)
            .list(&ListParams::default())
            .await?
        {
            self.context.queue.apply(&Arc::new(name_of(&run)), &run);
        }
        Ok(())
    }

    /// Reconciles until `done` holds for the run.
    pub(crate) async fn look(&self, what: &str, done: impl Fn(&Status) -> bool) -> Result<Status> {
        let look = async || {
            let status = self.status().await?;
            if done(&status) {
                return Ok(Ok(status));
            }
            self.step().await?;
            Ok(Err(format!("{status:?}")))
        };
        wait::until(format!("the run is {what}"), PATIENCE, look).await
    }

    /// Waits without reconciling.
    pub(crate) async fn until(&self, what: &str, done: impl Fn(&Status) -> bool) -> Result<Status> {
        let done = |run: &TerraformRun| run.status.as_ref().is_some_and(&done);
        let run =
            wait::object(&self.world.runs(&self.namespace), RUN, what, PATIENCE, done).await?;
        Ok(run.status.unwrap_or_default())
    }

    /// Reconciles several times, and fails if the run changes.
    pub(crate) async fn rests(&self, what: &str) -> Result<()> {
        let before = self.get().await?.resource_version();
        for _ in 0..3 {
            self.step().await?;
        }
        ensure!(
            self.get().await?.resource_version() == before,
            "{what}: the controller wrote {:?}",
            self.status().await?
        );
        Ok(())
    }

    pub(crate) async fn annotate(&self, annotations: &Value) -> Result<()> {
        let runs = self.world.runs(&self.namespace);
        objects::merge(
            &runs,
            RUN,
            &json!({"metadata": {"annotations": annotations}}),
        )
        .await?;
        Ok(())
    }

    /// Approves the plan `a`, as a person.
    pub(crate) async fn approve(&self) -> Result<()> {
        self.annotate(&json!({names::APPROVE: sum('a'), names::APPROVED_BY: "admin"}))
            .await
    }

    /// The token of the pod that the controller created for the open attempt.
    pub(crate) async fn token(&self) -> Result<Agent> {
        let attempt = self.attempt().await?;
        let uid = self
            .pods()
            .get(&attempt.pod_name)
            .await?
            .uid()
            .context("a pod without UID")?;
        let bound = json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": attempt.pod_name, "uid": uid},
            "audiences": []});
        let client = self
            .world
            .token(&self.namespace, &attempt.pod_name, &bound, None)
            .await?;
        Ok(Agent {
            client,
            uid,
            namespace: self.namespace.clone(),
            run: RUN.into(),
        })
    }

    /// Writes a node's status for the pod of the newest attempt after its process ended.
    pub(crate) async fn pod_ended(&self, message: &TerminationMessage) -> Result<()> {
        let text = String::from_utf8(message.to_bytes())?;
        let ended = json!({"exitCode": 0, "reason": "Completed", "message": text});
        terminated(
            &self.pods(),
            &self.attempt().await?.pod_name,
            "Succeeded",
            ended,
        )
        .await
    }

    /// Starts our agent in the pod of the open attempt.
    pub(crate) async fn start(&self, token: Agent, work: Played) -> Result<Process> {
        let (run, attempt) = (self.get().await?, self.attempt().await?);
        let log = tempfile::NamedTempFile::new()?;
        let settings = Arc::new(Settings {
            namespace: self.namespace.clone(),
            run: RUN.into(),
            run_uid: run.uid().context("no UID")?,
            attempt: attempt.number,
            pod_name: attempt.pod_name,
            pod_uid: token.uid.clone(),
            node_name: Some("n".into()),
            grace: Duration::from_secs(30),
            termination_log: log.path().to_path_buf(),
            ..Settings::below("/nowhere".as_ref())
        });
        let gets = Arc::new(AtomicU32::new(0));
        let server = agent::Server {
            runs: Api::namespaced(token.client, &self.namespace),
            gets: gets.clone(),
        };
        let driver = Driver::new(Arc::new(server), Arc::new(work), SystemClock, settings);
        let (stop, stops) = mpsc::unbounded_channel();
        Ok(Process {
            task: tokio::spawn(driver.run(stops)),
            gets,
            log,
            _stop: stop,
        })
    }
}

/// Applies the first listing of a controller's policy watches.
async fn listed(world: &World, prober: &Arc<policies::Prober>) -> Result<()> {
    fn events<K: Clone>(objects: kube::core::ObjectList<K>) -> impl Iterator<Item = Event<K>> {
        [Event::Init]
            .into_iter()
            .chain(objects.items.into_iter().map(Event::InitApply))
            .chain([Event::InitDone])
    }
    let (all, watched) = (
        ListParams::default(),
        policies::watch::Watched::new(prober.clone()),
    );
    let (mut of_policies, mut of_bindings) = (Feed::default(), Feed::default());
    for event in events(
        Api::<ValidatingAdmissionPolicy>::all(world.admin.clone())
            .list(&all)
            .await?,
    ) {
        of_policies.event(&event, &watched);
    }
    for event in events(
        Api::<ValidatingAdmissionPolicyBinding>::all(world.admin.clone())
            .list(&all)
            .await?,
    ) {
        of_bindings.event(&event, &watched);
    }
    Ok(())
}

/// Whether a status has a condition.
pub(crate) fn has(status: &Status, type_: &str, is: &str, reason: &str) -> bool {
    status
        .conditions
        .iter()
        .any(|c| c.type_ == type_ && c.status == is && c.reason == reason)
}

/// Whether a run is stalled for a reason.
pub(crate) fn stalls(status: &Status, reason: &str) -> bool {
    has(status, conditions::STALLED, "True", reason)
}

/// Whether the newest attempt is this one, and open.
pub(crate) fn is_open(number: u32) -> impl Fn(&Status) -> bool {
    move |status| {
        status
            .attempt
            .as_ref()
            .is_some_and(|attempt| attempt.open && attempt.number == number)
    }
}

pub(crate) fn is_closed(status: &Status) -> bool {
    status.attempt.as_ref().is_some_and(|attempt| !attempt.open)
}

/// A kubelet's status of a pod whose container has terminated.
pub(crate) async fn terminated(pods: &Api<Pod>, name: &str, phase: &str, how: Value) -> Result<()> {
    let state = json!({"terminated": how});
    let container = json!({"name": pod_env::CONTAINER, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    objects::merge_status(
        pods,
        name,
        &json!({"phase": phase, "containerStatuses": [container]}),
    )
    .await?;
    Ok(())
}
