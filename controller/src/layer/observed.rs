//! The observed state of a layer: plain values.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;

use crate::cluster::freeze::Frozen;
use crds::{TerraformLayer, TerraformLayerStatus, TerraformRepository, names};

use super::run_summary::RunSummary;

/// All inputs of a decision on a layer but the clock.
#[derive(Clone, Debug)]
pub struct Observed {
    pub layer: Arc<TerraformLayer>,
    /// `None` if it does not exist or is not watched.
    pub repository: Option<Arc<TerraformRepository>>,
    /// Oldest first.
    pub runs: Vec<RunSummary>,
    /// Namespace and name of an older layer with the same state.
    pub owner: Option<(String, String)>,
    pub namespace: Namespace,
    /// Start of this process; what was due earlier was missed.
    pub started: Timestamp,
    /// The API server's refusal of the layer's last run.
    pub refused: Option<Refused>,
    /// The run that was read for its changes, and the lines of these.
    pub changes: Option<(String, Vec<String>)>,
}

/// State of the layer's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Namespace {
    /// Nothing prevents new runs.
    #[default]
    Stays,
    /// Nothing begins in it.
    Frozen(Frozen),
    /// It is being deleted, with everything in it.
    Goes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub run: String,
    pub text: String,
    pub retry_at: Timestamp,
}

impl Observed {
    /// The status; the default if there is none yet.
    pub fn status(&self) -> TerraformLayerStatus {
        self.layer.status.clone().unwrap_or_default()
    }

    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.layer.annotations().get(name).map(String::as_str)
    }

    pub fn is_suspended(&self) -> bool {
        self.layer.spec.suspend || self.annotation(names::SUSPEND) == Some("true")
    }

    pub fn is_deleted(&self) -> bool {
        self.layer.metadata.deletion_timestamp.is_some()
    }

    /// Whether the finalizer is set.
    pub fn is_held(&self) -> bool {
        self.layer
            .finalizers()
            .iter()
            .any(|finalizer| finalizer == names::LAYER_FINALIZER)
    }

    /// The value of `pawl.run/plan`, if that request is not handled yet.
    pub fn asked(&self) -> Option<&str> {
        let last = self
            .layer
            .status
            .as_ref()
            .and_then(|status| status.last_handled_plan.as_deref());
        self.annotation(names::PLAN)
            .filter(|asked| !asked.is_empty() && last != Some(*asked))
    }

    /// A run that the status remembers, for people. Once it is deleted anybody may give its name to another run.
    pub fn named(&self, name: &str, uid: Option<&str>) -> String {
        let gone = !self.runs.iter().any(|run| run.is_same(name, uid));
        format!("run {name}{}", if gone { " (deleted)" } else { "" })
    }

    /// Name of the newest run; empty if there is none. The next run's name is derived from it, so a repeated reconcile computes the same
    /// name, and a commit that returns gets a new one.
    pub fn newest(&self) -> &str {
        self.runs.last().map_or("", |run| &run.name)
    }
}
