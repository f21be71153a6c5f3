//! Managed state: a stack that says nothing of where its state is kept has it with the datastore.

use std::{fs, path::Path, sync::PoisonError};

use crds::{Failure, Reason, TerraformRun, datastore::StateId};

use super::{PodWork, Shell, inputs};
use crate::{
    classify::internal,
    datastore::{self, RequestError, state},
    manifest::BACKEND_FILE,
};

impl PodWork {
    /// Whether the stack's state is the datastore's, as far as its files say before `init`.
    pub(super) fn wants_managed_state(&self, run: &TerraformRun, stack: &Path) -> bool {
        self.remote.is_some() && run.spec.backend.is_none() && !mentions_backend(stack)
    }

    /// Names the managed state as the stack's backend.
    pub(super) async fn name_managed_state(&self, run: &TerraformRun, stack: &Path) -> Result<(), Failure> {
        if stack.join("terraform.tfstate").exists() {
            let message = "the source holds a terraform.tfstate and names no backend, so it would be left behind; name a backend, or \
                           move that state and remove the file";
            return Err(Reason::NoDurableState.failure(message));
        }
        let id = StateId::of(&self.settings.run, &run.spec);
        inputs::put(&stack.join(BACKEND_FILE), &state::backend(&self.settings.namespace, &id))?;
        self.offer_state().await
    }

    /// Offers the managed state to the tool.
    pub(super) async fn offer_state(&self) -> Result<(), Failure> {
        let Some(remote) = &self.remote else { return Ok(()) };
        let dir = self.settings.kept.join("state");
        let server = state::serve(remote.client.clone(), &dir, self.children.clone(), self.log.clone())
            .await
            .map_err(|error| internal("the way to the managed state cannot be opened", &error))?;
        *remote.state.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
        Ok(())
    }

    /// A failure of the tool, or why the datastore did not give out the state that it asked for: the tool passes on a number.
    pub(super) fn for_want_of_state(&self, shell: &Shell, failure: Failure) -> Failure {
        let Some(remote) = self.remote.as_ref().filter(|_| shell.managed) else { return failure };
        let refusal = remote.state.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(state::StateServer::refusal);
        refusal.map_or(failure, |problem| datastore::failure("the managed state", &RequestError::Refused(problem)))
    }
}

/// Whether any file of the stack has a word of a backend. It may stand in a comment: then `init` says that there is none, and a
/// second one follows. The other way round it would replace a backend that the code has.
fn mentions_backend(stack: &Path) -> bool {
    let code = [".tf", ".tofu", ".tf.json", ".tofu.json"];
    fs::read_dir(stack).into_iter().flatten().flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // It may write code with a backend (`remote_state`, `generate`), from files that lie anywhere.
        if name == "terragrunt.hcl" || name == "terragrunt.hcl.json" {
            return true;
        }
        if !code.iter().any(|end| name.ends_with(end)) {
            return false;
        }
        // What cannot be read here, `init` will speak of.
        let text = fs::read(entry.path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.contains("backend") || text.contains("cloud")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_never_overlooked() {
        let dir = tempfile::tempdir().unwrap();
        let with = |name: &str, text: &str| {
            fs::write(dir.path().join(name), text).unwrap();
            let found = mentions_backend(dir.path());
            fs::remove_file(dir.path().join(name)).unwrap();
            found
        };
        assert!(!with("main.tf", "resource \"terraform_data\" \"a\" {}"));
        assert!(!with("README.md", "backend"));
        for (name, text) in [
            ("main.tf", "terraform {\n  backend \"s3\" {}\n}"),
            ("b.tofu", "terraform { backend\n\"s3\" {} }"),
            ("c.tf.json", r#"{"terraform":{"backend":{"s3":{}}}}"#),
            ("d.tofu.json", r#"{"terraform":[{"cloud":{}}]}"#),
            ("e.tf", "# backend"),
            ("terragrunt.hcl", ""),
        ] {
            assert!(with(name, text), "{name}");
        }
    }
}
