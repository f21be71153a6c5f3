//! Compact rows of layers, runs and repositories, in memory.

pub mod layer;
pub mod repository;
pub mod run;

pub use layer::{LayerRow, LayerRowState};
pub use repository::{RepositoryRow, RepositoryRowState};
pub use run::{Done, RunRow, Wait};
