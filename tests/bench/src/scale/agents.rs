//! Simulated kubelets and agents: each pod that the controller creates runs at once, and its agent ends its run with a plan without
//! changes.
//!
//! An agent sends its requests as its pod, with that pod's rights, so that Role and admission policies apply. The requests are those of a
//! real agent in such a run, without its watch: it reads the run, adopts the attempt, records two more phases, and records the end.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use crds::{
    RunResult, TerraformRun, names, pod_env, release, state_key, termination::TerminationMessage,
};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{GetParams, Patch, PatchParams};
use kube::core::Request;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use harness::cluster::gobuild::architecture;

/// A longer wait indicates a defect, not a slow machine. The API server needs long to see a Role when a thousand are created at once, and
/// this program shares its machine.
const PATIENCE: Duration = Duration::from_secs(600);
/// Delay between retries of a refused or unanswered request.
const AGAIN: Duration = Duration::from_millis(200);

/// All agents; drop ends them.
pub(super) struct Agents {
    shared: Arc<Shared>,
    watching: JoinHandle<()>,
}

/// A run that an agent has ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) namespace: String,
    pub(super) run: String,
    /// When its pod was seen.
    pub(super) seen: Instant,
    /// When its pod had ended.
    pub(super) at: Instant,
}

struct Shared {
    admin: Client,
    /// Duration of a plan in milliseconds.
    plan: AtomicU64,
    /// Whether plans in progress are paused.
    paused: watch::Sender<bool>,
    requests: AtomicU64,
    ended: Mutex<Vec<Ended>>,
    failed: Mutex<Vec<String>>,
}

struct Attempt {
    namespace: String,
    run: String,
    number: u32,
    pod: String,
    uid: String,
    account: String,
}

impl Attempt {
    fn of(pod: &Pod) -> Option<Self> {
        let label = |name: &str| pod.labels().get(name).cloned();
        Some(Self {
            namespace: pod.namespace()?,
            run: label(names::LABEL_RUN)?,
            number: label(names::LABEL_ATTEMPT)?.parse().ok()?,
            pod: pod.name_any(),
            uid: pod.uid()?,
            account: pod.spec.as_ref()?.service_account_name.clone()?,
        })
    }

    /// Adds this pod's token to a request.
    fn signs(&self, headers: &mut HeaderMap) -> kube::Result<()> {
        let Self {
            namespace, account, ..
        } = self;
        let all = [
            (
                "impersonate-user",
                format!("system:serviceaccount:{namespace}:{account}"),
            ),
            ("impersonate-group", "system:serviceaccounts".to_owned()),
            (
                "impersonate-group",
                format!("system:serviceaccounts:{namespace}"),
            ),
            ("impersonate-group", "system:authenticated".to_owned()),
            (
                "impersonate-extra-authentication.kubernetes.io%2fpod-name",
                self.pod.clone(),
            ),
            (
                "impersonate-extra-authentication.kubernetes.io%2fpod-uid",
                self.uid.clone(),
            ),
        ];
        for (name, value) in all {
            let value = HeaderValue::from_str(&value)
                .map_err(|error| kube::Error::HttpError(error.into()))?;
            headers.append(HeaderName::from_static(name), value);
        }
        Ok(())
    }
}

impl Agents {
    pub(super) fn start(admin: Client) -> Self {
        let (paused, _) = watch::channel(false);
        let shared = Arc::new(Shared {
            admin,
            plan: AtomicU64::new(0),
            paused,
            requests: AtomicU64::new(0),
            ended: Mutex::default(),
            failed: Mutex::default(),
        });
        let watching = tokio::spawn(watch_pods(shared.clone()));
        Self { shared, watching }
    }

    /// Sets the duration of a plan.
    pub(super) fn plans_take(&self, time: Duration) {
        self.shared.plan.store(
            u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }

    /// Pauses or resumes plans in progress.
    pub(super) fn pause(&self, paused: bool) {
        self.shared.paused.send_replace(paused);
    }

    /// Number of requests of agents, without those of kubelets.
    pub(super) fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Number of runs that they have ended.
    pub(super) fn count(&self) -> usize {
        lock(&self.shared.ended).len()
    }

    /// The runs that they have ended after the first `from`.
    pub(super) fn ended(&self, from: usize) -> Vec<Ended> {
        lock(&self.shared.ended)
            .get(from..)
            .unwrap_or_default()
            .to_vec()
    }

    /// Failures since the last call.
    pub(super) fn failed(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.shared.failed))
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn watch_pods(shared: Arc<Shared>) {
    let ours = watcher::Config::default().labels(&format!(
        "{}={}",
        names::LABEL_MANAGED_BY,
        names::MANAGED_BY
    ));
    let mut pods = watcher(Api::<Pod>::all(shared.admin.clone()), ours)
        .default_backoff()
        .touched_objects()
        .boxed();
    let (mut known, mut playing) = (HashSet::new(), tokio::task::JoinSet::new());
    while let Some(pod) = pods.next().await {
        let Ok(pod) = pod else { continue };
        while playing.try_join_next().is_some() {}
        let Some(attempt) = Attempt::of(&pod) else {
            continue;
        };
        if !known.insert(attempt.uid.clone()) {
            continue;
        }
        let shared = shared.clone();
        playing.spawn(async move {
            let seen = Instant::now();
            match shared.plays(&attempt).await {
                Ok(()) => {
                    let Attempt { namespace, run, .. } = attempt;
                    lock(&shared.ended).push(Ended {
                        namespace,
                        run,
                        seen,
                        at: Instant::now(),
                    });
                }
                Err(error) => lock(&shared.failed)
                    .push(format!("{}/{}: {error:#}", attempt.namespace, attempt.run)),
            }
        });
    }
}

impl Shared {
    async fn plays(&self, of: &Attempt) -> Result<()> {
        let begun = jiff::Timestamp::now();
        self.kubelet(of, "Running", &json!({"running": {"startedAt": begun}}))
            .await?;
        let run = self.agent(of, None).await?;
        let nonce = format!("{:032x}", rand::random::<u128>());
        let adopted = json!({"attempt": of.number, "podUID": of.uid, "nonce": nonce, "version": release::VERSION});
        let mut history = vec![said(
            "Setup",
            "repository; OpenTofu 1.10.6, from .opentofu-version",
        )];
        self.agent(of, Some(json!({"phase": "Setup", "startTime": begun, "adopted": adopted, "history": history}))).await?;
        history.push(said("Init", "backend http, workspace default"));
        self.agent(of, Some(json!({"phase": "Init", "history": history})))
            .await?;
        history.push(said("Plan", "no changes"));
        self.agent(of, Some(json!({"phase": "Plan", "history": history})))
            .await?;
        tokio::time::sleep(Duration::from_millis(self.plan.load(Ordering::Relaxed))).await;
        // The sender is in `self`, so this cannot fail.
        let _ = self.paused.subscribe().wait_for(|paused| !*paused).await;
        self.agent(of, Some(no_changes(&run, of, &history))).await?;
        let message = TerminationMessage {
            run_uid: run.uid().unwrap_or_default(),
            attempt: of.number,
            pod_uid: of.uid.clone(),
            nonce,
            result: Some(RunResult::NoChanges),
            message: "no changes".into(),
            failure: None,
            unkept: None,
        };
        let text = String::from_utf8(message.to_bytes())?;
        let ended = json!({"exitCode": 0, "reason": "Completed", "startedAt": begun, "finishedAt": jiff::Timestamp::now(), "message": text});
        self.kubelet(of, "Succeeded", &json!({"terminated": ended}))
            .await
    }

    /// Writes a kubelet's status of the pod.
    async fn kubelet(&self, of: &Attempt, phase: &str, state: &Value) -> Result<()> {
        let container = json!({"name": pod_env::CONTAINER, "image": "played", "imageID": "", "ready": false, "restartCount": 0,
            "state": state});
        let patch =
            Patch::Merge(json!({"status": {"phase": phase, "containerStatuses": [container]}}));
        let (pods, params) = (
            Api::<Pod>::namespaced(self.admin.clone(), &of.namespace),
            PatchParams::default(),
        );
        patiently(|| pods.patch_status(&of.pod, &params, &patch))
            .await
            .with_context(|| format!("pod {}", of.pod))
            .map(drop)
    }

    /// Reads the run, or patches its status.
    async fn agent(&self, of: &Attempt, status: Option<Value>) -> Result<TerraformRun> {
        let url = Request::new(TerraformRun::url_path(&(), Some(&of.namespace)));
        let wanted = status.as_ref().map(|status| status["phase"].clone());
        let patch = status.map(|status| Patch::Merge(json!({"status": status})));
        let signed = |patch: Option<&Patch<Value>>| -> kube::Result<_> {
            let request = match patch {
                None => url.get(&of.run, &GetParams::default()),
                Some(patch) => {
                    url.patch_subresource("status", &of.run, &PatchParams::default(), patch)
                }
            };
            let mut request = request.map_err(kube::Error::BuildRequest)?;
            of.signs(request.headers_mut())?;
            self.requests.fetch_add(1, Ordering::Relaxed);
            Ok(request)
        };
        let tries = AtomicU64::new(0);
        patiently(|| async {
            if let (Some(wanted), 1..) = (&wanted, tries.fetch_add(1, Ordering::Relaxed)) {
                // An unanswered write may have been stored, and a plan can be written only once.
                let run: TerraformRun = self.admin.request(signed(None)?).await?;
                if run
                    .status
                    .as_ref()
                    .is_some_and(|status| json!(status.phase) == *wanted)
                {
                    return Ok(run);
                }
            }
            self.admin.request(signed(patch.as_ref())?).await
        })
        .await
    }
}

/// Retries a request until it succeeds: rights take effect late, usually just after the creation of a Role, and connections break on a busy
/// machine.
async fn patiently<T, F: Future<Output = kube::Result<T>>>(request: impl Fn() -> F) -> Result<T> {
    let begun = Instant::now();
    loop {
        match request().await {
            Err(kube::Error::Api(status))
                if !matches!(status.code, 403 | 429 | 500..) || begun.elapsed() > PATIENCE =>
            {
                bail!("{}", status.message)
            }
            Err(error) if begun.elapsed() > PATIENCE => bail!("{error}"),
            Err(_) => tokio::time::sleep(AGAIN).await,
            Ok(answer) => return Ok(answer),
        }
    }
}

fn said(phase: &str, words: &str) -> String {
    format!(
        "{}  {phase}  0.1s  {words}",
        jiff::Timestamp::now().strftime("%H:%M:%S")
    )
}

/// The final status of a run whose plan has no changes.
fn no_changes(run: &TerraformRun, of: &Attempt, history: &[String]) -> Value {
    let now = jiff::Timestamp::now();
    let revision = run
        .spec
        .source
        .repository
        .as_ref()
        .map(|repository| &repository.revision);
    let plan = json!({"checksum": format!("sha256:{}", "a".repeat(64)), "attempt": of.number, "summary": "+0 ~0 -0", "add": 0,
        "change": 0, "destroy": 0, "import": 0, "replace": 0, "forget": 0, "outputs": 0, "tool": "OpenTofu 1.10.6",
        "revision": revision, "createdAt": now, "platform": format!("linux_{}", architecture()), "stateKey": state_key::expected(&of.namespace, &of.run, &run.spec, true)});
    let step = |name: &str| json!({"name": name, "attempt": of.number, "startedAt": now, "finishedAt": now, "exitCode": 0});
    json!({"phase": "Succeeded", "result": "NoChanges", "message": "no changes", "completionTime": now, "plan": plan,
        "history": history, "steps": [step("init"), step("plan")]})
}
