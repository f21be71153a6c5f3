use super::*;

/// Lines of a test cluster's log, without fields that are not read.
const RECORDED: &str = include_str!("recorded.jsonl");

const CHART: &str = r"
kind: ClusterRole
metadata:
  name: pawl-controller-nodes
rules:
  - {apiGroups: [''], resources: [nodes, namespaces], verbs: [list, watch]}
---
kind: Role
metadata:
  name: pawl-datastore-secrets
rules:
  - {apiGroups: [''], resources: [secrets], resourceNames: [pawl-datastore-certificate], verbs: [get]}
  - {apiGroups: [''], resources: [secrets], resourceNames: [other], verbs: [get]}
---
kind: ClusterRole
metadata:
  name: pawl-viewer
rules:
  - {apiGroups: [pawl.run], resources: [terraformruns], verbs: [get]}
";

fn read(text: &str) -> audit::Requests {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, text).unwrap();
    let (path, mut requests) = (file.path().to_owned(), audit::Requests::new());
    let log = Log { path, from: 0 };
    log.read(&mut requests).unwrap();
    requests
}

fn recorded() -> audit::Requests {
    read(RECORDED)
}

#[test]
fn requests_of_processes_are_read_with_their_part() {
    let of = |request: &audit::Request| {
        let audit::Request {
            part,
            verb,
            resource,
            ..
        } = request;
        format!("{part} {verb} {resource} {}", request.is_allowed)
    };
    assert_eq!(
        recorded().keys().map(of).collect::<Vec<_>>(),
        [
            "agent patch terraformruns/status true",
            "controller create terraformruns true",
            "controller watch namespaces true",
            "datastore get secrets true",
            "datastore patch secrets false",
        ],
        "kubectl's is none"
    );
}

#[test]
fn refusal_without_a_reason_is_named() {
    let mut requests = recorded();
    requests.retain(|request, _| request.part != "datastore");
    assert!(unexplained(&requests).is_empty(), "a probe has a reason");
    let mut request = recorded().into_keys().next().unwrap();
    request.refusal = Some("terraformruns … is forbidden: no reason".into());
    requests.insert(request, (2, "/apis/x".into()));
    assert_eq!(
        unexplained(&requests),
        [
            "agent: patch terraformruns/status, 2 times, first /apis/x: terraformruns … is forbidden: no reason"
        ]
    );
}

#[test]
fn right_is_used_by_a_request_of_its_account_and_name() {
    let uses = uses(&rights(CHART).unwrap(), &recorded());
    let of = |(right, used): (&String, &Use)| format!("{right} {}", used.is_used);
    assert_eq!(
        uses.iter().map(of).collect::<Vec<_>>(),
        [
            "controller: list namespaces false",
            "controller: list nodes false",
            "controller: watch namespaces true",
            "controller: watch nodes false",
            "datastore: get secrets other false",
            "datastore: get secrets pawl-datastore-certificate true",
        ]
    );
}

#[test]
fn lacking_right_is_explained_while_an_api_server_starts() {
    let event = |at: &str, user: &str, code: u16, decision: &str| {
        serde_json::json!({"verb": "get", "user": {"username": user}, "objectRef": {"resource": "clusterroles", "name": "cluster-admin"},
            "responseStatus": {"code": code, "message": "it cannot get"}, "stageTimestamp": format!("2026-11-28T00:{at}Z"),
            "annotations": {"authorization.k8s.io/decision": decision}})
    };
    let sources = "system:serviceaccount:pawl-system:pawl-sources";
    let refused = |at| event(at, sources, 403, "forbid").to_string();
    let start = event("10:00", "system:apiserver", 200, "allow").to_string();
    let unexplained = |lines: &[String]| unexplained(&read(&lines.join("\n"))).len();
    assert_eq!(
        unexplained(&[refused("09:59"), start.clone(), refused("10:01")]),
        0
    );
    assert_eq!(unexplained(&[start, refused("10:50")]), 1);
}
