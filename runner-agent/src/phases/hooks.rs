//! Hooks. Setup fixes their scripts ([`scripts`]); each runs as a step of its phase, with the tool's environment and permissions.

mod scripts;

use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, Read as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use crds::{Claim, FailedHook, Failure, HookWhen, Operation, Reason, RunResult, TerraformRun};

use super::{Events, PhaseRunner, Shell, env_names, setup::make_empty};
use crate::{
    classify::{OrInternal as _, not_run},
    files, guard,
    hooks::{self, Hook, MAX_SCRIPT, MAX_VALUES},
    ports::{Notice, Notices, Verified},
    process::{Command, Role, RunError, kill_others},
};

/// Time limit for killed processes of a hook to disappear.
const GONE: std::time::Duration = std::time::Duration::from_secs(5);
/// File name of the stored hooks of a plan in a folder.
const KEPT: &str = "hooks.json";
/// Maximum size of that file in bytes.
const MAX_KEPT: u64 = 8 << 20;

/// The hooks of an attempt, from Setup on.
#[derive(Debug, Default)]
pub(super) struct Fixed {
    run: Arc<TerraformRun>,
    hooks: Arc<Vec<Hook>>,
    /// The environment of commands, for hooks that run before the stack is fetched.
    env: Vec<(OsString, OsString)>,
    /// Values that hooks handed over: environment names and values. Values may be secret.
    values: Vec<(String, String)>,
    /// An earlier process made the plan.
    restores: bool,
}

/// Environment variables besides those that all hooks get.
pub(super) type More = Vec<(&'static str, OsString)>;

impl PhaseRunner {
    /// The hooks fixed so far.
    pub(super) fn fixed_hooks(&self) -> Arc<Vec<Hook>> {
        guard(&self.hooks).hooks.clone()
    }

    /// The values that hooks have handed over so far, for later commands.
    pub(super) fn handed_over(&self) -> Vec<(String, String)> {
        guard(&self.hooks).values.clone()
    }

    /// Retains only the first `first` values. Values of hooks around the plan end with the plan phase, since a pod that restores the plan
    /// does not have them either.
    pub(super) fn take_back(&self, first: usize) {
        guard(&self.hooks).values.truncate(first);
    }

    /// The hooks' entries in the manifest.
    pub(super) fn hook_facts(&self) -> Vec<String> {
        self.fixed_hooks().iter().map(Hook::fact).collect()
    }

    pub(super) fn has_hook(&self, when: HookWhen) -> bool {
        self.fixed_hooks().iter().any(|hook| hook.when == when)
    }

    /// The moment before or after the apply. Its name depends on whether the run destroys.
    fn around_apply(&self, before: bool) -> HookWhen {
        let destroys = guard(&self.hooks).run.spec.operation == Operation::Destroy;
        match (destroys, before) {
            (false, true) => HookWhen::BeforeApply,
            (false, false) => HookWhen::AfterApply,
            (true, true) => HookWhen::BeforeDestroy,
            (true, false) => HookWhen::AfterDestroy,
        }
    }

    /// Runs the hooks of a moment in order. The first failure ends it, unless that hook continues on failure.
    pub(super) async fn run_hooks(
        &self,
        when: HookWhen,
        shell: Option<&Shell>,
        more: &More,
        notices: &Notices,
    ) -> Result<(), Failure> {
        for hook in self.fixed_hooks().iter().filter(|hook| hook.when == when) {
            if let Err(failure) = self.run_hook(hook, shell, more, notices).await {
                if !hook.continues || self.children.is_stopped() {
                    return Err(failure);
                }
                self.pass_over(hook, failure, notices).await;
            }
        }
        Ok(())
    }

    /// Empties the source directory after hooks before Setup and kills their remaining processes. Such a process could read the
    /// credentials of the fetch. A file there, such as a git configuration or a link, could change or redirect the fetch.
    pub(super) async fn clear_for_source(&self) -> Result<(), Failure> {
        if !self.has_hook(HookWhen::BeforeSetup) {
            return Ok(());
        }
        self.end_what_is_left(
            "what the hooks before Setup left running does not end; nothing was fetched",
        )
        .await?;
        make_empty(&self.settings.source_dir())
            .or_internal("the directory of the source cannot be emptied")
    }

    /// Kills processes that hooks left running. Fails with `text` if one does not die.
    async fn end_what_is_left(&self, text: &str) -> Result<(), Failure> {
        if kill_others(&self.children, GONE).await {
            Ok(())
        } else {
            Err(Reason::HookFailed.failure(text))
        }
    }

    /// Runs the hooks before `init` again, for the values they hand over and the files they write outside the source.
    pub(super) async fn run_hooks_again(
        &self,
        shell: &Shell,
        notices: &Notices,
    ) -> Result<(), Failure> {
        self.run_hooks(HookWhen::BeforeSetup, None, &More::new(), notices)
            .await?;
        self.run_hooks(HookWhen::AfterSetup, Some(shell), &More::new(), notices)
            .await?;
        self.run_hooks(HookWhen::BeforeInit, Some(shell), &More::new(), notices)
            .await
    }

    /// Reports a failure without ending the phase.
    async fn pass_over(&self, hook: &Hook, failure: Failure, notices: &Notices) {
        self.say(&failure.message).await;
        let failed = FailedHook {
            name: hook.name.clone(),
            when: hook.when,
            message: failure.message,
        };
        let _ = notices.send(Notice::HookFailed(failed));
    }

    async fn run_hook(
        &self,
        hook: &Hook,
        shell: Option<&Shell>,
        more: &More,
        notices: &Notices,
    ) -> Result<(), Failure> {
        let (name, when) = (&hook.name, hook.when.as_str());
        let named = |what: &str| format!("hook {name} ({when}) {what}");
        let out = hook
            .hands_over()
            .then(|| self.settings.tmp().join("hook-values"));
        let out = out.as_deref();
        let command = self
            .hook_command(hook, shell, more, out)
            .or_internal(&named("cannot be written"))?;
        self.say(format!("hook {name}, {when}")).await;
        let _ = notices.send(Notice::HookStarted(name.clone(), hook.when));
        let mut events = self
            .events(&command.dir, notices)
            .of_a_script()
            .held(out.is_some());
        let exit = match hook.when {
            HookWhen::Always | HookWhen::AfterApply | HookWhen::AfterDestroy => {
                self.children.run_at_the_end(&command, &mut events).await
            }
            _ => self.children.run(&command, &mut events).await,
        };
        let values = self.take_values(out, &mut events).await;
        let _ = notices.send(Notice::HookEnded(
            name.clone(),
            exit.as_ref().map_or(-1, |exit| exit.code),
        ));
        let exit = exit.map_err(|error| match error {
            RunError::Spawn(error) => {
                Reason::HookInvalid.failure(named(&format!("cannot be started: {error}")))
            }
            error => not_run(&format!("hook {name}"), &error),
        })?;
        if exit.code != 0 {
            let how = exit.signal.map_or_else(
                || format!("failed with {}", exit.code),
                |signal| format!("was killed by signal {signal}"),
            );
            let last = events
                .said()
                .tail
                .iter()
                .rev()
                .find(|line| !line.trim().is_empty())
                .map(|line| format!(": {line}"));
            return Err(Reason::HookFailed.failure(
                self.redactor
                    .clean(&named(&format!("{how}{}", last.unwrap_or_default()))),
            ));
        }
        let text = values.map_err(|error| {
            Reason::HookInvalid.failure(named(&format!(
                "hands over values that cannot be read: {error}"
            )))
        })?;
        let values = hooks::values(&text, hook.when, env_names::refused_to_hooks);
        let values = values
            .map_err(|error| Reason::HookInvalid.failure(named(&format!("failed: {error}"))))?;
        guard(&self.hooks).values.extend(values);
        Ok(())
    }

    /// Reads the values of a hook and registers its secrets with the redactor. Only then shows the hook's output.
    async fn take_values(&self, out: Option<&Path>, events: &mut Events) -> io::Result<String> {
        let Some(out) = out else {
            return Ok(String::new());
        };
        let text = files::left(out, MAX_VALUES as u64).and_then(io::read_to_string);
        let _ = fs::remove_file(out);
        match &text {
            Ok(text) => {
                hooks::secrets(text).for_each(|secret| self.redactor.add(secret));
                events.let_go().await;
            }
            Err(_) => {
                events
                    .drop_held("pawl: the hook's output is not shown, because the values that it hands over cannot be read")
                    .await;
            }
        }
        text
    }

    /// Writes the script where the stack's code cannot change it, and the empty file for values.
    fn hook_command(
        &self,
        hook: &Hook,
        shell: Option<&Shell>,
        more: &More,
        out: Option<&Path>,
    ) -> io::Result<Command> {
        let settings = &self.settings;
        let dir = settings.kept.join("hooks");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)?;
        let script = dir.join(&hook.name);
        files::write(&script, &hook.script)?;
        out.map(files::create).transpose()?;
        let (program, argument) = hook.interpreter();
        let args = argument
            .map(OsString::from)
            .into_iter()
            .chain([script.into()])
            .collect();
        let dir = shell.map_or_else(|| settings.home(), |shell| shell.stack.clone());
        // A run in a person's folder has no separate home.
        let dir = if dir.is_dir() {
            dir
        } else {
            settings.work.clone()
        };
        let env = self.hook_env(hook, shell, more, out);
        Ok(Command {
            program: program.into(),
            args,
            env,
            dir,
            role: Role::Other,
        })
    }

    /// The tool's environment, the values of hooks, the tool's directories on `PATH`, and the facts about the hook.
    fn hook_env(
        &self,
        hook: &Hook,
        shell: Option<&Shell>,
        more: &More,
        out: Option<&Path>,
    ) -> Vec<(OsString, OsString)> {
        let (settings, fixed) = (&self.settings, guard(&self.hooks));
        let mut env = shell.map_or_else(|| fixed.env.clone(), |shell| shell.env.clone());
        env.extend(
            fixed
                .values
                .iter()
                .map(|(name, value)| (name.into(), value.into())),
        );
        if let Some(shell) = shell {
            let dirs = shell
                .tool
                .found
                .all()
                .filter_map(|tool| tool.binary.parent().map(PathBuf::from));
            let path = env
                .iter()
                .rev()
                .find(|(name, _)| name == "PATH")
                .map(|(_, path)| path.clone())
                .unwrap_or_default();
            let all: Vec<_> = dirs.chain(env::split_paths(&path)).collect();
            env.push(("PATH".into(), env::join_paths(all).unwrap_or(path)));
            env.push(("PAWL_STACK_DIR".into(), shell.stack.clone().into()));
        }
        let spec = &fixed.run.spec;
        let operation = format!("{:?}", spec.operation);
        let facts: [(&str, OsString); 10] = [
            ("PAWL_HOOK", hook.name.clone().into()),
            ("PAWL_HOOK_WHEN", hook.when.as_str().into()),
            ("PAWL_HOOK_RESTORES", fixed.restores.to_string().into()),
            ("PAWL_NAMESPACE", settings.namespace.clone().into()),
            ("PAWL_RUN", settings.run.clone().into()),
            ("PAWL_RUN_UID", settings.run_uid.clone().into()),
            ("PAWL_ATTEMPT", settings.attempt.to_string().into()),
            ("PAWL_OPERATION", operation.into()),
            ("PAWL_WORKSPACE", spec.workspace.clone().into()),
            ("PAWL_SOURCE_DIR", settings.top_dir().into()),
        ];
        let out = out.map(|out| (hooks::VALUES, out.into()));
        env.extend(
            facts
                .into_iter()
                .chain(out)
                .chain(more.iter().cloned())
                .map(|(name, value)| (name.into(), value)),
        );
        env
    }

    /// Runs the hooks after the plan and kills the processes they leave, before the plan is measured.
    pub(super) async fn hooks_after_plan(
        &self,
        shell: &Shell,
        changes: bool,
        notices: &Notices,
    ) -> Result<(), Failure> {
        if !self.has_hook(HookWhen::AfterPlan) {
            return Ok(());
        }
        let more = vec![
            ("PAWL_PLAN_FILE", self.settings.plan_file().into()),
            ("PAWL_PLAN_CHANGES", changes.to_string().into()),
        ];
        self.run_hooks(HookWhen::AfterPlan, Some(shell), &more, notices)
            .await?;
        self.end_what_is_left(
            "what the hooks after the plan left running does not end; the plan is not kept",
        )
        .await
    }

    pub(super) fn has_hooks_before_apply(&self) -> bool {
        self.has_hook(self.around_apply(true))
    }

    /// Records the claim, then runs the hooks before the apply. With the record they run only once, even if the cluster is restored.
    pub(super) async fn run_hooks_before(
        &self,
        claim: &Claim,
        notices: &Notices,
    ) -> Result<(), Failure> {
        let planned = self.stage().planned()?;
        self.log.enter("apply").await;
        self.record_claim(claim).await?;
        let more = vec![
            ("PAWL_PLAN_FILE", self.settings.plan_file().into()),
            ("PAWL_PLAN_CHECKSUM", claim.checksum.clone().into()),
        ];
        self.run_hooks(
            self.around_apply(true),
            Some(&planned.shell),
            &more,
            notices,
        )
        .await
    }

    /// Verifies the disk after the hooks before the apply. Kills their remaining processes first, since they could still change it.
    pub(super) async fn verify_behind_hooks(&self) -> Result<Verified, Failure> {
        let planned = self.stage().planned()?;
        self.end_what_is_left(
            "what the hooks before the apply left does not end; nothing was applied",
        )
        .await?;
        planned.shell.put_uncounted()?;
        let (checksum, found) = self.checksum(&planned.shell, &planned.facts).await?;
        let differs = planned
            .parts
            .as_ref()
            .map(|parts| parts.changed(&found))
            .unwrap_or_default();
        Ok(Verified { checksum, differs })
    }

    pub(super) fn has_hooks_at_the_end(&self, applied: bool) -> bool {
        self.has_hook(HookWhen::Always) || applied && self.has_hook(self.around_apply(false))
    }

    /// Runs each hook, whatever the results of earlier ones.
    pub(super) async fn run_hooks_at_the_end(
        &self,
        applied: bool,
        result: Option<RunResult>,
        notices: &Notices,
    ) {
        let shell = self.stage().shell().cloned();
        let result = result.map_or("", RunResult::as_str);
        let plan = shell
            .is_some()
            .then(|| self.settings.plan_file())
            .filter(|file| file.is_file());
        let plan = plan.map(|file| ("PAWL_PLAN_FILE", file.into()));
        let more: More = plan
            .into_iter()
            .chain([("PAWL_RESULT", result.into())])
            .collect();
        let after = applied.then(|| self.around_apply(false));
        for when in after.into_iter().chain([HookWhen::Always]) {
            for hook in self.fixed_hooks().iter().filter(|hook| hook.when == when) {
                if let Err(failure) = self.run_hook(hook, shell.as_ref(), &more, notices).await {
                    self.pass_over(hook, failure, notices).await;
                }
            }
        }
    }
}

/// Reads a script; of one that is too large, one byte above the limit.
fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(file)?
        .take(MAX_SCRIPT as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}
