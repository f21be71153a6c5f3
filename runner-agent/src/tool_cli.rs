//! `runner-agent tool`: resolves, installs, lists and prunes tools.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    time::SystemTime,
};

use clap::{Args, Subcommand, ValueHint};
use crds::{ToolName, pod_env, tools::ToolSettings};
use serde_json::json;
use tool_versions::{Error, Result as ToolResult};

use crate::{
    local::{arguments, target},
    tool::{
        Search, ToolSources,
        find::{Found, Resolved, Told},
        image, path,
        sources::name_of,
    },
};

const EXIT_CODES: &str = "\
Exit codes:
  0   done
  1   no such version exists, it cannot be downloaded or verified, or the request contradicts itself
  64  the command line is invalid";

const ENVIRONMENT: &str = "\
Environment:
  PAWL_TOOLS_CACHE                    the cache; ~/.cache/pawl/tool-cache when it is not set
  TOFUENV_REMOTE, TFENV_REMOTE, TG_REMOTE, with _LIST_URL, _LIST_MODE, _REMOTE_USER and _REMOTE_PASSWORD
                                      mirrors, as tenv reads them
  TENV_GITHUB_TOKEN, TOFUENV_GITHUB_TOKEN, TENV_ARCH, TFENV_ARCH, TOFUENV_ARCH
                                      as tenv reads them
  HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE";

/// Show which tool a stack needs, and install it
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Clone, Debug)]
enum Verb {
    Resolve(Resolve),
    Install(Install),
    /// Print the available versions: on PATH, in an image and in the cache
    List,
    Prune(Prune),
    Digests(Digests),
}

/// Print tool, version and reason for a stack, as a run of it would use them
///
/// The version, in this order: --tool; version files from DIR upward to the top of its repository
/// (.opentofu-version, .terraform-version, .terragrunt-version, .tool-versions, .tfswitchrc, .tfswitch.toml,
/// .tgswitchrc, .tgswitch.toml, terragrunt.hcl, root.hcl); required_version of the code; the newest release.
/// The tool: --tool; a file of Terragrunt or OpenTofu; the nearest version file; the registry of the
/// lock file; Terraform where required_version allows no OpenTofu; else OpenTofu, whatever is on PATH.
/// Changes nothing but the cache of lists.
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment, after_help = EXIT_CODES)]
struct Resolve {
    #[command(flatten)]
    which: Which,
    /// Print an object of JSON
    #[arg(long)]
    json: bool,
}

/// Install the tool that a stack needs, and prove that it is the published one
///
/// The cache stores it, so it is downloaded only once. A tool without proof is not stored.
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment, after_help = EXIT_CODES, after_long_help = format!("{EXIT_CODES}\n\n{ENVIRONMENT}"))]
struct Install {
    #[command(flatten)]
    which: Which,
}

/// Remove versions from the cache, least recently used first
///
/// Versions in use remain.
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment)]
struct Prune {
    /// Maximum size of the cache in MiB
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    max_size: u64,
}

/// Write the digests of tools beside them, as a step of building an image that contains them
///
/// A run in that image need not read a tool to know it. Tools are in TOOL/VERSION/BINARY below DIR.
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment)]
struct Digests {
    /// Directory of the tools
    #[arg(default_value = pod_env::TOOLS_DIR, value_hint = ValueHint::DirPath)]
    dir: PathBuf,
}

#[derive(Args, Clone, Debug)]
struct Which {
    /// The stack's directory
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// The tool, and a version or constraint: terraform@1.5.7, "opentofu@~> 1.10"
    #[arg(long, value_name = "TOOL[@VERSION]", value_parser = arguments::tool)]
    tool: Option<(ToolName, Option<String>)>,
    /// Never use the network: choose among the available versions
    #[arg(long)]
    offline: bool,
}

enum Trouble {
    /// An error of the command itself.
    Tool(Error),
    /// Standard output is closed.
    Output(io::Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Tool(error)
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Runs a command. Returns its exit code.
///
/// # Errors
/// Standard output is closed.
pub async fn run(arguments: &Arguments, out: &mut impl Write) -> io::Result<u8> {
    let done = match &arguments.verb {
        Verb::List => list(out),
        Verb::Resolve(asked) => resolve(asked, out).await,
        Verb::Install(asked) => install(asked, out).await,
        Verb::Prune(asked) => prune(asked, out),
        Verb::Digests(asked) => digests(asked, out),
    };
    match done {
        Ok(()) => Ok(0),
        Err(Trouble::Output(error)) => Err(error),
        Err(Trouble::Tool(error)) => {
            eprintln!("error: {error}");
            Ok(pod_env::exit_code(crds::RunResult::Failed))
        }
    }
}

/// The sources of tools on this machine, for a stack in `dir`.
fn sources(dir: &Path, offline: bool) -> ToolResult<ToolSources> {
    let said = std::env::var(pod_env::ENV_TOOL_SETTINGS).unwrap_or_default();
    let mut settings: ToolSettings = said
        .parse()
        .map_err(|error: String| Error::configuration(error))?;
    settings.offline |= offline;
    let dirs = std::env::var_os(pod_env::ENV_TOOLS).map(PathBuf::from);
    let mut sources = ToolSources::new(
        &settings,
        dirs.into_iter().collect(),
        &cache()?,
        Path::new(pod_env::MIRRORS_DIR),
    )?;
    sources.others = path::tools(None, dir);
    Ok(sources)
}

/// The tool cache of this machine.
fn cache() -> ToolResult<PathBuf> {
    let said = std::env::var_os(pod_env::ENV_TOOLS_CACHE).map(PathBuf::from);
    said.or_else(path::cache).ok_or_else(|| {
        Error::configuration(format!(
            "there is no place for a cache: set {} or HOME",
            pod_env::ENV_TOOLS_CACHE
        ))
    })
}

async fn find(which: &Which, gets: bool) -> ToolResult<Resolved> {
    let dir = which.dir.canonicalize().ok().filter(|dir| dir.is_dir());
    let dir = dir.ok_or_else(|| {
        Error::configuration(format!("there is no directory {}", which.dir.display()))
    })?;
    let (name, version) = which
        .tool
        .clone()
        .map_or((None, None), |(name, version)| (Some(name), version));
    let tool = crds::Tool { name, version };
    let sources = sources(&dir, which.offline)?;
    let top = target::top_of(&dir);
    let search = Search {
        tool: &tool,
        origin: "--tool",
        stack: &dir,
        root: &top,
    };
    let say = |told| {
        if let Told::Line(line) = told {
            eprintln!("{line}");
        }
    };
    sources.resolve(search, gets, &say).await
}

async fn resolve(asked: &Resolve, out: &mut impl Write) -> Result<(), Trouble> {
    let resolved = find(&asked.which, false).await?;
    if asked.json {
        writeln!(out, "{:#}", in_json(&resolved))?;
        return Ok(());
    }
    writeln!(
        out,
        "{}, {}",
        resolved.found.title(),
        resolved.found.reason()
    )?;
    for note in &resolved.decision.notes {
        eprintln!("note: {note}");
    }
    Ok(())
}

async fn install(asked: &Install, out: &mut impl Write) -> Result<(), Trouble> {
    let found = find(&asked.which, true).await?.found;
    writeln!(out, "{}, {}", found.title(), found.reason())?;
    for one in found.all() {
        writeln!(out, "{}", one.binary.display())?;
    }
    Ok(())
}

fn list(out: &mut impl Write) -> Result<(), Trouble> {
    let sources = sources(Path::new("."), true)?;
    let mut all: Vec<_> = ToolName::KNOWN
        .into_iter()
        .flat_map(|name| sources.local(name))
        .map(|one| (one.name, one.version, one.binary))
        .collect();
    all.extend(
        sources
            .installer
            .store
            .list()?
            .into_iter()
            .map(|one| (name_of(one.tool), one.version, one.binary)),
    );
    all.sort_by(|a, b| (a.0.as_str(), &b.1).cmp(&(b.0.as_str(), &a.1)));
    for (name, version, binary) in &all {
        writeln!(out, "{} {version}  {}", name.as_str(), binary.display())?;
    }
    if all.is_empty() {
        eprintln!("no tool is on PATH or in the cache; `runner-agent tool install` gets one");
    }
    Ok(())
}

fn prune(asked: &Prune, out: &mut impl Write) -> Result<(), Trouble> {
    let store = sources(Path::new("."), true)?.installer.store;
    let gone = store.prune(asked.max_size.saturating_mul(1 << 20), SystemTime::now())?;
    for one in &gone {
        writeln!(
            out,
            "{} {}  {} MiB removed",
            one.tool,
            one.version,
            one.size >> 20
        )?;
    }
    if gone.is_empty() {
        writeln!(out, "nothing to remove")?;
    }
    Ok(())
}

fn digests(asked: &Digests, out: &mut impl Write) -> Result<(), Trouble> {
    let sources = ToolSources::of_dirs(vec![asked.dir.clone()], &cache()?);
    let mut none = true;
    for one in ToolName::KNOWN
        .into_iter()
        .flat_map(|name| sources.local(name))
    {
        let place = image::state(&one.binary)
            .map_err(|error| Error::storage(one.binary.display().to_string(), &error))?;
        writeln!(out, "{}", place.display())?;
        none = false;
    }
    if none {
        let dir = asked.dir.display();
        return Err(Error::configuration(format!(
            "there is no tool below {dir}; they lie as opentofu/1.10.6/tofu"
        ))
        .into());
    }
    Ok(())
}

fn in_json(resolved: &Resolved) -> serde_json::Value {
    let decision = &resolved.decision;
    let required: Vec<_> = decision
        .required
        .iter()
        .map(|one| json!({"constraint": one.text, "file": one.place.file, "line": one.place.line}))
        .collect();
    let one = |found: &Found| {
        let binary = Some(&found.binary).filter(|path| !path.as_os_str().is_empty());
        json!({"tool": found.name.as_str(), "version": found.version.to_string(), "reason": found.why, "toolReason": found.tool_why, "binary": binary})
    };
    let mut object = one(&resolved.found);
    object["asked"] = json!(decision.asked);
    object["required"] = json!(required);
    object["notes"] = json!(decision.notes);
    if let Some(beneath) = &resolved.found.beneath {
        object["beneath"] = one(beneath);
    }
    object
}
