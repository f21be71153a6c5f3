use super::*;
use crate::ledger::{self, what};
use crate::scripted_tool::http::{Answer, request};

async fn server() -> StateServer {
    StateServer::start("127.0.0.1:0".parse().unwrap()).await.unwrap()
}

async fn ask(method: &'static str, url: String, body: Value) -> Answer {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    tokio::task::spawn_blocking(move || request(method, &url, None, &body).unwrap()).await.unwrap()
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
async fn faults_are_used_up() {
    let server = server().await;
    let url = server.url("a");
    server.set_faults("a", Faults { posts: 1, lost_answers: 1, locks: 1, unlocks: 1, gets: 1, ..Faults::default() });
    for (serial, status) in [(1, 500), (2, 500), (3, 200)] {
        assert_eq!(ask("POST", url.clone(), json!({"serial": serial})).await.status, status);
    }
    assert_eq!(server.versions("a").len(), 2, "the second was written, only its answer was lost");
    for (method, status) in [("LOCK", 500), ("LOCK", 200), ("UNLOCK", 500), ("UNLOCK", 200)] {
        assert_eq!(ask(method, url.clone(), lock("one")).await.status, status);
    }
    for status in [500, 200] {
        assert_eq!(ask("GET", url.clone(), Value::Null).await.status, status);
    }
    server.set_faults("a", Faults { delay: std::time::Duration::from_millis(300), ..Faults::default() });
    let begun = std::time::Instant::now();
    ask("GET", url, Value::Null).await;
    assert!(begun.elapsed().as_millis() >= 300);
}

#[tokio::test]
async fn closed_states_need_credentials_and_closed_servers_refuse() {
    let server = server().await;
    server.set_access("a", Access::basic("u", "p"));
    assert_eq!(ask("GET", server.url("a"), Value::Null).await.status, 401);
    let url = server.url("a");
    let answer = tokio::task::spawn_blocking(move || request("GET", &url, Some(("u", "p")), b"").unwrap()).await.unwrap();
    assert_eq!(answer.status, 404);
    server.refuse().await;
    let url = server.url("a");
    assert!(tokio::task::spawn_blocking(move || request("GET", &url, None, b"")).await.unwrap().is_err());
    server.accept().await.unwrap();
    assert_eq!(ask("GET", server.url("b"), Value::Null).await.status, 404);
}

#[tokio::test]
async fn posted_lines_are_acknowledged_when_they_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ledger");
    let server = StateServer::with_ledger_file("127.0.0.1:0".parse().unwrap(), file.clone()).await.unwrap();
    let line = json!(Entry::new("pod", what::MARK, json!({"text": "x"})));
    for nth in 1..=2 {
        let answer = ask("POST", server.ledger_url(), line.clone()).await;
        assert_eq!(answer.body, json!({"seq": nth, "nth": nth}).to_string().as_bytes());
    }
    assert_eq!(ledger::read(&file).unwrap(), server.ledger());
    let all = ask("GET", server.ledger_url(), Value::Null).await;
    assert_eq!(ledger::parse(&String::from_utf8(all.body).unwrap()).unwrap().len(), 2);
    assert_eq!(ask("POST", server.ledger_url(), json!({"no": "entry"})).await.status, 400);
}
