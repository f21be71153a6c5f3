//! Proves that the admission policies stand before anything relies on them, and that they have stood since whatever relies on
//! them was set.
//!
//! Existence proves nothing: a policy is in force about a second after it was created. So each has to refuse, by its name, a dry
//! run in the controller's own name. And being in force now proves nothing of a moment ago: [`standing`] keeps which policies were
//! proven, and what was set while others stood, or none, is taken away before they count as proven again.
//!
//! | module | holds |
//! |---|---|
//! | [`installed`] | policies and bindings as they stand, and whether they stood all the time between two looks |
//! | [`missing`] | why the policies are not proven |
//! | `probe` | a run that a policy has to refuse |
//! | [`standing`] | what was proven last, in a Lease |
//! | [`feed`] | the watches, and the first proof |

pub mod feed;
pub mod installed;
pub mod missing;
mod probe;
pub mod standing;

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use crate::{cluster::Cluster, error::Error};
use crds::reason;
use installed::Policies;
use missing::Missing;
use standing::Standing;

/// How long a proof is good for.
const GOOD_FOR: SignedDuration = SignedDuration::from_secs(60);
/// When a failed proof is tried again, unless a watch sees a change before.
const RETRY: SignedDuration = SignedDuration::from_secs(5);

#[derive(Clone, Debug, PartialEq)]
pub enum Enforcement {
    /// Not tried within the last minute.
    Unknown,
    /// Proven within the last minute.
    Enforced,
    /// Not proven.
    NotEnforced { missing: Missing, retry_at: Timestamp },
}

/// Whoever decides on runs, as far as a proof needs him.
pub trait Voids: Deref<Target = Cluster> + Send + Sync {
    /// Takes away what stands on the runs of a namespace, or of all, that was set while the policies were not proven; with
    /// `creations`, also what runs that have not begun ask for themselves.
    ///
    /// # Errors
    /// When an answer says nothing. Then it is to be done again.
    fn void(&self, scope: Option<&str>, creations: bool) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Keeps the last proof of each namespace; bindings may differ between namespaces.
pub struct Prober {
    proofs: Mutex<HashMap<String, Arc<Proof>>>,
    reading: Reading,
    /// Counts the changes that the watches saw; a proof is of one number.
    changes: watch::Sender<u64>,
    /// What the Lease says. Held while what stood is taken away.
    standing: tokio::sync::Mutex<Option<Standing>>,
}

impl Default for Prober {
    fn default() -> Self {
        Self {
            proofs: Mutex::default(),
            reading: Reading::default(),
            changes: watch::Sender::new(0),
            standing: tokio::sync::Mutex::default(),
        }
    }
}

#[derive(Default)]
struct Proof {
    /// Held while a proof is made, so that twenty runs at once make one.
    making: tokio::sync::Mutex<()>,
    last: Mutex<Option<Last>>,
}

/// The policies as they stand, read once for all who asked before the reading began, whatever their namespace.
#[derive(Default)]
struct Reading {
    asked: AtomicU64,
    last: tokio::sync::Mutex<Option<Stand>>,
}

#[derive(Clone)]
struct Stand {
    /// How many had asked when the reading began: it is theirs.
    covered: u64,
    /// When it began.
    at: Timestamp,
    /// How many changes the watches had seen by then.
    changes: u64,
    found: Result<Policies, String>,
}

impl Reading {
    fn ticket(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::SeqCst)
    }

    /// A reading that began after the ticket was drawn.
    async fn after<R>(&self, ticket: u64, moment: impl Fn() -> (Timestamp, u64), read: impl FnOnce() -> R) -> Result<Stand, Error>
    where
        R: Future<Output = Result<Result<Policies, String>, Error>>,
    {
        let mut last = self.last.lock().await;
        if let Some(stand) = last.as_ref().filter(|stand| ticket < stand.covered) {
            return Ok(stand.clone());
        }
        let (covered, (at, changes)) = (self.asked.load(Ordering::SeqCst), moment());
        let stand = Stand { covered, at, changes, found: read().await? };
        *last = Some(stand.clone());
        Ok(stand)
    }
}

/// The last try of a proof.
struct Last {
    /// When it began.
    at: Timestamp,
    /// How many changes the watches had seen by then.
    changes: u64,
    /// The policies that were proven, or what was missing.
    found: Result<Policies, Missing>,
}

impl Proof {
    fn state(&self, now: Timestamp, changes: u64) -> Enforcement {
        match &*self.lock() {
            Some(last) if last.changes != changes => Enforcement::Unknown,
            Some(Last { at, found: Ok(_), .. }) if now.duration_since(*at).abs() < GOOD_FOR => Enforcement::Enforced,
            None | Some(Last { found: Ok(_), .. }) => Enforcement::Unknown,
            Some(Last { at, found: Err(missing), .. }) => {
                Enforcement::NotEnforced { missing: missing.clone(), retry_at: at.checked_add(RETRY).unwrap_or(Timestamp::MAX) }
            }
        }
    }

    /// Whether these are the policies that were proven last.
    fn is_of(&self, policies: &Policies) -> bool {
        self.lock().as_ref().is_some_and(|last| last.found.as_ref() == Ok(policies))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Prober {
    pub fn state(&self, namespace: &str, now: Timestamp) -> Enforcement {
        let proofs = self.proofs.lock().unwrap_or_else(PoisonError::into_inner);
        proofs.get(namespace).map_or(Enforcement::Unknown, |proof| proof.state(now, *self.changes.borrow()))
    }

    /// A policy or a binding changed: no proof is good any more.
    pub fn changed(&self) {
        self.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    /// Tells of changes of policies and bindings.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Proves that the policies are enforced in a namespace, or shares the proof of another run: then the policies that stand at this moment
    /// are compared with those that were proven. What was set on a run that was read before this call was set behind them.
    ///
    /// # Errors
    /// When an answer says nothing: no connection, an overloaded server.
    pub async fn prove(&self, namespace: &str, ctx: &impl Voids) -> Result<Enforcement, Error> {
        let proof = {
            let mut proofs = self.proofs.lock().unwrap_or_else(PoisonError::into_inner);
            proofs.entry(namespace.to_owned()).or_default().clone()
        };
        let ticket = self.reading.ticket();
        let _making = proof.making.lock().await;
        let moment = || (ctx.now(), *self.changes.borrow());
        let (now, changes) = moment();
        let before = proof.state(now, changes);
        if matches!(&before, Enforcement::NotEnforced { retry_at, .. } if now < *retry_at) {
            return Ok(before);
        }
        // Counted from before its first request: the proof is of that moment at the latest.
        let Stand { at, changes, found, .. } = self.reading.after(ticket, moment, || installed::read(ctx)).await?;
        let found = match found {
            Ok(policies) if before == Enforcement::Enforced && proof.is_of(&policies) => return Ok(Enforcement::Enforced),
            Ok(policies) => self.attempt(namespace, policies, ctx).await?,
            Err(missing) => Err(Missing::policy(missing)),
        };
        match &found {
            Ok(_) => tracing::debug!(namespace, "the admission policies stand"),
            Err(missing) => tracing::warn!(namespace, missing = missing.text, "the admission policies are not proven"),
        }
        // A namespace that goes says nothing of the policies.
        if found.as_ref().err().is_none_or(|missing| missing.reason == reason::POLICY_MISSING) {
            ctx.metrics.policies(found.is_ok());
        }
        *proof.lock() = Some(Last { at, changes, found });
        Ok(proof.state(ctx.now(), *self.changes.borrow()))
    }

    async fn attempt(&self, namespace: &str, policies: Policies, ctx: &impl Voids) -> Result<Result<Policies, Missing>, Error> {
        match probe::all(namespace, ctx).await? {
            None => {
                self.stands(namespace, &policies, ctx).await?;
                Ok(Ok(policies))
            }
            Some(missing) => {
                if missing.let_through {
                    self.falls(namespace, ctx).await?;
                }
                Ok(Err(missing))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    fn proof(found: Result<Policies, Missing>) -> Proof {
        let last = Last { at: Timestamp::from_second(1000).unwrap(), changes: 3, found };
        Proof { last: Mutex::new(Some(last)), ..Proof::default() }
    }

    #[test]
    fn a_proof_ages() {
        let proof = proof(Ok(Policies::default()));
        assert_eq!(proof.state(Timestamp::from_second(1059).unwrap(), 3), Enforcement::Enforced);
        assert_eq!(proof.state(Timestamp::from_second(1060).unwrap(), 3), Enforcement::Unknown);
        assert_eq!(proof.state(Timestamp::from_second(940).unwrap(), 3), Enforcement::Unknown, "the clock was put back");
    }

    #[tokio::test]
    async fn a_reading_is_of_all_who_asked_before_it_began_and_of_nobody_after() {
        let (reading, reads) = (Reading::default(), AtomicU64::new(0));
        let after = |ticket| {
            let read = || async { Ok(Err(reads.fetch_add(1, Ordering::SeqCst).to_string())) };
            reading.after(ticket, || (Timestamp::UNIX_EPOCH, 0), read)
        };
        let (first, second) = (reading.ticket(), reading.ticket());
        for ticket in [first, second, first] {
            assert_eq!(after(ticket).await.unwrap().found, Err("0".to_owned()));
        }
        // What it may have set was read after that.
        let third = reading.ticket();
        assert_eq!(after(third).await.unwrap().found, Err("1".to_owned()));
    }

    #[test]
    fn a_change_that_a_watch_saw_ends_a_proof_and_a_lack_at_once() {
        let now = Timestamp::from_second(1001).unwrap();
        for proof in [proof(Ok(Policies::default())), proof(Err(Missing::policy("x")))] {
            assert_ne!(proof.state(now, 3), Enforcement::Unknown);
            assert_eq!(proof.state(now, 4), Enforcement::Unknown);
        }
        let keeper = Prober::default();
        let mut changes = keeper.changes();
        keeper.changed();
        assert!(changes.has_changed().unwrap());
        assert_eq!(*changes.borrow_and_update(), 1);
    }
}
