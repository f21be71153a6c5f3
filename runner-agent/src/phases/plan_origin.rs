//! The origin of a plan: the configuration before the plan, and the state. The copies of both in the plan file have to agree with it,
//! since an apply uses the copies only.

use std::{io, path::Path};

use crds::{Failure, FailureClass, Reason, ToolName};

use super::{
    Initialised, MAX_PLAN, PhaseRunner, PlanFacts, Shell,
    plan_file::{Given, Kept, Origin, Refused, Sources, State, Unread},
};
use crate::{
    classify::{self, OrInternal as _},
    files,
};

/// What a plan was given.
fn given(made: &Initialised) -> Given {
    let Initialised { shell, facts, .. } = made;
    let mut by_env = shell.env.iter().filter_map(|(name, _)| name.to_str());
    Given {
        // A managed state has one workspace.
        workspace: if shell.managed {
            "default".to_owned()
        } else {
            facts.workspace.clone()
        },
        variables: shell.own_values(),
        may_be_partial: shell.options.is_partial()
            || by_env.any(|name| name.starts_with("TF_CLI_ARGS")),
        by_terragrunt: shell.is_terragrunt(),
    }
}

impl PhaseRunner {
    /// Reads the configuration of the stack in `root`.
    pub(super) async fn read_sources(
        &self,
        shell: &Shell,
        root: &Path,
    ) -> Result<Sources, Failure> {
        const FAILED: &str = "the configuration cannot be read";
        let (root, stack) = (root.to_owned(), shell.stack.clone());
        let is_tofu = shell.tool.found.plain().name == ToolName::OpenTofu;
        let read = tokio::task::spawn_blocking(move || Sources::of(&root, &stack, is_tofu));
        read.await.or_internal(FAILED)?.or_internal(FAILED)
    }

    /// Reads the state through the tool, without any other code of the stack, and the configuration if it was not read before the plan.
    pub(super) async fn read_origin(
        &self,
        made: &Initialised,
        sources: Option<Sources>,
        ran_in: Option<&Path>,
    ) -> Result<Origin, Failure> {
        let shell = &made.shell;
        let sources = match sources {
            Some(sources) => sources,
            None => {
                self.read_sources(shell, ran_in.unwrap_or(&shell.stack))
                    .await?
            }
        };
        Ok(Origin {
            operation: made.run.spec.operation,
            sources,
            given: given(made),
            state: self.read_origin_state(shell, ran_in).await?,
        })
    }

    /// Reads the state through the tool, without any other code of the stack.
    pub(super) async fn read_origin_state(
        &self,
        shell: &Shell,
        ran_in: Option<&Path>,
    ) -> Result<State, Failure> {
        let mut state = Err(String::new());
        for command in self.showing(shell, ran_in, &["state", "pull"])? {
            state = self.pull_by(&command, shell, State::pulled).await;
            if state.is_ok() || self.children.is_stopped() {
                break;
            }
        }
        state.map_err(|why| {
            let (class, reason) =
                classify::text(&why).unwrap_or((FailureClass::Internal, Reason::PlanUnreadable));
            let text = format!("the plan cannot be compared with the state: {why}");
            Failure {
                class,
                ..reason.failure(text)
            }
        })
    }

    /// Compares a plan file with what it was made from. Returns its facts, or why it cannot be read.
    pub(super) async fn compare(
        &self,
        kept: Kept,
        origin: Origin,
    ) -> Result<Result<PlanFacts, Unread>, Failure> {
        const FAILED: &str = "the plan cannot be read";
        let path = self.settings.plan_file();
        let compared = tokio::task::spawn_blocking(move || {
            io::Result::Ok(kept.compare(&files::left(&path, MAX_PLAN)?, origin))
        });
        match compared.await.or_internal(FAILED)?.or_internal(FAILED)? {
            Ok(facts) => Ok(Ok(facts)),
            Err(Refused::Unread(why)) => Ok(Err(why)),
            Err(Refused::Contradicted(what)) => Err(Reason::PlanContradicted.failure(format!(
                "the plan file has {what}; code wrote to it, and nothing was applied"
            ))),
            Err(Refused::Stale) => Err(Reason::StalePlan.failure(
                "the state changed since the plan was made; nothing was applied, plan again",
            )),
        }
    }
}
