//! API types of Pawl and everything that agent and controller must agree on.
//!
//! The crate has no client and no async code, so everything here can be tested without a cluster.
//!
//! | module | contents |
//! |---|---|
//! | [`v1alpha1`] | `TerraformRun`, `TerraformRepository`, `TerraformLayer`: spec and status of each, phases and
//! results |
//! | [`crd`] | the generated CustomResourceDefinitions, with CEL rules and bounds |
//! | [`fields`] | the fields of a run's status: writer, caching, reconcile triggers, texts |
//! | [`references`] | what a repository's defaults take from a layer's namespace |
//! | [`names`] | annotations, labels, finalizers, names of pods and accounts |
//! | [`pod_env`] | environment, paths and exit codes of an attempt's pod |
//! | [`datastore`] | the protocol between agents, controller and datastore |
//! | [`outputs`] | outputs of a state and where they are published |
//! | [`approval`] | whether a plan is approved |
//! | [`apply_log`] | the effect of an apply on each object, compared with a state |
//! | [`backend`] | facts about each backend type |
//! | [`state_key`] | which runs share a state |
//! | [`termination`] | the termination message |
//! | [`text`] | single-line texts of bounded length |
//! | [`tools`] | the operator's tool settings |
//! | [`release`] | the minor release of controller, agents and policies |
//! | [`reason`] | the reasons of failures and conditions: name, class, text and next step |
//! | [`backoff`] | exponential backoff |
//! | [`clock`] | the API server's clock, estimated from its responses |
//! | [`conditions`] | the conditions of a run, with stable transition times |
//! | [`guide`] | generated pages of the guide |
//! | [`status_limit`] | the size bound of a status |
//! | [`digest`] | digests as text |
//! | [`duration`] | durations such as `1h30m` |

// Doc comments become descriptions in the CustomResourceDefinitions and pages of the guide.
#![warn(missing_docs)]

pub mod apply_log;
pub mod approval;
pub mod backend;
pub mod backoff;
pub mod changes;
pub mod clock;
pub mod conditions;
pub mod crd;
pub mod datastore;
pub mod digest;
pub mod duration;
pub mod fields;
pub mod guide;
pub mod names;
pub mod outputs;
pub mod pod_env;
pub mod reason;
pub mod references;
pub mod release;
pub mod state_id;
pub mod state_key;
pub mod status_limit;
pub mod termination;
pub mod text;
pub mod tools;
pub mod v1alpha1;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use reason::Reason;
pub use v1alpha1::*;

/// The resourceVersion as a number; 0 when unset. A later version of the same object has a greater number: etcd assigns
/// them so, and Kubernetes guarantees the order since 1.35 (KEP-5504).
pub fn version(of: &ObjectMeta) -> u64 {
    of.resource_version
        .as_deref()
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}
