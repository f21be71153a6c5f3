//! What a request asks for: a pure function of its method and path. Every segment is checked here; a segment with a percent
//! escape is no segment.

use axum::http::Method;

use crds::datastore::{MAX_APPEND, MAX_LOG, ObjectKind, Problem};

use crate::{
    auth::caller::Ask,
    names::{self, RunKey},
    problem::{invalid, not_found},
    read::route::{self as read, Reading},
};

/// The longest path with its query, in bytes.
const LONGEST: usize = 2048;

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// The process is alive.
    Health,
    /// The service can do its work.
    Ready,
    /// Something of an attempt, by its pod.
    Attempt {
        /// Namespace of the run.
        namespace: String,
        /// Its name.
        run: String,
        /// Number of the attempt.
        attempt: u32,
        /// What.
        ask: Ask,
        /// With which parameters.
        query: Query,
    },
    /// Something of a run by its UID, by the controller.
    Uid {
        /// The run.
        run: RunKey,
        /// What.
        ask: UidAsk,
    },
    /// Something that the API server passes on.
    Read(Reading),
}

/// What the controller asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UidAsk {
    /// An attempt's result.
    Result(u32),
    /// An attempt's journal, compared with the run's managed state.
    Journal(u32),
    /// The claim.
    Claim,
    /// Release the lock that it left on its managed state.
    ReleaseLock,
    /// Delete everything but the claim.
    Delete,
    /// Delete the bundles.
    DeleteBundles,
}

/// Parameters of a pod's request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Where a piece of a log belongs.
    pub offset: u64,
    /// Whether the log ends with it.
    pub end: bool,
    /// ID of the lock.
    pub lock: Option<String>,
}

impl Route {
    /// The word in metrics; of a small set.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Health | Self::Ready => "probe",
            Self::Attempt { ask, .. } => ask.as_str(),
            Self::Uid { ask, .. } => match ask {
                UidAsk::Result(_) => "controller_result",
                UidAsk::Journal(_) => "controller_journal",
                UidAsk::Claim => "controller_claim",
                UidAsk::ReleaseLock => "controller_release_lock",
                UidAsk::Delete | UidAsk::DeleteBundles => "controller_delete",
            },
            Self::Read(reading) => reading.kind(),
        }
    }
}

/// Reads method, path and query.
///
/// # Errors
/// `NotFound` for a path that is none, `Invalid` for one with a part that is no name, number or parameter.
pub fn parse(method: &Method, path: &str, query: Option<&str>) -> Result<Route, Problem> {
    if path.len() + query.map_or(0, str::len) > LONGEST {
        return Err(invalid("the path is too long"));
    }
    let nothing = || not_found("there is no such path, or not for this method");
    let segments: Vec<&str> = path.strip_prefix('/').ok_or_else(nothing)?.split('/').collect();
    let verb = method.as_str();
    match segments.as_slice() {
        ["healthz" | "livez"] if verb == "GET" => Ok(Route::Health),
        ["readyz"] if verb == "GET" => Ok(Route::Ready),
        ["v1", "namespaces", namespace, "runs", run, "attempts", attempt, rest @ ..] => {
            let (ask, wants) = pod_ask(verb, rest).ok_or_else(nothing)??;
            Ok(Route::Attempt {
                namespace: names::namespace(namespace)?,
                run: names::run(run)?,
                attempt: names::attempt(attempt)?,
                ask,
                query: pod_query(query.unwrap_or_default(), wants)?,
            })
        }
        ["v1", "namespaces", namespace, "uids", uid, rest @ ..] => {
            let run = RunKey::new(namespace, uid)?;
            let ask = match (verb, rest, query) {
                ("GET", ["attempts", attempt, "objects", "result"], None) => UidAsk::Result(names::attempt(attempt)?),
                ("GET", ["attempts", attempt, "journal"], None) => UidAsk::Journal(names::attempt(attempt)?),
                ("GET", ["claim"], None) => UidAsk::Claim,
                ("DELETE", ["lock"], None) => UidAsk::ReleaseLock,
                ("DELETE", [], None) => UidAsk::Delete,
                ("DELETE", [], Some("only=bundle")) => UidAsk::DeleteBundles,
                // A parameter that is not understood must not become the deletion of everything.
                ("DELETE", [], Some(_)) => return Err(invalid("`only=bundle` is the one parameter")),
                _ => return Err(nothing()),
            };
            Ok(Route::Uid { run, ask })
        }
        ["apis", rest @ ..] => read::parse(verb, rest, query.unwrap_or_default()).map(Route::Read),
        _ => Err(nothing()),
    }
}

/// Which parameters a request has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wants {
    Nothing,
    Offset,
    Lock,
}

fn pod_ask(verb: &str, rest: &[&str]) -> Option<Result<(Ask, Wants), Problem>> {
    let kind = |word: &str| ObjectKind::of(word).ok_or_else(|| invalid("that is no kind of object"));
    Some(match (verb, rest) {
        ("PUT", ["objects", word]) => kind(word).map(|kind| (Ask::Put(kind), Wants::Nothing)),
        ("GET", ["objects", word]) => kind(word).map(|kind| (Ask::Get(kind), Wants::Nothing)),
        ("GET", ["objects", word, "digest"]) => kind(word).map(|kind| (Ask::Digest(kind), Wants::Nothing)),
        ("PUT", ["log", stream]) => names::stream(stream).map(|stream| (Ask::Log(stream), Wants::Offset)),
        ("GET", ["recover"]) => Ok((Ask::Recover, Wants::Nothing)),
        ("PUT", ["intent"]) => Ok((Ask::Intent, Wants::Nothing)),
        ("PUT", ["claim"]) => Ok((Ask::Claim, Wants::Nothing)),
        ("GET", ["state"]) => Ok((Ask::ReadState, Wants::Nothing)),
        ("PUT", ["state"]) => Ok((Ask::WriteState, Wants::Lock)),
        ("PUT", ["lock"]) => Ok((Ask::Lock, Wants::Nothing)),
        ("DELETE", ["lock"]) => Ok((Ask::Unlock, Wants::Lock)),
        _ => return None,
    })
}

fn pod_query(query: &str, wants: Wants) -> Result<Query, Problem> {
    let (mut found, mut offset) = (Query::default(), None);
    for (key, value) in pairs(query)? {
        match (key, wants) {
            ("offset", Wants::Offset) if offset.is_none() => offset = Some(number(&value, MAX_LOG)?),
            ("end", Wants::Offset) => found.end = boolean(&value)?,
            ("lock", Wants::Lock) if found.lock.is_none() && !value.is_empty() && value.len() <= 128 => found.lock = Some(value),
            _ => return Err(invalid("there is no such parameter, or it makes no sense")),
        }
    }
    match wants {
        Wants::Offset => found.offset = offset.ok_or_else(|| invalid("`offset` is missing"))?,
        Wants::Lock if found.lock.is_none() => return Err(invalid("`lock` is missing")),
        Wants::Nothing | Wants::Lock => {}
    }
    Ok(found)
}

/// The parameters of a query, their values without escapes.
///
/// # Errors
/// `Invalid` for escapes that are none, values that are no UTF-8 or hold control characters.
pub fn pairs(query: &str) -> Result<Vec<(&str, String)>, Problem> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((key, unescape(value).ok_or_else(|| invalid("a parameter is no text"))?))
    });
    pairs.collect()
}

fn unescape(value: &str) -> Option<String> {
    let mut out = Vec::with_capacity(value.len());
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                (digit(bytes.next())? << 4) | digit(bytes.next())?
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(out).ok().filter(|text| !text.chars().any(char::is_control))
}

/// A number of at most `most`.
///
/// # Errors
/// `Invalid`.
pub fn number(text: &str, most: u64) -> Result<u64, Problem> {
    let legal = text.len() <= 19 && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|n| legal && *n <= most).ok_or_else(|| invalid(format!("that is no number up to {most}")))
}

/// `true` or `false`; nothing means `true`.
///
/// # Errors
/// `Invalid`.
pub fn boolean(text: &str) -> Result<bool, Problem> {
    match text {
        "true" | "" => Ok(true),
        "false" => Ok(false),
        _ => Err(invalid("that is neither true nor false")),
    }
}

/// The largest body of a request, in bytes.
pub const fn limit(ask: Ask) -> u64 {
    match ask {
        Ask::Put(kind) => kind.limit(),
        Ask::Log(_) => MAX_APPEND,
        Ask::Claim | Ask::Lock => crds::datastore::MAX_SMALL,
        Ask::WriteState => crds::datastore::MAX_STATE,
        Ask::Get(_) | Ask::Digest(_) | Ask::Recover | Ask::Intent | Ask::ReadState | Ask::Unlock => 0,
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

    use crds::datastore::attempt_path;

    use super::*;

    fn of(method: &Method, path: &str) -> Result<Route, String> {
        let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        parse(method, path, query).map_err(|problem| problem.reason)
    }

    #[test]
    fn paths_of_the_protocol_are_understood() {
        let base = attempt_path("team", "net", 2);
        let ask = |method, rest: &str| match of(&method, &format!("{base}/{rest}")) {
            Ok(Route::Attempt { namespace, run, attempt, ask, query }) => {
                assert_eq!((namespace.as_str(), run.as_str(), attempt), ("team", "net", 2));
                (ask, query)
            }
            other => panic!("{rest}: {other:?}"),
        };
        assert_eq!(ask(Method::PUT, "objects/bundle").0, Ask::Put(ObjectKind::Bundle));
        assert_eq!(ask(Method::GET, "objects/plan").0, Ask::Get(ObjectKind::Plan));
        assert_eq!(ask(Method::GET, "objects/planjson/digest").0, Ask::Digest(ObjectKind::PlanJson));
        let (log, query) = ask(Method::PUT, "log/plan?offset=12&end=true");
        assert_eq!((log, query.offset, query.end), (Ask::Log("plan"), 12, true));
        let (journal, query) = ask(Method::PUT, "log/journal?offset=7");
        assert_eq!((journal, query.offset, ask(Method::GET, "recover").0), (Ask::Log("journal"), 7, Ask::Recover));
        assert_eq!(ask(Method::PUT, "state?lock=a%2Fb").1.lock.as_deref(), Some("a/b"));
        assert_eq!(ask(Method::DELETE, "lock?lock=x").0, Ask::Unlock);
        let uid = "/v1/namespaces/team/uids/0b9c1a4e-1f7e";
        let run = RunKey::new("team", "0b9c1a4e-1f7e").unwrap();
        let lock = Route::Uid { run: run.clone(), ask: UidAsk::ReleaseLock };
        assert_eq!(of(&Method::DELETE, &format!("{uid}/lock")), Ok(lock));
        assert_eq!(of(&Method::DELETE, uid), Ok(Route::Uid { run: run.clone(), ask: UidAsk::Delete }));
        assert_eq!(of(&Method::DELETE, &format!("{uid}?only=bundle")), Ok(Route::Uid { run, ask: UidAsk::DeleteBundles }));
    }

    #[test]
    fn tricks_lead_nowhere() {
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
        ] {
            assert!(of(&Method::PUT, path).is_err() && of(&Method::GET, path).is_err(), "{path}");
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
            assert!(of(&Method::PUT, &format!("{base}/{rest}")).is_err(), "{rest}");
        }
        assert_eq!(of(&Method::DELETE, "/v1/namespaces/team/uids/u1?only=bundles"), Err("Invalid".into()));
        assert_eq!(of(&Method::DELETE, "/v1/namespaces/team/uids/u1?"), Err("Invalid".into()));
        assert!(of(&Method::GET, &format!("/{}", "x".repeat(5000))).is_err());
    }

    /// Thousands of paths made of what paths are made of: none panics, and what is understood holds names only.
    #[test]
    fn whatever_the_path_no_name_leaves_its_place() {
        const PARTS: [&str; 36] = [
            "",
            "/",
            "v1",
            "apis",
            "read.pawl.run",
            "v1alpha1",
            "namespaces",
            "runs",
            "uids",
            "attempts",
            "objects",
            "bundle",
            "log",
            "plan",
            "state",
            "states",
            "lock",
            "claim",
            "terraformruns",
            "net",
            "team",
            "1",
            "0",
            "..",
            ".",
            "%2e",
            "%2f",
            "?",
            "offset=0",
            "&",
            "lock=",
            "\\",
            "\u{0}",
            "ä",
            "-",
            "download",
        ];
        let mut rng = StdRng::seed_from_u64(11);
        let mut understood = 0;
        for _ in 0..20_000 {
            let mut path = String::new();
            if rng.random_bool(0.5) {
                path = [
                    "/v1/namespaces/team/runs/net/attempts/1",
                    "/v1/namespaces/team/uids/u1",
                    "/apis/read.pawl.run/v1alpha1/namespaces/team",
                ][rng.random_range(0..3)]
                .to_owned();
            }
            for _ in 0..rng.random_range(0..7) {
                path.push_str(if rng.random_bool(0.5) { "/" } else { "" });
                path.push_str(PARTS[rng.random_range(0..PARTS.len())]);
            }
            for method in [Method::GET, Method::PUT, Method::DELETE, Method::POST] {
                let Ok(route) = of(&method, &path) else { continue };
                understood += 1;
                match route {
                    Route::Attempt { namespace, run, .. } => {
                        assert!(names::namespace(&namespace).is_ok() && names::run(&run).is_ok(), "{path}");
                    }
                    Route::Uid { run, .. } => {
                        for name in [run.prefix(), run.claim(), run.mark()] {
                            assert_eq!(name.as_str().split('/').count(), 3, "{path}");
                        }
                    }
                    Route::Health | Route::Ready | Route::Read(_) => {}
                }
            }
        }
        assert!(understood > 300, "{understood}");
    }
}
