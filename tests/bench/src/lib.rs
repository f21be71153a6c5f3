//! Measures Pawl's cost against an alternative, in one run on one cluster: ratios, with their spread.
//!
//! The alternative is a bare pod: same image, same commands, run by `sh -e`. Both are measured from outside, as a user waits for them, and
//! from inside, from the start of the container to its end by containerd's events. Repetitions of both are interleaved, so that a busy
//! machine affects both.

mod approval;
mod audit;
pub mod console;
mod containers;
mod former;
mod lab;
mod pairs;
mod programs;
mod push;
mod requests;
pub mod scale;
mod standby;
mod stored;
mod table;
mod usage;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum as _;
use futures::FutureExt as _;
use tokio::signal::unix::{SignalKind, signal};

use harness::cluster::{Cluster, report};

use self::lab::Lab;
use self::table::Table;

const CLUSTER: &str = "bench";

/// Drops the future on a signal, which ends all started processes.
///
/// # Errors
/// Those of the future; or the signal.
pub async fn interruptible(run: impl Future<Output = Result<()>>) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        done = run => done,
        _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted; all processes are ended"),
        _ = terminate.recv() => anyhow::bail!("asked to stop; all processes are ended"),
    }
}

/// A figure, or a group of figures, in the order of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Figure {
    // First, before a cluster keeps the machine busy.
    /// Local mode against the bare tool; needs no cluster.
    Local,
    /// A cached tool, and a downloaded one, against curl, sha256sum and unzip; needs no cluster.
    Tools,
    /// A bare pod against an Automatic run, from outside and from inside.
    Pairs,
    /// Approval to the start of `apply` in a held pod.
    Approval,
    /// API requests of a run, and of idle runs.
    Requests,
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
    /// Twenty in parallel.
    Many,
    // Last: they change Pawl's installation.
    /// A push with a webhook to the waiting plan, against a manual run of the same stack.
    Push,
    /// End of the leading controller to the next leader.
    Standby,
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
    /// The wanted figures: those without a cluster, which always measure this checkout's programs, and the others.
    fn figures(&self) -> (Vec<Figure>, Vec<Figure>) {
        let is_wanted = |figure: &Figure| self.only.is_empty() || self.only.contains(figure);
        let wanted = Figure::value_variants().iter().copied().filter(is_wanted);
        let (mut here, others): (Vec<_>, Vec<_>) =
            wanted.partition(|figure| matches!(figure, Figure::Local | Figure::Tools));
        here.retain(|_| self.commit.is_none());
        (here, others)
    }

    /// Number of repetitions.
    fn times(&self, many: usize) -> usize {
        if self.quick { many.div_ceil(4) } else { many }
    }
}

/// Measures, prints the table, and ends the cluster.
pub async fn run(options: &Options) -> Result<()> {
    let (machine, mut table) = (machine(), Table::new("bench", "figure"));
    table.head("value (min / median / max)");
    let (here, on_cluster) = options.figures();
    for figure in here {
        if figure == Figure::Local {
            tokio::task::block_in_place(|| programs::local(options.times(20), &mut table))?;
        } else {
            Box::pin(programs::tools(options.times(20), &mut table)).await?;
        }
        table.close();
    }
    if !on_cluster.is_empty() {
        let measured = Box::pin(measure(options, on_cluster, &mut table)).await;
        if options.keep {
            report::note(
                "bench",
                "the cluster stays up; end it with `cargo run --release --bin cluster -- --name bench down`",
            );
        } else {
            Cluster::down_by_name(CLUSTER)?;
        }
        measured?;
    }
    publish(&machine, &table, options.save.as_deref())
}

/// Prints a table, and copies it to a file.
fn publish(machine: &str, table: &Table, save: Option<&Path>) -> Result<()> {
    let text = format!("{machine}\n{}", table.text());
    println!("\n{text}");
    save.map_or(Ok(()), |file| {
        std::fs::write(file, &text).with_context(|| format!("cannot write {}", file.display()))
    })
}

async fn measure(options: &Options, figures: Vec<Figure>, table: &mut Table) -> Result<()> {
    let lab = &Box::pin(Lab::up(options.commit.as_deref())).await?;
    let times = |many| options.times(many);
    for figure in figures {
        let measured = match figure {
            Figure::Local | Figure::Tools => continue,
            Figure::Pairs => pairs::measure(lab, times(10), table).boxed_local(),
            Figure::Approval => approval::held(lab, times(20), table).boxed_local(),
            Figure::Requests => requests::measure(lab, times(4), table).boxed_local(),
            Figure::Memory => stored::at_rest(lab, table).boxed_local(),
            Figure::Late => approval::late(lab, times(8), table).boxed_local(),
            Figure::Journal => stored::journal(lab, times(12), table).boxed_local(),
            Figure::Bundles => stored::bundles(lab, times(4), table).boxed_local(),
            Figure::Flood => stored::flood(lab, options.quick, table).boxed_local(),
            Figure::Many => pairs::many(lab, times(4), table).boxed_local(),
            Figure::Push => push::measure(lab, times(12), table).boxed_local(),
            Figure::Standby => standby::measure(lab, times(4), table).boxed_local(),
        };
        measured.await?;
        table.close();
    }
    Ok(())
}

/// The machine of the figures, and its load.
fn machine() -> String {
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
