//! `cargo images`: builds Pawl's images and pushes them.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use harness::cluster::images::Profile;
use harness::cluster::publish::{self, Options};
use harness::cluster::report;

#[derive(Parser)]
#[command(
    name = "cargo images",
    about = "Builds the images of controller, runner and sources, and pushes them to a registry"
)]
struct Arguments {
    /// Destination: REGISTRY/PATH, to which /controller, /runner-agent and /sources are added. Without it nothing is pushed
    #[arg(long, value_name = "REGISTRY/PATH")]
    push: Option<String>,
    /// Their tag
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    tag: String,
    /// Allow a registry that speaks HTTP, or whose certificate has an unknown authority
    #[arg(long)]
    insecure: bool,
}

fn main() -> ExitCode {
    let Arguments {
        push,
        tag,
        insecure,
    } = Arguments::parse();
    report::exit(
        "images",
        run(&Options {
            push,
            tag,
            insecure,
            credentials: publish::credentials(),
        }),
    )
}

fn run(options: &Options) -> Result<()> {
    let built = publish::build(Profile::Dist)?;
    if let Some(registry) = &options.push {
        // Only the values go to stdout, which is usually redirected to a file.
        print!("{}", publish::push(&built, registry, options)?.values());
        return Ok(());
    }
    for image in [&built.controller, &built.runner, &built.sources] {
        println!("{} in {}", image.name, image.archive.display());
    }
    eprintln!("nothing was pushed: `--push REGISTRY/PATH` does it, `docker load -i` takes a file");
    Ok(())
}
