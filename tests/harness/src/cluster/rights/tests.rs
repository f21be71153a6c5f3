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

fn recorded() -> audit::Requests {
    let read = RECORDED
        .lines()
        .filter_map(|line| audit::request(line.as_bytes()));
    let mut requests = audit::Requests::new();
    for (request, uri) in read {
        requests.entry(request).or_insert((0, uri)).0 += 1;
    }
    requests
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
