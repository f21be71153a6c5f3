//! Which of several controllers works: the one whose identity stands in a Lease.
//!
//! Nothing rests on it but quiet: every write of a run has a precondition, and two controllers that both work do no harm. So the
//! clocks of two machines are never compared: who stands by measures on its own clock how long the Lease has not changed, and
//! who leads ends its process when it could not renew it for a good while less than that.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::error::{self, Error, ErrorKind};

/// How long a Lease has to stand unchanged before another may take it.
pub const LASTS: Duration = Duration::from_secs(15);
/// How long after its last renewal a leader goes on that cannot renew.
pub const GIVES_UP: Duration = Duration::from_secs(10);
/// Between two renewals.
const RENEWS: Duration = Duration::from_secs(3);
/// Between two tries after an error.
const AGAIN: Duration = Duration::from_secs(1);

/// One controller among several.
#[derive(Clone)]
pub struct Candidate {
    api: Api<Lease>,
    name: String,
    identity: String,
}

/// What a candidate is to do about the Lease as it saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It is there for the taking.
    Take,
    /// Another has it; it may be taken then, if nothing changes.
    Wait(Instant),
}

/// A Lease as it was seen last, and since when it has not changed: by this process's own clock.
#[derive(Clone, Debug, Default)]
struct Observed {
    lease: Option<Lease>,
    since: Option<Instant>,
}

impl Observed {
    fn see(&mut self, lease: Option<Lease>, now: Instant) {
        let version = |lease: &Option<Lease>| lease.as_ref().map(|lease| lease.metadata.resource_version.clone());
        if self.since.is_none() || version(&self.lease) != version(&lease) {
            self.since = Some(now);
        }
        self.lease = lease;
    }

    fn step(&self, identity: &str, now: Instant) -> Step {
        let holder = self.lease.as_ref().and_then(|lease| lease.spec.as_ref()).and_then(|spec| spec.holder_identity.as_deref());
        let free = self.since.unwrap_or(now) + LASTS;
        match holder {
            None | Some("") => Step::Take,
            Some(holder) if holder == identity || now >= free => Step::Take,
            Some(_) => Step::Wait(free),
        }
    }
}

impl Candidate {
    /// A candidate for the Lease of that name in the controller's own namespace. `pod` is who it is for people.
    pub fn new(client: Client, name: &str, pod: &str) -> Self {
        // A container that is started again is another candidate: what the one before it had under way may still be.
        let identity = format!("{pod}_{:08x}", rand::random::<u32>());
        Self { api: Api::default_namespaced(client), name: name.to_owned(), identity }
    }

    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Waits until this candidate leads. Returns the Lease, and when the request was sent that made it so.
    pub async fn wins(&self) -> (Lease, Instant) {
        let only = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        let mut seen = Observed::default();
        let mut events = std::pin::pin!(watcher(self.api.clone(), only).default_backoff().boxed());
        loop {
            let step =
                if seen.since.is_some() { seen.step(&self.identity, Instant::now()) } else { Step::Wait(Instant::now() + LASTS) };
            match step {
                Step::Take => {
                    let sent = Instant::now();
                    match self.write(seen.lease.as_ref(), &self.identity).await {
                        Ok(lease) => return (lease, sent),
                        Err(error)
                            if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists | ErrorKind::NotFound) => {}
                        Err(error) => tracing::warn!(%error, lease = self.name, "the Lease of the leader cannot be taken"),
                    }
                    tokio::time::sleep(AGAIN).await;
                    // Whoever was faster stands there now. An error of this read says nothing either.
                    if let Ok(lease) = error::call_opt("read the leader's lease", self.api.get(&self.name)).await {
                        seen.see(lease, Instant::now());
                    }
                }
                Step::Wait(until) => tokio::select! {
                    event = events.try_next() => match event {
                        Ok(Some(watcher::Event::Apply(lease) | watcher::Event::InitApply(lease))) => seen.see(Some(lease), Instant::now()),
                        Ok(Some(watcher::Event::Delete(_))) => seen.see(None, Instant::now()),
                        // An empty list: there is none yet.
                        Ok(Some(watcher::Event::InitDone)) => seen.since = seen.since.or_else(|| Some(Instant::now())),
                        Ok(Some(watcher::Event::Init)) => {}
                        Ok(None) | Err(_) => tokio::time::sleep(AGAIN).await,
                    },
                    () = sleep_until(until) => {}
                },
            }
        }
    }

    /// Renews the Lease; returns when this process must not lead any more, with what happened.
    pub async fn loses(&self, mut lease: Lease, mut renewed: Instant) -> String {
        loop {
            tokio::time::sleep(RENEWS).await;
            let until = renewed + GIVES_UP;
            let (mut sent, mut last) = (Instant::now(), String::from("no answer"));
            loop {
                match timeout_at(until, self.write(Some(&lease), &self.identity)).await {
                    Err(_) => return format!("the Lease could not be renewed for {} s: {last}", GIVES_UP.as_secs()),
                    Ok(Ok(fresh)) => {
                        (lease, renewed) = (fresh, sent);
                        break;
                    }
                    // Another took it, or an answer of ours was lost and it is ours still.
                    Ok(Err(error)) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {
                        match timeout_at(until, error::call_opt("read the leader's lease", self.api.get(&self.name))).await {
                            Ok(Ok(Some(found))) if self.is_ours(&found) => lease = found,
                            Ok(Ok(found)) => {
                                let holder = found.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity);
                                return format!("the Lease is of {}", holder.as_deref().unwrap_or("nobody"));
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

    /// Lets the next one take over at once.
    pub async fn releases(&self) {
        let found = error::call_opt("read the leader's lease", self.api.get(&self.name)).await;
        if let Ok(Some(lease)) = found
            && self.is_ours(&lease)
            && let Err(error) = self.write(Some(&lease), "").await
        {
            tracing::info!(%error, "the Lease of the leader was not given back; it runs out");
        }
    }

    fn is_ours(&self, lease: &Lease) -> bool {
        lease.spec.as_ref().is_some_and(|spec| spec.holder_identity.as_deref() == Some(self.identity.as_str()))
    }

    /// Writes a holder over the Lease as it was seen; any other one is left alone.
    async fn write(&self, before: Option<&Lease>, holder: &str) -> Result<Lease, Error> {
        let old = before.and_then(|lease| lease.spec.clone()).unwrap_or_default();
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
                acquire_time: if same { old.acquire_time } else { Some(now.clone()) },
                renew_time: Some(now),
                lease_transitions: Some(old.lease_transitions.unwrap_or(0) + i32::from(!same && !holder.is_empty())),
                ..LeaseSpec::default()
            }),
        };
        let params = PostParams::default();
        match before {
            Some(_) => error::call("renew the leader's lease", self.api.replace(&self.name, &params, &wanted)).await,
            None => error::call("create the leader's lease", self.api.create(&params, &wanted)).await,
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
    fn a_lease_is_taken_when_it_is_free_or_has_stood_still_long_enough() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut seen = Observed::default();
        seen.see(None, at(0));
        assert_eq!(seen.step("a", at(0)), Step::Take, "there is none");
        seen.see(Some(lease("1", "b")), at(1));
        assert_eq!(seen.step("a", at(1)), Step::Wait(at(16)));
        seen.see(Some(lease("2", "b")), at(4));
        seen.see(Some(lease("2", "b")), at(9));
        assert_eq!(seen.step("a", at(18)), Step::Wait(at(19)), "counted from its last change, not from the last look");
        assert_eq!(seen.step("a", at(19)), Step::Take);
        seen.see(Some(lease("3", "")), at(20));
        assert_eq!(seen.step("a", at(20)), Step::Take, "given back");
        seen.see(Some(lease("4", "a")), at(21));
        assert_eq!(seen.step("a", at(21)), Step::Take, "its own, of an answer that was lost");
    }

    #[test]
    fn a_leader_gives_up_before_another_may_begin() {
        // Its clock began before the renewal reached the API, the other's when it saw it. A call in flight may last, but ends
        // with the process.
        assert!(GIVES_UP + Duration::from_secs(2) < LASTS && RENEWS * 3 < GIVES_UP);
    }
}
