//! Watches of runs and pods, and the loop that turns their events into reconciles.

use std::{
    future::ready,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use futures::{StreamExt, TryStreamExt, channel::mpsc, stream};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{
    Resource, ResourceExt,
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef},
        watcher,
    },
};
use serving::health::Readiness;
use tokio::sync::watch;

use crds::{TerraformRun, conditions, fields, names, reason};

use crate::{
    cluster::{
        cached::{Cached, Heard, in_cache},
        index::mapped,
        watch::{objects, understood},
        work_queue::work,
    },
    gc::ttl,
    layer::LayerRun,
    run::{Context, cached_run, event_handlers, reconcile},
    settings::Settings,
};

type CachedRun = Cached<TerraformRun>;

/// Reconciles the runs of one namespace, or of all, until `stop`. Reconciles in progress are finished.
pub async fn run(scope: Option<String>, ctx: Arc<Context>, readiness: Arc<Readiness>, stop: watch::Receiver<bool>) {
    let (reader, writer) = reflector::store::<CachedRun>();
    let (known, waiting, listed_store) = (reader.clone(), reader.clone(), reader.clone());
    let (runs_ctx, runs_scope, runs_readiness, mut filled) = (ctx.clone(), scope.clone(), readiness.clone(), false);
    let (wake, woken) = mpsc::unbounded();
    let (mut told, mut of_layers) = (event_handlers::Runs::new(scope.clone(), &wake, &ctx), ctx.layers.feed());
    let runs = understood::<TerraformRun>("runs", ctx.scoped(scope.as_deref()))
        .map(Ok)
        .inspect_ok(move |event| {
            warn_of_newer(event);
            told.handle(event);
        })
        .map_ok({
            let ctx = ctx.clone();
            move |event| {
                let mut of_layer = None;
                let event = mapped(event, |run| {
                    let (kept, of) = kept(run, &ctx.settings);
                    of_layer = of;
                    kept
                });
                ctx.layers.run(&mut of_layers, &event, of_layer);
                event
            }
        })
        .reflect(writer)
        .inspect_ok(move |event| {
            if matches!(event, watcher::Event::InitDone) {
                event_handlers::listed(runs_scope.as_deref(), |run| shown(&listed_store, run), &runs_ctx);
                if !std::mem::replace(&mut filled, true) {
                    runs_readiness.filled();
                }
            }
        })
        .flat_map({
            let mut heard = Heard::default();
            move |event| stream::iter(event.map(|event| heard.news(event)).unwrap_or_default())
        });

    // A change of the policies wakes the runs that wait for one before their next retry.
    let changes =
        stream::unfold(ctx.policies.changes(), |mut changes| async move { changes.changed().await.ok().map(|()| ((), changes)) });
    let policies = changes.flat_map(move |()| {
        let all = waiting.state().into_iter().filter(|run| run.at_hand().is_some_and(waits_for_policies));
        stream::iter(all.map(|run| ObjectRef::from_obj(&*run)).collect::<Vec<_>>())
    });
    let (ending, due_ctx) = (reader.clone(), ctx.clone());
    let due = stream::unfold(tokio::time::interval(ttl::SWEEP), |mut interval| async move {
        interval.tick().await;
        Some(((), interval))
    });
    let due = due.flat_map(move |()| {
        let until = due_ctx.now().checked_add(2 * ttl::SWEEP).unwrap_or(Timestamp::MAX);
        let all = ending.state().into_iter().filter(|run| run.due().is_some_and(|due| due < until));
        stream::iter(all.map(|run| ObjectRef::from_obj(&*run)).collect::<Vec<_>>())
    });

    let mut told = event_handlers::Pods::new(&wake, &ctx);
    let ours = format!("{}={},!{}", names::LABEL_MANAGED_BY, names::MANAGED_BY, names::LABEL_RELEASED);
    let ours = watcher::Config::default().labels(&ours);
    let pods = objects::<Pod>("pods", ctx.scoped(scope.as_deref()), ours)
        .map(Ok)
        .inspect_ok(move |event| {
            if told.handle(event, |run| shown(&known, run)) {
                readiness.filled();
            }
            if matches!(event, watcher::Event::InitDone) {
                told.listed(known.state().iter().filter_map(|run| run.at_hand()));
            }
        })
        .touched_objects();

    let touched = pods.filter_map(|pod| ready(pod.ok().as_ref().and_then(run_of))).map(|run| in_cache(&run));
    let woken = woken.map(|run| in_cache(&run));
    let wakes = stream::select_all([runs.boxed(), touched.boxed(), woken.boxed(), policies.boxed(), due.boxed()]);
    work(reader, wakes, ctx.settings.concurrency, stop, comes_first, |run| reconcile(run, ctx.clone())).await;
}

/// The first reconcile of a layer's run has low priority: no person waits for it, and many may come at once.
fn comes_first(run: &TerraformRun) -> bool {
    let is_new = run.status.as_ref().is_none_or(|status| status.phase.is_none());
    !is_new || !run.annotations().contains_key(names::TRIGGER)
}

/// The cached form of a run, and its summary for the layer.
fn kept(mut run: TerraformRun, settings: &Settings) -> (CachedRun, Option<LayerRun>) {
    let of = LayerRun::of(&run);
    trim(&mut run);
    let wakes = wake_hash(&run);
    cached_run::kept(run, of, wakes, settings)
}

fn waits_for_policies(run: &TerraformRun) -> bool {
    let stalled = |c: &Condition| c.type_ == conditions::STALLED && c.status == "True" && c.reason == reason::POLICY_MISSING;
    run.status.as_ref().is_some_and(|status| status.conditions.iter().any(stalled))
}

fn shown(known: &reflector::Store<CachedRun>, run: &ObjectRef<TerraformRun>) -> Option<Arc<TerraformRun>> {
    known.get(&in_cache(run)).and_then(|run| run.object())
}

/// Logs a run with a value of a newer version, which is left alone.
fn warn_of_newer(event: &watcher::Event<TerraformRun>) {
    if let watcher::Event::Apply(run) | watcher::Event::InitApply(run) | watcher::Event::Delete(run) = event
        && let Some(field) = run.unknown_word()
    {
        let (namespace, name) = (run.namespace().unwrap_or_default(), run.name_any());
        tracing::warn!(
            run.namespace = namespace,
            run.name = name,
            field,
            "the run has a value of a newer version and is left alone"
        );
    }
}

/// The run of a pod, by its labels.
fn run_of(pod: &Pod) -> Option<ObjectRef<TerraformRun>> {
    let name = pod.labels().get(names::LABEL_RUN)?;
    Some(ObjectRef::new(name).within(&pod.namespace()?))
}

/// Removes the fields that only live reads use; those of the status are in [`fields::FIELDS`]. A finished run retains little more than its
/// name.
pub fn trim(run: &mut TerraformRun) {
    let meta = run.meta_mut();
    meta.managed_fields = None;
    if let Some(labels) = &mut meta.labels {
        labels.retain(|key, _| ttl::KEPT_BY.contains(&key.as_str()));
        if labels.is_empty() {
            meta.labels = None;
        }
    }
    meta.generate_name = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.retain(|key, _| key.starts_with("pawl.run/") || ttl::KEPT_BY.contains(&key.as_str()));
        if annotations.is_empty() {
            meta.annotations = None;
        }
    }
    let spec = &mut run.spec;
    spec.source = crds::Source::default();
    spec.variables = Vec::new();
    spec.env = Vec::new();
    spec.credentials = crds::Credentials::default();
    spec.backend = None;
    // Retain an unknown value: a decision on the cached run must notice it.
    spec.tool = crds::Tool { name: spec.tool.name.filter(|name| *name == crds::ToolName::Unknown), version: None };
    spec.workspace = String::new();
    spec.stack = None;
    spec.runner = crds::Runner { image: spec.runner.image.take(), ..crds::Runner::default() };
    if run.status.as_mut().is_some_and(fields::trim) {
        run.spec.runner.image = None;
        run.metadata.owner_references = None;
        if let Some(annotations) = &mut run.metadata.annotations {
            // Annotations of the layer, which reads them from its summary.
            annotations.retain(|key, _| ![names::CONTENT, names::SETTINGS].contains(&key.as_str()));
        }
    }
}

/// A hash of the fields that decisions depend on. Progress, steps and the controller's own conditions cause no reconcile.
pub fn wake_hash(run: &TerraformRun) -> u64 {
    let mut hasher = DefaultHasher::new();
    let meta = run.meta();
    (meta.uid.as_deref(), meta.generation, meta.deletion_timestamp.is_some()).hash(&mut hasher);
    (&meta.finalizers, &meta.annotations).hash(&mut hasher);
    if let Some(status) = &run.status {
        fields::hash_what_wakes(status, &mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crds::{Phase, Progress, RunResult, TerraformRunStatus};

    #[test]
    fn progress_wakes_no_run() {
        let mut run = testing::run();
        run.status = Some(TerraformRunStatus { phase: Some(Phase::Apply), ..TerraformRunStatus::default() });
        let before = wake_hash(&run);
        run.status.as_mut().unwrap().progress = Some(Progress { done: 3, total: 7, current: None, quiet_since: None });
        assert_eq!(wake_hash(&run), before);
        run.metadata.annotations = Some([(names::CANCEL.into(), "why".into())].into());
        assert_ne!(wake_hash(&run), before);
    }

    #[test]
    fn only_runs_that_miss_a_policy_wait_for_policies() {
        let mut run = testing::run();
        assert!(!waits_for_policies(&run));
        for (stalled, why, waits) in
            [(true, reason::POLICY_MISSING, true), (false, reason::PROGRESSING, false), (true, reason::UNSCHEDULABLE, false)]
        {
            let status = run.status.get_or_insert_default();
            conditions::set(&mut status.conditions, conditions::STALLED, Some(stalled), why, "", None, testing::t0());
            trim(&mut run);
            assert_eq!(waits_for_policies(&run), waits, "{why}");
        }
    }

    #[test]
    fn finished_run_is_trimmed_in_the_cache() {
        let mut run = testing::run();
        let mut status = TerraformRunStatus {
            phase: Some(Phase::Succeeded),
            result: Some(RunResult::Applied),
            history: vec!["x".repeat(200); 40],
            ..TerraformRunStatus::default()
        };
        for type_ in conditions::ALL {
            conditions::set(&mut status.conditions, type_, Some(true), "Applied", "text", None, testing::t0());
        }
        run.status = Some(status);
        run.metadata.annotations = Some([("kubectl.kubernetes.io/last-applied-configuration".into(), "x".repeat(9000))].into());
        trim(&mut run);
        assert!(serde_json::to_vec(&run).unwrap().len() < 1200, "{}", serde_json::to_string(&run).unwrap());
        assert_eq!(conditions::status(&run.status.unwrap().conditions, conditions::FINISHED), Some(true));
    }

    #[test]
    fn pod_belongs_to_the_run_of_its_label() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "team", "labels": {"pawl.run/run": "net"}}}))
        .unwrap();
        let run = run_of(&pod).unwrap();
        assert_eq!((run.name.as_str(), run.namespace.as_deref()), ("net", Some("team")));
        assert!(run_of(&Pod::default()).is_none());
    }
}
