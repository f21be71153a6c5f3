//! Lists of rows, with search, filters, facets, sorting and cursors, answered from memory.

pub mod answer;
mod columns;
pub mod cursor;
pub mod page;
pub mod query;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, Uri},
    response::Response,
    routing::get,
};

use crate::{
    Console,
    access::Scope,
    person::Person,
    problem::Problem,
    rows::{LayerRow, RepositoryRow, RunRow, State as Tables},
};

use page::{Listed, Page, page, query};

/// Resources of the API server, as rights name them.
pub const LAYERS: &str = "terraformlayers";
pub const RUNS: &str = "terraformruns";
pub const REPOSITORIES: &str = "terraformrepositories";

/// The routes of lists.
pub fn router() -> Router<Arc<Console>> {
    Router::new()
        .route("/api/v1/layers", get(list::<LayerRow>))
        .route("/api/v1/runs", get(list::<RunRow>))
        .route("/api/v1/repositories", get(repositories))
}

impl Console {
    /// The namespaces with objects in which the person may list this resource.
    ///
    /// # Errors
    /// The API server refused the token or did not respond; or a first listing has not ended.
    pub async fn scope(&self, person: &Person, resource: &'static str) -> Result<Scope, Problem> {
        let namespaces = namespaces(&*self.rows.complete()?, resource);
        let scope = self.access.scope(person, resource, namespaces.into_iter());
        scope.await
    }
}

/// The namespaces with objects of a resource.
fn namespaces(tables: &Tables, resource: &'static str) -> Vec<String> {
    let owned = |names: &mut dyn Iterator<Item = &str>| names.map(str::to_owned).collect();
    match resource {
        LAYERS => owned(&mut tables.layers.namespaces()),
        RUNS => owned(&mut tables.runs.namespaces()),
        _ => owned(&mut tables.repositories.namespaces()),
    }
}

fn parameters(uri: &Uri) -> form_urlencoded::Parse<'_> {
    form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
}

async fn list<R: Listed>(
    State(console): State<Arc<Console>>,
    person: Person,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let query = query::<R>(parameters(&uri))?;
    let scope = console.scope(&person, R::RESOURCE).await?;
    let found = {
        let tables = console.rows.complete()?;
        page(R::table(&tables).rows(), &scope, &query).at(tables.changes.last())
    };
    Ok(answer::json(&headers, &found, &found.sequence))
}

async fn repositories(
    State(console): State<Arc<Console>>,
    person: Person,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let query = query::<RepositoryRow>(parameters(&uri))?;
    let scope = console.scope(&person, REPOSITORIES).await?;
    let of_layers = console.scope(&person, LAYERS).await?;
    let found = {
        let tables = console.rows.complete()?;
        let mut found = page(tables.repositories.rows(), &scope, &query);
        count_layers(&mut found, &tables, &of_layers);
        found.at(tables.changes.last())
    };
    Ok(answer::json(&headers, &found, &found.sequence))
}

impl Tables {
    /// Counts the layers of a repository, among those that the person may list.
    pub fn layers_of(&self, namespace: &str, name: &str, scope: &Scope) -> u32 {
        let rows = self.layers.rows().map(|held| &held.row);
        let of = rows.filter(|row| scope.has(&row.namespace) && row.is_of(namespace, name));
        u32::try_from(of.count()).unwrap_or(u32::MAX)
    }
}

/// Counts the layers of each repository, among those that the person may list.
fn count_layers(found: &mut Page<RepositoryRow>, tables: &Tables, scope: &Scope) {
    let mut counts = HashMap::<(&str, &str), u32>::new();
    let rows = tables.layers.rows().map(|held| &held.row);
    for row in rows.filter(|row| scope.has(&row.namespace)) {
        let own = (&*row.namespace, &*row.repository);
        *counts
            .entry(row.repository.split_once('/').unwrap_or(own))
            .or_default() += 1;
    }
    for row in &mut found.items {
        let count = counts.get(&(&*row.namespace, &*row.name));
        row.layers = count.copied().unwrap_or_default();
    }
}
