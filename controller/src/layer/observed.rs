//! What is observed of a layer: plain values.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;

use crate::cluster::freeze::Frozen;
use crds::{TerraformLayer, TerraformLayerStatus, TerraformRepository, names};

use super::run_summary::RunSummary;

/// Everything a decision on a layer is made of, the clock apart.
#[derive(Clone, Debug)]
pub struct Observed {
    pub layer: Arc<TerraformLayer>,
    /// Its repository; `None` when there is none of that name, or none that is watched.
    pub repository: Option<Arc<TerraformRepository>>,
    /// Its runs, older ones first.
    pub runs: Vec<RunSummary>,
    /// An older layer of the same state: its namespace and name.
    pub owner: Option<(String, String)>,
    pub namespace: Namespace,
    /// When this process began to work: what was due before was missed.
    pub started: Timestamp,
    /// What the API server said when it refused the layer's last run.
    pub refused: Option<Refused>,
    /// What a run was read for: its name, and the lines of its plan's changes.
    pub changes: Option<(String, Vec<String>)>,
}

/// What becomes of the layer's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Namespace {
    /// Nothing that is known.
    #[default]
    Stays,
    /// Nothing begins in it.
    Frozen(Frozen),
    /// It is deleted, and with it all that is in it.
    Goes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub run: String,
    /// Why.
    pub text: String,
    pub retry_at: Timestamp,
}

impl Observed {
    /// The status, empty when there is none yet.
    pub fn status(&self) -> TerraformLayerStatus {
        self.layer.status.clone().unwrap_or_default()
    }

    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.layer.annotations().get(name).map(String::as_str)
    }

    /// Whether it makes no runs.
    pub fn is_suspended(&self) -> bool {
        self.layer.spec.suspend || self.annotation(names::SUSPEND) == Some("true")
    }

    pub fn is_deleted(&self) -> bool {
        self.layer.metadata.deletion_timestamp.is_some()
    }

    /// Whether it is held until what it made is destroyed.
    pub fn is_held(&self) -> bool {
        self.layer.finalizers().iter().any(|finalizer| finalizer == names::LAYER_FINALIZER)
    }

    /// What a person asks for who annotates `pawl.run/plan`, when that was not answered yet.
    pub fn asked(&self) -> Option<&str> {
        let last = self.layer.status.as_ref().and_then(|status| status.last_handled_plan.as_deref());
        self.annotation(names::PLAN).filter(|asked| !asked.is_empty() && last != Some(*asked))
    }

    /// Name of the newest run; empty when there is none. What is made next is named after it, so that the same look makes the same
    /// run, and a commit that comes back a fresh one.
    pub fn newest(&self) -> &str {
        self.runs.last().map_or("", |run| &run.name)
    }
}
