//! `runner-agent tool`: what a stack asks for, and what there is of it.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand, ValueHint};
use crds::{ToolName, contract};
use serde_json::json;

use super::find::{self, AtHand, Resolved};
use crate::local::{arguments, target, tools};

const EXIT_CODES: &str = "\
Exit codes:
  0   resolved
  1   no version at hand is what is asked for, or what is asked for contradicts itself
  64  the command line makes no sense";

/// Say which tool a stack asks for, and which versions there are
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Clone, Debug)]
enum Verb {
    Resolve(Resolve),
    /// Print the versions at hand: those on PATH, in the image and in its cache
    List,
}

/// Print tool, version and reason for a stack, as a run of it would have them
///
/// What counts, in this order: --tool; version files from DIR upward to the top of its repository
/// (.opentofu-version, .terraform-version, .tool-versions, .tfswitchrc, terragrunt.hcl, root.hcl);
/// required_version of the code. Nothing is changed.
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment, after_help = EXIT_CODES)]
struct Resolve {
    /// The stack's directory
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// The tool, and a version or constraint: terraform@1.5.7, "opentofu@~> 1.10"
    #[arg(long, value_name = "TOOL[@VERSION]", value_parser = arguments::tool)]
    tool: Option<(ToolName, Option<String>)>,
    /// Print an object of JSON
    #[arg(long)]
    json: bool,
}

/// Carries a command out; its exit code.
///
/// # Errors
/// When nobody reads what is printed.
pub fn run(arguments: &Arguments, out: &mut impl Write) -> io::Result<u8> {
    let failed = contract::exit_code(crds::RunResult::Failed);
    match &arguments.verb {
        Verb::List => {
            let mut all = at_hand(Path::new("."));
            all.sort_by(|a, b| (a.name.as_str(), &b.version).cmp(&(b.name.as_str(), &a.version)));
            for one in &all {
                writeln!(out, "{} {}  {}", one.name.as_str(), one.version, one.binary.display())?;
            }
            if all.is_empty() {
                eprintln!("no tool is on PATH, in the image or in its cache");
            }
            Ok(0)
        }
        Verb::Resolve(asked) => {
            let dir = match asked.dir.canonicalize() {
                Ok(dir) if dir.is_dir() => dir,
                Ok(_) | Err(_) => {
                    eprintln!("error: there is no directory {}", asked.dir.display());
                    return Ok(failed);
                }
            };
            let (name, version) = asked.tool.clone().map_or((None, None), |(name, version)| (Some(name), version));
            let tool = crds::Tool { name, version };
            match find::resolve(&tool, "--tool", &dir, &target::top_of(&dir), &at_hand(&dir)) {
                Ok(found) if asked.json => writeln!(out, "{:#}", in_json(&found))?,
                Ok(found) => {
                    writeln!(out, "{}, {}", found.found.title(), found.found.why)?;
                    for note in &found.decision.notes {
                        eprintln!("note: {note}");
                    }
                }
                Err(failure) => {
                    eprintln!("error: {}", failure.message);
                    return Ok(failed);
                }
            }
            Ok(0)
        }
    }
}

fn in_json(resolved: &Resolved) -> serde_json::Value {
    let (found, decision) = (&resolved.found, &resolved.decision);
    let required: Vec<_> = decision
        .required
        .iter()
        .map(|one| json!({"constraint": one.text, "file": one.place.file, "line": one.place.line}))
        .collect();
    json!({"tool": found.name.as_str(), "version": found.version.to_string(), "reason": found.why, "asked": decision.asked,
        "binary": found.binary, "required": required, "notes": decision.notes})
}

/// Versions on PATH for a stack in `dir`, in the cache and in the image.
fn at_hand(dir: &Path) -> Vec<AtHand> {
    let mut all = tools::at_hand(None, dir);
    for dir in [contract::ENV_TOOLS_CACHE, contract::ENV_TOOLS].iter().filter_map(std::env::var_os).map(PathBuf::from) {
        for name in [ToolName::OpenTofu, ToolName::Terraform] {
            all.extend(find::at_hand(name, std::slice::from_ref(&dir)));
        }
    }
    all
}
