//! Init: `init`, the workspace, and the refusal of a state that would die with the pod.

use std::{io, path::Path};

use crds::{Failure, FailureClass, Operation, datastore::StateId, reason, state_key};

use super::{Events, PodWork};
use crate::{
    backend::Backend,
    classify::{self, internal, simple},
    files,
    ports::{InitReport, Notices},
    process::{Sink, Source},
};

/// The tool's own word for the workspace of one command.
const WORKSPACE: &str = "TF_WORKSPACE";

impl PodWork {
    pub(super) async fn run_init(&self, notices: &Notices) -> Result<InitReport, Failure> {
        let mut args = vec!["init", "-input=false", "-no-color"];
        // Terragrunt looks for what it tries again or ignores in the tool's words, and not in JSON.
        if self.tool()?.has_init_json() && !self.is_terragrunt() {
            args.push("-json");
        }
        self.tool_step("init", &args, notices).await?;
        let (stack, workspace) = {
            let known = self.known();
            (known.stack.clone(), known.facts.workspace.clone())
        };
        if self.known().idle {
            return Ok(InitReport { backend: "not asked for: Terragrunt ran nothing in this unit".to_owned(), workspace });
        }
        let unnamed = Backend::read(&stack).is_ok_and(|backend| !backend.is_named());
        if self.remote.is_some() && unnamed && !self.known().managed {
            // The word that was found in the code was no backend.
            self.name_managed_state(&stack).await?;
            args.push("-reconfigure");
            self.tool_step("init", &args, notices).await?;
        }
        if self.known().managed {
            // The backend has one workspace; the state is that of the run's all the same.
            self.know_backend(&stack, &workspace)?;
            let id = StateId::of(&self.settings.run, &self.run().spec);
            return Ok(InitReport { backend: format!("managed (stack {})", id.stack), workspace });
        }
        let is_new = workspace != selected(&stack) && !self.has_workspace(&workspace, notices).await?;
        let mut backend = self.know_backend(&stack, &workspace)?;
        if self.run().spec.operation != Operation::Plan
            && Backend::read(&stack).is_ok_and(|found| !found.locks(&self.known().env))
        {
            backend.push_str(" (no lock: others may change the state during the apply)");
        }
        if is_new {
            // The plan of an apply makes it, as the tool does where TF_WORKSPACE names one that is not there.
            return Ok(InitReport { backend, workspace: format!("{workspace} (new)") });
        }
        if workspace != selected(&stack) {
            // Its state may need other providers than that of the one which is selected.
            let text = format!("pawl: init once more, for the providers of the state of workspace {workspace}");
            self.log.line(&self.redactor.clean(&text)).await;
            self.tool_step("init", &args, notices).await?;
        }
        Ok(InitReport { backend, workspace })
    }

    /// Whether a workspace is there. Only an apply may be of one that is not.
    async fn has_workspace(&self, workspace: &str, notices: &Notices) -> Result<bool, Failure> {
        let mut list = Workspaces { events: self.events(notices).quiet(), names: Vec::new() };
        let exit = self.step("workspace", &self.command(["workspace", "list"])?, &mut list, notices).await?;
        if exit.code != 0 {
            return Err(self.for_want_of_state(classify::failure("workspace", exit, &list.events.said())));
        }
        let is_there = list.names.iter().any(|name| name == workspace);
        if is_there || self.run().spec.operation == Operation::Apply {
            return Ok(is_there);
        }
        let message =
            format!("there is no workspace `{workspace}`, and only an apply makes one; there are: {}", list.names.join(", "));
        Err(simple(FailureClass::Configuration, reason::INVALID_SPEC, self.redactor.clean(&message)))
    }

    /// Has the tool work in a workspace from now on. By its environment, as a person does for one command: a folder keeps the one that is selected
    /// in it, and whoever comes next does not work in this one unawares.
    pub(super) fn enter_workspace(&self, stack: &Path, workspace: &str) {
        let mut known = self.known();
        known.env.retain(|(name, _)| name != WORKSPACE);
        // A managed state has its workspace in its address.
        if !known.managed && workspace != selected(stack) {
            known.env.push((WORKSPACE.into(), workspace.into()));
        }
    }

    /// Reads which backend is in force, and enters the workspace; the type of the backend.
    pub(super) fn know_backend(&self, stack: &Path, workspace: &str) -> Result<String, Failure> {
        let backend = Backend::read(stack).map_err(|error| internal("the backend in force cannot be read", &error))?;
        // A folder stays, and so does a state in it.
        if self.settings.in_place().is_none() {
            backend.check().map_err(|mut failure| {
                if self.settings.machine().is_some() {
                    let why = "the code names no backend that keeps its state, and this copy of it is of this run only";
                    why.clone_into(&mut failure.message);
                }
                failure
            })?;
        }
        let (namespace, id) = (&self.settings.namespace, StateId::of(&self.settings.run, &self.run().spec));
        let mut known = self.known();
        // On a person's machine nobody gives leases; the state's own lock is what there is.
        known.state_key = self.settings.machine().is_none().then(|| {
            if known.managed {
                state_key::managed(namespace, &id)
            } else {
                state_key::foreign(&backend.kind, &backend.config, workspace, namespace, &id)
            }
        });
        workspace.clone_into(&mut known.facts.workspace);
        known.facts.backend.clone_from(&backend.kind);
        known.facts.backend_place = backend.place();
        drop(known);
        self.enter_workspace(stack, workspace);
        Ok(backend.kind)
    }

    /// Runs a command of the tool that has to end with 0.
    pub(super) async fn tool_step(&self, name: &'static str, args: &[&str], notices: &Notices) -> Result<(), Failure> {
        loop {
            let mut events = self.events(notices);
            let exit = self.step(name, &self.command(args)?, &mut events, notices).await?;
            let said = events.said();
            if exit.code == 0 {
                if name == "init" {
                    self.known().idle = self.is_terragrunt() && (self.ran_in().is_none() || self.ignored(&said));
                }
                return Ok(());
            }
            if exit.told || !self.takes_mocks(&said).await {
                return Err(self.for_want_of_state(classify::failure(name, exit, &said)));
            }
        }
    }
}

/// The workspace that is selected in a stack's directory. A person's folder keeps the last one; one of a pod has none but the first.
fn selected(stack: &Path) -> String {
    let text = files::regular(&stack.join(".terraform/environment")).and_then(io::read_to_string);
    Some(text.unwrap_or_default().trim().to_owned()).filter(|name| !name.is_empty()).unwrap_or_else(|| "default".to_owned())
}

/// What `workspace list` prints: a name a line, `*` before the one that is selected.
struct Workspaces {
    events: Events,
    names: Vec<String>,
}

impl Sink for Workspaces {
    fn line(&mut self, source: Source, line: &str, cut: u64) {
        let name = line.strip_prefix("* ").or_else(|| line.strip_prefix("  ")).unwrap_or_default().trim_end();
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
    fn names_of_workspaces_are_read_and_nothing_else() {
        let (notices, _unseen) = tokio::sync::mpsc::unbounded_channel();
        let events =
            Events::new(crate::process::Log::to(io::sink()), crate::report::redact::Redactor::default(), notices).quiet();
        let mut list = Workspaces { events, names: Vec::new() };
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
