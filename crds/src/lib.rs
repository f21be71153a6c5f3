//! API types of Pawl and everything that agent and controller must agree on.
//!
//! No client and no async live here: what this crate holds can be read, compared and tested without a cluster.
//!
//! | module | holds |
//! |---|---|
//! | [`v1alpha1`] | `TerraformRun`: spec, status, phases and results |
//! | [`crd`] | the generated CustomResourceDefinition: CEL rules and bounds included |
//! | [`names`] | annotations, labels, finalizers, names of pods and accounts |
//! | [`contract`] | environment, paths and exit codes of an attempt's pod |
//! | [`datastore`] | the words between agents, controller and datastore |
//! | [`journal`] | what an apply did to each object, compared with a state |
//! | [`backend`] | what is known of each type of backend |
//! | [`state_key`] | which runs have the same state |
//! | [`termination`] | the termination message |
//! | [`tools`] | what an operator says about tools |
//! | [`reason`] | the reasons of failures and conditions |
//! | [`backoff`] | how long to wait before trying again |
//! | [`clock`] | the API server's clock, told by its answers |
//! | [`next_step`] | what a person does after a failure, reason by reason |
//! | [`conditions`] | the conditions of a run, set without losing their transition times |
//! | [`fit`] | keeps a status below its size |
//! | [`duration`] | durations as people write them |

pub mod backend;
pub mod backoff;
pub mod clock;
pub mod conditions;
pub mod contract;
pub mod crd;
pub mod datastore;
pub mod duration;
pub mod fit;
pub mod journal;
pub mod names;
pub mod next_step;
pub mod reason;
pub mod state_key;
pub mod termination;
pub mod tools;
pub mod v1alpha1;

pub use v1alpha1::*;
