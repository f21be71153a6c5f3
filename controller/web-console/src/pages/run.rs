//! One run.

use axum::{http::Uri, response::Response};
use crds::TerraformRun;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    object::{Beside, ObjectPage},
    path::Names,
    plan::{LINES, object},
    shown,
};
use crate::{
    acts::{self, Act, Kind, Object},
    person::Person,
    problem::Problem,
    rows::RunRow,
};

/// A run, and what its state permits.
#[derive(Serialize, JsonSchema)]
pub struct RunPage {
    pub row: RunRow,
    pub run: TerraformRun,
    /// The acts that the run's state permits; RBAC and the admission policies decide whether the person may do them.
    pub acts: Vec<Act>,
    /// The act that the run's reason suggests.
    pub next: Option<Act>,
    /// Sequence of the last change before the run was read. A client passes it to the stream as `after`.
    pub sequence: String,
}

impl ObjectPage for RunPage {
    type Of = TerraformRun;
    const KIND: Kind = Kind::Run;

    fn state(run: &TerraformRun) -> Object<'_> {
        Object::Run(run)
    }

    async fn of(run: TerraformRun, beside: Beside<'_>) -> Self {
        Self {
            row: RunRow::of(&run),
            acts: acts::offered(&Self::state(&run)),
            next: acts::next(&run),
            run: shown(run),
            sequence: beside.sequence,
        }
    }
}

/// The journal of an apply: one event of the tool a line.
///
/// # Errors
/// The API server refused it or did not respond.
pub async fn journal(person: Person, names: Names<2>, uri: Uri) -> Result<Response, Problem> {
    object(&person, names, &uri, ("journal", &JOURNAL, LINES)).await
}

/// A line of a journal, as `crds::apply_log::Line` writes it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the datastore has the lines; this describes them")]
pub struct ApplyEvent {
    event: Event,
    action: Option<String>,
    /// The address, as the tool writes it.
    address: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    provider: Option<String>,
    /// The object's ID, if the tool printed it.
    id: Option<String>,
    /// The time, as the tool prints it.
    at: Option<String>,
    /// Whether the datastore keeps the state.
    managed: Option<bool>,
    state: Option<String>,
    /// The tool's exit code.
    code: Option<i32>,
    /// Whether the tool saved the state.
    saved: Option<bool>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ApplyEventKind")]
enum Event {
    Begin,
    Start,
    Complete,
    Errored,
    End,
}

/// The parameters of a journal. `offset` needs `attempt`.
pub const JOURNAL: [&str; 2] = ["attempt", "offset"];

#[cfg(test)]
mod tests {
    use crds::apply_log::{Action, Ended, Head, Line, Operation};

    use super::*;

    #[test]
    fn lines_of_a_journal_are_as_described() {
        let operation = Operation {
            action: Action::Create,
            address: "a.b".into(),
            kind: "a".into(),
            provider: "p".into(),
            id: Some("1".into()),
            at: "2026-11-21T10:00:00Z".into(),
        };
        for line in [
            Line::Begin(Head::default()),
            Line::Start(operation.clone()),
            Line::Complete(operation.clone()),
            Line::Errored(operation),
            Line::End(Ended::default()),
        ] {
            let read = serde_json::from_slice::<ApplyEvent>(&line.to_bytes());
            assert!(read.is_ok(), "{line:?}: {:?}", read.err());
        }
    }
}
