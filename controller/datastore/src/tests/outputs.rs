//! Outputs: published after the claim, protected from older ones, not written over others' objects, read by other
//! stacks.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crds::{
    Claim, Operation, OutputRef, Outputs,
    datastore::{FORBIDDEN, StateId},
};

use super::{Answer, Lab};
use crate::{
    cluster::RunView,
    testing::{claim, view},
};

fn wanted(spec: &Value) -> Option<Outputs> {
    serde_json::from_value(spec.clone()).unwrap()
}

fn both() -> Option<Outputs> {
    let secret = json!({"name": "net-secret", "items": [{"output": "password"}]});
    wanted(&json!({"configMap": {"name": "net"}, "secret": secret, "status": true}))
}

fn state(serial: u64, lineage: &str, id: &str) -> Vec<u8> {
    let password = json!({"value": "hunter22", "type": "string", "sensitive": true});
    let outputs = json!({"id": {"value": id, "type": "string"}, "password": password});
    json!({"version": 4, "serial": serial, "lineage": lineage, "outputs": outputs})
        .to_string()
        .into_bytes()
}

/// The run `net` with a claim and outputs.
fn claimed(outputs: Option<Outputs>) -> RunView {
    RunView {
        claim: Some(claim(1)),
        outputs,
        ..view(1, true)
    }
}

impl Lab {
    fn publishing(run: RunView) -> Self {
        let lab = Self::new();
        lab.cluster.set(run);
        lab
    }

    async fn publish(&self, body: &[u8]) -> Answer {
        self.put("outputs", body).await
    }

    fn object(&self, kind: &str, name: &str) -> Option<Value> {
        let key = ("team".to_owned(), kind.to_owned(), name.to_owned());
        self.cluster
            .objects
            .lock()
            .unwrap()
            .get(&key)
            .map(|(_, data)| json!(data))
    }

    /// The published output `id`.
    fn id(&self) -> Value {
        self.object("ConfigMap", "net").unwrap()["id"].clone()
    }

    fn set_object(&self, of: &str) {
        let key = ("team".to_owned(), "ConfigMap".to_owned(), "net".to_owned());
        self.cluster.objects.lock().unwrap().insert(
            key,
            (of.to_owned(), [("mine".to_owned(), "x".to_owned())].into()),
        );
    }
}

#[tokio::test]
async fn sensitive_outputs_are_only_in_the_secret() {
    let lab = Lab::publishing(claimed(both()));
    let answer = lab.publish(&state(3, "l", "vpc-1")).await;
    let said = answer.json();
    assert_eq!(
        (answer.code, said["reason"].as_str()),
        (200, Some("Published")),
        "{said}"
    );
    assert_eq!(
        said["message"],
        "ConfigMap net (1 key), Secret net-secret (1 key)"
    );
    assert_eq!(said["values"], json!({"id": "vpc-1"}));
    assert_eq!(lab.id(), "vpc-1");
    assert_eq!(
        lab.object("Secret", "net-secret"),
        Some(json!({"password": "hunter22"}))
    );
    let stored = std::fs::read(lab.file("outputs/team/net/w-default")).unwrap();
    assert!(
        !String::from_utf8_lossy(&stored).contains("hunter22"),
        "encrypted"
    );
}

#[tokio::test]
async fn older_state_does_not_replace_newer_outputs() {
    let lab = Lab::publishing(claimed(both()));
    lab.publish(&state(3, "l", "new")).await;
    let said = lab.publish(&state(2, "l", "old")).await.json();
    assert!(
        said["message"]
            .as_str()
            .unwrap()
            .starts_with("newer outputs"),
        "{said}"
    );
    assert_eq!(lab.id(), "new");
    // An earlier claim, with a state of another lineage.
    let mut early = claim(1);
    early.at.0 -= std::time::Duration::from_secs(60);
    lab.cluster.set(RunView {
        claim: Some(early),
        ..claimed(both())
    });
    lab.publish(&state(9, "former", "old")).await;
    assert_eq!(lab.id(), "new");
    lab.cluster.set(claimed(both()));
    lab.publish(&state(1, "next", "newest")).await;
    assert_eq!(lab.id(), "newest");
}

#[tokio::test]
async fn objects_of_others_are_not_changed() {
    let lab = Lab::publishing(claimed(both()));
    lab.set_object("other/default");
    let said = lab.publish(&state(1, "l", "vpc-1")).await.json();
    assert_eq!(said["reason"], "ForeignObject", "{said}");
    assert_eq!(lab.object("ConfigMap", "net"), Some(json!({"mine": "x"})));
    assert!(
        lab.object("Secret", "net-secret").is_some(),
        "the other one is published"
    );
    // It is not deleted either.
    lab.cluster.set(RunView {
        operation: Operation::Destroy,
        ..claimed(both())
    });
    lab.publish(&state(2, "l", "")).await;
    assert!(
        lab.object("ConfigMap", "net").is_some() && lab.object("Secret", "net-secret").is_none()
    );
}

#[tokio::test]
async fn repair_restores_objects_but_not_in_a_recreated_namespace() {
    let lab = Lab::publishing(claimed(both()));
    lab.publish(&state(1, "l", "vpc-1")).await;
    lab.set_object("net/default");
    lab.cluster
        .objects
        .lock()
        .unwrap()
        .retain(|(_, kind, _), _| kind != "Secret");
    lab.service.outputs.repair().await.unwrap();
    assert_eq!(lab.id(), "vpc-1");
    assert!(lab.object("Secret", "net-secret").is_some());
    lab.cluster.objects.lock().unwrap().clear();
    lab.cluster
        .namespaces
        .lock()
        .unwrap()
        .insert("team".into(), "66666666-6666".into());
    lab.service.outputs.repair().await.unwrap();
    assert!(lab.cluster.objects.lock().unwrap().is_empty());
}

#[tokio::test]
async fn failed_publication_is_completed_by_the_repair() {
    let lab = Lab::publishing(claimed(both()));
    lab.cluster.unguarded.store(true, Ordering::Relaxed);
    let said = lab.publish(&state(1, "l", "vpc-1")).await.json();
    assert_eq!(said["reason"], "PolicyMissing", "{said}");
    assert!(
        lab.cluster.objects.lock().unwrap().is_empty(),
        "nothing is written that nobody confines"
    );
    lab.cluster.unguarded.store(false, Ordering::Relaxed);
    lab.service.outputs.repair().await.unwrap();
    assert!(lab.object("Secret", "net-secret").is_some());
}

#[tokio::test]
async fn former_objects_are_deleted_and_destroy_follows_the_spec() {
    let lab = Lab::publishing(claimed(both()));
    lab.publish(&state(1, "l", "vpc-1")).await;
    lab.cluster
        .set(claimed(wanted(&json!({"configMap": {"name": "renamed"}}))));
    lab.publish(&state(1, "l", "vpc-1")).await;
    let names: Vec<_> = lab
        .cluster
        .objects
        .lock()
        .unwrap()
        .keys()
        .map(|(.., name)| name.clone())
        .collect();
    assert_eq!(names, ["renamed"]);
    for (on_destroy, left) in [("Keep", 1), ("Delete", 0)] {
        let outputs = wanted(&json!({"configMap": {"name": "renamed"}, "onDestroy": on_destroy}));
        lab.cluster.set(RunView {
            operation: Operation::Destroy,
            ..claimed(outputs)
        });
        assert_eq!(lab.publish(&state(2, "l", "")).await.code, 200);
        assert_eq!(
            lab.cluster.objects.lock().unwrap().len(),
            left,
            "{on_destroy}"
        );
    }
}

#[tokio::test]
async fn before_the_claim_only_the_managed_state_is_published() {
    let lab = Lab::publishing(RunView {
        outputs: both(),
        ..view(1, true)
    });
    assert_eq!(
        lab.publish(&state(1, "l", "forged")).await.reason(),
        FORBIDDEN
    );
    let answer = lab.publish(b"").await;
    assert_eq!(
        (answer.code, lab.object("ConfigMap", "net")),
        (200, Some(json!({}))),
        "there is no state yet"
    );
    // A stack with its state on another backend has no managed state, so the absence proves nothing.
    lab.cluster.set(claimed(both()));
    lab.publish(&state(1, "l", "vpc-1")).await;
    lab.cluster.set(RunView {
        outputs: both(),
        ..view(1, true)
    });
    assert_eq!(
        (lab.publish(b"").await.code, lab.object("ConfigMap", "net")),
        (200, Some(json!({"id": "vpc-1"})))
    );
    let others = Claim {
        nonce: "f".repeat(32),
        ..claim(1)
    };
    lab.cluster.set(RunView {
        claim: Some(others),
        ..claimed(both())
    });
    assert_eq!(
        lab.publish(&state(1, "l", "forged")).await.reason(),
        FORBIDDEN
    );
}

#[tokio::test]
async fn another_stack_reads_the_outputs_of_its_own_spec() {
    let lab = Lab::publishing(claimed(both()));
    lab.publish(&state(1, "l", "vpc-1")).await;
    let of = |stack: &str, name: &str| OutputRef {
        stack: stack.into(),
        workspace: "default".into(),
        name: name.into(),
    };
    let takes = vec![
        of("net", "id"),
        of("net", "none"),
        of("net", "password"),
        of("../x", "id"),
    ];
    let state = StateId {
        stack: "app".into(),
        workspace: "default".into(),
    };
    lab.cluster.set(RunView {
        takes,
        state,
        outputs: None,
        ..claimed(None)
    });
    let values = |said: Value| {
        said.as_array()
            .unwrap()
            .iter()
            .map(|one| one["output"]["value"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        values(lab.get("outputs").await.json()),
        [json!("vpc-1"), Value::Null, json!("hunter22"), Value::Null]
    );
    lab.cluster.set(view(1, true));
    assert_eq!(lab.get("outputs").await.json(), json!([]));
}

#[tokio::test]
async fn why_an_output_is_missing_is_told_where_it_is_known() {
    let own = wanted(&json!({"configMap": {"name": "net"}}));
    let run = || claimed(own.clone());
    let lab = Lab::publishing(run());
    let reader = || RunView {
        takes: ["password", "gone", "none"]
            .map(|name| OutputRef {
                stack: "net".into(),
                workspace: "default".into(),
                name: name.into(),
            })
            .into(),
        state: StateId {
            stack: "app".into(),
            workspace: "default".into(),
        },
        ..claimed(None)
    };
    let whys = async || {
        lab.cluster.set(reader());
        let said = lab.get("outputs").await.json();
        lab.cluster.set(run());
        let of = |at: usize| said[at]["missing"].as_str().unwrap().to_owned();
        [of(0), of(1), of(2)]
    };
    assert_eq!(whys().await, ["Unpublished"; 3]);
    lab.publish(&state(1, "l", "a")).await;
    assert_eq!(whys().await, ["Withheld", "Unknown", "Unknown"]);
    let mut told: Value = serde_json::from_slice(&state(2, "l", "a")).unwrap();
    told["declared"] = json!(["id", "password", "gone"]);
    let said = lab.publish(told.to_string().as_bytes()).await.json();
    assert_eq!(said["reason"], "Published", "{said}");
    assert_eq!(whys().await, ["Withheld", "Null", "Absent"]);
    // With the managed state the pod tells the names alone, also before the claim.
    let requests = [
        ("PUT lock", &br#"{"ID": "a"}"#[..], "200"),
        ("PUT state?lock=a", &state(3, "l", "b"), "200"),
    ];
    lab.asks("pod-1", &requests).await;
    lab.cluster.set(RunView {
        claim: None,
        ..run()
    });
    lab.publish(br#"{"declared": ["id", "password", "none"]}"#)
        .await;
    assert_eq!(lab.id(), "b");
    assert_eq!(whys().await, ["Withheld", "Absent", "Null"]);
}
