//! Real Kubernetes on one machine without a registry: an API server alone ([`ControlPlane`]), or a whole node that runs pods ([`Cluster`]).
//!
//! Programs come from a cache outside the checkout and are built from Go modules when missing. Each cluster has its own state directory,
//! network namespace and cgroup, so that several can run in parallel.

pub mod access;
pub mod chart;
pub mod control_plane;
pub mod datastore;
mod etcd;
pub mod images;
pub mod leftovers;
pub mod network;
pub mod node;
pub mod objects;
pub mod pki;
pub mod processes;
pub mod publish;
pub mod rights;
pub mod victims;
mod whole;

pub use access::Access;
pub use control_plane::{Audit, ControlPlane};
pub use xtask::{cache, command, gobuild, packages, prepare, report};

pub use whole::{Cluster, NAMESPACE, Status};
