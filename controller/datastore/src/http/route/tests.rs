//! Valid and invalid paths.

use std::sync::LazyLock;

use axum::{body::Body, http::Method};
use futures::FutureExt as _;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tower::ServiceExt as _;

use crds::datastore::{NOT_FOUND, attempt_path};

use super::*;

/// Parses a request; `Invalid` when its path is not valid HTTP.
pub(crate) fn asked(method: &Method, path: &str) -> Result<Route, Problem> {
    static ROUTER: LazyLock<Router> = LazyLock::new(|| {
        router(|route, _| {
            let mut answer = Response::default();
            answer.extensions_mut().insert(route);
            Box::pin(std::future::ready(answer))
        })
    });
    let request = Request::builder()
        .method(method)
        .uri(path)
        .body(Body::empty())
        .map_err(|_| invalid("no path"))?;
    let answer = ROUTER
        .clone()
        .oneshot(request)
        .now_or_never()
        .unwrap()
        .unwrap();
    answer
        .extensions()
        .get::<Result<Route, Problem>>()
        .unwrap()
        .clone()
}

fn of(method: &Method, path: &str) -> Result<Route, String> {
    asked(method, path).map_err(|problem| problem.reason)
}

#[test]
fn protocol_paths_are_parsed() {
    let base = attempt_path("team", "net", 2);
    let ask = |method, rest: &str| match of(&method, &format!("{base}/{rest}")) {
        Ok(Route::Attempt {
            namespace,
            run,
            attempt,
            ask,
            query,
        }) => {
            assert_eq!(
                (namespace.as_str(), run.as_str(), attempt),
                ("team", "net", 2)
            );
            (ask, query)
        }
        other => panic!("{rest}: {other:?}"),
    };
    assert_eq!(
        ask(Method::PUT, "objects/bundle").0,
        Ask::Put(ObjectKind::Bundle)
    );
    assert_eq!(
        ask(Method::GET, "objects/plan").0,
        Ask::Get(ObjectKind::Plan)
    );
    assert_eq!(
        ask(Method::GET, "objects/planjson/digest").0,
        Ask::Digest(ObjectKind::PlanJson)
    );
    let (log, query) = ask(Method::PUT, "log/plan?offset=12&end=true");
    assert_eq!((log, query.offset, query.end), (Ask::Log("plan"), 12, true));
    let (journal, query) = ask(Method::PUT, "log/journal?offset=7");
    assert_eq!(
        (journal, query.offset, ask(Method::GET, "recover").0),
        (Ask::Log("journal"), 7, Ask::Recover)
    );
    assert_eq!(
        ask(Method::PUT, "state?lock=a%2Fb").1.lock.as_deref(),
        Some("a/b")
    );
    assert_eq!(ask(Method::DELETE, "lock?lock=x").0, Ask::Unlock);
    let uid = "/v1/namespaces/team/uids/0b9c1a4e-1f7e";
    let run = RunKey::new("team", "0b9c1a4e-1f7e").unwrap();
    let lock = Route::Uid {
        run: run.clone(),
        ask: UidAsk::ReleaseLock,
    };
    assert_eq!(of(&Method::DELETE, &format!("{uid}/lock")), Ok(lock));
    assert_eq!(
        of(&Method::DELETE, uid),
        Ok(Route::Uid {
            run: run.clone(),
            ask: UidAsk::Delete
        })
    );
    let snapshots = crds::datastore::snapshots_path("team", "0b9c1a4e-1f7e");
    let (of_repository, commit) = (
        RepositoryKey::new("team", "0b9c1a4e-1f7e").unwrap(),
        "a".repeat(40),
    );
    for (method, rest, ask) in [
        (
            Method::PUT,
            format!("/{commit}"),
            SnapshotAsk::Put(commit.clone()),
        ),
        (
            Method::GET,
            format!("/{commit}/digest"),
            SnapshotAsk::Digest(commit.clone()),
        ),
        (Method::GET, String::new(), SnapshotAsk::List),
        (
            Method::DELETE,
            format!("/{commit}"),
            SnapshotAsk::Delete(commit.clone()),
        ),
    ] {
        let route = Route::Snapshots {
            of: of_repository.clone(),
            ask,
        };
        assert_eq!(of(&method, &format!("{snapshots}{rest}")), Ok(route));
        assert_eq!(
            of(&method, &format!("{snapshots}{rest}?x=1")),
            Err(NOT_FOUND.into())
        );
    }
    for trick in ["main", "..", "%2e%2e", &"A".repeat(40), &"a".repeat(41)] {
        assert!(
            of(&Method::DELETE, &format!("{snapshots}/{trick}")).is_err(),
            "{trick}"
        );
    }
    assert_eq!(ask(Method::GET, "source").0, Ask::Source);
    assert_eq!(
        of(&Method::DELETE, &format!("{uid}?only=bundle")),
        Ok(Route::Uid {
            run,
            ask: UidAsk::DeleteBundles
        })
    );
}

#[test]
fn malicious_paths_are_not_found() {
    let base = attempt_path("team", "net", 2);
    for path in [
        "/v1/namespaces/team/runs/../attempts/2/claim",
        "/v1/namespaces/team/runs/%2e%2e/attempts/2/claim",
        "/v1/namespaces/a%2fb/runs/net/attempts/2/claim",
        "/v1/namespaces//runs/net/attempts/2/claim",
        "//v1/namespaces/team/runs/net/attempts/2/claim",
        "/v1/namespaces/team/runs/net/attempts/0/claim",
        "/v1/namespaces/team/runs/net/attempts/2/claim/",
        "/v1/namespaces/team/runs/net/attempts/2/../1/claim",
        "/v1/namespaces/team/uids/../claim",
        "/v1/namespaces/team/uids/0b9c1a4e/source/%2e%2e",
        "/v1/namespaces/team/uids/0b9c1a4e/source/a%2fb",
    ] {
        assert!(
            of(&Method::PUT, path).is_err() && of(&Method::GET, path).is_err(),
            "{path}"
        );
    }
    for rest in [
        "objects/../result",
        "objects/key",
        "log/plan",
        "log/plan?offset=-1",
        "log/plan?offset=1&offset=2",
        "log/x?offset=0",
        "log/plan?offset=99999999999",
        "state",
        "state?lock=",
        "state?lock=%0a",
        "state?lock=%zz",
        "state?lock=a&lock=b",
        "claim?x=1",
    ] {
        assert!(
            of(&Method::PUT, &format!("{base}/{rest}")).is_err(),
            "{rest}"
        );
    }
    assert_eq!(
        of(&Method::DELETE, "/v1/namespaces/team/uids/u1?only=bundles"),
        Err("Invalid".into())
    );
    assert_eq!(
        of(&Method::DELETE, "/v1/namespaces/team/uids/u1?"),
        Err("Invalid".into())
    );
    let long = asked(&Method::GET, &format!("/{}", "x".repeat(5000))).unwrap_err();
    assert_eq!(long.message, "the path is too long");
    for method in [Method::HEAD, Method::POST, Method::OPTIONS] {
        let wrong = asked(&method, crds::datastore::WANTED_PATH).unwrap_err();
        assert_eq!(
            (wrong.reason.as_str(), wrong.message.as_str()),
            (NOT_FOUND, nothing().message.as_str()),
            "{method}"
        );
    }
}

/// Thousands of paths combined from typical parts: none panics, and accepted ones contain only valid names.
#[test]
fn random_paths_give_only_valid_names() {
    let words = "v1 apis read.pawl.run v1alpha1 namespaces runs uids attempts objects bundle log plan state states \
         lock claim terraformruns net team 1 0 .. . %2e %2f ? offset=0 & lock= \\ \u{0} ä - download";
    let parts: Vec<_> = ["", "/"].into_iter().chain(words.split(' ')).collect();
    let mut rng = StdRng::seed_from_u64(11);
    let mut understood = 0;
    for _ in 0..20_000 {
        let mut path = String::new();
        if rng.random_bool(0.5) {
            path = [
                "/v1/namespaces/team/runs/net/attempts/1",
                "/v1/namespaces/team/uids/u1",
                "/v1/namespaces/team/repositories/u1/snapshots-2",
                "/apis/read.pawl.run/v1alpha1/namespaces/team",
            ][rng.random_range(0..4)]
            .to_owned();
        }
        for _ in 0..rng.random_range(0..7) {
            path.push_str(if rng.random_bool(0.5) { "/" } else { "" });
            path.push_str(parts[rng.random_range(0..parts.len())]);
        }
        for method in [Method::GET, Method::PUT, Method::DELETE, Method::POST] {
            let Ok(route) = of(&method, &path) else {
                continue;
            };
            understood += 1;
            match route {
                Route::Attempt { namespace, run, .. } => {
                    assert!(
                        names::namespace(&namespace).is_ok() && names::run(&run).is_ok(),
                        "{path}"
                    );
                }
                Route::Uid { run, .. } => {
                    for name in [run.prefix(), run.claim(), run.mark()] {
                        assert_eq!(name.as_str().split('/').count(), 3, "{path}");
                    }
                }
                Route::Snapshots { of, .. } => {
                    for name in [of.prefix(), of.mark()] {
                        assert_eq!(name.as_str().split('/').count(), 3, "{path}");
                    }
                }
                Route::Wanted | Route::Read(_) => {}
            }
        }
    }
    assert!(understood > 300, "{understood}");
}
