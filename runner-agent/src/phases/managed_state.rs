//! Managed state: the datastore stores the state of a stack that names no backend.

use std::path::Path;

use crds::{Failure, Reason, TerraformRun, datastore::StateId};

use super::{PhaseRunner, Shell, inputs};
use crate::{
    backend::mentions_backend,
    classify::OrInternal as _,
    datastore::{self, RequestError, state},
    files::BACKEND_FILE,
    guard,
};

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
        if stack.join("terraform.tfstate").exists() {
            let message = "the source holds a terraform.tfstate and names no backend, so it would be left behind; name a backend, or \
                           move that state and remove the file";
            return Err(Reason::NoDurableState.failure(message));
        }
        let id = StateId::of(&self.settings.run, &run.spec);
        inputs::put(
            &stack.join(BACKEND_FILE),
            &state::backend(&self.settings.namespace, &id),
        )?;
        self.offer_state().await
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
