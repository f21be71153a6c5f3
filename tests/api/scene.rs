//! Writes as rows of a table: a client, its write, and the API server's answer.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use crds::{TerraformLayer, TerraformRepository, TerraformRun, names};
use harness::wait;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Map, Value, json};

use crate::world::{Agent, CONTROLLER, PATIENCE, World, plan, refused, sum};

/// The name of most runs.
pub(crate) const RUN: &str = "run";

/// Name, client, write, and a part of the refusal's message. No message means that the write is admitted.
type Row = (String, String, Write, String);

/// A single key, the verb, with its body; [`Scene::send`] has the verbs.
pub(crate) type Write = Map<String, Value>;

/// A namespace, and the clients of those who write there.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) namespace: String,
    /// Sends all further writes as dry runs, which pass admission like writes.
    pub(crate) dry_run: bool,
    clients: BTreeMap<String, Client>,
}

impl Scene {
    /// A new namespace with the clients `admin` and `controller`, and people with a ClusterRole each.
    pub(crate) async fn new(world: World, people: &[(&str, &str)]) -> Result<Self> {
        let namespace = world.namespace().await?;
        let mut scene = Self::within(world, namespace).await?;
        for (user, role) in people {
            scene.person(user, role).await?;
        }
        Ok(scene)
    }

    /// The clients `admin` and `controller` in a namespace.
    pub(crate) async fn within(world: World, namespace: String) -> Result<Self> {
        let mut scene = Self {
            clients: BTreeMap::new(),
            dry_run: false,
            world,
            namespace,
        };
        scene.add("admin", scene.world.admin.clone());
        scene.add(
            "controller",
            scene.world.access.impersonate(CONTROLLER, &[]).await?,
        );
        Ok(scene)
    }

    /// Binds a user to a ClusterRole, and adds them as a client named by the part before the `@`.
    pub(crate) async fn person(&mut self, user: &str, role: &str) -> Result<()> {
        let client = self.world.person(user, &self.namespace, role).await?;
        self.add(user.split('@').next().unwrap_or_default(), client);
        Ok(())
    }

    pub(crate) fn add(&mut self, name: &str, client: Client) {
        self.clients.insert(name.to_owned(), client);
    }

    /// Adds the pod of an agent as a client of its name.
    pub(crate) async fn pod(&mut self, pod: &str, account: &str, run: &str) -> Result<Agent> {
        let agent = self.world.pod(&self.namespace, pod, account, run).await?;
        self.add(pod, agent.client.clone());
        Ok(agent)
    }

    /// Creates a run in phase Pending.
    pub(crate) async fn pending(&self, name: &str, spec: &Value) -> Result<()> {
        self.world.create(&self.namespace, name, spec).await?;
        self.status(name, json!({"phase": "Pending"})).await
    }

    /// Opens an attempt, as the controller does, and adds its pod.
    pub(crate) async fn open(&mut self, run: &str, number: u32) -> Result<Agent> {
        let agent = self.world.open(&self.namespace, run, number).await?;
        self.add(&format!("{run}-a{number}"), agent.client.clone());
        Ok(agent)
    }

    /// Closes the open attempt; the run returns to Pending.
    pub(crate) async fn close(&self, run: &str) -> Result<()> {
        self.status(run, json!({"phase": "Pending", "attempt": {"open": false}}))
            .await
    }

    /// Creates a run whose first attempt has adopted it and plans.
    pub(crate) async fn planning(&mut self, run: &str, spec: &Value) -> Result<Agent> {
        self.pending(run, spec).await?;
        let agent = self.open(run, 1).await?;
        agent.plans(1).await?;
        Ok(agent)
    }

    /// Creates a run whose first attempt waits for the approval of plan `a`.
    pub(crate) async fn waiting(&mut self, run: &str, spec: &Value) -> Result<Agent> {
        let agent = self.planning(run, spec).await?;
        agent
            .status(&json!({"phase": "AwaitingApproval", "plan": plan(1, 'a')}))
            .await
            .context("plan")?;
        Ok(agent)
    }

    /// Writes a status as administrator.
    pub(crate) async fn status(&self, run: &str, status: Value) -> Result<()> {
        self.world
            .status(&self.namespace, run, &status)
            .await
            .with_context(|| status.to_string())?;
        Ok(())
    }

    /// Both halves of an approval of plan `a`: the person's annotation and the controller's record.
    pub(crate) async fn approve(&self, run: &str) -> Result<()> {
        let rows = json!([
            ["annotation", "admin", {"annotate": approval("admin", 'a')}, ""],
            ["record", "admin", {"status": record('a')}, ""],
        ]);
        self.rows(run, rows).await
    }

    /// Sends the writes of a table to an object, in order. An error names the row.
    pub(crate) async fn rows(&self, object: &str, rows: Value) -> Result<()> {
        for (name, who, write, message) in serde_json::from_value::<Vec<Row>>(rows)? {
            let name = format!("{object}, {who}: {name}");
            let answer = self.send(&who, object, &write).await?;
            if message.is_empty() {
                answer.context(name)?;
            } else {
                refused(&name, answer, &message)?;
            }
        }
        Ok(())
    }

    /// Sends a write that a right just granted permits, until the API server knows the right.
    pub(crate) async fn eventually(&self, who: &str, object: &str, write: Value) -> Result<()> {
        let write: Write = serde_json::from_value(write)?;
        wait::until(format!("{who} may"), PATIENCE, async || {
            self.send(who, object, &write).await
        })
        .await
    }

    /// Sends a write as a dry run until a policy that was just installed refuses it.
    pub(crate) async fn refuses(
        &mut self,
        who: &str,
        object: &str,
        write: Value,
        message: &str,
    ) -> Result<()> {
        let write: Write = serde_json::from_value(write)?;
        self.dry_run = true;
        let look = async || {
            let answer = self.send(who, object, &write).await?;
            Ok(matches!(answer, Err(kube::Error::Api(status)) if status.message.contains(message)))
        };
        wait::until(format!("{message} refuses"), PATIENCE, look).await?;
        self.dry_run = false;
        Ok(())
    }

    /// Sends a write to a run, or to an object of another kind: `layer/net`, `repository/infra`.
    pub(crate) async fn send(
        &self,
        who: &str,
        object: &str,
        write: &Write,
    ) -> Result<kube::Result<()>> {
        let client = self
            .clients
            .get(who)
            .with_context(|| format!("{who} is no client"))?
            .clone();
        let (verb, body) = write.iter().next().context("no verb")?;
        let (kind, name) = object.split_once('/').unwrap_or(("run", object));
        let (resource, spec) = match kind {
            "layer" => (
                ApiResource::erase::<TerraformLayer>(&()),
                Some(json!({"repository": {"name": "infra"}})),
            ),
            "configmap" => (ApiResource::erase::<ConfigMap>(&()), None),
            "secret" => (ApiResource::erase::<Secret>(&()), None),
            "repository" => (
                ApiResource::erase::<TerraformRepository>(&()),
                Some(json!({"url": "https://example.com/infra.git"})),
            ),
            _ => (
                ApiResource::erase::<TerraformRun>(&()),
                Some(json!({"source": {"inline": {"files": {"main.tf": ""}}}})),
            ),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(client, &self.namespace, &resource);
        let (dry_run, mut params) = (self.dry_run, PatchParams::default());
        params.dry_run = dry_run;
        let merge = |patch: Value| Patch::Merge(patch);
        let with = |more: &Value| {
            let mut object = json!({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}});
            json_patch::merge(&mut object, more);
            object
        };
        Ok(match verb.as_str() {
            "create" => {
                let mut object = with(&json!({"spec": spec}));
                json_patch::merge(&mut object, body);
                api.create(
                    &PostParams {
                        dry_run,
                        ..PostParams::default()
                    },
                    &serde_json::from_value(object)?,
                )
                .await
                .map(drop)
            }
            "annotate" => api
                .patch(
                    name,
                    &params,
                    &merge(json!({"metadata": {"annotations": body}})),
                )
                .await
                .map(drop),
            "merge" => api
                .patch(name, &params, &merge(body.clone()))
                .await
                .map(drop),
            "status" => api
                .patch_status(name, &params, &merge(json!({"status": body})))
                .await
                .map(drop),
            // A JSON patch of the status.
            "json" => {
                let patch = serde_json::from_value(body.clone())?;
                api.patch_status(name, &params, &Patch::Json::<()>(patch))
                    .await
                    .map(drop)
            }
            "apply" => {
                let params = PatchParams {
                    dry_run,
                    ..PatchParams::apply(who).force()
                };
                api.patch(name, &params, &Patch::Apply(with(body)))
                    .await
                    .map(drop)
            }
            "get" => api.get(name).await.map(drop),
            "list" => api
                .list(&ListParams {
                    field_selector: body.as_str().map(str::to_owned),
                    ..ListParams::default()
                })
                .await
                .map(drop),
            "delete" => api
                .delete(
                    name,
                    &DeleteParams {
                        dry_run,
                        ..DeleteParams::default()
                    },
                )
                .await
                .map(drop),
            "delete all" => {
                let params = DeleteParams {
                    dry_run,
                    ..DeleteParams::default()
                };
                api.delete_collection(&params, &ListParams::default())
                    .await
                    .map(drop)
            }
            _ => bail!("{verb} is no verb"),
        })
    }
}

/// The annotations of an approval.
pub(crate) fn approval(by: &str, digit: char) -> Value {
    json!({names::APPROVE: sum(digit), names::APPROVED_BY: by})
}

/// The annotations that withdraw an approval.
pub(crate) fn withdrawal() -> Value {
    json!({names::APPROVE: null, names::APPROVED_BY: null, names::COMMENT: null})
}

/// The controller's record of an approval.
pub(crate) fn record(digit: char) -> Value {
    json!({"approval": {"checksum": sum(digit), "by": "admin", "at": "2026-01-01T00:00:00Z"}})
}
