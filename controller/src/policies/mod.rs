//! Proves that the admission policies are enforced, before anything relies on them.
//!
//! Existence proves nothing: a policy is enforced only about a second after its creation. So each policy has to refuse, by its name, a dry
//! run that the controller sends. A proof counts for at most a minute, and only until a watch shows that a policy or a binding was deleted
//! or changed. Where the policies were not enforced, they do not count as proven again until what was set meanwhile is revoked and
//! [`Prober::close`] is called.
//!
//! | module | holds |
//! |---|---|
//! | `installed` | the policies and bindings that exist |
//! | [`missing`] | why the policies are not proven |
//! | [`gaps`] | where they were not enforced |
//! | `probe` | the dry run that a policy has to refuse |
//! | [`watch`] | the watches of policies and bindings |

pub mod gaps;
mod installed;
pub mod missing;
mod probe;
pub mod watch;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use tokio::{sync::watch as channel, time::timeout};

use crate::{cluster::Cluster, error::Error};
use crds::reason;
use gaps::{Gap, Gaps};
use installed::Policies;
use missing::Missing;

/// How long a proof counts.
const GOOD_FOR: SignedDuration = SignedDuration::from_secs(60);
/// Delay before a failed proof is repeated, unless a watch shows a change earlier.
pub const RETRY: SignedDuration = SignedDuration::from_secs(5);
/// How long a proof waits for the first listing.
const LISTING: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq)]
pub enum Enforcement {
    /// Not tried within the last minute, or not since the last change.
    Unknown,
    /// Proven within the last minute.
    Enforced,
    /// Not proven.
    NotEnforced {
        missing: Missing,
        retry_at: Timestamp,
    },
}

/// Caches the last proof of each namespace, since bindings may select namespaces.
pub struct Prober {
    proofs: Mutex<HashMap<String, Arc<Proof>>>,
    gaps: Mutex<Gaps>,
    news: channel::Sender<()>,
}

impl Default for Prober {
    fn default() -> Self {
        Self {
            proofs: Mutex::default(),
            gaps: Mutex::default(),
            news: channel::Sender::new(()),
        }
    }
}

#[derive(Default)]
struct Proof {
    /// Held during the probes, so that concurrent runs share one proof.
    making: tokio::sync::Mutex<()>,
    last: Mutex<Option<Last>>,
}

/// The last attempt at a proof.
#[derive(Clone)]
struct Last {
    /// When it began.
    at: Timestamp,
    /// Number of changes that the watches had shown by then.
    changes: u64,
    found: Result<(), Missing>,
}

impl Last {
    /// The present proof. `is_open`: a gap in the namespace is open, so annotations there have yet to be revoked.
    fn state(&self, now: Timestamp, changes: u64, is_open: bool) -> Enforcement {
        let retry_at = self.at.checked_add(RETRY).unwrap_or(Timestamp::MAX);
        match &self.found {
            _ if self.changes != changes => Enforcement::Unknown,
            // The clock was set back.
            _ if self.at.duration_since(now) >= RETRY => Enforcement::Unknown,
            Err(missing) => Enforcement::NotEnforced {
                missing: missing.clone(),
                retry_at,
            },
            Ok(()) if now.duration_since(self.at) >= GOOD_FOR => Enforcement::Unknown,
            Ok(()) if is_open => {
                let text = "the admission policies are enforced again; what was set while they were not is being removed";
                Enforcement::NotEnforced {
                    missing: Missing::policy(text),
                    retry_at,
                }
            }
            Ok(()) => Enforcement::Enforced,
        }
    }
}

impl Prober {
    pub fn state(&self, namespace: &str, now: Timestamp) -> Enforcement {
        let proof = self.proofs().get(namespace).cloned();
        let Some(last) = proof.and_then(|proof| proof.lock().clone()) else {
            return Enforcement::Unknown;
        };
        let known = self.known();
        last.state(now, known.changes, known.is_open(namespace))
    }

    /// Takes the policies as the watches show them.
    fn show(&self, policies: Policies) {
        if self.known().show(policies) {
            self.news.send_replace(());
        }
    }

    /// Notifies when a policy or a binding changed, or a gap can be closed or was closed.
    pub fn changes(&self) -> channel::Receiver<()> {
        self.news.subscribe()
    }

    /// The gaps in which the policies are proven again: what was set there can be revoked now.
    pub fn gaps(&self, now: Timestamp) -> Vec<Gap> {
        let proofs = self.proofs().clone();
        let known = self.known();
        let proven = |proof: &Arc<Proof>| {
            proof
                .lock()
                .as_ref()
                .is_some_and(|last| last.state(now, known.changes, false) == Enforcement::Enforced)
        };
        let mut open = known.open();
        open.retain(|gap| match &gap.namespace {
            Some(namespace) => proofs.get(namespace).is_some_and(proven),
            None => proofs.values().any(proven),
        });
        open
    }

    /// Everything that was set in the gap has been revoked.
    pub fn close(&self, gap: &Gap) {
        self.known().close(gap);
        self.news.send_replace(());
    }

    /// Proves that the policies are enforced in a namespace, or shares the proof of another run.
    ///
    /// # Errors
    /// If a request gets no answer, or one that proves nothing, such as that of an overloaded server.
    pub async fn prove(&self, namespace: &str, ctx: &Cluster) -> Result<Enforcement, Error> {
        let proof = self
            .proofs()
            .entry(namespace.to_owned())
            .or_default()
            .clone();
        let _making = proof.making.lock().await;
        let known = self.state(namespace, ctx.now());
        match &known {
            Enforcement::Enforced => return Ok(known),
            Enforcement::NotEnforced { retry_at, .. } if ctx.now() < *retry_at => return Ok(known),
            Enforcement::Unknown | Enforcement::NotEnforced { .. } => {}
        }
        // Without a listing the policies count as missing.
        let _ = timeout(LISTING, self.listed()).await;
        let (changes, missing) = {
            let known = self.known();
            (known.changes, known.missing())
        };
        // Taken before the first request, so a proof never counts too long.
        let at = ctx.now();
        let found = match missing {
            Some(text) => Err(Missing::policy(text)),
            None => probe::all(namespace, ctx).await?.map_or(Ok(()), Err),
        };
        self.conclude(namespace, &proof, Last { at, changes, found }, ctx);
        Ok(self.state(namespace, ctx.now()))
    }

    fn conclude(&self, namespace: &str, proof: &Proof, last: Last, ctx: &Cluster) {
        let is_open = {
            let mut known = self.known();
            match &last.found {
                Ok(()) => known.succeed(last.changes),
                Err(missing) if missing.let_through => known.fail(Some(namespace)),
                Err(_) if known.missing().is_some() => known.fail(None),
                Err(_) => {}
            }
            last.found.is_ok() && known.is_open(namespace)
        };
        match &last.found {
            Ok(()) => tracing::debug!(namespace, "the admission policies are enforced"),
            Err(missing) => tracing::warn!(
                namespace,
                missing = missing.text,
                "the admission policies are not proven"
            ),
        }
        // A namespace that is being deleted proves nothing about the policies.
        if last
            .found
            .as_ref()
            .err()
            .is_none_or(|missing| missing.reason == reason::POLICY_MISSING)
        {
            ctx.metrics.policies(last.found.is_ok());
        }
        *proof.lock() = Some(last);
        if is_open {
            self.news.send_replace(());
        }
    }

    /// Waits for the first listing.
    async fn listed(&self) {
        let mut changes = self.changes();
        while !self.known().is_listed() && changes.changed().await.is_ok() {}
    }

    fn proofs(&self) -> MutexGuard<'_, HashMap<String, Arc<Proof>>> {
        self.proofs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, Gaps> {
        self.gaps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Proof {
    fn lock(&self) -> MutexGuard<'_, Option<Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use installed::tests::{complete, with};

    fn last(found: Result<(), Missing>) -> Last {
        Last {
            at: Timestamp::from_second(1000).unwrap(),
            changes: 3,
            found,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn proof_expires() {
        let proof = last(Ok(()));
        assert_eq!(proof.state(at(1059), 3, false), Enforcement::Enforced);
        assert_eq!(proof.state(at(1060), 3, false), Enforcement::Unknown);
        for found in [Ok(()), Err(Missing::policy("x"))] {
            assert_eq!(
                last(found).state(at(995), 3, false),
                Enforcement::Unknown,
                "the clock was put back"
            );
        }
    }

    #[test]
    fn watched_change_ends_proof_and_failure() {
        for found in [Ok(()), Err(Missing::policy("x"))] {
            assert_ne!(
                last(found.clone()).state(at(1001), 3, false),
                Enforcement::Unknown
            );
            assert_eq!(last(found).state(at(1001), 4, false), Enforcement::Unknown);
        }
        let prober = Prober::default();
        let mut changes = prober.changes();
        prober.show(complete());
        assert!(changes.has_changed().unwrap());
        changes.borrow_and_update();
        prober.show(complete());
        assert!(!changes.has_changed().unwrap());
    }

    #[test]
    fn open_gap_holds_a_proof_back_until_it_is_closed() {
        let prober = Prober::default();
        prober.show(complete());
        let proves = || {
            let changes = prober.known().changes;
            prober.known().succeed(changes);
            *prober.proofs().entry("team".into()).or_default().lock() = Some(Last {
                at: at(1000),
                changes,
                found: Ok(()),
            });
        };
        proves();
        assert_eq!(
            (prober.state("team", at(1001)), prober.gaps(at(1001))),
            (Enforcement::Enforced, vec![])
        );
        let name = "binding/pawl-layer/pawl-layer";
        prober.show(with(name, None));
        prober.show(with(name, Some(("again", 1))));
        assert_eq!(
            (prober.state("team", at(1001)), prober.gaps(at(1001))),
            (Enforcement::Unknown, vec![])
        );
        proves();
        assert!(matches!(
            prober.state("team", at(1001)),
            Enforcement::NotEnforced { .. }
        ));
        let gaps = prober.gaps(at(1001));
        assert_eq!(gaps.len(), 1, "by a proof that counts");
        assert_eq!(prober.gaps(at(1060)), vec![], "by a proof that counts");
        prober.close(&gaps[0]);
        assert_eq!(prober.state("team", at(1001)), Enforcement::Enforced);
    }
}
