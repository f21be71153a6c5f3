//! Paths of the group `read.pawl.run`.

use crds::datastore::{JOURNAL, MAX_LOG, ObjectKind, Problem, StateId};
use serving::problem::invalid;

use crate::{
    http::request_parts::{RequestParts, Row, boolean, number},
    names::{self, StateKey},
};

/// Maximum number of lines requested from the end of a log.
const MOST_LINES: u64 = 100_000;

/// Placeholder for all stacks of the namespace. It is not a valid stack name.
const ALL: &str = "-";

/// A person's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    Groups,
    Group,
    Resources,
    /// A plan as text, as JSON or as its changes, or a state that could not be saved.
    Object {
        namespace: String,
        run: String,
        kind: ObjectKind,
        /// The attempt; when empty, the newest one that has the object.
        attempt: Option<u32>,
    },
    Log {
        namespace: String,
        run: String,
        query: LogQuery,
    },
    /// The records of applies.
    Records {
        namespace: String,
    },
    States {
        namespace: String,
    },
    Versions(StateKey),
    /// The outputs of the newest version, without sensitive ones.
    Outputs(StateKey),
    /// The content of a state version.
    Download {
        key: StateKey,
        /// The version; the newest when empty.
        version: Option<u64>,
    },
    /// A change of a state, which the body describes.
    Change {
        change: Change,
        namespace: String,
        /// The stack; when empty, all states of the namespace are handed over.
        stack: Option<String>,
    },
}

/// A change of a state by a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Make an old version the newest.
    Restore,
    /// Remove a lock.
    Unlock,
    /// Hand states of a former namespace over to the current one of the same name.
    HandOver,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// One phase, or the journal; when empty, all phases in order.
    pub phase: Option<&'static str>,
    /// One attempt; when empty, all attempts without a phase, and the newest with one.
    pub attempt: Option<u32>,
    /// Whether to continue until the log ends.
    pub follow: bool,
    /// Start this many lines before the end; only with a phase.
    pub tail: Option<u64>,
    /// Start at this byte; only with a phase and an attempt, since each attempt has a log of its own.
    pub offset: u64,
}

impl Reading {
    /// The name in metrics, from a small set.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Groups | Self::Group | Self::Resources => "read_discovery",
            Self::Object { .. } => "read_plan",
            Self::Log { .. } => "read_log",
            Self::Records { .. } => "read_records",
            Self::States { .. } | Self::Versions(_) | Self::Outputs(_) => "read_states",
            Self::Download { .. } => "read_state",
            Self::Change {
                change: Change::Restore,
                ..
            } => "restore_state",
            Self::Change {
                change: Change::Unlock,
                ..
            } => "unlock_state",
            Self::Change {
                change: Change::HandOver,
                ..
            } => "hand_over_state",
        }
    }
}

/// The discovery paths below `/apis`.
pub const DISCOVERY: [Row<Reading>; 4] = [
    ("GET", "", |_| Ok(Reading::Groups)),
    ("GET", "/", |_| Ok(Reading::Groups)),
    ("GET", "/read.pawl.run", |_| Ok(Reading::Group)),
    ("GET", "/read.pawl.run/v1alpha1", |_| Ok(Reading::Resources)),
];

/// The base path of all other requests.
pub const BASE: &str = "/apis/read.pawl.run/v1alpha1/namespaces/{namespace}";

/// The paths below [`BASE`].
pub const ROWS: [Row<Reading>; 14] = [
    ("GET", "/terraformruns/{run}/plan", |asked| {
        object(asked, ObjectKind::Plan)
    }),
    ("GET", "/terraformruns/{run}/planjson", |asked| {
        object(asked, ObjectKind::PlanJson)
    }),
    ("GET", "/terraformruns/{run}/changes", |asked| {
        object(asked, ObjectKind::Changes)
    }),
    ("GET", "/terraformruns/{run}/erroredstate", |asked| {
        object(asked, ObjectKind::ErroredState)
    }),
    ("GET", "/terraformruns/{run}/journal", |asked| {
        let asked = Question::of(asked, &["attempt", "offset"])?;
        let query = LogQuery {
            phase: Some(JOURNAL),
            attempt: asked.attempt()?,
            offset: asked.offset()?,
            ..LogQuery::default()
        };
        if query.offset > 0 && query.attempt.is_none() {
            return Err(invalid("`offset` needs an attempt"));
        }
        Ok(Reading::Log {
            run: asked.run()?,
            query,
            namespace: asked.namespace,
        })
    }),
    ("GET", "/terraformruns/{run}/log", |asked| {
        let asked = Question::of(asked, &["phase", "attempt", "follow", "tail", "offset"])?;
        let query = LogQuery {
            phase: asked.get("phase").map(names::phase).transpose()?,
            attempt: asked.attempt()?,
            follow: asked
                .get("follow")
                .map(boolean)
                .transpose()?
                .unwrap_or_default(),
            tail: asked
                .get("tail")
                .map(|lines| number(lines, MOST_LINES))
                .transpose()?,
            offset: asked.offset()?,
        };
        if query.tail.is_some() && query.phase.is_none() {
            return Err(invalid("`tail` needs a phase"));
        }
        if query.offset > 0
            && (query.phase.is_none() || query.attempt.is_none() || query.tail.is_some())
        {
            return Err(invalid(
                "`offset` needs a phase and an attempt, and no `tail`",
            ));
        }
        Ok(Reading::Log {
            run: asked.run()?,
            query,
            namespace: asked.namespace,
        })
    }),
    ("GET", "/records", |asked| {
        let asked = Question::of(asked, &["limit", "resourceVersion"])?;
        Ok(Reading::Records {
            namespace: asked.namespace,
        })
    }),
    ("GET", "/states", |asked| {
        let asked = Question::of(asked, &["limit", "resourceVersion"])?;
        Ok(Reading::States {
            namespace: asked.namespace,
        })
    }),
    ("GET", "/states/{stack}", |asked| {
        Ok(Reading::Versions(
            Question::of(asked, &["workspace"])?.state()?,
        ))
    }),
    ("GET", "/states/{stack}/outputs", |asked| {
        Ok(Reading::Outputs(
            Question::of(asked, &["workspace"])?.state()?,
        ))
    }),
    ("GET", "/states/{stack}/download", |asked| {
        let asked = Question::of(asked, &["workspace", "version"])?;
        let version = asked
            .get("version")
            .map(|text| number(text, u64::MAX))
            .transpose()?;
        Ok(Reading::Download {
            key: asked.state()?,
            version,
        })
    }),
    ("POST", "/states/{stack}/restore", |asked| {
        change(asked, Change::Restore)
    }),
    ("POST", "/states/{stack}/unlock", |asked| {
        change(asked, Change::Unlock)
    }),
    ("POST", "/states/{stack}/handover", |asked| {
        change(asked, Change::HandOver)
    }),
];

/// Parameters that clients add to creations.
const CREATION: [&str; 2] = ["fieldManager", "fieldValidation"];

/// A request with a valid namespace and known parameters.
struct Question<'a> {
    asked: &'a RequestParts<'a>,
    namespace: String,
    parameters: Vec<(String, String)>,
}

impl<'a> Question<'a> {
    fn of(asked: &'a RequestParts<'a>, known: &[&str]) -> Result<Self, Problem> {
        let namespace = names::namespace(asked.segment("namespace"))?;
        let mut parameters = asked.parameters()?;
        // Parameters that clients of the API server add to any request.
        parameters.retain(|(key, _)| !matches!(key.as_str(), "timeout" | "pretty"));
        if parameters
            .iter()
            .any(|(key, _)| !known.contains(&key.as_str()))
        {
            return Err(invalid(format!("the parameters are: {}", known.join(", "))));
        }
        Ok(Self {
            asked,
            namespace,
            parameters,
        })
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    fn attempt(&self) -> Result<Option<u32>, Problem> {
        self.get("attempt").map(names::attempt).transpose()
    }

    /// The byte of a log to start at.
    fn offset(&self) -> Result<u64, Problem> {
        let at = self.get("offset").map(|at| number(at, MAX_LOG));
        at.transpose().map(Option::unwrap_or_default)
    }

    fn run(&self) -> Result<String, Problem> {
        names::run(self.asked.segment("run"))
    }

    fn state(&self) -> Result<StateKey, Problem> {
        let workspace = self.get("workspace").unwrap_or("default").to_owned();
        StateKey::new(
            &self.namespace,
            StateId {
                stack: self.asked.segment("stack").to_owned(),
                workspace,
            },
        )
    }
}

fn change(asked: &RequestParts<'_>, change: Change) -> Result<Reading, Problem> {
    let asked = Question::of(asked, &CREATION)?;
    let all = change == Change::HandOver && asked.asked.segment("stack") == ALL;
    let stack = if all {
        None
    } else {
        Some(asked.state()?.id().stack.clone())
    };
    Ok(Reading::Change {
        change,
        namespace: asked.namespace,
        stack,
    })
}

fn object(asked: &RequestParts<'_>, kind: ObjectKind) -> Result<Reading, Problem> {
    let asked = Question::of(asked, &["attempt"])?;
    Ok(Reading::Object {
        run: asked.run()?,
        kind,
        attempt: asked.attempt()?,
        namespace: asked.namespace,
    })
}

#[cfg(test)]
mod tests {
    use axum::http::Method;
    use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

    use super::*;
    use crate::http::{
        read::{GROUP, VERSION},
        route::{Route, tests::asked},
    };

    fn parse(method: &Method, rest: &[&str], query: &str) -> Result<Reading, Problem> {
        let path = format!(
            "{}/{}?{query}",
            BASE.replace("{namespace}", "team"),
            rest.join("/")
        );
        match asked(method, &path)? {
            Route::Read(reading) => Ok(reading),
            other => panic!("{other:?}"),
        }
    }

    fn get(rest: &[&str], query: &str) -> Result<Reading, Problem> {
        parse(&Method::GET, rest, query)
    }

    #[test]
    fn read_paths_equal_those_of_the_api_group() {
        assert_eq!(
            BASE,
            format!("/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}")
        );
        assert_eq!(
            asked(&Method::GET, &format!("/apis/{GROUP}/{VERSION}")),
            Ok(Route::Read(Reading::Resources))
        );
        assert_eq!(
            asked(&Method::GET, &format!("/apis/{GROUP}")),
            Ok(Route::Read(Reading::Group))
        );
        assert_eq!(
            asked(&Method::GET, "/apis/"),
            Ok(Route::Read(Reading::Groups))
        );
    }

    #[test]
    fn log_query_parameters_are_parsed() {
        let log = |query| get(&["terraformruns", "net", "log"], query);
        let Ok(Reading::Log { query, .. }) =
            log("follow=true&phase=apply&attempt=2&tail=10&timeout=5s")
        else {
            panic!()
        };
        assert_eq!(
            query,
            LogQuery {
                phase: Some("apply"),
                attempt: Some(2),
                follow: true,
                tail: Some(10),
                offset: 0,
            }
        );
        for bad in [
            "phase=x",
            "attempt=0",
            "follow=yes",
            "tail=10",
            "phase=plan&tail=-1",
            "phase=plan&tail=999999999",
            "since=1",
            "offset=1",
            "phase=plan&offset=1",
            "phase=plan&attempt=1&tail=1&offset=1",
            "phase=plan&attempt=1&offset=-1",
            "phase=%",
        ] {
            assert!(log(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn offset_of_a_journal_needs_its_attempt() {
        let journal = |query| get(&["terraformruns", "net", "journal"], query);
        let Ok(Reading::Log { query, .. }) = journal("attempt=2&offset=7") else {
            panic!()
        };
        assert_eq!((query.phase, query.offset), (Some(JOURNAL), 7));
        assert!(journal("offset=7").is_err() && journal("attempt=2&follow=true").is_err());
    }

    #[test]
    fn state_paths_have_stack_and_workspace() {
        let Ok(Reading::Versions(key)) = get(&["states", "net"], "workspace=a.b") else {
            panic!()
        };
        assert_eq!(
            (key.id().stack.as_str(), key.id().workspace.as_str()),
            ("net", "a.b")
        );
        let Ok(Reading::Versions(key)) = get(&["states", "net"], "") else {
            panic!()
        };
        assert_eq!(key.id().workspace, "default");
        for query in [
            "workspace=",
            "workspace=a%2Fb",
            "workspace=../x",
            "version=1",
        ] {
            assert!(get(&["states", "net"], query).is_err(), "{query}");
        }
        assert!(get(&["states", ".."], "").is_err());
        assert!(matches!(
            get(&["states", "net", "outputs"], "workspace=a"),
            Ok(Reading::Outputs(_))
        ));
        assert!(parse(&Method::POST, &["states", "net", "restore"], "").is_ok());
        assert!(parse(&Method::DELETE, &["states", "net"], "").is_err());
        let over = |stack| {
            parse(
                &Method::POST,
                &["states", stack, "handover"],
                "fieldManager=kubectl",
            )
        };
        let of = |stack: Option<&str>| {
            let stack = stack.map(str::to_owned);
            Reading::Change {
                change: Change::HandOver,
                namespace: "team".into(),
                stack,
            }
        };
        assert_eq!(
            (over("net"), over("-")),
            (Ok(of(Some("net"))), Ok(of(None)))
        );
        assert!(over("..").is_err() && over("--").is_err());
    }

    #[test]
    fn random_queries_are_parsed_or_rejected() {
        let parts: Vec<_> = "phase attempt follow tail = & plan apply 1 0 true % %20 %ff + ä 99999999999999999999 && == \u{0}"
            .split(' ')
            .collect();
        let mut rng = StdRng::seed_from_u64(5);
        let mut understood = 0;
        for _ in 0..20_000 {
            let query: String = (0..rng.random_range(0..9))
                .map(|_| parts[rng.random_range(0..parts.len())])
                .collect();
            if let Ok(Reading::Log { query, .. }) = get(&["terraformruns", "net", "log"], &query) {
                understood += 1;
                assert!(
                    query.tail.is_none_or(|lines| lines <= MOST_LINES) && query.attempt != Some(0)
                );
            }
        }
        assert!(understood > 100, "{understood}");
    }
}
