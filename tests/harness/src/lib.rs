//! What suites, benches and the demo stand on: a Kubernetes cluster on one machine with the images on it, waits, and the guide's examples.

pub mod cluster;
pub mod guide;
pub mod wait;
