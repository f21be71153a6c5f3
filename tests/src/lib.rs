//! Tests of the source tree: modules depend on each other in one direction (`rooms`), the invariants cite existing tests
//! (`invariants`), and the guide lists every metric (`metrics`).
#[cfg(test)]
mod invariants;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod rooms;
