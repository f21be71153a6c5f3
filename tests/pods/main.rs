//! Whole runs in real pods: real API server, kubelet, images and chart. Needs root on Linux; brings up a cluster of its own.

mod again;
mod approval;
mod caches;
mod cancel;
mod deletion;
mod describe;
mod failures;
mod guard;
mod hangs;
mod identity;
mod kills;
mod leases;
mod locks;
mod managed;
mod operations;
mod outages;
mod output;
mod peers;
mod pruning;
mod reading;
mod recovery;
mod releases;
mod standby;
mod stored;
mod suite;
mod tools;

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use libtest_mimic::{Arguments, Trial};
use suite::Suite;

fn main() -> Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // Most of a test is waiting for a kubelet.
    arguments.test_threads.get_or_insert(6);
    if let Some(reason) = suite::left_out() {
        println!("left out: everything that needs a cluster ({reason})\n0 passed, 0 failed");
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let suite = Arc::new(runtime.block_on(Suite::up())?);
    let run = |tests: Vec<suite::Test>, arguments: &Arguments| {
        let trials = tests
            .into_iter()
            .map(|test| {
                let (suite, handle) = (suite.clone(), runtime.handle().clone());
                let name = test.name.to_owned();
                Trial::test(test.name, move || handle.block_on(suite.run(&name, test.body)).map_err(|e| format!("{e:#}").into()))
            })
            .collect();
        libtest_mimic::run(arguments, trials)
    };
    let together = [
        again::tests(),
        approval::tests(),
        cancel::tests(),
        deletion::tests(),
        describe::tests(),
        failures::tests(),
        guard::tests(),
        identity::tests(),
        hangs::tests(),
        kills::tests(),
        leases::tests(),
        locks::tests(),
        managed::tests(),
        operations::tests(),
        output::tests(),
        peers::tests(),
        pruning::tests(),
        reading::tests(),
        recovery::tests(),
        stored::tests(),
        tools::tests(),
    ];
    let first = run(together.into_iter().flatten().collect(), &arguments);
    // What takes something away from the whole cluster runs alone.
    arguments.test_threads = Some(1);
    let second = run(
        [approval::alone(), caches::alone(), kills::alone(), outages::alone(), peers::alone(), standby::alone(), tools::alone()]
            .into_iter()
            .flatten()
            .collect(),
        &arguments,
    );
    suite.down()?;
    let (passed, failed) = (first.num_passed + second.num_passed, first.num_failed + second.num_failed);
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
