use super::*;
use crate::process::tree::send;
use nix::sys::signal::Signal;

/// Records each line.
#[derive(Default)]
pub(crate) struct Kept(pub(crate) Vec<(Source, String)>);
impl Sink for Kept {
    fn line(&mut self, source: Source, line: &str, _cut: u64) {
        self.0.push((source, line.to_owned()));
    }
    async fn chunk(&mut self) {}
}

/// Records each line and sends it to a channel.
struct Heard(Kept, tokio::sync::mpsc::UnboundedSender<String>);
impl Sink for Heard {
    fn line(&mut self, source: Source, line: &str, cut: u64) {
        self.0.line(source, line, cut);
        let _ = self.1.send(line.to_owned());
    }
    async fn chunk(&mut self) {}
}

fn heard() -> (Heard, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let (said, lines) = tokio::sync::mpsc::unbounded_channel();
    (Heard(Kept::default(), said), lines)
}

/// A sink that does this at the first line.
fn at_first_line(children: &Children, act: fn(&Children)) -> Heard {
    let children = children.clone();
    let (heard, mut lines) = heard();
    tokio::spawn(async move {
        lines.recv().await;
        act(&children);
    });
    heard
}

/// A script for bash.
pub(crate) fn bash(script: &str, role: Role) -> Command {
    Command {
        program: "/bin/bash".into(),
        args: vec!["-c".into(), script.into()],
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        dir: "/".into(),
        role,
    }
}

fn sh(script: &str) -> Command {
    Command {
        program: "/bin/sh".into(),
        ..bash(script, Role::Other)
    }
}

/// Interrupts at each of the first two lines, and creates a file after a further pause.
fn interrupts(
    children: &Children,
    mut lines: tokio::sync::mpsc::UnboundedReceiver<String>,
    rest: Duration,
    open: PathBuf,
) -> tokio::task::JoinHandle<()> {
    let children = children.clone();
    tokio::spawn(async move {
        for _ in 0..2 {
            lines.recv().await;
            children.interrupt();
        }
        tokio::time::sleep(rest).await;
        std::fs::write(open, "").unwrap();
    })
}

/// A command that runs a tool like Terragrunt does: `$TOOL SCRIPT` runs a separate executable.
fn around(dir: &std::path::Path, script: &str) -> Command {
    let tool = dir.join("tofu");
    // Another process copies the file: a child that another test forks meanwhile would inherit an open file of this process, and `exec`
    // would fail.
    assert!(
        std::process::Command::new("cp")
            .arg("/bin/sh")
            .arg(&tool)
            .status()
            .unwrap()
            .success()
    );
    let mut command = sh(script);
    command
        .env
        .push(("TOOL".into(), format!("{} -c", tool.display()).into()));
    Command {
        role: Role::Above(tool),
        ..command
    }
}

#[tokio::test]
async fn output_exit_code_and_environment_are_as_given() {
    let mut kept = Kept::default();
    let exit = Children::default()
        .run(
            &sh("echo out; echo err >&2; env | grep -c HOME; cat; exit 3"),
            &mut kept,
        )
        .await
        .unwrap();
    assert_eq!((exit.code, exit.signal, exit.told), (3, None, false));
    kept.0.sort_by_key(|(source, _)| *source == Source::Err);
    assert_eq!(
        kept.0,
        [
            (Source::Out, "out".into()),
            (Source::Out, "0".into()),
            (Source::Err, "err".into())
        ]
    );
}

#[tokio::test]
async fn one_sigint_reaches_the_tool_and_not_its_children() {
    // The provider is in the tool's process group, so a signal to the group would end it. It runs until a file exists.
    let dir = tempfile::tempdir().unwrap();
    let open = dir.path().join("open");
    let script = format!(
        "trap 'n=$((n+1)); echo got $n' INT; \
         sh -c 'trap \"echo provider hit\" INT; until [ -e {} ]; do sleep 0.02; done; echo provider done' & \
         echo ready; wait; wait; echo end $n",
        open.display()
    );
    let children = Children::default();
    let (mut heard, lines) = heard();
    // At `ready` and at `got 1`.
    let told = interrupts(&children, lines, Duration::from_millis(200), open);
    let exit = children.run(&sh(&script), &mut heard).await.unwrap();
    told.await.unwrap();
    let lines: Vec<_> = heard.0.0.iter().map(|(_, l)| l.as_str()).collect();
    assert_eq!(lines, ["ready", "got 1", "provider done", "end 1"]);
    assert!(exit.told);
    assert!(matches!(
        children.run(&sh("true"), &mut Kept::default()).await,
        Err(RunError::Stopped)
    ));
}

#[tokio::test]
async fn daemon_that_holds_the_pipe_does_not_delay_the_run() {
    let start = std::time::Instant::now();
    let mut kept = Kept::default();
    let exit = Children::default()
        .run(&sh("setsid sleep 60 & echo $!"), &mut kept)
        .await
        .unwrap();
    let took = start.elapsed();
    // It is still alive, so without the limit the run would have waited.
    let pid = kept.0[0].1.parse().unwrap();
    assert!(nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None::<Signal>).is_ok());
    send(pid, Signal::SIGKILL);
    assert_eq!(exit.code, 0);
    assert!(took >= DRAIN, "{took:?}");
}

#[tokio::test]
async fn providers_are_killed_before_the_tool() {
    let children = Children::default();
    let mut heard = at_first_line(&children, Children::kill_providers);
    let script = "sh -c 'echo ready; exec sleep 600'; echo provider ended with $?";
    let exit = children.run(&sh(script), &mut heard).await.unwrap();
    assert_eq!(exit.code, 0);
    assert!(
        heard
            .0
            .0
            .contains(&(Source::Out, "provider ended with 137".into())),
        "{:?}",
        heard.0.0
    );
}

#[tokio::test]
async fn last_reader_and_its_tool_are_not_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let children = Children::default();
    children.interrupt();
    // Long enough for several checks for new children.
    let command = around(dir.path(), "$TOOL 'sleep 0.5; echo read; true'");
    let (reader, writer) = stream(&command.role).unwrap();
    let exit = children
        .run_into_last(&command, writer, &mut Kept::default())
        .await
        .unwrap();
    assert_eq!(
        (
            exit.code,
            std::io::read_to_string(std::fs::File::from(reader))
                .unwrap()
                .as_str()
        ),
        (0, "read\n")
    );
}

#[tokio::test]
async fn tool_beneath_is_not_killed_as_a_provider() {
    let dir = tempfile::tempdir().unwrap();
    let children = Children::default();
    let mut heard = at_first_line(&children, Children::kill_providers);
    // The tool starts itself as a child, which counts as a provider.
    let script = "$TOOL '$TOOL \"echo ready; sleep 600; true\"; echo saved after $?'; echo around ended with $?";
    let exit = children
        .run(&around(dir.path(), script), &mut heard)
        .await
        .unwrap();
    let lines: Vec<_> = heard
        .0
        .0
        .iter()
        .filter(|(source, _)| *source == Source::Out)
        .map(|(_, l)| l.as_str())
        .collect();
    assert_eq!(lines, ["ready", "saved after 137", "around ended with 0"]);
    assert_eq!(exit.code, 0);
}

#[tokio::test]
async fn one_sigint_reaches_the_tool_beneath_only() {
    let dir = tempfile::tempdir().unwrap();
    let open = dir.path().join("open");
    // The wrapper would forward a signal, which would be the tool's second.
    let script = format!(
        "trap 'echo around hit' INT; \
         $TOOL 'trap \"n=\\$((n+1)); echo got \\$n\" INT; echo ready; until [ -e {} ]; do sleep 0.02; done; echo end; exit 3'; \
         echo around ended with $?",
        open.display()
    );
    let children = Children::default();
    let (mut heard, lines) = heard();
    // Longer than the interval of the check.
    let told = interrupts(&children, lines, 3 * LOOK, open);
    let exit = children
        .run(&around(dir.path(), &script), &mut heard)
        .await
        .unwrap();
    told.await.unwrap();
    let lines: Vec<_> = heard.0.0.iter().map(|(_, l)| l.as_str()).collect();
    assert_eq!(lines, ["ready", "got 1", "end", "around ended with 3"]);
    assert!(exit.told);
}

#[tokio::test]
async fn tool_started_after_the_signal_gets_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let endless = "while :; do sleep 0.02; done";
    let children = Children::default();
    let mut heard = at_first_line(&children, Children::interrupt);
    // The first tool runs until the second has ended: between two tools the signal would go to the wrapper, and to no tool. A pipeline
    // runs both, since a shell's background processes ignore SIGINT.
    let (told, open) = (dir.path().join("told"), dir.path().join("open"));
    let (told, open) = (told.display(), open.display());
    let script = format!(
        "$TOOL 'trap \"touch {told}\" INT; echo ready >&2; until [ -e {open} ]; do sleep 0.02; done' | \
         {{ until [ -e {told} ]; do sleep 0.02; done; $TOOL 'trap \"exit 1\" INT; {endless}'; touch {open}; }}; \
         echo both ended"
    );
    children
        .run(&around(dir.path(), &script), &mut heard)
        .await
        .unwrap();
    assert_eq!(
        heard.0.0.last(),
        Some(&(Source::Out, "both ended".into())),
        "{:?}",
        heard.0.0
    );
    // Without a tool below, the command itself gets the signal.
    let children = Children::default();
    let mut heard = at_first_line(&children, Children::interrupt);
    let script = format!("trap 'echo hit; exit 1' INT; echo ready; {endless}");
    children
        .run(&around(dir.path(), &script), &mut heard)
        .await
        .unwrap();
    assert_eq!(
        heard.0.0.last(),
        Some(&(Source::Out, "hit".into())),
        "{:?}",
        heard.0.0
    );
}

#[tokio::test]
async fn killed_tool_reports_its_signal() {
    let children = Children::default();
    let other = children.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        other.kill();
    });
    let exit = children
        .run(
            &sh("trap '' INT TERM; while :; do sleep 5; done"),
            &mut Kept::default(),
        )
        .await
        .unwrap();
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
}

#[tokio::test]
async fn script_in_the_tools_place_writes_to_descriptors() {
    let run = async |script: &str| {
        let mut kept = Kept::default();
        let command = bash(script, Role::Tool);
        let exit = Children::default().run(&command, &mut kept).await.unwrap();
        (exit.code, kept.0.len())
    };
    assert_eq!(run("echo out >&1; echo err >&2").await, (0, 2));
    // A socket cannot be opened, so code below the tool cannot print in its name. The line is the shell's own.
    for path in ["/dev/stdout", "/dev/stderr", "/proc/self/fd/1"] {
        assert_eq!(run(&format!("echo x > {path}")).await, (1, 1), "{path}");
    }
}
