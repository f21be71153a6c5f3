//! Init: `init`, the workspace, and the refusal of a state that would die with the pod.

use std::{io, path::Path};

use crds::{Failure, FailureClass, datastore::StateId, reason, state_key};
use serde::Deserialize;
use serde_json::Value;

use super::PodWork;
use crate::{
    classify::{self, internal, simple},
    files,
    manifest::place,
    ports::{InitReport, Notices},
};

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
        let unnamed = Backend::read(&stack).is_ok_and(|backend| !backend.named);
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
        // A folder keeps the workspace that was selected in it last.
        let selected = files::regular(&stack.join(".terraform/environment")).and_then(io::read_to_string);
        let selected = selected.unwrap_or_else(|_| "default".to_owned());
        if workspace != selected.trim() {
            // The flag is younger than some tools; and some backends refuse to make what is there.
            let select = self.tool_step("workspace", &["workspace", "select", "-or-create=true", &workspace], notices).await;
            if let Err(failure) = select {
                if self.children.is_stopped() || failure.class != FailureClass::Configuration {
                    return Err(failure);
                }
                self.tool_step("workspace", &["workspace", "new", &workspace], notices).await?;
            }
        }
        let backend = self.know_backend(&stack, &workspace)?;
        Ok(InitReport { backend, workspace })
    }

    /// Reads which backend is in force; its type.
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
        known.facts.backend_place = place(&backend.config);
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

/// The backend in force, as `init` left it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Backend {
    pub(super) kind: String,
    pub(super) config: Value,
    /// Whether the code or the run names one at all.
    named: bool,
}

impl Backend {
    /// Reads what `init` wrote. Without a backend the tool writes nothing and keeps its state in the stack's directory.
    pub(super) fn read(stack: &Path) -> io::Result<Self> {
        #[derive(Deserialize)]
        struct File {
            backend: Option<Block>,
        }
        #[derive(Deserialize)]
        struct Block {
            #[serde(rename = "type")]
            kind: String,
            #[serde(default)]
            config: Value,
        }
        let text = match files::regular(&stack.join(".terraform/terraform.tfstate")).and_then(io::read_to_string) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => "{}".to_owned(),
            Err(error) => return Err(error),
        };
        Ok(match serde_json::from_str::<File>(&text)?.backend {
            Some(block) => Self { kind: block.kind, config: block.config, named: true },
            None => Self { kind: "local".into(), config: Value::Null, named: false },
        })
    }

    /// Refuses a state that would be lost with the pod. Nothing has been planned or changed then.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let refuse = |what: String| {
            let message =
                format!("{what}, so the state would be lost with the pod; name a backend in the code or in spec.backend");
            Err(simple(FailureClass::Configuration, reason::NO_DURABLE_STATE, message))
        };
        match self.kind.as_str() {
            "inmem" => refuse("the backend is `inmem`".to_owned()),
            "local" if !self.named => refuse("the configuration has no backend".to_owned()),
            // A pod of ours has no volume that outlives it, so it makes no difference which path is named.
            "local" => refuse("the backend `local` keeps the state on the pod's own storage".to_owned()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn backend(json: &str) -> Backend {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(".terraform")).unwrap();
        fs::write(dir.path().join(".terraform/terraform.tfstate"), json).unwrap();
        Backend::read(dir.path()).unwrap()
    }

    #[test]
    fn only_a_state_that_outlives_the_pod_is_accepted() {
        let of = |json: &str| backend(json).check().map_err(|f| f.reason);
        let lost = Err(reason::NO_DURABLE_STATE.to_owned());
        assert_eq!(of(r#"{"version":3}"#), lost);
        assert_eq!(of(r#"{"backend":{"type":"local","config":{"path":null}}}"#), lost);
        assert_eq!(of(r#"{"backend":{"type":"local","config":{"path":"/tmp/state"}}}"#), lost);
        assert_eq!(of(r#"{"backend":{"type":"inmem","config":{}}}"#), lost);
        assert_eq!(of(r#"{"backend":{"type":"http","config":{"address":"http://s"}}}"#), Ok(()));
        let missing = tempfile::tempdir().unwrap();
        let failure = Backend::read(missing.path()).unwrap().check().unwrap_err();
        assert_eq!(
            failure.message,
            "the configuration has no backend, so the state would be lost with the pod; name a backend in the code or in spec.backend"
        );
    }
}
