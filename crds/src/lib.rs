//! API types of Pawl and everything that agent and controller must agree on.
//!
//! No client and no async live here: what this crate holds can be read, compared and tested without a cluster.
//!
//! | module | holds |
//! |---|---|
//! | [`v1alpha1`] | `TerraformRun`, `TerraformRepository`, `TerraformLayer`: spec and status of each, phases and results |
//! | [`crd`] | the generated CustomResourceDefinition: CEL rules and bounds included |
//! | [`fields`] | the fields of the status: who writes each, what is cached, what wakes, which texts they hold |
//! | [`names`] | annotations, labels, finalizers, names of pods and accounts |
//! | [`pod_env`] | environment, paths and exit codes of an attempt's pod |
//! | [`datastore`] | the words between agents, controller and datastore |
//! | [`outputs`] | outputs of a state, and what of them goes where |
//! | [`approval`] | whether a plan is approved |
//! | [`apply_log`] | what an apply did to each object, compared with a state |
//! | [`backend`] | what is known of each type of backend |
//! | [`state_key`] | which runs have the same state |
//! | [`termination`] | the termination message |
//! | [`text`] | texts on one line, of a bounded length |
//! | [`tools`] | what an operator says about tools |
//! | [`release`] | the minor release that controller, agents and policies are of |
//! | [`reason`] | the reasons of failures and conditions: word, class, text and next step of each |
//! | [`backoff`] | how long to wait before trying again |
//! | [`clock`] | the API server's clock, told by its answers |
//! | [`conditions`] | the conditions of a run, set without losing their transition times |
//! | [`guide`] | pages of the guide that are made from the types |
//! | [`status_limit`] | keeps a status below its size |
//! | [`digest`] | digests as text |
//! | [`duration`] | durations as people write them |

// These comments become the descriptions of the CustomResourceDefinitions and pages of the guide.
#![warn(missing_docs)]

pub mod apply_log;
pub mod approval;
pub mod backend;
pub mod backoff;
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
pub mod release;
pub mod state_key;
pub mod status_limit;
pub mod termination;
pub mod text;
pub mod tools;
pub mod v1alpha1;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use reason::Reason;
pub use v1alpha1::*;

/// The number in an object's resourceVersion, 0 where there is none. Of two versions of one object the later has the greater one, as etcd
/// gives them (Kubernetes says so since 1.35: KEP-5504).
pub fn version(of: &ObjectMeta) -> u64 {
    of.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}
