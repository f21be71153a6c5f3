//! Measures Pawl's cost by the number of layers, with the real API server and etcd, the real controller, sources and datastore, and
//! simulated nodes and agents ([`agents`]): only Pawl's own work is left.
//!
//! This is no test: the figures depend on the machine, so the program prints goals beside them.

mod agents;
mod fleet;
mod lab;
pub(crate) mod process;
mod steps;
mod window;

use std::path::PathBuf;

use anyhow::{Result, ensure};

pub(crate) use self::{
    fleet::{IN_FORCE, all_of},
    lab::{apply, install, kubeconfig, token},
};

use self::agents::Agents;
use self::fleet::Fleet;
use self::lab::Lab;
use self::steps::Steps;
use crate::table::Table;

use harness::cluster::report;

/// Default number of layers per repository.
const OF_A_REPOSITORY: usize = 20;

#[derive(Clone, Debug)]
pub struct Options {
    /// Numbers of layers, ascending.
    pub layers: Vec<usize>,
    /// Repositories at the last number; 0 means one per 20 layers.
    pub repositories: usize,
    /// File for a copy of the table.
    pub save: Option<PathBuf>,
}

impl Options {
    /// Number of repositories at a number of layers.
    fn repositories(&self, layers: usize) -> usize {
        let last = self.layers.last().copied().unwrap_or(1).max(1);
        let most = if self.repositories == 0 {
            last / OF_A_REPOSITORY
        } else {
            self.repositories
        };
        (most * layers / last).clamp(1, layers.max(1))
    }
}

/// Measures at each number of layers, and prints the table.
///
/// # Errors
/// When something does not start, or does not come to rest. Earlier results are printed.
pub async fn run(options: &Options) -> Result<()> {
    ensure!(
        !options.layers.is_empty() && options.layers.is_sorted() && options.layers[0] > 0,
        "--layers grow, and begin above 0"
    );
    let (machine, mut table) = (crate::machine(), Table::new("scale", "layers"));
    let measured = Box::pin(measure(options, &mut table)).await;
    crate::publish(&machine, &table, options.save.as_deref())?;
    measured
}

async fn measure(options: &Options, table: &mut Table) -> Result<()> {
    let lab = Box::pin(Lab::up()).await?;
    let (agents, fleet) = (Agents::start(lab.admin.clone()), Fleet::default());
    let mut steps = Steps {
        agents,
        fleet,
        lab,
        table,
    };
    for &layers in &options.layers {
        let step = report::step("scale", format!("{layers} layers"));
        Box::pin(steps.measure(options.repositories(layers), layers)).await?;
        step.done();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_grow_with_layers() {
        let of = |repositories| Options {
            layers: vec![100, 1_000, 10_000],
            repositories,
            save: None,
        };
        assert_eq!(
            [100, 1_000, 10_000].map(|layers| of(0).repositories(layers)),
            [5, 50, 500]
        );
        assert_eq!(
            [100, 1_000, 10_000].map(|layers| of(200).repositories(layers)),
            [2, 20, 200]
        );
        assert_eq!(of(10).repositories(100), 1, "never none");
    }
}
