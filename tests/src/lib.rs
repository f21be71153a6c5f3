//! Structure of the tree: modules use each other in one direction (`rooms`), and the invariants name their tests (`invariants`).
#[cfg(test)]
mod invariants;
#[cfg(test)]
mod rooms;
