//! Tests of the API server's own decisions: CEL rules of the CRD, admission policies, fences. Uses real etcd and kube-apiserver only; needs
//! no root.

mod acts;
mod applied;
mod attempt_identity;
mod busy;
mod cel;
mod chart;
mod claims;
mod conformance;
mod console;
mod console_acts;
mod console_lists;
mod console_pages;
mod convert;
mod enforcement;
mod faults;
mod fences;
mod foreign;
mod four_eyes;
mod health;
mod layer_rights;
mod layers;
mod leases;
mod matrix;
mod namespaces;
mod newer;
mod nodes;
mod objects;
mod outputs;
mod pasted;
mod policies;
mod references;
mod released;
mod repositories;
mod rig;
mod scene;
mod slots;
mod strict;
mod upgrade;
mod webhooks;
mod world;

use std::process::ExitCode;

use anyhow::Result;
use harness::cluster::rights::{self, Log};
use libtest_mimic::{Arguments, Trial};
use world::{Place, World};

fn main() -> Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // Three API servers on two processors: more threads would only wait for each other.
    arguments.test_threads.get_or_insert(4);
    if let Some(reason) = world::left_out() {
        println!("left out: everything that needs an API server ({reason})\n0 passed, 0 failed");
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let started = runtime.block_on(async {
        tokio::join!(
            World::start(false),
            World::start(true),
            World::start_newer()
        )
    });
    let ((bare, one), (guarded, two), (newer, three)) = (started.0?, started.1?, started.2?);
    let logs = [&one, &two, &three].map(|plane| Log::of_all(plane));
    let suites = [
        busy::tests(),
        cel::tests(),
        policies::tests(),
        repositories::tests(),
        layer_rights::tests(),
        acts::tests(),
        four_eyes::tests(),
        outputs::tests(),
        pasted::tests(),
        faults::tests(),
        fences::tests(),
        foreign::tests(),
        claims::tests(),
        layers::tests(),
        health::tests(),
        enforcement::tests(),
        leases::tests(),
        slots::tests(),
        strict::tests(),
        matrix::tests(),
        namespaces::tests(),
        nodes::tests(),
        references::tests(),
        released::tests(),
        applied::tests(),
        attempt_identity::tests(),
        chart::tests(),
        chart::datastore::tests(),
        conformance::tests(),
        console::tests(),
        console::gitea::tests(),
        console::ingress::tests(),
        console::oidc::tests(),
        console::outages::tests(),
        console_acts::tests(),
        console_lists::tests(),
        console_pages::tests(),
        objects::tests(),
        convert::tests(),
        upgrade::tests(),
        webhooks::tests(),
    ];
    let tests = suites.into_iter().flatten();
    let trials = tests
        .map(|test| {
            let world = match test.place {
                Place::Bare => bare.clone(),
                Place::Guarded => guarded.clone(),
                Place::Newer => newer.clone(),
            };
            let handle = runtime.handle().clone();
            Trial::test(test.name, move || {
                handle
                    .block_on((test.body)(world))
                    .map_err(|e| format!("{e:#}").into())
            })
        })
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let whole = arguments.filter.is_none() && arguments.skip.is_empty();
    let granted = rights::judge("api", &logs, whole);
    drop((one, two, three));
    let failed = conclusion.num_failed + u64::from(!granted);
    println!("{} passed, {failed} failed", conclusion.num_passed);
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
