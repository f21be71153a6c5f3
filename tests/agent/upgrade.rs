//! An agent next to another version (`design/0014-upgrades.md`): the real driver on a run with unknown values and fields, and under a
//! policy that admits only another minor release.

use crate::{
    common::{PATIENCE, manual, start, start_with},
    memory_api::{Fault, MemoryApi},
};
use crds::{FailureClass, RunResult, pod_env, reason, release};
use harness::wait;
use serde_json::json;

#[tokio::test]
async fn unknown_word_delays_the_adoption() {
    for (pointer, word, known) in [
        ("/status/phase", "Paused", "Pending"),
        ("/spec/operation", "Refresh", "Apply"),
        ("/spec/approval/mode", "TwoPeople", "Automatic"),
        ("/spec/tool", "", ""),
    ] {
        let put = |api: &MemoryApi, to: &str| {
            api.change(|run| match pointer {
                "/spec/tool" if to.is_empty() => run["spec"]["tool"] = json!({"name": "Another"}),
                "/spec/tool" => run["spec"]["tool"] = json!({}),
                _ => {
                    let (parent, field) = pointer.rsplit_once('/').unwrap();
                    run.pointer_mut(parent).unwrap()[field] = to.into();
                }
            });
        };
        let mut a = start_with(&json!({}), &[], |_, api| put(api, word));
        let looked = async || Ok(a.api.gets() >= 4);
        wait::until(format!("{pointer}: it looks again"), PATIENCE, looked)
            .await
            .unwrap();
        assert_eq!((a.api.writes(), a.ledger().len()), (0, 0), "{pointer}");
        assert!(a.api.status().adopted.is_none(), "{pointer}");
        put(
            &a.api,
            if pointer == "/spec/tool" {
                "known"
            } else {
                known
            },
        );
        assert_eq!(a.end().await, 0, "{pointer}");
        assert_eq!(a.api.status().result, Some(RunResult::Applied), "{pointer}");
    }
}

#[tokio::test]
async fn unknown_word_prevents_the_claim() {
    let mut a = start(&manual(), &[]);
    a.waits().await;
    a.api.change(|run| run["status"]["phase"] = "Paused".into());
    a.api.approve();
    assert_eq!(a.end().await, 1);
    assert_eq!((a.ran("apply"), a.api.status().claim), (0, None));
    assert_eq!(
        a.api.state.lock().unwrap().object["status"]["phase"],
        "Paused",
        "it is written by nobody else"
    );
    assert!(
        a.message().is_none(),
        "an attempt that is in other hands says nothing of its run"
    );
}

#[tokio::test]
async fn unknown_fields_survive_every_write() {
    let scan = json!({"name": "scan", "attempt": 0, "startedAt": "2026-11-21T10:00:00Z", "exitCode": 0, "newer": {"found": [1, 2]}});
    let line = "10:00:00  Scan  0.1s  a phase of a newer version";
    let mut a = start_with(&json!({"newer": "x"}), &[], |_, api| {
        api.change(|run| {
            let status = &mut run["status"];
            status["newer"] = json!({"word": "x", "list": [{"a": 1}]});
            status["attempt"]["newer"] = "x".into();
            status["steps"] = json!([scan]);
            status["history"] = json!([line]);
        });
    });
    assert_eq!(a.ends(0).await.result, Some(RunResult::Applied));
    let run = a.api.state.lock().unwrap().object.clone();
    for (pointer, wanted) in [
        ("/spec/newer", json!("x")),
        ("/status/newer", json!({"word": "x", "list": [{"a": 1}]})),
        ("/status/attempt/newer", json!("x")),
        ("/status/steps/0", scan),
        ("/status/history/0", json!(line)),
    ] {
        assert_eq!(run.pointer(pointer), Some(&wanted), "{pointer}");
    }
    // Its own writes contain none of it, except in the lists, which are written as a whole.
    let writes = a.api.state.lock().unwrap().writes.clone();
    let paths: Vec<&str> = writes
        .iter()
        .flat_map(|w| w.as_array().unwrap())
        .filter_map(|o| o["path"].as_str())
        .collect();
    assert!(
        paths.iter().all(|path| !path.contains("newer")
            && *path != "/status/attempt"
            && *path != "/status"),
        "{paths:?}"
    );
}

#[tokio::test]
async fn agent_of_another_minor_release_ends() {
    let rows = [
        (
            json!({"runner": {"image": "mine"}}),
            false,
            FailureClass::Configuration,
        ),
        (json!({}), true, FailureClass::Configuration),
        // The next attempt has the controller's image.
        (json!({}), false, FailureClass::Interrupted),
    ];
    for (spec, restores, class) in rows {
        // A lost reply before it tells nothing.
        let faults = [Some(Fault::Lost), Some(Fault::OtherRelease)];
        let mut a = start_with(&spec, &[], |settings, api| {
            settings.restores = restores;
            api.fail(&faults);
        });
        assert_eq!(a.end().await, pod_env::EXIT_NO_RESULT, "{spec}");
        assert_eq!((a.api.writes(), a.ledger().len()), (0, 0), "{spec}");
        let message = a.message().unwrap();
        let failure = message.failure.unwrap();
        assert_eq!(
            (message.result, failure.class, failure.reason.as_str()),
            (None, class, reason::IMAGE_VERSION),
            "{spec}"
        );
        let text = format!(
            "the agent of this image is not of release 9.9 but of version {}; nothing was begun",
            release::VERSION
        );
        assert_eq!(failure.message, text, "{spec}");
    }
}

/// The adoption landed, and the policy changed before its reply came.
#[tokio::test]
async fn landed_adoption_survives_another_policy() {
    let mut a = start_with(&json!({}), &[], |_, api| {
        api.fail(&[Some(Fault::LandedLost), Some(Fault::OtherRelease)]);
    });
    assert_eq!(a.ends(0).await.result, Some(RunResult::Applied));
}
