//! A stack that is fetched from a repository.

use std::{path::Path, process::Command};

use anyhow::{Result, ensure};
use crds::{FailureClass, reason};
use servers::{
    git::{Failure, GitServer},
    state::StateServer,
};
use tokio::runtime::Runtime;

use crate::place::{Lab, Test, holds, runtime};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("repository::planned_and_applied_later", planned_and_applied),
        Test::new("repository::unusable_repositories_are_refused", refused),
        Test::new(
            "repository::computed_state_key_is_the_one_of_a_clone",
            computed,
        ),
    ]
}

/// A server of the repositories in a directory, and one of states.
fn servers(runtime: &Runtime, files: &Path) -> Result<(GitServer, StateServer)> {
    let loopback = "127.0.0.1:0".parse()?;
    runtime.block_on(async {
        tokio::try_join!(
            GitServer::start(loopback, files),
            StateServer::start(loopback)
        )
    })
}

fn planned_and_applied(lab: &Lab) -> Result<()> {
    let (place, files, runtime) = (lab.place("tofu", &[])?, tempfile::tempdir()?, runtime()?);
    let (git, state) = servers(&runtime, files.path())?;
    let repo = git.create("stacks")?;
    let address = state.url("network");
    let code = format!(
        "terraform {{\n  backend \"http\" {{\n    address        = \"{address}\"\n    lock_address   = \"{address}\"\n    \
         unlock_address = \"{address}\"\n  }}\n}}\nresource \"terraform_data\" \"a\" {{\n  input = basename(abspath(\"..\"))\n}}\n"
    );
    let sha = repo.commit(
        "next",
        &[("network/main.tf", &code), ("other/main.tf", "broken {")],
    )?;
    let url = format!("{}//network?ref=next", git.url("stacks"));

    let text = place.waits(place.run(&["apply", &url])?)?;
    ensure!(
        place
            .record()?
            .plan
            .and_then(|plan| plan.revision)
            .as_deref()
            == Some(&sha),
        "another commit was planned"
    );
    ensure!(
        state.current("network").is_none(),
        "a plan changed something"
    );

    // The branch moves on; the planned commit is applied.
    repo.commit(
        "next",
        &[("network/main.tf", &code.replace("\"a\"", "\"b\""))],
    )?;
    let asked = git.requests("stacks");
    place.approve(&text)?;
    ensure!(git.requests("stacks") == asked, "fetched again");
    let applied = state.current("network").unwrap_or_default();
    let resource = &applied["resources"][0];
    ensure!(resource["name"] == "a", "{applied}");
    // The directory has the name of the clone's.
    let input = &resource["instances"][0]["attributes"]["input"];
    ensure!(input.to_string().contains("\"stacks\""), "{input}");
    ensure!(state.lock("network").is_none(), "the lock is held");
    Ok(())
}

/// Terragrunt asks git for the repository's name.
fn computed(lab: &Lab) -> Result<()> {
    if !lab.has_terragrunt() {
        return Ok(());
    }
    let (place, files, runtime) = (lab.with_terragrunt(&[])?, tempfile::tempdir()?, runtime()?);
    let (git, state) = servers(&runtime, files.path())?;
    let key = "${basename(get_repo_root())}/${get_path_from_repo_root()}";
    let unit = format!(
        "remote_state {{\n  backend = \"http\"\n  config = {{ address = \"{}\" }}\n}}\n",
        state.url(key)
    );
    let code = "terraform {\n  backend \"http\" {}\n}\nresource \"terraform_data\" \"a\" {}\n";
    git.create("team/infra-live")?.commit(
        "main",
        &[("live/a/terragrunt.hcl", &unit), ("live/a/main.tf", code)],
    )?;
    let url = format!("{}//live/a?ref=main", git.url("team/infra-live"));
    place.ends(0, &["apply", &url, "--auto-approve"])?;
    ensure!(
        state.current("infra-live/live/a").is_some(),
        "states: {:?}",
        state.all("")
    );
    Ok(())
}

/// Commits 210000 files in four objects, to the branch `bomb`.
fn bomb(repo: &Path) -> Result<()> {
    let script = "set -e; file=$(git hash-object -w --stdin </dev/null); \
        tree=$(for n in $(seq 300); do printf \"100644 blob $file\\t$n\\n\"; done | git mktree); \
        tree=$(for n in $(seq 700); do printf \"040000 tree $tree\\t$n\\n\"; done | git mktree); \
        git update-ref refs/heads/bomb $(git -c user.name=a -c user.email=a@b commit-tree -m bomb $tree)";
    let made = Command::new("sh")
        .args(["-c", script])
        .current_dir(repo)
        .output()?;
    ensure!(made.status.success(), "{made:?}");
    Ok(())
}

fn refused(lab: &Lab) -> Result<()> {
    use FailureClass::{Configuration, Transient};
    let (place, files, runtime) = (lab.place("tofu", &[])?, tempfile::tempdir()?, runtime()?);
    let git = runtime.block_on(GitServer::start("127.0.0.1:0".parse()?, files.path()))?;
    for name in ["stacks", "broken"] {
        git.create(name)?.commit(
            "main",
            &[("main.tf", "resource \"terraform_data\" \"a\" {}\n")],
        )?;
    }
    git.fail("broken", Failure::Status(500));
    bomb(&files.path().join("stacks.git"))?;
    let refused = |place_of_it: &str, said: &str| -> Result<()> {
        let text = place.ends(1, &["apply", place_of_it])?;
        holds(&text, said)?;
        ensure!(
            !text.contains("spec.") && !text.contains("the pod"),
            "words of a cluster: {text}"
        );
        Ok(())
    };
    let (url, commit) = (git.url("stacks"), "0123456789".repeat(4));
    refused(
        &url.replace("http://", "ssh://"),
        "not an http or https URL",
    )?;
    for (place_of_it, said, class, why) in [
        (
            format!("{url}?ref=main"),
            "the code names no backend that keeps its state",
            Configuration,
            reason::NO_DURABLE_STATE,
        ),
        (
            format!("{url}?ref=no/where"),
            "no/where",
            Configuration,
            reason::REVISION_NOT_FOUND,
        ),
        // Not the head of any branch, so all of them are fetched.
        (
            format!("{url}?ref={commit}"),
            commit.as_str(),
            Configuration,
            reason::REVISION_NOT_FOUND,
        ),
        (
            format!("{url}//network/here?ref=main"),
            "network/here",
            Configuration,
            reason::PATH_NOT_FOUND,
        ),
        (
            format!("{}x?ref=main", url.trim_end_matches(".git")),
            "stacksx",
            Configuration,
            reason::REPOSITORY_NOT_FOUND,
        ),
        (
            format!("{}?ref=main", git.url("broken")),
            "error: 500",
            Transient,
            reason::SOURCE_UNREACHABLE,
        ),
        (
            format!("{url}?ref=bomb"),
            "was not checked out: it has more than 200000 files and directories",
            Configuration,
            reason::SOURCE_INVALID,
        ),
        // Nothing listens on the discard port.
        (
            "http://127.0.0.1:9/r.git?ref=main".to_owned(),
            "cannot be reached",
            Transient,
            reason::SOURCE_UNREACHABLE,
        ),
    ] {
        refused(&place_of_it, said)?;
        let failure = place.failure()?;
        ensure!(
            (failure.class, failure.reason.as_str()) == (class, why),
            "{place_of_it}: {failure:?}"
        );
    }
    Ok(())
}
