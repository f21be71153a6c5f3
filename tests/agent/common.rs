//! Runs attempts with the real driver, a shell script as tool, and an in-memory run.

use std::{
    cell::OnceCell,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crds::{Failure, FailureClass, Phase, TerraformRunStatus};
use harness::wait;
use runner_agent::{
    datastore::{
        self,
        spool::{Both, Spool, SpoolWriter},
    },
    driver::Driver,
    host::Pod,
    phases::{PhaseRunner, Remote},
    ports::SystemClock,
    process::{Children, Log},
    settings::Settings,
};
use scripted_tool::plan_file;
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::memory_api::MemoryApi;

/// A longer wait indicates a defect, not a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Blocks the tool until [`Attempt::open`] or the end of its test, even if a child of it is killed.
pub(crate) const GATE: &str = "until [ -e $LEDGER.open ] || [ ! -e $LEDGER ]; do sleep 0.02; done";

/// An `init` with a backend that does not lock.
pub(crate) const UNLOCKED: &str = r#"echo '{"backend":{"type":"http","config":{"address":"http://state/x"}}}' > .terraform/terraform.tfstate"#;

/// A state that has the object of [`TOOL`].
pub(crate) const STORED: &str = r#"echo '{"version":4,"serial":2,"lineage":"x","resources":[{"mode":"managed","type":"a","name":"b","instances":[{"attributes":{"id":"1"}}]}]}'"#;

/// The tool: a script that records its executions and runs the commands in the run's environment.
const TOOL: &str = r#"#!/bin/sh
echo "$1" >> "$LEDGER"
case "$1" in
init)
  mkdir -p .terraform/providers
  echo '{"backend":{"type":"http","config":{"address":"http://user:pass@state/x","lock_address":"http://user:pass@state/x"}}}' > .terraform/terraform.tfstate
  echo '# lock' > .terraform.lock.hcl
  eval "$INIT" ;;
plan)
  for a in "$@"; do case $a in -out=*) out=${a#-out=} ;; esac; done
  LC_ALL=C sed "s/plan of a process/plan of $(printf %9d $$)/" "$PLAN_FILE" > "$out"
  echo '{"@level":"info","@message":"a.b: Plan to create","type":"planned_change"}'
  eval "$PLAN"
  exit "${PLAN_EXIT:-2}" ;;
show)
  if [ "$2" = -json ]; then echo "${PLAN_JSON:-$DEFAULT_JSON}"; else echo "Terraform will perform the following actions:"; echo "${PLAN_TEXT:-Plan: 1 to add, 0 to change, 0 to destroy.}"; fi ;;
state)
  eval "$STATE" ;;
force-unlock)
  eval "$UNLOCK" ;;
apply)
  eval "$BEFORE_APPLY"
  echo '{"@message":"a.b: Creating...","type":"apply_start","hook":{"resource":{"addr":"a.b"},"action":"create"}}'
  eval "$APPLY"
  echo '{"@message":"a.b: Creation complete","type":"apply_complete","hook":{"resource":{"addr":"a.b"},"action":"create"}}'
  exit 0 ;;
esac
"#;
const JSON: &str =
    r#"{"errored":false,"resource_changes":[{"address":"a.b","change":{"actions":["create"]}}]}"#;

/// An attempt in its own directory.
pub(crate) struct Attempt {
    pub dir: tempfile::TempDir,
    pub api: MemoryApi,
    pub settings: Arc<Settings>,
    pub log: Arc<Mutex<Vec<u8>>>,
    pub stop: mpsc::UnboundedSender<()>,
    pub work: Arc<PhaseRunner>,
    pub children: Children,
    task: JoinHandle<u8>,
}

#[derive(Clone)]
struct Shared(Arc<Mutex<Vec<u8>>>);
impl runner_agent::process::LogSink for Shared {}
impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub(crate) fn settings(dir: &Path) -> Settings {
    Settings {
        namespace: "team".into(),
        run: "vpc".into(),
        run_uid: "uid-1".into(),
        pod_name: "vpc-xxxxx-a1".into(),
        pod_uid: "pod-1".into(),
        grace: Duration::from_secs(30),
        tools: vec![dir.join("tools")],
        providers: dir.join("providers"),
        secrets: dir.join("secrets"),
        config_maps: dir.join("configmaps"),
        termination_log: dir.join("termination-log"),
        inherited: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())],
        // Longer than any phase, so that writes can be counted.
        progress_every: Duration::from_secs(3600),
        ..Settings::below(&dir.join("work"))
    }
}

/// A minimal spec with `more` merged over it; `env` is for the scripted tool.
pub(crate) fn spec(more: &Value, env: &[(&str, &str)]) -> Value {
    let mut spec = json!({"source": {"inline": {"files": {"main.tf": "variable \"p\" {\n  default = null\n}\n"}}}, "approval": {"mode": "Automatic"}});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let mut list: Vec<Value> = env
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect();
    list.extend(spec["env"].as_array().cloned().unwrap_or_default());
    spec["env"] = Value::Array(list);
    spec
}

/// Installs the scripted tool where the agent looks for it.
pub(crate) fn place_tool(dir: &Path) {
    let binary = dir.join("tools/opentofu/1.10.6/tofu");
    fs::create_dir_all(binary.parent().unwrap()).unwrap();
    fs::write(&binary, TOOL).unwrap();
    fs::set_permissions(&binary, PermissionsExt::from_mode(0o755)).unwrap();
}

/// The plan that `PLAN_FILE_JSON` names, else the one that `show -json` prints. `PLAN_FORMAT` is the version of its format.
fn put_plan_file(path: &str, env: &[(&str, &str)]) {
    let value = |name| {
        env.iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| *value)
    };
    let json = value("PLAN_FILE_JSON").or_else(|| value("PLAN_JSON"));
    let plan = serde_json::from_str(json.unwrap_or(JSON)).unwrap_or_default();
    let version = value("PLAN_FORMAT").map_or(plan_file::VERSION, |text| text.parse().unwrap());
    let file = plan_file::of(&plan, version, "plan of a process", ("scripted", b""));
    fs::write(path, file).unwrap();
}

/// Gives a test exclusive use of this process until its end: without a PID namespace of its own, an attempt that kills all other processes
/// kills all children of this process. Starting an attempt calls this. A test calls it itself if it starts other processes before that.
pub(crate) fn alone() {
    static ONE: Mutex<()> = Mutex::new(());
    thread_local! {
        // Each test has its own thread.
        static HELD: OnceCell<MutexGuard<'static, ()>> = const { OnceCell::new() };
    }
    HELD.with(|held| {
        held.get_or_init(|| ONE.lock().unwrap_or_else(PoisonError::into_inner));
    });
}

/// Starts an attempt with the scripted tool.
pub(crate) fn start(more: &Value, env: &[(&str, &str)]) -> Attempt {
    start_with(more, env, |_, _| {})
}

/// A spec whose plan needs an approval.
pub(crate) fn manual() -> Value {
    json!({"approval": {"mode": "Manual"}})
}

/// Like [`start`]. `adjust` may change settings and API before the start.
pub(crate) fn start_with(
    more: &Value,
    env: &[(&str, &str)],
    adjust: impl FnOnce(&mut Settings, &MemoryApi),
) -> Attempt {
    start_at(tempfile::tempdir().unwrap(), more, env, adjust)
}

/// Like [`start`], in a given directory.
pub(crate) fn start_at(
    dir: tempfile::TempDir,
    more: &Value,
    env: &[(&str, &str)],
    adjust: impl FnOnce(&mut Settings, &MemoryApi),
) -> Attempt {
    alone();
    place_tool(dir.path());
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (ledger, plan) = (at("ledger"), at("plan-file"));
    let mut env = env.to_vec();
    put_plan_file(&plan, &env);
    env.push(("PLAN_FILE", &plan));
    env.push(("LEDGER", &ledger));
    env.push(("DEFAULT_JSON", JSON));
    start_in(dir, &spec(more, &env), adjust)
}

pub(crate) fn start_in(
    dir: tempfile::TempDir,
    spec: &Value,
    adjust: impl FnOnce(&mut Settings, &MemoryApi),
) -> Attempt {
    alone();
    let mut settings = settings(dir.path());
    fs::write(&settings.termination_log, "").unwrap();
    let api = MemoryApi::new(spec);
    adjust(&mut settings, &api);
    let settings = Arc::new(settings);
    let log = Arc::new(Mutex::new(Vec::new()));
    let children = Children::default();
    let out = Shared(log.clone());
    // With a datastore the log is sent there as well, as in the program.
    let (writer, remote) = match &settings.store {
        Some(store) => {
            let client = datastore::client(
                store,
                &settings.namespace,
                &settings.run,
                settings.attempt,
                &settings.nonce,
            )
            .unwrap();
            let spool = Spool::create(dir.path().join("spool")).unwrap();
            (
                Log::to(Both {
                    out,
                    spool: SpoolWriter(spool.clone()),
                }),
                Some(Remote::start(client, spool)),
            )
        }
        None => (Log::to(out), None),
    };
    let mut work = PhaseRunner::new(
        settings.clone(),
        Arc::new(Pod::new(settings.clone())),
        children.clone(),
        writer.clone(),
    );
    if let Some(remote) = remote {
        work = work.with_datastore(remote);
    }
    let work = Arc::new(work);
    let driver = Driver::new(
        Arc::new(api.clone()),
        work.clone(),
        SystemClock,
        settings.clone(),
    );
    let (stop, stops) = mpsc::unbounded_channel();
    let task = tokio::spawn(async move {
        let code = driver.run(stops).await;
        // As the program does at its end.
        writer.flush(PATIENCE).await;
        code
    });
    Attempt {
        dir,
        api,
        settings,
        log,
        stop,
        work,
        children,
        task,
    }
}

impl Attempt {
    /// Waits for the end of the process.
    pub(crate) async fn end(&mut self) -> u8 {
        let code = tokio::time::timeout(2 * PATIENCE, &mut self.task).await;
        code.unwrap_or_else(|_| panic!("the attempt does not end: {:#?}", self.api.status()))
            .unwrap()
    }

    /// Waits for the end with this exit code; returns the status.
    pub(crate) async fn ends(&mut self, code: u8) -> TerraformRunStatus {
        let (ended, status) = (self.end().await, self.api.status());
        assert_eq!(ended, code, "{status:#?}\n{}", self.log());
        status
    }

    /// Waits for the end with a failure of this class and reason.
    pub(crate) async fn fails(&mut self, class: FailureClass, reason: &str) -> Failure {
        let failure = self.ends(1).await.failure.unwrap();
        assert_eq!(
            (failure.class, failure.reason.as_str()),
            (class, reason),
            "{failure:?}"
        );
        failure
    }

    /// Waits until its plan waits for an approval.
    pub(crate) async fn waits(&self) {
        self.api
            .until("a plan that waits", |status| {
                status.phase == Some(Phase::AwaitingApproval)
            })
            .await;
    }

    /// Approves a waiting plan.
    pub(crate) async fn approve(&self) {
        self.waits().await;
        self.api.approve();
    }

    /// Approves if the mode is Manual.
    pub(crate) async fn approve_in(&self, mode: &str) {
        if mode == "Manual" {
            self.approve().await;
        }
    }

    /// All commands of the tool that ran.
    pub(crate) fn ledger(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.path().join("ledger")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub(crate) fn ran(&self, command: &str) -> usize {
        self.ledger().iter().filter(|line| *line == command).count()
    }

    /// Opens the [`GATE`].
    pub(crate) fn open(&self) {
        fs::write(self.dir.path().join("ledger.open"), "").unwrap();
    }

    pub(crate) async fn until_ran(&self, line: &str) {
        let ran = async || Ok(self.ran(line) > 0);
        let ran = wait::until(line, PATIENCE, ran).await;
        ran.unwrap_or_else(|error| panic!("{error}: {:#?}", self.api.status()));
    }

    /// Waits until the log contains `text`.
    pub(crate) async fn until_said(&self, text: &str) {
        let look = async || {
            Ok(if self.log().contains(text) {
                Ok(())
            } else {
                Err(self.log())
            })
        };
        wait::until(text, PATIENCE, look).await.unwrap();
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8(self.log.lock().unwrap().clone()).unwrap()
    }

    pub(crate) fn message(&self) -> Option<crds::termination::TerminationMessage> {
        crds::termination::TerminationMessage::parse(
            &fs::read_to_string(&self.settings.termination_log).unwrap(),
        )
    }

    pub(crate) fn stack(&self) -> PathBuf {
        self.settings.source_dir()
    }
}
