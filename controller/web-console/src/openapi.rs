//! The description of the REST API (OpenAPI 3.1): one table of operations, with schemas generated from the types.

use std::sync::{Arc, LazyLock};

use axum::{Router, http::header, routing::get};
use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::{
    Console,
    acts::Request,
    inbox::Inbox,
    lists::page::Page,
    login::{Me, Ways, code, token},
    pages::{
        layer::LayerPage,
        log,
        namespace::NamespacePage,
        repository::RepositoryPage,
        run::{self, RunPage},
        state::{self, Outputs, StatePage, Unlock},
    },
    rows::{layer::LayerRow, repository::RepositoryRow, run::RunRow},
    stream::RowEvent,
};

/// The generated file, from the crate's directory.
pub const FILE: &str = "../ui/openapi.json";

type Of = fn(&mut SchemaGenerator) -> Schema;

/// The type of an answer.
pub enum Answer {
    Json(Of),
    /// Text that a tool printed.
    Text,
    /// JSON, one document of this type a line.
    Lines(Of),
    /// Server-sent events with this data.
    Events(Of),
    /// No content.
    Empty,
}

/// One operation, below `/api/v1`.
pub struct Operation {
    pub method: &'static str,
    pub path: &'static str,
    pub summary: &'static str,
    pub query: &'static [&'static str],
    pub body: Option<Of>,
    pub answer: Answer,
}

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// The first line of the changes, and the others.
fn head_or_change(generator: &mut SchemaGenerator) -> Schema {
    let any = [
        of::<crds::changes::Head>(generator),
        of::<crds::changes::Change>(generator),
    ];
    schemars::json_schema!({"anyOf": any})
}

const fn read(path: &'static str, summary: &'static str, answer: Answer) -> Operation {
    Operation {
        method: "get",
        path,
        summary,
        query: &[],
        body: None,
        answer,
    }
}

const fn change(path: &'static str, summary: &'static str, body: Of, answer: Answer) -> Operation {
    Operation {
        method: "post",
        path,
        summary,
        query: &[],
        body: Some(body),
        answer,
    }
}

const fn with(operation: Operation, query: &'static [&'static str]) -> Operation {
    Operation { query, ..operation }
}

/// Parameters of all lists; each list has filters beside them.
const LIST: [&str; 7] = [
    "q",
    "sort",
    "limit",
    "cursor",
    "state",
    "namespace",
    "reason",
];

/// All operations.
pub const OPERATIONS: &[Operation] = &[
    read(
        "/openapi.json",
        "This description",
        Answer::Json(of::<Value>),
    ),
    read("/me", "The person who asks", Answer::Json(of::<Me>)),
    read("/login", "The ways to log in", Answer::Json(of::<Ways>)),
    change(
        "/login/token",
        "Logs in with a token; sets cookies",
        of::<token::Given>,
        Answer::Json(of::<Me>),
    ),
    change(
        "/login/code",
        "Logs in with a code, once; sets cookies",
        of::<code::Given>,
        Answer::Json(of::<Me>),
    ),
    change(
        "/codes",
        "Makes a code that logs in once, with a bearer token",
        of::<()>,
        Answer::Json(of::<code::Code>),
    ),
    change(
        "/logout",
        "Ends the session and its streams",
        of::<()>,
        Answer::Empty,
    ),
    with(
        read(
            "/layers",
            "A page of layers; `repository` is a filter too",
            Answer::Json(of::<Page<LayerRow>>),
        ),
        &LIST,
    ),
    with(
        read(
            "/runs",
            "A page of runs; `phase`, `result`, `action` and `layer` are filters too",
            Answer::Json(of::<Page<RunRow>>),
        ),
        &LIST,
    ),
    with(
        read(
            "/repositories",
            "A page of repositories",
            Answer::Json(of::<Page<RepositoryRow>>),
        ),
        &LIST,
    ),
    read(
        "/inbox",
        "Runs and layers that need the person, run, wait or have finished",
        Answer::Json(of::<Inbox>),
    ),
    with(
        read(
            "/stream",
            "Changed rows of topics, as server-sent events `row` and `resync`",
            Answer::Events(of::<RowEvent>),
        ),
        &["topic", "after"],
    ),
    read(
        "/namespaces/{namespace}/runs/{name}",
        "A run, and what its state permits",
        Answer::Json(of::<RunPage>),
    ),
    change(
        "/namespaces/{namespace}/runs/{name}/acts/{act}",
        "Acts on a run: approve, deny, withdraw, cancel, abandon, recover, rerun",
        of::<Request>,
        Answer::Json(of::<RunPage>),
    ),
    with(
        read(
            "/namespaces/{namespace}/runs/{name}/plan",
            "The plan in the tool's words",
            Answer::Text,
        ),
        &["attempt"],
    ),
    with(
        read(
            "/namespaces/{namespace}/runs/{name}/changes",
            "The changes of the plan, without sensitive values",
            Answer::Lines(head_or_change),
        ),
        &["attempt"],
    ),
    with(
        read(
            "/namespaces/{namespace}/runs/{name}/journal",
            "The events of the apply, one a line; an offset needs an attempt",
            Answer::Lines(of::<run::ApplyEvent>),
        ),
        &run::JOURNAL,
    ),
    with(
        read(
            "/namespaces/{namespace}/runs/{name}/log/{phase}",
            "The log of a phase from a byte offset; an offset needs an attempt",
            Answer::Text,
        ),
        &log::PARAMETERS,
    ),
    read(
        "/namespaces/{namespace}/layers/{name}",
        "A layer, and what its state permits",
        Answer::Json(of::<LayerPage>),
    ),
    change(
        "/namespaces/{namespace}/layers/{name}/acts/{act}",
        "Acts on a layer: plan, suspend, resume, confirm",
        of::<Request>,
        Answer::Json(of::<LayerPage>),
    ),
    read(
        "/namespaces/{namespace}/repositories/{name}",
        "A repository, and what its state permits",
        Answer::Json(of::<RepositoryPage>),
    ),
    change(
        "/namespaces/{namespace}/repositories/{name}/acts/{act}",
        "Acts on a repository: reconcile",
        of::<Request>,
        Answer::Json(of::<RepositoryPage>),
    ),
    read(
        "/namespaces/{namespace}",
        "A namespace: whether it is frozen",
        Answer::Json(of::<NamespacePage>),
    ),
    change(
        "/namespaces/{namespace}/acts/{act}",
        "Acts on a namespace: freeze, unfreeze",
        of::<Request>,
        Answer::Empty,
    ),
    with(
        read(
            "/namespaces/{namespace}/states/{state}",
            "The versions and the lock of a managed state",
            Answer::Json(of::<StatePage>),
        ),
        &state::PARAMETERS,
    ),
    with(
        read(
            "/namespaces/{namespace}/states/{state}/outputs",
            "The outputs of a managed state, without sensitive ones",
            Answer::Json(of::<Outputs>),
        ),
        &state::PARAMETERS,
    ),
    change(
        "/namespaces/{namespace}/states/{state}/unlock",
        "Removes the lock of a state",
        of::<Unlock>,
        Answer::Empty,
    ),
];

/// A refusal (RFC 9457).
#[derive(JsonSchema)]
#[expect(dead_code, reason = "`problem` writes it")]
struct Problem {
    r#type: String,
    title: String,
    status: u16,
    /// One word, for programs.
    reason: String,
    /// In the words of the API server or of the run.
    detail: String,
}

/// The description as a file, with one path or schema a line.
pub fn text() -> String {
    let mut document = document();
    let mut rows = |pointer: &str| {
        let taken = document.pointer_mut(pointer).map(Value::take);
        let rows = taken.iter().filter_map(Value::as_object).flatten();
        let rows: Vec<_> = rows
            .map(|(name, it)| format!("{}:{it}", json!(name)))
            .collect();
        format!("{{\n{}\n}}", rows.join(",\n"))
    };
    let (paths, schemas) = (rows("/paths"), rows("/components/schemas"));
    let text = document.to_string();
    let text = text.replacen("\"paths\":null", &format!("\"paths\":{paths}"), 1);
    let text = text.replacen("\"schemas\":null", &format!("\"schemas\":{schemas}"), 1);
    format!("{text}\n")
}

fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let settings = settings.with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let described = operation.describe(&mut generator);
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = described;
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Pawl", "version": crds::release::VERSION},
        "servers": [{"url": "/api/v1"}],
        "paths": paths,
        "components": {"schemas": generator.take_definitions(true)},
    })
}

impl Operation {
    fn describe(&self, generator: &mut SchemaGenerator) -> Value {
        let of_path = self
            .path
            .split('/')
            .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let of_path = of_path.map(|name| (name, "path"));
        let parameters: Vec<_> = of_path
            .chain(self.query.iter().map(|name| (*name, "query")))
            .map(|(name, place)| json!({"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}}))
            .collect();
        let (code, content) = match &self.answer {
            Answer::Json(of) => (200, json!({"application/json": {"schema": of(generator)}})),
            Answer::Text => (200, json!({"text/plain": {"schema": {"type": "string"}}})),
            Answer::Lines(of) => (
                200,
                json!({"application/x-ndjson": {"schema": of(generator)}}),
            ),
            Answer::Events(of) => (200, json!({"text/event-stream": {"schema": of(generator)}})),
            Answer::Empty => (204, Value::Null),
        };
        let mut answer = json!({"description": self.summary});
        if !content.is_null() {
            answer["content"] = content;
        }
        let problem = json!({"application/problem+json": {"schema": of::<Problem>(generator)}});
        let mut described = json!({
            "summary": self.summary, "parameters": parameters,
            "responses": {code.to_string(): answer, "default": {"description": "A refusal", "content": problem}},
        });
        if let Some(body) = self.body {
            described["requestBody"] =
                json!({"content": {"application/json": {"schema": body(generator)}}});
        }
        described
    }
}

/// The route of the description. It needs no session.
pub fn router() -> Router<Arc<Console>> {
    static TEXT: LazyLock<String> = LazyLock::new(text);
    let answer = async || ([(header::CONTENT_TYPE, "application/json")], TEXT.as_str());
    Router::new().route("/api/v1/openapi.json", get(answer))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    /// Reads all files of the crate for the paths of its routes.
    fn routes(of: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(of).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                routes(&path, found);
                continue;
            }
            let text: String = fs::read_to_string(&path).unwrap();
            let text: String = text.split_whitespace().collect();
            for piece in text.split(concat!(".rou", "te(\"")).skip(1) {
                let route = piece.split('"').next().unwrap();
                if !route.starts_with("/login/oidc") {
                    found.insert(route.strip_prefix("/api/v1").unwrap_or(route).to_owned());
                }
            }
        }
    }

    #[test]
    fn router_and_description_have_the_same_paths() {
        let mut found = BTreeSet::new();
        routes(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
            &mut found,
        );
        let described: BTreeSet<_> = OPERATIONS.iter().map(|it| it.path.to_owned()).collect();
        assert_eq!(found, described);
    }

    #[test]
    fn description_in_the_tree_is_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
        assert!(
            fs::read_to_string(path).unwrap_or_default() == text(),
            "run: cargo run --release -p web-console --bin openapi"
        );
    }

    #[test]
    fn references_of_the_description_lead_to_schemas() {
        let text = text();
        let document: Value = serde_json::from_str(&text).unwrap();
        for reference in text.split("\"$ref\":\"#").skip(1) {
            let pointer = reference.split('"').next().unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
        assert!(text.contains("#/components/schemas/"));
    }
}
