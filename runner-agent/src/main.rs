//! `runner-agent`: entrypoint of an attempt's pod.

use std::{io::Write, sync::Arc, time::Duration};

use clap::{CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use crds::pod_env;
use runner_agent::{
    api::KubeApi,
    datastore::{
        client,
        spool::{Both, Spool, SpoolWriter},
    },
    driver::Driver,
    host::Pod,
    local::{arguments::Arguments, tool_options},
    manual, own_lines,
    phases::{PhaseRunner, Remote},
    process::{Children, Log, enter_session, kill_others, own_pid, reap_strangers},
    settings::Settings,
    termination,
    tool::wrapped,
    tool_cli,
};
use tokio::sync::mpsc;
use tracing_subscriber::EnvFilter;

/// Runs Terraform and OpenTofu as a state machine: in a pod of its own, or on this machine.
#[derive(Parser)]
#[command(name = "runner-agent", version)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Work on one attempt of a TerraformRun, as the entrypoint of its pod.
    Run,
    Local(Box<Arguments>),
    Tool(Box<tool_cli::Arguments>),
    /// Print the completion for a shell
    #[command(after_help = COMPLETION_HELP)]
    Completion {
        /// The shell.
        shell: Shell,
    },
    /// Print a page of the manual: `runner-agent man local | man -l -`
    Man {
        /// The page of a command; the default is the program's.
        page: Option<Page>,
    },
}

/// Commands with their own page.
#[derive(Clone, Copy, ValueEnum)]
enum Page {
    Local,
}

const COMPLETION_HELP: &str = "\
bash:  runner-agent completion bash > ~/.local/share/bash-completion/completions/runner-agent
zsh:   runner-agent completion zsh  > a directory of $fpath, as _runner-agent
fish:  runner-agent completion fish > ~/.config/fish/completions/runner-agent.fish";

fn main() {
    if let Some(code) = enter_session() {
        leave(code);
    }
    if wrapped::is_called() {
        leave(wrapped::run());
    }
    let words = tool_options::read(std::env::args_os()).unwrap_or_else(|text| {
        eprintln!("error: {text}");
        leave(pod_env::EXIT_USAGE);
    });
    let arguments = Line::try_parse_from(words).unwrap_or_else(|error| {
        let _ = error.print();
        leave(if error.use_stderr() {
            pod_env::EXIT_USAGE
        } else {
            0
        });
    });
    let code = match arguments.command {
        Command::Run => run(),
        Command::Local(arguments) => local(&arguments),
        Command::Tool(arguments) => tool(&arguments),
        Command::Completion { shell } => printed(&manual::completion(
            Line::command(),
            shell,
            &mut std::io::stdout(),
        )),
        Command::Man { page } => {
            let page = page.map(|Page::Local| "local");
            printed(&manual::page(Line::command(), page, &mut std::io::stdout()))
        }
    };
    leave(code);
}

/// Exit code of a command that only prints. A closed pipe is no error.
fn printed(result: &std::io::Result<()>) -> u8 {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("error: {error}");
            pod_env::exit_code(crds::RunResult::Failed)
        }
        Ok(()) | Err(_) => 0,
    }
}

/// Runs `tool`, which may download.
fn tool(arguments: &tool_cli::Arguments) -> u8 {
    if let Ok(filter) = EnvFilter::try_from_env(own_lines::FILTER) {
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_env_filter(filter)
            .init();
    }
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: no runtime: {error}");
            return pod_env::EXIT_NO_RESULT;
        }
    };
    match runtime.block_on(tool_cli::run(arguments, &mut std::io::stdout())) {
        Ok(code) => code,
        Err(error) => printed(&Err(error)),
    }
}

/// Runs `local`. The terminal is the person's, so the agent's log lines appear only on request.
fn local(arguments: &Arguments) -> u8 {
    if let Ok(filter) = EnvFilter::try_from_env(own_lines::FILTER) {
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_env_filter(filter)
            .init();
    }
    // Adopt orphans of the tool, as in a pod.
    let _ = nix::sys::prctl::set_child_subreaper(true);
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: no runtime: {error}");
            return pod_env::EXIT_NO_RESULT;
        }
    };
    let code = runtime.block_on(runner_agent::local::run(arguments));
    // A thread may still wait for input from the terminal.
    runtime.shutdown_timeout(Duration::from_millis(100));
    code
}

fn leave(code: u8) -> ! {
    let _ = std::io::stdout().flush();
    std::process::exit(i32::from(code));
}

fn run() -> u8 {
    let settings = match Settings::from_env() {
        Ok(settings) => Arc::new(settings),
        Err(error) => {
            eprintln!(
                "error: {error}\nhint: `runner-agent run` is the entrypoint of a pod that Pawl makes"
            );
            return pod_env::EXIT_USAGE;
        }
    };
    // Fails only if a subscriber is set, and none is yet.
    let _ = tracing::subscriber::set_global_default(own_lines::subscriber(std::io::stderr));
    install_panic_hook(settings.clone());
    termination::reserve(&settings.termination_log);
    // The stack's code runs as the same user, so prevent it from reading token and nonce from the agent's memory.
    let _ = nix::sys::prctl::set_dumpable(false);
    if own_pid() != 1 {
        // Adopt orphans of the tool, as PID 1 does.
        let _ = nix::sys::prctl::set_child_subreaper(true);
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "no runtime");
            return pod_env::EXIT_NO_RESULT;
        }
    };
    let code = runtime.block_on(work(settings));
    // A blocked thread may not delay the pod's end.
    runtime.shutdown_timeout(Duration::from_millis(100));
    code
}

async fn work(settings: Arc<Settings>) -> u8 {
    let stops = match stops() {
        Ok(stops) => stops,
        Err(error) => {
            tracing::error!(%error, "no signals");
            return pod_env::EXIT_NO_RESULT;
        }
    };
    let api = match KubeApi::connect(&settings.namespace, &settings.run).await {
        Ok(api) => Arc::new(api),
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "no way to the API");
            return pod_env::EXIT_NO_RESULT;
        }
    };
    let children = Children::default();
    let reaper = tokio::spawn(reap_strangers(children.clone()));
    let (log, remote) = match log_and_datastore(&settings) {
        Ok(both) => both,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "no way to the datastore");
            return pod_env::EXIT_NO_RESULT;
        }
    };
    let mut work = PhaseRunner::new(
        settings.clone(),
        Arc::new(Pod::new(settings.clone())),
        children.clone(),
        log.clone(),
    );
    if let Some(remote) = remote {
        work = work.with_datastore(remote);
    }
    let work = Arc::new(work);
    let clock = api.clock();
    let driver = Driver::new(api, work.clone(), clock, settings.clone());
    // The driver is a separate task, so that its panic is an error here and does not end PID 1 with all its children.
    let code = match tokio::spawn(driver.run(stops)).await {
        Ok(code) => code,
        Err(error) => {
            tracing::error!(%error, "the driver ended");
            pod_env::EXIT_NO_RESULT
        }
    };
    kill_others(&children, Duration::from_secs(2)).await;
    if let Some(text) = work.finish_log().await {
        termination::say_unkept(&settings.termination_log, &text);
    }
    let cleaned = tokio::task::spawn_blocking(move || work.clean());
    let _ = tokio::time::timeout(Duration::from_secs(5), cleaned).await;
    log.flush(Duration::from_secs(2)).await;
    reaper.abort();
    code
}

/// The log to standard output and, with a datastore, to its spool.
fn log_and_datastore(settings: &Settings) -> anyhow::Result<(Log, Option<Remote>)> {
    let Some(store) = &settings.store else {
        return Ok((Log::to(std::io::stdout()), None));
    };
    let client = client(
        store,
        &settings.namespace,
        &settings.run,
        settings.attempt,
        &settings.nonce,
    )?;
    let spool = Spool::create(settings.kept.clone())?;
    let log = Log::to(Both {
        out: std::io::stdout(),
        spool: SpoolWriter(spool.clone()),
    });
    Ok((log, Some(Remote::start(client, spool))))
}

/// Sends a message for each SIGTERM and SIGINT.
fn stops() -> std::io::Result<mpsc::UnboundedReceiver<()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (sender, receiver) = mpsc::unbounded_channel();
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signals = signal(kind)?;
        let sender = sender.clone();
        tokio::spawn(
            async move { while signals.recv().await.is_some() && sender.send(()).is_ok() {} },
        );
    }
    Ok(receiver)
}

/// Reports a panic in the termination message. A later end by the driver overwrites it.
fn install_panic_hook(settings: Arc<Settings>) {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic
            .location()
            .map(|at| format!("{}:{}", at.file(), at.line()))
            .unwrap_or_default();
        let text = format!("the agent has a fault at {place}");
        let message = termination::message(&settings, None, &text, Some(termination::fault(&text)));
        termination::write(&settings.termination_log, &message);
        before(panic);
    }));
}
