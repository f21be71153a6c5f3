use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use serde_json::json;

use super::*;
use crate::testing::{api_server, name, refused, token};

#[derive(Default)]
struct Cluster {
    reviews: AtomicUsize,
    is_down: AtomicBool,
    is_closed: AtomicBool,
}

/// A person and a cluster where `root` may list all, and others the namespaces with `open`.
async fn person(text: &str, cluster: &Arc<Cluster>) -> Person {
    let cluster = cluster.clone();
    let api_server = api_server(move |_, path, token, body| {
        if path.ends_with("selfsubjectreviews") {
            return name(token);
        }
        cluster.reviews.fetch_add(1, Relaxed);
        if cluster.is_down.load(Relaxed) {
            return refused();
        }
        let access = &body["spec"]["resourceAttributes"];
        assert_eq!(
            (&access["verb"], &access["group"]),
            (&json!("list"), &json!("pawl.run"))
        );
        let namespace = access["namespace"].as_str().unwrap();
        let is_allowed = token.starts_with("root") || namespace.contains("open");
        (
            201,
            json!({"status": {"allowed": is_allowed && !cluster.is_closed.load(Relaxed)}, "spec": {}}),
        )
    });
    Person::of_token(&api_server, token(text)).await.unwrap()
}

fn many(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|number| format!("open-{number}"))
}

const RUNS: &str = "terraformruns";

#[tokio::test(start_paused = true)]
async fn right_for_the_cluster_is_asked_once() {
    let (cluster, access) = (Arc::default(), Access::default());
    let root = person("root", &cluster).await;
    for _ in 0..2 {
        assert_eq!(access.scope(&root, RUNS, many(9)).await, Ok(Scope::All));
    }
    assert_eq!(cluster.reviews.load(Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn answers_count_for_all_tokens_of_an_identity() {
    let (cluster, access) = (Arc::default(), Access::default());
    let ada = person("ada.1", &cluster).await;
    let names = || ["open", "closed"].map(String::from).into_iter();
    let scope = access.scope(&ada, RUNS, names()).await.unwrap();
    assert!(scope.has("open") && !scope.has("closed"));
    assert_eq!(cluster.reviews.load(Relaxed), 3);
    let again = person("ada.2", &cluster).await;
    assert_eq!(access.scope(&again, RUNS, names()).await, Ok(scope));
    assert_eq!(cluster.reviews.load(Relaxed), 3);
    let bob = person("bob.1", &cluster).await;
    access.scope(&bob, RUNS, names()).await.unwrap();
    assert_eq!(cluster.reviews.load(Relaxed), 6);
}

#[tokio::test(start_paused = true)]
async fn reviews_are_at_most_twenty_a_second() {
    let (cluster, access) = (Arc::default(), Access::default());
    let ada = person("ada", &cluster).await;
    let begun = Instant::now();
    let scope = access.scope(&ada, RUNS, many(99)).await.unwrap();
    let asked = cluster.reviews.load(Relaxed);
    assert_eq!((begun.elapsed().as_secs(), asked), (2, 60));
    assert!(
        scope.has("open-98") != scope.has("open-0"),
        "some are not asked yet"
    );
    let scope = access.scope(&ada, RUNS, many(99)).await.unwrap();
    assert!(many(99).all(|namespace| scope.has(&namespace)));
}

#[tokio::test(start_paused = true)]
async fn withdrawn_right_ends_within_five_minutes() {
    let (cluster, access) = (Arc::<Cluster>::default(), Access::default());
    let ada = person("ada", &cluster).await;
    assert!(
        access
            .scope(&ada, RUNS, many(1))
            .await
            .unwrap()
            .has("open-0")
    );
    cluster.is_closed.store(true, Relaxed);
    sleep(KEPT).await;
    assert!(
        !access
            .scope(&ada, RUNS, many(1))
            .await
            .unwrap()
            .has("open-0")
    );
}

#[tokio::test(start_paused = true)]
async fn failed_renewal_keeps_the_answer_until_it_expires() {
    let (cluster, access) = (Arc::<Cluster>::default(), Access::default());
    let ada = person("ada", &cluster).await;
    access.scope(&ada, RUNS, many(1)).await.unwrap();
    cluster.is_down.store(true, Relaxed);
    sleep(RENEWED).await;
    assert!(
        access
            .scope(&ada, RUNS, many(1))
            .await
            .unwrap()
            .has("open-0")
    );
    sleep(KEPT.saturating_sub(RENEWED)).await;
    let problem = access.scope(&ada, RUNS, many(1)).await.unwrap_err();
    assert_eq!(problem.reason, "Unauthenticated");
}
