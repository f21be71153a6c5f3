//! Published outputs (`design/0025-outputs.md`). One record per stack stores what was published last and where. It is
//! the source of truth: ConfigMaps and Secrets are created from it, and restored when others change them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crds::{
    OnDestroy, Operation, OutputsStatus, Reason,
    datastore::{Problem, StateId},
    outputs::{Missing, Output, StateOutputs, Taken, data, left_out, published, shown},
    text::clip,
};
use serving::{
    call::{CallError, is_of_policy},
    problem::{corrupt, invalid, unavailable},
};

use crate::{
    blob::sealed::Sealed,
    cluster::{
        Cluster, RunView,
        publish::{Kind, Owner, Published},
    },
    names::{self, Name, StateKey},
};

/// Maximum size of a record, in bytes: two objects and the outputs themselves.
const MAX_RECORD: usize = 8 << 20;
/// How long a successful probe of the admission policy is cached.
const PROVEN: Duration = Duration::from_secs(60);

/// The last publication of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    /// UID of the namespace, because names are reused.
    namespace_uid: String,
    lineage: String,
    serial: u64,
    /// When the publishing run claimed; without a claim, when it published.
    at: Timestamp,
    run: String,
    /// Outputs that other stacks may read.
    outputs: BTreeMap<String, Output>,
    /// Names of the state's other outputs.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    withheld: BTreeSet<String>,
    /// Names of the outputs that the code declares, where they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    declared: Option<BTreeSet<String>>,
    /// The desired objects.
    objects: Vec<Published>,
    /// Objects to delete.
    former: Vec<Published>,
}

impl Record {
    /// Why it has no output of a name.
    fn missing(&self, name: &str) -> Missing {
        if self.withheld.contains(name) {
            Missing::Withheld
        } else {
            Missing::of(name, self.declared.as_ref())
        }
    }

    /// Whether this is from a newer state than `found`. Two lineages have no order, so the later claim wins.
    fn is_newer(&self, found: &StateOutputs, at: Timestamp) -> bool {
        if self.lineage == found.lineage {
            self.serial > found.serial
        } else {
            self.at > at
        }
    }
}

/// Why an object is not published.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal(Reason, String);

pub struct Publisher {
    sealed: Sealed,
    cluster: Arc<dyn Cluster>,
    /// The admission policy that limits this process to objects with outputs. Without one, nothing is published.
    policy: Option<String>,
    /// Serializes publications: each reads the record and writes its successor.
    turn: tokio::sync::Mutex<()>,
    proven: Mutex<Option<Instant>>,
}

/// Restores the published objects at every interval, forever.
pub async fn run(publisher: Arc<Publisher>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        if let Err(problem) = publisher.repair().await {
            tracing::warn!(%problem, "not all published outputs were checked; the next check starts over");
        }
    }
}

impl Publisher {
    pub fn new(sealed: Sealed, cluster: Arc<dyn Cluster>, policy: Option<String>) -> Self {
        Self {
            sealed,
            cluster,
            policy,
            turn: tokio::sync::Mutex::default(),
            proven: Mutex::default(),
        }
    }

    async fn record(&self, name: &Name) -> Result<Option<Record>, Problem> {
        let Some(bytes) = self.sealed.read_bytes(name, MAX_RECORD).await? else {
            return Ok(None);
        };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|_| corrupt(format!("{name} is no record of outputs")))
    }

    async fn keep(&self, name: &Name, record: &Record) -> Result<(), Problem> {
        let bytes = serde_json::to_vec(record).map_err(|error| corrupt(error.to_string()))?;
        if bytes.len() > MAX_RECORD {
            return Err(invalid("the outputs are too large to be published"));
        }
        self.sealed.overwrite_bytes(name, &bytes).await
    }

    /// Publishes the outputs of the run's state as specified in its spec, unless newer ones are published. After a
    /// claimed destroy, deletes or keeps them as specified.
    ///
    /// # Errors
    /// `Unavailable`: recorded publications are completed by the next repair. `Invalid`, `Corrupt`, `KeyMissing`.
    pub async fn publish(
        &self,
        run: &RunView,
        namespace_uid: &str,
        found: StateOutputs,
    ) -> Result<OutputsStatus, Problem> {
        let wanted = run
            .outputs
            .as_ref()
            .ok_or_else(|| invalid("the run publishes no outputs"))?;
        let key = StateKey::new(&run.namespace, run.state.clone())?;
        let name = key.outputs();
        let _turn = self.turn.lock().await;
        let before = self
            .record(&name)
            .await?
            .filter(|record| record.namespace_uid == namespace_uid)
            .unwrap_or_default();
        let at = run
            .claim
            .as_ref()
            .map_or_else(|| self.cluster.now(), |claim| claim.at.0);
        // Before the claim a pod may change no published value, and may not report the state as gone.
        let is_gone = run.claim.is_none() && found.lineage.is_empty() && !before.lineage.is_empty();
        if is_gone || before.is_newer(&found, at) {
            let message = format!(
                "newer outputs of the stack are published already, by run {}",
                before.run
            );
            return Ok(said(Reason::Published, message));
        }
        let destroyed = run.operation == Operation::Destroy;
        if destroyed && wanted.on_destroy == OnDestroy::Keep {
            return Ok(said(
                Reason::Published,
                "the published outputs stay, as the spec asks",
            ));
        }
        let mut record = Record {
            namespace_uid: namespace_uid.to_owned(),
            lineage: found.lineage.clone(),
            serial: found.serial,
            at,
            run: run.name.clone(),
            ..Record::default()
        };
        let mut left = Vec::new();
        if !destroyed {
            record.outputs = published(&found.outputs, wanted);
            let withheld = |name: &&String| !record.outputs.contains_key(*name);
            record.withheld = found.outputs.keys().filter(withheld).cloned().collect();
            record.declared.clone_from(&found.declared);
            let objects = [
                (Kind::ConfigMap, &wanted.config_map),
                (Kind::Secret, &wanted.secret),
            ];
            for (kind, object) in objects
                .into_iter()
                .filter_map(|(kind, object)| Some((kind, object.as_ref()?)))
            {
                let (data, not) = data(&found, object, kind == Kind::Secret);
                left.extend(not);
                record.objects.push(Published {
                    kind,
                    name: object.name.clone(),
                    data,
                    uid: None,
                });
            }
        }
        for old in before.objects.into_iter().chain(before.former) {
            match record.objects.iter_mut().find(|object| object.is(&old)) {
                Some(object) => object.uid = object.uid.take().or(old.uid),
                // An object without a UID was never written, so it belongs to others or does not exist.
                None if old.uid.is_some() => record.former.push(Published {
                    data: BTreeMap::new(),
                    ..old
                }),
                None => {}
            }
        }
        // Record first: whatever fails from here on, the next repair continues.
        self.keep(&name, &record).await?;
        let refused = self.settle(&key, &mut record).await;
        self.keep(&name, &record).await?;
        let refused = refused?;
        let mut status = match refused.first() {
            Some(Refusal(reason, _)) => {
                let all: Vec<_> = refused
                    .iter()
                    .map(|Refusal(_, text)| text.as_str())
                    .collect();
                said(*reason, all.join("; "))
            }
            None if destroyed => said(
                Reason::Published,
                "the published outputs are deleted with the stack",
            ),
            None => said(
                Reason::Published,
                in_words(&record.objects) + &left_out(&left),
            ),
        };
        if wanted.status && !destroyed {
            let (values, long) = shown(&found.outputs);
            status.values = values;
            if long > 0 {
                status.message = clip(
                    &format!(
                        "{}; {long} not shown, because they are too long",
                        status.message
                    ),
                    512,
                );
            }
        }
        tracing::info!(
            namespace = run.namespace,
            run = run.name,
            reason = status.reason,
            "outputs: {}",
            status.message
        );
        Ok(status)
    }

    /// Brings the objects to the recorded state. Returns the refused ones.
    async fn settle(&self, key: &StateKey, record: &mut Record) -> Result<Vec<Refusal>, Problem> {
        if record.objects.is_empty() && record.former.is_empty() {
            return Ok(Vec::new());
        }
        let namespace = key.namespace();
        let Some(policy) = &self.policy else {
            let text = "this installation publishes no outputs (the chart's outputs.enabled)";
            return Ok(vec![Refusal(Reason::NotPublished, text.to_owned())]);
        };
        if let Some(refusal) = self.prove(namespace, policy).await? {
            return Ok(vec![refusal]);
        }
        while let Some(object) = record.former.last() {
            let withdrawn = self.cluster.withdraw(namespace, object).await;
            if let Err(error) = withdrawn
                && refusal(policy, namespace, object, &error).is_none()
            {
                return Err(unavailable("the API server", &error));
            }
            record.former.pop();
        }
        let of = format!("{}/{}", key.id().stack, key.id().workspace);
        let owner = Owner {
            namespace,
            of: &of,
            by: &record.run,
        };
        let mut refused = Vec::new();
        for object in &mut record.objects {
            match self.cluster.publish(owner, object).await {
                Ok(uid) => object.uid = Some(uid),
                Err(error) => match refusal(policy, namespace, object, &error) {
                    Some(refusal) => refused.push(refusal),
                    None => return Err(unavailable("the API server", &error)),
                },
            }
        }
        Ok(refused)
    }

    /// Probes the policy that limits this process to objects with outputs. Returns why nothing is written if it is not
    /// enforced.
    async fn prove(&self, namespace: &str, policy: &str) -> Result<Option<Refusal>, Problem> {
        let fresh = |at: &Instant| at.elapsed() < PROVEN;
        if self
            .proven
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .is_some_and(fresh)
        {
            return Ok(None);
        }
        let missing = |how: &str| {
            let text = format!(
                "a dry run was {how} by the admission policy {policy}; without it nothing is written"
            );
            Ok(Some(Refusal(Reason::PolicyMissing, text)))
        };
        match self.cluster.probe(namespace).await {
            Ok(()) => missing("not refused"),
            Err(error) if is_of_policy(message(&error), policy) => {
                *self.proven.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                Ok(None)
            }
            Err(error) if error.code() == 403 && is_of_rbac(&error) => {
                Ok(Some(Refusal(Reason::NotPublished, no_right(namespace))))
            }
            Err(error) if matches!(error.code(), 403 | 422) => missing("refused, but not"),
            Err(error) if error.code() == 404 => Ok(Some(Refusal(
                Reason::NotPublished,
                format!("there is no namespace {namespace}"),
            ))),
            Err(error) => Err(unavailable("the API server", &error)),
        }
    }

    /// The outputs of other stacks that the run's own spec references, as currently published. Requests contain no
    /// stack name, so a pod cannot ask for others.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`, `KeyMissing`.
    pub async fn taken(&self, run: &RunView, namespace_uid: &str) -> Result<Vec<Taken>, Problem> {
        let (mut found, mut last) = (Vec::new(), None::<(StateId, Option<Record>)>);
        for of in &run.takes {
            let id = StateId {
                stack: of.stack.clone(),
                workspace: of.workspace.clone(),
            };
            if last.as_ref().is_none_or(|(known, _)| *known != id) {
                let record = match StateKey::new(&run.namespace, id.clone()) {
                    Ok(key) => self
                        .record(&key.outputs())
                        .await?
                        .filter(|record| record.namespace_uid == namespace_uid),
                    Err(_) => None,
                };
                last = Some((id, record));
            }
            let record = last.as_ref().and_then(|(_, record)| record.as_ref());
            found.push(Taken {
                of: of.clone(),
                output: record.and_then(|record| record.outputs.get(&of.name).cloned()),
                missing: record.map_or(Missing::Unpublished, |record| record.missing(&of.name)),
            });
        }
        Ok(found)
    }

    /// Restores every published object. Skips, until the next interval, namespaces that are gone or were recreated, and
    /// stacks whose objects cannot be written or whose record cannot be read.
    ///
    /// # Errors
    /// `Unavailable`: objects not reached are left unchanged.
    pub async fn repair(&self) -> Result<(), Problem> {
        let store = self.sealed.store();
        let top = names::top("outputs");
        for namespace in store.children(&top).await?.0 {
            let uid = match self.cluster.namespace(&namespace).await {
                Ok(uid) => uid,
                Err(error) => {
                    tracing::warn!(namespace, %error, "published outputs of the namespace were not checked");
                    continue;
                }
            };
            let below = names::below(&top, &namespace);
            for stack in store.children(&below).await?.0 {
                for word in store.children(&names::below(&below, &stack)).await?.1 {
                    let Some(key) = StateKey::listed(&namespace, &stack, &word) else {
                        continue;
                    };
                    if let Err(problem) = self.repair_one(&key, uid.as_deref()).await {
                        tracing::warn!(namespace, stack, %problem, "published outputs of the stack were not checked");
                    }
                }
            }
        }
        Ok(())
    }

    async fn repair_one(&self, key: &StateKey, namespace_uid: Option<&str>) -> Result<(), Problem> {
        let name = key.outputs();
        let _turn = self.turn.lock().await;
        let Some(mut record) = self.record(&name).await? else {
            return Ok(());
        };
        if namespace_uid != Some(record.namespace_uid.as_str()) {
            return Ok(());
        }
        let before = record.clone();
        let refused = self.settle(key, &mut record).await;
        if record != before {
            self.keep(&name, &record).await?;
        }
        for Refusal(reason, text) in refused? {
            tracing::warn!(namespace = key.namespace(), stack = key.id().stack, %reason, "outputs: {text}");
        }
        Ok(())
    }
}

fn said(reason: Reason, message: impl AsRef<str>) -> OutputsStatus {
    OutputsStatus {
        reason: reason.as_str().to_owned(),
        message: clip(message.as_ref(), 512),
        ..OutputsStatus::default()
    }
}

/// Formats as `ConfigMap net (2 keys), Secret net (1 key)`.
fn in_words(objects: &[Published]) -> String {
    let keys = |count: usize| {
        if count == 1 {
            "1 key".to_owned()
        } else {
            format!("{count} keys")
        }
    };
    let all: Vec<_> = objects
        .iter()
        .map(|object| {
            format!(
                "{} {} ({})",
                object.kind.as_str(),
                object.name,
                keys(object.data.len())
            )
        })
        .collect();
    if all.is_empty() {
        "in no object, as asked".to_owned()
    } else {
        all.join(", ")
    }
}

fn no_right(namespace: &str) -> String {
    format!(
        "the datastore may not publish in namespace {namespace} (the chart's outputs.namespaces)"
    )
}

fn message(error: &CallError) -> &str {
    error.status().map_or("", |status| status.message.as_str())
}

fn is_of_rbac(error: &CallError) -> bool {
    let said = message(error);
    said.contains(" cannot ") && !said.contains("ValidatingAdmissionPolicy")
}

/// Why an object was not written, for permanent errors; `None` for transient ones.
fn refusal(
    policy: &str,
    namespace: &str,
    object: &Published,
    error: &CallError,
) -> Option<Refusal> {
    let (kind, name, said) = (object.kind.as_str(), &object.name, message(error));
    // A Secret's type is immutable. The API server reports that before it evaluates the policy.
    let another_type =
        error.code() == 422 && said.contains("type: ") && said.contains("field is immutable");
    match error.code() {
        403 | 422 if another_type || is_of_policy(said, policy) => {
            let text = format!(
                "{kind} {name} was not made by Pawl, or holds outputs of another stack; it was left as it is"
            );
            Some(Refusal(Reason::ForeignObject, text))
        }
        403 if is_of_rbac(error) => Some(Refusal(Reason::NotPublished, no_right(namespace))),
        400 | 403 | 404 | 413 | 422 => Some(Refusal(
            Reason::NotPublished,
            format!("{kind} {name}: {}", clip(said, 200)),
        )),
        _ => None,
    }
}
