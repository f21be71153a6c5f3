//! The work of an attempt, phase by phase: builds the command, runs it, and reads its output.

mod apply;
mod artifact;
mod claim_record;
mod declarations;
mod diagnostic;
mod empty_home;
mod env_names;
mod events;
mod fetch;
mod full_disk;
mod git_source;
mod given_files;
mod hooks;
mod identity;
mod init;
mod init_credentials;
mod inputs;
mod journal;
mod last_state;
mod locked_state;
mod managed_state;
mod mounted_objects;
pub(crate) mod options;
mod outputs;
mod phase_results;
mod plan;
mod plan_changes;
mod plan_facts;
mod plan_file;
mod plan_json;
mod plan_origin;
mod plan_words;
mod preflight;
mod providers;
mod recover;
mod repository;
mod restore_plan;
mod secret_files;
mod setup;
mod terragrunt;
mod terragrunt_config;
mod terragrunt_mocks;
mod terragrunt_stack;
mod tool_integrity;
mod tools;
mod uploads;
mod variable_files;
mod variables;

use std::{
    ffi::OsString,
    fs::File,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use crds::{
    Changed, Claim, Failure, HookWhen, OutputsStatus, Reason, RunResult, TerraformRun,
    termination::TerminationMessage,
};

use crate::{
    classify::{self, OrInternal as _},
    files, guard,
    host::Host,
    plan_checksum::{Digests, Facts, Parts, TreeError, checksum, folder_digest, source_digest},
    ports::{ApplyReport, InitReport, Notice, Notices, PlanReport, SetupReport, Verified, Work},
    process::{Children, Command, Exit, Log, Sink, kill_others},
    report::redact::Redactor,
    settings::Settings,
};
pub use events::{Events, Render};
use phase_results::{Initialised, Planned, Shell, Stage};
use plan_facts::PlanFacts;
pub use recover::RECOVER_FILE;
pub use uploads::Remote;

/// Time a step may take after its command was killed, before the driver stops waiting for it.
pub const DRAIN_MARGIN: Duration = Duration::from_secs(6);

/// Maximum size of the plan file in bytes.
const MAX_PLAN: u64 = 8 << 30;
/// Maximum size of the provider lock file in bytes.
const MAX_LOCK: u64 = 16 << 20;

#[derive(Debug)]
pub struct PhaseRunner {
    settings: Arc<Settings>,
    host: Arc<dyn Host>,
    children: Children,
    redactor: Redactor,
    log: Log,
    remote: Option<Remote>,
    stage: Mutex<Stage>,
    /// Whether the apply changed anything, as observed so far.
    changed: Mutex<Changed>,
    /// The lock that the run may release.
    release: Mutex<Option<locked_state::Release>>,
    /// The fixed hooks and the values they handed over.
    hooks: Mutex<hooks::Fixed>,
    /// The pod's variables for a cloud account that the code does not get, with the reason.
    kept_back: Mutex<Option<String>>,
    /// Outputs of other stacks that the plan was made with.
    taken: Mutex<outputs::TakenOutputs>,
}

impl PhaseRunner {
    pub fn new(settings: Arc<Settings>, host: Arc<dyn Host>, children: Children, log: Log) -> Self {
        Self {
            settings,
            host,
            children,
            redactor: Redactor::default(),
            log,
            remote: None,
            stage: Mutex::default(),
            changed: Mutex::default(),
            release: Mutex::default(),
            hooks: Mutex::default(),
            kept_back: Mutex::default(),
            taken: Mutex::default(),
        }
    }

    #[must_use]
    pub fn with_datastore(mut self, remote: Remote) -> Self {
        self.remote = Some(remote);
        self
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        guard(&self.stage)
    }

    fn enter(&self, stage: Stage) {
        *self.stage() = stage;
    }

    /// Builds a command of the tool that runs in the stack's directory.
    fn command(
        &self,
        shell: &Shell,
        args: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<Command, Failure> {
        // Plan-time code may have changed the CLI configuration, which determines where the tool takes provider binaries from. So it is
        // written again.
        self.write_cli_config(shell)?;
        shell.tool.check()?;
        let args = shell.with_variables(args.into_iter().map(Into::into).collect());
        let call = self.call_terragrunt(shell, args)?;
        let handed = self
            .handed_over()
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()));
        let env = shell
            .env
            .iter()
            .cloned()
            .chain(handed)
            .filter(|(name, value)| !shell.is_terragrunt() || !terragrunt_mocks::hides(name, value))
            .chain(call.env)
            .collect();
        let tool = &shell.tool.found;
        Ok(Command {
            program: tool.binary.clone(),
            args: call.args,
            env,
            dir: shell.stack.clone(),
            role: tool.role(),
        })
    }

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

    /// Writes a line of Pawl to the log, without secrets.
    async fn say(&self, text: impl std::fmt::Display) {
        self.log
            .line(&self.redactor.clean(&format!("pawl: {text}")))
            .await;
    }

    /// The output processor for a command that runs in a directory of the source.
    fn events(&self, dir: &Path, notices: &Notices) -> Events {
        let below = dir
            .strip_prefix(self.settings.top_dir())
            .unwrap_or(dir)
            .to_path_buf();
        Events::new(self.log.clone(), self.redactor.clone(), notices.clone())
            .below(below)
            .brief(self.host.terminal().is_some())
            .coloured(self.host.terminal().is_some_and(|terminal| terminal.colour))
    }

    /// The checksum of the files on disk now, and its parts.
    async fn checksum(&self, shell: &Shell, facts: &Facts) -> Result<(String, Parts), Failure> {
        const FAILED: &str = "the manifest cannot be computed";
        let tool = shell.tool.digest().await?;
        let (stack, facts) = (shell.stack.clone(), facts.clone());
        let (root, plan) = (self.settings.source_dir(), self.settings.plan_file());
        let in_place = self.settings.folder.is_some();
        let given = shell.files.clone();
        tokio::task::spawn_blocking(move || {
            let below = stack.strip_prefix(&root).unwrap_or(&stack).to_path_buf();
            let digests = Digests {
                plan: files::left(&plan, MAX_PLAN)
                    .and_then(files::digest)
                    .or_internal(FAILED)?,
                work: if in_place {
                    folder_digest(&stack)
                } else {
                    source_digest(&root, &below, &given_files::apart(&given, &below))
                }
                .map_err(|error| unread(&error, in_place))?,
                // One of the files above, whose size is bounded.
                lock: lock_digest(&stack, if in_place { None } else { Some(&root) })?,
                tool,
            };
            Ok((checksum(&facts, &digests), Parts::of(&facts, &digests)))
        })
        .await
        .or_internal(FAILED)?
    }

    /// Restores a plan whose files are still on disk. Recomputes only what this process needs in memory. Fetches nothing and runs
    /// no `init` or `plan`.
    async fn run_restore(
        &self,
        run: &Arc<TerraformRun>,
        notices: &Notices,
    ) -> Result<(SetupReport, Planned), Failure> {
        let (report, prepared) = self.run_setup_of_restored(run, notices).await?;
        let mut made = Initialised::of(&prepared, prepared.shell.clone());
        self.run_hooks_again(&made.shell, notices).await?;
        self.know_backend(&mut made)?;
        self.run_hooks(HookWhen::AfterInit, Some(&made.shell), &Vec::new(), notices)
            .await?;
        let counts = run.plan().map(|plan| plan.counts).unwrap_or_default();
        Ok((report, Planned::of(made, None, counts)))
    }

    /// Removes the attempt's files, whatever their content. Call it when no process runs any more. A process that did not adopt the attempt
    /// must not call it: the files belong to the process that did.
    pub fn clean(&self) {
        if matches!(*self.stage(), Stage::New) {
            return;
        }
        let keep = apply::rescued(self.stage().stack(), self.ran_in());
        if keep.exists() {
            tracing::warn!(path = %keep.display(), "the state that could not be saved is left in the work directory");
            return;
        }
        for path in self.host.leftovers() {
            let Ok(found) = path.symlink_metadata() else {
                continue;
            };
            let removed = if found.is_dir() {
                std::fs::remove_dir_all(&path)
            } else {
                std::fs::remove_file(&path)
            };
            if let Err(error) = removed {
                tracing::warn!(path = %path.display(), %error, "could not be removed");
            }
        }
    }
}

/// The failure for a work directory that cannot be read. Neither git nor an archive leaves one, so the code or a hook did; a person's own
/// folder may be so.
fn unread(error: &TreeError, in_place: bool) -> Failure {
    if !files::is_of_the_file(error.error()) {
        return classify::internal("the manifest cannot be computed", error);
    }
    let why = if error.error().kind() == io::ErrorKind::FileTooLarge {
        "the checksum covers all of them, so large files belong elsewhere"
    } else if in_place {
        "the checksum covers the whole folder, so the user of this command has to be able to read it"
    } else {
        "code of the stack or a hook made it so, since a source has no such file"
    };
    Reason::SourceInvalid.failure(format!("{error}; {why}; nothing was applied"))
}

/// The digest of a stack's lock file, if any. The file may be a link to one that several stacks of the source share. A link out of
/// the source is refused, since the bundle could not include it. A person's own folder has no top, so nothing is refused there.
fn lock_digest(stack: &Path, top: Option<&Path>) -> Result<Option<String>, Failure> {
    let path = stack.join(".terraform.lock.hcl");
    let Ok(real) = path.canonicalize() else {
        return Ok(None);
    };
    let Some(top) = top else {
        let digest = real
            .is_file()
            .then(|| File::open(&real).and_then(files::digest))
            .transpose();
        return digest.or_internal("the lock file cannot be read");
    };
    let refused = |what: &str| Reason::SourceInvalid.failure(what);
    if !real.starts_with(top) {
        return Err(refused(
            "the lock file .terraform.lock.hcl is a link that leads out of the source",
        ));
    }
    match files::left(&real, MAX_LOCK).and_then(files::digest) {
        Ok(digest) => Ok(Some(digest)),
        Err(error) if files::is_of_the_file(&error) => {
            Err(refused(&format!("the lock file {error}")))
        }
        Err(error) => Err(classify::internal("the lock file cannot be read", &error)),
    }
}

impl Work for PhaseRunner {
    async fn setup(
        &self,
        run: Arc<TerraformRun>,
        notices: Notices,
    ) -> Result<SetupReport, Failure> {
        self.enter(Stage::Begun);
        self.log.enter("setup").await;
        let cache = self.confine(&run, &notices).await?;
        let (report, prepared) = self
            .whose_disk(self.run_setup(&run, cache, &notices).await)
            .await?;
        let prepared = Arc::new(prepared);
        self.enter(Stage::Prepared(prepared.clone()));
        self.run_hooks(
            HookWhen::AfterSetup,
            Some(&prepared.shell),
            &Vec::new(),
            &notices,
        )
        .await?;
        let more = [
            HookWhen::BeforeInit,
            HookWhen::AfterInit,
            HookWhen::BeforePlan,
        ]
        .into_iter()
        .any(|when| self.has_hook(when));
        let notes = variables::check(&prepared, &self.handed_over(), more)?;
        for note in prepared
            .shell
            .tool
            .found
            .notes
            .iter()
            .chain(&prepared.notes)
            .chain(&notes)
        {
            self.say(note).await;
        }
        Ok(report)
    }

    async fn restore(
        &self,
        run: Arc<TerraformRun>,
        notices: Notices,
    ) -> Result<SetupReport, Failure> {
        self.enter(Stage::Begun);
        self.log.enter("setup").await;
        let cache = self.confine(&run, &notices).await?;
        let restored = if self.host.keeps_disk() {
            self.run_restore(&run, &notices).await
        } else {
            self.run_restore_from_store(&run, cache, &notices).await
        };
        let (report, planned) = self.whose_disk(restored).await?;
        self.enter(Stage::Planned(Arc::new(planned)));
        Ok(report)
    }

    async fn init(&self, notices: Notices) -> Result<InitReport, Failure> {
        let prepared = self.stage().prepared()?;
        self.log.enter("init").await;
        let mut shell = prepared.shell.clone();
        self.run_hooks(HookWhen::BeforeInit, Some(&shell), &Vec::new(), &notices)
            .await?;
        let cached = self
            .serve_providers(prepared.cache.clone(), &mut shell)
            .await;
        self.choose_installation(&mut shell);
        let (mut report, made) = self
            .whose_disk(self.run_init(&prepared, shell, &notices).await)
            .await?;
        self.keep_providers(cached, &made.shell.stack).await;
        report.providers.clone_from(&made.shell.installation.note);
        let made = Arc::new(made);
        self.enter(Stage::Initialised(made.clone()));
        self.run_hooks(
            HookWhen::AfterInit,
            Some(&made.shell),
            &Vec::new(),
            &notices,
        )
        .await?;
        Ok(report)
    }

    async fn plan(&self, notices: Notices) -> Result<PlanReport, Failure> {
        let initialised = self.stage().initialised()?;
        self.log.enter("plan").await;
        let handed = self.handed_over().len();
        self.run_hooks(
            HookWhen::BeforePlan,
            Some(&initialised.shell),
            &Vec::new(),
            &notices,
        )
        .await?;
        let (report, planned) = self
            .whose_disk(Box::pin(self.run_plan(&initialised, &notices)).await)
            .await?;
        self.take_back(handed);
        self.enter(Stage::Planned(Arc::new(planned)));
        Ok(report)
    }

    async fn verify(&self) -> Result<Verified, Failure> {
        let planned = self.stage().planned()?;
        self.empty_home().await?;
        self.compare_outputs(&planned.run).await?;
        planned.shell.put_uncounted()?;
        given_files::put_home(&planned.shell.files, &self.settings.home())?;
        let made = self.checksum(&planned.shell, &planned.facts);
        let ((checksum, found), ()) = tokio::try_join!(made, self.prove_claim(&planned.run))?;
        // Terragrunt may write files of the unit.
        self.compare_inputs(&planned.shell).await?;
        let differs = planned
            .parts
            .as_ref()
            .map(|parts| parts.changed(&found))
            .unwrap_or_default();
        Ok(Verified { checksum, differs })
    }

    fn has_hooks_before(&self) -> bool {
        self.has_hooks_before_apply()
    }

    async fn hooks_before(&self, claim: Claim, notices: Notices) -> Result<(), Failure> {
        self.run_hooks_before(&claim, &notices).await
    }

    async fn verify_again(&self) -> Result<Verified, Failure> {
        self.verify_behind_hooks().await
    }

    async fn apply(&self, claim: Claim, notices: Notices) -> Result<ApplyReport, Failure> {
        let planned = self.stage().planned()?;
        self.log.enter("apply").await;
        let applied = self.run_apply(&planned, &claim, &notices).await;
        applied.map_err(|failure| self.for_want_of_identity(failure))
    }

    async fn deliver(&self, message: TerminationMessage) -> bool {
        self.deliver_result(&message).await
    }

    fn has_hooks_after(&self, applied: bool) -> bool {
        self.has_hooks_at_the_end(applied)
    }

    async fn hooks_after(&self, applied: bool, result: Option<RunResult>, notices: Notices) {
        self.run_hooks_at_the_end(applied, result, &notices).await;
    }

    async fn publish(&self, claimed: bool) -> Option<OutputsStatus> {
        self.publish_outputs(claimed).await
    }

    fn interrupt(&self) {
        self.children.interrupt();
    }

    fn may_unlock(&self, id: &str, holder: &str) {
        *guard(&self.release) = Some(locked_state::Release {
            id: id.to_owned(),
            holder: holder.to_owned(),
        });
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
        *guard(&self.changed)
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
    use crate::host::Pod;

    pub(crate) fn settings(dir: &Path) -> Settings {
        Settings {
            namespace: "team".into(),
            run: "vpc".into(),
            tools: vec![dir.join("tools")],
            mirrors: dir.join("mirrors"),
            providers: dir.join("providers"),
            secrets: dir.join("secrets"),
            config_maps: dir.join("configmaps"),
            inherited: vec![("PATH".into(), "/usr/bin:/bin".into())],
            ..Settings::below(&dir.join("work"))
        }
    }

    /// A pod's work with these settings; the log is discarded.
    pub(crate) fn work(settings: Settings) -> PhaseRunner {
        let settings = Arc::new(settings);
        PhaseRunner::new(
            settings.clone(),
            Arc::new(Pod::new(settings)),
            Children::default(),
            Log::to(std::io::sink()),
        )
    }
}
