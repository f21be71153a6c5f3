//! Shared by suites, benches and the demo: a Kubernetes cluster on one machine with Pawl's images, waits, and the guide's examples.

pub mod cluster;
pub mod guide;
pub mod reach;
pub mod wait;
