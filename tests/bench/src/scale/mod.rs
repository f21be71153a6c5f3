//! What Pawl costs as layers grow in number, shown with the real API server and etcd, the real controller, sources and datastore, and
//! played nodes and agents ([`agents`]): nothing but Pawl's own part of the work is left.
//!
//! Nothing here is a test: figures are of the machine that they are taken on, and goals stand beside them.

mod agents;
mod fleet;
mod growth;
mod lab;
mod metrics;
mod process;
mod steps;
mod window;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use self::agents::Agents;
use self::fleet::Fleet;
use self::growth::Growth;
use self::lab::Lab;

use harness::cluster::report;

/// Layers of a repository, where nobody says how many repositories there are.
const OF_A_REPOSITORY: usize = 20;

#[derive(Clone, Debug)]
pub struct Options {
    /// Numbers of layers, each larger than the one before.
    pub layers: Vec<usize>,
    /// Repositories at the last of them; 0 means one for 20 layers.
    pub repositories: usize,
    /// Where to write the table as well.
    pub save: Option<PathBuf>,
}

impl Options {
    /// Repositories at a number of layers.
    fn repositories(&self, layers: usize) -> usize {
        let last = self.layers.last().copied().unwrap_or(1).max(1);
        let most = if self.repositories == 0 { last / OF_A_REPOSITORY } else { self.repositories };
        (most * layers / last).clamp(1, layers.max(1))
    }
}

/// Measures at each number of layers, and prints the table.
///
/// # Errors
/// When something does not come up, or comes to no rest. What was measured before is printed.
pub async fn run(options: &Options) -> Result<()> {
    ensure!(
        !options.layers.is_empty() && options.layers.is_sorted() && options.layers[0] > 0,
        "--layers grow, and begin above 0"
    );
    let mut growth = Growth::default();
    let measured = Box::pin(measure(options, &mut growth)).await;
    let text = format!("{}\n{}", crate::machine(), growth.text());
    println!("\n{text}");
    if let Some(file) = &options.save {
        std::fs::write(file, &text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    measured
}

async fn measure(options: &Options, growth: &mut Growth) -> Result<()> {
    let mut lab = Box::pin(Lab::up()).await?;
    let agents = Agents::start(lab.admin.clone());
    let mut fleet = Fleet::default();
    for &layers in &options.layers {
        let step = report::step("scale", format!("{layers} layers"));
        let figures = Box::pin(steps::measure(&mut lab, &agents, &mut fleet, options.repositories(layers), layers)).await?;
        growth.add(&layers.to_string(), &figures);
        step.done();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_grow_with_layers() {
        let of = |repositories| Options { layers: vec![100, 1_000, 10_000], repositories, save: None };
        assert_eq!([100, 1_000, 10_000].map(|layers| of(0).repositories(layers)), [5, 50, 500]);
        assert_eq!([100, 1_000, 10_000].map(|layers| of(200).repositories(layers)), [2, 20, 200]);
        assert_eq!(of(10).repositories(100), 1, "never none");
    }
}
