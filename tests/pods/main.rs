//! Complete runs in real pods: real API server, kubelet, images and chart. Needs root on Linux; starts its own cluster.

mod again;
mod approval;
mod archive;
mod caches;
mod cancel;
mod console;
mod convert;
mod deletion;
mod demo;
mod describe;
mod disk;
mod failures;
mod forge;
mod given;
mod guard;
mod guide;
mod hangs;
mod hooks;
mod hostile;
mod identity;
mod images;
mod inputs;
mod kills;
mod large;
mod layers;
mod leases;
mod locks;
mod managed;
mod nodes;
mod operations;
mod outages;
mod output;
mod outputs;
mod peers;
mod reading;
mod recovery;
mod releases;
mod restored;
mod ssh;
mod standby;
mod stored;
mod suite;
mod tools;

use std::{process::ExitCode, sync::Arc};

use anyhow::{Result, bail};
use harness::cluster::rights;
use libtest_mimic::{Arguments, Conclusion, Trial};
use suite::Suite;

/// A part of the suite. Each has its own cluster, so that both can run in parallel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Tests that run in parallel.
    Together,
    /// Tests that run one after the other.
    Alone,
}

impl Part {
    /// The value of `PAWL_PART`; `None` selects both.
    fn wanted() -> Result<Option<Self>> {
        match std::env::var("PAWL_PART").ok().as_deref() {
            None => Ok(None),
            Some("together") => Ok(Some(Self::Together)),
            Some("alone") => Ok(Some(Self::Alone)),
            Some(other) => bail!("PAWL_PART is `together` or `alone`, not `{other}`"),
        }
    }
}

fn main() -> Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // A test mostly waits for a kubelet.
    arguments.test_threads.get_or_insert(6);
    if let Some(reason) = suite::left_out() {
        println!("left out: everything that needs a cluster ({reason})\n0 passed, 0 failed");
        return Ok(ExitCode::SUCCESS);
    }
    let part = Part::wanted()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let suite = Arc::new(runtime.block_on(Suite::up(if part == Some(Part::Alone) {
        "ci-alone"
    } else {
        "ci"
    }))?);
    let run = |tests: Vec<suite::Test>, arguments: &Arguments| {
        let trials = tests
            .into_iter()
            .map(|test| {
                let (suite, handle) = (suite.clone(), runtime.handle().clone());
                let name = test.name.to_owned();
                Trial::test(test.name, move || {
                    handle
                        .block_on(suite.run(&name, test.body))
                        .map_err(|e| format!("{e:#}").into())
                })
            })
            .collect();
        libtest_mimic::run(arguments, trials)
    };
    // The longest first, so that none of them delays the end.
    let together = [
        layers::tests(),
        convert::tests(),
        recovery::tests(),
        outputs::tests(),
        output::tests(),
        hangs::tests(),
        managed::tests(),
        kills::tests(),
        again::tests(),
        approval::tests(),
        archive::tests(),
        cancel::tests(),
        console::tests(),
        deletion::tests(),
        demo::tests(),
        describe::tests(),
        disk::tests(),
        failures::tests(),
        given::tests(),
        guard::tests(),
        guide::tests(),
        hooks::tests(),
        hostile::tests(),
        identity::tests(),
        images::tests(),
        inputs::tests(),
        large::tests(),
        leases::tests(),
        locks::tests(),
        operations::tests(),
        peers::tests(),
        reading::tests(),
        restored::tests(),
        ssh::tests(),
        stored::tests(),
        tools::tests(),
        // Last: on a new machine its forge is built meanwhile.
        forge::tests(),
    ];
    // Tests that remove something from the whole cluster run alone; those that remove Pawl itself run last.
    let alone = [
        caches::alone(),
        kills::alone(),
        nodes::alone(),
        outages::alone(),
        outputs::alone(),
        peers::alone(),
        standby::alone(),
        restored::alone(),
    ];
    let mut results = Vec::new();
    if part != Some(Part::Alone) {
        results.push(run(together.into_iter().flatten().collect(), &arguments));
    }
    if part != Some(Part::Together) {
        arguments.test_threads = Some(1);
        results.push(run(alone.into_iter().flatten().collect(), &arguments));
    }
    println!("{}", suite.slowest());
    let whole = part.is_some() && arguments.filter.is_none() && arguments.skip.is_empty();
    let name = match part {
        Some(Part::Together) => "pods together",
        Some(Part::Alone) => "pods alone",
        None => "pods",
    };
    let granted = rights::judge(name, std::slice::from_ref(&suite.audit), whole);
    suite.down()?;
    let sum = |count: fn(&Conclusion) -> u64| results.iter().map(count).sum::<u64>();
    let (passed, failed) = (
        sum(|result| result.num_passed),
        sum(|result| result.num_failed) + u64::from(!granted),
    );
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
