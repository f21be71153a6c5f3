//! Parses requests: a pure function of method and path. Every segment is validated here, after unescaping.

use std::collections::BTreeMap;

use axum::{
    Router,
    extract::{RawPathParams, Request, rejection::RawPathParamsRejection},
    response::Response,
    routing::any,
};
use futures::future::BoxFuture;

use crds::datastore::{MAX_LOG, ObjectKind, Problem, WANTED_PATH};
use serving::problem::invalid;

use crate::{
    auth::caller::Ask,
    names::{self, RepositoryKey, RunKey},
};

use super::{
    read::route::{self as read, Reading},
    request_parts::{Read, RequestParts, Row, boolean, nothing, number},
};

/// Maximum length of path and query, in bytes.
const LONGEST: usize = 2048;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// A pod's request for its attempt.
    Attempt {
        namespace: String,
        run: String,
        attempt: u32,
        ask: Ask,
        query: Parameters,
    },
    /// The controller's request for a run, by UID.
    Uid { run: RunKey, ask: UidAsk },
    /// A request of `controller sources` for a repository's snapshots.
    Snapshots { of: RepositoryKey, ask: SnapshotAsk },
    /// The revisions that runs wait for, as a stream.
    Wanted,
    /// A request that the API server forwards.
    Read(Reading),
}

/// A request of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UidAsk {
    /// Whether the revision that the run of this name wants is stored; it is wanted from then on.
    Source(String),
    /// An attempt's result.
    Result(u32),
    /// An attempt's journal, compared with the run's managed state.
    Journal(u32),
    /// Whether the log of an attempt is complete.
    Log(u32),
    Claim,
    /// Release the lock that the run left on its managed state.
    ReleaseLock,
    /// Delete all data except the claim.
    Delete,
    DeleteBundles,
}

/// A request of `controller sources`. Commits are full ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotAsk {
    /// Store the snapshot of a commit.
    Put(String),
    /// Digest and size of a snapshot.
    Digest(String),
    /// The commits with a stored snapshot.
    List,
    Delete(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// The offset of an append to a log.
    pub offset: u64,
    /// Whether the log ends with it.
    pub end: bool,
    /// The lock's ID.
    pub lock: Option<String>,
}

impl Route {
    /// The name in metrics, from a small set.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Attempt { ask, .. } => ask.as_str(),
            Self::Uid { ask, .. } => match ask {
                UidAsk::Result(_) => "controller_result",
                UidAsk::Journal(_) => "controller_journal",
                UidAsk::Log(_) => "controller_log",
                UidAsk::Source(_) => "controller_source",
                UidAsk::Claim => "controller_claim",
                UidAsk::ReleaseLock => "controller_release_lock",
                UidAsk::Delete | UidAsk::DeleteBundles => "controller_delete",
            },
            Self::Snapshots { ask, .. } => match ask {
                SnapshotAsk::Put(_) => "sources_put",
                SnapshotAsk::Digest(_) => "sources_digest",
                SnapshotAsk::List => "sources_list",
                SnapshotAsk::Delete(_) => "sources_delete",
            },
            Self::Wanted => "sources_wanted",
            Self::Read(reading) => reading.kind(),
        }
    }
}

const OF_ALL: [Row<Route>; 1] = [("GET", WANTED_PATH, |asked| asked.alone(Route::Wanted))];

const ATTEMPT: &str = "/v1/namespaces/{namespace}/runs/{run}/attempts/{attempt}";
const OF_ATTEMPT: [Row<Route>; 16] = [
    ("PUT", "/objects/{kind}", |asked| {
        asked.of_pod(Ask::Put(asked.kind()?), Wants::Nothing)
    }),
    ("GET", "/objects/{kind}", |asked| {
        asked.of_pod(Ask::Get(asked.kind()?), Wants::Nothing)
    }),
    ("GET", "/objects/{kind}/digest", |asked| {
        asked.of_pod(Ask::Digest(asked.kind()?), Wants::Nothing)
    }),
    ("PUT", "/log/{stream}", |asked| {
        asked.of_pod(
            Ask::Log(names::stream(asked.segment("stream"))?),
            Wants::Offset,
        )
    }),
    ("GET", "/recover", |asked| {
        asked.of_pod(Ask::Recover, Wants::Nothing)
    }),
    ("PUT", "/intent", |asked| {
        asked.of_pod(Ask::Intent, Wants::Nothing)
    }),
    ("PUT", "/claim", |asked| {
        asked.of_pod(Ask::Claim, Wants::Nothing)
    }),
    ("PUT", "/outputs", |asked| {
        asked.of_pod(Ask::Publish, Wants::Nothing)
    }),
    ("GET", "/outputs", |asked| {
        asked.of_pod(Ask::Outputs, Wants::Nothing)
    }),
    ("GET", "/source", |asked| {
        asked.of_pod(Ask::Source, Wants::Nothing)
    }),
    ("GET", "/state", |asked| {
        asked.of_pod(Ask::ReadState, Wants::Nothing)
    }),
    ("PUT", "/state", |asked| {
        asked.of_pod(Ask::WriteState, Wants::Lock)
    }),
    ("GET", "/laststate", |asked| {
        asked.of_pod(Ask::ReadLast, Wants::Nothing)
    }),
    ("PUT", "/laststate", |asked| {
        asked.of_pod(Ask::WriteLast, Wants::Nothing)
    }),
    ("PUT", "/lock", |asked| {
        asked.of_pod(Ask::Lock, Wants::Nothing)
    }),
    ("DELETE", "/lock", |asked| {
        asked.of_pod(Ask::Unlock, Wants::Lock)
    }),
];

const UID: &str = "/v1/namespaces/{namespace}/uids/{uid}";
const OF_UID: [Row<Route>; 7] = [
    ("GET", "/source/{run}", |asked| {
        asked.of_controller(UidAsk::Source(names::run(asked.segment("run"))?))
    }),
    ("GET", "/attempts/{attempt}/objects/result", |asked| {
        asked.of_controller(UidAsk::Result(asked.attempt()?))
    }),
    ("GET", "/attempts/{attempt}/journal", |asked| {
        asked.of_controller(UidAsk::Journal(asked.attempt()?))
    }),
    ("GET", "/attempts/{attempt}/log", |asked| {
        asked.of_controller(UidAsk::Log(asked.attempt()?))
    }),
    ("GET", "/claim", |asked| asked.of_controller(UidAsk::Claim)),
    ("DELETE", "/lock", |asked| {
        asked.of_controller(UidAsk::ReleaseLock)
    }),
    ("DELETE", "", |asked| {
        let ask = match asked.uri.query() {
            None => UidAsk::Delete,
            Some("only=bundle") => UidAsk::DeleteBundles,
            // An unknown parameter must not turn into the deletion of everything.
            Some(_) => return Err(invalid("`only=bundle` is the one parameter")),
        };
        Ok(Route::Uid {
            run: asked.run_key()?,
            ask,
        })
    }),
];

const SNAPSHOTS: &str = "/v1/namespaces/{namespace}/repositories/{uid}/snapshots-2";
const OF_SNAPSHOTS: [Row<Route>; 4] = [
    ("PUT", "/{revision}", |asked| {
        asked.of_sources(SnapshotAsk::Put(asked.revision()?))
    }),
    ("GET", "/{revision}/digest", |asked| {
        asked.of_sources(SnapshotAsk::Digest(asked.revision()?))
    }),
    ("GET", "", |asked| asked.of_sources(SnapshotAsk::List)),
    ("DELETE", "/{revision}", |asked| {
        asked.of_sources(SnapshotAsk::Delete(asked.revision()?))
    }),
];

/// A router that passes each request to `carry` with its parsed route, or with the error: `NotFound` for an unknown
/// path or verb, `Invalid` for an invalid name, number or parameter.
///
/// The verb is matched here: axum would answer a wrong verb with 405, and serve `HEAD` as `GET`.
pub fn router<C>(carry: C) -> Router
where
    C: Fn(Result<Route, Problem>, Request) -> BoxFuture<'static, Response>
        + Clone
        + Send
        + Sync
        + 'static,
{
    let mut rows: BTreeMap<String, Vec<(&str, Reader)>> = BTreeMap::new();
    for (base, table) in [
        ("", &OF_ALL[..]),
        (ATTEMPT, &OF_ATTEMPT),
        (UID, &OF_UID),
        (SNAPSHOTS, &OF_SNAPSHOTS),
    ] {
        for &(verb, path, read) in table {
            rows.entry(format!("{base}{path}"))
                .or_default()
                .push((verb, Reader::Own(read)));
        }
    }
    for (base, table) in [("/apis", &read::DISCOVERY[..]), (read::BASE, &read::ROWS)] {
        for &(verb, path, read) in table {
            rows.entry(format!("{base}{path}"))
                .or_default()
                .push((verb, Reader::PassedOn(read)));
        }
    }
    let mut router = Router::new();
    for (path, verbs) in rows {
        let carry = carry.clone();
        let handler = async move |segments: Result<RawPathParams, RawPathParamsRejection>,
                                  request: Request| {
            let route = understood(&verbs, segments.as_ref().ok(), &request);
            carry(route, request).await
        };
        router = router.route(&path, any(handler));
    }
    router.fallback(async move |request: Request| {
        carry(understood(&[], None, &request), request).await
    })
}

#[derive(Clone, Copy)]
enum Reader {
    Own(Read<Route>),
    PassedOn(Read<Reading>),
}

fn understood(
    verbs: &[(&str, Reader)],
    segments: Option<&RawPathParams>,
    request: &Request,
) -> Result<Route, Problem> {
    let uri = request.uri();
    if uri.path().len() + uri.query().map_or(0, str::len) > LONGEST {
        return Err(invalid("the path is too long"));
    }
    let verb = request.method().as_str();
    let &(_, read) = verbs
        .iter()
        .find(|(of, _)| *of == verb)
        .ok_or_else(nothing)?;
    let segments = segments.ok_or_else(|| invalid("the path is no text"))?;
    let asked = RequestParts { segments, uri };
    match read {
        Reader::Own(read) => read(&asked),
        Reader::PassedOn(read) => read(&asked).map(Route::Read),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wants {
    Nothing,
    Offset,
    Lock,
}

impl RequestParts<'_> {
    fn kind(&self) -> Result<ObjectKind, Problem> {
        ObjectKind::of(self.segment("kind")).ok_or_else(|| invalid("unknown kind of object"))
    }

    fn attempt(&self) -> Result<u32, Problem> {
        names::attempt(self.segment("attempt"))
    }

    fn run_key(&self) -> Result<RunKey, Problem> {
        RunKey::new(self.segment("namespace"), self.segment("uid"))
    }

    fn of_pod(&self, ask: Ask, wants: Wants) -> Result<Route, Problem> {
        Ok(Route::Attempt {
            namespace: names::namespace(self.segment("namespace"))?,
            run: names::run(self.segment("run"))?,
            attempt: self.attempt()?,
            ask,
            query: pod_query(self.parameters()?, wants)?,
        })
    }

    fn revision(&self) -> Result<String, Problem> {
        names::revision(self.segment("revision"))
    }

    fn of_sources(&self, ask: SnapshotAsk) -> Result<Route, Problem> {
        let of = RepositoryKey::new(self.segment("namespace"), self.segment("uid"))?;
        self.alone(Route::Snapshots { of, ask })
    }

    fn of_controller(&self, ask: UidAsk) -> Result<Route, Problem> {
        let run = self.run_key()?;
        self.alone(Route::Uid { run, ask })
    }

    /// Accepts no parameters.
    fn alone(&self, route: Route) -> Result<Route, Problem> {
        if self.uri.query().is_some() {
            Err(nothing())
        } else {
            Ok(route)
        }
    }
}

fn pod_query(parameters: Vec<(String, String)>, wants: Wants) -> Result<Parameters, Problem> {
    let (mut found, mut offset) = (Parameters::default(), None);
    for (key, value) in parameters {
        match (key.as_str(), wants) {
            ("offset", Wants::Offset) if offset.is_none() => {
                offset = Some(number(&value, MAX_LOG)?);
            }
            ("end", Wants::Offset) => found.end = boolean(&value)?,
            ("lock", Wants::Lock)
                if found.lock.is_none() && !value.is_empty() && value.len() <= 128 =>
            {
                found.lock = Some(value);
            }
            _ => return Err(invalid("unknown parameter or invalid value")),
        }
    }
    match wants {
        Wants::Offset => found.offset = offset.ok_or_else(|| invalid("`offset` is missing"))?,
        Wants::Lock if found.lock.is_none() => return Err(invalid("`lock` is missing")),
        Wants::Nothing | Wants::Lock => {}
    }
    Ok(found)
}

#[cfg(test)]
pub(crate) mod tests;
