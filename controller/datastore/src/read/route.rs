//! Paths of the group `read.pawl.run`.

use crds::datastore::{JOURNAL, ObjectKind, Problem, StateId};

use crate::{
    http::route::{boolean, number, pairs},
    names::{self, StateKey},
    problem::{invalid, not_found},
};

use super::{GROUP, VERSION};

/// The most lines that can be asked for from the end of a log.
const MOST_LINES: u64 = 100_000;

/// In place of a stack: all of the namespace. No stack is called so.
const ALL: &str = "-";

/// What a person asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Which groups there are.
    Groups,
    /// Which versions of the group.
    Group,
    /// Which resources.
    Resources,
    /// A plan, as text or JSON; a state that could not be saved.
    Object {
        /// Namespace of the run.
        namespace: String,
        /// Its name.
        run: String,
        /// Which.
        kind: ObjectKind,
        /// Of which attempt; of the newest that has one when empty.
        attempt: Option<u32>,
    },
    /// Logs.
    Log {
        /// Namespace of the run.
        namespace: String,
        /// Its name.
        run: String,
        /// Which.
        query: LogQuery,
    },
    /// All states of a namespace.
    States {
        /// The namespace.
        namespace: String,
    },
    /// The versions of a state.
    Versions(StateKey),
    /// The content of a version.
    Download {
        /// The state.
        key: StateKey,
        /// The version; the newest when empty.
        version: Option<u64>,
    },
    /// Make an old version the newest.
    Restore {
        /// Namespace of the state.
        namespace: String,
        /// Its stack.
        stack: String,
    },
    /// Take a lock away.
    Unlock {
        /// Namespace of the state.
        namespace: String,
        /// Its stack.
        stack: String,
    },
    /// Give states of a former namespace to the one that has its name now.
    HandOver {
        /// The namespace.
        namespace: String,
        /// The stack; all states of the namespace when empty.
        stack: Option<String>,
    },
}

/// Which logs, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// One phase, or the journal; all phases in order when empty.
    pub phase: Option<&'static str>,
    /// One attempt; without a phase all of them when empty, with one the newest.
    pub attempt: Option<u32>,
    /// Whether to go on until the log ends.
    pub follow: bool,
    /// Begin so many lines before the end; with a phase only.
    pub tail: Option<u64>,
}

impl Reading {
    /// The word in metrics; of a small set.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Groups | Self::Group | Self::Resources => "read_discovery",
            Self::Object { .. } => "read_plan",
            Self::Log { .. } => "read_log",
            Self::States { .. } | Self::Versions(_) => "read_states",
            Self::Download { .. } => "read_state",
            Self::Restore { .. } => "restore_state",
            Self::Unlock { .. } => "unlock_state",
            Self::HandOver { .. } => "hand_over_state",
        }
    }
}

/// Reads the segments behind `/apis` and the query.
///
/// # Errors
/// `NotFound`, `Invalid`.
pub fn parse(verb: &str, rest: &[&str], query: &str) -> Result<Reading, Problem> {
    let nothing = || not_found("there is no such path, or not for this method");
    match (verb, rest) {
        ("GET", [] | [""]) => return Ok(Reading::Groups),
        ("GET", [GROUP]) => return Ok(Reading::Group),
        ("GET", [GROUP, VERSION]) => return Ok(Reading::Resources),
        _ => {}
    }
    let [GROUP, VERSION, "namespaces", namespace, rest @ ..] = rest else { return Err(nothing()) };
    let namespace = names::namespace(namespace)?;
    // What clients of the API server add to any request.
    let query: Vec<(&str, String)> = pairs(query)?.into_iter().filter(|(key, _)| !matches!(*key, "timeout" | "pretty")).collect();
    let only = |known: &[&str]| match query.iter().find(|(key, _)| !known.contains(key)) {
        Some(_) => {
            Err(invalid(format!("the parameters are: {}", if known.is_empty() { "none".into() } else { known.join(", ") })))
        }
        None => Ok(()),
    };
    let get = |name: &str| query.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str());
    let state = |stack: &str| {
        let workspace = get("workspace").unwrap_or("default").to_owned();
        StateKey::new(&namespace, StateId { stack: stack.to_owned(), workspace })
    };
    match (verb, rest) {
        ("GET", ["terraformruns", run, JOURNAL]) => {
            only(&["attempt"])?;
            let attempt = get("attempt").map(names::attempt).transpose()?;
            let query = LogQuery { phase: Some(JOURNAL), attempt, ..LogQuery::default() };
            Ok(Reading::Log { run: names::run(run)?, namespace, query })
        }
        ("GET", ["terraformruns", run, word @ ("plan" | "planjson" | "erroredstate")]) => {
            only(&["attempt"])?;
            let kind = ObjectKind::of(word).ok_or_else(nothing)?;
            let attempt = get("attempt").map(names::attempt).transpose()?;
            Ok(Reading::Object { run: names::run(run)?, namespace, kind, attempt })
        }
        ("GET", ["terraformruns", run, "log"]) => {
            only(&["phase", "attempt", "follow", "tail"])?;
            let query = LogQuery {
                phase: get("phase").map(names::phase).transpose()?,
                attempt: get("attempt").map(names::attempt).transpose()?,
                follow: get("follow").map(boolean).transpose()?.unwrap_or_default(),
                tail: get("tail").map(|lines| number(lines, MOST_LINES)).transpose()?,
            };
            if query.tail.is_some() && query.phase.is_none() {
                return Err(invalid("`tail` needs a phase"));
            }
            Ok(Reading::Log { run: names::run(run)?, namespace, query })
        }
        ("GET", ["states"]) => {
            only(&["limit", "resourceVersion"])?;
            Ok(Reading::States { namespace })
        }
        ("GET", ["states", stack]) => {
            only(&["workspace"])?;
            Ok(Reading::Versions(state(stack)?))
        }
        ("GET", ["states", stack, "download"]) => {
            only(&["workspace", "version"])?;
            let version = get("version").map(|text| number(text, u64::MAX)).transpose()?;
            Ok(Reading::Download { key: state(stack)?, version })
        }
        ("POST", ["states", stack, "handover"]) => {
            only(&["fieldManager", "fieldValidation"])?;
            let stack = if *stack == ALL { None } else { Some(state(stack)?.id().stack.clone()) };
            Ok(Reading::HandOver { namespace, stack })
        }
        ("POST", ["states", stack, word @ ("restore" | "unlock")]) => {
            // What a client adds to creations.
            only(&["fieldManager", "fieldValidation"])?;
            state(stack)?;
            let stack = (*stack).to_owned();
            Ok(if *word == "restore" { Reading::Restore { namespace, stack } } else { Reading::Unlock { namespace, stack } })
        }
        _ => Err(nothing()),
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

    use super::*;

    const BASE: [&str; 4] = [GROUP, VERSION, "namespaces", "team"];

    fn get(rest: &[&str], query: &str) -> Result<Reading, Problem> {
        parse("GET", &[&BASE, rest].concat(), query)
    }

    #[test]
    fn logs_are_asked_for_in_these_words() {
        let log = |query| get(&["terraformruns", "net", "log"], query);
        let Ok(Reading::Log { query, .. }) = log("follow=true&phase=apply&attempt=2&tail=10&timeout=5s") else { panic!() };
        assert_eq!(query, LogQuery { phase: Some("apply"), attempt: Some(2), follow: true, tail: Some(10) });
        for bad in [
            "phase=x",
            "attempt=0",
            "follow=yes",
            "tail=10",
            "phase=plan&tail=-1",
            "phase=plan&tail=999999999",
            "since=1",
            "phase=%",
        ] {
            assert!(log(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn states_are_named_by_stack_and_workspace() {
        let Ok(Reading::Versions(key)) = get(&["states", "net"], "workspace=a.b") else { panic!() };
        assert_eq!((key.id().stack.as_str(), key.id().workspace.as_str()), ("net", "a.b"));
        let Ok(Reading::Versions(key)) = get(&["states", "net"], "") else { panic!() };
        assert_eq!(key.id().workspace, "default");
        for query in ["workspace=", "workspace=a%2Fb", "workspace=../x", "version=1"] {
            assert!(get(&["states", "net"], query).is_err(), "{query}");
        }
        assert!(get(&["states", ".."], "").is_err());
        assert!(parse("POST", &[&BASE[..], &["states", "net", "restore"]].concat(), "").is_ok());
        assert!(parse("DELETE", &[&BASE[..], &["states", "net"]].concat(), "").is_err());
        let over = |stack| parse("POST", &[&BASE[..], &["states", stack, "handover"]].concat(), "fieldManager=kubectl");
        let of = |stack: Option<&str>| Reading::HandOver { namespace: "team".into(), stack: stack.map(str::to_owned) };
        assert_eq!((over("net"), over("-")), (Ok(of(Some("net"))), Ok(of(None))));
        assert!(over("..").is_err() && over("--").is_err());
    }

    #[test]
    fn whatever_the_query_it_is_understood_or_refused() {
        const PARTS: [&str; 20] = [
            "phase",
            "attempt",
            "follow",
            "tail",
            "=",
            "&",
            "plan",
            "apply",
            "1",
            "0",
            "true",
            "%",
            "%20",
            "%ff",
            "+",
            "ä",
            "99999999999999999999",
            "&&",
            "==",
            "\u{0}",
        ];
        let mut rng = StdRng::seed_from_u64(5);
        let mut understood = 0;
        for _ in 0..20_000 {
            let query: String = (0..rng.random_range(0..9)).map(|_| PARTS[rng.random_range(0..PARTS.len())]).collect();
            if let Ok(Reading::Log { query, .. }) = get(&["terraformruns", "net", "log"], &query) {
                understood += 1;
                assert!(query.tail.is_none_or(|lines| lines <= MOST_LINES) && query.attempt != Some(0));
            }
        }
        assert!(understood > 100, "{understood}");
    }
}
