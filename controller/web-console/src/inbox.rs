//! The inbox: what needs the person, what runs, what waits, and what has just finished.

use std::{collections::BTreeSet, sync::Arc};

use axum::{Router, extract::State, http::HeaderMap, response::Response, routing::get};
use schemars::JsonSchema;
use serde::Serialize;

use crds::{Phase, RunResult};

use crate::{
    Console,
    access::Scope,
    lists::{LAYERS, RUNS, answer},
    person::Person,
    problem::Problem,
    rows::{LayerRow, LayerRowState, RunRow, State as Tables},
};

/// Most rows of each part, and of what has finished.
const MOST: usize = 100;
const FINISHED: usize = 20;

/// The parts of the inbox, each with its first rows.
#[derive(Serialize, JsonSchema, Default)]
pub struct Inbox {
    pub needs: Vec<Need>,
    pub running: Vec<RunRow>,
    /// Runs that wait for others, in the order of their places.
    pub queue: Vec<RunRow>,
    pub finished: Vec<RunRow>,
    /// All rows of the first three parts.
    pub totals: Totals,
    /// Sequence of the last change before the rows were read. A client passes it to the stream as `after`.
    pub sequence: String,
}

/// Numbers of rows.
#[derive(Serialize, JsonSchema, Default, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    pub needs: usize,
    pub running: usize,
    pub queue: usize,
}

/// A run or a layer that needs a person.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "InboxNeed")]
pub struct Need {
    pub why: Why,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerRow>,
}

/// Why a person is needed, the most urgent first.
#[derive(Serialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// The outcome of an apply is unknown.
    Indeterminate,
    /// A plan waits for an approval that the person may give.
    AwaitingApproval,
    /// An obstacle holds up a run or a layer; its reason names it.
    Stuck,
    /// A run failed, and no other follows by itself.
    Failed,
    /// The infrastructure differs from the code.
    Drifted,
}

/// The namespaces that a person may list, and those where they may approve.
pub struct Rights {
    pub runs: Scope,
    pub layers: Scope,
    pub approvals: Scope,
}

/// The route of the inbox.
pub fn router() -> Router<Arc<Console>> {
    Router::new().route("/api/v1/inbox", get(read))
}

async fn read(
    State(console): State<Arc<Console>>,
    person: Person,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let runs = console.scope(&person, RUNS).await?;
    let layers = console.scope(&person, LAYERS).await?;
    let waiting: BTreeSet<_> = {
        let tables = console.rows.complete()?;
        let rows = tables.runs.rows().map(|held| &held.row);
        let waiting = rows.filter(|row| runs.has(&row.namespace) && awaits(row));
        waiting.map(|row| row.namespace.to_string()).collect()
    };
    let approvals = console.access.approvals(&person, waiting.into_iter());
    let rights = Rights {
        approvals: approvals.await?,
        runs,
        layers,
    };
    let inbox = inbox(&*console.rows.complete()?, &rights);
    Ok(answer::json(&headers, &inbox, &inbox.sequence))
}

fn awaits(row: &RunRow) -> bool {
    row.phase == Phase::AwaitingApproval && row.approved_by.is_none()
}

/// The inbox of a person.
pub fn inbox(tables: &Tables, rights: &Rights) -> Inbox {
    let mut needs = Vec::new();
    let (mut running, mut queue, mut finished) = (Vec::new(), Vec::new(), Vec::new());
    let runs = tables.runs.rows().map(|held| &held.row);
    for row in runs.filter(|row| rights.runs.has(&row.namespace)) {
        if let Some(why) = why_of_run(row, tables, rights) {
            needs.push((why, row.phase_since.clone(), Some(row), None));
        }
        if row.phase.is_terminal() {
            finished.push(row);
        } else if row.wait.is_some() {
            queue.push(row);
        } else if row.phase != Phase::AwaitingApproval || !awaits(row) {
            running.push(row);
        }
    }
    let layers = tables.layers.rows().map(|held| &held.row);
    for row in layers.filter(|row| rights.layers.has(&row.namespace)) {
        if let Some(why) = why_of_layer(row) {
            needs.push((why, row.changed_at.clone(), None, Some(row)));
        }
    }
    // The longest wait first.
    needs.sort_by(|one, two| (one.0, &one.1).cmp(&(two.0, &two.1)));
    running.sort_by(|one, two| two.phase_since.cmp(&one.phase_since));
    queue.sort_by_key(|row| {
        let place = row.wait.as_ref().and_then(|wait| wait.place);
        (place.unwrap_or(u32::MAX), row.created_at.clone())
    });
    finished.sort_by(|one, two| two.ended_at.cmp(&one.ended_at));
    let first = |rows: &[&RunRow], most| rows.iter().take(most).map(|row| (*row).clone()).collect();
    Inbox {
        totals: Totals {
            needs: needs.len(),
            running: running.len(),
            queue: queue.len(),
        },
        needs: needs
            .into_iter()
            .take(MOST)
            .map(|(why, _, run, layer)| Need {
                why,
                run: run.cloned(),
                layer: layer.cloned(),
            })
            .collect(),
        running: first(&running, MOST),
        queue: first(&queue, MOST),
        finished: first(&finished, FINISHED),
        sequence: tables.changes.last().to_string(),
    }
}

fn why_of_run(row: &RunRow, tables: &Tables, rights: &Rights) -> Option<Why> {
    if awaits(row) {
        return rights
            .approvals
            .has(&row.namespace)
            .then_some(Why::AwaitingApproval);
    }
    if !row.phase.is_terminal() {
        return row.stalled.then_some(Why::Stuck);
    }
    let layer = row.layer.clone();
    let layer = layer.and_then(|layer| tables.layers.get(&(row.namespace.clone(), layer)));
    match row.result? {
        // A later run that left nothing to do shows the outcome.
        RunResult::Indeterminate => {
            let settled = layer.is_some_and(|layer| layer.last_applied > row.ended_at);
            (row.followed_by.is_none() && !settled).then_some(Why::Indeterminate)
        }
        // The layer of a failed run shows whether another follows.
        RunResult::Failed if layer.is_none() && row.followed_by.is_none() => Some(Why::Failed),
        _ => None,
    }
}

fn why_of_layer(row: &LayerRow) -> Option<Why> {
    match row.state {
        LayerRowState::Stuck => Some(Why::Stuck),
        LayerRowState::Failed => Some(Why::Failed),
        LayerRowState::Drifted => Some(Why::Drifted),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::rows::{
        Rows,
        tests::{layer, plan, run, show},
    };

    fn only(namespace: &str) -> Scope {
        Scope::Namespaces(Arc::new(BTreeSet::from([namespace.to_owned()])))
    }

    fn rows() -> Rows {
        let rows = Rows::default();
        let condition = |type_: &str, status: &str, reason: &str, message: &str| {
            json!({"type": type_, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let queued = |place: u32| {
            let why = format!("waits for its turn on the state behind a/b, in place {place}");
            json!({"phase": "Pending", "conditions": [condition("StateLeased", "False", "Queued", &why)]})
        };
        let ended = |result: &str, at: &str| json!({"phase": "Failed", "result": result, "completionTime": at});
        let waits = json!({"phase": "AwaitingApproval", "plan": plan(1)});
        let stuck = json!({"phase": "Setup", "conditions": [condition("Stalled", "True", "ImageNotAvailable", "")]});
        let status = |reason: &str| {
            json!({"conditions": [condition("Ready", "False", reason, "")],
            "lastApply": {"run": "x", "revision": "", "content": "", "settings": "", "trigger": "Commit", "at": "2026-01-02T00:00:00Z"}})
        };
        for namespace in ["a", "b"] {
            let made: [(&str, &str, Value); 9] = [
                ("waits", "net", waits.clone()),
                ("stuck", "net", stuck.clone()),
                ("second", "net", queued(2)),
                ("first", "net", queued(1)),
                ("plans", "net", json!({"phase": "Plan"})),
                (
                    "lost",
                    "net",
                    ended("Indeterminate", "2026-01-03T00:00:00Z"),
                ),
                ("old", "net", ended("Indeterminate", "2026-01-01T00:00:00Z")),
                ("fails", "", ended("Failed", "2026-01-04T00:00:00Z")),
                ("failed", "net", ended("Failed", "2026-01-05T00:00:00Z")),
            ];
            let runs = made.map(|(name, of, status)| run(namespace, name, of, &status));
            let layers = [
                ("net", "DriftFound"),
                ("dns", "RunFailed"),
                ("iam", "UpToDate"),
            ]
            .map(|(name, reason)| layer(namespace, name, &status(reason)));
            show(&rows, &runs, &layers);
        }
        rows
    }

    fn names(rows: &[RunRow]) -> Vec<&str> {
        rows.iter().map(|row| &*row.name).collect()
    }

    #[test]
    fn inbox_has_what_needs_the_person() {
        let rights = Rights {
            runs: only("a"),
            layers: only("a"),
            approvals: only("a"),
        };
        let inbox = inbox(&rows().read(), &rights);
        let needs: Vec<_> = inbox
            .needs
            .iter()
            .map(|need| {
                let run = need.run.as_ref().map(|row| &*row.name);
                (
                    need.why,
                    run.or(need.layer.as_ref().map(|row| &*row.name)).unwrap(),
                )
            })
            .collect();
        assert_eq!(
            needs,
            [
                (Why::Indeterminate, "lost"),
                (Why::AwaitingApproval, "waits"),
                (Why::Stuck, "stuck"),
                (Why::Failed, "dns"),
                (Why::Failed, "fails"),
                (Why::Drifted, "net"),
            ]
        );
        assert_eq!(names(&inbox.queue), ["first", "second"]);
        assert_eq!(names(&inbox.running), ["plans", "stuck"]);
        assert_eq!(names(&inbox.finished), ["failed", "fails", "lost", "old"]);
    }

    #[test]
    fn inbox_counts_nothing_of_other_namespaces() {
        let rights = Rights {
            runs: only("a"),
            layers: only("none"),
            approvals: only("b"),
        };
        let inbox = inbox(&rows().read(), &rights);
        let totals = Totals {
            needs: 3,
            running: 2,
            queue: 2,
        };
        assert_eq!(inbox.totals, totals, "and no approval that is not theirs");
        let said = serde_json::to_string(&inbox).unwrap();
        assert!(!said.contains("\"namespace\":\"b\""), "{said}");
    }
}
