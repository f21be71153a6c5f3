//! Leader election by a Lease.
//!
//! Correctness does not depend on it: every write of a run has a precondition, so two active controllers do no harm.
//! Therefore clocks of machines are never compared. A standby measures with its own clock how long the Lease has not
//! changed. A leader exits when it could not renew the Lease for a clearly shorter time.

use std::time::Duration;

use futures::TryStreamExt as _;
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
    runtime::{WatchStreamExt as _, watcher::watch_object},
};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::error::{self, Error, ErrorKind};

/// How long a Lease must be unchanged before another candidate may take it.
pub const LASTS: Duration = Duration::from_secs(15);
/// How long a leader continues after its last renewal.
pub const GIVES_UP: Duration = Duration::from_secs(10);
/// Interval of renewals.
const RENEWS: Duration = Duration::from_secs(3);
/// Wait after an error.
const AGAIN: Duration = Duration::from_secs(1);

/// One of several controllers.
#[derive(Clone)]
pub struct Candidate {
    api: Api<Lease>,
    name: String,
    identity: String,
}

/// The next step of a candidate, given the Lease as last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The Lease is free.
    Take,
    /// Another candidate holds it; it may be taken at this time, if it does not change.
    Wait(Instant),
}

/// The Lease as last seen, and since when it has not changed, by this process's clock.
#[derive(Clone, Debug, Default)]
struct Observed {
    lease: Option<Lease>,
    since: Option<Instant>,
}

impl Observed {
    fn see(&mut self, lease: Option<Lease>, now: Instant) {
        let version = |lease: &Option<Lease>| {
            lease
                .as_ref()
                .map(|lease| lease.metadata.resource_version.clone())
        };
        if self.since.is_none() || version(&self.lease) != version(&lease) {
            self.since = Some(now);
        }
        self.lease = lease;
    }

    fn step(&self, identity: &str, now: Instant) -> Step {
        let holder = self
            .lease
            .as_ref()
            .and_then(|lease| lease.spec.as_ref())
            .and_then(|spec| spec.holder_identity.as_deref());
        let free = self.since.unwrap_or(now) + LASTS;
        match holder {
            None | Some("") => Step::Take,
            Some(holder) if holder == identity || now >= free => Step::Take,
            Some(_) => Step::Wait(free),
        }
    }
}

impl Candidate {
    /// A candidate for the Lease of this name in the controller's own namespace. `pod` identifies it for people.
    pub fn new(client: Client, name: &str, pod: &str) -> Self {
        // A restarted container gets another identity, because requests of its predecessor may still be in progress.
        let identity = format!("{pod}_{:08x}", rand::random::<u32>());
        Self {
            api: Api::default_namespaced(client),
            name: name.to_owned(),
            identity,
        }
    }

    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Waits until this candidate leads. Returns the Lease, and the time at which the winning request was sent.
    pub async fn wins(&self) -> (Lease, Instant) {
        let mut seen = Observed::default();
        let mut events =
            std::pin::pin!(watch_object(self.api.clone(), &self.name).default_backoff());
        loop {
            let step = if seen.since.is_some() {
                seen.step(&self.identity, Instant::now())
            } else {
                Step::Wait(Instant::now() + LASTS)
            };
            match step {
                Step::Take => {
                    let sent = Instant::now();
                    match self.write(seen.lease.as_ref(), &self.identity).await {
                        Ok(lease) => return (lease, sent),
                        Err(error)
                            if matches!(
                                error.kind(),
                                ErrorKind::Conflict
                                    | ErrorKind::AlreadyExists
                                    | ErrorKind::NotFound
                            ) => {}
                        Err(error) => {
                            tracing::warn!(%error, lease = self.name, "the leader's Lease cannot be taken");
                        }
                    }
                    tokio::time::sleep(AGAIN).await;
                    // Read who was faster. An error of this read is ignored.
                    if let Ok(lease) =
                        error::call_opt("read the leader's lease", self.api.get(&self.name)).await
                    {
                        seen.see(lease, Instant::now());
                    }
                }
                Step::Wait(until) => tokio::select! {
                    event = events.try_next() => match event {
                        Ok(Some(lease)) => seen.see(lease, Instant::now()),
                        Ok(None) | Err(_) => tokio::time::sleep(AGAIN).await,
                    },
                    () = sleep_until(until) => {}
                },
            }
        }
    }

    /// Renews the Lease; returns the reason when this process must stop leading.
    pub async fn loses(&self, mut lease: Lease, mut renewed: Instant) -> String {
        loop {
            tokio::time::sleep(RENEWS).await;
            let until = renewed + GIVES_UP;
            let (mut sent, mut last) = (Instant::now(), String::from("no answer"));
            loop {
                match timeout_at(until, self.write(Some(&lease), &self.identity)).await {
                    Err(_) => {
                        return format!(
                            "the Lease could not be renewed for {} s: {last}",
                            GIVES_UP.as_secs()
                        );
                    }
                    Ok(Ok(fresh)) => {
                        (lease, renewed) = (fresh, sent);
                        break;
                    }
                    // Another candidate took it, or a response was lost and the Lease is still ours.
                    Ok(Err(error))
                        if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) =>
                    {
                        match timeout_at(
                            until,
                            error::call_opt("read the leader's lease", self.api.get(&self.name)),
                        )
                        .await
                        {
                            Ok(Ok(Some(found))) if self.is_ours(&found) => lease = found,
                            Ok(Ok(found)) => {
                                let holder = found
                                    .and_then(|lease| lease.spec)
                                    .and_then(|spec| spec.holder_identity);
                                return format!(
                                    "the Lease is of {}",
                                    holder.as_deref().unwrap_or("no process")
                                );
                            }
                            Ok(Err(error)) => last = error.to_string(),
                            Err(_) => {}
                        }
                    }
                    Ok(Err(error)) => last = error.to_string(),
                }
                tokio::time::sleep(AGAIN).await;
                sent = Instant::now();
            }
        }
    }

    /// Releases the Lease, so that the next candidate can take over immediately.
    pub async fn releases(&self) {
        let found = error::call_opt("read the leader's lease", self.api.get(&self.name)).await;
        if let Ok(Some(lease)) = found
            && self.is_ours(&lease)
            && let Err(error) = self.write(Some(&lease), "").await
        {
            tracing::info!(%error, "the leader's Lease was not released; it expires");
        }
    }

    fn is_ours(&self, lease: &Lease) -> bool {
        lease
            .spec
            .as_ref()
            .is_some_and(|spec| spec.holder_identity.as_deref() == Some(self.identity.as_str()))
    }

    /// Writes a holder to the Lease if it is unchanged since it was seen.
    async fn write(&self, before: Option<&Lease>, holder: &str) -> Result<Lease, Error> {
        let old = before
            .and_then(|lease| lease.spec.clone())
            .unwrap_or_default();
        let now = MicroTime(Timestamp::now());
        let same = old.holder_identity.as_deref() == Some(holder);
        let wanted = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                resource_version: before.and_then(|lease| lease.metadata.resource_version.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                lease_duration_seconds: i32::try_from(LASTS.as_secs()).ok(),
                acquire_time: if same {
                    old.acquire_time
                } else {
                    Some(now.clone())
                },
                renew_time: Some(now),
                lease_transitions: Some(
                    old.lease_transitions.unwrap_or(0) + i32::from(!same && !holder.is_empty()),
                ),
                ..LeaseSpec::default()
            }),
        };
        let params = PostParams::default();
        match before {
            Some(_) => {
                error::call(
                    "renew the leader's lease",
                    self.api.replace(&self.name, &params, &wanted),
                )
                .await
            }
            None => {
                error::call(
                    "create the leader's lease",
                    self.api.create(&params, &wanted),
                )
                .await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(version: &str, holder: &str) -> Lease {
        serde_json::from_value(serde_json::json!({"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": holder}}))
            .unwrap()
    }

    #[test]
    fn lease_is_taken_when_free_or_expired() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut seen = Observed::default();
        seen.see(None, at(0));
        assert_eq!(seen.step("a", at(0)), Step::Take, "there is none");
        seen.see(Some(lease("1", "b")), at(1));
        assert_eq!(seen.step("a", at(1)), Step::Wait(at(16)));
        seen.see(Some(lease("2", "b")), at(4));
        seen.see(Some(lease("2", "b")), at(9));
        assert_eq!(
            seen.step("a", at(18)),
            Step::Wait(at(19)),
            "counted from its last change, not from the last look"
        );
        assert_eq!(seen.step("a", at(19)), Step::Take);
        seen.see(Some(lease("3", "")), at(20));
        assert_eq!(seen.step("a", at(20)), Step::Take, "given back");
        seen.see(Some(lease("4", "a")), at(21));
        assert_eq!(
            seen.step("a", at(21)),
            Step::Take,
            "its own, of an answer that was lost"
        );
    }

    #[test]
    fn leader_stops_before_a_standby_may_start() {
        // The leader's timer starts before its renewal reaches the API server, the standby's when it sees the renewal. So the leader always
        // exits first. A call in flight ends with the process.
        assert!(GIVES_UP + Duration::from_secs(2) < LASTS);
        assert!(RENEWS * 3 < GIVES_UP);
    }
}
