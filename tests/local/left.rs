//! What the tool left behind when a person used it, or when an apply could not save its state.

use std::fs;

use anyhow::{Result, ensure};
use crds::{Changed, RunResult, reason};
use servers::state::StateServer;

use crate::place::{End as _, Lab, Test, ended, holds, runtime};

pub(crate) fn tests(lab: &Lab) -> Vec<Test> {
    let mut tests = Vec::new();
    for tool in lab.tools() {
        tests.push(Test::new(
            format!("left::data_directory_of_the_environment_counts_with_{tool}"),
            move |lab| data_directory(lab, tool),
        ));
        tests.push(Test::new(
            format!("left::unsaved_state_is_pushed_first_with_{tool}"),
            move |lab| unsaved(lab, tool),
        ));
    }
    tests
}

fn data_directory(lab: &Lab, tool: &'static str) -> Result<()> {
    let place = lab.place(
        tool,
        &[("main.tf", "resource \"terraform_data\" \"a\" {}\n")],
    )?;
    let with = |mut command: std::process::Command| ended(command.env("TF_DATA_DIR", ".data"));
    for words in [
        &["init", "-input=false"][..],
        &["workspace", "new", "staging"],
        &["apply", "-auto-approve", "-input=false"],
    ] {
        with(place.program(tool, words))?.with(0)?;
    }
    let text = with(place.agent(&["plan"]))?.with(0)?;
    holds(&text, "No changes")?;
    // A partial backend is completed in the data directory.
    for below in [".data", "terraform.tfstate.d"] {
        fs::remove_dir_all(place.stack().join(below))?;
    }
    fs::write(
        place.stack().join("backend.tf"),
        "terraform {\n  backend \"local\" {}\n}\n",
    )?;
    let init = ["init", "-input=false", "-backend-config=path=here.tfstate"];
    with(place.program(tool, &init))?.with(0)?;
    let text = with(place.agent(&["apply", "--auto-approve"]))?.with(1)?;
    holds(&text, "TF_DATA_DIR names ")?;
    ensure!(!place.stack().join("terraform.tfstate").exists(), "{text}");
    // The message's own step.
    ended(&mut place.program(tool, &init))?.with(0)?;
    with(place.agent(&["apply", "--auto-approve", "--workspace", "default"]))?.with(0)?;
    ensure!(place.stack().join("here.tfstate").is_file());
    Ok(())
}

fn unsaved(lab: &Lab, tool: &'static str) -> Result<()> {
    let place = lab.fixture(tool, "state-elsewhere")?;
    let runtime = runtime()?;
    let server = runtime.block_on(StateServer::start("127.0.0.1:0".parse()?))?;
    server.fail_writes("here", 100);
    let run = |arguments: &[&str]| {
        ended(
            place
                .agent(arguments)
                .env("TF_HTTP_ADDRESS", server.url("here")),
        )
    };
    let text = run(&["apply", "--auto-approve"])?.with(1)?;
    let failure = place.failure()?;
    ensure!(
        failure.reason == reason::STATE_NOT_SAVED && failure.changes == Changed::Some,
        "{failure:?}: {text}"
    );
    holds(
        &text,
        "Next: push the state that the message names with `state push errored.tfstate` of the tool",
    )?;
    let file = place.stack().join("errored.tfstate");
    let saved = fs::read(&file)?;
    server.fail_writes("here", 0);
    for verb in ["plan", "apply", "destroy"] {
        let text = run(&[verb, "--auto-approve"])?.with(1)?;
        holds(
            &text,
            "errored.tfstate is a state that an apply could not save",
        )?;
    }
    ensure!(fs::read(&file)? == saved && server.current("here").is_none());
    let mut push = place.program(tool, &["state", "push", "errored.tfstate"]);
    ended(push.env("TF_HTTP_ADDRESS", server.url("here")))?.with(0)?;
    fs::remove_file(&file)?;
    let text = run(&["apply", "--auto-approve"])?;
    place.came_to(RunResult::NoChanges, text).map(drop)
}
