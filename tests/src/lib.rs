//! Tests of the source tree: modules depend on each other in one direction (`rooms`), and the invariants cite existing tests
//! (`invariants`).
#[cfg(test)]
mod invariants;
#[cfg(test)]
mod rooms;
