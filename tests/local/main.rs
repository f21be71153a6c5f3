//! `runner-agent local`, the program itself, with the real tools, with and without a terminal. Needs neither root nor a cluster.

mod advice;
mod chosen;
mod compared;
mod documents;
mod examples;
mod given;
mod interrupts;
mod left;
mod output;
mod outside;
mod place;
mod plans;
mod providers;
mod registries;
mod reports;
mod repository;
mod resumed;
mod reviewed;
mod rewritten;
mod stalled;
mod terminal;
mod terragrunt;
mod typed;

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use libtest_mimic::{Arguments, Trial};
use place::{Lab, Test};

fn main() -> Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // The tools keep the processors busy.
    arguments.test_threads.get_or_insert(3);
    let lab = match Lab::open()? {
        Ok(lab) => Arc::new(lab),
        Err(reason) => {
            println!("left out: local mode with the real tools ({reason})\n0 passed, 0 failed");
            return Ok(ExitCode::SUCCESS);
        }
    };
    let all = [
        chosen::tests(&lab),
        advice::tests(&lab),
        compared::tests(&lab),
        documents::tests(),
        examples::tests(&lab),
        given::tests(lab.as_ref()),
        interrupts::tests(),
        left::tests(lab.as_ref()),
        outside::tests(lab.as_ref()),
        output::tests(),
        plans::tests(),
        rewritten::tests(),
        providers::tests(&lab),
        registries::tests(&lab),
        reports::tests(&lab),
        repository::tests(),
        resumed::tests(),
        reviewed::tests(),
        terragrunt::tests(&lab),
        typed::tests(lab.as_ref()),
    ];
    let trials = all.into_iter().flatten().map(|test: Test| {
        let lab = lab.clone();
        Trial::test(test.name, move || {
            (test.body)(&lab).map_err(|error| format!("{error:#}").into())
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    println!(
        "{} passed, {} failed",
        conclusion.num_passed, conclusion.num_failed
    );
    Ok(conclusion.exit_code())
}
