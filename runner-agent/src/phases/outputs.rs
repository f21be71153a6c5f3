//! Outputs: publishes those of this stack after the apply, and reads those of other stacks as inputs. The datastore transfers both.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use bytes::Bytes;

use crds::{
    Failure, Operation, OutputRef, OutputsStatus, Reason, TerraformRun,
    datastore::NOT_FOUND,
    outputs::{Missing, Output, StateOutputs, shown},
    text::clip,
};
use serde_json::Value;

use super::{PhaseRunner, Planned, declarations, secret_files};
use crate::{
    datastore::{failure, retry_for},
    guard,
    report::redact::Redactor,
};

/// Time limit for retries when the outputs of other stacks are read.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit for retries when outputs are published after the apply.
const PUBLISHING: Duration = Duration::from_secs(30);
/// Time limit for the tool to print the state.
const PULLING: Duration = Duration::from_secs(120);

const PUBLISHES_NO: &str = "publishes no output";

/// Published outputs of other stacks, or why there is none.
pub(super) type TakenOutputs = BTreeMap<OutputRef, Result<Output, Missing>>;

/// The value of another stack's output, and its origin.
pub(super) fn value(
    taken: &TakenOutputs,
    of: &OutputRef,
    redactor: &Redactor,
    wanted: &str,
) -> Result<(Value, String), Failure> {
    let OutputRef {
        stack,
        workspace,
        name,
    } = of;
    let output = match taken.get(of).unwrap_or(&Err(Missing::Unpublished)) {
        Ok(output) => output,
        Err(why) => {
            let (has, then) = match why {
                Missing::Null => (
                    "has a null output",
                    "its code declares it, and the state has no value",
                ),
                Missing::Absent => ("has no output", "its code does not declare it"),
                Missing::Withheld => (
                    "does not publish its output",
                    "spec.outputs of that stack's runs does not name it",
                ),
                Missing::Unpublished => (
                    PUBLISHES_NO,
                    "a run of that stack publishes it with spec.outputs, when it applies",
                ),
                Missing::Unknown => (
                    PUBLISHES_NO,
                    "a run of that stack publishes it with spec.outputs, when it applies, unless its value is null: no state has an output that is null",
                ),
            };
            return Err(Reason::OutputNotFound.failure(format!(
                "stack {stack} (workspace {workspace}) of this namespace {has} {name}, which {wanted} wants; {then}"
            )));
        }
    };
    if output.sensitive {
        secret_files::json(&output.value, redactor);
    }
    Ok((
        output.value.clone(),
        format!("output {stack}/{workspace}/{name}"),
    ))
}

fn takes(run: &TerraformRun) -> bool {
    let (variables, env) = (run.spec.variables.iter(), run.spec.env.iter());
    let mut all = variables
        .map(|one| &one.value_from)
        .chain(env.map(|one| &one.value_from));
    all.any(|from| from.as_ref().is_some_and(|from| from.output_of.is_some()))
}

impl PhaseRunner {
    /// Reads the published outputs of other stacks that the run takes, and remembers them for `compare_outputs`.
    pub(super) async fn take_outputs(&self, run: &TerraformRun) -> Result<TakenOutputs, Failure> {
        let taken = self.outputs_now(run).await?;
        guard(&self.taken).clone_from(&taken);
        Ok(taken)
    }

    async fn outputs_now(&self, run: &TerraformRun) -> Result<TakenOutputs, Failure> {
        if !takes(run) {
            return Ok(TakenOutputs::new());
        }
        let Some(remote) = &self.remote else {
            return Err(Reason::InvalidSpec.failure(
                "valueFrom.outputOf needs a datastore, which has what other stacks publish",
            ));
        };
        // At most half of the phase's timeout, so that the run fails with this error and not with the phase's deadline.
        let patience = PATIENCE.min(run.spec.timeouts.plan.0 / 2);
        let found = retry_for(patience, || remote.client.outputs()).await;
        let found = found.map_err(|trouble| {
            failure("the outputs of other stacks could not be read", &trouble)
        })?;
        Ok(found
            .into_iter()
            .map(|taken| (taken.of, taken.output.ok_or(taken.missing)))
            .collect())
    }

    /// Refuses a plan whose inputs from other stacks have changed since.
    pub(super) async fn compare_outputs(&self, run: &TerraformRun) -> Result<(), Failure> {
        if run.spec.approval.allow_rotation {
            return Ok(());
        }
        let now = self.outputs_now(run).await?;
        let before = guard(&self.taken).clone();
        let values = |taken: &TakenOutputs, of: &OutputRef| {
            let output = taken.get(of).cloned();
            output.and_then(Result::ok).map(|output| output.value)
        };
        let changed = before
            .keys()
            .filter(|of| values(&before, of) != values(&now, of));
        let changed: Vec<_> = changed
            .map(|of| format!("{} of stack {}", of.name, of.stack))
            .collect();
        if changed.is_empty() {
            return Ok(());
        }
        let message = format!(
            "changed since the plan: output {}; plan again, or allow it by spec.approval.allowRotation",
            changed.join(", output ")
        );
        Err(Reason::InputsChanged.failure(message))
    }

    /// Publishes the outputs of the state if the run's spec requests it.
    pub(super) async fn publish_outputs(&self, claimed: bool) -> Option<OutputsStatus> {
        let planned = self.stage().planned().ok()?;
        planned.run.spec.outputs.as_ref()?;
        // There was nothing to destroy, and no one approved a removal of published outputs.
        if planned.run.spec.operation != Operation::Apply && !claimed {
            return None;
        }
        let mut status = match self.published(&planned, claimed).await {
            Ok(status) => status,
            Err(why) => OutputsStatus {
                reason: Reason::NotPublished.as_str().to_owned(),
                message: why,
                ..OutputsStatus::default()
            },
        };
        withhold(&mut status, &self.redactor);
        self.say(format!("outputs: {}: {}", status.reason, status.message))
            .await;
        Some(status)
    }

    async fn published(&self, planned: &Planned, claimed: bool) -> Result<OutputsStatus, String> {
        let Some(remote) = &self.remote else {
            return self.shown(planned, claimed).await;
        };
        let send = async |mut outputs: StateOutputs| {
            outputs.declared = declares(planned, self.ran_in());
            // Numbers and texts are always serialized.
            let body = Bytes::from(serde_json::to_vec(&outputs).unwrap_or_default());
            retry_for(PUBLISHING, || remote.client.publish(body.clone())).await
        };
        if planned.shell.managed {
            match send(StateOutputs::default()).await {
                // The tool may have encrypted the state.
                Err(trouble) if claimed && trouble.is(NOT_FOUND) => {}
                other => return other.map_err(|trouble| trouble.why()),
            }
        }
        if !claimed {
            return Err("nothing was applied, and the state is not with the datastore; the next apply publishes them".to_owned());
        }
        let sent = send(self.pulled(planned).await?).await;
        sent.map_err(|trouble| trouble.why())
    }

    /// Without a datastore the outputs can only go to the status.
    async fn shown(&self, planned: &Planned, claimed: bool) -> Result<OutputsStatus, String> {
        let wanted = planned.run.spec.outputs.clone().unwrap_or_default();
        if wanted.config_map.is_some() || wanted.secret.is_some() {
            return Err("there is no datastore, which would write the objects".to_owned());
        }
        if !claimed || planned.run.spec.operation == Operation::Destroy {
            return Err("nothing was applied".to_owned());
        }
        let (values, _) = shown(&self.pulled(planned).await?.outputs);
        let message = "in no object, as asked".to_owned();
        Ok(OutputsStatus {
            reason: Reason::Published.as_str().to_owned(),
            message,
            values,
        })
    }

    async fn pulled(&self, planned: &Planned) -> Result<StateOutputs, String> {
        let pulled =
            tokio::time::timeout(PULLING, self.pull_state(&planned.shell, StateOutputs::read))
                .await;
        pulled.unwrap_or_else(|_| {
            Err(format!(
                "the tool did not show the state within {} s",
                PULLING.as_secs()
            ))
        })
    }
}

/// The outputs that a whole plan has evaluated; `None` where that is not known.
fn declares(planned: &Planned, ran_in: Option<PathBuf>) -> Option<BTreeSet<String>> {
    let shell = &planned.shell;
    if shell.options.is_partial() {
        return None;
    }
    let root = match ran_in {
        _ if !shell.is_terragrunt() => shell.stack.clone(),
        ran_in => ran_in?,
    };
    declarations::outputs(shell.tool.found.plain().name, &root)
}

/// Takes outputs that hold a secret out of the status and names them: a masked part would make another value of them.
fn withhold(status: &mut OutputsStatus, redactor: &Redactor) {
    let values = std::mem::take(&mut status.values);
    let (held, shown): (BTreeMap<_, _>, BTreeMap<_, _>) = values
        .into_iter()
        .partition(|(_, value)| redactor.finds(value));
    status.values = shown;
    let mut message = redactor.clean(&status.message);
    if !held.is_empty() {
        let names: Vec<_> = held.into_keys().collect();
        message.push_str("; not shown, because they hold a secret: ");
        message.push_str(&names.join(", "));
    }
    status.message = clip(&message, 512);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phases::tests::{settings, work};
    use crds::reason;
    use serde_json::json;

    fn of(name: &str) -> OutputRef {
        OutputRef {
            stack: "net".into(),
            workspace: "default".into(),
            name: name.into(),
        }
    }

    #[test]
    fn value_retains_its_type_and_sensitive_one_is_masked() {
        let output = |value: Value, sensitive| Ok(Output { value, sensitive });
        let taken = TakenOutputs::from([
            (of("zones"), output(json!(["a", "b"]), false)),
            (
                of("db"),
                output(json!({"password": "hunter22", "port": 54321}), true),
            ),
            (of("gone"), Err(Missing::Unknown)),
            (of("null"), Err(Missing::Null)),
            (of("none"), Err(Missing::Absent)),
            (of("own"), Err(Missing::Withheld)),
        ]);
        let redactor = Redactor::default();
        let (zones, origin) = value(&taken, &of("zones"), &redactor, "variable zones").unwrap();
        assert_eq!(
            (zones, origin.as_str()),
            (json!(["a", "b"]), "output net/default/zones")
        );
        value(&taken, &of("db"), &redactor, "variable db").unwrap();
        assert_eq!(
            redactor.redact("hunter22 at 54321"),
            "(sensitive value) at (sensitive value)"
        );
        for (name, says) in [
            (
                "gone",
                "publishes no output gone, which variable x wants; a run of that stack publishes it with spec.outputs, when it \
                      applies, unless its value is null",
            ),
            (
                "never",
                "publishes no output never, which variable x wants; a run",
            ),
            ("null", "has a null output null, which"),
            ("none", "has no output none, which"),
            ("own", "does not publish its output own, which"),
        ] {
            let failure = value(&taken, &of(name), &redactor, "variable x").unwrap_err();
            assert_eq!(failure.reason, reason::OUTPUT_NOT_FOUND);
            let message = failure.message;
            assert!(message.contains(says), "{message}");
        }
    }

    #[test]
    fn output_that_holds_a_secret_is_named_and_others_are_not_rewritten() {
        let redactor = Redactor::default();
        redactor.add("prod");
        redactor.add("hunter22");
        let values = [
            ("name", "production-eu"),
            ("url", "https://a:hunter22@b"),
            ("stage", "prod"),
            ("long", "ends with hunt…"),
        ];
        let mut status = OutputsStatus {
            reason: Reason::Published.as_str().to_owned(),
            message: "in the ConfigMap a".to_owned(),
            values: values
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
        };
        withhold(&mut status, &redactor);
        assert_eq!(
            status.values,
            BTreeMap::from([("name".to_owned(), "production-eu".to_owned())])
        );
        let wanted = "in the ConfigMap a; not shown, because they hold a secret: long, stage, url";
        assert_eq!(status.message, wanted);
    }

    #[tokio::test]
    async fn changed_output_makes_the_plan_stale() {
        let dir = tempfile::tempdir().unwrap();
        let work = work(settings(dir.path()));
        // The output is gone now. A run that takes no outputs sends no request to the datastore.
        let mut run = TerraformRun::default();
        assert!(work.compare_outputs(&run).await.is_ok());
        guard(&work.taken).insert(
            of("id"),
            Ok(Output {
                value: "vpc-1".into(),
                sensitive: false,
            }),
        );
        let failure = work.compare_outputs(&run).await.unwrap_err();
        assert_eq!(failure.reason, reason::INPUTS_CHANGED);
        assert!(
            failure
                .message
                .starts_with("changed since the plan: output id of stack net;"),
            "{}",
            failure.message
        );
        run.spec.approval.allow_rotation = true;
        assert!(work.compare_outputs(&run).await.is_ok());
    }

    #[tokio::test]
    async fn outputs_require_a_datastore() {
        let dir = tempfile::tempdir().unwrap();
        let variable =
            json!({"name": "id", "valueFrom": {"outputOf": {"stack": "net", "name": "id"}}});
        let mut run = TerraformRun::default();
        run.spec.variables = vec![serde_json::from_value(variable).unwrap()];
        let failure = work(settings(dir.path()))
            .take_outputs(&run)
            .await
            .unwrap_err();
        assert_eq!(failure.reason, reason::INVALID_SPEC);
    }
}
