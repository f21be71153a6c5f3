//! Managed state: the datastore stores the state of a stack that names no backend. And the backend that a run names.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crds::{Failure, Reason, TerraformRun, TerraformRunSpec, datastore::StateId};
use tool_versions::Tool;

use super::{Initialised, PhaseRunner, Shell};
use crate::{
    backend::{
        mentions_backend,
        of_code::{self, Placed},
        workspace_reads,
    },
    classify::OrInternal as _,
    datastore::{self, RequestError, state},
    files::{self, BACKEND_FILE},
    guard,
    tool::sources::known,
};

const UNWRITTEN: &str = "the run's backend cannot be written";

/// The tool that reads the code.
fn tool(shell: &Shell) -> Tool {
    known(shell.tool.found.plain().name).unwrap_or(Tool::OpenTofu)
}

impl Shell {
    /// Brings the run's own backend into force. Under Terragrunt the stand-in for the tool does, where the tool runs.
    pub(super) fn place_backend(&self) -> Result<Placed, Failure> {
        match &self.backend {
            Some(given) if !self.is_terragrunt() => {
                of_code::place(tool(self), &self.stack, given).or_internal(UNWRITTEN)
            }
            _ => Ok(Placed::default()),
        }
    }
}

impl PhaseRunner {
    /// Whether the datastore stores the stack's state, as far as its files show before `init`.
    pub(super) fn wants_managed_state(&self, run: &TerraformRun, stack: &Path) -> bool {
        self.remote.is_some() && run.spec.backend.is_none() && !mentions_backend(stack)
    }

    pub(super) async fn name_managed_state(
        &self,
        run: &TerraformRun,
        stack: &Path,
    ) -> Result<(), Failure> {
        // The second has the states of other workspaces.
        for name in ["terraform.tfstate", "terraform.tfstate.d"] {
            if stack.join(name).exists() {
                let message = format!(
                    "the source holds a {name} and names no backend, so it would be left behind; name a backend, or move that state and \
                     remove {name}"
                );
                return Err(Reason::NoDurableState.failure(message));
            }
        }
        let id = StateId::of(&self.settings.run, &run.spec);
        let backend = state::backend(&self.settings.namespace, &id).to_string();
        files::write(&stack.join(BACKEND_FILE), backend).or_internal(UNWRITTEN)?;
        self.offer_state().await
    }

    /// Writes the run's own backend, if there is one, where code cannot write. Returns its path, for `init`.
    pub(super) fn keep_backend(&self, spec: &TerraformRunSpec) -> Result<Option<PathBuf>, Failure> {
        let Some(backend) = spec
            .backend
            .as_ref()
            .filter(|_| self.settings.folder.is_none())
        else {
            return Ok(None);
        };
        let path = of_code::given(&self.settings.kept, &backend.kind);
        let text = serde_json::to_string(&backend.config).or_internal(UNWRITTEN)?;
        let dir = path.parent().unwrap_or(&self.settings.kept);
        fs::create_dir_all(dir)
            .and_then(|()| files::write(&path, text))
            .or_internal(UNWRITTEN)?;
        Ok(Some(path))
    }

    /// Refuses code that reads the workspace's name where it would read another one.
    pub(super) fn reads_no_workspace(&self, made: &Initialised) -> Result<(), Failure> {
        let workspace = &made.facts.workspace;
        if workspace == "default" {
            return Ok(());
        }
        let (shell, ran_in) = (&made.shell, self.ran_in());
        let root = ran_in.as_ref().unwrap_or(&shell.stack);
        let found = workspace_reads::find(tool(shell), root, &shell.stack.join(".terraform"))
            .or_internal("the code cannot be read")?;
        let Some((path, line)) = found else {
            return Ok(());
        };
        let top = self.settings.top_dir();
        let path = path
            .strip_prefix(top.canonicalize().unwrap_or(top))
            .unwrap_or(&path);
        Err(Reason::InvalidSpec.failure(format!(
            "{}:{line} reads terraform.workspace, which is `default` with every managed state, and the run's workspace is `{workspace}`; take \
             the name from a variable, or name a backend that has workspaces",
            path.display()
        )))
    }

    pub(super) async fn offer_state(&self) -> Result<(), Failure> {
        let Some(remote) = &self.remote else {
            return Ok(());
        };
        let dir = self.settings.kept.join("state");
        let server = state::serve(
            remote.client.clone(),
            &dir,
            self.children.clone(),
            self.log.clone(),
        )
        .await
        .or_internal("the way to the managed state cannot be opened")?;
        *guard(&remote.state) = Some(server);
        Ok(())
    }

    /// Replaces the tool's failure by the datastore's reason, if the datastore refused the state. The tool reports only the HTTP status.
    pub(super) fn for_want_of_state(&self, shell: &Shell, failure: Failure) -> Failure {
        let Some(remote) = self.remote.as_ref().filter(|_| shell.managed) else {
            return failure;
        };
        let refusal = guard(&remote.state)
            .as_ref()
            .and_then(state::StateServer::refusal);
        refusal.map_or(failure, |problem| {
            datastore::failure("the managed state", &RequestError::Refused(problem))
        })
    }
}
