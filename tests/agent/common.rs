//! A run in memory, a tool that is a shell script, and the real driver between them.

use std::{
    cell::OnceCell,
    collections::VecDeque,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crds::{Failure, Phase, TerraformRun, TerraformRunStatus, names};
use futures::{Stream, stream};
use runner_agent::{
    datastore::{
        self,
        spool::{Both, Spool, SpoolWriter},
    },
    driver::Driver,
    host::Pod,
    phases::{PhaseRunner, Remote},
    ports::{Api, ApiError, Seen, SystemClock},
    process::{Children, Log},
    settings::Settings,
};
use serde_json::{Value, json};
use tests::{
    played::{User, admission, schema},
    wait,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

/// After this long something is broken, not slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What a tool does until [`Attempt::open`], or its test is over; a child of it that is killed does not end it.
pub(crate) const GATE: &str = "until [ -e $LEDGER.open ] || [ ! -e $LEDGER ]; do sleep 0.02; done";

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Refused, with this code; nothing landed.
    Refused(u16),
    /// Too many requests: it asks to be left alone for so many seconds.
    Busy(u64),
    /// No answer; nothing landed.
    Lost,
    /// No answer; but it landed.
    LandedLost,
}

pub(crate) struct State {
    pub object: Value,
    version: u64,
    /// Status writes of the agent that landed.
    pub writes: Vec<Value>,
    pub gets: u32,
    /// Faults of the next patches, in order.
    pub faults: VecDeque<Option<Fault>>,
    /// While set, nothing is answered at all.
    pub away: bool,
    /// Who has the lease on the plan's state, when it is not to be had.
    pub behind: Option<String>,
    /// An annotation that lands just before the next claim does, while the admission policies are away.
    pub overtaken_by: Option<&'static str>,
    /// Whether the claim that was overtaken landed all the same.
    pub overtaken: Option<bool>,
    /// What the definition in force does not know, so that it is pruned from whatever is written.
    pub pruned: &'static [&'static str],
}

/// A run in memory that behaves as the API server does where it matters here; what is refused is that of [`tests::played`].
#[derive(Clone)]
pub(crate) struct MemoryApi {
    pub state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
}

fn refused(code: u16, text: &str) -> ApiError {
    ApiError { code: Some(code), text: text.to_owned(), after: None }
}

impl MemoryApi {
    pub(crate) fn new(spec: &Value) -> Self {
        let object = json!({
            "apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRun",
            "metadata": {"name": "vpc", "namespace": "team", "uid": "uid-1", "resourceVersion": "1"},
            "spec": spec,
            "status": {"phase": "Pending", "attempt": {"number": 1, "podName": "vpc-xxxxx-a1", "open": true, "tries": 1}},
        });
        let state = State {
            object,
            version: 1,
            writes: vec![],
            gets: 0,
            faults: VecDeque::new(),
            away: false,
            behind: None,
            overtaken_by: None,
            overtaken: None,
            pruned: &[],
        };
        Self { state: Arc::new(Mutex::new(state)), changed: watch::Sender::new(1) }
    }

    /// Changes the object as somebody else would.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut state = self.state.lock().unwrap();
        change(&mut state.object);
        self.commit(&mut state);
    }

    fn commit(&self, state: &mut State) {
        state.version += 1;
        state.object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        self.changed.send_replace(state.version);
    }

    pub(crate) fn annotate(&self, name: &str, value: &str) {
        self.change(|o| o["metadata"]["annotations"][name] = json!(value));
    }

    /// What the person and then the controller do.
    pub(crate) fn approve(&self) {
        let checksum = self.status().plan.unwrap().checksum;
        self.annotate(names::APPROVE, &checksum);
        self.change(|o| o["status"]["approval"] = json!({"checksum": checksum, "by": "alice", "at": "2026-11-21T10:00:00Z"}));
    }

    /// The lease on the plan's state is another's, or from now on this run's.
    pub(crate) fn behind(&self, who: Option<&str>) {
        let mut state = self.state.lock().unwrap();
        state.behind = who.map(str::to_owned);
        lease(&mut state);
        self.commit(&mut state);
    }

    pub(crate) fn status(&self) -> TerraformRunStatus {
        serde_json::from_value(self.state.lock().unwrap().object["status"].clone()).unwrap()
    }

    pub(crate) fn writes(&self) -> usize {
        self.state.lock().unwrap().writes.len()
    }

    pub(crate) fn fail(&self, faults: &[Option<Fault>]) {
        self.state.lock().unwrap().faults.extend(faults);
    }

    pub(crate) fn set_away(&self, away: bool) {
        self.state.lock().unwrap().away = away;
    }

    pub(crate) async fn until(&self, what: &str, is: impl Fn(&TerraformRunStatus) -> bool) {
        let look = async || Ok(if is(&self.status()) { Ok(()) } else { Err(format!("{:#?}", self.status())) });
        wait::until(what, PATIENCE, look).await.unwrap();
    }

    fn read(state: &State) -> TerraformRun {
        serde_json::from_value(state.object.clone()).unwrap()
    }
}

/// A condition that the controller sets.
pub(crate) fn say(status: &mut Value, type_: &str, is: &str, reason: &str, text: &str) {
    let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|condition| condition["type"] != type_);
    conditions.push(
        json!({"type": type_, "status": is, "reason": reason, "message": text, "lastTransitionTime": "2026-11-21T10:00:00Z"}),
    );
    status["conditions"] = conditions.into();
}

/// What the controller does about the lease on the plan's state.
fn lease(state: &mut State) {
    let key = state.object["status"]["plan"]["stateKey"].clone();
    if key.is_null() {
        return;
    }
    let status = &mut state.object["status"];
    if let Some(who) = &state.behind {
        say(status, "StateLeased", "False", crds::reason::QUEUED, &format!("waits for its turn on the state behind {who}"));
    } else {
        say(status, "StateLeased", "True", crds::reason::LEASED, "");
        status["lease"] = json!({"stateKey": key, "name": "pawl-state-x", "at": "2026-11-21T10:00:00Z"});
    }
}

/// What the definition's rules and the chart's policies refuse of the agent: their own expressions, evaluated.
fn admit(old: &Value, new: &Value) -> Result<(), ApiError> {
    let pod = User::pod("team", "vpc-xxxxx-a1", "pod-1");
    let admitted = schema::rules(Some(old), new).and_then(|()| admission::admit(&pod, Some(old), new, true));
    admitted.map_err(|refusal| refused(refusal.code, &refusal.message))
}

impl Api for MemoryApi {
    async fn get(&self) -> Result<TerraformRun, ApiError> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut state = self.state.lock().unwrap();
        if state.away {
            return Err(ApiError { code: None, text: "connection refused".into(), after: None });
        }
        state.gets += 1;
        Ok(Self::read(&state))
    }

    async fn patch(&self, operations: Vec<Value>) -> Result<TerraformRun, ApiError> {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let mut state = self.state.lock().unwrap();
        if state.away {
            return Err(ApiError { code: None, text: "connection refused".into(), after: None });
        }
        let fault = state.faults.pop_front().flatten();
        match fault {
            Some(Fault::Refused(code)) => return Err(refused(code, "as told")),
            Some(Fault::Busy(seconds)) => {
                return Err(ApiError { after: Some(Duration::from_secs(seconds)), ..refused(429, "too many requests") });
            }
            Some(Fault::Lost) => return Err(ApiError { code: None, text: "timeout".into(), after: None }),
            Some(Fault::LandedLost) | None => {}
        }
        let claims = operations.iter().any(|o| o["op"] == "add" && o["path"] == "/status/claim");
        let overtaken_by = state.overtaken_by.take_if(|_| claims);
        if let Some(name) = overtaken_by {
            state.object["metadata"]["annotations"][name] = json!("why");
            state.overtaken = Some(false);
            self.commit(&mut state);
        }
        let mut object = state.object.clone();
        runner_agent::api::patch(&mut object, operations.clone()).map_err(|error| refused(422, &error.to_string()))?;
        for (parent, field) in state.pruned.iter().filter_map(|path| path.rsplit_once('/')) {
            if let Some(fields) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
                fields.shift_remove(field);
            }
        }
        if overtaken_by.is_none() {
            admit(&state.object, &object)?;
        } else {
            state.overtaken = Some(true);
        }
        // A typed reading, as the server prunes and validates.
        let _: TerraformRun = serde_json::from_value(object.clone()).unwrap();
        assert!(object["status"].to_string().len() <= crds::status_limit::MAX_STATUS_BYTES, "the status grows too large");
        state.object = object;
        lease(&mut state);
        state.writes.push(Value::Array(operations.into_iter().filter(|o| o["op"] != "test").collect()));
        self.commit(&mut state);
        if fault == Some(Fault::LandedLost) {
            return Err(ApiError { code: None, text: "timeout".into(), after: None });
        }
        Ok(Self::read(&state))
    }

    async fn watch(&self, version: &str) -> Result<impl Stream<Item = Seen> + Send + 'static, ApiError> {
        let from: u64 = version.parse().unwrap();
        let (this, changes) = (self.clone(), self.changed.subscribe());
        Ok(stream::unfold((this, changes, from), |(this, mut changes, from)| async move {
            changes.wait_for(|version| *version > from).await.ok()?;
            // Events come a little late, as they do.
            tokio::time::sleep(Duration::from_millis(3)).await;
            let (run, version, away) = {
                let state = this.state.lock().unwrap();
                (Self::read(&state), state.version, state.away)
            };
            let seen = if away { Seen::Lost } else { Seen::Run(Arc::new(run)) };
            if away {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Some((seen, (this, changes, version)))
        }))
    }
}

/// The tool: a script that writes down each of its executions and does what the run's environment says.
const TOOL: &str = r#"#!/bin/sh
echo "$1" >> "$LEDGER"
case "$1" in
init)
  mkdir -p .terraform/providers
  echo '{"backend":{"type":"http","config":{"address":"http://user:pass@state/x"}}}' > .terraform/terraform.tfstate
  echo '# lock' > .terraform.lock.hcl
  eval "$INIT" ;;
plan)
  for a in "$@"; do case $a in -out=*) out=${a#-out=} ;; esac; done
  echo "plan of $$" > "$out"
  echo '{"@level":"info","@message":"a.b: Plan to create","type":"planned_change"}'
  eval "$PLAN"
  exit "${PLAN_EXIT:-2}" ;;
show)
  if [ "$2" = -json ]; then echo "${PLAN_JSON:-$DEFAULT_JSON}"; else echo "Terraform will perform the following actions:"; fi ;;
state)
  eval "$STATE" ;;
apply)
  eval "$BEFORE_APPLY"
  echo '{"@message":"a.b: Creating...","type":"apply_start","hook":{"resource":{"addr":"a.b"},"action":"create"}}'
  eval "$APPLY"
  echo '{"@message":"a.b: Creation complete","type":"apply_complete","hook":{"resource":{"addr":"a.b"},"action":"create"}}'
  exit 0 ;;
esac
"#;
const JSON: &str = r#"{"errored":false,"resource_changes":[{"address":"a.b","change":{"actions":["create"]}}]}"#;

/// An attempt at work in a directory of its own.
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

/// A spec: `more` over the least there is; `env` for the scripted tool.
pub(crate) fn spec(more: &Value, env: &[(&str, &str)]) -> Value {
    let mut spec = json!({"source": {"inline": {"files": {"main.tf": "variable \"p\" {\n  default = null\n}\n"}}}, "approval": {"mode": "Automatic"}});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let mut list: Vec<Value> = env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    list.extend(spec["env"].as_array().cloned().unwrap_or_default());
    spec["env"] = Value::Array(list);
    spec
}

/// Puts the scripted tool where a tool is looked for.
pub(crate) fn place_tool(dir: &Path) {
    let binary = dir.join("tools/opentofu/1.10.6/tofu");
    fs::create_dir_all(binary.parent().unwrap()).unwrap();
    fs::write(&binary, TOOL).unwrap();
    fs::set_permissions(&binary, PermissionsExt::from_mode(0o755)).unwrap();
}

/// From here to its end a test has this program for itself: without a PID namespace of its own, an attempt that kills every other
/// process means all of this program's. Whoever starts an attempt waits for that; those call it who begin with something else that
/// others may not disturb.
pub(crate) fn alone() {
    static ONE: Mutex<()> = Mutex::new(());
    thread_local! {
        // Each test has a thread of its own.
        static HELD: OnceCell<MutexGuard<'static, ()>> = const { OnceCell::new() };
    }
    HELD.with(|held| {
        held.get_or_init(|| ONE.lock().unwrap_or_else(PoisonError::into_inner));
    });
}

/// Starts an attempt with the scripted tool; `adjust` sees the settings and the API before it starts.
pub(crate) fn start(more: &Value, env: &[(&str, &str)], adjust: impl FnOnce(&mut Settings, &MemoryApi)) -> Attempt {
    start_at(tempfile::tempdir().unwrap(), more, env, adjust)
}

/// The same in a directory that the test knows.
pub(crate) fn start_at(
    dir: tempfile::TempDir,
    more: &Value,
    env: &[(&str, &str)],
    adjust: impl FnOnce(&mut Settings, &MemoryApi),
) -> Attempt {
    alone();
    place_tool(dir.path());
    let ledger = dir.path().join("ledger").display().to_string();
    let mut env = env.to_vec();
    env.push(("LEDGER", &ledger));
    env.push(("DEFAULT_JSON", JSON));
    start_in(dir, &spec(more, &env), adjust)
}

pub(crate) fn start_in(dir: tempfile::TempDir, spec: &Value, adjust: impl FnOnce(&mut Settings, &MemoryApi)) -> Attempt {
    alone();
    let mut settings = settings(dir.path());
    fs::write(&settings.termination_log, "").unwrap();
    let api = MemoryApi::new(spec);
    adjust(&mut settings, &api);
    let settings = Arc::new(settings);
    let log = Arc::new(Mutex::new(Vec::new()));
    let children = Children::default();
    let out = Shared(log.clone());
    // Where there is a datastore the log is on its way there as well, as in the program.
    let (writer, remote) = match &settings.store {
        Some(store) => {
            let client = datastore::client(store, &settings.namespace, &settings.run, settings.attempt, &settings.nonce).unwrap();
            let spool = Spool::create(dir.path().join("spool")).unwrap();
            (Log::to(Both { out, spool: SpoolWriter(spool.clone()) }), Some(Remote::start(client, spool)))
        }
        None => (Log::to(out), None),
    };
    let mut work = PhaseRunner::new(settings.clone(), Arc::new(Pod::new(settings.clone())), children.clone(), writer.clone());
    if let Some(remote) = remote {
        work = work.with_datastore(remote);
    }
    let work = Arc::new(work);
    let driver = Driver::new(Arc::new(api.clone()), work.clone(), SystemClock, settings.clone());
    let (stop, stops) = mpsc::unbounded_channel();
    let task = tokio::spawn(async move {
        let code = driver.run(stops).await;
        // As the program does before it ends.
        writer.flush(PATIENCE).await;
        code
    });
    Attempt { dir, api, settings, log, stop, work, children, task }
}

impl Attempt {
    /// Waits for the end of the process.
    pub(crate) async fn end(&mut self) -> u8 {
        let code = tokio::time::timeout(2 * PATIENCE, &mut self.task).await;
        code.unwrap_or_else(|_| panic!("the attempt does not end: {:#?}", self.api.status())).unwrap()
    }

    /// Waits for the end with this exit code: the status then.
    pub(crate) async fn ends(&mut self, code: u8) -> TerraformRunStatus {
        let (ended, status) = (self.end().await, self.api.status());
        assert_eq!(ended, code, "{status:#?}\n{}", self.log());
        status
    }

    /// The same of an attempt that fails.
    pub(crate) async fn fails(&mut self, code: u8) -> Failure {
        self.ends(code).await.failure.unwrap()
    }

    /// Waits until its plan waits for an approval.
    pub(crate) async fn waits(&self) {
        self.api.until("a plan that waits", |status| status.phase == Some(Phase::AwaitingApproval)).await;
    }

    /// Approves, once it waits for that.
    pub(crate) async fn approve(&self) {
        self.waits().await;
        self.api.approve();
    }

    /// The same where that mode of approval asks for it.
    pub(crate) async fn approve_in(&self, mode: &str) {
        if mode == "Manual" {
            self.approve().await;
        }
    }

    /// The commands of the tool that ran.
    pub(crate) fn ledger(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.path().join("ledger")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub(crate) fn ran(&self, command: &str) -> usize {
        self.ledger().iter().filter(|line| *line == command).count()
    }

    /// Lets what waits at a [`GATE`] go on.
    pub(crate) fn open(&self) {
        fs::write(self.dir.path().join("ledger.open"), "").unwrap();
    }

    pub(crate) async fn until_ran(&self, line: &str) {
        let ran = async || Ok(self.ran(line) > 0);
        let ran = wait::until(line, PATIENCE, ran).await;
        ran.unwrap_or_else(|error| panic!("{error}: {:#?}", self.api.status()));
    }

    /// Waits until the log says something.
    pub(crate) async fn until_said(&self, text: &str) {
        let look = async || Ok(if self.log().contains(text) { Ok(()) } else { Err(self.log()) });
        wait::until(text, PATIENCE, look).await.unwrap();
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8(self.log.lock().unwrap().clone()).unwrap()
    }

    pub(crate) fn message(&self) -> Option<crds::termination::TerminationMessage> {
        crds::termination::TerminationMessage::parse(&fs::read_to_string(&self.settings.termination_log).unwrap())
    }

    pub(crate) fn stack(&self) -> PathBuf {
        self.settings.source_dir()
    }
}
