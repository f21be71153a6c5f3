//! The reconciler of layers on a real API server. The test writes the status of `controller sources` and of runs.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use controller::{cluster::cached::Store, run, settings::Settings, watches::Watches};
use crds::{
    LayerState, TerraformLayer, TerraformLayerStatus as Status, TerraformRepository, TerraformRun,
    clock::ServerClock, names,
};
use harness::{cluster::objects, wait};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    runtime::watcher,
};
use serde_json::{Value, json};
use serving::health::Readiness;
use tokio::{sync::watch, task::JoinHandle};

use crate::world::{PATIENCE, World, plan, sum, tests};

mod describe;
use describe::describe_begins_with_reason_and_step;

tests! {
    Bare: commit_is_planned_superseded_and_settles,
    Bare: two_controllers_and_a_restart_create_one_run,
    Bare: younger_of_two_layers_of_a_state_is_refused,
    Bare: deleted_layer_destroys_before_it_goes,
    Bare: layers_of_a_deleted_namespace_are_released,
    Bare: describe_begins_with_reason_and_step,
}

/// A namespace with a repository.
struct Scene {
    world: World,
    namespace: String,
    layers: Api<TerraformLayer>,
    runs: Api<TerraformRun>,
}

/// A controller of layers.
pub(crate) struct Controller {
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Controller {
    /// Follows one namespace, with the rights that the chart gives.
    pub(crate) async fn starts(world: &World, namespace: &str) -> Result<Self> {
        let cluster = controller::cluster::Cluster::new(
            world.process("pawl-controller").await?,
            Settings::default(),
            ServerClock::default(),
        );
        let of_runs = Arc::new(run::Context::new(cluster, None));
        let (watches, readiness) = (
            Watches::new(of_runs.clone()),
            Arc::new(Readiness::awaiting(2)),
        );
        let (stop, stopped) = watch::channel(false);
        let scope = Some(namespace.to_owned());
        // Nothing reconciles the runs.
        let heard = tokio::spawn(watching::follow(
            "runs",
            of_runs.cluster.scoped::<TerraformRun>(scope.as_deref()),
            watcher::Config::default(),
            watches.of_runs(&Store::new(futures::channel::mpsc::unbounded().0)),
        ));
        let repositories = watches.repositories(scope.as_deref(), &readiness, stopped.clone());
        let namespaces = watches.namespaces(&readiness, stopped.clone());
        Ok(Self {
            stop,
            tasks: vec![
                heard,
                tokio::spawn(repositories),
                tokio::spawn(namespaces),
                tokio::spawn(watches.layer(scope, stopped)),
            ],
        })
    }

    pub(crate) async fn stops(self) {
        self.stop.send_replace(true);
        for task in self.tasks {
            task.abort();
            let _ = task.await;
        }
    }
}

impl Scene {
    async fn new(world: World) -> Result<Self> {
        let namespace = world.namespace().await?;
        let (layers, runs) = (
            Api::namespaced(world.admin.clone(), &namespace),
            world.runs(&namespace),
        );
        let repositories: Api<TerraformRepository> =
            Api::namespaced(world.admin.clone(), &namespace);
        let repository = json!({"metadata": {"name": "infra"}, "spec": {"url": "https://git.example.com/infra"}});
        objects::create(&repositories, repository).await?;
        Ok(Self {
            world,
            namespace,
            layers,
            runs,
        })
    }

    async fn controller(&self) -> Result<Controller> {
        Controller::starts(&self.world, &self.namespace).await
    }

    async fn layer(&self, name: &str, spec: &Value) -> Result<()> {
        let mut whole = json!({"repository": {"name": "infra"}, "path": "live/net"});
        for (key, value) in spec.as_object().into_iter().flatten() {
            whole[key] = value.clone();
        }
        objects::create(
            &self.layers,
            json!({"metadata": {"name": name}, "spec": whole}),
        )
        .await?;
        Ok(())
    }

    /// The write of `controller sources`.
    async fn commit(&self, layer: &str, revision: char, content: char) -> Result<()> {
        let source = json!({"of": "main\nlive/net\n-", "revision": revision.to_string().repeat(40), "content": sum(content)});
        let patch = json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformLayer", "status": {"source": source}});
        let params = PatchParams::apply(names::SOURCES_MANAGER);
        self.layers
            .patch_status(layer, &params, &Patch::Apply(patch))
            .await?;
        Ok(())
    }

    async fn until(
        &self,
        layer: &str,
        what: &str,
        done: impl Fn(&Status) -> bool,
    ) -> Result<Status> {
        let done = |layer: &TerraformLayer| layer.status.as_ref().is_some_and(&done);
        Ok(wait::object(&self.layers, layer, what, PATIENCE, done)
            .await?
            .status
            .unwrap_or_default())
    }

    async fn is_held(&self, layer: &str) -> Result<bool> {
        let layer = self.layers.get_opt(layer).await?;
        Ok(layer.is_some_and(|layer| {
            layer
                .finalizers()
                .iter()
                .any(|f| f == names::LAYER_FINALIZER)
        }))
    }

    async fn annotate(&self, annotations: Value) -> Result<()> {
        objects::merge(
            &self.layers,
            "net",
            &json!({"metadata": {"annotations": annotations}}),
        )
        .await?;
        Ok(())
    }

    /// The value of an annotation of the layer.
    async fn annotation(&self, key: &str) -> Result<Option<String>> {
        Ok(self
            .layers
            .get("net")
            .await?
            .annotations()
            .get(key)
            .cloned())
    }

    /// Waits until the output of `kubectl describe` ends with a step: the Event follows the status write.
    async fn described(&self, step: &str) -> Result<()> {
        let describe = format!(
            "kubectl describe -n {} {}/net",
            self.namespace,
            names::KUBECTL_LAYER
        );
        let look = async || {
            let text = self.world.paste(&describe)?;
            Ok(if text.ends_with(&format!("; next step: {step}")) {
                Ok(())
            } else {
                Err(text)
            })
        };
        wait::until(format!("it ends in {step}"), PATIENCE, look).await
    }

    /// Argo CD's health of the layer.
    async fn healthy(&self, wanted: &str) -> Result<()> {
        let mut layer = serde_json::to_value(self.layers.get("net").await?)?;
        layer["kind"] = json!("TerraformLayer");
        let health = crate::health::of(&layer)?;
        ensure!(
            health == wanted,
            "it is {health} and not {wanted}: {:#}",
            layer["status"]["conditions"]
        );
        Ok(())
    }

    async fn is(&self, layer: &str, state: LayerState) -> Result<Status> {
        self.until(layer, state.as_str(), |status| status.state == Some(state))
            .await
    }

    /// Waits for a running run with that content.
    async fn open(&self, content: char) -> Result<TerraformRun> {
        let open = |run: &TerraformRun| {
            !run.status
                .as_ref()
                .is_some_and(crds::TerraformRunStatus::is_terminal)
        };
        let of = |run: &TerraformRun| run.annotations().get(names::CONTENT) == Some(&sum(content));
        let look = async || {
            let all = self.runs.list(&ListParams::default()).await?.items;
            Ok(all
                .iter()
                .find(|run| open(run) && of(run))
                .cloned()
                .ok_or_else(|| format!("{all:#?}")))
        };
        wait::until(format!("a run of {content} works"), PATIENCE, look).await
    }

    async fn count(&self) -> Result<usize> {
        Ok(self.runs.list(&ListParams::default()).await?.items.len())
    }

    async fn plays(&self, run: &str, statuses: &[Value]) -> Result<()> {
        for status in statuses {
            self.world
                .status(&self.namespace, run, status)
                .await
                .with_context(|| status.to_string())?;
        }
        Ok(())
    }

    /// Writes that a run plans.
    async fn plans(&self, run: &str) -> Result<()> {
        let attempt = json!({"number": 1, "podName": "p", "open": true, "tries": 1});
        let phases = ["Setup", "Init", "Plan"].map(|phase| json!({"phase": phase}));
        self.plays(run, &[json!({"phase": "Pending", "attempt": attempt})])
            .await?;
        self.plays(run, &phases).await
    }

    /// Writes that a run waits for an approval.
    async fn waits(&self, run: &str) -> Result<()> {
        self.plans(run).await?;
        let mut plan = plan(1, 'a');
        plan["changes"] = json!(["~ null_resource.a"]);
        self.plays(run, &[json!({"phase": "AwaitingApproval", "plan": plan})])
            .await
    }

    /// Writes that a run ended without changes.
    async fn rests(&self, run: &str) -> Result<()> {
        self.plans(run).await?;
        self.plays(run, &[json!({"phase": "Succeeded", "result": "NoChanges", "completionTime": jiff::Timestamp::now()})]).await
    }

    /// The run controller's handling of a cancelled run.
    async fn cancelled(&self, run: &str) -> Result<String> {
        let look = async || {
            Ok(self
                .runs
                .get(run)
                .await?
                .annotations()
                .get(names::CANCEL)
                .cloned())
        };
        let why = wait::until(format!("{run} is cancelled"), PATIENCE, look).await?;
        let end = json!({"phase": "Canceled", "result": "Canceled", "completionTime": jiff::Timestamp::now()});
        self.plays(run, &[end]).await?;
        Ok(why)
    }
}

async fn commit_is_planned_superseded_and_settles(world: World) -> Result<()> {
    let scene = Scene::new(world).await?;
    let controller = scene.controller().await?;
    scene.layer("net", &json!({})).await?;
    scene
        .until("net", "told that no commit is known", |_| true)
        .await?;
    scene.commit("net", '1', 'a').await?;
    let first = scene.open('a').await?;
    ensure!(
        first
            .owner_references()
            .iter()
            .any(|owner| owner.name == "net"),
        "the layer does not own the run"
    );
    scene.healthy("Progressing").await?;
    scene.waits(&first.name_any()).await?;
    let status = scene.is("net", LayerState::ApplyNeeded).await?;
    scene.healthy("Suspended").await?;
    ensure!(
        status
            .pending
            .as_ref()
            .is_some_and(|pending| pending.run == first.name_any()),
        "{status:?}"
    );
    ensure!(
        status
            .next_step
            .as_ref()
            .is_some_and(|step| step.contains(names::APPROVE)),
        "{status:?}"
    );
    // The source is not overwritten.
    ensure!(
        status
            .source
            .as_ref()
            .is_some_and(|source| source.content == sum('a')),
        "{status:?}"
    );

    scene.commit("net", '2', 'b').await?;
    let why = scene.cancelled(&first.name_any()).await?;
    ensure!(why.contains("commit 2222"), "{why}");
    let second = scene.open('b').await?;
    scene.rests(&second.name_any()).await?;
    let status = scene.is("net", LayerState::Idle).await?;
    ensure!(
        status.revision.as_deref() == Some("222222222222"),
        "{status:?}"
    );
    scene.healthy("Healthy").await?;

    scene.annotate(json!({names::PLAN: "now"})).await?;
    let third = scene.open('b').await?;
    ensure!(
        third
            .annotations()
            .get(names::TRIGGER)
            .is_some_and(|trigger| trigger == "Person"),
        "the trigger is not Person"
    );
    let status = scene
        .until("net", "answered", |status| {
            status.last_handled_plan.is_some()
        })
        .await?;
    ensure!(
        scene.annotation(names::PLAN).await? == status.last_handled_plan,
        "{status:?}"
    );
    scene.waits(&third.name_any()).await?;
    let status = scene
        .until("net", "drifted", |status| status.drift.is_some())
        .await?;
    let drift = status.drift.context("no drift")?;
    ensure!(
        (drift.run, drift.objects) == (third.name_any(), vec!["~ null_resource.a".to_owned()]),
        "other drift"
    );
    let step = status.next_step.context("no next step")?;
    scene.described(&step).await?;
    let columns = scene.world.paste(&format!(
        "kubectl get -n {} {}",
        scene.namespace,
        names::KUBECTL_LAYER
    ))?;
    let (head, row) = columns.split_once('\n').context("no row")?;
    let head: Vec<&str> = head
        .split("  ")
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .collect();
    let wanted = "NAME, STATE, REVISION, LAST RESULT, DRIFT SINCE, PENDING, AGE, WAITS FOR";
    ensure!(head.join(", ") == wanted, "{columns}");
    for part in [
        "ApplyNeeded",
        "222222222222",
        &third.name_any(),
        "an approval of run",
    ] {
        ensure!(row.contains(part), "{part} is not in {row}");
    }
    scene.world.paste(&step)?;
    let approved = scene.runs.get(&third.name_any()).await?;
    ensure!(
        approved.annotations().get(names::APPROVE) == Some(&sum('a')),
        "another was approved: {:?}",
        approved.annotations()
    );
    controller.stops().await;
    Ok(())
}

async fn two_controllers_and_a_restart_create_one_run(world: World) -> Result<()> {
    let scene = Scene::new(world).await?;
    scene.layer("net", &json!({})).await?;
    scene.commit("net", '1', 'a').await?;
    let (one, two) = (scene.controller().await?, scene.controller().await?);
    let run = scene.open('a').await?;
    one.stops().await;
    let three = scene.controller().await?;
    scene.rests(&run.name_any()).await?;
    scene.is("net", LayerState::Idle).await?;
    ensure!(scene.count().await? == 1, "a run was made twice");
    // Burrito 11.17: each poll writes the status. Idle controllers write nothing here.
    let rests = scene.layers.get("net").await?.resource_version();
    tokio::time::sleep(Duration::from_secs(1)).await;
    ensure!(
        scene.layers.get("net").await?.resource_version() == rests,
        "a layer at rest is written to"
    );
    scene.annotate(json!({names::SUSPEND: "true"})).await?;
    let suspended = scene
        .until("net", "suspended", |status| status.next_step.is_some())
        .await?;
    scene
        .world
        .paste(&suspended.next_step.context("no next step")?)?;
    ensure!(
        scene.annotation(names::SUSPEND).await?.is_none(),
        "it is still suspended"
    );
    two.stops().await;
    three.stops().await;
    Ok(())
}

async fn younger_of_two_layers_of_a_state_is_refused(world: World) -> Result<()> {
    let scene = Scene::new(world).await?;
    // Creation times are in whole seconds, and UIDs are random.
    let backend =
        json!({"template": {"backend": {"type": "http", "config": {"address": "http://state/a"}}}});
    scene.layer("older", &backend).await?;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    scene.layer("younger", &backend).await?;
    for layer in ["older", "younger"] {
        scene.commit(layer, '1', 'a').await?;
    }
    let controller = scene.controller().await?;
    let refused = |status: &Status| {
        let mut ready = status
            .conditions
            .iter()
            .filter(|c| c.type_ == "Ready" && c.reason == "StateOwned");
        ready.any(|condition| condition.message.contains("layer older"))
    };
    scene.until("younger", "refused", refused).await?;
    let run = scene.open('a').await?;
    ensure!(
        run.labels()
            .get(names::LABEL_LAYER)
            .is_some_and(|layer| layer == "older"),
        "of the younger"
    );
    ensure!(scene.count().await? == 1, "two runs of one state");
    scene
        .layers
        .delete("older", &DeleteParams::background())
        .await?;
    scene.is("younger", LayerState::PlanNeeded).await?;
    scene
        .until("younger", "on its own", |status| !refused(status))
        .await?;
    controller.stops().await;
    Ok(())
}

async fn deleted_layer_destroys_before_it_goes(world: World) -> Result<()> {
    let scene = Scene::new(world).await?;
    let controller = scene.controller().await?;
    scene
        .layer("net", &json!({"deletionPolicy": "Destroy"}))
        .await?;
    wait::until("the layer has its finalizer", PATIENCE, async || {
        scene.is_held("net").await
    })
    .await?;
    scene.commit("net", '1', 'a').await?;
    let run = scene.open('a').await?;
    scene.rests(&run.name_any()).await?;
    scene.is("net", LayerState::Idle).await?;
    scene
        .layers
        .delete("net", &DeleteParams::foreground())
        .await?;
    let destroy = scene.open('a').await?;
    ensure!(
        destroy.spec.operation == crds::Operation::Destroy,
        "{:?}",
        destroy.spec.operation
    );
    scene.rests(&destroy.name_any()).await?;
    wait::until("the finalizer is removed", PATIENCE, async || {
        Ok(!scene.is_held("net").await?)
    })
    .await?;
    controller.stops().await;
    Ok(())
}

/// Nothing that retains a deleted layer retains its namespace. The test plays the namespace controller, which deletes the repository first.
async fn layers_of_a_deleted_namespace_are_released(world: World) -> Result<()> {
    let scene = Scene::new(world).await?;
    let controller = scene.controller().await?;
    let layers = [
        ("plain", 'a', json!({})),
        ("dry", 'b', json!({"remediation": {"onDelete": "Dry"}})),
        ("suspended", 'c', json!({})),
        ("waiting", 'd', json!({})),
    ];
    for (name, content, more) in &layers {
        let mut spec = json!({"deletionPolicy": "Destroy", "template": {"stack": name}});
        json_patch::merge(&mut spec, more);
        scene.layer(name, &spec).await?;
        scene.commit(name, '1', *content).await?;
        let run = scene.open(*content).await?;
        scene.rests(&run.name_any()).await?;
        scene.is(name, LayerState::Idle).await?;
        ensure!(scene.is_held(name).await?, "{name} is not held");
    }
    let suspend = json!({"spec": {"suspend": true}});
    objects::merge(&scene.layers, "suspended", &suspend).await?;
    let (layer, background) = (&scene.layers, DeleteParams::background());
    layer.delete("waiting", &background).await?;
    let destroy = scene.open('d').await?;
    scene.waits(&destroy.name_any()).await?;
    let waits = |status: &Status| status.pending.is_some();
    scene.until("waiting", "to be approved", waits).await?;
    let namespaces: Api<Namespace> = Api::all(scene.world.admin.clone());
    let frozen = json!({"metadata": {"annotations": {names::FREEZE: "true"}}});
    objects::merge(&namespaces, &scene.namespace, &frozen).await?;
    let repositories: Api<TerraformRepository> =
        Api::namespaced(scene.world.admin.clone(), &scene.namespace);
    repositories.delete("infra", &background).await?;
    for name in ["plain", "dry", "suspended"] {
        layer.delete(name, &background).await?;
        let held = |status: &Status| {
            let waits_for = status.waits_for.as_deref().unwrap_or_default();
            waits_for.contains("there is no TerraformRepository")
        };
        scene.until(name, "held", held).await?;
    }
    let made = scene.count().await?;
    namespaces.delete(&scene.namespace, &background).await?;
    for (name, ..) in &layers {
        wait::gone(layer, name, PATIENCE).await?;
    }
    ensure!(
        scene.count().await? == made,
        "something was to be destroyed"
    );
    controller.stops().await;
    Ok(())
}
