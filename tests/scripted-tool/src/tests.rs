//! Runs the tool as a process, with a state server in this process.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use harness::wait;
use ledger::{Entry, what};
use servers::state::{LockInfo, StateServer};

const ARGUMENTS: &str = "SCRIPTED_TOOL_ARGUMENTS";

/// Makes a command of this test runner play the tool: it runs the one test below, which then is the tool.
pub(super) fn as_tool(command: &mut Command, arguments: &[&str]) {
    command.args(["--exact", "-q", "--nocapture", "tests::plays_the_tool"]);
    command.env(ARGUMENTS, json!(arguments).to_string());
}

#[test]
fn plays_the_tool() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let mut arguments: Vec<String> = serde_json::from_str(&arguments).unwrap();
    arguments.insert(0, "tofu".to_owned());
    let code = super::run(arguments);
    std::process::exit(code);
}

/// A work directory with a script, and a state server.
struct Bench {
    server: StateServer,
    dir: tempfile::TempDir,
}

impl Bench {
    async fn with(mut script: Value) -> Self {
        let server = StateServer::start("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let bench = Self { server, dir: tempfile::tempdir().unwrap() };
        script["ledger"] = json!(bench.server.ledger_url());
        script["name"] = json!("bench");
        let backend = json!({"terraform": {"backend": {"http": bench.server.backend_config("s")}}});
        for (file, content) in [(super::SCRIPT_FILE, script), (super::BACKEND_FILE, backend)] {
            std::fs::write(bench.path().join(file), content.to_string()).unwrap();
        }
        bench
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn command(&self, line: &str) -> Command {
        let mut command = super::steps::own_program(&line.split(' ').collect::<Vec<_>>()).unwrap();
        command.current_dir(self.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    async fn run(&self, line: &str) -> Ran {
        let child = self.command(line).spawn().unwrap();
        wait(child).await
    }

    /// Runs a command that must exit with 0.
    async fn good(&self, line: &str) -> Ran {
        let ran = self.run(line).await;
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.text);
        ran
    }

    /// Starts a command and waits until its ledger has this entry.
    async fn until(&self, line: &str, what: &str) -> Child {
        let child = self.command(line).spawn().unwrap();
        self.wait_for(what, 1).await;
        child
    }

    async fn wait_for(&self, what: &str, count: usize) -> Vec<Entry> {
        let look = async || {
            let found: Vec<Entry> = self.server.ledger().into_iter().filter(|entry| entry.what == what).collect();
            Ok(if found.len() >= count { Ok(found) } else { Err(format!("{:?}", self.server.ledger())) })
        };
        wait::until(what, Duration::from_secs(60), look).await.unwrap()
    }

    /// Opens the [`gate`].
    fn open(&self) {
        std::fs::write(self.path().join("open"), "").unwrap();
    }

    fn created(&self) -> usize {
        self.server.ledger().iter().filter(|entry| entry.what == what::RESOURCE).count()
    }
}

/// A step that blocks until [`Bench::open`]; an interrupt does not end it.
fn gate() -> Value {
    json!({"exec": ["sh", "-c", "until [ -e open ] || [ ! -e pawl-script.json ]; do sleep 0.02; done"]})
}

struct Ran {
    code: Option<i32>,
    text: String,
}

impl Ran {
    fn events(&self, kind: &str) -> Vec<Value> {
        let events = self.text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.filter(|event| event["type"] == kind).collect()
    }

    fn summary(&self) -> String {
        self.events("diagnostic").iter().map(|event| event["diagnostic"]["summary"].as_str().unwrap().to_owned()).collect()
    }
}

async fn wait(child: Child) -> Ran {
    let output: Output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Ran { code: output.status.code(), text }
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_shown_and_applied_once() {
    let bench = Bench::with(json!({"resources": 3})).await;
    let uninitialized = bench.run("plan -json -out=p").await;
    assert_eq!(uninitialized.summary(), "Backend initialization required, please run \"tofu init\"");
    bench.good("init -json -input=false").await;
    let initialized = std::fs::read_to_string(bench.path().join(".terraform/terraform.tfstate")).unwrap();
    let initialized: Value = serde_json::from_str(&initialized).unwrap();
    assert_eq!(initialized["backend"]["config"]["address"], bench.server.url("s"));
    assert_eq!(initialized["backend"]["type"], "http");

    let plan = bench.run("plan -json -out=p -input=false -detailed-exitcode").await;
    assert_eq!(plan.code, Some(2), "{}", plan.text);
    assert_eq!(plan.events("version")[0]["tofu"], "1.10.6");
    assert_eq!(plan.events("planned_change").len(), 3);
    assert_eq!(plan.events("change_summary")[0]["changes"]["add"], 3);
    let first = std::fs::read(bench.path().join("p")).unwrap();
    bench.good("plan -json -out=p2").await;
    assert_ne!(first, std::fs::read(bench.path().join("p2")).unwrap(), "two plans with the same bytes");

    let show = bench.good("show -json p").await;
    let shown: Value = show.text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).next_back().unwrap();
    assert_eq!(shown["format_version"], "1.2");
    assert_eq!(shown["resource_changes"][2]["change"]["actions"], json!(["create"]));
    let text = bench.good("show -no-color p").await.text;
    assert!(
        text.contains("# terraform_data.r[2] will be created") && text.contains("Plan: 3 to add, 0 to change, 0 to destroy.")
    );

    let apply = bench.good("apply -json -input=false p").await;
    assert_eq!(apply.events("apply_complete").len(), 3);
    let state = bench.server.current("s").unwrap();
    assert_eq!(state["serial"], 1);
    assert_eq!(bench.server.lock("s"), None);
    let entries = bench.server.ledger();
    assert_eq!(ledger::forgotten(&entries, &state), Vec::<String>::new());
    let digest = tool_versions::Digest::of(&first).to_string();
    assert_eq!(ledger::applies_by_key(&entries).keys().collect::<Vec<_>>(), [&digest]);

    let stale = bench.run("apply -json p2").await;
    assert_eq!((stale.code, stale.summary().as_str()), (Some(1), "Saved plan is stale"));
    assert_eq!(ledger::violations(&bench.server.ledger()), Vec::<String>::new());
    let none = bench.run("plan -json -out=p3 -detailed-exitcode").await;
    assert_eq!((none.code, none.events("refresh_complete").len()), (Some(0), 3));
    bench.good("plan -json -destroy -out=d").await;
    assert_eq!(bench.good("apply -json d").await.events("apply_complete").len(), 3);
    assert_eq!(bench.server.current("s").unwrap()["resources"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_interrupt_ends_an_apply_with_its_state() {
    let first = json!({"address": "terraform_data.a", "steps": [{"exec": ["touch", "begun"]}, gate(), {"sleep_ms": 500}]});
    let bench = Bench::with(json!({"resources": [first, "terraform_data.b", "terraform_data.c"]})).await;
    bench.good("init").await;
    bench.good("plan -json -out=p").await;
    let child = bench.command("apply -json p").spawn().unwrap();
    let begun = async || Ok(bench.path().join("begun").exists());
    wait::until("the first resource is under way", Duration::from_secs(60), begun).await.unwrap();
    signal(&child, Signal::SIGINT);
    bench.wait_for(what::SIGNAL, 1).await;
    bench.open();
    let ran = wait(child).await;
    assert_eq!(ran.code, Some(1));
    assert!(ran.events("log").iter().any(|event| event["@message"].as_str().unwrap().contains("Interrupt received.")));
    assert!(ran.events("log").iter().any(|event| event["@message"] == "Stopping operation..."));
    assert_eq!(bench.created(), 1, "the resource under way is finished and no other begun");
    assert_eq!(ledger::forgotten(&bench.server.ledger(), &bench.server.current("s").unwrap()), Vec::<String>::new());
    assert_eq!(bench.server.lock("s"), None);
    assert_eq!(ledger::violations(&bench.server.ledger()), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_interrupt_loses_the_state_and_leaves_the_lock() {
    let slow = json!({"address": "terraform_data.b", "apply_ms": 90_000});
    let bench = Bench::with(json!({"resources": ["terraform_data.a", slow]})).await;
    bench.good("init").await;
    bench.good("plan -json -out=p").await;
    let child = bench.until("apply -json p", what::RESOURCE).await;
    signal(&child, Signal::SIGINT);
    bench.wait_for(what::SIGNAL, 1).await;
    signal(&child, Signal::SIGTERM);
    let ran = wait(child).await;
    assert_eq!(ran.code, Some(1));
    assert!(ran.text.contains("Two interrupts received. Exiting immediately."), "{}", ran.text);
    assert_eq!(bench.server.current("s"), None);
    assert!(bench.server.lock("s").is_some());
    assert_eq!(ledger::violations(&bench.server.ledger()).len(), 1);
    assert_eq!(ledger::forgotten(&bench.server.ledger(), &Value::Null).len(), 1);
    let held = bench.run("plan -json -out=q").await;
    assert_eq!(held.summary(), "Error acquiring the state lock");
    assert!(held.text.contains("OperationTypeApply"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_cannot_be_saved_is_left_in_a_file() {
    let bench = Bench::with(json!({"resources": 1})).await;
    bench.good("init").await;
    bench.good("plan -json -out=p").await;
    bench.server.fail_writes("s", 1);
    let ran = bench.run("apply -json p").await;
    assert_eq!((ran.code, ran.summary().as_str()), (Some(1), "Failed to save stateFailed to persist state to backend"));
    let left = std::fs::read_to_string(bench.path().join("errored.tfstate")).unwrap();
    assert_eq!(ledger::forgotten(&bench.server.ledger(), &serde_json::from_str(&left).unwrap()), Vec::<String>::new());
    assert_eq!(bench.server.lock("s"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_lock_is_waited_for_as_long_as_asked() {
    let bench = Bench::with(json!({})).await;
    bench.good("init").await;
    assert!(bench.server.hold_lock("s", LockInfo::stranger("1", "someone@elsewhere")));
    let ran = bench.run("plan -json -out=p -lock-timeout=300ms").await;
    assert!(ran.text.contains("someone@elsewhere") && ran.code == Some(1), "{}", ran.text);
    let child = bench.command("plan -json -out=p -lock-timeout=20s").spawn().unwrap();
    bench.wait_for(what::LOCK_REFUSED, 4).await;
    assert!(bench.server.force_unlock("s"));
    assert_eq!(wait(child).await.code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_do_what_they_say() {
    let bench = Bench::with(json!({"commands": {
        "init": [{"only": [1], "diagnostic": {"summary": "bad", "detail": "worse", "file": "main.tf", "line": 2}}],
        "plan": [{"print": "raw"}, "default", {"flood_mb": 1}, {"exec": ["true"]}, {"allocate_mb": 1}],
        "show": [{"kill_self": 9}],
    }}))
    .await;
    let mut main = std::fs::File::create(bench.path().join("main.tf")).unwrap();
    main.write_all(b"one\ntwo {\n").unwrap();
    let failed = bench.run("init -json").await;
    let diagnostic = &failed.events("diagnostic")[0]["diagnostic"];
    assert_eq!((failed.code, &diagnostic["range"]["start"]["line"]), (Some(1), &json!(2)));
    assert_eq!(diagnostic["snippet"]["code"], "two {");
    bench.good("init -json").await;
    let plan = bench.good("plan -json -out=p").await;
    assert!(plan.text.contains("\nraw\n") || plan.text.starts_with("raw\n"));
    assert!(plan.text.len() > 1 << 20 && plan.text.len() < 2 << 20);
    assert_eq!(bench.run("show p").await.code, None);
    let ends: Vec<_> = bench.server.ledger().into_iter().filter(|entry| entry.what == what::COMMAND_END).collect();
    assert_eq!(ends.iter().map(|end| end.number("exit")).collect::<Vec<_>>(), [Some(1), Some(0), Some(0)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_can_fail_and_a_provider_can_be_killed() {
    let bench = Bench::with(json!({"resources": [
        {"address": "terraform_data.a", "steps": [{"diagnostic": {"summary": "refused"}}]},
        {"address": "terraform_data.b", "steps": [{"provider": {"seconds": 60, "ignore_signals": true}}]},
        "terraform_data.c",
    ]}))
    .await;
    bench.good("init").await;
    bench.good("plan -json -out=p").await;
    let child = bench.until("apply -json p", what::BACKGROUND).await;
    signal(&child, Signal::SIGINT);
    bench.wait_for(what::SIGNAL, 1).await;
    let provider = bench.wait_for(what::BACKGROUND, 1).await[0].number("pid").unwrap();
    kill(Pid::from_raw(i32::try_from(provider).unwrap()), Signal::SIGKILL).unwrap();
    let ran = wait(child).await;
    assert_eq!((ran.code, ran.events("apply_errored").len()), (Some(1), 2));
    assert_eq!(ran.summary(), "refusedPlugin did not respondexecution halted");
    assert_eq!(ran.events("diagnostic")[0]["diagnostic"]["address"], "terraform_data.a");
    assert_eq!((bench.created(), bench.server.lock("s")), (0, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_works_has_a_heartbeat_and_a_question_needs_an_answer() {
    let bench = Bench::with(json!({"progress_ms": 200, "resources": [
        {"address": "terraform_data.a", "steps": [{"provider": {"seconds": 4}}]},
    ], "commands": {"show": [{"ask": "provider.scripted.token"}], "state": [{"line_mb": 2}]}}))
    .await;
    bench.good("init").await;
    bench.good("plan -json -out=p").await;
    let begun = Instant::now();
    let beats = bench.good("apply -json p").await.events("apply_progress");
    assert!(beats.len() >= 3 && beats.len() as u128 <= begun.elapsed().as_millis() / 200, "{beats:?}");
    let asked = bench.run("show -json p").await;
    assert!(asked.text.contains("provider.scripted.token\n  Enter a value: \n"), "{}", asked.text);
    assert_eq!((asked.code, asked.summary().as_str()), (Some(1), "Error asking for input to configure the provider"));
    assert_eq!(bench.wait_for(what::MARK, 1).await.len(), 1);
    let longest = bench.good("state pull").await.text.lines().map(str::len).max();
    assert_eq!(longest, Some(2 << 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_background_process_outlives_the_tool() {
    let spawn = json!({"seconds": 60, "daemon": true, "ignore_signals": true, "beat_ms": 50});
    let bench = Bench::with(json!({"commands": {"plan": [{"spawn": spawn}]}})).await;
    bench.good("init").await;
    bench.good("plan -json -out=p").await;
    let seen = bench.wait_for(what::BACKGROUND, 1).await;
    let alive = bench.wait_for(what::BACKGROUND, seen.len() + 2).await;
    let pid = Pid::from_raw(i32::try_from(alive[0].number("pid").unwrap()).unwrap());
    assert_eq!(nix::unistd::getsid(Some(pid)).unwrap(), pid);
    kill(pid, Signal::SIGTERM).unwrap();
    bench.wait_for(what::BACKGROUND, alive.len() + 2).await;
    kill(pid, Signal::SIGKILL).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_backend_the_state_is_a_local_file() {
    let bench = Bench::with(json!({})).await;
    std::fs::remove_file(bench.path().join(super::BACKEND_FILE)).unwrap();
    bench.good("init").await;
    assert!(!bench.path().join(".terraform/terraform.tfstate").exists());
    bench.good("plan -json -out=p").await;
    bench.good("apply -json p").await;
    assert!(bench.path().join("terraform.tfstate").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_script_is_a_failure_with_its_file() {
    let bench = Bench::with(json!({"commands": {"plan": [{"no_such_step": 1}]}})).await;
    let ran = bench.run("plan -json").await;
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.events("diagnostic")[0]["diagnostic"]["range"]["filename"], super::SCRIPT_FILE);
}
