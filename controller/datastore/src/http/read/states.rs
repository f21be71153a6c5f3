//! States for people: list, download, restore, unlock, hand over.

use std::fmt::Display;

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crds::{
    datastore::{Problem, StateId, Stored},
    outputs::StateOutputs,
};
use serving::problem::{self, invalid, not_found};

use crate::{
    http::answer::content,
    journal,
    names::StateKey,
    service::Service,
    state::{Held, Newest, Version},
};

use super::{GROUP, VERSION, route::Change};

/// Maximum number of states in a list.
pub const MOST: usize = 1000;

/// A change of a state by a person, with its body.
pub struct Asked<'a> {
    change: Change,
    namespace: &'a str,
    stack: Option<String>,
    user: &'a str,
    body: Body,
}

/// The body of a change.
#[derive(Debug, Deserialize)]
struct Body {
    /// The stack's workspace; `default` when empty.
    workspace: Option<String>,
    /// The version to restore.
    version: Option<u64>,
    #[serde(default)]
    reason: String,
}

/// Lists the states of a namespace, at most `most`.
///
/// # Errors
/// `Unavailable`.
pub async fn list(service: &Service, namespace: &str, most: usize) -> Result<Response, Problem> {
    let mut items = Vec::new();
    for key in service.states.list(namespace).await? {
        if items.len() == most {
            break;
        }
        // One unreadable state must not hide the others.
        items.push(match service.states.newest(&key).await {
            // Only the record of an apply whose state is elsewhere.
            Ok(newest) if newest.head.elsewhere.is_some() && newest.head.versions.is_empty() => {
                continue;
            }
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
    item["lock"] = newest.head.lock.as_ref().map_or(Value::Null, lock);
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

fn lock(held: &Held) -> Value {
    json!({"id": held.id, "run": held.run, "attempt": held.attempt, "since": held.at, "info": held.info})
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
        return Err(not_found(format!(
            "there is no state of stack {} and workspace {}",
            key.id().stack,
            key.id().workspace
        )));
    }
    Ok(newest)
}

/// The outputs of the newest version. Sensitive ones are counted and left out.
///
/// # Errors
/// `NotFound`, `Unavailable`, `Corrupt`, `KeyMissing`, `Invalid` for a state that the tool encrypted.
pub async fn outputs(service: &Service, key: &StateKey) -> Result<Response, Problem> {
    let found = service.states.get(key, None).await?;
    let (version, content) = found.ok_or_else(|| not_found("the state has no version"))?;
    let _permit = service.download(version.size).await?;
    let mut found = journal::read_state(content, StateOutputs::read).await?;
    let all = found.outputs.len();
    found.outputs.retain(|_, output| !output.sensitive);
    let mut item = bare(key.namespace(), key);
    item["kind"] = "StateOutputs".into();
    item["version"] = version.number.into();
    item["sensitive"] = (all - found.outputs.len()).into();
    item["outputs"] = found
        .outputs
        .into_iter()
        .map(|(name, output)| (name, output.value))
        .collect();
    Ok(problem::json(StatusCode::OK, &item))
}

/// Downloads the content of a version.
///
/// # Errors
/// `NotFound`, `Unavailable`, `Corrupt`, `KeyMissing`.
pub async fn download(
    service: &Service,
    key: &StateKey,
    number: Option<u64>,
) -> Result<Response, Problem> {
    let found = service.states.get(key, number).await?;
    let (version, stream) = found.ok_or_else(|| not_found("the state has no version"))?;
    let mut response = content(
        service,
        &Stored {
            digest: version.digest,
            size: version.size,
        },
        stream,
    )
    .await?;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    Ok(response)
}

impl<'a> Asked<'a> {
    /// Parses the body.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn parse(
        change: Change,
        namespace: &'a str,
        stack: Option<String>,
        user: &'a str,
        body: &[u8],
    ) -> Result<Self, Problem> {
        let version = if change == Change::Restore {
            r#""version": 3, "#
        } else {
            ""
        };
        let example = format!(r#"{{"workspace": "default", {version}"reason": "…"}}"#);
        let wrong =
            |error: &dyn Display| invalid(format!("the body has to be like {example}: {error}"));
        let mut body: Body = serde_json::from_slice(body).map_err(|error| wrong(&error))?;
        if change == Change::Restore && body.version.is_none() {
            return Err(wrong(&"`version` is missing"));
        }
        body.reason = reason(&body.reason)?.to_owned();
        Ok(Self {
            change,
            namespace,
            stack,
            user,
            body,
        })
    }

    /// # Errors
    /// `Invalid`, `Locked`, `NotFound`, `Unavailable`, `Corrupt`, `KeyMissing`.
    pub async fn carry_out(self, service: &Service) -> Result<Response, Problem> {
        let (user, reason, namespace) = (self.user, self.body.reason.as_str(), self.namespace);
        let key = match (self.stack, self.body.workspace) {
            (Some(stack), workspace) => {
                let id = StateId {
                    stack,
                    workspace: workspace.unwrap_or_else(|| "default".into()),
                };
                let key = StateKey::new(namespace, id)?;
                existing(service, &key).await?;
                key
            }
            (None, None) => return hand_over(service, namespace, None, user, reason).await,
            (None, Some(_)) => {
                return Err(invalid(
                    "`workspace` goes with a stack; all states of the namespace were asked for",
                ));
            }
        };
        match self.change {
            Change::Restore => {
                let from = self.body.version.unwrap_or_default();
                let made = service.states.restore(&key, from, user, reason).await?;
                tracing::info!(state = %key.prefix(), user, reason, from, to = made.number, "a version was restored");
                Ok(problem::json(StatusCode::CREATED, &version(&made)))
            }
            Change::Unlock => {
                let removed = service.states.force_unlock(&key, user, reason).await?;
                let removed =
                    removed.ok_or_else(|| not_found("the lock of this state is not held"))?;
                let (run, attempt) = (&removed.run, removed.attempt);
                tracing::info!(state = %key.prefix(), user, reason, run, attempt, "a lock was removed");
                Ok(problem::json(
                    StatusCode::OK,
                    &json!({"removed": lock(&removed)}),
                ))
            }
            Change::HandOver => hand_over(service, namespace, Some(key), user, reason).await,
        }
    }
}

/// Hands one state, or all of the namespace, over to the current namespace of that name. Reports states that cannot be
/// handed over and continues with the others.
async fn hand_over(
    service: &Service,
    namespace: &str,
    one: Option<StateKey>,
    user: &str,
    reason: &str,
) -> Result<Response, Problem> {
    let is_one = one.is_some();
    let keys = match one {
        Some(key) => vec![key],
        None => service.states.list(namespace).await?,
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
            Err(problem) if is_one => return Err(problem),
            Err(problem) => item["problem"] = problem.to_string().into(),
        }
        items.push(item);
    }
    Ok(problem::json(
        StatusCode::OK,
        &json!({"namespaceUid": uid, "items": items}),
    ))
}

/// Validates the reason that people give; it is stored with the state.
fn reason(text: &str) -> Result<&str, Problem> {
    let text = text.trim();
    if text.is_empty() || text.len() > 512 || text.chars().any(char::is_control) {
        return Err(invalid(
            "`reason` has to say why, in one line of at most 512 bytes",
        ));
    }
    Ok(text)
}
