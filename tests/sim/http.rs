//! The simulated API server as the controller's client reaches it.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http::{Method, Request, Response, header::DATE};
use kube::client::Body;
use played::store::{Edit, Key, PODS, failure};
use serde_json::{Value, json};
use tower::Service;

use crate::world::{NODES, NS, Process, Shared, Trouble, World, date, now};

/// A connection of a process.
#[derive(Clone)]
pub(crate) struct Server {
    pub shared: Shared,
    pub process: Process,
}

struct Wanted {
    method: Method,
    resource: String,
    namespace: String,
    name: String,
    status: bool,
    dry: bool,
    selector: String,
    kind: String,
    body: Value,
}

impl Wanted {
    async fn of(request: Request<Body>) -> Self {
        let (head, body) = request.into_parts();
        let mut parts = head
            .uri
            .path()
            .split('/')
            .skip_while(|part| *part != "namespaces")
            .skip(1)
            .map(str::to_owned);
        let mut part = || parts.next().unwrap_or_default();
        let (mut namespace, mut resource, name, sub) =
            match head.uri.path().strip_prefix("/api/v1/nodes") {
                Some(name) => (
                    String::new(),
                    NODES.to_owned(),
                    name.trim_start_matches('/').to_owned(),
                    String::new(),
                ),
                None => (part(), part(), part(), part()),
            };
        if namespace.is_empty() && resource.is_empty() {
            // Requests for all namespaces: one namespace has runs.
            let last = head.uri.path().rsplit('/').next().unwrap_or_default();
            (namespace, resource) = (NS.to_owned(), last.to_owned());
        }
        let query = head.uri.query().unwrap_or_default();
        let field = |key: &str| {
            let value = query
                .split('&')
                .filter_map(|pair| pair.split_once('='))
                .find(|(k, _)| *k == key)
                .map(|(_, value)| value);
            value
                .unwrap_or_default()
                .replace("%3D", "=")
                .replace("%2F", "/")
                .replace("%2C", ",")
        };
        let kind = head
            .headers
            .get("content-type")
            .and_then(|kind| kind.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        let bytes = body.collect_bytes().await.unwrap_or_default();
        Self {
            method: head.method,
            resource,
            namespace,
            name,
            status: sub == "status",
            dry: !field("dryRun").is_empty(),
            selector: field("labelSelector"),
            kind,
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
        }
    }

    fn carry_out(self, world: &mut World, process: &Process) -> Result<Value, Trouble> {
        let key = Key::of(&self.resource, &self.namespace, &self.name);
        let whole = |object: std::sync::Arc<Value>| (*object).clone();
        Ok(match (&self.method, self.name.is_empty()) {
            (&Method::GET, _) if self.resource.is_empty() => {
                json!({"metadata": {"name": self.namespace}})
            }
            (&Method::GET, false) => whole(world.store.get(&key)?),
            (&Method::GET, true) => {
                let items: Vec<Value> = world
                    .store
                    .list(&self.resource, &self.namespace, &self.selector)
                    .into_iter()
                    .map(whole)
                    .collect();
                json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": world.store.version().to_string()},
                    "items": items})
            }
            (&Method::POST, _) => whole(world.store.create(
                &process.user,
                &self.resource,
                &self.namespace,
                self.body,
                self.dry,
                now(),
            )?),
            (&Method::PATCH | &Method::PUT, _) => {
                let edit = if self.method == Method::PUT {
                    Edit::Replace(self.body)
                } else if self.kind.starts_with("application/json-patch") {
                    Edit::Json(self.body.as_array().cloned().unwrap_or_default())
                } else if self.kind.starts_with("application/apply-patch") {
                    Edit::Apply(self.body)
                } else {
                    Edit::Merge(self.body)
                };
                whole(
                    world
                        .store
                        .edit(&process.user, &key, self.status, &edit, self.dry)?,
                )
            }
            (&Method::DELETE, false) => {
                let grace = self.body["gracePeriodSeconds"].as_u64().or_else(|| {
                    let pod = world.store.get(&key).ok()?;
                    (self.resource == PODS).then(|| {
                        pod["spec"]["terminationGracePeriodSeconds"]
                            .as_u64()
                            .unwrap_or(30)
                    })
                });
                world
                    .store
                    .delete(&key, &self.body["preconditions"], grace, now())?;
                json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})
            }
            (&Method::DELETE, true) => {
                for object in world
                    .store
                    .list(&self.resource, &self.namespace, &self.selector)
                {
                    let name = object["metadata"]["name"].as_str().unwrap_or_default();
                    let _ = world.store.delete(
                        &Key::of(&self.resource, &self.namespace, name),
                        &Value::Null,
                        None,
                        now(),
                    );
                }
                json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})
            }
            (method, _) => panic!("a request that nobody plays: {method} {}", self.resource),
        })
    }
}

impl Service<Request<Body>> for Server {
    type Response = Response<Body>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (shared, process) = (self.shared.clone(), self.process.clone());
        Box::pin(async move {
            let wanted = Wanted::of(request).await;
            if wanted.resource == "events" {
                // Nothing reads these objects.
                return Ok(answer(201, &wanted.body));
            }
            let (what, of) = (
                format!(
                    "{} {}/{}{}{}",
                    wanted.method,
                    wanted.resource,
                    wanted.name,
                    if wanted.status { "/status" } else { "" },
                    if wanted.dry { " (dry run)" } else { "" }
                ),
                process.clone(),
            );
            match shared
                .request(
                    &process,
                    || what,
                    move |world| Ok((wanted.carry_out(world, &of)?, now())),
                )
                .await
            {
                Ok((body, at)) => {
                    let mut answer = answer(200, &body);
                    answer.headers_mut().insert(DATE, date(at).parse().unwrap());
                    Ok(answer)
                }
                Err(Trouble::Refused(refusal)) => Ok(answer(refusal.code, &failure(&refusal))),
                Err(Trouble::Lost) => Err(std::io::Error::other("the connection was lost")),
            }
        })
    }
}

fn answer(code: u16, body: &Value) -> Response<Body> {
    let mut answer = Response::new(Body::from(serde_json::to_vec(body).unwrap()));
    *answer.status_mut() = http::StatusCode::from_u16(code).unwrap();
    answer
}
