//! What an attempt leaves with the datastore: the plan before it waits, the claim before it is applied, the result, the log.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crds::{
    ApprovalMode, Changed, Claim, Failure, FailureClass, Operation,
    datastore::{JOURNAL, MAX_STATE, ObjectKind},
    reason,
    termination::TerminationMessage,
};

use tokio::task::JoinHandle;

use super::PodWork;
use crate::{
    classify::{internal, simple},
    datastore::{Client, Trouble, bundle, failure, patiently, shipper::Shipper, spool::Spool, state::StateServer},
    files::{self, Scratch},
};

/// How long the datastore may be away before the claim, at each of its calls.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the record of a claim is tried for: the plan is claimed already, so the apply does not depend on it.
const CLAIM_PATIENCE: Duration = Duration::from_secs(10);
/// How long the state that could not be saved is tried for, before the end is reported.
const RESCUE_PATIENCE: Duration = Duration::from_secs(30);
/// How long a result and the rest of a log are tried for at the end.
const END_PATIENCE: Duration = Duration::from_secs(15);

/// The datastore, as an attempt uses it.
#[derive(Debug)]
pub struct Remote {
    pub(super) client: Client,
    spool: Arc<Spool>,
    shipper: Shipper,
    pub(super) state: Mutex<Option<StateServer>>,
    /// The journal on its way.
    pub(super) journal: Mutex<Option<Journaling>>,
    /// The plan's texts on their way.
    sending: Mutex<Option<JoinHandle<Result<(), Failure>>>>,
}

impl Remote {
    /// Begins to send what is written to the spool.
    pub fn start(client: Client, spool: Arc<Spool>) -> Self {
        let shipper = Shipper::start(client.clone(), spool.clone());
        Self { client, spool, shipper, state: Mutex::default(), journal: Mutex::default(), sending: Mutex::default() }
    }
}

/// The journal of the apply on its way. Its own way: a flood of the log does not hold it up.
#[derive(Debug)]
pub(super) struct Journaling {
    pub(super) spool: Arc<Spool>,
    shipper: Shipper,
}

impl Journaling {
    /// Begins to send what is written.
    pub(super) fn start(client: Client, dir: PathBuf) -> std::io::Result<Self> {
        let spool = Spool::create(dir)?;
        spool.enter(JOURNAL);
        Ok(Self { shipper: Shipper::start(client, spool.clone()), spool })
    }
}

impl PodWork {
    /// Leaves text and JSON of the plan with the datastore, and what has to be applied when it may wait. The bundle's digest.
    ///
    /// Where nobody waits for the plan, its texts are sent while the run goes on, and waited for at its end.
    pub(super) async fn store_plan(&self, has_changes: bool) -> Result<Option<String>, Failure> {
        let Some(remote) = &self.remote else { return Ok(None) };
        let run = self.run();
        let manual = run.spec.approval.mode == ApprovalMode::Manual;
        let waits = has_changes && run.spec.operation != Operation::Plan && manual;
        let (Some(text), Some(json)) = std::mem::take(&mut self.known().texts) else {
            return Err(internal("the plan could not be kept", &"the tool has not shown it"));
        };
        let texts = store_texts(remote.client.clone(), text, json);
        if !manual && run.spec.operation != Operation::Plan {
            *remote.sending.lock().unwrap_or_else(PoisonError::into_inner) = Some(tokio::spawn(texts));
            return Ok(None);
        }
        let bundle = async { if waits { self.store_bundle(remote).await.map(Some) } else { Ok(None) } };
        let ((), bundle) = tokio::try_join!(texts, bundle)?;
        self.log.flush(Duration::from_secs(2)).await;
        let flushed = remote.shipper.flush(PATIENCE).await;
        flushed.map_err(|trouble| failure("the log could not be kept", &trouble))?;
        Ok(bundle)
    }

    /// Packs the plan, sends it, and has it read back.
    async fn store_bundle(&self, remote: &Remote) -> Result<String, Failure> {
        let tool = self.tool()?;
        let (root, plan) = (self.settings.source_dir(), self.settings.plan_file());
        let file = Scratch::create(&self.settings.kept).map_err(|error| internal("the plan cannot be packed", &error))?;
        let (stack, managed, inputs) = {
            let known = self.known();
            (known.stack.clone(), known.managed, known.inputs.clone())
        };
        let stack = stack.strip_prefix(root.canonicalize().unwrap_or_else(|_| root.clone())).unwrap_or(&stack).to_path_buf();
        let head = bundle::Head {
            layout: 1,
            tool: tool.name.as_str().to_owned(),
            version: tool.version.to_string(),
            digest: tool.digest.clone(),
            beneath: tool.beneath.as_ref().map(|beneath| bundle::ToolHead {
                tool: beneath.name.as_str().to_owned(),
                version: beneath.version.to_string(),
                digest: beneath.digest.clone(),
            }),
            stack,
            managed,
            inputs,
        };
        let to = file.clone();
        let packed = tokio::task::spawn_blocking(move || bundle::pack(&head, &plan, &root, &to)).await;
        let sum = packed
            .map_err(|error| internal("the plan cannot be packed", &error))?
            .map_err(|error| internal("the plan cannot be packed", &error))?;
        let put = patiently(PATIENCE, || remote.client.put_file(ObjectKind::Bundle, &file, &sum)).await;
        drop(file);
        put.map_err(|trouble| failure("the plan could not be kept", &trouble))?;
        let stored = patiently(PATIENCE, || remote.client.stored(ObjectKind::Bundle))
            .await
            .map_err(|trouble| failure("the plan that was kept could not be read back", &trouble))?;
        if stored.digest != sum {
            let message = format!("the datastore keeps {} in place of the plan {sum}", stored.digest);
            return Err(simple(FailureClass::Integrity, reason::STORED_PLAN_CORRUPT, message));
        }
        Ok(sum)
    }

    /// Writes the record of the claim. A record of another process means that the plan may have been applied: then it is not.
    pub(super) async fn record_claim(&self, claim: &Claim) -> Result<(), Failure> {
        let Some(remote) = &self.remote else { return Ok(()) };
        match patiently(CLAIM_PATIENCE, || remote.client.claim(claim)).await {
            Ok(()) => Ok(()),
            Err(trouble) if trouble.is(crds::datastore::ALREADY_CLAIMED) => {
                let mut failure = failure("nothing was applied by this process", &trouble);
                failure.changes = Changed::Unknown;
                Err(failure)
            }
            Err(trouble) => {
                // Behind the claim the apply goes on: it is the one that was approved, and nobody else can have it.
                self.missing("the record of the claim", &trouble).await;
                Ok(())
            }
        }
    }

    /// Leaves the result of a claimed run with the datastore.
    pub(super) async fn deliver_result(&self, message: &TerminationMessage) {
        let Some(remote) = &self.remote else { return };
        if let Err(trouble) = patiently(END_PATIENCE, || remote.client.result(message)).await {
            self.missing("the result", &trouble).await;
        }
    }

    /// Leaves the state that the tool could not save with the datastore; where it is then.
    pub(super) async fn rescue_state(&self, path: &Path) -> String {
        let here = format!("it is in {}", path.display());
        if self.settings.machine().is_some() {
            return here;
        }
        let Some(remote) = &self.remote else { return format!("{here} of the pod, which ends with it") };
        let (file, dir) = (path.to_path_buf(), self.settings.kept.clone());
        let taken = tokio::task::spawn_blocking(move || {
            let file = files::left(&file, MAX_STATE)?;
            // On a full disk it is read where it is: better that than nothing.
            let state = Scratch::copy_of(&file, &dir).unwrap_or_else(|_| Scratch::from(file));
            let sum = state.digest()?;
            io::Result::Ok((state, sum))
        });
        let (state, sum) = match taken.await.map_err(io::Error::other).flatten() {
            Ok(taken) => taken,
            Err(error) => return format!("{here} of the pod, which ends with it, and cannot be taken from there: {error}"),
        };
        match patiently(RESCUE_PATIENCE, || remote.client.put_file(ObjectKind::ErroredState, &state, &sum)).await {
            Ok(()) => {
                // It holds secrets, and is where it is wanted.
                let _ = std::fs::remove_file(path);
                let (namespace, run) = (&self.settings.namespace, &self.settings.run);
                format!("it is kept encrypted: {}", crds::names::errored_state_command(namespace, run))
            }
            Err(trouble) => {
                self.missing("the state that could not be saved", &trouble).await;
                format!("{here} of the pod, which ends with it")
            }
        }
    }

    async fn missing(&self, what: &str, trouble: &Trouble) {
        self.log.line(&self.redactor.clean(&format!("pawl: {what} is not with the datastore: {trouble}"))).await;
    }

    /// The log is at its end: waits until the datastore has it, for a while.
    pub async fn finish_log(&self) {
        self.log.flush(Duration::from_secs(2)).await;
        let Some(remote) = &self.remote else { return };
        let sending = remote.sending.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sending) = sending {
            let sent = tokio::time::timeout(END_PATIENCE, sending).await;
            if let Ok(Ok(Err(failure))) = sent {
                self.log.line(&self.redactor.clean(&format!("pawl: {}", failure.message))).await;
            }
        }
        self.log.flush(Duration::from_secs(2)).await;
        self.finish_journal(remote).await;
        remote.spool.seal();
        if let Err(trouble) = remote.shipper.flush(END_PATIENCE).await {
            let (bytes, _) = remote.spool.waiting();
            self.log.line(&format!("pawl: the last {bytes} bytes of this log are not with the datastore: {trouble}")).await;
        }
    }
}

impl PodWork {
    async fn finish_journal(&self, remote: &Remote) {
        let journaling = remote.journal.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(journaling) = journaling else { return };
        journaling.spool.seal();
        if let Err(trouble) = journaling.shipper.flush(END_PATIENCE).await {
            self.missing("the end of the journal", &trouble).await;
        }
    }
}

/// Sends text and JSON of the plan, which are gone then.
async fn store_texts(client: Client, text: Scratch, json: Scratch) -> Result<(), Failure> {
    tokio::try_join!(store(&client, ObjectKind::Plan, text), store(&client, ObjectKind::PlanJson, json)).map(drop)
}

async fn store(client: &Client, kind: ObjectKind, text: Scratch) -> Result<(), Failure> {
    let read = text.clone();
    let sum = tokio::task::spawn_blocking(move || read.digest())
        .await
        .map_err(|error| internal("the plan's text cannot be read", &error))?
        .map_err(|error| internal("the plan's text cannot be read", &error))?;
    let put = patiently(PATIENCE, || client.put_file(kind, &text, &sum)).await;
    put.map_err(|trouble| failure(&format!("the {} could not be kept", kind.as_str()), &trouble))
}
