//! The states of runs: some runs have their own, others compete for a few, in the datastore or elsewhere. At the end a further run must
//! succeed on each of the few.

use std::time::Duration;

use anyhow::Result;
use crds::{RunResult, TerraformRun};
use kube::{ResourceExt as _, api::PostParams};
use rand::{Rng as _, rngs::StdRng};
use serde_json::{Value, json};

use super::lab::{Lab, merge, runner};
use harness::wait;

/// Number of contended states of each kind.
const MANAGED: usize = 4;
const ELSEWHERE: usize = 2;
/// Time limit of the last run on a state, after the last strike. It covers the wait for a node whose pod is gone.
const PATIENCE: Duration = Duration::from_secs(300);

/// Location of a run's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the state server, under the run's own name.
    Own,
    /// In the state server, contended.
    Elsewhere(usize),
    /// In the datastore, contended: the run has no backend.
    Managed(usize),
}

impl Place {
    pub(super) fn draw(random: &mut StdRng) -> Self {
        match random.random_range(0..100) {
            0..4 => Self::Managed(random.random_range(0..MANAGED)),
            4..6 => Self::Elsewhere(random.random_range(0..ELSEWHERE)),
            _ => Self::Own,
        }
    }

    fn shared() -> impl Iterator<Item = Self> {
        (0..MANAGED)
            .map(Self::Managed)
            .chain((0..ELSEWHERE).map(Self::Elsewhere))
    }

    /// Its name below the namespace; `run` is the run's name.
    fn name(self, run: &str) -> String {
        match self {
            Self::Own => run.to_owned(),
            Self::Elsewhere(n) => format!("shared{n}"),
            Self::Managed(n) => format!("managed{n}"),
        }
    }

    /// The fields of the spec for it.
    pub(super) fn spec(self, lab: &Lab, run: &str) -> Value {
        let name = self.name(run);
        match self {
            Self::Managed(_) => json!({"stack": name}),
            Self::Own | Self::Elsewhere(_) => {
                let config = lab
                    .state
                    .backend_config(&format!("{}/{name}", lab.namespace));
                json!({"backend": {"type": "http", "config": config}})
            }
        }
    }

    /// The objects that the run makes. In a contended state they replace those of other runs.
    pub(super) fn resources(self, run: &str, count: usize) -> Value {
        match self {
            Self::Own => json!(count),
            Self::Elsewhere(_) | Self::Managed(_) => (0..count.min(4))
                .map(|n| format!("terraform_data.r[\"{run}-{n}\"]"))
                .collect(),
        }
    }

    /// Removes, like a person, the lock of a deleted run on a state outside the datastore. Pawl leaves it alone, because it can no longer
    /// prove the run's end.
    async fn unlock_what_nobody_proves(self, lab: &Lab) -> Result<()> {
        let Self::Elsewhere(_) = self else {
            return Ok(());
        };
        let Some(who) = self.lock(lab).await? else {
            return Ok(());
        };
        let runs = lab.all(&lab.runs()).await?;
        if !runs
            .iter()
            .any(|run| who.starts_with(&format!("pawl@{}-", run.name_any())))
        {
            lab.state
                .force_unlock(&format!("{}/{}", lab.namespace, self.name("")));
        }
        Ok(())
    }

    /// The holder of a contended state's lock.
    async fn lock(self, lab: &Lab) -> Result<Option<String>> {
        let name = self.name("");
        if let Self::Managed(_) = self {
            let state: Value = serde_json::from_str(&lab.read(&format!("states/{name}")).await?)?;
            return Ok((!state["lock"].is_null()).then(|| state["lock"].to_string()));
        }
        Ok(lab
            .state
            .lock(&format!("{}/{name}", lab.namespace))
            .map(|lock| lock.who))
    }
}

/// The contents of all states at the end, and of those of `more` stacks in the datastore.
pub(super) async fn known(lab: &Lab, more: &[String]) -> Result<String> {
    let mut known = lab.state.all(&format!("{}/", lab.namespace));
    let own = Place::shared()
        .filter(|place| matches!(place, Place::Managed(_)))
        .map(|place| place.name(""));
    for stack in own.chain(more.iter().cloned()) {
        // A state without an apply has no version.
        known.push(
            lab.read(&format!("states/{stack}/download"))
                .await
                .unwrap_or_default(),
        );
    }
    Ok(known.concat())
}

/// Creates one more run on each contended state. Returns the failures by state.
pub(super) async fn close(lab: &Lab) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for (n, place) in Place::shared().enumerate() {
        place.unlock_what_nobody_proves(lab).await?;
        let run = last(lab, place, n)?;
        lab.runs().create(&PostParams::default(), &run).await?;
        if let Some(text) = ends(lab, &run.name_any()).await? {
            found.push((place.name(""), text));
        }
        if let Some(holder) = place.lock(lab).await? {
            found.push((place.name(""), format!("its lock is left: {holder}")));
        }
    }
    Ok(found)
}

fn last(lab: &Lab, place: Place, n: usize) -> Result<TerraformRun> {
    let name = format!("last-{n}");
    let script = json!({"resources": place.resources(&name, 1)});
    let mut spec = json!({"approval": {"mode": "Automatic"}, "runner": runner(false)});
    merge(&mut spec, &place.spec(lab, &name));
    lab.scripted(&name, "", &script, &spec)
}

/// The status of a run that did not apply.
async fn ends(lab: &Lab, name: &str) -> Result<Option<String>> {
    let ended = async || {
        Ok(lab
            .runs()
            .get(name)
            .await?
            .status
            .is_some_and(|status| status.is_terminal())
            .then_some(()))
    };
    let waited = wait::until(format!("{name} ends"), PATIENCE, ended).await;
    let status = lab.runs().get(name).await?.status.unwrap_or_default();
    let well = waited.is_ok() && status.result == Some(RunResult::Applied);
    Ok((!well).then(|| {
        format!(
            "the next run says {:?} {:?} {:?}",
            status.phase, status.result, status.message
        )
    }))
}
