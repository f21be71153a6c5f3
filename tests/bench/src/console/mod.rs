//! Measures the web console: `controller server` as a process with the account and arguments of the chart, a real API server with as many
//! layers and runs as Pawl has to hold, people with tokens, and Chromium.
//!
//! This is no test: the figures depend on the machine, so the program prints goals beside them.

mod browser;
mod objects;
mod people;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use harness::cluster::control_plane::free_ports;
use harness::cluster::{ControlPlane, NAMESPACE, images, report};
use harness::wait;
use serde_json::{Value, json};

use crate::scale::{self, install, process::Process};
use crate::table::Table;

/// A longer wait indicates a defect, not a slow machine.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Clone, Debug)]
pub struct Options {
    pub layers: usize,
    pub runs: usize,
    /// File for a copy of the table.
    pub save: Option<PathBuf>,
}

/// All processes. Drop ends them, dependents first.
struct Lab {
    server: Process,
    layers: usize,
    /// Address for people.
    url: String,
    plane: ControlPlane,
    directory: tempfile::TempDir,
}

impl Lab {
    async fn up(options: &Options) -> Result<Self> {
        tokio::task::block_in_place(xtask::ui::build)?;
        let programs = tokio::task::block_in_place(|| {
            images::programs(&["controller"], images::Profile::Same)
        });
        let directory = tempfile::tempdir().context("no directory for the processes")?;
        let policy = directory.path().join("audit-policy.yaml");
        std::fs::write(
            &policy,
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: None}]\n",
        )?;
        let plane =
            ControlPlane::start(&[&format!("--audit-policy-file={}", policy.display())], &[])
                .await?;
        tokio::task::block_in_place(|| install(&plane))?;
        let step = report::step(
            "console",
            format!("{} layers, {} runs", options.layers, options.runs),
        );
        objects::create(&plane, options).await?;
        step.done();
        let kubeconfig = directory.path().join("server.kubeconfig");
        scale::kubeconfig(&plane, NAMESPACE, "pawl-server", &kubeconfig)?;
        let ports = free_ports(2)?;
        let url = format!("http://127.0.0.1:{}", ports[0]);
        let arguments = [
            "server".to_owned(),
            format!("--web-listen=127.0.0.1:{}", ports[0]),
            format!("--session-secret={NAMESPACE}/pawl-server-sessions"),
            format!("--url={url}"),
            format!("--metrics-listen=127.0.0.1:{}", ports[1]),
        ];
        // As in the chart, except for the kubeconfig that replaces a pod's account.
        let variables = [
            ("KUBECONFIG", kubeconfig.display().to_string()),
            ("RUST_LOG", "info".to_owned()),
            ("MALLOC_ARENA_MAX", "2".to_owned()),
        ];
        let log = directory.path().join("server.log");
        let server = Process::start("server", &programs?[0], &arguments, &variables, &log)?;
        let lab = Self {
            server,
            layers: options.layers,
            url,
            plane,
            directory,
        };
        let reader = people::token(&lab.plane, "default", "ada")?;
        let http = people::http()?;
        wait::until("all rows are there", PATIENCE, async || {
            let mut totals = Vec::new();
            for kind in ["layers", "runs"] {
                let asked = http.get(format!("{}/api/v1/{kind}?limit=1", lab.url));
                let Ok(answer) = asked.bearer_auth(&reader).send().await else {
                    let _running = lab.server.memory().context("the server ended")?;
                    return Ok(false);
                };
                let page: Value = serde_json::from_str(&answer.text().await?)?;
                totals.push(page["total"].clone());
            }
            Ok(totals == [json!(options.layers), json!(options.runs)])
        })
        .await?;
        Ok(lab)
    }
}

/// Measures, and prints the table.
///
/// # Errors
/// When something does not start. Earlier results are printed.
pub async fn run(options: &Options) -> Result<()> {
    let (machine, mut table) = (crate::machine(), Table::new("console", "figure"));
    table.head("value");
    let measured = Box::pin(measure(options, &mut table)).await;
    crate::publish(&machine, &table, options.save.as_deref())?;
    measured
}

async fn measure(options: &Options, table: &mut Table) -> Result<()> {
    let lab = Lab::up(options).await?;
    let rest = lab.server.memory()?.resident;
    table.plain("server: memory with all rows", crate::table::mib(rest));
    people::pages(&lab, "alone", table).await?;
    tokio::task::block_in_place(|| browser::measure(&lab, table))?;
    people::streams(&lab, table).await
}
