//! The index of layers: which layers share a state, and which an event wakes.

use futures::channel::mpsc;
use kube::runtime::watcher::Event;
use watching::{Feed, Index, Indexes, Key};

use super::*;
use crate::{
    layer::{LayerRun, Layers},
    metrics::Metrics,
    settings::Settings,
};

/// An index with three watches that have listed, and the layers that it woke.
struct Shown {
    layers: Arc<Layers>,
    feeds: [Feed; 3],
    of_layers: Indexes<TerraformLayer>,
    of_repositories: Indexes<TerraformRepository>,
    of_runs: Indexes<TerraformRun>,
    woken: mpsc::UnboundedReceiver<Key>,
    metrics: Arc<Metrics>,
}

/// The index of layers as a watch of runs fills it.
struct Runs(Arc<Layers>);

impl Index<TerraformRun> for Runs {
    fn apply(&self, key: &Key, run: &TerraformRun) {
        if let Some(of) = LayerRun::of(run) {
            self.0.apply_run(key, of);
        }
    }

    fn delete(&self, key: &Key) {
        self.0.delete_run(key);
    }
}

impl Shown {
    fn new() -> Self {
        let metrics = Arc::new(Metrics::new());
        let settings = Settings {
            datastore_url: Some("https://datastore".into()),
            ..Settings::default()
        };
        let layers = Arc::new(Layers::new(&settings, metrics.clone()));
        let (wake, woken) = mpsc::unbounded();
        layers.wakers.add(Some("team".into()), wake);
        let mut shown = Self {
            feeds: Default::default(),
            of_layers: vec![layers.clone(), layers.listings.add()],
            of_repositories: vec![layers.clone(), layers.listings.add()],
            of_runs: vec![Arc::new(Runs(layers.clone())), layers.listings.add()],
            layers,
            woken,
            metrics,
        };
        shown.repository(&Event::Init);
        shown.repository(&Event::InitDone);
        shown.layer(&Event::Init);
        shown.layer(&Event::InitDone);
        shown.run(&Event::Init);
        assert!(
            !shown.layers.listings.is_ready(),
            "an unknown run would be created twice"
        );
        shown.run(&Event::InitDone);
        assert!(shown.layers.listings.is_ready());
        shown
    }

    fn layer(&mut self, event: &Event<TerraformLayer>) {
        self.feeds[0].event(event, &self.of_layers);
    }

    fn repository(&mut self, event: &Event<TerraformRepository>) {
        self.feeds[1].event(event, &self.of_repositories);
    }

    fn run(&mut self, event: &Event<TerraformRun>) {
        self.feeds[2].event(event, &self.of_runs);
    }

    /// Names of the layers woken since the last call.
    fn woken(&mut self) -> Vec<String> {
        let mut names: Vec<String> = std::iter::from_fn(|| self.woken.try_recv().ok())
            .map(|layer| layer.1.to_string())
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

fn layer(name: &str, created: i64, spec: &Value) -> TerraformLayer {
    let mut whole = json!({"repository": {"name": "infra"}, "path": "live/net"});
    merge(&mut whole, spec);
    let created = t0() + SignedDuration::from_secs(created);
    serde_json::from_value(
        json!({"metadata": {"name": name, "namespace": "team", "uid": format!("uid-{name}"),
        "creationTimestamp": created}, "spec": whole, "status": {"state": "Idle"}}),
    )
    .unwrap()
}

fn repository(defaults: &Value) -> TerraformRepository {
    serde_json::from_value(
        json!({"metadata": {"name": "infra", "namespace": "team", "uid": "r"},
        "spec": {"url": "https://git.example.com/infra", "defaults": defaults}}),
    )
    .unwrap()
}

fn run(layer: &str, name: &str, status: &Value) -> TerraformRun {
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "team", "uid": name, "creationTimestamp": t0(),
        "labels": {names::LABEL_LAYER: layer, names::LABEL_LAYER_UID: format!("uid-{layer}")}},
        "spec": {"source": {"inline": {"files": {}}}}, "status": status}))
    .unwrap()
}

fn plan_of(state: &str) -> Value {
    json!({"phase": "AwaitingApproval", "attempt": {"number": 1, "podName": "p", "open": true, "tries": 1},
        "plan": {"checksum": digest("c"), "attempt": 1, "summary": "+1 ~0 -0", "add": 1, "change": 0, "destroy": 0, "import": 0,
            "replace": 0, "forget": 0, "outputs": 0, "tool": "OpenTofu 1.10.6", "stateKey": digest(state)}})
}

#[test]
fn older_layer_owns_the_state_in_any_order() {
    let (older, younger) = (
        layer("older", 0, &json!({})),
        layer("younger", 1, &json!({})),
    );
    for order in [[&older, &younger], [&younger, &older]] {
        for repository_first in [true, false] {
            let mut shown = Shown::new();
            if repository_first {
                shown.repository(&Event::Apply(repository(&json!({}))));
            }
            for layer in order {
                shown.layer(&Event::Apply(layer.clone()));
            }
            if !repository_first {
                assert_eq!(
                    shown.layers.owner(&younger),
                    None,
                    "nobody knows of which state it is"
                );
                shown.repository(&Event::Apply(repository(&json!({}))));
            }
            assert_eq!(
                shown.layers.owner(&younger),
                Some(("team".into(), "older".into()))
            );
            assert_eq!(shown.layers.owner(&older), None);
            shown.woken();
            shown.layer(&Event::Delete(older.clone()));
            assert_eq!(shown.layers.owner(&younger), None);
            assert_eq!(shown.woken(), ["younger"]);
        }
    }
}

#[test]
fn uid_orders_layers_of_one_second() {
    let mut shown = Shown::new();
    shown.repository(&Event::Apply(repository(&json!({}))));
    let (a, b) = (layer("a", 0, &json!({})), layer("b", 0, &json!({})));
    shown.layer(&Event::Apply(b.clone()));
    shown.layer(&Event::Apply(a.clone()));
    assert_eq!(shown.layers.owner(&a), None);
    assert_eq!(shown.layers.owner(&b), Some(("team".into(), "a".into())));
}

#[test]
fn settings_and_plans_determine_the_state() {
    let mut shown = Shown::new();
    shown.repository(&Event::Apply(repository(&json!({}))));
    let older = layer("older", 0, &json!({}));
    let mut younger = layer("younger", 1, &json!({"template": {"stack": "own"}}));
    shown.layer(&Event::Apply(older.clone()));
    shown.layer(&Event::Apply(younger.clone()));
    assert_eq!(shown.layers.owner(&younger), None);
    shown.woken();
    // The code of both configures the same backend.
    shown.run(&Event::Apply(run("older", "o", &plan_of("5"))));
    assert_eq!(shown.layers.owner(&younger), None);
    assert_eq!(shown.woken(), ["older"]);
    shown.run(&Event::Apply(run("younger", "y", &plan_of("5"))));
    assert!(shown.layers.owner(&younger).is_some());
    shown.woken();
    shown.run(&Event::Apply(run("younger", "y", &plan_of("5"))));
    assert!(shown.woken().is_empty(), "nothing of it has changed");
    shown.run(&Event::Delete(run("younger", "y", &plan_of("5"))));
    assert_eq!(shown.layers.owner(&younger), None);
    // The repository's defaults give both the same stack.
    younger = layer("younger", 1, &json!({}));
    shown.layer(&Event::Apply(younger.clone()));
    assert!(shown.layers.owner(&younger).is_some());
    younger = layer("younger", 1, &json!({"template": {"workspace": "b"}}));
    shown.layer(&Event::Apply(younger.clone()));
    assert_eq!(shown.layers.owner(&younger), None);
    // To another repository, and back.
    shown.layer(&Event::Apply(layer(
        "younger",
        1,
        &json!({"repository": {"name": "else"}}),
    )));
    younger = layer("younger", 1, &json!({}));
    shown.layer(&Event::Apply(younger.clone()));
    assert!(shown.layers.owner(&younger).is_some());
}

/// Burrito 11.18: each step waited for the next poll.
#[test]
fn inputs_of_a_layer_wake_it() {
    let mut shown = Shown::new();
    shown.repository(&Event::Apply(repository(&json!({}))));
    shown.layer(&Event::Apply(layer("a", 0, &json!({}))));
    shown.layer(&Event::Apply(layer(
        "b",
        1,
        &json!({"path": "live/b", "repository": {"name": "else"}}),
    )));
    shown.woken();
    shown.repository(&Event::Apply(repository(&json!({}))));
    assert!(
        shown.woken().is_empty(),
        "what is said of a repository is nothing to its layers"
    );
    shown.repository(&Event::Apply(repository(&json!({"workspace": "w"}))));
    assert_eq!(shown.woken(), ["a"]);
    shown.repository(&Event::Delete(repository(&json!({}))));
    assert_eq!(shown.woken(), ["a"]);
    shown.run(&Event::Apply(run("b", "of-b", &Value::Null)));
    assert_eq!(shown.woken(), ["b"]);
    shown.run(&Event::Apply(run("gone", "of-nobody", &Value::Null)));
    assert!(shown.woken().is_empty());
    // A new listing without the run.
    shown.run(&Event::Init);
    shown.run(&Event::InitDone);
    assert_eq!(shown.woken(), ["b"]);
    assert!(shown.layers.of(&layer("b", 1, &json!({}))).1.is_empty());
}

#[test]
fn runs_of_a_layer_are_sorted_by_age() {
    let mut shown = Shown::new();
    let mut second = run("a", "a-1", &Value::Null);
    second.metadata.creation_timestamp =
        serde_json::from_value(json!(t0() + SignedDuration::from_secs(1))).unwrap();
    shown.run(&Event::Apply(second));
    shown.run(&Event::Apply(run("a", "a-2", &Value::Null)));
    shown.run(&Event::Apply(run("ab", "ab-1", &Value::Null)));
    let runs = shown.layers.of(&layer("a", 0, &json!({}))).1;
    assert_eq!(
        runs.iter().map(|run| &*run.name).collect::<Vec<_>>(),
        ["a-2", "a-1"]
    );
}

#[test]
fn layers_are_counted_by_state() {
    let mut shown = Shown::new();
    let count = |shown: &Shown, state: &str| {
        shown
            .metrics
            .exposition()
            .1
            .contains(&format!("pawl_layers{{state=\"Idle\"}} {state}\n"))
    };
    shown.layer(&Event::Apply(layer("a", 0, &json!({}))));
    shown.layer(&Event::Apply(layer("a", 0, &json!({}))));
    shown.layer(&Event::Apply(layer("b", 0, &json!({}))));
    assert!(count(&shown, "2"));
    shown.layer(&Event::Delete(layer("a", 0, &json!({}))));
    assert!(count(&shown, "1"));
    shown.layer(&Event::Init);
    shown.layer(&Event::InitDone);
    assert!(count(&shown, "0"));
}

#[test]
fn freeze_wakes_the_layers_of_its_namespace() {
    let mut shown = Shown::new();
    let (wake, mut of_all) = mpsc::unbounded();
    shown.layers.wakers.add(None, wake);
    for namespace in ["team", "other"] {
        let mut layer = layer("net", 0, &json!({}));
        layer.metadata.namespace = Some(namespace.into());
        shown.layer(&Event::Apply(layer));
    }
    shown.woken();
    while of_all.try_recv().is_ok() {}
    shown.layers.wake("other");
    assert_eq!(shown.woken(), [""; 0], "of another namespace");
    let woken = of_all.try_recv().unwrap();
    assert_eq!((&*woken.0, &*woken.1), ("other", "net"));
    assert!(of_all.try_recv().is_err(), "and nobody else");
}
