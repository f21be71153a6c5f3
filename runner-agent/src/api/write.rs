//! The writer: each write tests that the attempt is open and belongs to this process. After any error it reads the run again.

use std::{
    hash::{Hash, Hasher},
    sync::{Arc, Mutex},
    time::Duration,
};

use crds::{
    Attempt, TerraformRun, TerraformRunStatus, approval,
    backoff::Backoff,
    fields::{self, Owner},
    names, release,
    status_limit::fit,
};
use serde_json::{Value, json};

use crate::{
    guard,
    ports::{Api, ApiError},
    settings::Settings,
};

/// Purpose of a write. Determines its tests, and for how long it is retried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The first write of the process. No other process may have adopted the attempt.
    Adopt,
    /// A phase or a plan.
    Update,
    /// Progress: not retried, since newer progress follows.
    Progress,
    /// The claim of a run that is neither cancelled, denied nor deleted. With a checksum, the write tests annotation and approval for it.
    Claim(Option<String>),
    /// The end of the run or of the attempt.
    End,
}

impl Kind {
    const fn writes(&self, owner: Owner) -> bool {
        match owner {
            Owner::Attempt | Owner::Plan | Owner::Agent => true,
            Owner::Controller => false,
            Owner::Adoption => matches!(self, Self::Adopt),
            Owner::Claim => matches!(self, Self::Claim(_)),
        }
    }
}

#[derive(Debug)]
pub enum Outcome {
    /// The API contains it.
    Landed(Arc<TerraformRun>),
    /// The claim is not possible in the run's current state.
    Refused(Arc<TerraformRun>),
    /// The admission policy refuses the adoption with this text: the agent is of another minor release.
    OtherRelease(String),
    /// The attempt is closed or belongs to another process. Nothing may be done any more.
    Fenced,
    GivenUp,
}

/// Writes the agent's fields of a run's status, one write at a time.
#[derive(Debug)]
pub struct Writer<A> {
    api: Arc<A>,
    settings: Arc<Settings>,
    /// The status as last read or acknowledged.
    known: Mutex<Known>,
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    status: TerraformRunStatus,
    version: String,
    /// Whether the run has annotations.
    annotated: bool,
}

impl Known {
    fn take(&mut self, run: &TerraformRun) {
        self.status = run.status.clone().unwrap_or_default();
        self.version = run.metadata.resource_version.clone().unwrap_or_default();
        self.annotated = run.metadata.annotations.is_some();
    }
}

impl<A: Api> Writer<A> {
    pub fn new(api: Arc<A>, settings: Arc<Settings>) -> Self {
        Self {
            api,
            settings,
            known: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    pub fn learn(&self, run: &TerraformRun) {
        guard(&self.known).take(run);
    }

    /// Records a version of the run from the watch if it is newer than the known one.
    pub fn saw(&self, run: &TerraformRun) {
        let number = |version: &str| version.parse::<u64>().unwrap_or(0);
        let mut known = guard(&self.known);
        let version = run.metadata.resource_version.as_deref().unwrap_or_default();
        if number(version) > number(&known.version) {
            known.take(run);
        }
    }

    /// Whether a write is in progress.
    pub fn is_busy(&self) -> bool {
        self.turn.try_lock().is_err()
    }

    /// Sets the agent's fields of the status to those in `wanted`, shortened to fit.
    pub async fn write(&self, mut wanted: TerraformRunStatus, kind: Kind) -> Outcome {
        let _turn = self.turn.lock().await;
        let mut tries = 0_u32;
        let mut refusals = 0_u32;
        let mut missing = 0_u32;
        loop {
            let mut other_release = None;
            let operations = self.operations(&mut wanted, &kind);
            if let Some(operations) = operations {
                match self.api.patch(operations).await {
                    Ok(run) => {
                        self.learn(&run);
                        return Outcome::Landed(Arc::new(run));
                    }
                    Err(error) => {
                        tracing::info!(code = error.code, %error, ?kind, "a write was not acknowledged");
                        // Not caused by load or permissions: the same write is unlikely to succeed later.
                        refusals += u32::from(matches!(error.code, Some(400 | 409 | 413 | 422)));
                        other_release = of_other_release(&error).filter(|_| kind == Kind::Adopt);
                        self.leave_alone(&error, &kind).await;
                    }
                }
            } else if let Kind::Update | Kind::Progress | Kind::End = kind {
                // Nothing differs from the known status.
                return match self.read(&mut tries, &mut missing, &kind).await {
                    Some(run) if self.is_own(&run) => Outcome::Landed(run),
                    Some(_) => Outcome::Fenced,
                    None => Outcome::GivenUp,
                };
            }
            // An error proves nothing: read the run and decide on that.
            let Some(run) = self.read(&mut tries, &mut missing, &kind).await else {
                return if kind == Kind::Progress || kind == Kind::End {
                    Outcome::GivenUp
                } else {
                    Outcome::Fenced
                };
            };
            align(&run.status.clone().unwrap_or_default(), &mut wanted, &kind);
            if let Some(outcome) = self.judge(&run, &wanted, &kind) {
                return outcome;
            }
            if let Some(text) = other_release {
                return Outcome::OtherRelease(text);
            }
            if kind == Kind::Progress {
                return Outcome::GivenUp;
            }
            if kind == Kind::End && refusals >= 3 {
                shorten(&mut wanted);
            }
            if kind == Kind::End && refusals >= 8 {
                return Outcome::GivenUp;
            }
            tries += 1;
            tokio::time::sleep(backoff_of(tries, &self.settings.nonce)).await;
        }
    }

    /// Reads the run, with retries. `None` if it gave up or the run is gone.
    async fn read(
        &self,
        tries: &mut u32,
        missing: &mut u32,
        kind: &Kind,
    ) -> Option<Arc<TerraformRun>> {
        loop {
            match self.api.get().await {
                Ok(run) => {
                    self.learn(&run);
                    return Some(Arc::new(run));
                }
                Err(error) => {
                    tracing::info!(code = error.code, %error, "the run cannot be read");
                    *missing += u32::from(error.code == Some(404));
                    if *missing >= 4 || *kind == Kind::Progress {
                        return None;
                    }
                    self.leave_alone(&error, kind).await;
                }
            }
            *tries += 1;
            tokio::time::sleep(backoff_of(*tries, &self.settings.nonce)).await;
        }
    }

    /// Waits as long as a busy server requests, while nothing is claimed. The claim itself and an end do not wait.
    async fn leave_alone(&self, error: &ApiError, kind: &Kind) {
        let is_early = matches!(kind, Kind::Adopt | Kind::Update);
        let claimed = guard(&self.known).status.claim.is_some();
        let wait = error.wait(claimed || !is_early);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Decides on the run as read after an error. `None` means that the write must be retried.
    fn judge(
        &self,
        run: &Arc<TerraformRun>,
        wanted: &TerraformRunStatus,
        kind: &Kind,
    ) -> Option<Outcome> {
        let status = run.status.clone().unwrap_or_default();
        if *kind == Kind::Adopt {
            let open = self.is_open(run);
            return match &status.adopted {
                Some(adopted) if adopted.attempt == self.settings.attempt => {
                    Some(if open && adopted.nonce == self.settings.nonce {
                        Outcome::Landed(run.clone())
                    } else {
                        Outcome::Fenced
                    })
                }
                _ => (!open || status.is_terminal()).then_some(Outcome::Fenced),
            };
        }
        if !self.is_own(run) {
            return Some(Outcome::Fenced);
        }
        if fields::changes(&status, wanted).is_empty() {
            return Some(Outcome::Landed(run.clone()));
        }
        if status.is_terminal() {
            return Some(Outcome::Fenced);
        }
        if let Kind::Claim(approved) = kind {
            if let Some(claim) = &status.claim {
                let own = Some(claim) == wanted.claim.as_ref();
                return Some(if own {
                    Outcome::Landed(run.clone())
                } else {
                    Outcome::Fenced
                });
            }
            if approved
                .as_ref()
                .is_some_and(|sum| !approval::stands(run, sum))
                || run.is_stopped()
                || !run.is_leased()
            {
                return Some(Outcome::Refused(run.clone()));
            }
        }
        None
    }

    /// Whether the attempt is open and belongs to this pod. A run with an unknown value counts as another process's.
    pub fn is_open(&self, run: &TerraformRun) -> bool {
        run.unknown_word().is_none()
            && run.metadata.uid.as_deref() == Some(self.settings.run_uid.as_str())
            && run.attempt().is_some_and(|a| {
                a.open
                    && a.number == self.settings.attempt
                    && a.pod_uid.as_ref() == Some(&self.settings.pod_uid)
            })
    }

    /// Whether the controller may still record this pod: it creates the pod before it writes the attempt.
    pub fn is_early(&self, run: &TerraformRun) -> bool {
        let status = run.status.clone().unwrap_or_default();
        let is_recorded = |attempt: &Attempt| {
            attempt.number > self.settings.attempt
                || attempt.number == self.settings.attempt
                    && (!attempt.open || attempt.pod_uid.is_some())
        };
        run.metadata.uid.as_deref() == Some(self.settings.run_uid.as_str())
            && !status.attempt.as_ref().is_some_and(is_recorded)
            && !status.is_terminal()
            && status.claim.is_none()
            && !run.is_stopped()
    }

    /// Whether the attempt is open and adopted by this process.
    pub fn is_own(&self, run: &TerraformRun) -> bool {
        let adopted = run.status.as_ref().and_then(|s| s.adopted.as_ref());
        self.is_open(run)
            && adopted.is_some_and(|a| {
                a.nonce == self.settings.nonce && a.attempt == self.settings.attempt
            })
    }

    /// The patch from the known status to the wanted one; `None` if nothing differs.
    fn operations(&self, wanted: &mut TerraformRunStatus, kind: &Kind) -> Option<Vec<Value>> {
        let known = guard(&self.known);
        align(&known.status, wanted, kind);
        fit(wanted);
        let changes = fields::changes(&known.status, wanted);
        if changes.is_empty() {
            return None;
        }
        let test = |path: &str, value: Value| json!({"op": "test", "path": path, "value": value});
        let mut operations = vec![
            test("/metadata/uid", json!(self.settings.run_uid)),
            test("/status/attempt/number", json!(self.settings.attempt)),
            test("/status/attempt/open", json!(true)),
        ];
        // Tests on fields instead of the resourceVersion: a client that annotates the run in a loop would otherwise prevent the
        // claim.
        match kind {
            Kind::Adopt => {
                operations.push(test("/status/attempt/podUID", json!(self.settings.pod_uid)));
                operations.push(test("/status/phase", json!(known.status.phase)));
                operations.push(test("/status/claim", Value::Null));
                // Tests that no process has adopted the run since it was read: an adoption writes another attempt number.
                operations.push(match &known.status.adopted {
                    Some(before) => test("/status/adopted/attempt", json!(before.attempt)),
                    None => test("/status/adopted", Value::Null),
                });
            }
            Kind::Update | Kind::Progress | Kind::End => {
                operations.push(test("/status/adopted/nonce", json!(self.settings.nonce)));
            }
            Kind::Claim(approved) => {
                operations.push(test("/status/adopted/nonce", json!(self.settings.nonce)));
                operations.push(test("/status/phase", json!(known.status.phase)));
                operations.push(test(
                    "/status/plan/checksum",
                    json!(wanted.claim.as_ref().map(|claim| &claim.checksum)),
                ));
                operations.push(test("/status/claim", Value::Null));
                if let Some(key) = known
                    .status
                    .plan
                    .as_ref()
                    .and_then(|plan| plan.state_key.as_ref())
                {
                    operations.push(test("/status/lease/stateKey", json!(key)));
                }
                if let Some(checksum) = approved {
                    operations.push(test(
                        &names::annotation_pointer(names::APPROVE),
                        json!(checksum),
                    ));
                    operations.push(test("/status/approval/checksum", json!(checksum)));
                }
                // These tests refuse the claim after a cancel, denial or deletion, with or without the admission policies.
                operations.push(test("/metadata/deletionTimestamp", Value::Null));
                let stops = vec![
                    names::annotation_pointer(names::CANCEL),
                    names::annotation_pointer(names::DENY),
                ];
                let absent = if known.annotated {
                    stops
                } else {
                    vec!["/metadata/annotations".to_owned()]
                };
                operations.extend(absent.iter().map(|path| test(path, Value::Null)));
            }
        }
        operations.extend(changes.into_iter().map(|(field, value)| match value {
            Some(value) => json!({"op": "add", "path": format!("/status/{field}"), "value": value}),
            None => json!({"op": "remove", "path": format!("/status/{field}")}),
        }));
        Some(operations)
    }
}

/// Copies the fields that this write must not change: those of the controller (they count towards the size), and the adoption and the claim
/// except in their own writes.
fn align(known: &TerraformRunStatus, wanted: &mut TerraformRunStatus, kind: &Kind) {
    fields::copy(known, wanted, |field| !kind.writes(field.owner));
}

/// The refusal of an agent of another minor release by the admission policy: the first clause of its text, which names the release.
fn of_other_release(error: &ApiError) -> Option<String> {
    let at = error
        .text
        .find(release::REFUSED)
        .filter(|_| error.code == Some(403))?;
    error.text[at..].split(';').next().map(str::to_owned)
}

/// Drops optional fields from the write of an end that was refused repeatedly, since one of them may be the cause.
fn shorten(status: &mut TerraformRunStatus) {
    status.progress = None;
    if let Some(failure) = &mut status.failure {
        failure.diagnostics.clear();
    }
    let keep = status.history.len().saturating_sub(8);
    status.history.drain(..keep);
}

/// Backoff between two attempts of a request.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(100),
    cap: Duration::from_secs(10),
};

/// Wait before the next attempt: 100 ms doubling to 10 s, half of it random.
pub fn backoff(tries: u32) -> Duration {
    BACKOFF.spread(tries, rand::random())
}

/// Like [`backoff`], with the jitter derived from the process's nonce, so that a simulated process waits the same each time.
pub fn backoff_of(tries: u32, nonce: &str) -> Duration {
    let mut hasher = std::hash::DefaultHasher::new();
    (nonce, tries).hash(&mut hasher);
    BACKOFF.spread(tries, hasher.finish())
}
