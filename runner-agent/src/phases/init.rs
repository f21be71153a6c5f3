//! The Init phase: `init`, the workspace, and the refusal of a state that would be lost with the pod.

use std::{fmt::Write as _, io, path::Path};

use crds::{Failure, Operation, Reason, datastore::StateId, state_key};

use super::{Events, Initialised, PhaseRunner, Shell, phase_results::Prepared};
use crate::{
    backend::Backend,
    classify::{self, OrInternal as _, Said},
    files,
    ports::{InitReport, Notices},
    process::{Sink, Source},
};

/// The tools' variable that selects a workspace for one command.
const WORKSPACE: &str = "TF_WORKSPACE";

impl Shell {
    /// Makes the tool use a workspace from now on, by an environment variable. A selection would stay in a person's folder, and later
    /// commands there would use this workspace by accident.
    pub(super) fn enter_workspace(&mut self, workspace: &str) {
        self.env.retain(|(name, _)| name != WORKSPACE);
        // The address of a managed state contains the workspace.
        if !self.managed && workspace != selected(&self.stack) {
            self.env.push((WORKSPACE.into(), workspace.into()));
        }
    }
}

impl PhaseRunner {
    pub(super) async fn run_init(
        &self,
        prepared: &Prepared,
        shell: Shell,
        notices: &Notices,
    ) -> Result<(InitReport, Initialised), Failure> {
        let mut made = Initialised::of(prepared, shell);
        let (run, stack, workspace) = (
            &prepared.run,
            &prepared.shell.stack,
            prepared.facts.workspace.clone(),
        );
        let options = made.shell.options.clone();
        let mut args = vec!["init", "-input=false", "-no-color"];
        args.extend(options.init.iter().map(String::as_str));
        // Terragrunt matches the tool's plain output, not JSON, against its patterns for retries and ignored errors.
        if made.shell.tool.found.has_init_json() && !made.shell.is_terragrunt() {
            args.push("-json");
        }
        if self.wants_managed_state(run, stack) {
            self.name_managed_state(run, stack).await?;
            made.shell.managed = true;
        }
        let placed = made.shell.place_backend()?;
        let more = placed.arg.as_ref().map(|arg| arg.to_string_lossy());
        args.extend(more.as_deref());
        self.init_step(&mut made, &args, notices).await?;
        if made.idle {
            let backend = "not asked for: Terragrunt ran nothing in this unit".to_owned();
            return Ok((InitReport::of(backend, workspace), made));
        }
        let unnamed = Backend::read(stack).is_ok_and(|backend| !backend.is_named());
        if self.remote.is_some() && unnamed && !made.shell.managed {
            // The text match in the code was not a backend after all.
            self.name_managed_state(run, stack).await?;
            made.shell.managed = true;
            args.push("-reconfigure");
            self.init_step(&mut made, &args, notices).await?;
        }
        if made.shell.managed {
            // The `http` backend has one workspace only; the state's address contains the run's workspace.
            self.know_backend(&mut made)?;
            self.reads_no_workspace(&made)?;
            let id = StateId::of(&self.settings.run, &run.spec);
            return Ok((
                InitReport::of(format!("managed (stack {})", id.stack), workspace),
                made,
            ));
        }
        let placed = placed.note.or_else(|| self.placed_by_stand_in());
        let is_new = workspace != selected(stack) && !self.has_workspace(&made, notices).await?;
        let mut backend = self.know_backend(&mut made)?;
        if let Some(note) = placed {
            let _ = write!(backend, " ({note})");
        }
        if run.spec.operation.applies()
            && Backend::read(stack).is_ok_and(|found| !found.locks(&made.shell.env))
        {
            backend.push_str(" (no lock: others may change the state during the apply)");
        }
        if is_new {
            // The plan of an apply creates a missing workspace, because TF_WORKSPACE names it.
            return Ok((InitReport::of(backend, format!("{workspace} (new)")), made));
        }
        if workspace != selected(stack) {
            // Its state may need other providers than that of the selected workspace.
            self.say(format!(
                "init once more, for the providers of the state of workspace {workspace}"
            ))
            .await;
            self.init_step(&mut made, &args, notices).await?;
        }
        Ok((InitReport::of(backend, workspace), made))
    }

    async fn init_step(
        &self,
        made: &mut Initialised,
        args: &[&str],
        notices: &Notices,
    ) -> Result<(), Failure> {
        let said = self.run_tool_init(&mut made.shell, args, notices).await?;
        made.idle =
            made.shell.is_terragrunt() && (self.ran_in().is_none() || made.shell.ignored(&said));
        Ok(())
    }

    /// Whether a workspace exists. Only an apply may use a missing one.
    async fn has_workspace(&self, made: &Initialised, notices: &Notices) -> Result<bool, Failure> {
        let (shell, workspace) = (&made.shell, &made.facts.workspace);
        let mut list = Workspaces {
            events: self.events(&shell.stack, notices).quiet(),
            names: Vec::new(),
        };
        let exit = self
            .step(
                "workspace",
                &self.command(shell, ["workspace", "list"])?,
                &mut list,
                notices,
            )
            .await?;
        if exit.code != 0 {
            return Err(self.for_want_of_state(
                shell,
                classify::failure("workspace", exit, &list.events.said()),
            ));
        }
        let is_there = list.names.iter().any(|name| name == workspace);
        if is_there || made.run.spec.operation == Operation::Apply {
            return Ok(is_there);
        }
        let message = format!(
            "there is no workspace `{workspace}`, and only an apply makes one; there are: {}",
            list.names.join(", ")
        );
        Err(Reason::InvalidSpec.failure(self.redactor.clean(&message)))
    }

    /// Reads the configured backend and enters the workspace. Returns the backend's type.
    pub(super) fn know_backend(&self, made: &mut Initialised) -> Result<String, Failure> {
        let Initialised {
            run,
            shell,
            facts,
            state_key,
            ..
        } = made;
        let backend =
            Backend::read(&shell.stack).or_internal("the backend in force cannot be read")?;
        self.host.is_state_kept(backend.check())?;
        let (namespace, id) = (
            &self.settings.namespace,
            StateId::of(&self.settings.run, &run.spec),
        );
        // Without leases only the state's own lock protects it.
        *state_key = self.host.has_leases().then(|| {
            if shell.managed {
                state_key::managed(namespace, &id)
            } else {
                state_key::foreign(
                    &backend.kind,
                    &backend.config,
                    &facts.workspace,
                    namespace,
                    &id,
                )
            }
        });
        facts.backend.clone_from(&backend.kind);
        facts.backend_place = backend.place();
        shell.enter_workspace(&facts.workspace);
        Ok(backend.kind)
    }

    /// Runs a command of the tool, once the state is not locked. Any exit code other than 0 is a failure.
    pub(super) async fn tool_step(
        &self,
        shell: &Shell,
        name: &'static str,
        args: &[&str],
        notices: &Notices,
    ) -> Result<Said, Failure> {
        loop {
            match self.tool_once(shell, name, args, notices).await {
                Err(failure) => self.wait_for_lock(shell, name, failure, notices).await?,
                Ok(said) => return Ok(said),
            }
        }
    }

    /// The same, and a locked state is a failure.
    pub(super) async fn tool_once(
        &self,
        shell: &Shell,
        name: &'static str,
        args: &[&str],
        notices: &Notices,
    ) -> Result<Said, Failure> {
        loop {
            let mut events = self.events(&shell.stack, notices);
            let exit = self
                .step(name, &self.command(shell, args)?, &mut events, notices)
                .await?;
            let said = events.said();
            if exit.code == 0 {
                return Ok(said);
            }
            if exit.told || !self.takes_mocks(shell, &said).await {
                return Err(self.for_want_of_state(shell, classify::failure(name, exit, &said)));
            }
        }
    }
}

/// The workspace selected in a stack's directory. A person's folder retains the last one; in a pod it is always the first.
fn selected(stack: &Path) -> String {
    let text = files::regular(&stack.join(".terraform/environment")).and_then(io::read_to_string);
    Some(text.unwrap_or_default().trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "default".to_owned())
}

/// Parses `workspace list`: one name per line, with `*` before the selected one.
struct Workspaces {
    events: Events,
    names: Vec<String>,
}

impl Sink for Workspaces {
    fn line(&mut self, source: Source, line: &str, cut: u64) {
        let name = line
            .strip_prefix("* ")
            .or_else(|| line.strip_prefix("  "))
            .unwrap_or_default()
            .trim_end();
        if source == Source::Out && !name.is_empty() && !name.contains(char::is_whitespace) {
            self.names.push(name.to_owned());
        }
        self.events.line(source, line, cut);
    }

    async fn chunk(&mut self) {
        self.events.chunk().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_workspace_names_are_parsed() {
        let (notices, _unseen) = tokio::sync::mpsc::unbounded_channel();
        let events = Events::new(
            crate::process::Log::to(io::sink()),
            crate::report::redact::Redactor::default(),
            notices,
        )
        .quiet();
        let mut list = Workspaces {
            events,
            names: Vec::new(),
        };
        let printed = [
            "  default",
            "* staging",
            "  eu-west%2F1 ",
            "",
            "The active workspace is being overridden using the TF_WORKSPACE",
            "  two words",
        ];
        for line in printed {
            list.line(Source::Out, line, 0);
        }
        list.line(Source::Err, "  warning", 0);
        assert_eq!(list.names, ["default", "staging", "eu-west%2F1"]);
    }
}
