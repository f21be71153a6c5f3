//! Requests of Pawl's processes in an audit log.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead as _, BufReader, Seek as _, SeekFrom},
    path::PathBuf,
};

use anyhow::{Context, Result};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use super::PARTS;
use crate::cluster::{Access, NAMESPACE};

/// Text for the message of a lacking right while an API server starts, and while Helm creates or deletes Pawl's roles.
pub(super) const STARTING: &str = "the roles were not in effect";
/// How long before and after a start, or a change of roles, that is. Helm deletes the roles while the processes still end.
const START: SignedDuration = SignedDuration::from_secs(40);

/// A kind of request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Request {
    /// `agent`, or one of [`PARTS`].
    pub(super) part: &'static str,
    pub(super) verb: String,
    pub(super) group: String,
    /// With the subresource.
    pub(super) resource: String,
    /// Of the object; empty unless the chart restricts rights of this kind by name.
    pub(super) name: String,
    /// Whether the authorizer allowed it. Admission may have refused it afterwards.
    pub(super) is_allowed: bool,
    /// The message of a 403, without names of accounts, namespaces and objects.
    pub(super) refusal: Option<String>,
}

/// Number of requests of a kind, and the URI of the first.
pub(super) type Requests = BTreeMap<Request, (usize, String)>;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Event {
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    user_agent: String,
    user: User,
    impersonated_user: Option<User>,
    object_ref: Object,
    response_status: Response,
    annotations: BTreeMap<String, String>,
    stage_timestamp: Option<Timestamp>,
}

impl Event {
    /// Whether an API server checks the built-in roles, which it does once, or somebody else than Pawl creates or deletes roles of Pawl.
    fn changes_roles(&self) -> bool {
        let object = &self.object_ref;
        let starts = self.user.username == "system:apiserver"
            && self.verb == "get"
            && (object.resource.as_str(), object.name.as_str())
                == ("clusterroles", "cluster-admin");
        starts
            || object.api_group == "rbac.authorization.k8s.io"
                && object.name.starts_with("pawl-")
                && matches!(self.verb.as_str(), "create" | "delete")
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct User {
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Object {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
    api_group: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Response {
    code: u16,
    message: String,
}

/// The audit log of an API server from some point on.
#[derive(Debug)]
pub struct Log {
    pub(super) path: PathBuf,
    pub(super) from: u64,
}

impl Log {
    /// All of a new API server's.
    pub fn of_all(access: &Access) -> Self {
        let path = access.audit_log.clone();
        Self { path, from: 0 }
    }

    /// Without the requests so far: a cluster of an earlier run has those of that run.
    pub fn begin(access: &Access) -> Self {
        let path = access.audit_log.clone();
        let from = path.metadata().map_or(0, |log| log.len());
        Self { path, from }
    }

    /// Adds its requests.
    pub(super) fn read(&self, requests: &mut Requests) -> Result<()> {
        let cannot = || format!("cannot read {}", self.path.display());
        let mut file = File::open(&self.path).with_context(cannot)?;
        file.seek(SeekFrom::Start(self.from))?;
        let (mut starts, mut refused) = (Vec::new(), Vec::new());
        for line in BufReader::new(file).split(b'\n') {
            // A killed API server leaves an incomplete line.
            let Ok(event) = serde_json::from_slice::<Event>(&line.with_context(cannot)?) else {
                continue;
            };
            let (at, is_start) = (event.stage_timestamp, event.changes_roles());
            starts.extend(at.filter(|_| is_start));
            match request(event) {
                Some((request, uri)) if !request.is_allowed => refused.push((at, request, uri)),
                Some((request, uri)) => requests.entry(request).or_insert((0, uri)).0 += 1,
                None => {}
            }
        }
        for (at, mut request, uri) in refused {
            let is_near =
                |start: &Timestamp| at.is_some_and(|at| at.duration_since(*start).abs() <= START);
            if let Some(said) = request
                .refusal
                .as_mut()
                .filter(|_| starts.iter().any(is_near))
            {
                said.push_str(STARTING);
            }
            requests.entry(request).or_insert((0, uri)).0 += 1;
        }
        Ok(())
    }
}

/// The request and its URI, if one of Pawl's processes sent it.
fn request(event: Event) -> Option<(Request, String)> {
    if !event.user_agent.is_empty() {
        return None;
    }
    let user = event.impersonated_user.as_ref().unwrap_or(&event.user);
    let part = part(&user.username)?;
    let (object, response) = (&event.object_ref, &event.response_status);
    let slash = if object.subresource.is_empty() {
        ""
    } else {
        "/"
    };
    let decision = event.annotations.get("authorization.k8s.io/decision");
    let is_by_name = matches!(
        object.resource.as_str(),
        "apiservices" | "clusterroles" | "endpointslices" | "secrets"
    );
    let refusal = (response.code == 403).then(|| {
        let names =
            [&user.username, &object.namespace, &object.name].map(|name| format!("\"{name}\""));
        names.iter().fold(response.message.clone(), |text, name| {
            text.replace(name, "…")
        })
    });
    let request = Request {
        part,
        verb: event.verb,
        group: object.api_group.clone(),
        resource: format!("{}{slash}{}", object.resource, object.subresource),
        name: if is_by_name {
            object.name.clone()
        } else {
            String::new()
        },
        is_allowed: decision.is_some_and(|decision| decision == "allow"),
        refusal,
    };
    Some((request, event.request_uri))
}

/// The part of Pawl with this account. Every account outside of the namespaces of Pawl and of Kubernetes is an agent's: other clients send
/// a `User-Agent`.
fn part(user: &str) -> Option<&'static str> {
    let (namespace, name) = user
        .strip_prefix("system:serviceaccount:")?
        .split_once(':')?;
    match namespace {
        "kube-system" => None,
        // Tests give other releases fewer rights.
        NAMESPACE => PARTS
            .into_iter()
            .find(|part| name.strip_prefix("pawl-") == Some(part)),
        _ => Some("agent"),
    }
}
