//! Measures Pawl's cost against an alternative, in one run on one cluster: ratios, with their spread.
//!
//! The alternative is a bare pod: same image, same commands, run by `sh -e`. Both are measured from outside, as a user waits for them, and
//! from inside, from the start of the container to its end by containerd's events. Repetitions of both are interleaved, so that a busy
//! machine affects both.

mod approval;
pub(crate) mod audit;
mod bundles;
mod containers;
mod flood;
mod former;
mod journal;
mod lab;
mod late;
mod local;
mod many;
mod memory;
mod pairs;
mod push;
mod requests;
mod samples;
pub mod scale;
mod stacks;
mod standby;
mod table;
mod tools;

use std::path::PathBuf;

use anyhow::{Context, Result};

use harness::cluster::{Cluster, report};

use self::lab::Lab;
use self::table::Table;

const CLUSTER: &str = "bench";

/// A figure, or a group of figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Figure {
    /// A bare pod against an Automatic run, from outside and from inside.
    Pairs,
    /// Approval to the start of `apply` in a held pod.
    Approval,
    /// API requests of a run, and of idle runs.
    Requests,
    /// Twenty in parallel.
    Many,
    /// Memory of agent and controller.
    Memory,
    /// Approval after the hold to the start of `apply`, against a bare pod's start.
    Late,
    /// Creation of an object to its line in the journal.
    Journal,
    /// Objects of 1 MiB, 100 MiB and 1 GiB, and the datastore's memory.
    Bundles,
    /// A plan of 50,000 resources and a log of 2 GiB: memory, and reading back.
    Flood,
    /// A push with a webhook to the waiting plan, against a manual run of the same stack.
    Push,
    /// End of the leading controller to the next leader.
    Standby,
    /// Local mode against the bare tool; needs no cluster.
    Local,
    /// A cached tool, and a downloaded one, against curl, sha256sum and unzip; needs no cluster.
    Tools,
}

/// The figures to measure, and the number of repetitions.
#[derive(Clone, Debug)]
pub struct Options {
    /// Fewer repetitions.
    pub quick: bool,
    /// Only these figures; all if empty.
    pub only: Vec<Figure>,
    /// File for a copy of the table.
    pub save: Option<PathBuf>,
    /// The commit whose chart and programs are measured instead of this checkout's.
    pub commit: Option<String>,
    /// Leave the cluster up.
    pub keep: bool,
}

impl Options {
    fn wants(&self, figure: Figure) -> bool {
        // Figures without a cluster always measure this checkout's programs.
        let is_local = matches!(figure, Figure::Local | Figure::Tools);
        (self.only.is_empty() || self.only.contains(&figure)) && !(is_local && self.commit.is_some())
    }

    fn wants_no_cluster(&self) -> bool {
        !self.only.is_empty() && self.only.iter().all(|figure| matches!(figure, Figure::Local | Figure::Tools))
    }

    /// Number of repetitions.
    fn times(&self, many: usize) -> usize {
        if self.quick { many.div_ceil(4) } else { many }
    }
}

/// Measures, prints the table, and ends the cluster.
pub async fn run(options: &Options) -> Result<()> {
    let result = Box::pin(measure(options)).await;
    if options.wants_no_cluster() {
        // There is no cluster.
    } else if options.keep {
        report::note("bench", "the cluster stays up; end it with `cargo run --release --bin cluster -- --name bench down`");
    } else {
        Cluster::down_by_name(CLUSTER)?;
    }
    let table = result?.text();
    println!("\n{table}");
    if let Some(file) = &options.save {
        std::fs::write(file, &table).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

async fn measure(options: &Options) -> Result<Table> {
    let mut table = Table::default();
    table.note(&machine());
    // First, before a cluster keeps the machine busy.
    if options.wants(Figure::Local) {
        tokio::task::block_in_place(|| local::measure(options.times(20), &mut table))?;
    }
    if options.wants(Figure::Tools) {
        tools::measure(options.times(20), &mut table).await?;
    }
    if options.wants_no_cluster() {
        return Ok(table);
    }
    let lab = Lab::up(options.commit.as_deref()).await?;
    if options.wants(Figure::Pairs) {
        Box::pin(pairs::measure(&lab, options.times(10), &mut table)).await?;
    }
    if options.wants(Figure::Approval) {
        approval::measure(&lab, options.times(20), &mut table).await?;
    }
    if options.wants(Figure::Requests) {
        requests::measure(&lab, options.times(4), &mut table).await?;
    }
    if options.wants(Figure::Memory) {
        memory::measure(&lab, &mut table).await?;
    }
    if options.wants(Figure::Late) {
        Box::pin(late::measure(&lab, options.times(8), &mut table)).await?;
    }
    if options.wants(Figure::Journal) {
        Box::pin(journal::measure(&lab, options.times(12), &mut table)).await?;
    }
    if options.wants(Figure::Bundles) {
        bundles::need("curl")?;
        bundles::measure(&lab, options.times(4), &mut table).await?;
    }
    if options.wants(Figure::Flood) {
        flood::measure(&lab, options.quick, &mut table).await?;
    }
    if options.wants(Figure::Many) {
        many::measure(&lab, options.times(4), &mut table).await?;
    }
    // Last: they change Pawl's installation.
    if options.wants(Figure::Push) {
        Box::pin(push::measure(&lab, options.times(12), &mut table)).await?;
    }
    if options.wants(Figure::Standby) {
        Box::pin(standby::measure(&lab, options.times(4), &mut table)).await?;
    }
    Ok(table)
}

/// The machine of the figures, and its load.
pub(crate) fn machine() -> String {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Vec<_> = load.split(' ').take(2).collect();
    format!(
        "{} processors, load before {}; {}",
        processors,
        load.join(" "),
        jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC")
    )
}
