//! The worker of one repository: waits until a check is due, checks, and writes news. One check at a time.

use std::{fmt::Debug, sync::Arc, time::Instant};

use crds::{
    LayerSource, Reason, TerraformLayer, TerraformRepositoryStatus, clock::ServerClock, names,
};
use jiff::Timestamp;
use k8s_openapi::{NamespaceResourceScope, api::core::v1::Secret};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use serving::{
    call::{CallError, call},
    events::Events,
};
use tokio::sync::Notify;

use crate::{
    credentials::{Data, Secrets},
    failure::Problem,
    follow::{Follow, Key, Layer, View},
    metrics::Metrics,
    schedule::{Cause, Due, Memory, Tries, due},
    slots::Slots,
    status::{self, Seen},
    store::Snapshots,
    sync::{SyncResult, Syncer},
    wanted::Wanted,
};

/// State shared by all repositories.
pub struct Shared<B> {
    pub client: Client,
    pub clock: ServerClock,
    pub events: Events,
    /// The state of the watches.
    pub follow: std::sync::Mutex<Follow>,
    /// The revisions that runs wait for.
    pub wanted: std::sync::Mutex<Wanted>,
    pub syncer: Syncer<B>,
    /// Bounds the number of concurrent checks.
    pub slots: Slots,
    pub metrics: Arc<Metrics>,
    /// ClusterRole that lets this process read Secrets in namespaces that bind it.
    pub secrets_role: String,
}

impl<B> Shared<B> {
    pub fn follow(&self) -> std::sync::MutexGuard<'_, Follow> {
        self.follow
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub fn wanted(&self) -> std::sync::MutexGuard<'_, Wanted> {
        self.wanted
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Serves a repository until it is deleted. Changes wake it.
pub async fn run<B: Snapshots>(key: Key, shared: Arc<Shared<B>>, wake: Arc<Notify>) {
    let mut memory = Memory::new(shared.clock.now());
    loop {
        let Some(view) = shared.follow().view(&key) else {
            return;
        };
        memory.meets(&view);
        let now = shared.clock.now();
        if view.repository.spec.suspend {
            let old = view.repository.status.clone().unwrap_or_default();
            let next = status::suspended(&old, view.repository.metadata.generation, now);
            let written = if next == old {
                Ok(())
            } else {
                write_status(&shared, &view, &old, &next).await
            };
            sum_up(&view, &mut memory, written, now);
        }
        let wanted = shared.wanted().next(view.uid(), now).map(str::to_owned);
        if let Some(revision) = wanted.filter(|_| !view.repository.spec.suspend) {
            let Ok(_slot) = shared
                .slots
                .take(namespace(&view), memory.is_slow(now))
                .await
            else {
                return;
            };
            let begun = Instant::now();
            fetch(&shared, &view, &revision).await;
            memory.took(begun.elapsed(), shared.clock.now());
            continue;
        }
        match due(&view, &memory, now) {
            Due::Now(cause) => {
                // The semaphore is never closed.
                let Ok(_slot) = shared
                    .slots
                    .take(namespace(&view), memory.is_slow(now))
                    .await
                else {
                    return;
                };
                // Read again: the wait may have been long.
                let Some(view) = shared.follow().view(&key) else {
                    return;
                };
                look(&shared, &view, &mut memory, cause).await;
            }
            Due::At(then) => {
                let wait = then.duration_since(now).unsigned_abs();
                // At most one hour, to limit the effect of clock errors.
                let _ = tokio::time::timeout(
                    wait.min(std::time::Duration::from_secs(3600)),
                    wake.notified(),
                )
                .await;
            }
            Due::Never => wake.notified().await,
        }
    }
}

async fn look<B: Snapshots>(shared: &Shared<B>, view: &View, memory: &mut Memory, cause: Cause) {
    let begun = Instant::now();
    let secrets = secrets(shared, view).await;
    let mut found = shared
        .syncer
        .look(view, secrets, memory, cause, shared.clock.now())
        .await;
    let written = write(shared, view, &mut found).await;
    let now = shared.clock.now();
    memory.looked = Some(now);
    let mut seen = found.look.refs.iter().map(|(_, seen)| seen);
    let is_new = seen.any(|seen| matches!(seen, Seen::At(_)));
    memory.found(is_new, cause, now);
    memory.took(begun.elapsed(), now);
    memory.failed = found
        .look
        .failed
        .is_some()
        .then(|| Tries::more(memory.failed, now));
    for (name, seen) in &found.look.refs {
        match seen {
            Seen::Failed(problem) => {
                report(view, problem, name);
                let tries = Tries::more(memory.refs.get(name).copied(), now);
                memory.refs.insert(name.clone(), tries);
            }
            Seen::Same | Seen::At(_) => {
                memory.refs.remove(name);
            }
            Seen::Unseen => {}
        }
    }
    if let Some(problem) = &found.look.failed {
        report(view, problem, "");
    }
    if written.is_ok() {
        memory.answered.extend(found.answered);
    }
    sum_up(view, memory, written, now);
    shared
        .metrics
        .looked(cause.as_str(), found.look.failed.is_some(), begun.elapsed());
    shared.syncer.git.make_room();
}

/// Logs a failed write, and records it for the backoff.
fn sum_up(view: &View, memory: &mut Memory, written: Result<(), String>, now: Timestamp) {
    memory.unwritten = written.err().map(|error| {
        tracing::warn!(repository = %name_of(view), error, "a result is not written");
        Tries::more(memory.unwritten, now)
    });
}

/// Logs a failure of the repository, or of a ref or revision of it.
fn report(view: &View, problem: &Problem, of: &str) {
    tracing::warn!(repository = %name_of(view), of, reason = %problem.reason, "{}", problem.message);
}

/// Stores a revision that a run waits for. A failure is not written to the status: runs can name arbitrary revisions,
/// and a repository without them is healthy.
async fn fetch<B: Snapshots>(shared: &Shared<B>, view: &View, revision: &str) {
    let secrets = secrets(shared, view).await;
    let stored = shared
        .syncer
        .store(view, secrets, revision, shared.clock.now())
        .await;
    shared
        .wanted()
        .tried(view.uid(), revision, shared.clock.now());
    if let Err(problem) = stored {
        report(view, &problem, revision);
    }
    shared.syncer.git.make_room();
}

/// Writes the result: layers first, so that a ref's new commit is recorded only after it was written to all layers. If a layer's write
/// fails, its ref keeps the old commit and is checked again; other refs proceed.
async fn write<B: Snapshots>(
    shared: &Shared<B>,
    view: &View,
    found: &mut SyncResult,
) -> Result<(), String> {
    let mut untold = None;
    for (layer, source) in &found.sources {
        match tell(shared, layer, source).await {
            Ok(told) => {
                if let Some(answer) = found.answered.get_mut(&layer.key) {
                    answer.source = told;
                }
            }
            Err(error) => {
                let why = format!("layer {}/{}: {error}", layer.key.0, layer.key.1);
                if !matches!(error.code(), 400..=428 | 430..=499) {
                    return Err(why);
                }
                tracing::error!("its source is not written: {why}");
                let refs = found
                    .look
                    .refs
                    .iter_mut()
                    .filter(|(name, _)| *name == layer.git_ref);
                refs.for_each(|(_, seen)| *seen = Seen::Unseen);
                untold = Some(why);
            }
        }
    }
    let (namespace, name) = (namespace(view), name(view));
    let old = view.repository.status.clone().unwrap_or_default();
    let spec = &view.repository.spec;
    let named = spec.secret_ref.is_some() || !spec.credentials.is_empty();
    let next = status::next(
        &old,
        &found.look,
        |problem| problem.next_step(namespace, name, named),
        shared.clock.now(),
    );
    if next != old || view.repository.status.is_none() {
        write_status(shared, view, &old, &next).await?;
    }
    untold.map_or(Ok(()), Err)
}

/// Writes a layer's `status.source` and returns the result. If the layer was deleted or recreated, fails until the watch
/// shows that.
async fn tell<B: Snapshots>(
    shared: &Shared<B>,
    layer: &Layer,
    source: &LayerSource,
) -> Result<Option<LayerSource>, CallError> {
    let (namespace, name) = &layer.key;
    let told: TerraformLayer = apply(
        shared,
        "TerraformLayer",
        (namespace, name, &layer.uid),
        json!({"source": source}),
    )
    .await?;
    shared.follow().layer(&told);
    Ok(told.status.and_then(|status| status.source))
}

async fn write_status<B: Snapshots>(
    shared: &Shared<B>,
    view: &View,
    old: &TerraformRepositoryStatus,
    next: &TerraformRepositoryStatus,
) -> Result<(), String> {
    let of = (namespace(view), name(view), view.uid());
    let written = apply(shared, "TerraformRepository", of, json!(next)).await;
    shared
        .follow()
        .repository(written.map_err(|error: CallError| error.to_string())?);
    shared
        .events
        .publish(&*view.repository, status::news(old, next));
    Ok(())
}

/// Applies the status of an object with this namespace, name and UID.
async fn apply<B: Snapshots, K>(
    shared: &Shared<B>,
    kind: &'static str,
    (namespace, name, uid): (&str, &str, &str),
    status: Value,
) -> Result<K, CallError>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let body = json!({
        "apiVersion": K::api_version(&()), "kind": kind, "status": status,
        "metadata": {"name": name, "namespace": namespace, "uid": uid},
    });
    let (api, params) = (
        Api::<K>::namespaced(shared.client.clone(), namespace),
        PatchParams::apply(names::SOURCES_MANAGER).force(),
    );
    let applied = call(
        "write the status",
        api.patch_status(name, &params, &Patch::Apply(body)),
    )
    .await?;
    shared.metrics.wrote(kind);
    Ok(applied)
}

/// Reads the Secrets that a repository names. They are not cached.
async fn secrets<B: Snapshots>(shared: &Shared<B>, view: &View) -> Result<Secrets, Problem> {
    let (spec, mut all) = (&view.repository.spec, Secrets::new());
    let own = spec.secret_ref.iter();
    let own = own.map(|named| ("spec.secretRef", named));
    let further = spec.credentials.iter().map(|git| &git.secret_ref);
    for (field, named) in own.chain(further.map(|named| ("spec.credentials", named))) {
        if !all.contains_key(&named.name) {
            let data = secret(shared, view, &named.name, field).await?;
            all.insert(named.name.clone(), data);
        }
    }
    Ok(all)
}

async fn secret<B: Snapshots>(
    shared: &Shared<B>,
    view: &View,
    name: &str,
    field: &str,
) -> Result<Data, Problem> {
    let namespace = namespace(view);
    let api: Api<Secret> = Api::namespaced(shared.client.clone(), namespace);
    let error = match call("read the Secret", api.get(name)).await {
        Ok(secret) => {
            let data = secret.data.unwrap_or_default();
            return Ok(data
                .into_iter()
                .map(|(key, value)| (key, value.0))
                .collect());
        }
        Err(error) => error,
    };
    Err(match error.code() {
        404 => {
            let message = format!("there is no Secret {name} in {namespace}, which {field} names");
            Problem::new(Reason::SecretNotFound, message)
        }
        403 => Problem::new(
            Reason::SecretForbidden,
            forbidden(&shared.secrets_role, namespace, name, &error.to_string()),
        ),
        _ => Problem::new(
            Reason::SourceUnreachable,
            format!("Secret {name} cannot be read: {error}"),
        ),
    })
}

/// The API server names the account that it refuses.
fn forbidden(role: &str, namespace: &str, name: &str, error: &str) -> String {
    let account = error
        .split_once("system:serviceaccount:")
        .and_then(|(_, rest)| rest.split_once('"'));
    let bind = account.map_or_else(
        || format!("bind the ClusterRole {role} to its account there"),
        |(account, _)| {
            format!("kubectl create rolebinding -n {namespace} {role} --clusterrole={role} --serviceaccount={account}")
        },
    );
    format!(
        "`controller sources` may not read Secret {name} of {namespace}: {bind} (the chart's sources.namespaces does this): {error}"
    )
}

fn namespace(view: &View) -> &str {
    view.repository
        .metadata
        .namespace
        .as_deref()
        .unwrap_or_default()
}

fn name(view: &View) -> &str {
    view.repository.metadata.name.as_deref().unwrap_or_default()
}

fn name_of(view: &View) -> String {
    format!("{}/{}", namespace(view), name(view))
}
