//! `cargo demo` and its output, on a running cluster.

use std::io::{IsTerminal as _, stdin, stdout};

use anyhow::{Result, ensure};
use demo::{Approval, NOT_APPROVED, rehearse};

use crate::suite::{Scene, Test};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new("demo::demo_approves_only_when_told_to", told)]
}

async fn told(scene: Scene) -> Result<()> {
    // With a terminal it would ask.
    if !(stdin().is_terminal() && stdout().is_terminal()) {
        let code = rehearse(&scene.suite.cluster, Approval::Ask).await?;
        ensure!(
            code == NOT_APPROVED,
            "nobody approved, and it ends with {code}"
        );
    }
    let code = rehearse(&scene.suite.cluster, Approval::ByItself).await?;
    ensure!(code == 0, "it ends with {code}");
    Ok(())
}
