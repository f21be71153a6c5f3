use super::*;
use crate::ledger;
use crate::scripted_tool::http::{Answer, request};

async fn server() -> StateServer {
    StateServer::start("127.0.0.1:0".parse().unwrap()).await.unwrap()
}

async fn ask(method: &'static str, url: String, body: Value) -> Answer {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    tokio::task::spawn_blocking(move || request(method, &url, &body).unwrap()).await.unwrap()
}

fn lock(id: &str) -> Value {
    json!(LockInfo::stranger(id, &format!("user@{id}")))
}

#[tokio::test]
async fn only_the_holder_writes_and_unlocks() {
    let server = server().await;
    let url = server.url("team/a");
    assert_eq!(ask("GET", url.clone(), Value::Null).await.status, 404);
    assert_eq!(ask("LOCK", url.clone(), lock("one")).await.status, 200);
    assert_eq!(ask("LOCK", url.clone(), lock("one")).await.status, 200, "asked again after a lost answer");
    let refused = ask("LOCK", url.clone(), lock("two")).await;
    assert_eq!(refused.status, 423);
    assert_eq!(serde_json::from_slice::<LockInfo>(&refused.body).unwrap().who, "user@one");
    assert_eq!(ask("POST", format!("{url}?ID=two"), json!({"serial": 1})).await.status, 423);
    assert_eq!(ask("POST", url.clone(), json!({"serial": 1})).await.status, 423);
    assert_eq!(ask("POST", format!("{url}?ID=one"), json!({"serial": 1})).await.status, 200);
    assert_eq!(ask("UNLOCK", url.clone(), lock("two")).await.status, 423);
    assert_eq!(server.lock("team/a").unwrap().id, "one");
    assert_eq!(ask("LOCK", url.clone(), json!({"Who": "nobody"})).await.status, 400);
    assert_eq!(ask("UNLOCK", url.clone(), lock("one")).await.status, 200);
    assert_eq!(ask("POST", format!("{url}?ID=one"), json!({"serial": 2})).await.status, 409, "the lock is gone");
    assert_eq!(ask("GET", url.clone(), Value::Null).await.body, b"{\"serial\":1}");
    let told: Vec<String> = server.ledger().into_iter().map(|entry| format!("{} {}", entry.who, entry.what)).collect();
    let expected = [
        "one lock",
        "two lock_refused",
        "one write_refused",
        "one write_refused",
        "one write",
        "two unlock_refused",
        "one unlock",
        " write_refused",
    ];
    assert_eq!(told, expected);
    assert_eq!(ledger::violations(&server.ledger()).len(), 4);
}

#[tokio::test]
async fn an_unlock_by_force_is_done_and_told() {
    let server = server().await;
    let url = server.url("a");
    // Terraform's `force-unlock` sends no body, OpenTofu's sends the id alone.
    for body in [Value::Null, json!({"ID": "one"})] {
        assert_eq!(ask("LOCK", url.clone(), json!({"ID": "one", "Who": "user@one"})).await.status, 200);
        assert_eq!(server.lock("a").unwrap().created, "0001-01-01T00:00:00Z", "an empty time cannot be read by the tools");
        assert_eq!(ask("UNLOCK", url.clone(), body).await.status, 200);
        assert_eq!(server.lock("a"), None);
    }
    assert_eq!(ledger::violations(&server.ledger()).len(), 2);
}

#[tokio::test]
async fn every_version_is_kept() {
    let server = server().await;
    let url = server.url("a");
    for serial in 1..=2 {
        assert_eq!(ask("POST", url.clone(), json!({"serial": serial})).await.status, 200);
    }
    assert_eq!(ask("DELETE", url.clone(), Value::Null).await.status, 200);
    let serials: Vec<Value> = server.versions("a").iter().map(|version| version.json()["serial"].clone()).collect();
    assert_eq!(serials, [json!(1), json!(2), Value::Null]);
    assert_eq!((server.current("a"), server.versions("b").len()), (None, 0));
    assert_eq!(ask("GET", url, Value::Null).await.status, 404);
}

#[tokio::test]
async fn writes_fail_as_often_as_asked() {
    let server = server().await;
    server.fail_writes("a", 1);
    for (serial, status) in [(1, 500), (2, 200)] {
        assert_eq!(ask("POST", server.url("a"), json!({"serial": serial})).await.status, status);
    }
    assert_eq!(server.versions("a").len(), 1);
}

#[tokio::test]
async fn posted_lines_are_acknowledged_and_kept() {
    let server = server().await;
    let line = json!(Entry::new("pod", ledger::what::MARK, json!({"text": "x"})));
    for nth in 1..=2 {
        let answer = ask("POST", server.ledger_url(), line.clone()).await;
        assert_eq!(answer.body, json!({"seq": nth, "nth": nth}).to_string().as_bytes());
    }
    assert_eq!(server.ledger().len(), 2);
    assert_eq!(ask("POST", server.ledger_url(), json!({"no": "entry"})).await.status, 400);
}
