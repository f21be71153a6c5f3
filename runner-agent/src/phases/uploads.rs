//! Uploads of an attempt to the datastore: the plan before it waits, the result, the log. `claim_record` writes the claim.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use crds::{
    Changes, Failure, Reason,
    datastore::{JOURNAL, MAX_STATE, ObjectKind},
    termination::TerminationMessage,
};

use tokio::task::JoinHandle;

use super::{Initialised, PhaseRunner, Shell, given_files, plan_changes};
use crate::{
    classify::{OrInternal as _, internal},
    datastore::{
        Client, RequestError, bundle, failure, put_file, retry_for, shipper::Shipper, spool::Spool,
        state::StateServer,
    },
    files::{self, Scratch},
    guard,
    plan_checksum::Parts,
};

/// Time limit for retries of each request before the claim.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit for uploading a state that could not be saved, before the end is reported.
const RESCUE_PATIENCE: Duration = Duration::from_secs(30);
/// Time limit for uploading the result and the rest of the log at the end.
const END_PATIENCE: Duration = Duration::from_secs(15);

/// The attempt's connections to the datastore.
#[derive(Debug)]
pub struct Remote {
    pub(super) client: Client,
    spool: Arc<Spool>,
    shipper: Shipper,
    pub(super) state: Mutex<Option<StateServer>>,
    /// The upload of the journal.
    pub(super) journal: Mutex<Option<Journaling>>,
    /// The upload of the plan's texts.
    sending: Mutex<Option<JoinHandle<Result<(), Failure>>>>,
}

impl Remote {
    /// Starts to ship the spool's content.
    pub fn start(client: Client, spool: Arc<Spool>) -> Self {
        let shipper = Shipper::start(client.clone(), spool.clone());
        Self {
            client,
            spool,
            shipper,
            state: Mutex::default(),
            journal: Mutex::default(),
            sending: Mutex::default(),
        }
    }
}

/// The upload of the apply's journal. Has its own connection, so a flood of log lines does not delay it.
#[derive(Debug)]
pub(super) struct Journaling {
    pub(super) spool: Arc<Spool>,
    shipper: Shipper,
}

impl Journaling {
    /// Starts to ship the journal's spool.
    pub(super) fn start(client: Client, dir: PathBuf) -> std::io::Result<Self> {
        let spool = Spool::create(dir)?;
        spool.enter(JOURNAL);
        Ok(Self {
            shipper: Shipper::start(client, spool.clone()),
            spool,
        })
    }
}

impl PhaseRunner {
    /// Uploads the plan's text and JSON, and the bundle if the plan may wait for an approval. Returns the bundle's digest.
    ///
    /// With automatic approval the texts are uploaded while the run goes on, and awaited at its end.
    pub(super) async fn store_plan(
        &self,
        made: &Initialised,
        parts: &Parts,
        texts: (Option<Scratch>, Option<Scratch>),
        (has_changes, counts): (bool, Changes),
    ) -> Result<Option<String>, Failure> {
        let (Some(remote), run) = (&self.remote, &made.run) else {
            return Ok(None);
        };
        let applies = run.spec.operation.applies();
        let waits = has_changes && applies && !run.spec.approval.is_automatic_for(&counts);
        let (Some(text), Some(json)) = texts else {
            return Err(internal(
                "the plan could not be kept",
                &"the tool has not shown it",
            ));
        };
        let changes = self.store_changes(remote.client.clone(), &json, counts);
        let texts = store_texts(remote.client.clone(), text, json);
        let texts = async { tokio::join!(texts, changes).0 };
        if applies && run.spec.approval.is_automatic_for(&counts) {
            *guard(&remote.sending) = Some(tokio::spawn(texts));
            return Ok(None);
        }
        let bundle = async {
            if waits {
                self.store_bundle(remote, made, parts).await.map(Some)
            } else {
                Ok(None)
            }
        };
        let ((), bundle) = tokio::try_join!(texts, bundle)?;
        self.log.flush(Duration::from_secs(2)).await;
        let flushed = remote.shipper.flush(PATIENCE).await;
        flushed.map_err(|trouble| failure("the log could not be kept", &trouble))?;
        Ok(bundle)
    }

    /// Uploads the changes of the plan without sensitive values, for those who may not read its JSON. The run goes on without them.
    fn store_changes(
        &self,
        client: Client,
        json: &Scratch,
        counts: Changes,
    ) -> impl Future<Output = ()> + use<> {
        let (json, dir) = (json.clone(), self.settings.kept.clone());
        let (log, redactor) = (self.log.clone(), self.redactor.clone());
        let words = redactor.clone();
        let made = tokio::task::spawn_blocking(move || {
            let file = Scratch::create(&dir)?;
            let mut to = io::BufWriter::new(file.file());
            plan_changes::write(json.reader(), counts, &words, &mut to)?;
            to.flush()?;
            drop(to);
            io::Result::Ok(file)
        });
        async move {
            let why = match made.await.map_err(io::Error::other).flatten() {
                Ok(file) => match store(&client, ObjectKind::Changes, file).await {
                    Ok(()) => return,
                    Err(failure) => failure.message,
                },
                Err(error) => format!("the changes could not be read: {error}"),
            };
            log.line(&redactor.clean(&format!(
                "pawl: the web console cannot show this plan as a list: {why}"
            )))
            .await;
        }
    }

    /// Packs the bundle, uploads it, and compares the digest that the datastore has stored.
    async fn store_bundle(
        &self,
        remote: &Remote,
        made: &Initialised,
        parts: &Parts,
    ) -> Result<String, Failure> {
        const UNPACKED: &str = "the plan cannot be packed";
        let Shell {
            stack,
            tool,
            managed,
            ..
        } = &made.shell;
        let tool = &tool.found;
        let (root, plan) = (self.settings.source_dir(), self.settings.plan_file());
        let file = Scratch::create(&self.settings.kept).or_internal(UNPACKED)?;
        let stack = stack
            .strip_prefix(root.canonicalize().unwrap_or_else(|_| root.clone()))
            .unwrap_or(stack)
            .to_path_buf();
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
            top: std::fs::read_to_string(self.settings.top_file()).unwrap_or_default(),
            managed: *managed,
            inputs: made.inputs.clone(),
            given: self.given_inputs().filter(|_| made.shell.is_terragrunt()),
            hooks: self.fixed_hooks().to_vec(),
            parts: Some(parts.clone()),
        };
        // Files changed while planning would otherwise become part of the bundle.
        made.shell.put_uncounted()?;
        let to = file.clone();
        let apart = given_files::apart(&made.shell.files, &head.stack);
        let packed =
            tokio::task::spawn_blocking(move || bundle::pack(&head, &plan, &root, &apart, &to))
                .await;
        let sum = packed.or_internal(UNPACKED)?.or_internal(UNPACKED)?;
        let put = retry_for(PATIENCE, || {
            put_file(&remote.client, ObjectKind::Bundle, &file, &sum)
        })
        .await;
        drop(file);
        put.map_err(|trouble| failure("the plan could not be kept", &trouble))?;
        let stored = retry_for(PATIENCE, || remote.client.stored(ObjectKind::Bundle))
            .await
            .map_err(|trouble| {
                failure("the plan that was kept could not be read back", &trouble)
            })?;
        if stored.digest != sum {
            let message = format!(
                "the datastore keeps {} in place of the plan {sum}",
                stored.digest
            );
            return Err(Reason::StoredPlanCorrupt.failure(message));
        }
        Ok(sum)
    }

    /// Uploads the result of a claimed run, if there is a datastore. Returns whether it is stored.
    pub(super) async fn deliver_result(&self, message: &TerminationMessage) -> bool {
        let Some(remote) = &self.remote else {
            return true;
        };
        let delivered = retry_for(END_PATIENCE, || remote.client.result(message)).await;
        if let Err(trouble) = &delivered {
            self.missing("the result", trouble).await;
        }
        delivered.is_ok()
    }

    /// Uploads the state that the tool could not save. Returns where it is then, for people.
    pub(super) async fn rescue_state(&self, path: &Path) -> String {
        let here = format!("it is in {}", path.display());
        if self.host.keeps_disk() {
            return here;
        }
        let Some(remote) = &self.remote else {
            return format!("{here} of the pod, which ends with it");
        };
        let (file, dir) = (path.to_path_buf(), self.settings.kept.clone());
        let taken = tokio::task::spawn_blocking(move || {
            let file = files::left(&file, MAX_STATE)?;
            // If the disk is full, upload from the original file rather than not at all.
            let state = Scratch::copy_of(&file, &dir).unwrap_or_else(|_| Scratch::from(file));
            let sum = state.digest()?;
            io::Result::Ok((state, sum))
        });
        let (state, sum) = match taken.await.map_err(io::Error::other).flatten() {
            Ok(taken) => taken,
            Err(error) => {
                return format!(
                    "{here} of the pod, which ends with it, and cannot be taken from there: {error}"
                );
            }
        };
        match retry_for(RESCUE_PATIENCE, || {
            put_file(&remote.client, ObjectKind::ErroredState, &state, &sum)
        })
        .await
        {
            Ok(()) => {
                // It contains secrets and is stored safely now.
                let _ = std::fs::remove_file(path);
                let (namespace, run) = (&self.settings.namespace, &self.settings.run);
                format!(
                    "it is kept encrypted: {}",
                    crds::names::errored_state_command(namespace, run)
                )
            }
            Err(trouble) => {
                self.missing("the state that could not be saved", &trouble)
                    .await;
                format!("{here} of the pod, which ends with it")
            }
        }
    }

    async fn missing(&self, what: &str, trouble: &RequestError) {
        self.say(format!(
            "{what} is not with the datastore: {}",
            trouble.why()
        ))
        .await;
    }

    /// Waits, within bounds, until the datastore has the whole log. Returns a description of the missing parts of log and journal;
    /// the log contains it as well.
    pub async fn finish_log(&self) -> Option<String> {
        self.log.flush(Duration::from_secs(2)).await;
        let remote = self.remote.as_ref()?;
        let sending = guard(&remote.sending).take();
        if let Some(sending) = sending {
            let sent = tokio::time::timeout(END_PATIENCE, sending).await;
            if let Ok(Ok(Err(failure))) = sent {
                self.say(failure.message).await;
            }
        }
        self.log.flush(Duration::from_secs(2)).await;
        let journal = self.finish_journal(remote).await;
        remote.spool.seal();
        let log = remote
            .shipper
            .flush(END_PATIENCE)
            .await
            .err()
            .map(|trouble| {
                let (bytes, _) = remote.spool.waiting();
                format!(
                    "the last {bytes} bytes of the log are not with the datastore: {}",
                    trouble.why()
                )
            });
        let unkept: Vec<_> = journal
            .into_iter()
            .chain(log)
            .map(|text| self.redactor.clean(&text))
            .collect();
        for text in &unkept {
            self.say(text).await;
        }
        (!unkept.is_empty()).then(|| unkept.join("; "))
    }
}

impl PhaseRunner {
    async fn finish_journal(&self, remote: &Remote) -> Option<String> {
        let journaling = guard(&remote.journal).take()?;
        journaling.spool.seal();
        let trouble = journaling.shipper.flush(END_PATIENCE).await.err()?;
        Some(format!(
            "the end of the journal is not with the datastore: {}",
            trouble.why()
        ))
    }
}

/// Uploads the plan's text and JSON, and removes the files.
async fn store_texts(client: Client, text: Scratch, json: Scratch) -> Result<(), Failure> {
    tokio::try_join!(
        store(&client, ObjectKind::Plan, text),
        store(&client, ObjectKind::PlanJson, json)
    )
    .map(drop)
}

async fn store(client: &Client, kind: ObjectKind, text: Scratch) -> Result<(), Failure> {
    let (read, unread) = (text.clone(), "the plan's text cannot be read");
    let sum = tokio::task::spawn_blocking(move || read.digest())
        .await
        .or_internal(unread)?
        .or_internal(unread)?;
    let put = retry_for(PATIENCE, || put_file(client, kind, &text, &sum)).await;
    put.map_err(|trouble| {
        failure(
            &format!("the {} could not be kept", kind.as_str()),
            &trouble,
        )
    })
}
