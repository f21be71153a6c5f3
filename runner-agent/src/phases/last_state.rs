//! The state of the stack's last apply, which the datastore knows. A plan of another state, of an empty one or of an older version would
//! create again what is there: it waits for a person, and its apply makes that state the one of the stack.

use std::{path::Path, time::Duration};

use crds::{
    Failure, Operation, Reason,
    datastore::{LastState, MANAGED},
};

use super::{Initialised, PhaseRunner, Planned, plan_file::State, uploads::PATIENCE};
use crate::datastore::{failure, retry_for};

/// Time limit for retries of the record after an apply.
const END_PATIENCE: Duration = Duration::from_secs(15);

impl Initialised {
    /// The state that a plan was made from.
    pub(super) fn state(&self, read: &State) -> LastState {
        let backend = if self.shell.managed {
            MANAGED
        } else {
            &self.facts.backend
        };
        let (lineage, serial) = read.identity();
        LastState {
            backend: backend.to_owned(),
            key: self.state_key.clone().unwrap_or_default(),
            lineage,
            serial,
        }
    }
}

impl PhaseRunner {
    /// Why the state of a plan is not that of the last apply.
    pub(super) async fn other_state(&self, now: &LastState) -> Result<Option<String>, Failure> {
        Ok(self.last_state().await?.and_then(|last| last.is_not(now)))
    }

    async fn last_state(&self) -> Result<Option<LastState>, Failure> {
        let Some(remote) = &self.remote else {
            return Ok(None);
        };
        retry_for(PATIENCE, || remote.client.last_state())
            .await
            .map_err(|trouble| failure("the record of the last apply cannot be read", &trouble))
    }

    /// Refuses a destroy that finds nothing in another state than that of the last apply.
    pub(super) async fn destroys_its_own(
        &self,
        made: &Initialised,
        ran_in: Option<&Path>,
    ) -> Result<(), Failure> {
        let known = match made.run.spec.operation {
            Operation::Destroy => self.last_state().await?,
            _ => None,
        };
        let Some(last) = known.filter(|last| last.lineage.is_some()) else {
            return Ok(());
        };
        let now = made.state(&self.read_origin_state(&made.shell, ran_in).await?);
        match last.is_not(&now) {
            Some(why) => {
                Err(Reason::AnotherState.failure(format!("there is nothing to destroy, but {why}")))
            }
            None => Ok(()),
        }
    }

    /// Records the state of an ended apply, if it is not with the datastore.
    pub(super) async fn record_state(&self, planned: &Planned) {
        let Some(remote) = self.remote.as_ref().filter(|_| !planned.shell.managed) else {
            return;
        };
        let Some(state) = self.state_after(planned).await else {
            return;
        };
        let told = retry_for(END_PATIENCE, || remote.client.applied_elsewhere(&state)).await;
        if let Err(trouble) = told {
            self.say(format!(
                "the state of this apply is not recorded, so the next plan may wait for a person: {}",
                trouble.why()
            ))
            .await;
        }
    }

    async fn state_after(&self, planned: &Planned) -> Option<LastState> {
        let mut state = LastState {
            backend: planned.facts.backend.clone(),
            key: planned.state_key.clone().unwrap_or_default(),
            lineage: None,
            serial: None,
        };
        let destroys = planned.run.spec.operation == Operation::Destroy;
        match self.pull_state(&planned.shell, State::pulled).await {
            // Nothing may be left.
            Ok(read) if destroys && read.is_empty() => return Some(state),
            Ok(read) => (state.lineage, state.serial) = read.identity(),
            Err(why) => {
                self.say(format!("the state was not read after the apply: {why}"))
                    .await;
                let known = planned.state.as_ref().filter(|_| !destroys)?;
                (state.lineage, state.serial) = (known.lineage.clone(), known.serial);
            }
        }
        state.lineage.is_some().then_some(state)
    }
}
