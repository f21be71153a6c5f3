//! Bounds on requests with tokens that the API server has not accepted here before, so that a flood of forged tokens makes no one wait.
//!
//! Sessions, and tokens that were accepted before, do not count: they have reviews that strangers do not get.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    extract::FromRequestParts,
    http::{StatusCode, request::Parts},
};
use k8s_openapi::api::authentication::v1::UserInfo;
use serving::connections::Peer;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use crate::{Console, api_server::Token, budget::Budget, problem::Problem};

/// Most unknown tokens of one address in a second, and of all addresses.
const OF_ONE: usize = 10;
const OF_ALL: usize = 100;
/// Most concurrent reviews of one address, and of all: half of those that the console has.
const AT_ONCE_OF_ONE: usize = 4;
const AT_ONCE: usize = 8;
/// Most addresses that are remembered.
const ADDRESSES: usize = 1024;

/// The strangers of this replica.
pub struct Strangers {
    turns: Arc<Semaphore>,
    known: Mutex<Known>,
}

struct Known {
    all: Budget,
    by: HashMap<IpAddr, Stranger>,
    /// When idle addresses were forgotten.
    swept: Instant,
}

struct Stranger {
    budget: Budget,
    turns: Arc<Semaphore>,
    seen: Instant,
}

/// Permission for one review; `None` only if the console ends.
pub type Turn = [Option<OwnedSemaphorePermit>; 2];

impl Default for Strangers {
    fn default() -> Self {
        Self {
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            known: Mutex::new(Known {
                all: Budget::new(OF_ALL, Instant::now()),
                by: HashMap::new(),
                swept: Instant::now(),
            }),
        }
    }
}

impl Strangers {
    /// Waits for a turn.
    ///
    /// # Errors
    /// This address, or all together, sent too many unknown tokens.
    pub async fn turn(&self, from: IpAddr) -> Result<Turn, Problem> {
        let own = self.admit(from).ok_or_else(|| {
            Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                "TooManyTokens",
                format!(
                    "more than {OF_ONE} tokens a second from your address, or {OF_ALL} from all, are unknown here; try again in a few seconds"
                ),
            )
        })?;
        let own = own.acquire_owned().await.ok();
        Ok([own, self.turns.clone().acquire_owned().await.ok()])
    }

    fn admit(&self, from: IpAddr) -> Option<Arc<Semaphore>> {
        let now = Instant::now();
        let from = network(from);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Known { all, by, swept } = &mut *known;
        if by.len() >= ADDRESSES && now.duration_since(*swept).as_secs() > 0 {
            *swept = now;
            by.retain(|_, it| {
                now.duration_since(it.seen).as_secs() < 2 || Arc::strong_count(&it.turns) > 1
            });
        }
        if by.len() >= ADDRESSES && !by.contains_key(&from) {
            return None;
        }
        let new = || Stranger {
            budget: Budget::new(OF_ONE, now),
            turns: Arc::new(Semaphore::new(AT_ONCE_OF_ONE)),
            seen: now,
        };
        let one = by.entry(from).or_insert_with(new);
        one.seen = now;
        // One address alone does not use up what all have.
        let is_admitted = one.budget.take(1, now) == 1 && all.take(1, now) == 1;
        is_admitted.then(|| one.turns.clone())
    }
}

/// One host may have all addresses of an IPv6 network.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

/// The address that a request comes from; behind a proxy that the settings name, the one that the proxy saw.
pub struct Sender(pub IpAddr);

impl FromRequestParts<Arc<Console>> for Sender {
    type Rejection = Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        console: &Arc<Console>,
    ) -> Result<Self, Infallible> {
        Ok(Self::of(parts, console))
    }
}

impl Sender {
    pub(crate) fn of(parts: &Parts, console: &Console) -> Self {
        let peer = parts.extensions.get::<Peer>();
        let peer = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |Peer(peer)| *peer);
        let is_proxy = console.proxies.iter().any(|net| net.contains(&peer));
        // A client may send the header too; a proxy appends to it.
        let seen = parts.headers.get_all("x-forwarded-for").iter().next_back();
        let seen =
            seen.and_then(|seen| seen.to_str().ok()?.rsplit(',').next()?.trim().parse().ok());
        Self(seen.filter(|_| is_proxy).unwrap_or(peer))
    }
}

impl Console {
    /// The user whom a token of this sender names.
    ///
    /// # Errors
    /// Those of [`Self::name`] and [`Strangers::turn`].
    pub async fn meet(&self, token: &Token, from: &Sender) -> Result<Arc<UserInfo>, Problem> {
        let _turn = if self.names.has_met(token.secret()) {
            Turn::default()
        } else {
            self.strangers.turn(from.0).await?
        };
        self.name(token).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(number: usize) -> IpAddr {
        Ipv4Addr::from_bits(u32::try_from(number).unwrap()).into()
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_uses_up_only_its_own_share() {
        let strangers = Strangers::default();
        let flood = (0..1000).filter(|_| strangers.admit(v4(1)).is_some());
        assert_eq!(flood.count(), OF_ONE);
        assert!(strangers.admit(v4(2)).is_some(), "another one goes on");
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        assert!(strangers.admit(v4(1)).is_some(), "and it again, later");
    }

    #[tokio::test(start_paused = true)]
    async fn many_addresses_have_a_bound_together_and_are_forgotten() {
        let strangers = Strangers::default();
        let remembered = || strangers.known.lock().unwrap().by.len();
        let flood = (0..2 * ADDRESSES).filter(|it| strangers.admit(v4(*it)).is_some());
        assert_eq!((flood.count(), remembered()), (OF_ALL, ADDRESSES));
        tokio::time::advance(std::time::Duration::from_secs(2)).await;
        assert!(strangers.admit(v4(0)).is_some());
        assert_eq!(remembered(), 1);
        let own = network("2001:db8::1".parse().unwrap());
        assert_eq!(own, network("2001:db8::2:0:0:1".parse().unwrap()));
        assert_ne!(own, network("2001:db8:0:1::1".parse().unwrap()));
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_has_half_of_the_turns_of_strangers() {
        let strangers = Strangers::default();
        let mut held = Vec::new();
        for _ in 0..AT_ONCE_OF_ONE {
            held.push(strangers.turn(v4(1)).await.unwrap());
        }
        let soon = std::time::Duration::from_secs(1);
        let fifth = tokio::time::timeout(soon, strangers.turn(v4(1))).await;
        assert!(fifth.is_err(), "it waits for its own");
        assert!(strangers.turn(v4(2)).await.is_ok());
    }
}
