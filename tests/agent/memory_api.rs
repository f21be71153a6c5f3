//! An in-memory run behind the agent's interface to the API server. It admits what the chart admits, and injects faults.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use crds::{TerraformRun, TerraformRunStatus, names};
use futures::{Stream, stream};
use harness::wait;
use played::{User, admission, schema};
use runner_agent::ports::{Api, ApiError, Seen};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::common::PATIENCE;

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Refused with this code; nothing landed.
    Refused(u16),
    /// Refused by the admission policy, which admits only agents of another minor release.
    OtherRelease,
    /// 429 with this `Retry-After`, in seconds.
    Busy(u64),
    /// No reply; nothing landed.
    Lost,
    /// No reply, but it landed.
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
    /// While set, no request is answered.
    pub away: bool,
    /// The holder of the lease on the plan's state, if it is not free.
    pub behind: Option<String>,
    /// An annotation that lands just before the next claim, while the admission policies are missing.
    pub overtaken_by: Option<&'static str>,
    /// Whether the claim after it landed nevertheless.
    pub overtaken: Option<bool>,
}

/// An in-memory run that behaves like the API server as far as needed; [`played`] decides about refusals.
#[derive(Clone)]
pub(crate) struct MemoryApi {
    pub state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
}

fn refused(code: u16, text: &str) -> ApiError {
    ApiError {
        code: Some(code),
        text: text.to_owned(),
        after: None,
    }
}

impl MemoryApi {
    pub(crate) fn new(spec: &Value) -> Self {
        let object = json!({
            "apiVersion": "pawl.run/v1alpha1", "kind": "TerraformRun",
            "metadata": {"name": "vpc", "namespace": "team", "uid": "uid-1", "resourceVersion": "1"},
            "spec": spec,
            "status": {"phase": "Pending", "attempt": {"number": 1, "podName": "vpc-xxxxx-a1", "podUID": "pod-1", "open": true, "tries": 1}},
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
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            changed: watch::Sender::new(1),
        }
    }

    /// Changes the object as another user.
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

    /// Approves as the person, then records it as the controller.
    pub(crate) fn approve(&self) {
        let checksum = self.status().plan.unwrap().checksum;
        self.annotate(names::APPROVE, &checksum);
        self.change(|o| {
            o["status"]["approval"] =
                json!({"checksum": checksum, "by": "alice", "at": "2026-11-21T10:00:00Z"});
        });
    }

    /// Gives the lease on the plan's state to `who`, or to this run.
    pub(crate) fn behind(&self, who: Option<&str>) {
        let mut state = self.state.lock().unwrap();
        state.behind = who.map(str::to_owned);
        lease(&mut state);
        self.commit(&mut state);
    }

    pub(crate) fn status(&self) -> TerraformRunStatus {
        serde_json::from_value(self.state.lock().unwrap().object["status"].clone()).unwrap()
    }

    pub(crate) fn gets(&self) -> u32 {
        self.state.lock().unwrap().gets
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
        let look = async || {
            Ok(if is(&self.status()) {
                Ok(())
            } else {
                Err(format!("{:#?}", self.status()))
            })
        };
        wait::until(what, PATIENCE, look).await.unwrap();
    }

    fn read(state: &State) -> TerraformRun {
        serde_json::from_value(state.object.clone()).unwrap()
    }
}

/// Sets a condition, as the controller.
pub(crate) fn say(status: &mut Value, type_: &str, is: &str, reason: &str, text: &str) {
    let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|condition| condition["type"] != type_);
    conditions.push(
        json!({"type": type_, "status": is, "reason": reason, "message": text, "lastTransitionTime": "2026-11-21T10:00:00Z"}),
    );
    status["conditions"] = conditions.into();
}

/// Handles the lease on the plan's state, as the controller.
fn lease(state: &mut State) {
    let key = state.object["status"]["plan"]["stateKey"].clone();
    if key.is_null() {
        return;
    }
    let status = &mut state.object["status"];
    if let Some(who) = &state.behind {
        say(
            status,
            "StateLeased",
            "False",
            crds::reason::QUEUED,
            &format!("waits for its turn on the state behind {who}"),
        );
    } else {
        say(status, "StateLeased", "True", crds::reason::LEASED, "");
        status["lease"] =
            json!({"stateKey": key, "name": "pawl-state-x", "at": "2026-11-21T10:00:00Z"});
    }
}

/// Refusals of the agent's writes by the CRD's rules and the chart's policies, whose expressions are evaluated.
fn admit(old: &Value, new: &Value) -> Result<(), ApiError> {
    let pod = User::pod("team", "vpc-xxxxx-a1", "pod-1");
    let admitted =
        schema::rules(Some(old), new).and_then(|()| admission::admit(&pod, Some(old), new, true));
    admitted.map_err(|refusal| refused(refusal.code, &refusal.message))
}

impl Api for MemoryApi {
    async fn get(&self) -> Result<TerraformRun, ApiError> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut state = self.state.lock().unwrap();
        if state.away {
            return Err(ApiError {
                code: None,
                text: "connection refused".into(),
                after: None,
            });
        }
        state.gets += 1;
        Ok(Self::read(&state))
    }

    async fn patch(&self, operations: Vec<Value>) -> Result<TerraformRun, ApiError> {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let mut state = self.state.lock().unwrap();
        if state.away {
            return Err(ApiError {
                code: None,
                text: "connection refused".into(),
                after: None,
            });
        }
        let fault = state.faults.pop_front().flatten();
        match fault {
            Some(Fault::Refused(code)) => return Err(refused(code, "as told")),
            Some(Fault::OtherRelease) => {
                let text = format!(
                    "denied request: {} 9.9; nothing was begun",
                    crds::release::REFUSED
                );
                return Err(refused(
                    403,
                    &format!("ApiError: {text}: Forbidden (Status {{ message: {text:?} }})"),
                ));
            }
            Some(Fault::Busy(seconds)) => {
                return Err(ApiError {
                    after: Some(Duration::from_secs(seconds)),
                    ..refused(429, "too many requests")
                });
            }
            Some(Fault::Lost) => {
                return Err(ApiError {
                    code: None,
                    text: "timeout".into(),
                    after: None,
                });
            }
            Some(Fault::LandedLost) | None => {}
        }
        let claims = operations
            .iter()
            .any(|o| o["op"] == "add" && o["path"] == "/status/claim");
        let overtaken_by = state.overtaken_by.take_if(|_| claims);
        if let Some(name) = overtaken_by {
            state.object["metadata"]["annotations"][name] = json!("why");
            state.overtaken = Some(false);
            self.commit(&mut state);
        }
        let mut object = state.object.clone();
        runner_agent::api::patch(&mut object, operations.clone())
            .map_err(|error| refused(422, &error.to_string()))?;
        if overtaken_by.is_none() {
            admit(&state.object, &object)?;
        } else {
            state.overtaken = Some(true);
        }
        // Parse it as the server prunes and validates it.
        let _: TerraformRun = serde_json::from_value(object.clone()).unwrap();
        assert!(
            object["status"].to_string().len() <= crds::status_limit::MAX_STATUS_BYTES,
            "the status grows too large"
        );
        state.object = object;
        lease(&mut state);
        state.writes.push(Value::Array(
            operations
                .into_iter()
                .filter(|o| o["op"] != "test")
                .collect(),
        ));
        self.commit(&mut state);
        if fault == Some(Fault::LandedLost) {
            return Err(ApiError {
                code: None,
                text: "timeout".into(),
                after: None,
            });
        }
        Ok(Self::read(&state))
    }

    async fn watch(
        &self,
        version: &str,
    ) -> Result<impl Stream<Item = Seen> + Send + 'static, ApiError> {
        let from: u64 = version.parse().unwrap();
        let (this, changes) = (self.clone(), self.changed.subscribe());
        Ok(stream::unfold(
            (this, changes, from),
            |(this, mut changes, from)| async move {
                changes.wait_for(|version| *version > from).await.ok()?;
                // Events are a little late, as usual.
                tokio::time::sleep(Duration::from_millis(3)).await;
                let (run, version, away) = {
                    let state = this.state.lock().unwrap();
                    (Self::read(&state), state.version, state.away)
                };
                let seen = if away {
                    Seen::Lost
                } else {
                    Seen::Run(Arc::new(run))
                };
                if away {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Some((seen, (this, changes, version)))
            },
        ))
    }
}
