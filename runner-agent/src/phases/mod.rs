//! The work of an attempt, phase by phase: build the command, run it, read what it says.

mod anew;
mod apply;
mod authorities;
mod declared;
mod disk;
mod events;
mod init;
mod inputs;
mod journal;
mod locked;
mod managed;
mod plan;
mod proven;
mod providers;
mod recover;
mod remote;
mod restore;
mod setup;
mod show;
mod source;
mod terragrunt;
mod told;
mod tools;

use std::{
    ffi::OsString,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crds::{Changed, Claim, Failure, FailureClass, TerraformRun, reason, termination::TerminationMessage};

use crate::{
    classify,
    datastore::sealed_inputs::SealedInputs,
    files::{self, BACKEND_FILE, Scratch, VARIABLES_FILE},
    plan_checksum::{Digests, Facts, Parts, checksum, folder_digest, source_digest},
    ports::{ApplyReport, InitReport, Notice, Notices, PlanReport, SetupReport, Work},
    process::{Children, Command, Exit, Log, Sink, kill_others},
    report::redact::Redactor,
    settings::Settings,
    tool::Found,
};
pub use events::{Events, Render};
pub use recover::RECOVER_FILE;
pub use remote::Remote;
pub use show::{PlanFacts, read_plan};

/// How much longer than a killed command its step may take, before it is no longer waited for.
pub const DRAIN_MARGIN: Duration = Duration::from_secs(6);

/// The largest plan file, in bytes.
const MAX_PLAN: u64 = 8 << 30;
/// The largest lock file of providers, in bytes.
const MAX_LOCK: u64 = 16 << 20;

/// What later phases need to know of earlier ones.
#[derive(Debug, Default)]
struct Known {
    run: Option<Arc<TerraformRun>>,
    /// The stack's directory.
    stack: PathBuf,
    tool: Option<Found>,
    /// The executables of the tool, as they were at Setup.
    proven: Vec<proven::Proven>,
    /// Their digests, while they are computed.
    digesting: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
    /// The environment of the tool.
    env: Vec<(OsString, OsString)>,
    /// Where Terragrunt had the tool make the plan.
    ran_in: Option<PathBuf>,
    /// Terragrunt has all values for `plan` alone, so that other commands run as a part of it.
    as_plan: bool,
    /// Terragrunt ran nothing for `init`, as its configuration wants it.
    idle: bool,
    facts: Facts,
    /// What the plan was made with and of, and what of it is another now.
    parts: Option<Parts>,
    differs: Vec<&'static str>,
    /// The plan as the tool printed it: text, then JSON.
    texts: (Option<Scratch>, Option<Scratch>),
    /// Operations that the plan has.
    planned: u32,
    /// What was seen of the apply.
    changed: Changed,
    /// The state is the datastore's.
    managed: bool,
    /// What is taken in that another run created.
    recovery: Option<recover::Recovery>,
    /// Key of the state.
    state_key: Option<String>,
    /// What the plan takes from Secrets and ConfigMaps.
    inputs: SealedInputs,
    /// The shared cache of providers, when there is one and code of the stack cannot write to it.
    cache: Option<PathBuf>,
    /// What the run has of it.
    cached: Option<providers::Cached>,
    /// The lock that may be released.
    release: Option<locked::Release>,
}

/// The work of an attempt in a pod.
#[derive(Debug)]
pub struct PodWork {
    settings: Arc<Settings>,
    children: Children,
    redactor: Redactor,
    log: Log,
    remote: Option<Remote>,
    known: Mutex<Known>,
}

impl PodWork {
    /// Work that has not begun.
    pub fn new(settings: Arc<Settings>, children: Children, log: Log) -> Self {
        Self { settings, children, redactor: Redactor::default(), log, remote: None, known: Mutex::default() }
    }

    /// The same work with a datastore.
    #[must_use]
    pub fn with_datastore(mut self, remote: Remote) -> Self {
        self.remote = Some(remote);
        self
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) -> Arc<TerraformRun> {
        self.known().run.clone().unwrap_or_default()
    }

    fn tool(&self) -> Result<Found, Failure> {
        self.known().tool.clone().ok_or_else(|| classify::internal("the tool is not known", &"setup has not run"))
    }

    /// A command of the tool in the stack's directory.
    fn command(&self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Command, Failure> {
        // Plan-time code may have changed it; it decides where provider binaries come from.
        self.write_cli_config()?;
        self.check_tool()?;
        let tool = self.tool()?;
        let call = self.call_terragrunt(&tool, args.into_iter().map(Into::into).collect())?;
        let known = self.known();
        let env = known.env.iter().cloned().chain(call.env).collect();
        let (role, dir) = (tool.role(), known.stack.clone());
        Ok(Command { program: tool.binary, args: call.args, env, dir, role })
    }

    /// Runs a command as a step.
    async fn step(
        &self,
        name: &'static str,
        command: &Command,
        sink: &mut impl Sink,
        notices: &Notices,
    ) -> Result<Exit, Failure> {
        let _ = notices.send(Notice::Started(name));
        let exit = self.children.run(command, sink).await;
        let code = exit.as_ref().map_or(-1, |exit| exit.code);
        let _ = notices.send(Notice::Ended(name, code));
        exit.map_err(|error| classify::not_run(name, &error))
    }

    fn events(&self, notices: &Notices) -> Events {
        let stack = self.known().stack.clone();
        let below = stack.strip_prefix(self.settings.source_dir()).unwrap_or(&stack).to_path_buf();
        Events::new(self.log.clone(), self.redactor.clone(), notices.clone())
            .below(below)
            .brief(self.settings.machine().is_some())
            .coloured(self.settings.machine().is_some_and(|machine| machine.colour))
    }

    /// The checksum of what is on disk now, and its parts.
    async fn checksum(&self) -> Result<(String, Parts), Failure> {
        let failed = |error: &dyn std::fmt::Display| classify::internal("the manifest cannot be computed", error);
        let tool = self.tool_digest().await?;
        let (stack, facts) = {
            let known = self.known();
            (known.stack.clone(), known.facts.clone())
        };
        let (root, plan) = (self.settings.source_dir(), self.settings.plan_file());
        let in_place = self.settings.in_place().is_some();
        tokio::task::spawn_blocking(move || {
            let below = stack.strip_prefix(&root).unwrap_or(&stack).to_path_buf();
            let digests = Digests {
                plan: files::left(&plan, MAX_PLAN).and_then(files::digest).map_err(|e| failed(&e))?,
                lock: lock_digest(&stack, if in_place { None } else { Some(&root) })?,
                work: if in_place { folder_digest(&stack) } else { source_digest(&root, &below) }.map_err(|e| failed(&e))?,
                tool,
            };
            Ok((checksum(&facts, &digests), Parts::of(&facts, &digests)))
        })
        .await
        .unwrap_or_else(|error| Err(failed(&error)))
    }

    /// What a plan was made with is where it was; only what this process has to know is found again. Nothing is fetched or run.
    async fn run_restore(&self, notices: &Notices) -> Result<SetupReport, Failure> {
        let report = self.run_setup_of_restored(notices).await?;
        let run = self.run();
        let stack = self.known().stack.clone();
        self.know_backend(&stack, &run.spec.workspace)?;
        let plan = run.status.as_ref().and_then(|status| status.plan.as_ref());
        self.known().planned = plan.map(|plan| plan.counts.operations()).unwrap_or_default();
        Ok(report)
    }

    /// Removes what the attempt wrote, whatever is in it. Called when nothing runs any more. A process that was not the one to
    /// adopt its attempt wrote nothing, and what is there is of the one that was.
    pub fn clean(&self) {
        if self.known().run.is_none() {
            return;
        }
        let keep = apply::rescued(&self.known().stack, self.ran_in());
        if keep.exists() {
            tracing::warn!(path = %keep.display(), "the state that could not be saved is left in the work directory");
            return;
        }
        let (settings, is_pod) = (&self.settings, self.settings.machine().is_none());
        let dirs = std::iter::once(&settings.work).chain(is_pod.then_some(&settings.kept));
        for entry in dirs.flat_map(std::fs::read_dir).flatten().flatten() {
            let path = entry.path();
            // A person's record and log stay, and a plan that waits.
            if !is_pod && path != settings.tmp() && path != setup::parent(&settings.plan_out()) {
                continue;
            }
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let removed = if is_dir { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            if let Err(error) = removed {
                tracing::warn!(path = %path.display(), %error, "could not be removed");
            }
        }
    }
}

/// The digest of a stack's lock file, if it has one. It may be a link to one that stacks of the source share; what leads out of the
/// source is none that a plan could be kept with. Nothing is refused of a person's own folder, which has no top.
fn lock_digest(stack: &Path, top: Option<&Path>) -> Result<Option<String>, Failure> {
    let path = stack.join(".terraform.lock.hcl");
    let Ok(real) = path.canonicalize() else { return Ok(None) };
    let Some(top) = top else {
        let digest = real.is_file().then(|| File::open(&real).and_then(files::digest)).transpose();
        return digest.map_err(|error| classify::internal("the lock file cannot be read", &error));
    };
    let refused = |what: &str| classify::simple(FailureClass::Configuration, reason::SOURCE_INVALID, what);
    if !real.starts_with(top) {
        return Err(refused("the lock file .terraform.lock.hcl is a link that leads out of the source"));
    }
    match files::left(&real, MAX_LOCK).and_then(files::digest) {
        Ok(digest) => Ok(Some(digest)),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(refused(&format!("the lock file {error}"))),
        Err(error) => Err(classify::internal("the lock file cannot be read", &error)),
    }
}

impl Work for PodWork {
    async fn setup(&self, run: Arc<TerraformRun>, notices: Notices) -> Result<SetupReport, Failure> {
        self.known().run = Some(run);
        self.log.enter("setup").await;
        self.confine(&notices).await?;
        let report = self.whose_disk(self.run_setup(&notices).await).await?;
        self.check_variables()?;
        let notes = self.known().tool.as_ref().map(|found| found.notes.clone()).unwrap_or_default();
        for note in notes {
            self.log.line(&format!("pawl: {note}")).await;
        }
        Ok(report)
    }

    async fn restore(&self, run: Arc<TerraformRun>, notices: Notices) -> Result<SetupReport, Failure> {
        self.known().run = Some(run);
        self.log.enter("setup").await;
        self.confine(&notices).await?;
        let restored = if self.settings.machine().is_some() {
            self.run_restore(&notices).await
        } else {
            self.run_restore_from_store(&notices).await
        };
        self.whose_disk(restored).await
    }

    async fn init(&self, notices: Notices) -> Result<InitReport, Failure> {
        self.log.enter("init").await;
        self.serve_providers().await;
        let report = self.whose_disk(self.run_init(&notices).await).await?;
        self.keep_providers().await;
        Ok(report)
    }

    async fn plan(&self, notices: Notices) -> Result<PlanReport, Failure> {
        self.log.enter("plan").await;
        self.whose_disk(self.run_plan(&notices).await).await
    }

    async fn verify(&self) -> Result<String, Failure> {
        self.make_anew().await?;
        let ((checksum, found), ()) = tokio::try_join!(self.checksum(), self.prove_claim())?;
        let mut known = self.known();
        known.differs = known.parts.as_ref().map(|made| made.changed(&found)).unwrap_or_default();
        Ok(checksum)
    }

    fn differs(&self) -> Vec<&'static str> {
        self.known().differs.clone()
    }

    async fn apply(&self, claim: Claim, notices: Notices) -> Result<ApplyReport, Failure> {
        self.log.enter("apply").await;
        self.run_apply(&claim, &notices).await
    }

    async fn deliver(&self, message: TerminationMessage) {
        self.deliver_result(&message).await;
    }

    fn interrupt(&self) {
        self.children.interrupt();
    }

    fn may_unlock(&self, id: &str, holder: &str) {
        self.known().release = Some(locked::Release { id: id.to_owned(), holder: holder.to_owned() });
    }

    fn kill_providers(&self) {
        self.children.kill_providers();
    }

    fn kill_tool(&self) {
        self.children.kill();
    }

    async fn kill_others(&self) -> bool {
        kill_others(&self.children, Duration::from_secs(5)).await
    }

    fn changed(&self) -> Changed {
        self.known().changed
    }

    fn redact(&self, text: &str) -> String {
        self.redactor.clean(text)
    }

    async fn log(&self, line: &str) {
        self.log.line(&self.redactor.clean(line)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{PROGRESS_EVERY, Place, QUIET_AFTER};

    /// Settings below a directory of a test.
    pub(crate) fn settings(dir: &Path) -> Settings {
        Settings {
            namespace: "team".into(),
            run: "vpc".into(),
            run_uid: "uid-1".into(),
            attempt: 1,
            pod_name: "vpc-xxxxx-a1".into(),
            pod_uid: "pod-1".into(),
            nonce: "0".repeat(32),
            grace: Duration::from_secs(30),
            tools: vec![dir.join("tools")],
            tool_settings: None,
            cache: None,
            mirrors: dir.join("mirrors"),
            providers: dir.join("providers"),
            provider_cache: None,
            work: dir.join("work"),
            kept: dir.join("work/plan"),
            scratch: Vec::new(),
            secrets: dir.join("secrets"),
            config_maps: dir.join("configmaps"),
            require_confinement: false,
            termination_log: dir.join("termination-log"),
            ca: None,
            inherited: vec![("PATH".into(), "/usr/bin:/bin".into())],
            place: Place::Pod,
            restores: false,
            store: None,
            progress_every: PROGRESS_EVERY,
            quiet_after: QUIET_AFTER,
        }
    }
}
