//! Sends deliveries to a receiver with a fake API server. Covers known flaws of other receivers except those in authentication.

mod pings;
mod replays;

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use axum::body::Body;
use futures::stream;
use ring::hmac;
use serde_json::Value;
use tokio::{sync::watch, time::Instant};
use tower::ServiceExt as _;
use watching::Index as _;

use super::*;
use crate::server::{admin, notifier};

const UID: &str = "0b9c1a4e-1f7e-4c07-9d43-2a1f35e3b8aa";
const SECRET: &str = "hush";
const BODY: &str =
    r#"{"ref":"refs/heads/main","repository":{"clone_url":"http://169.254.169.254/x"}}"#;

/// A push with a wrong signature. Without its last header it has none.
const SIGNED: [(&str, &str); 2] = [("x-gitea-event", "push"), ("x-gitea-signature", "00")];

/// The behavior of the fake API server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Api {
    /// Responds, and repositories show each request.
    Answers,
    /// Responds, except to writes.
    WritesHang,
    /// Forbids reading Secrets.
    Forbids,
    /// Fails every request.
    Fails,
    /// Secrets exist but are empty.
    Empty,
}

/// Recorded requests: `METHOD PATH`, with the body of writes.
type Asked = Arc<Mutex<Vec<(String, Value)>>>;

struct Lab {
    receiver: Arc<Receiver>,
    client: Client,
    asked: Asked,
}

impl Lab {
    fn new(api: Api) -> Self {
        let (asked, versions) = (Asked::default(), Arc::new(AtomicUsize::new(100)));
        let noted = asked.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (noted, versions) = (noted.clone(), versions.clone());
            async move {
                Ok::<_, std::convert::Infallible>(played(api, request, &noted, &versions).await)
            }
        });
        let client = Client::new(service, "default");
        let receiver = Arc::new(Receiver::new(client.clone(), ServerClock::default()));
        for (uid, secret) in [(UID, Some("hook")), ("open", None)] {
            receiver.repositories.apply(
                &Arc::new(("team".into(), uid.into())),
                &repository(uid, secret, 1, None),
            );
        }
        Self {
            receiver,
            client,
            asked,
        }
    }

    async fn post(&self, uid: &str, headers: &[(&str, &str)], body: Body) -> (u16, Value) {
        let mut request = http::Request::post(format!("/hooks/{uid}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        answered(router(self.receiver.clone()), request.body(body).unwrap()).await
    }

    /// Runs the notifier until the stop.
    fn notify(&self, stopped: watch::Receiver<bool>) -> impl Future<Output = ()> + Send + use<> {
        notifier::run(
            self.receiver.clone(),
            self.client.clone(),
            ServerClock::default(),
            stopped,
        )
    }

    /// Code and verdict of a push with the current secret.
    async fn verdict(&self, id: &str, body: &str) -> (u16, String) {
        let (code, answer) = self.push(SECRET, id, body).await;
        (
            code,
            answer["verdict"].as_str().unwrap_or_default().to_owned(),
        )
    }

    /// A push reported by Gitea, signed with a secret.
    async fn push(&self, secret: &str, id: &str, body: &str) -> (u16, Value) {
        self.event("push", secret, id, body).await
    }

    async fn event(&self, event: &str, secret: &str, id: &str, body: &str) -> (u16, Value) {
        let tag = hmac::sign(
            &hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()),
            body.as_bytes(),
        );
        let signature = hex::encode(tag.as_ref());
        let headers = [
            ("x-gitea-event", event),
            ("x-gitea-delivery", id),
            ("x-gitea-signature", &*signature),
        ];
        self.post(UID, &headers, Body::from(body.to_owned())).await
    }

    /// Reads the deliveries of a repository in `team`.
    async fn read(&self, token: &str, name: &str) -> (u16, Value) {
        let request = http::Request::get(format!(
            "/api/v1/namespaces/team/repositories/{name}/deliveries"
        ));
        let request = if token.is_empty() {
            request
        } else {
            request.header("authorization", format!("Bearer {token}"))
        };
        answered(
            admin(self.receiver.clone()),
            request.body(Body::empty()).unwrap(),
        )
        .await
    }

    fn asked(&self, method: &str) -> usize {
        self.asked
            .lock()
            .unwrap()
            .iter()
            .filter(|(what, _)| what.starts_with(method))
            .count()
    }

    fn wanted(&self) -> usize {
        let standing = |_: &str| crate::server::pending::Standing::Free;
        self.receiver
            .pending()
            .due(Instant::now(), 99, standing)
            .0
            .len()
    }

    fn metrics(&self) -> String {
        self.receiver.metrics.exposition().1
    }
}

/// Code and JSON of a response.
async fn answered(router: Router, request: Request) -> (u16, Value) {
    let response = router.oneshot(request).await.unwrap();
    let code = response.status().as_u16();
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 20)
        .await
        .unwrap();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

/// Burrito 11.21: each page view lists all objects. Here it shows this process's records and reads no object.
#[tokio::test]
async fn reading_deliveries_lists_no_objects() {
    let lab = Lab::new(Api::Answers);
    assert_eq!(lab.push(SECRET, "1", BODY).await.0, 202);
    let read = lab.asked("GET");
    for _ in 0..3 {
        let (code, shown) = lab.read("ada", "net").await;
        assert_eq!(
            (
                code,
                shown["items"].as_array().map(Vec::len),
                &shown["items"][0]["id"]
            ),
            (200, Some(1), &json!("1"))
        );
    }
    assert_eq!(
        (lab.asked("GET"), lab.asked("POST")),
        (read, 4),
        "the token is reviewed once, the right each time"
    );
}

#[tokio::test]
async fn deliveries_need_a_token_and_the_right_to_get_the_repository() {
    let lab = Lab::new(Api::Answers);
    for token in ["", "forged"] {
        assert_eq!(lab.read(token, "net").await.0, 401, "{token:?}");
    }
    let refused = lab.read("bob", "net").await;
    assert_eq!(refused.0, 403);
    // The same response for a repository that does not exist, also for a caller who may get it.
    assert_eq!(lab.read("bob", "other").await, refused);
    assert_eq!(lab.read("ada", "other").await, refused);
    assert_eq!(lab.read("ada", "net").await, (200, json!({"items": []})));
    assert_eq!(Lab::new(Api::Fails).read("ada", "net").await.0, 503);
}

fn repository(
    uid: &str,
    secret: Option<&str>,
    version: usize,
    request: Option<&str>,
) -> crds::TerraformRepository {
    let webhook = secret.map(|name| json!({"secretRef": {"name": name}}));
    serde_json::from_value(json!({
        "apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRepository",
        "metadata": {"name": "net", "namespace": "team", "uid": uid, "resourceVersion": version.to_string(),
            "annotations": request.map(|request| json!({"pawl.run/reconcile": request}))},
        "spec": {"url": "https://git.example.org/net", "webhook": webhook},
    }))
    .unwrap()
}

async fn played(
    api: Api,
    request: http::Request<kube::client::Body>,
    asked: &Asked,
    versions: &AtomicUsize,
) -> http::Response<kube::client::Body> {
    let what = format!("{} {}", request.method(), request.uri().path());
    let body = request
        .into_body()
        .collect_bytes()
        .await
        .unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    asked.lock().unwrap().push((what.clone(), body.clone()));
    let refuse = |code: u16, reason: &str| {
        (
            code,
            json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code}),
        )
    };
    let (code, answer) = match (api, what.as_str()) {
        (Api::Fails, _) => refuse(503, "ServiceUnavailable"),
        (Api::Forbids, "GET /api/v1/namespaces/team/secrets/hook") => refuse(403, "Forbidden"),
        (Api::Empty, "GET /api/v1/namespaces/team/secrets/hook") => (
            200,
            json!({"metadata": {"name": "hook"}, "data": {"secret": "", "previous": "aHVzaA=="}}),
        ),
        // The values are `hush` and `before`.
        (_, "GET /api/v1/namespaces/team/secrets/hook") => (
            200,
            json!({"metadata": {"name": "hook"}, "data": {"secret": "aHVzaA==", "previous": "YmVmb3Jl"}}),
        ),
        // The valid tokens are `ada` and `bob`; `ada` may get every repository in `team`.
        (_, "POST /apis/authentication.k8s.io/v1/tokenreviews") => {
            let spec = &body["spec"];
            let valid = spec["audiences"] == json!(["pawl-server"])
                && ["ada", "bob"].iter().any(|name| spec["token"] == *name);
            let user = json!({"username": spec["token"], "groups": ["people"]});
            let status =
                json!({"authenticated": valid, "audiences": spec["audiences"], "user": user});
            (201, json!({"metadata": {}, "spec": spec, "status": status}))
        }
        (_, "POST /apis/authorization.k8s.io/v1/subjectaccessreviews") => {
            let (spec, access) = (&body["spec"], &body["spec"]["resourceAttributes"]);
            let asked = json!({"group": "pawl.run", "resource": "terraformrepositories", "verb": "get", "namespace": "team",
                "name": access["name"]});
            let allowed =
                spec["user"] == "ada" && spec["groups"] == json!(["people"]) && *access == asked;
            (
                201,
                json!({"metadata": {}, "spec": spec, "status": {"allowed": allowed}}),
            )
        }
        (Api::WritesHang, what) if what.starts_with("PATCH") => std::future::pending().await,
        (_, "PATCH /apis/pawl.run/v1alpha1/namespaces/team/terraformrepositories/net") => {
            let version = versions.fetch_add(1, Ordering::Relaxed);
            let request = body["metadata"]["annotations"]["pawl.run/reconcile"].as_str();
            (
                200,
                serde_json::to_value(repository(UID, Some("hook"), version, request)).unwrap(),
            )
        }
        _ => refuse(404, "NotFound"),
    };
    http::Response::builder()
        .status(code)
        .body(kube::client::Body::from(answer.to_string().into_bytes()))
        .unwrap()
}

/// A body that must not be read.
fn untouched() -> (Body, Arc<AtomicUsize>) {
    let touched = Arc::new(AtomicUsize::new(0));
    let count = touched.clone();
    let pieces = stream::repeat_with(move || {
        count.fetch_add(1, Ordering::Relaxed);
        Ok::<_, std::io::Error>(vec![0; 1 << 16])
    });
    (Body::from_stream(pieces), touched)
}

#[tokio::test]
async fn push_is_answered_before_its_request_is_written() {
    let lab = Lab::new(Api::WritesHang);
    let (_stop, stopped) = watch::channel(false);
    let _notifier = tokio::spawn(lab.notify(stopped));
    assert_eq!(lab.verdict("1", BODY).await, (202, "accepted".into()));
    // The write hangs, and further deliveries are still answered.
    wait(|| lab.asked("PATCH") == 1).await;
    assert_eq!(lab.push(SECRET, "2", "{}").await.0, 202);
    let written = lab
        .asked
        .lock()
        .unwrap()
        .iter()
        .find(|(what, _)| what.starts_with("PATCH"))
        .unwrap()
        .1
        .clone();
    let request = written["metadata"]["annotations"]["pawl.run/reconcile"]
        .as_str()
        .unwrap();
    assert!(request.parse::<jiff::Timestamp>().is_ok(), "{written}");
    assert_eq!(
        written,
        json!({"metadata": {"uid": UID, "annotations": {"pawl.run/reconcile": request}}}),
        "this, and nothing of the payload"
    );
}

async fn wait(done: impl Fn() -> bool) {
    while !done() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn one_request_at_a_time_until_answered() {
    let lab = Lab::new(Api::Answers);
    let (stop, stopped) = watch::channel(false);
    let notifier = tokio::spawn(lab.notify(stopped));
    for id in 0..20 {
        let body = format!("{{\"n\":{id}}}");
        assert_eq!(lab.push(SECRET, &id.to_string(), &body).await.0, 202);
    }
    wait(|| {
        lab.receiver
            .repositories
            .get(UID)
            .is_some_and(|known| known.is_requested())
    })
    .await;
    assert_eq!(lab.push(SECRET, "last", "{\"n\":\"last\"}").await.0, 202);
    assert_eq!(lab.asked("PATCH"), 1);
    // A check answers the request; deliveries in the meantime cause one more request.
    let answer = |version: usize| {
        let request = lab.receiver.repositories.get(UID).unwrap().request;
        let mut answered = repository(UID, Some("hook"), version, request.as_deref());
        answered.status = Some(crds::TerraformRepositoryStatus {
            last_handled_reconcile: request,
            ..Default::default()
        });
        lab.receiver.repositories.apply(&Arc::default(), &answered);
    };
    answer(500);
    wait(|| lab.asked("PATCH") == 2).await;
    stop.send_replace(true);
    notifier.await.unwrap();
    assert_eq!(lab.asked("PATCH"), 2);
    assert_eq!(lab.asked("GET"), 1, "and the Secret was read once");
}

#[tokio::test]
async fn accepted_pushes_are_requested_before_shutdown() {
    let lab = Lab::new(Api::Answers);
    assert_eq!(lab.push(SECRET, "1", BODY).await.0, 202);
    let (_stop, stopped) = watch::channel(true);
    lab.notify(stopped).await;
    assert_eq!(lab.asked("PATCH"), 1);
}

#[tokio::test]
async fn redeliveries_are_accepted_and_coalesce() {
    let lab = Lab::new(Api::Answers);
    assert_eq!(lab.push("wrong", "1", BODY).await.0, 401);
    assert_eq!(lab.wanted(), 0, "a rejected delivery may be sent again");
    assert_eq!(lab.push(SECRET, "1", BODY).await.1["verdict"], "accepted");
    assert_eq!(lab.wanted(), 1);
    lab.receiver.pending().sent(UID, Instant::now());
    assert_eq!(lab.wanted(), 0);
    // The same delivery, and its body under other ids.
    for id in ["1", "1", "2", "3"] {
        assert_eq!(lab.verdict(id, BODY).await, (202, "accepted".into()));
    }
    assert_eq!(lab.wanted(), 1, "they coalesce");
}

#[tokio::test]
async fn event_that_moves_no_ref_is_accepted_without_a_request() {
    let lab = Lab::new(Api::Answers);
    let (code, answer) = lab.event("issues", SECRET, "1", BODY).await;
    assert_eq!(
        (code, answer["verdict"].as_str(), lab.wanted()),
        (202, Some("ignored"), 0)
    );
}

#[tokio::test]
async fn current_and_previous_secret_are_accepted_others_rejected() {
    let lab = Lab::new(Api::Answers);
    for (secret, code) in [(SECRET, 202), ("before", 202), ("wrong", 401), ("", 401)] {
        let body = format!("{{\"of\":\"{secret}\"}}");
        assert_eq!(lab.push(secret, secret, &body).await.0, code, "{secret:?}");
    }
    assert_eq!(lab.post(UID, &SIGNED[..1], Body::from(BODY)).await.0, 401);
}

/// Other receivers make secrets optional (Atlantis, Argo CD #1142).
#[tokio::test]
async fn without_a_secret_every_delivery_is_rejected() {
    let (body, touched) = untouched();
    let lab = Lab::new(Api::Answers);
    assert_eq!(lab.post("open", &SIGNED[..1], body).await.0, 403);
    // Only the bytes discarded after a rejection are read.
    assert!(touched.load(Ordering::Relaxed) <= 17, "{touched:?}");
    for api in [Api::Empty, Api::Forbids] {
        assert_eq!(Lab::new(api).push("", "1", BODY).await.0, 403);
        assert_eq!(Lab::new(api).push(SECRET, "1", BODY).await.0, 403);
    }
    assert_eq!(
        Lab::new(Api::Fails).push(SECRET, "1", BODY).await.0,
        503,
        "not for ever"
    );
}

/// Unbounded memory before authentication (CVE-2024-40634, adnanh/webhook #756).
#[tokio::test]
async fn oversized_body_is_rejected_without_storing_it() {
    let lab = Lab::new(Api::Answers);
    let said = Body::from(vec![0; (25 << 20) + 1]);
    assert_eq!(lab.post(UID, &SIGNED, said).await.0, 413);
    assert_eq!(lab.asked("GET"), 0, "its sender says so: nothing is asked");
    let (endless, touched) = untouched();
    assert_eq!(lab.post(UID, &SIGNED, endless).await.0, 413);
    assert!(touched.load(Ordering::Relaxed) <= 400 + 18, "{touched:?}");
}

#[tokio::test(start_paused = true)]
async fn missing_body_times_out() {
    let lab = Lab::new(Api::Answers);
    let silent = Body::from_stream(stream::pending::<std::io::Result<Vec<u8>>>());
    assert_eq!(lab.post(UID, &SIGNED, silent).await.0, 408);
}

/// Other receivers try all secrets for each delivery, which reveals their number and causes requests to the cluster
/// (Burrito 11.25).
#[tokio::test]
async fn unknown_address_is_not_found_without_requests() {
    let lab = Lab::new(Api::Answers);
    for uid in [
        "unknown",
        "..",
        "%2e%2e%2fsecrets",
        &"a".repeat(5000),
        "team%2Fnet",
    ] {
        let signed = lab.post(uid, &SIGNED, Body::from(BODY)).await;
        let bare = lab.post(uid, &[], Body::empty()).await;
        assert_eq!((signed.0, &signed), (404, &bare), "{uid}");
    }
    assert!(lab.asked.lock().unwrap().is_empty());
    for _ in 0..100 {
        lab.push("wrong", "1", BODY).await;
    }
    let asked = lab.asked.lock().unwrap();
    assert_eq!(
        asked.len(),
        1,
        "one Secret by its name, and not for each: {asked:?}"
    );
}

#[tokio::test]
async fn unlisted_repositories_give_starting_instead_of_unknown() {
    let client = Lab::new(Api::Answers).client;
    let receiver = Arc::new(Receiver::new(client.clone(), ServerClock::default()));
    let _unlisted = receiver
        .repositories
        .listings
        .add::<crds::TerraformRepository>();
    let lab = Lab {
        receiver,
        client,
        asked: Asked::default(),
    };
    assert_eq!(lab.push(SECRET, "1", BODY).await.0, 503);
}

#[tokio::test]
async fn form_body_is_rejected_with_a_reason() {
    let lab = Lab::new(Api::Answers);
    let form = [
        ("authorization", "Bearer hush"),
        (
            "content-type",
            "application/x-www-form-urlencoded; charset=utf-8",
        ),
    ];
    let (code, answer) = lab.post(UID, &form, Body::from("payload=%7B%7D")).await;
    assert_eq!((code, lab.wanted()), (415, 0));
    assert!(
        answer["reason"]
            .as_str()
            .unwrap()
            .contains("application/json"),
        "{answer}"
    );
}

#[tokio::test]
async fn only_authenticated_deliveries_are_listed() {
    let lab = Lab::new(Api::Answers);
    lab.push(SECRET, "1", BODY).await;
    lab.event("issues", SECRET, "1", BODY).await;
    lab.push("wrong", "2", BODY).await;
    lab.post("unknown", &[], Body::empty()).await;
    let read = lab.read("ada", "net").await.1["items"]
        .as_array()
        .unwrap()
        .clone();
    let seen: Vec<_> = read
        .iter()
        .map(|one| {
            (
                one["repository"].as_str(),
                one["id"].as_str(),
                one["verdict"].as_str(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (Some("team/net"), Some("1"), Some("ignored")),
            (Some("team/net"), Some("1"), Some("accepted"))
        ]
    );
    let metrics = lab.metrics();
    for line in [
        r#"pawl_server_deliveries_total{forge="Gitea",verdict="accepted"} 1"#,
        r#"pawl_server_deliveries_total{forge="Gitea",verdict="ignored"} 1"#,
        r#"pawl_server_refused_total{reason="wrongProof"} 1"#,
        r#"pawl_server_refused_total{reason="unknown"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    // The forges' address does not serve them.
    let request = http::Request::get("/api/v1/namespaces/team/repositories/net/deliveries")
        .body(Body::empty())
        .unwrap();
    assert_eq!(answered(router(lab.receiver.clone()), request).await.0, 404);
}

#[tokio::test]
async fn only_posts_are_deliveries() {
    let lab = Lab::new(Api::Answers);
    for (method, path, code) in [
        ("GET", format!("/hooks/{UID}"), 405),
        ("POST", "/".into(), 404),
        ("POST", "/hooks/".into(), 404),
    ] {
        let request = http::Request::builder()
            .method(method)
            .uri(&path)
            .body(Body::empty())
            .unwrap();
        assert_eq!(
            answered(router(lab.receiver.clone()), request).await.0,
            code,
            "{path}"
        );
    }
}
