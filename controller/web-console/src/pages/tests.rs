//! The pages of one object, with an API server that permits what its test says.

use std::sync::Arc;

use axum::{
    body::{Body, to_bytes},
    http::{Method, Request, header},
};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::repository::{Delivery, Verdict};
use crate::{
    Console, router,
    rows::tests::{layer, run, show},
    testing::{api_server, console_of, name},
};

const READ: &str = "/apis/read.pawl.run/v1alpha1/namespaces/a/states/net-1";

fn forbidden() -> (u16, Value) {
    (
        403,
        json!({"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403}),
    )
}

/// The objects that the API server has. Only `ada` may list runs, and read the namespace and the state.
fn console() -> Arc<Console> {
    let api_server = api_server(|method, path, token, body| {
        let is_ada = token == "ada";
        match path {
            _ if path.contains("selfsubjectreviews") => name(token),
            _ if path.contains("selfsubjectaccessreviews") => {
                let of = &body["spec"]["resourceAttributes"];
                let allowed = is_ada && of["namespace"] == "a";
                (201, json!({"spec": {}, "status": {"allowed": allowed}}))
            }
            "/apis/pawl.run/v1alpha1/namespaces/a/terraformlayers/net" => {
                let status = json!({"currentRun": "r1", "stack": "net-1", "workspace": "blue"});
                (200, json!(layer("a", "net", &status)))
            }
            "/apis/pawl.run/v1alpha1/namespaces/a/terraformrepositories/infra" => (
                200,
                json!({"apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRepository", "metadata": {"namespace": "a", "name": "infra"},
                    "spec": {"url": "https://u:p@git.example/infra"}}),
            ),
            "/api/v1/namespaces/a" if is_ada => (
                200,
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a", "annotations": {"pawl.run/freeze": "true"}}}),
            ),
            _ if path == format!("{READ}?workspace=blue") && is_ada => (
                200,
                json!({"kind": "State", "metadata": {"name": "net-1"}, "stack": "net-1", "workspace": "blue", "namespaceUid": "u", "versionCount": 1,
                    "lock": {"id": "l", "run": "r1", "attempt": 2, "since": "2026-01-01T00:00:00Z", "info": {"Who": "x"}},
                    "versions": [{"number": 3, "at": "2026-01-01T00:00:00Z", "by": "run r1, attempt 1", "digest": "sha256:a", "size": 7}]}),
            ),
            _ if *method == Method::GET => forbidden(),
            _ => (500, json!({})),
        }
    });
    let mut console = console_of("http://127.0.0.1:8444", api_server);
    console.deliveries = Some(Box::new(|namespace, name| {
        vec![Delivery {
            time: serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap(),
            repository: format!("{namespace}/{name}"),
            forge: "Gitea",
            event: None,
            id: None,
            verdict: Verdict::Ignored,
            reason: Verdict::Ignored.reason(),
        }]
    }));
    let applies = json!({"phase": "Apply"});
    let runs = [
        run("a", "r1", "net", &applies),
        run("a", "other", "app", &applies),
        run("b", "r1", "net", &applies),
    ];
    show(&console.rows, &runs, &[layer("a", "net", &json!({}))]);
    Arc::new(console)
}

async fn get(who: &str, path: &str) -> (u16, Value) {
    let request = Request::get(format!("/api/v1/namespaces/{path}"))
        .header(header::AUTHORIZATION, format!("Bearer {who}"))
        .header(header::HOST, "127.0.0.1:8444")
        .body(Body::empty())
        .unwrap();
    let response = router(console()).oneshot(request).await.unwrap();
    let code = response.status().as_u16();
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

#[tokio::test]
async fn layer_has_its_row_its_state_and_its_own_runs() {
    let (code, page) = get("ada", "a/layers/net").await;
    assert_eq!((code, &page["row"]["state"]), (200, &json!("Applying")));
    let runs = page["runs"].as_array().unwrap();
    assert_eq!(
        (runs.len(), &runs[0]["name"]),
        (1, &json!("r1")),
        "{runs:?}"
    );
    assert_eq!(
        page["state"],
        json!({"stack": "net-1", "workspace": "blue"})
    );
    assert!(page["sequence"].as_str().unwrap().contains('-'));
    // `get` on the layer is no `list` of runs.
    let (code, page) = get("eve", "a/layers/net").await;
    assert_eq!((code, &page["runs"]), (200, &Value::Null));
}

#[tokio::test]
async fn held_lock_of_a_state_has_its_holder_and_its_removal() {
    let (code, page) = get("ada", "a/states/net-1?workspace=blue").await;
    assert_eq!((code, &page["lock"]["run"]), (200, &json!("r1")), "{page}");
    assert_eq!(page["versions"][0]["number"], 3);
    let line = page["unlock"]["kubectl"].as_str().unwrap();
    assert_eq!(
        line,
        format!(
            r#"echo '{{"workspace":"blue","reason":"REASON"}}' | kubectl create --raw {READ}/unlock -f -"#
        )
    );
    for (who, path) in [
        ("eve", "a/states/net-1?workspace=blue"),
        ("ada", "a/states/net-1?workspace=red"),
        ("ada", "a/states/net-1/outputs"),
    ] {
        assert_eq!(get(who, path).await.0, 403, "{who} {path}");
    }
    let (code, _) = get("ada", "a/states/net-1?workspace=a%2Fb").await;
    assert_eq!(code, 400);
}

#[tokio::test]
async fn freeze_of_a_hidden_namespace_is_not_known() {
    let of = async |who| get(who, "a").await.1;
    let acts = |page: &Value| {
        page["acts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|act| act["act"].clone())
            .collect::<Vec<_>>()
    };
    let (seen, hidden) = (of("ada").await, of("eve").await);
    assert_eq!(
        (&seen["frozen"], acts(&seen)),
        (&json!(true), vec![json!("unfreeze")])
    );
    assert_eq!((&hidden["frozen"], acts(&hidden).len()), (&Value::Null, 2));
}

#[tokio::test]
async fn repository_has_its_deliveries_and_no_credentials_in_its_row() {
    let (code, page) = get("eve", "a/repositories/infra").await;
    assert_eq!(
        (code, &page["row"]["url"]),
        (200, &json!("https://git.example/infra"))
    );
    assert_eq!(page["deliveries"][0]["repository"], "a/infra");
    assert_eq!(page["deliveries"][0]["verdict"], "ignored");
    assert!(page["deliveriesSince"].is_string(), "{page}");
    // Deliveries of a repository that the person may not read are not told.
    assert_eq!(get("eve", "a/repositories/other").await.0, 403);
}
