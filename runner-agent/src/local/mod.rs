//! `runner-agent local`: the state machine of a pod, with a terminal and a folder in place of API and datastore.
//!
//! | module | holds |
//! |---|---|
//! | [`arguments`] | the command line |
//! | [`config`] | a folder's settings for its runs, in `pawl.yaml` |
//! | [`tool_options`] | converts the tools' spelling of options |
//! | [`host`] | a person's machine in place of a pod |
//! | [`target`] | a folder or a repository |
//! | [`folder`] | the records of a folder's runs, and their lock |
//! | [`tool_data`] | what the tool left in the folder |
//! | [`superseded`] | waiting plans made stale by a newer apply |
//! | [`api`] | a run stored in a file |
//! | [`screen`] | the output for a person |
//! | [`session`] | one run: observed, approved, cancelled, ended |

pub mod api;
pub mod arguments;
pub mod config;
pub mod folder;
pub mod host;
pub mod screen;
mod session;
mod superseded;
pub mod target;
mod tool_data;
pub mod tool_options;

use std::{
    ffi::OsStr,
    fs::OpenOptions,
    io::{Read as _, Write as _},
    os::unix::{ffi::OsStrExt as _, fs::OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use crds::{
    Attempt, Changed, Failure, Phase, Reason, RunResult, TerraformRun, TerraformRunStatus, Tool,
    ToolName, names, pod_env, whole_seconds,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    files,
    settings::{LOCAL, Settings, nonce},
    tool,
};
use api::FileApi;
use arguments::{Arguments, Verb};
use folder::Folder;
use host::Laptop;
use screen::Screen;
use target::Target;

/// Variables of a person's environment that would make the tool use other paths than Pawl.
const NOT_INHERITED: [&str; 2] = ["TF_DATA_DIR", "TF_WORKSPACE"];

/// File of a run with the variables of its command line, separated by NUL. Like the plan file, it has their values.
const WORDS: &str = "words";

/// Runs a stack. Returns the exit code.
pub async fn run(arguments: &Arguments) -> u8 {
    let (verb, place) = match arguments.verb_and_place() {
        Ok(read) => read,
        Err(error) => {
            complain(&format!("{error}\nhint: runner-agent local --help"));
            return pod_env::EXIT_USAGE;
        }
    };
    let screen = Screen::new(arguments.json, arguments.no_color);
    match begin(arguments, verb, &place, &screen).await {
        Ok(code) => code,
        Err(error) => {
            screen.rest();
            complain(&format!("{error:#}"));
            pod_env::exit_code(RunResult::Failed)
        }
    }
}

/// Prints an error. Ignores a closed standard error.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "error: {text}");
}

async fn begin(arguments: &Arguments, verb: Verb, place: &str, screen: &Screen) -> Result<u8> {
    let target = Target::read(place)?;
    let here = std::env::current_dir().context("this directory is gone")?;
    let folder = Folder::open(target.folder().unwrap_or(&here))?;
    settle(&folder, screen)?;
    if let Some(stack) = target.folder() {
        tool_data::refuse_unsaved_state(stack)?;
    }
    superseded::end(&folder)?;
    folder.prune();
    let command = arguments.command(verb, place);
    let ready = match &arguments.approve {
        Some(checksum) => resumed(&folder, &target, checksum, arguments, verb, &command)?,
        None => fresh(&folder, &target, arguments, verb, &command, screen)?,
    };
    session::play(ready, screen).await
}

/// A run with its settings, ready to start.
struct Ready {
    api: FileApi,
    settings: Arc<Settings>,
    host: Arc<Laptop>,
}

/// Ends runs that a killed process left open. After the claim, the result is unknown.
fn settle(folder: &Folder, screen: &Screen) -> Result<()> {
    for (dir, run) in folder.all() {
        let status = run.status.clone().unwrap_or_default();
        if status.is_terminal()
            || status.phase == Some(Phase::AwaitingApproval) && status.claim.is_none()
        {
            continue;
        }
        let restored = status.plan.is_some() && status.claim.is_none();
        let api = FileApi::create(&dir.join("run.json"), run)?;
        api.change(|run| {
            let status = run.status.get_or_insert_default();
            if restored {
                // Killed while it verified a waiting plan: the plan continues to wait.
                status.phase = Some(Phase::AwaitingApproval);
            } else {
                end_untold(status);
                let text = status.message.clone().unwrap_or_default();
                screen.strong(
                    &format!("the run {} before this one: {text}", dir.display()),
                    false,
                );
            }
        })?;
    }
    Ok(())
}

/// Ends a run whose process did not report an end. After the claim, the result is unknown.
fn end_untold(status: &mut TerraformRunStatus) {
    let (result, reason, changes, text) = if status.claim.is_some() {
        let text = "the process was killed in mid-apply; it is not known what was applied, and the tool may still run or hold the lock";
        (
            RunResult::Indeterminate,
            Reason::ApplyUnconfirmed,
            Changed::Unknown,
            text,
        )
    } else {
        (
            RunResult::Failed,
            Reason::Terminated,
            Changed::None,
            "the process ended before anything was applied",
        )
    };
    (status.phase, status.result) = (Some(result.phase()), Some(result));
    status.completion_time = Some(whole_seconds(Timestamp::now()));
    status.message = Some(match &status.failure {
        // A failed attempt that a cluster would retry.
        Some(failure) if status.claim.is_none() => {
            format!("{}; nothing was changed", failure.message)
        }
        Some(_) | None => text.to_owned(),
    });
    status.failure.get_or_insert_with(|| Failure {
        changes,
        ..reason.failure(text)
    });
}

fn fresh(
    folder: &Folder,
    target: &Target,
    arguments: &Arguments,
    verb: Verb,
    command: &str,
    screen: &Screen,
) -> Result<Ready> {
    let operation = arguments.operation(verb)?;
    tool_data::refuse_operation(|name| std::env::var(name).ok())?;
    let stack = target.folder();
    let data = std::env::var_os("TF_DATA_DIR");
    if let Some(stack) = stack {
        tool_data::refuse_other_backend(stack, data.as_deref())?;
    }
    let mut spec = stack
        .map(|folder| config::read(folder))
        .transpose()?
        .unwrap_or_default();
    arguments.put_into(&mut spec);
    let of_folder: Tool = spec
        .get("tool")
        .cloned()
        .map(serde_json::from_value)
        .transpose()?
        .unwrap_or_default();
    let (asked, version) = arguments
        .tool
        .clone()
        .map_or((of_folder.name, of_folder.version), |(name, version)| {
            (Some(name), version)
        });
    let said =
        asked.or_else(|| stack.and_then(|stack| tool::evidence(stack, &target::top_of(stack))));
    // Code that is not fetched yet may need either tool. The tools on PATH do not select one, since a cluster selects by the code.
    let wanted = if stack.is_some() {
        said.or(Some(ToolName::OpenTofu))
    } else {
        asked
    };
    let mut tools = tool::path::tools(wanted, stack.map_or(Path::new("."), PathBuf::as_path));
    for one in tool::path::installed(wanted) {
        // The version on PATH wins, since the person uses it by hand.
        if !tools
            .iter()
            .any(|other| (other.name, &other.version) == (one.name, &one.version))
        {
            tools.push(one);
        }
    }
    let (name, work) = folder.begin()?;
    tool::path::link(&work.join("tools"), &tools)?;
    let selected = stack.and_then(|stack| tool_data::selected_workspace(stack, data.as_deref()));
    let from_env = std::env::var("TF_WORKSPACE")
        .ok()
        .filter(|name| !name.is_empty());
    let of_folder = spec
        .get("workspace")
        .and_then(Value::as_str)
        .map(str::to_owned);
    let workspace = arguments
        .workspace
        .clone()
        .or(from_env)
        .or(of_folder)
        .or(selected)
        .unwrap_or_else(|| "default".to_owned());
    let mode = if arguments.auto_approve {
        "Automatic"
    } else {
        "Manual"
    };
    let Value::Object(own) = json!({"operation": operation, "source": target.source(),
        "tool": {"name": asked, "version": version}, "workspace": workspace.trim(), "approval": {"mode": mode}})
    else {
        bail!("the run is invalid");
    };
    spec.extend(own);
    let mut run = TerraformRun::new(
        &name,
        serde_json::from_value(Value::Object(spec)).context("the run is invalid")?,
    );
    run.metadata.namespace = Some("local".to_owned());
    run.metadata.uid = Some(nonce());
    open_attempt(&mut run, 1);
    if arguments.auto_approve {
        run.status.get_or_insert_default().approval = Some(crds::ApprovalRecord {
            checksum: None,
            by: "automatic".to_owned(),
            comment: None,
            at: whole_seconds(Timestamp::now()),
        });
    }
    let settings = Arc::new(settings(&run, &work, target, command));
    let plan_args = arguments.plan_args()?;
    files::write(
        &work.join(WORDS),
        plan_args.join(OsStr::new("\0")).as_bytes(),
    )
    .context("the variables of the command line cannot be kept")?;
    let host = Arc::new(Laptop::new(
        settings.clone(),
        plan_args,
        screen.has_colour(),
    ));
    Ok(Ready {
        api: FileApi::create(&work.join("run.json"), run)?,
        settings,
        host,
    })
}

/// Approves and resumes the run with the waiting plan.
fn resumed(
    folder: &Folder,
    target: &Target,
    checksum: &str,
    arguments: &Arguments,
    verb: Verb,
    command: &str,
) -> Result<Ready> {
    let waiting = folder.waiting();
    let Some((work, mut run)) = waiting
        .iter()
        .find(|(_, run)| checksum_of(run) == checksum)
        .cloned()
    else {
        if let Some(why) = superseded::why(folder, checksum) {
            bail!("the plan {checksum} no longer waits: {why}; make a new one with `{command}`");
        }
        match waiting.first() {
            Some((_, run)) => bail!(
                "the plan that waits is {}, not {checksum}; nothing was applied",
                checksum_of(run)
            ),
            None => bail!("no plan waits here; make one with `{command}`; nothing was applied"),
        }
    };
    if let Some(option) = arguments.contradicts(verb, &run.spec)? {
        bail!(
            "{option} is not what the plan {checksum} was made with, and it is applied as it is; leave {option} out, or make a new plan \
             with `{command}`; nothing was applied"
        );
    }
    let created = run.plan().and_then(|plan| plan.created_at.clone());
    let limit = jiff::SignedDuration::try_from(run.spec.approval.expires_after.0)
        .unwrap_or(jiff::SignedDuration::MAX);
    if created.is_some_and(|at| {
        at.0.checked_add(limit)
            .is_ok_and(|until| until < Timestamp::now())
    }) {
        bail!(
            "the plan {checksum} is older than {}; make a new one with `{command}`; nothing was applied",
            run.spec.approval.expires_after
        );
    }
    let plan_args = match files::regular(&work.join(WORDS)) {
        Ok(mut file) => {
            let mut words = Vec::new();
            file.read_to_end(&mut words)?;
            let words = words
                .split(|byte| *byte == 0)
                .filter(|word| !word.is_empty());
            arguments.made_args(
                words
                    .map(|word| OsStr::from_bytes(word).to_owned())
                    .collect(),
            )?
        }
        Err(_) => arguments.plan_args()?,
    };
    let number = run.attempt().map_or(1, |attempt| attempt.number + 1);
    open_attempt(&mut run, number);
    // The restored run does not ask again: the person has approved on the command line.
    let settings = Arc::new(Settings {
        restores: true,
        ..settings(&run, &work, target, command)
    });
    let host = Arc::new(Laptop::new(settings.clone(), plan_args, false));
    let api = FileApi::create(&work.join("run.json"), run)?;
    api.approve(checksum, &session::person())?;
    Ok(Ready {
        api,
        settings,
        host,
    })
}

/// The checksum of a run's plan; empty without a plan.
fn checksum_of(run: &TerraformRun) -> String {
    run.plan()
        .map(|plan| plan.checksum.clone())
        .unwrap_or_default()
}

fn open_attempt(run: &mut TerraformRun, number: u32) {
    let name = run.metadata.name.clone().unwrap_or_default();
    if let Some(annotations) = &mut run.metadata.annotations {
        annotations.remove(names::CANCEL);
    }
    let status = run.status.get_or_insert_default();
    status.phase.get_or_insert(Phase::Pending);
    status.attempt = Some(Attempt {
        number,
        pod_name: name,
        pod_uid: Some(LOCAL.to_owned()),
        open: true,
        opened_at: Some(whole_seconds(Timestamp::now())),
        tries: number,
        ..Attempt::default()
    });
}

fn settings(run: &TerraformRun, work: &Path, target: &Target, command: &str) -> Settings {
    let inherited = std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        !name.starts_with("PAWL_") && !NOT_INHERITED.contains(&&*name)
    });
    let name = run.metadata.name.clone().unwrap_or_default();
    let below = Settings::below(work);
    // Values of Secrets in a cluster come from files below `.pawl`, which git ignores.
    let of_objects = |kind: &str, none: &Path| {
        target
            .folder()
            .map_or(none.to_owned(), |folder| folder.join(".pawl").join(kind))
    };
    Settings {
        secrets: of_objects("secrets", &below.secrets),
        config_maps: of_objects("configmaps", &below.config_maps),
        pod_name: name.clone(),
        run: name,
        run_uid: run.metadata.uid.clone().unwrap_or_default(),
        attempt: run.attempt().map_or(1, |attempt| attempt.number),
        inherited: inherited.collect(),
        folder: target.folder().cloned(),
        command: Some(command.to_owned()),
        progress_every: Duration::from_millis(200),
        ..below
    }
}

/// Opens the log of a run. Each process that works on the run appends to it.
fn log_file(work: &Path) -> Result<std::fs::File> {
    let path = work.join("log");
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&path);
    file.with_context(|| format!("{} cannot be written", path.display()))
}
