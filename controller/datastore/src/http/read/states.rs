//! States for people: list, download, restore, unlock, hand over.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crds::datastore::{Problem, StateId, Stored};
use serving::problem::{self, invalid, not_found};

use crate::{
    http::answer::content,
    names::StateKey,
    service::Service,
    state::{Head, Newest, Version},
};

use super::{GROUP, VERSION};

/// Maximum number of states in a list.
const MOST: usize = 1000;

/// The body of a restore.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Restore {
    #[serde(default = "default_workspace")]
    workspace: String,
    version: u64,
    #[serde(default)]
    reason: String,
}

/// The body of an unlock.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Unlock {
    #[serde(default = "default_workspace")]
    workspace: String,
    #[serde(default)]
    reason: String,
}

/// The body of a handover.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HandOver {
    /// The stack's workspace; `default` when empty.
    workspace: Option<String>,
    #[serde(default)]
    reason: String,
}

fn default_workspace() -> String {
    "default".into()
}

/// Lists all states of a namespace.
///
/// # Errors
/// `Unavailable`.
pub async fn list(service: &Service, namespace: &str) -> Result<Response, Problem> {
    let mut items = Vec::new();
    for key in service.states.list(namespace).await?.into_iter().take(MOST) {
        // One unreadable state must not hide the others.
        items.push(match service.states.newest(&key).await {
            Ok(newest) => summary(namespace, &key, &newest),
            Err(problem) => {
                let mut item = bare(namespace, &key);
                item["problem"] = problem.to_string().into();
                item
            }
        });
    }
    let list = json!({"kind": "StateList", "apiVersion": format!("{GROUP}/{VERSION}"), "metadata": {}, "items": items});
    Ok(problem::json(StatusCode::OK, &list))
}

fn bare(namespace: &str, key: &StateKey) -> Value {
    json!({
        "kind": "State", "apiVersion": format!("{GROUP}/{VERSION}"),
        "metadata": {"name": key.id().stack, "namespace": namespace},
        "stack": key.id().stack, "workspace": key.id().workspace,
    })
}

fn summary(namespace: &str, key: &StateKey, newest: &Newest) -> Value {
    let mut item = bare(namespace, key);
    item["namespaceUid"] = newest.head.namespace_uid.clone().into();
    item["lock"] = lock(&newest.head);
    item["versionCount"] = newest.head.versions.len().into();
    item["newest"] = newest.head.newest().map(version).into();
    item
}

fn version(version: &Version) -> Value {
    let mut shown = serde_json::to_value(version).unwrap_or_default();
    if let Some(shown) = shown.as_object_mut() {
        shown.remove("place");
    }
    shown
}

fn lock(head: &Head) -> Value {
    head.lock.as_ref().map_or(
        Value::Null,
        |held| json!({"id": held.id, "run": held.run, "attempt": held.attempt, "since": held.at, "info": held.info}),
    )
}

/// Lists the versions of a state, newest first.
///
/// # Errors
/// `NotFound`, `Unavailable`, `Corrupt`, `KeyMissing`.
pub async fn versions(service: &Service, key: &StateKey) -> Result<Response, Problem> {
    let newest = existing(service, key).await?;
    let mut item = summary(key.namespace(), key, &newest);
    item["versions"] = newest.head.versions.iter().rev().map(version).collect();
    item["notes"] = serde_json::to_value(&newest.head.notes).unwrap_or_default();
    Ok(problem::json(StatusCode::OK, &item))
}

async fn existing(service: &Service, key: &StateKey) -> Result<Newest, Problem> {
    let newest = service.states.newest(key).await?;
    if newest.number == 0 {
        return Err(not_found(format!("there is no state of stack {} and workspace {}", key.id().stack, key.id().workspace)));
    }
    Ok(newest)
}

/// Downloads the content of a version.
///
/// # Errors
/// `NotFound`, `Unavailable`, `Corrupt`, `KeyMissing`.
pub async fn download(service: &Service, key: &StateKey, number: Option<u64>) -> Result<Response, Problem> {
    let found = service.states.get(key, number).await?;
    let (version, stream) = found.ok_or_else(|| not_found("the state has no version"))?;
    let mut response = content(service, &Stored { digest: version.digest, size: version.size }, stream).await?;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Makes an old version the newest.
///
/// # Errors
/// `Invalid`, `Locked`, `NotFound`, `Unavailable`, `Corrupt`, `KeyMissing`.
pub async fn restore(service: &Service, namespace: &str, stack: &str, user: &str, body: &[u8]) -> Result<Response, Problem> {
    let asked: Restore = parse(body, r#"{"workspace": "default", "version": 3, "reason": "…"}"#)?;
    let key = StateKey::new(namespace, StateId { stack: stack.to_owned(), workspace: asked.workspace })?;
    let reason = reason(&asked.reason)?;
    existing(service, &key).await?;
    let made = service.states.restore(&key, asked.version, user, reason).await?;
    tracing::info!(state = %key.prefix(), user, reason, from = asked.version, to = made.number, "a version was restored");
    Ok(problem::json(StatusCode::CREATED, &version(&made)))
}

/// Removes a lock.
///
/// # Errors
/// `Invalid`, `NotFound`, `Unavailable`, `Corrupt`, `KeyMissing`.
pub async fn unlock(service: &Service, namespace: &str, stack: &str, user: &str, body: &[u8]) -> Result<Response, Problem> {
    let asked: Unlock = parse(body, r#"{"workspace": "default", "reason": "…"}"#)?;
    let key = StateKey::new(namespace, StateId { stack: stack.to_owned(), workspace: asked.workspace })?;
    let reason = reason(&asked.reason)?;
    existing(service, &key).await?;
    let removed = service.states.force_unlock(&key, user, reason).await?;
    let removed = removed.ok_or_else(|| not_found("the lock of this state is not held"))?;
    tracing::info!(state = %key.prefix(), user, reason, run = removed.run, attempt = removed.attempt, "a lock was removed");
    let shown =
        json!({"id": removed.id, "run": removed.run, "attempt": removed.attempt, "since": removed.at, "info": removed.info});
    Ok(problem::json(StatusCode::OK, &json!({"removed": shown})))
}

/// Hands one state, or all of the namespace, over to the current namespace of that name. Reports states that cannot be
/// handed over and continues with the others.
///
/// # Errors
/// `Invalid`, `NotFound`, `Unavailable`, `Corrupt`, `KeyMissing`.
pub async fn hand_over(
    service: &Service,
    namespace: &str,
    stack: Option<&str>,
    user: &str,
    body: &[u8],
) -> Result<Response, Problem> {
    let asked: HandOver = parse(body, r#"{"workspace": "default", "reason": "…"}"#)?;
    let reason = reason(&asked.reason)?;
    let keys = match (stack, asked.workspace) {
        (Some(stack), workspace) => {
            let id = StateId { stack: stack.to_owned(), workspace: workspace.unwrap_or_else(default_workspace) };
            let key = StateKey::new(namespace, id)?;
            existing(service, &key).await?;
            vec![key]
        }
        (None, None) => service.states.list(namespace).await?,
        (None, Some(_)) => return Err(invalid("`workspace` goes with a stack; all states of the namespace were asked for")),
    };
    let uid = service.lookup.namespace_uid(namespace).await?;
    let mut items = Vec::new();
    for key in &keys {
        let mut item = json!({"stack": key.id().stack, "workspace": key.id().workspace});
        match service.states.hand_over(key, &uid, user, reason).await {
            Ok(changed) => {
                tracing::info!(state = %key.prefix(), user, reason, namespace_uid = uid, changed, "a state was handed over");
                item["handedOver"] = changed.into();
            }
            Err(problem) if stack.is_some() => return Err(problem),
            Err(problem) => item["problem"] = problem.to_string().into(),
        }
        items.push(item);
    }
    Ok(problem::json(StatusCode::OK, &json!({"namespaceUid": uid, "items": items})))
}

fn parse<T: for<'de> Deserialize<'de>>(body: &[u8], example: &str) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| invalid(format!("the body has to be like {example}: {error}")))
}

/// Validates the reason that people give; it is stored with the state.
fn reason(text: &str) -> Result<&str, Problem> {
    let text = text.trim();
    if text.is_empty() || text.len() > 512 || text.chars().any(char::is_control) {
        return Err(invalid("`reason` has to say why, in one line of at most 512 bytes"));
    }
    Ok(text)
}
