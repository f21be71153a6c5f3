//! The read API.

use std::{sync::atomic::Ordering, time::Duration};

use axum::{body::Body, http::Request};
use futures::{Stream, StreamExt as _};
use serde_json::json;

use crds::datastore::{HEADER_LOG_LENGTH, LOG_PHASES};

use super::{Lab, view};
use crate::{
    cluster::RunView,
    names::{LogKey, RunKey},
};

type Piece = Result<bytes::Bytes, axum::Error>;

impl Lab {
    /// The text that a person reads of the run `net`, or the code of the refusal.
    async fn reads(&self, what: &str) -> String {
        let answer = self
            .of_person("GET", &format!("terraformruns/net/{what}"), b"")
            .await;
        if answer.code == 200 {
            answer.text().to_owned()
        } else {
            answer.code.to_string()
        }
    }
}

#[tokio::test]
async fn read_api_needs_the_api_server() {
    let lab = Lab::new();
    lab.asks("pod-1", &[("PUT objects/plan", b"+ aws_vpc.main", "201")])
        .await;
    let path = "/apis/read.pawl.run/v1alpha1/namespaces/team/terraformruns/net/plan";
    let headers = [("authorization", "Bearer pod-1"), ("X-Remote-User", "ada")];
    assert_eq!(
        lab.send("GET", path, &headers, Body::empty()).await.code,
        401,
        "before it is known who the API server is"
    );
    assert_eq!(lab.reads("plan").await, "+ aws_vpc.main");
    let refused = lab.send("GET", path, &headers, Body::empty()).await;
    assert_eq!(
        (refused.code, refused.json()["kind"].clone()),
        (401, json!("Status")),
        "no certificate"
    );
    let request = || {
        Request::builder()
            .uri(path)
            .header("X-Remote-User", "ada")
            .body(Body::empty())
            .unwrap()
    };
    assert_eq!(
        super::answer(&lab.service, request(), Some("somebody"))
            .await
            .status(),
        401,
        "another certificate"
    );
    assert_eq!(
        super::answer(&lab.service, request(), Some("front-proxy"))
            .await
            .status(),
        200
    );
    for path in [
        "/apis",
        "/apis/read.pawl.run",
        "/apis/read.pawl.run/v1alpha1",
    ] {
        assert_eq!(lab.send("GET", path, &[], Body::empty()).await.code, 200);
    }
}

#[tokio::test]
async fn newest_plan_is_default_and_older_ones_have_numbers() {
    let lab = Lab::new();
    assert_eq!(lab.reads("plan").await, "404");
    assert_eq!(
        lab.of_person("GET", "terraformruns/none/plan", b"")
            .await
            .json()["reason"],
        "NotFound"
    );
    lab.asks("pod-1", &[("PUT objects/plan", b"first", "201")])
        .await;
    lab.cluster.set(view(2, true));
    lab.asks(
        "pod-2",
        &[
            ("PUT objects/plan", b"second", "201"),
            ("PUT objects/planjson", b"{}", "201"),
        ],
    )
    .await;
    lab.cluster.set(view(3, true));
    assert_eq!(lab.reads("plan").await, "second");
    assert_eq!(lab.reads("plan?attempt=1").await, "first");
    assert_eq!(lab.reads("planjson").await, "{}");
    // Burrito 11.21: each page view lists all objects.
    let reads = || {
        (
            lab.cluster.reads.load(Ordering::Relaxed),
            lab.cluster.lists.load(Ordering::Relaxed),
        )
    };
    let before = reads();
    for path in ["terraformruns/net/plan", "terraformruns/net/log", "states"] {
        assert_eq!(lab.of_person("GET", path, b"").await.code, 200, "{path}");
    }
    assert!(
        reads().0 <= before.0 + 3 && reads().1 == before.1,
        "{before:?} {:?}",
        reads()
    );
}

#[tokio::test]
async fn errors_have_the_api_servers_format() {
    let lab = Lab::new();
    for (path, code, says) in [
        (
            "terraformruns/net/log?phase=foo",
            400,
            "they are setup, init, plan",
        ),
        (
            "terraformruns/net/plan?attempt=x",
            400,
            "invalid number of an attempt",
        ),
        ("terraformruns/net/nothing", 404, "no such path"),
    ] {
        let answer = lab.of_person("GET", path, b"").await;
        let status = answer.json();
        assert_eq!(
            (answer.code, &status["kind"], &status["code"]),
            (code, &json!("Status"), &json!(code)),
            "{path}"
        );
        assert!(
            status["message"].as_str().unwrap().contains(says),
            "{status}"
        );
    }
}

#[tokio::test]
async fn logs_of_all_attempts_are_joined_with_headings() {
    let lab = Lab::new();
    for (phase, text) in [("setup", "s\n"), ("plan", "p\n")] {
        assert_eq!(
            lab.put(&format!("log/{phase}?offset=0"), text.as_bytes())
                .await
                .code,
            200
        );
    }
    lab.cluster.set(view(2, true));
    lab.asks("pod-2", &[("PUT log/apply?offset=0", b"a\n", "200")])
        .await;
    let all = lab.of_person("GET", "terraformruns/net/log", b"").await;
    assert_eq!(
        all.text(),
        "--- attempt 1, setup ---\ns\n--- attempt 1, plan ---\np\n--- attempt 2, apply ---\na\n"
    );
    assert_eq!(lab.reads("log?attempt=1").await, "s\np\n");
    assert_eq!(lab.reads("log?phase=apply").await, "a\n");
    assert_eq!(
        lab.reads("log?phase=plan").await,
        "",
        "of the newest attempt"
    );
    assert_eq!(lab.reads("log?attempt=3").await, "404");
}

/// Asserts that the follower receives this next.
async fn hears(body: &mut (impl Stream<Item = Piece> + Unpin), wanted: &str) {
    let mut heard = String::new();
    while heard.len() < wanted.len() {
        let piece = tokio::time::timeout(Duration::from_secs(60), body.next()).await;
        let piece =
            piece.unwrap_or_else(|_| panic!("no more than `{heard}` in place of `{wanted}`"));
        let piece =
            piece.unwrap_or_else(|| panic!("the end after `{heard}` in place of `{wanted}`"));
        heard.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
    }
    assert_eq!(heard, wanted);
}

/// Asserts that the follower receives nothing for one second, and the stream stays open.
async fn waits(body: &mut (impl Stream<Item = Piece> + Unpin)) {
    let next = tokio::time::timeout(Duration::from_secs(1), body.next()).await;
    assert!(next.is_err(), "{next:?}");
}

/// Asserts that the stream ends.
async fn ends(body: &mut (impl Stream<Item = Piece> + Unpin)) {
    let next = tokio::time::timeout(Duration::from_secs(60), body.next())
        .await
        .expect("an end");
    assert!(next.is_none(), "{next:?}");
}

async fn follow(lab: &Lab, query: &str) -> impl Stream<Item = Piece> + Unpin + use<> {
    // Makes the front proxy known.
    assert_eq!(
        lab.of_person("GET", "terraformruns/net/log", b"")
            .await
            .code,
        200
    );
    let path = format!(
        "/apis/read.pawl.run/v1alpha1/namespaces/team/terraformruns/net/log?follow=true&{query}"
    );
    let request = Request::builder()
        .uri(path)
        .header("X-Remote-User", "ada")
        .body(Body::empty())
        .unwrap();
    let response = super::answer(&lab.service, request, Some("front-proxy")).await;
    assert_eq!(response.status(), 200);
    response.into_body().into_data_stream()
}

#[tokio::test]
async fn log_is_followed_to_its_end() {
    let lab = Lab::new();
    lab.asks("pod-1", &[("PUT log/plan?offset=0", b"one\n", "200")])
        .await;
    let mut body = follow(&lab, "phase=plan").await;
    hears(&mut body, "one\n").await;
    waits(&mut body).await;
    lab.asks("pod-1", &[("PUT log/plan?offset=4", b"two\n", "200")])
        .await;
    hears(&mut body, "two\n").await;
    waits(&mut body).await;
    // Appends through another replica.
    let other = super::service(lab.folder.path(), lab.keys.path(), &lab.cluster);
    let key = LogKey {
        run: RunKey::new("team", &view(1, true).uid).unwrap(),
        attempt: 1,
        phase: "plan",
    };
    other
        .0
        .logs
        .append(&key, 8, b"three\n", false)
        .await
        .unwrap();
    hears(&mut body, "three\n").await;
    waits(&mut body).await;
    other
        .0
        .logs
        .append(&key, 14, b"four\n", true)
        .await
        .unwrap();
    hears(&mut body, "four\n").await;
    ends(&mut body).await;
}

#[tokio::test]
async fn follower_without_phase_reads_all_phases_to_the_run_end() {
    let lab = Lab::new();
    let mut body = follow(&lab, "").await;
    waits(&mut body).await;
    lab.asks(
        "pod-1",
        &[("PUT log/setup?offset=0&end=true", b"s\n", "200")],
    )
    .await;
    // The log of init gets no end mark: its phase is over when the next one has output.
    lab.asks(
        "pod-1",
        &[
            ("PUT log/init?offset=0", b"i\n", "200"),
            ("PUT log/plan?offset=0", b"p\n", "200"),
        ],
    )
    .await;
    hears(
        &mut body,
        "--- attempt 1, setup ---\ns\n--- attempt 1, init ---\ni\n--- attempt 1, plan ---\np\n",
    )
    .await;
    waits(&mut body).await;
    lab.cluster.set(view(2, true));
    lab.asks("pod-2", &[("PUT log/plan?offset=0", b"q\n", "200")])
        .await;
    hears(&mut body, "--- attempt 2, plan ---\nq\n").await;
    waits(&mut body).await;
    lab.cluster.set(RunView {
        terminal: true,
        ..view(2, false)
    });
    ends(&mut body).await;
}

#[tokio::test]
async fn follower_survives_an_outage_of_the_api_server() {
    let lab = Lab::new();
    let mut body = follow(&lab, "").await;
    for phase in LOG_PHASES {
        let ended = format!("PUT log/{phase}?offset=0&end=true");
        lab.asks("pod-1", &[(&ended, b"x\n", "200")]).await;
        hears(&mut body, &format!("--- attempt 1, {phase} ---\nx\n")).await;
    }
    // Longer than a read of the run is cached.
    lab.cluster.down.store(true, Ordering::Relaxed);
    waits(&mut body).await;
    waits(&mut body).await;
    lab.cluster.down.store(false, Ordering::Relaxed);
    waits(&mut body).await;
    lab.cluster.set(RunView {
        terminal: true,
        ..view(1, false)
    });
    ends(&mut body).await;
}

#[tokio::test]
async fn follower_of_a_deleted_run_ends() {
    let lab = Lab::new();
    lab.asks("pod-1", &[("PUT log/plan?offset=0", b"p\n", "200")])
        .await;
    let mut body = follow(&lab, "phase=plan").await;
    hears(&mut body, "p\n").await;
    waits(&mut body).await;
    lab.cluster.remove(&view(1, true));
    ends(&mut body).await;
}

#[tokio::test]
async fn follower_continues_at_its_offset() {
    let lab = Lab::new();
    lab.asks("pod-1", &[("PUT log/plan?offset=0", b"one\ntwo\n", "200")])
        .await;
    let mut cut = follow(&lab, "phase=plan&attempt=1&offset=2").await;
    hears(&mut cut, "e\ntwo\n").await;
    // Nothing is repeated after the last byte.
    let mut body = follow(&lab, "phase=plan&attempt=1&offset=8").await;
    waits(&mut body).await;
    lab.asks(
        "pod-1",
        &[("PUT log/plan?offset=8&end=true", b"three\n", "200")],
    )
    .await;
    hears(&mut body, "three\n").await;
    ends(&mut body).await;
}

#[tokio::test]
async fn part_of_a_log_has_the_length_of_the_whole() {
    let lab = Lab::new();
    lab.asks("pod-1", &[("PUT log/plan?offset=0", b"one\ntwo\n", "200")])
        .await;
    for (query, text, length) in [
        ("phase=plan&attempt=1&offset=4", "two\n", Some("8")),
        ("phase=plan&attempt=1", "one\ntwo\n", Some("8")),
        ("phase=init&attempt=1", "", Some("0")),
        ("phase=plan", "one\ntwo\n", None),
    ] {
        let path = format!("terraformruns/net/log?{query}");
        let answer = lab.of_person("GET", &path, b"").await;
        let told = answer.headers.get(HEADER_LOG_LENGTH);
        assert_eq!(
            (answer.text(), told.map(|it| it.to_str().unwrap())),
            (text, length),
            "{query}"
        );
    }
}

#[tokio::test]
async fn follower_above_the_bound_is_told() {
    let lab = Lab::new();
    lab.asks("pod-1", &[("PUT log/plan?offset=0", b"one\n", "200")])
        .await;
    let all = u32::try_from(lab.service.follows.available_permits()).unwrap();
    let held = lab.service.follows.try_acquire_many(all).unwrap();
    let path = "terraformruns/net/log?phase=plan&follow=true";
    let refused = lab.of_person("GET", path, b"").await;
    let message = refused.json()["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert_eq!(refused.code, 503);
    assert!(
        message.contains("too many logs are read at a time"),
        "{message}"
    );
    drop(held);
    assert_eq!(lab.reads("log?phase=plan").await, "one\n");
}
