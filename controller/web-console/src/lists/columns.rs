//! The filters and the sorts of each list.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::rows::{LayerRow, RepositoryRow, RunRow, State, table::Table};

use super::{
    LAYERS, REPOSITORIES, RUNS,
    cursor::Value,
    page::{Facet, Listed, Sort},
};

#[expect(
    clippy::unnecessary_wraps,
    reason = "the other columns may lack a value"
)]
fn text(text: &str) -> Option<Value<'_>> {
    Some(Value::Text(text.into()))
}

fn time(time: Option<&Time>) -> Option<Value<'static>> {
    time.map(|time| Value::Number(time.0.as_second()))
}

impl Listed for LayerRow {
    const RESOURCE: &'static str = LAYERS;
    const FACETS: &'static [Facet<Self>] = &[
        ("state", |row| Some(row.state.as_str())),
        ("namespace", |row| Some(&row.namespace)),
        ("repository", |row| Some(&row.repository)),
        ("reason", |row| row.reason.as_deref()),
    ];
    const FILTERS: &'static [Facet<Self>] = &[];
    const SORTS: &'static [(&'static str, Sort<Self>)] = &[
        ("name", |row| text(&row.name)),
        ("namespace", |row| text(&row.namespace)),
        ("state", |row| text(row.state.as_str())),
        ("repository", |row| text(&row.repository)),
        ("path", |row| text(&row.path)),
        ("changedAt", |row| time(row.changed_at.as_ref())),
        ("driftSince", |row| time(row.drift_since.as_ref())),
        ("lastApplied", |row| time(row.last_applied.as_ref())),
        ("nextCheck", |row| time(row.next_check.as_ref())),
    ];

    fn table(tables: &State) -> &Table<Self> {
        &tables.layers
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn name(&self) -> &str {
        &self.name
    }
}

impl Listed for RunRow {
    const RESOURCE: &'static str = RUNS;
    const FACETS: &'static [Facet<Self>] = &[
        ("phase", |row| Some(row.phase.as_str())),
        ("result", |row| row.result.map(crds::RunResult::as_str)),
        ("namespace", |row| Some(&row.namespace)),
        ("action", |row| Some(row.action.as_str())),
        ("reason", |row| row.reason.as_deref()),
    ];
    const FILTERS: &'static [Facet<Self>] = &[("layer", |row| row.layer.as_deref())];
    const SORTS: &'static [(&'static str, Sort<Self>)] = &[
        ("-createdAt", |row| time(row.created_at.as_ref())),
        ("name", |row| text(&row.name)),
        ("namespace", |row| text(&row.namespace)),
        ("layer", |row| row.layer.as_deref().and_then(text)),
        ("phase", |row| text(row.phase.as_str())),
        ("phaseSince", |row| time(row.phase_since.as_ref())),
        ("endedAt", |row| time(row.ended_at.as_ref())),
    ];

    fn table(tables: &State) -> &Table<Self> {
        &tables.runs
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn name(&self) -> &str {
        &self.name
    }
}

impl Listed for RepositoryRow {
    const RESOURCE: &'static str = REPOSITORIES;
    const FACETS: &'static [Facet<Self>] = &[
        ("state", |row| Some(row.state.as_str())),
        ("namespace", |row| Some(&row.namespace)),
        ("reason", |row| row.reason.as_deref()),
    ];
    const FILTERS: &'static [Facet<Self>] = &[];
    const SORTS: &'static [(&'static str, Sort<Self>)] = &[
        ("name", |row| text(&row.name)),
        ("namespace", |row| text(&row.namespace)),
        ("state", |row| text(row.state.as_str())),
        ("url", |row| text(&row.url)),
        ("changedAt", |row| time(row.changed_at.as_ref())),
        ("movedAt", |row| time(row.moved_at.as_ref())),
    ];

    fn table(tables: &State) -> &Table<Self> {
        &tables.repositories
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn name(&self) -> &str {
        &self.name
    }
}
